"""`ember admin chunks`: chunks and their replicas."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...admin.chunks import ChainComparison, compare
from ...admin.fsck_chunks import Cluster
from ...admin.orphans import ChainResult, search_chain
from ...admin.replicas import Digest, Replica, chain_of, chain_replicas, range_digests
from ...kv.api import KvEngine
from ...node.mgmtd_link import MgmtdLink
from ...rpc.api import Channels
from ...rpc.channel import ChannelPool
from ...schema.ids import InodeId
from ...schema.inode import inode_from_pb
from ...schema.layout import CHUNK_SIZE_BYTES_MAX, FileRef
from ...schema.proto import storage_pb2
from ...schema.routing import Chain, RoutingInfo
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, Where, find
from ..terminal.amounts import bytes_text, count_text
from ..terminal.cells import print_table, table
from ..terminal.listing import EXIT_FOUND, JsonOption, print_rows, progress_bar
from .completion import complete_chain
from .files import print_replicas, say_inline
from .meta_calls import inode_of

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

    Example: ember admin chunks compare
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
    rich = table("chain", "serving targets", "chunks", "different")
    for result in results:
        targets = " ".join(map(str, result.targets))
        rich.add_row(
            str(result.chain_id), targets, str(result.chunk_count), str(len(result.different))
        )
    print_table(rich)
    chunk_count = sum(r.chunk_count for r in results)
    where = f"{count_text(chunk_count, 'chunk')} on {count_text(len(results), 'chain')}"
    if different_count:
        typer.echo(f"{where}: {different_count} differ between replicas")
    else:
        typer.echo(f"{where}: all replicas equal")


InodeArgument = Annotated[
    int, typer.Argument(metavar="INODE", min=1, help="Of the file: ember admin file stat.")
]
IndexArgument = Annotated[
    int, typer.Argument(metavar="INDEX", min=0, help="Of the chunk in its file.")
]
ChainOption = Annotated[
    int,
    typer.Option(
        "--chain",
        help="Where it lies, for a file that is gone.",
        show_default="as the file says",
        autocompletion=complete_chain,
    ),
]


async def _chain(
    where: Where, channels: ChannelPool, info: RoutingInfo, place: tuple[int, int, int]
) -> Chain:
    """Return the chain of the chunk (inode, index) that its file, or who asks (chain), names."""
    inode_id, index, chain_id = place
    if chain_id:
        return info.chain(chain_id)
    inode = inode_from_pb(await inode_of(where, channels, info, "", inode_id))
    if inode.file is None:
        raise FsError(Status.INVALID_ARGUMENT, f"inode {inode_id} is no file")
    say_inline(inode)
    return chain_of(info, FileRef(inode.inode_id, inode.file.layout, inode.file.dyn_stripe), index)


@chunks.command("show")
def show(
    inode_id: InodeArgument,
    index: IndexArgument,
    *,
    chain_id: ChainOption = 0,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what each member of its chain says of a chunk: versions, length, checksum.

    Example: ember admin chunks show 4096 0 --chain 1
    """
    where = find(directory, config)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> list[Replica]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        chain = await _chain(where, channels, info, (inode_id, index, chain_id))
        return await chain_replicas(channels, info, chain, InodeId(inode_id), (index, index + 1))

    print_replicas(where.run(use), as_json=as_json)


@chunks.command("checksum")
def checksum(
    inode_id: InodeArgument,
    index: IndexArgument,
    *,
    chain_id: ChainOption = 0,
    offset: Annotated[
        int,
        typer.Option(
            "--offset", min=0, max=CHUNK_SIZE_BYTES_MAX, help="First byte within the chunk."
        ),
    ] = 0,
    length: Annotated[
        int, typer.Option("--length", min=1, max=CHUNK_SIZE_BYTES_MAX, help="How many bytes.")
    ] = CHUNK_SIZE_BYTES_MAX,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Read a range of a chunk on each serving replica and show the checksums (xxh3-64)
    of what they read.

    Exit code 0: all the same; 3: they differ, or one could not be read.

    Example: ember admin chunks checksum 4096 0 --chain 1 --length 4096
    """
    where = find(directory, config)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> list[Digest]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        chain = await _chain(where, channels, info, (inode_id, index, chain_id))
        io = storage_pb2.ReadIoPb(
            inode_id=inode_id,
            chunk_index=index,
            chain_id=chain.chain_id,
            chain_version=chain.chain_version,
            offset=offset,
            length=length,
        )
        return await range_digests(channels, info, chain, io)

    found = where.run(use)
    rows = [asdict(one) | {"checksum": f"{one.checksum:016x}"} for one in found]
    columns = dict.fromkeys(("target_id", "node_id", "length", "checksum", "commit_ver", "trouble"))
    print_rows(rows, columns, as_json=as_json)
    if any(one.trouble for one in found) or len({(o.length, o.checksum) for o in found}) > 1:
        raise typer.Exit(EXIT_FOUND)


@chunks.command("orphans")
def orphans(
    *,
    after: Annotated[
        int,
        typer.Option(
            "--after", min=0, help="Go on after this chain, where an earlier search has ended."
        ),
    ] = 0,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Search chunks that belong to no file, chain by chain, while the cluster works;
    remove nothing.

    Exit code 0: none; 3: some: `ember fsck` looks at everything else as well, and with
    --remove-chunks removes them.

    Example: ember admin chunks orphans
    """
    where = find(directory, config)
    info = where.routing()
    results: list[ChainResult] = []
    done = after
    chains = [c for chain_id, c in sorted(info.chains.items()) if chain_id > after]

    async def search(engine: KvEngine) -> None:
        nonlocal done

        async with where.channels() as channels:
            cluster = Cluster(channels, info, None, 0)
            with progress_bar("chains searched", len(chains)) as step:
                for number, chain in enumerate(chains, 1):
                    results.append(await search_chain(engine, cluster, chain))
                    done = chain.chain_id
                    step(number)

    try:
        where.read_store(search)
    except (FsError, KeyboardInterrupt):
        typer.echo(f"ended early; go on with --after {done}", err=True)
        raise
    _print_orphans(results, as_json=as_json)


def _print_orphans(results: list[ChainResult], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [asdict(one) for result in results for one in result.orphans]
    columns = {
        "inode_id": None,
        "chain_id": None,
        "target_id": None,
        "first_index": None,
        "last_index": None,
        "chunk_count": None,
        "length_bytes": bytes_text,
    }
    if rows or as_json:
        print_rows(rows, columns, as_json=as_json)
    if not as_json:
        count = sum(result.chunk_count for result in results)
        where = f"{count_text(count, 'chunk')} on {count_text(len(results), 'chain')}"
        typer.echo(f"{where}: {count_text(len(rows), 'inode')} with orphans")
    if left := sum(result.left_out_count for result in results):
        typer.echo(f"{left} more suspects were not looked at: remove these first", err=True)
    if rows:
        raise typer.Exit(EXIT_FOUND)
