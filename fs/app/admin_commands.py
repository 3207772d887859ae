"""`ember admin ...`: connects to a cluster by its directory and runs a command of fs/admin.

Does not decide anything: the commands are in fs/admin, one file per group; this is their wiring and output.
"""

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..admin.chunks import ChainComparison, compare
from ..admin.cluster import Server, plan
from ..node.mgmtd_link import MgmtdLink
from ..rpc.api import Channels
from ..runtime.config_file import read_config
from ..schema.proto import common_pb2
from .cluster_dir import mgmtd_addresses, need_record
from .mgmtd_link import initialise, newest_routing, run_with_mgmtd
from .running import chosen_directory

ROUTING_TIMEOUT_S = 10.0
EXIT_DIFFERENT = 3

admin = typer.Typer(help="Look into a running cluster.", no_args_is_help=True)
chunks = typer.Typer(help="Chunks and their replicas.", no_args_is_help=True)
cluster = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)
admin.add_typer(cluster, name="cluster")
admin.add_typer(chunks, name="chunks")

DirOption = Annotated[Path | None, typer.Option("--dir", help="The cluster's directory.")]
MgmtdOption = Annotated[
    list[Path] | None, typer.Option("--mgmtd", metavar="FILE", help="Of a manager.")
]
MetaOption = Annotated[
    list[Path] | None, typer.Option("--meta", metavar="FILE", help="Of a metadata service.")
]
ControlOption = Annotated[
    list[Path] | None, typer.Option("--control", metavar="FILE", help="Of a manager with meta.")
]
StorageOption = Annotated[
    list[Path] | None, typer.Option("--storage", metavar="FILE", help="Of a storage process.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _compare(given: Path | None) -> list[ChainComparison]:
    directory = chosen_directory(given)
    record = need_record(directory)

    async def use(mgmtd: MgmtdLink, channels: Channels) -> list[ChainComparison]:
        info = await newest_routing(mgmtd, ROUTING_TIMEOUT_S)
        return await compare(channels, info)

    managers = mgmtd_addresses(directory, record)
    return run_with_mgmtd(managers, record.cluster_id, use, timeout_s=math.inf)


@cluster.command("init")
def cluster_init(
    mgmtd: MgmtdOption = None,
    meta: MetaOption = None,
    control: ControlOption = None,
    storage: StorageOption = None,
    *,
    replicas: Annotated[int, typer.Option(help="Copies of every chunk.")] = 3,
) -> None:
    """Make a new cluster: tell its running manager about all nodes and chains.

    Give the configuration files that the processes are started with; repeating is harmless.
    """
    roles = (
        (mgmtd, (common_pb2.MGMTD,)),
        (meta, (common_pb2.META,)),
        (control, (common_pb2.MGMTD, common_pb2.META)),
        (storage, (common_pb2.STORAGE,)),
    )
    servers = [
        Server(str(file), role, read_config(file)) for files, role in roles for file in files or []
    ]
    made = plan(servers, replicas)
    process, auth = servers[0].config.process, servers[0].config.auth
    initialise(
        process.mgmtd_addresses, process.cluster_id, made, timeout_s=ROUTING_TIMEOUT_S, auth=auth
    )
    typer.echo(
        f"cluster {process.cluster_id}: {len(made.nodes)} nodes,"
        f" {len(made.chains)} chains of {replicas}"
    )


@chunks.command("compare")
def compare_chunks(directory: DirOption = None, *, as_json: JsonOption = False) -> None:
    """Compare all replicas of all chunks: versions, lengths and content digests.

    Exit code 0: all equal; 3: some differ.
    """
    results = _compare(directory)
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
