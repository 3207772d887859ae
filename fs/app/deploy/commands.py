"""`ember cluster`: the commands."""

from pathlib import Path
from typing import Annotated

import typer

from ..terminal.listing import DryRunOption, YesOption
from .installer import Options, run_deploy
from .inventory import read_inventory
from .key_change import run_key_change
from .removal import run_remove
from .upgrade import run_stop, run_upgrade

cluster = typer.Typer(
    help="Install, grow and upgrade a cluster of many machines.",
    no_args_is_help=True,
    add_completion=False,
)

InventoryArgument = Annotated[
    Path, typer.Argument(metavar="INVENTORY", help="As deploy/inventory.toml shows.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="HOST", help="Nothing is done on others.")
]


@cluster.command("deploy")
def deploy(
    inventory: InventoryArgument,
    *,
    only: OnlyOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until new storage nodes have their share.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Make the hosts what the inventory says: install, start, make chains, grow, mount.

    Repeating is harmless.

    Exit code 1: some hosts failed, one line each; 3: what runs has to be restarted by an upgrade.
    """
    options = Options(tuple(only or ()), is_dry_run=dry_run, is_yes=yes, waits_balanced=wait)
    raise typer.Exit(run_deploy(read_inventory(inventory), options))


@cluster.command("upgrade")
def upgrade(
    inventory: InventoryArgument,
    *,
    only: OnlyOption = None,
    mounts: Annotated[
        bool, typer.Option("--mounts", help="Also mounts, whose programs see them vanish.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Restart what runs with other code or settings, host by host;
    each waits until all chains are whole.
    """
    options = Options(tuple(only or ()), is_dry_run=dry_run, is_yes=yes, with_mounts=mounts)
    raise typer.Exit(run_upgrade(read_inventory(inventory), options))


@cluster.command("remove")
def remove(
    inventory: InventoryArgument,
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST...", help="As the inventory names them.")
    ],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Let hosts leave: drain them, stop what runs there, make the cluster forget them,
    take the key away.

    The inventory has to name them until that is done.  A host that cannot be reached
    is drained and forgotten, too.
    """
    options = Options(is_dry_run=dry_run, is_yes=yes)
    raise typer.Exit(run_remove(read_inventory(inventory), tuple(hosts), options))


@cluster.command("rotate-key")
def rotate_key(
    inventory: InventoryArgument, *, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Give the cluster a new key, while all goes on; in the end the old one opens nothing.

    Needs all hosts.  Run it again if it was interrupted: until it has ended, both keys are good.
    """
    options = Options(is_dry_run=dry_run, is_yes=yes)
    raise typer.Exit(run_key_change(read_inventory(inventory), options))


@cluster.command("stop")
def stop(
    inventory: InventoryArgument,
    roles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE...", help="mount, storage, meta, mgmtd, kv.", show_default="all"
        ),
    ] = None,
    *,
    only: OnlyOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Stop processes in order: mounts first, the store last.  `deploy` starts them again."""
    options = Options(tuple(only or ()), is_dry_run=dry_run, is_yes=yes)
    raise typer.Exit(run_stop(read_inventory(inventory), options, tuple(roles or ())))
