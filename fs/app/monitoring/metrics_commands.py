"""`ember metrics`: where the processes of a local cluster show their metrics,
and what one of them shows.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ...schema.status import FsError, Status
from ..machine.cluster_dir import ClusterDir
from ..reach.options import running_cluster
from ..supervision import supervisor_link
from .scraped import fetch

metrics = typer.Typer(
    help="What the processes of a cluster measure.", no_args_is_help=True, add_completion=False
)

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]


def shown(directory: ClusterDir) -> dict[str, str]:
    """Return `HOST:PORT` of the metrics of every running process that shows some, by its name.

    Raises:
        FsError: NOT_RUNNING.
    """
    services = supervisor_link.ask(directory, command="status")["services"]
    return {
        service["name"]: service["metrics_address"].removeprefix("tcp:")
        for service in services
        if service["state"] == "running" and service.get("metrics_address")
    }


def targets_of(addresses: dict[str, str]) -> list[dict[str, Any]]:
    """Return what Prometheus reads as a file of `file_sd_configs`."""
    return [
        {"targets": [address], "labels": {"process": name}} for name, address in addresses.items()
    ]


@metrics.command()
def targets(directory: DirOption = None) -> None:
    """Print where all processes show their metrics, as Prometheus's file_sd_configs reads it."""
    typer.echo(json.dumps(targets_of(shown(running_cluster(directory))), indent=2))


@metrics.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `ember status` names it.")],
    directory: DirOption = None,
) -> None:
    """Print the metrics of one process."""
    addresses = shown(running_cluster(directory))
    if name not in addresses:
        known = ", ".join(addresses) or "none does"
        raise FsError(Status.NOT_RUNNING, f"{name} shows no metrics; those that do: {known}")
    typer.echo(fetch(addresses[name]), nl=False)
