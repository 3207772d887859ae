"""`ember control`, `mgmtd`, `meta`, `kv`, `storage`, `mountd`:
one process of a cluster each, until it is asked to stop.
"""

import typer

from ..reach.options import ConfigOption

app = typer.Typer()


@app.command()
def control(config: ConfigOption) -> None:
    """Run the process that holds mgmtd, meta and the embedded key-value store."""
    from .. import control as root  # noqa: PLC0415
    from ..process.compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def mgmtd(config: ConfigOption) -> None:
    """Run a manager alone."""
    from .. import mgmtd as root  # noqa: PLC0415
    from ..process.compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def meta(config: ConfigOption) -> None:
    """Run a metadata service alone."""
    from .. import meta as root  # noqa: PLC0415
    from ..process.compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def kv(config: ConfigOption) -> None:
    """Run the process that serves its key-value store to managers and metadata services."""
    from .. import kv as root  # noqa: PLC0415
    from ..process.compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def storage(config: ConfigOption) -> None:
    """Run a storage process."""
    from .. import storage as root  # noqa: PLC0415
    from ..process.compose import run_process  # noqa: PLC0415

    run_process(root.run, config)


@app.command()
def mountd(config: ConfigOption) -> None:
    """Run a mount daemon."""
    from .. import mountd as root  # noqa: PLC0415
    from ..process.compose import run_process  # noqa: PLC0415

    run_process(root.run, config)
