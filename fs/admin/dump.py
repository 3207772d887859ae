"""Rows for dumps: inodes, dentries and file sessions out of the store, chunks out of targets.

A dump is not one state of the cluster: each page is (stored.py).  A chunk dump that is to be
compared with an inode dump must be the older of the two, because an inode exists before its chunks.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from ..kv.api import KvEngine
from ..meta import records
from ..rpc.api import Channels
from ..schema.proto.common_pb2 import InodePb, InodeTypePb
from ..schema.proto.record_pb2 import DentryRecordPb
from ..schema.proto.storage_pb2 import ChunkMetaPb
from ..schema.routing import RoutingInfo, Target
from .chunks import listed_chunks
from .stored import file_sessions, readable
from .table_file import Column, Columns, Row

U64, I64, U32, BOOL, TEXT, BYTES = (
    Column.UINT64,
    Column.INT64,
    Column.UINT32,
    Column.BOOL,
    Column.TEXT,
    Column.BYTES,
)

INODE_COLUMNS: Final[Columns] = {
    "inode_id": U64,
    "type": TEXT,
    "mode": U32,
    "uid": U32,
    "gid": U32,
    "nlink": U32,
    "iflags": U32,
    "atime_ns": I64,
    "mtime_ns": I64,
    "ctime_ns": I64,
    "btime_ns": I64,
    "parent_inode_id": U64,
    "name": BYTES,
    "symlink_target": BYTES,
    "length": U64,
    "used_bytes": U64,
    "has_holes": BOOL,
    "is_inline": BOOL,
    "truncate_ver": U64,
    "table_id": U32,
    "table_version": U32,
    "chunk_size_bytes": U32,
    "stripe_size": U32,
    "first_chain_index": U32,
    "shuffle_seed": U64,
}
"""Parent, name: of directories.

Layout: of files; of directories the default, 0 where it is inherited.
"""

DENTRY_COLUMNS: Final[Columns] = {
    "parent_inode_id": U64,
    "name": BYTES,
    "inode_id": U64,
    "type": TEXT,
    "trash_due_ns": I64,
}

SESSION_COLUMNS: Final[Columns] = {
    "inode_id": U64,
    "session_id": TEXT,
    "client_id": TEXT,
    "is_write": BOOL,
    "created_ns": I64,
}

CHUNK_COLUMNS: Final[Columns] = {
    "chain_id": U32,
    "target_id": U64,
    "node_id": U32,
    "inode_id": U64,
    "chunk_index": U32,
    "chain_version": U32,
    "commit_ver": U64,
    "pending_ver": U64,
    "length": U32,
    "checksum": U64,
    "chunk_size_bytes": U32,
    "is_damaged": BOOL,
}


def _type_name(type_: InodeTypePb.ValueType) -> str:
    return InodeTypePb.Name(type_).lower()


def inode_row(inode: InodePb) -> Row:
    """Return one inode."""
    is_file = inode.type == InodeTypePb.FILE
    layout = inode.file.layout if is_file else inode.directory.default_layout
    plain = (
        "inode_id",
        "mode",
        "uid",
        "gid",
        "nlink",
        "iflags",
        "atime_ns",
        "mtime_ns",
        "ctime_ns",
        "btime_ns",
        "symlink_target",
    )
    cuts = (
        "table_id",
        "table_version",
        "chunk_size_bytes",
        "stripe_size",
        "first_chain_index",
        "shuffle_seed",
    )
    return {
        **{key: getattr(inode, key) for key in plain},
        "type": _type_name(inode.type),
        "parent_inode_id": inode.directory.parent_inode_id,
        "name": inode.directory.name,
        "length": inode.file.length,
        "used_bytes": inode.used_bytes if inode.file.has_holes else inode.file.length,
        "has_holes": inode.file.has_holes,
        "is_inline": inode.file.is_inline,
        "truncate_ver": inode.file.truncate_ver,
        **{key: getattr(layout, key) for key in cuts},
    }


def chunk_row(chunk: ChunkMetaPb, target: Target) -> Row:
    """Return one chunk on one target."""
    own = {
        key: getattr(chunk, key) for key in CHUNK_COLUMNS if key in chunk.DESCRIPTOR.fields_by_name
    }
    place = {
        "chain_id": target.chain_id,
        "target_id": target.target_id,
        "node_id": target.node_id,
    }
    return place | own


async def inode_rows(engine: KvEngine) -> AsyncIterator[Row]:
    """Yield all inodes as their records have them;
    newer times and counts of directories are kept elsewhere.
    """
    async with aclosing(readable(engine, records.INODE, InodePb)) as found:
        async for _, inode in found:
            yield inode_row(inode)


async def dentry_rows(engine: KvEngine) -> AsyncIterator[Row]:
    """Yield all names, by directory."""
    async with aclosing(readable(engine, records.DENTRY, DentryRecordPb)) as found:
        async for key, record in found:
            yield {
                "parent_inode_id": int.from_bytes(key[4:12], "big"),
                "name": records.dentry_name(key),
                "inode_id": record.inode_id,
                "type": _type_name(record.type),
                "trash_due_ns": record.trash.due_ns,
            }


async def session_rows(engine: KvEngine) -> AsyncGenerator[Row, None]:
    """Yield all file sessions, by inode."""
    async with aclosing(file_sessions(engine)) as found:
        async for session in found:
            record = session.record
            yield {
                "inode_id": session.inode_id,
                "session_id": record.session_id,
                "client_id": record.client_id,
                "is_write": record.is_write,
                "created_ns": record.created_ns,
            }


async def chunk_rows(channels: Channels, info: RoutingInfo, target: Target) -> AsyncIterator[Row]:
    """Yield all chunks of a target, in order; raises FsError when its node does not answer."""
    async for chunk in listed_chunks(channels, info, target.target_id):
        yield chunk_row(chunk, target)
