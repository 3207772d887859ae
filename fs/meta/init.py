"""Making an empty file system, and recognising one.  Idempotent."""

import logging

from ..kv.api import KvEngine, Transaction, prefix_end
from ..kv.transact import snapshot_read, transact
from ..runtime.ports import Runtime
from ..schema.config import MetaSection
from ..schema.ids import GC_ROOT_INODE_ID, ROOT_INODE_ID
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import FormatRecordPb
from ..schema.routing import FILLS_LEVEL
from ..schema.status import FsError, Status
from . import records
from .damage import damaged, format_record
from .inode_ids import begin_ids
from .inodes import store_inode
from .recount import Recount, is_counted, mark_counted

log = logging.getLogger(__name__)

_WHAT = "meta"


def _directory(inode_id: int, mode: int, now_ns: int) -> pb.InodePb:
    inode = pb.InodePb(
        inode_id=inode_id,
        type=pb.DIRECTORY,
        mode=mode,
        nlink=2,
        atime_ns=now_ns,
        mtime_ns=now_ns,
        ctime_ns=now_ns,
        btime_ns=now_ns,
        bare_ctime_ns=now_ns,
    )
    inode.directory.parent_inode_id = inode_id
    return inode


def _root(layout: pb.LayoutPb, uid: int, gid: int, now_ns: int) -> pb.InodePb:
    root = _directory(ROOT_INODE_ID, 0o755, now_ns)
    root.uid, root.gid = uid, gid
    root.directory.default_layout.CopyFrom(layout)
    return root


def _gc_root(now_ns: int) -> pb.InodePb:
    gc_root = _directory(GC_ROOT_INODE_ID, 0o700, now_ns)
    gc_root.nlink = 0  # Nobody may make anything in there.
    return gc_root


def _format_record(value: bytes) -> FormatRecordPb:
    return format_record(records.FORMAT_KEY, value)


def check_format_record(value: bytes | None, cluster_id: str) -> bool:
    """Return whether the store holds a file system of this cluster; False when it is empty.

    Raises:
        FsError: KV_BAD_FORMAT for another cluster's, or one of a newer version;
            METADATA_DAMAGED.
    """
    if value is None:
        return False
    record = _format_record(value)
    if record.format_version > records.FORMAT_VERSION:
        raise FsError(
            Status.KV_BAD_FORMAT,
            f"{record.what} format {record.format_version}, this release knows "
            f"{records.FORMAT_VERSION}",
        )
    if record.cluster_id != cluster_id:
        raise FsError(
            Status.KV_BAD_FORMAT, f"metadata of cluster {record.cluster_id}, not {cluster_id}"
        )
    return True


def _set_format(tr: Transaction, cluster_id: str, version: int) -> None:
    record = FormatRecordPb(format_version=version, cluster_id=cluster_id, what=_WHAT)
    tr.set(records.FORMAT_KEY, record.SerializeToString())


async def _say_counted(tr: Transaction, cluster_id: str) -> None:
    """Keep services away that do not count."""
    value = await tr.get(records.FORMAT_KEY, snapshot=True)
    version = 0 if value is None else _format_record(value).format_version
    _set_format(tr, cluster_id, max(version, records.COUNTED_FORMAT))


async def require_format(engine: KvEngine, cluster_id: str) -> int:
    """Return the store's format; raises FsError(KV_BAD_FORMAT)
    unless it holds this cluster's file system.
    """
    value = await snapshot_read(engine, lambda tr: tr.get(records.FORMAT_KEY, snapshot=True))
    if value is None or not check_format_record(value, cluster_id):
        raise FsError(Status.KV_BAD_FORMAT, "the metadata store has not been initialised")
    return _format_record(value).format_version


async def storage_level_min(engine: KvEngine, cluster_id: str) -> int:
    """Return what storage processes have to know beside this store, a `STORAGE_LEVEL`;
    raises FsError as `require_format`.

    A store that may hold inline files has their bytes moved to chunks by fills.
    """
    version = await require_format(engine, cluster_id)
    return FILLS_LEVEL if version >= records.INLINE_FORMAT else 0


async def _require_nothing(tr: Transaction) -> None:
    """Refuse to make a file system over another one:
    its root would be another, and inode ids be given out again.
    """
    for prefix in (records.INODE, records.DENTRY, records.SINGLETON + b"inode-ids"):
        found = await tr.get_range(prefix, prefix_end(prefix), limit=1)
        if found:
            what = f"is missing, and the store is not empty: it holds {found[0][0]!r}"
            raise damaged(records.FORMAT_KEY, what)


async def initialise(
    engine: KvEngine,
    *,
    runtime: Runtime,
    cluster_id: str,
    config: MetaSection,
    uid: int = 0,
    gid: int = 0,
    table_id: int = 1,
    chain_count: int = 0,
) -> bool:
    """Make the root directory, the GC root and the format record; return whether that was new.

    What an earlier release made, and did not count, is counted (fs/meta/recount.py).

    Args:
        engine: the store, empty or initialised before.
        runtime: for the time of the root directory.
        cluster_id: whose file system it is.
        config: chunk size and stripe size of the root's default layout.
        uid: owner of the root directory.
        gid: its group.
        table_id: chain table of the root's default layout.
        chain_count: length of that table; the stripe is cut to it.  0: not known.

    Raises:
        FsError: KV_BAD_FORMAT when the store holds something else; METADATA_DAMAGED when it holds
            a file system without the record of its format.
    """
    stripe_size = min(config.stripe_size, chain_count or config.stripe_size)
    layout = pb.LayoutPb(
        table_id=table_id, chunk_size_bytes=config.chunk_size_bytes, stripe_size=stripe_size
    )
    now_ns = runtime.clock.wall_ns()

    async def make(tr: Transaction) -> bool:
        if check_format_record(await tr.get(records.FORMAT_KEY), cluster_id):
            return False
        await _require_nothing(tr)
        store_inode(tr, _root(layout, uid, gid, now_ns))
        store_inode(tr, _gc_root(now_ns))
        tr.atomic_add(records.INODE_COUNT_KEY, 1)
        begin_ids(tr)
        mark_counted(tr, now_ns)
        _set_format(tr, cluster_id, records.FORMAT_VERSION)
        return True

    is_new = await transact(engine, make, runtime=runtime)
    if not await is_counted(engine):
        log.info("counting the usage of all directories; this is done once")
        await transact(engine, lambda tr: _say_counted(tr, cluster_id), runtime=runtime)
        await Recount(engine, runtime).run()
    return is_new
