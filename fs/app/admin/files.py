"""`ember admin file`: a file by path or inode: attributes, layout, chunks, replicas.

Asks a metadata service as the user that the credentials name, else as root;
when services are down, the store.
"""

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ...admin.dump import inode_row
from ...admin.replicas import Replica, compared, replicas
from ...admin.stored import stored_inode
from ...node.mgmtd_link import MgmtdLink
from ...rpc.channel import ChannelPool
from ...schema import services
from ...schema.inode import Inode, InodeType, inode_from_pb
from ...schema.layout import FileRef, chunk_count
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from ..reach.mgmtd_link import newest_routing
from ..reach.where import TIMEOUT_S, ConfigOption, DirOption, Where, find
from ..terminal.amounts import bytes_text, count_text
from ..terminal.errors import named
from ..terminal.listing import (
    EXIT_FOUND,
    JsonOption,
    print_facts,
    print_rows,
    progress_bar,
    time_text,
)
from .layouts import ChunkSizeOption, StripeOption, TableOption, chosen_layout, inherited
from .meta_calls import ask_meta, caller, inode_of
from .standing import absolute, shown

file = typer.Typer(
    help="Files: attributes, layout, chunks and their replicas.", no_args_is_help=True
)
layout = typer.Typer(
    help="How the files below a directory are cut and spread.", no_args_is_help=True
)
file.add_typer(layout, name="layout")

PathArgument = Annotated[
    str, typer.Argument(metavar="[PATH]", help="From the root of the file system.")
]
InodeOption = Annotated[
    int, typer.Option("--inode", min=0, help="Its number instead of a path.", show_default=False)
]


def check_named(path: str, inode_id: int) -> None:
    """Raise FsError(INVALID_ARGUMENT) unless exactly one of the two is given."""
    if bool(path) == bool(inode_id):
        raise FsError(Status.INVALID_ARGUMENT, "say a path, or --inode NUMBER")


def find_inode(where: Where, path: str, inode_id: int) -> common_pb2.InodePb:
    """As `inode_of`, from whatever answers; raises FsError."""
    check_named(path, inode_id)
    if where.is_down:
        if not path:
            return where.read_store(lambda engine: stored_inode(engine, b"", inode_id))
        name = os.fsencode(absolute(path))
        with named(shown(absolute(path)), is_inside=True):
            return where.read_store(lambda engine: stored_inode(engine, name))

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> common_pb2.InodePb:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        return await inode_of(where, channels, info, path, inode_id)

    return where.run(use)


