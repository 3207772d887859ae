"""What the shell offers after the Tab key where a node, a chain or a target is named:
those that the cluster has.

Asks the cluster of this machine, for a moment: who types is not to wait, and is told no errors.
"""

from collections.abc import Callable
from typing import Annotated, Final

import typer

from ...schema.routing import RoutingInfo
from ...schema.status import FsError
from ..machine.cluster_dir import need_record
from ..reach.mgmtd_link import fetch_routing
from ..reach.which_cluster import chosen_directory

TIMEOUT_S: Final = 1.0


def _offered(ids_of: Callable[[RoutingInfo], list[int]]) -> Callable[[str], list[str]]:
    """Return a function that completes the beginning of a number."""

    def complete(incomplete: str) -> list[str]:
        try:
            directory = chosen_directory(None)
            info = fetch_routing(directory, need_record(directory), timeout_s=TIMEOUT_S)
        except (FsError, OSError):
            return []  # no cluster here: nothing to offer
        return [text for text in map(str, sorted(ids_of(info))) if text.startswith(incomplete)]

    return complete


complete_node: Final = _offered(lambda info: list(info.nodes))
complete_chain: Final = _offered(lambda info: list(info.chains))
complete_target: Final = _offered(lambda info: list(info.targets))

NodeArgument = Annotated[
    int,
    typer.Argument(
        metavar="NODE",
        min=1,
        help="As `ember admin node list` shows it.",
        autocompletion=complete_node,
    ),
]
DiskArgument = Annotated[
    int, typer.Argument(metavar="DISK", min=0, help="As `ember admin disk list` shows it.")
]
ChainArgument = Annotated[
    int, typer.Argument(metavar="CHAIN", min=1, help="Its id.", autocompletion=complete_chain)
]
TargetArgument = Annotated[
    int, typer.Argument(metavar="TARGET", min=1, help="Its id.", autocompletion=complete_target)
]
