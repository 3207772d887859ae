"""`ember admin ...`: connects to a cluster by its directory and runs a command of fs/admin.

Does not decide anything: the commands are in fs/admin, one file per group; this is their wiring and output.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import trio
import typer
from rich.console import Console
from rich.table import Table

from ..admin.chunks import ChainComparison, compare
from ..rpc.api import Channels, Identity
from ..rpc.channel import open_channels
from ..rpc.transport import SocketNetwork
from ..runtime.real import real_runtime
from ..schema.config import RpcSection
from ..schema.routing import RoutingInfo
from .cluster_dir import ClusterDir, default_directory, need_record
from .mgmtd_link import fetch_routing
from .release import RELEASE

T = TypeVar("T")

ROUTING_TIMEOUT_S = 10.0
EXIT_DIFFERENT = 3

admin = typer.Typer(help="Look into a running cluster.", no_args_is_help=True)
chunks = typer.Typer(help="Chunks and their replicas.", no_args_is_help=True)
admin.add_typer(chunks, name="chunks")

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _with_cluster(given: Path | None, use: Callable[[Channels, RoutingInfo], Awaitable[T]]) -> T:
    """Run `use` with channels and the newest routing info of a running cluster."""
    directory = ClusterDir((given or default_directory()).absolute())
    cluster_id = need_record(directory).cluster_id
    info = fetch_routing(directory, cluster_id, timeout_s=ROUTING_TIMEOUT_S)

    async def run() -> T:
        runtime = real_runtime(SocketNetwork())
        client_id = runtime.random.randbytes(16).hex()
        identity = Identity(cluster_id=cluster_id, client_id=client_id, release=RELEASE)
        async with open_channels(runtime, identity, RpcSection()) as channels:
            return await use(channels, info)

    return trio.run(run)


@chunks.command("compare")
def compare_chunks(directory: DirOption = None, *, as_json: JsonOption = False) -> None:
    """Compare all replicas of all chunks: versions, lengths and content digests.

    Exit code 0: all equal; 3: some differ.
    """
    results = _with_cluster(directory, compare)
    different_count = sum(len(r.different) for r in results)
    if as_json:
        typer.echo(json.dumps([_as_json(result) for result in results], indent=2))
    else:
        _print_comparison(results, different_count)
    if different_count:
        raise typer.Exit(EXIT_DIFFERENT)


def _as_json(result: ChainComparison) -> dict[str, object]:
    return {
        "chain_id": result.chain_id,
        "targets": list(result.targets),
        "chunk_count": result.chunk_count,
        "different": {
            f"{chunk_id.inode_id}.{chunk_id.index}": facts
            for chunk_id, facts in result.different.items()
        },
    }


def _print_comparison(results: list[ChainComparison], different_count: int) -> None:
    table = Table("chain", "serving targets", "chunks", "different")
    for result in results:
        targets = " ".join(map(str, result.targets))
        table.add_row(
            str(result.chain_id), targets, str(result.chunk_count), str(len(result.different))
        )
    console = Console()
    console.print(table)
    chunk_count = sum(r.chunk_count for r in results)
    where = f"{chunk_count} chunks on {len(results)} chains"
    if different_count:
        console.print(f"{where}: {different_count} chunks differ between replicas")
    else:
        console.print(f"{where}: all replicas equal")
