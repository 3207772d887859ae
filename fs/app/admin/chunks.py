"""`ember admin chunks`: chunks and their replicas."""

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from ...admin.chunks import ChainComparison, compare
from ...node.mgmtd_link import MgmtdLink
from ...rpc.api import Channels
from ..mgmtd_link import newest_routing
from ..where import TIMEOUT_S, ConfigOption, DirOption, find
from .listing import EXIT_FOUND, JsonOption

chunks = typer.Typer(help="Chunks and their replicas.", no_args_is_help=True)


def _compare(directory: Path | None, config: Path | None) -> list[ChainComparison]:
    async def use(mgmtd: MgmtdLink, channels: Channels) -> list[ChainComparison]:
        return await compare(channels, await newest_routing(mgmtd, TIMEOUT_S))

    return find(directory, config).run(use)


@chunks.command("compare")
def compare_chunks(
    *, as_json: JsonOption = False, directory: DirOption = None, config: ConfigOption = None
) -> None:
    """Compare all replicas of all chunks: versions, lengths and content digests.

    Exit code 0: all equal; 3: some differ.
    """
    results = _compare(directory, config)
    different_count = sum(len(r.different) for r in results)
    if as_json:
        typer.echo(json.dumps([_as_json(result) for result in results], indent=2))
    else:
        _print_comparison(results, different_count)
    if different_count:
        raise typer.Exit(EXIT_FOUND)


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
