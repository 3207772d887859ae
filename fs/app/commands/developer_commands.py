"""The developer's commands: they need the checkout."""

from typing import Annotated

import typer

from ..reach.options import PASS_ON

app = typer.Typer()


@app.command(context_settings=PASS_ON)
def test(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="Leave out slow tests and those that mount.")
    ] = False,  # noqa: PT028 - a command, not a test
    kv: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Run what must hold on any key-value store, on this one: foundationdb:CLUSTERFILE,"
            " foundationdb-fake, rocksdb, remote or memory.",
        ),
    ] = None,  # noqa: PT028 - as above
) -> None:
    """Run every check and test; further arguments go to pytest."""
    from .develop import run_kv_tests, run_tests  # noqa: PLC0415

    if kv is not None:
        raise typer.Exit(run_kv_tests(kv, fast=fast, arguments=context.args))
    raise typer.Exit(run_tests(fast=fast, arguments=context.args))


@app.command()
def check() -> None:
    """Run every check and the fast tests: the gate before a commit."""
    from .develop import run_tests  # noqa: PLC0415

    raise typer.Exit(run_tests(fast=True, arguments=[]))


@app.command()
def fix() -> None:
    """Format, repair what can be repaired, regenerate code and documents."""
    from .develop import run_fix  # noqa: PLC0415

    raise typer.Exit(run_fix())


@app.command()
def generate() -> None:
    """Regenerate the code and documents that come from the schema."""
    from .develop import run_generate  # noqa: PLC0415

    raise typer.Exit(run_generate())


@app.command()
def lock() -> None:
    """Resolve dependencies anew and rewrite the requirements*.lock files."""
    from .develop import run_lock  # noqa: PLC0415

    raise typer.Exit(run_lock())


@app.command(
    context_settings=PASS_ON | {"help_option_names": []}, options_metavar="[NAME ...] [OPTIONS]"
)
def bench(context: typer.Context) -> None:
    """Run benchmarks: all, or the named ones (rpc, kv, chunkengine ...).

    With --help it lists them; with a name and --help it tells the options of that one.

    Example: ember bench batch --plot batch.png
    """
    from .develop import run_bench  # noqa: PLC0415

    raise typer.Exit(run_bench(context.args))


@app.command(context_settings=PASS_ON | {"help_option_names": []}, options_metavar="[OPTIONS]")
def sim(context: typer.Context) -> None:
    """Replay simulated clusters by seed."""
    from .develop import run_sim  # noqa: PLC0415

    raise typer.Exit(run_sim(context.args))


@app.command(context_settings=PASS_ON | {"help_option_names": []}, options_metavar="[ROW] ...")
def torture(context: typer.Context) -> None:
    """Kill, stop, cut and damage a real cluster under load, and check every byte."""
    from .develop import run_torture  # noqa: PLC0415

    run_torture(context.args)