@file.command("stat")
def stat(
    path: PathArgument = "",
    inode_id: InodeOption = 0,
    *,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show an inode, with its layout.

    Example: ember admin file stat /

    Example: ember admin file stat --inode 1 --json
    """
    row = dict(inode_row(find_inode(find(directory, config), path, inode_id)))
    if not as_json:
        row["mode"] = f"{row['mode']:04o}"
        row |= {key: time_text(row[key]) for key in row if key.endswith("_ns")}
    print_facts({key: _text(value) for key, value in row.items()}, as_json=as_json)


def _text(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def say_inline(inode: Inode) -> bool:
    """Tell people that a file has no chunks because its bytes are in the metadata store,
    if they are; return whether they are.
    """
    part = inode.file
    if part is None or not part.is_inline:
        return False
    state = ", and are being moved to a chunk" if part.truncate_pending else ""
    typer.echo(f"inline: its {part.length} bytes are in the metadata store{state}", err=True)
    return True


def _file_ref(inode: Inode) -> FileRef:
    """Return where the chunks of a file are; raises FsError(INVALID_ARGUMENT) for what has none."""
    if inode.type is not InodeType.FILE or inode.file is None:
        detail = f"inode {inode.inode_id} is a {inode.type.name.lower()}: it has no chunks"
        raise FsError(Status.INVALID_ARGUMENT, detail)
    return FileRef(inode.inode_id, inode.file.layout, inode.file.dyn_stripe)


def replica_row(one: Replica) -> dict[str, Any]:
    """Return a chunk on one member, for tables and programs."""
    chunk = one.chunk
    return {
        "chunk_index": one.chunk_index,
        "chain_id": one.chain_id,
        "target_id": one.target_id,
        "node_id": one.node_id,
        "state": one.state.name.lower(),
        "commit_ver": chunk.commit_ver if chunk else None,
        "pending_ver": (chunk.pending_ver or None) if chunk else None,
        "chain_version": chunk.chain_version if chunk else None,
        "length": chunk.length if chunk else None,
        "checksum": f"{chunk.checksum:016x}" if chunk else None,
        "is_damaged": chunk.is_damaged if chunk else False,
        "trouble": one.trouble or ("" if chunk else "has no such chunk"),
    }


REPLICA_COLUMNS = (
    "chunk_index",
    "chain_id",
    "target_id",
    "node_id",
    "state",
    "commit_ver",
    "pending_ver",
    "chain_version",
    "length",
    "checksum",
    "is_damaged",
    "trouble",
)


def print_replicas(found: Sequence[Replica], *, as_json: bool) -> None:
    """Print chunks, a line for each member of their chains."""
    print_rows([replica_row(one) for one in found], dict.fromkeys(REPLICA_COLUMNS), as_json=as_json)


@file.command("chunks")
def chunks(
    path: PathArgument = "",
    inode_id: InodeOption = 0,
    *,
    first_index: Annotated[int, typer.Option("--from", min=0, help="First chunk index.")] = 0,
    count: Annotated[
        int, typer.Option("--count", min=1, max=100_000, help="How many chunks.")
    ] = 100,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """List the chunks of a file on every member of their chains: versions, lengths, checksums.

    Example: ember admin file chunks /admin-example

    Example: ember admin file chunks /admin-example --from 0 --count 1 --json
    """
    check_named(path, inode_id)
    where = find(directory, config)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> list[Replica]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        inode = inode_from_pb(await inode_of(where, channels, info, path, inode_id))
        say_inline(inode)  # what is there all the same is shown
        window = (first_index, first_index + count)
        return await replicas(channels, info, _file_ref(inode), *window)

    print_replicas(where.run(use), as_json=as_json)


@file.command("compare")
def compare(
    path: PathArgument = "",
    inode_id: InodeOption = 0,
    *,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Compare the replicas of a file's chunks: versions, lengths, digests of the content.

    Exit code 0: all equal; 3: some differ.

    Example: ember admin file compare /admin-example
    """
    check_named(path, inode_id)
    where = find(directory, config)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> tuple[int, list[Replica]]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        inode = inode_from_pb(await inode_of(where, channels, info, path, inode_id))
        ref, found = _file_ref(inode), list[Replica]()
        assert inode.file is not None
        is_inline = say_inline(inode)
        count = 0 if is_inline else chunk_count(ref.layout.chunk_size_bytes, inode.file.length)
        with progress_bar("chunks compared", count) as step:
            async for done_count, different in compared(channels, info, ref, count):
                step(done_count)
                found += [one for members in different.values() for one in members]
        return count, found

    count, found = where.run(use)
    if found or as_json:
        print_replicas(found, as_json=as_json)
    if not as_json:
        differ = len({one.chunk_index for one in found})
        typer.echo(
            f"{count_text(count, 'chunk')}: "
            + (f"{differ} differ" if differ else "all replicas equal")
        )
    if found:
        raise typer.Exit(EXIT_FOUND)


def _layout_facts(found: common_pb2.LayoutPb) -> dict[str, Any]:
    return {
        "table_id": found.table_id,
        "table_version": found.table_version,
        "chunk_size_bytes": found.chunk_size_bytes,
        "stripe_size": found.stripe_size,
    }


@layout.command("get")
def get_layout(
    path: PathArgument = "",
    inode_id: InodeOption = 0,
    *,
    as_json: JsonOption = False,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the layout of a file, or the one that new files below a directory get,
    and which directory says so.

    Example: ember admin file layout get /
    """
    check_named(path, inode_id)
    where = find(directory, config)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> dict[str, Any]:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        inode = await inode_of(where, channels, info, path, inode_id)
        found, from_id = await inherited(where, channels, info, inode)
        return {"inode_id": inode.inode_id, "from_inode_id": from_id} | _layout_facts(found)

    print_facts(where.run(use), as_json=as_json)


@layout.command("set")
def set_layout(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory.")],
    *,
    chunk_size: ChunkSizeOption = "",
    stripe_size: StripeOption = 0,
    table_id: TableOption = 0,
    directory: DirOption = None,
    config: ConfigOption = None,
) -> None:
    """Set the layout of new files below a directory; files that exist keep theirs.

    Example: ember admin file layout set / --chunk-size 1M
    """
    where = find(directory, config)

    async def use(mgmtd: MgmtdLink, channels: ChannelPool) -> common_pb2.LayoutPb:
        info = await newest_routing(mgmtd, TIMEOUT_S)
        inode = await inode_of(where, channels, info, path, 0)
        base = (await inherited(where, channels, info, inode))[0]
        made = chosen_layout(info, base, chunk_size, stripe_size, table_id)
        request = meta_pb2.SetAttrReq(
            caller=caller(where, channels), inode_id=inode.inode_id, default_layout=made
        )
        await ask_meta(channels, info, services.META_SET_ATTR, request)
        return made

    made = where.run(use)
    typer.echo(f"{path}: chunks of {bytes_text(made.chunk_size_bytes)}, {made.stripe_size} chains")
