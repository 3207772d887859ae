"""How a command says a layout: options of its own, the rest as it would be inherited."""

from typing import Annotated

import typer

from ...rpc.channel import ChannelPool
from ...schema.proto import common_pb2
from ...schema.routing import RoutingInfo
from ..reach.where import Where
from ..terminal.amounts import parse_number
from .meta_calls import inode_of

ChunkSizeOption = Annotated[
    str, typer.Option("--chunk-size", help="A power of two: 64K to 64M.", show_default="as it is")
]
StripeOption = Annotated[
    int,
    typer.Option(
        "--stripe", min=0, help="Chains that a file is spread over.", show_default="as it is"
    ),
]
TableOption = Annotated[
    int, typer.Option("--table", min=0, help="Chain table.", show_default="as it is")
]


async def inherited(
    where: Where, channels: ChannelPool, info: RoutingInfo, inode: common_pb2.InodePb
) -> tuple[common_pb2.LayoutPb, int]:
    """Return the layout that counts in a directory, or a file's own,
    and the inode that it comes from.
    """
    if inode.HasField("file"):
        return inode.file.layout, inode.inode_id
    while not inode.directory.HasField("default_layout"):
        inode = await inode_of(where, channels, info, "", inode.directory.parent_inode_id)
    return inode.directory.default_layout, inode.inode_id


def chosen_layout(
    info: RoutingInfo, base: common_pb2.LayoutPb, chunk_size: str, stripe_size: int, table_id: int
) -> common_pb2.LayoutPb:
    """Return a layout with what the options say, the rest as in `base`; raises FsError."""
    made = common_pb2.LayoutPb()
    made.CopyFrom(base)
    made.chunk_size_bytes = parse_number(chunk_size) if chunk_size else made.chunk_size_bytes
    made.stripe_size = stripe_size or made.stripe_size
    if table_id:
        table = info.chain_table(table_id, 0)  # the newest, which is pinned when a file is made
        made.table_id, made.table_version = table.table_id, 0
        if not stripe_size:
            made.stripe_size = min(made.stripe_size, len(table.chain_ids))
    return made
