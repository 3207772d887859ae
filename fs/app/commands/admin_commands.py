"""All groups of `ember admin`, under one roof with those that have a name of their own as well.

`ember admin user ...` is `ember user ...`, and so on: the same commands, registered twice.
"""

from typing import Annotated, Final

import typer

from ..admin.bench import bench
from ..admin.chains import chain, table, target
from ..admin.chunks import chunks
from ..admin.cluster import cluster, session
from ..admin.disks import disk
from ..admin.doctor import doctor
from ..admin.dumps import dump
from ..admin.files import file
from ..admin.fs_content import cat, write
from ..admin.fs_names import fs
from ..admin.garbage import gc
from ..admin.history import history
from ..admin.moves import move, rebalance
from ..admin.nodes import node
from ..admin.remote_calls import rpc
from ..admin.shell import shell_command
from ..admin.stored_settings import settings_commands
from ..admin.traces import trace
from ..admin.upgrade import upgrade
from ..monitoring.metrics_commands import metrics
from ..reach.entry import Entry, set_entry
from .key_commands import key
from .lock_commands import dirlock
from .placement_commands import placement
from .quota_commands import quota
from .trash_commands import trash
from .user_commands import user

admin = typer.Typer(
    help="Look into a running cluster, and change it.", no_args_is_help=True, add_completion=False
)

GROUPS: Final = {
    "bench": bench,
    "chain": chain,
    "chunks": chunks,
    "cluster": cluster,
    "config": settings_commands,
    "disk": disk,
    "dump": dump,
    "file": file,
    "fs": fs,
    "gc": gc,
    "move": move,
    "node": node,
    "rebalance": rebalance,
    "rpc": rpc,
    "session": session,
    "table": table,
    "target": target,
    "upgrade": upgrade,
}
ALSO: Final = {
    "dirlock": dirlock,
    "key": key,
    "metrics": metrics,
    "placement": placement,
    "quota": quota,
    "trash": trash,
    "user": user,
}
"""Groups that are commands of `ember` too."""


@admin.callback()
def entry(
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="ADDRESS",
            help=(
                "Any process of the cluster (tcp:HOST:PORT); it is asked for the managers. "
                "Credentials as the environment says."
            ),
        ),
    ] = "",
    kv: Annotated[
        str,
        typer.Option(
            "--kv",
            metavar="STORE",
            help=(
                "Read this store, without any service: rocksdb:PATH, remote:ADDRESS or "
                "foundationdb:CLUSTERFILE."
            ),
        ),
    ] = "",
    cluster_id: Annotated[
        str, typer.Option("--cluster-id", help="Of the cluster of --at or --kv.")
    ] = "",
) -> None:
    """Look into a running cluster, and change it."""
    if at or kv or cluster_id:  # a line of a shell goes on with what was said before it
        set_entry(Entry(at, kv, cluster_id))


fs.command("cat")(cat)
fs.command("write")(write)
for name, group in sorted((GROUPS | ALSO).items()):
    admin.add_typer(group, name=name)
admin.command("doctor")(doctor)
admin.command("history")(history)
admin.command("trace")(trace)
shell_command(admin)
