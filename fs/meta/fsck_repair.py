"""Carrying out repairs that a check proposes, each in one transaction,
if what it rests on is still so.

Idempotent: a repair that has happened finds its guards changed, and does nothing.
Additions to counters are the exception, for counters change all the time: they are not
repeated when their outcome is unknown.

Every repair is logged as a warning.
"""

import logging
from typing import Final

from ..kv.api import KvEngine, Transaction
from ..kv.transact import transact
from ..runtime.ports import Runtime
from ..schema.ids import ROOT_INODE_ID
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import DentryRecordPb
from ..schema.status import FsError, Status
from . import records
from .dentries import store_dentry
from .fsck_facts import Finding
from .inode_ids import take_block
from .inodes import store_inode
from .lineage import begin_epoch
from .name_leases import end_at_once

log = logging.getLogger(__name__)

LOST_AND_FOUND: Final = b"lost+found"


async def repair(engine: KvEngine, runtime: Runtime, finding: Finding) -> bool:
    """Put one finding right; return whether anything was written.

    Raises:
        FsError: of the store; KV_COMMIT_UNKNOWN for counters: a new check tells.
    """
    if not finding.is_repairable:
        return False

    async def body(tr: Transaction) -> bool:
        if not await _holds(tr, finding):
            return False
        now_ns = runtime.clock.wall_ns()
        if not finding.adds:  # services remember where directories are, and what limits them
            begin_epoch(tr, runtime.random.randbytes(16), now_ns)
        if finding.is_adoption:
            return await _adopt(tr, finding, now_ns)
        for begin, end in finding.clears:
            tr.clear_range(begin, end)
        for key, value in finding.writes:
            if value is None:
                tr.clear(key)
            else:
                tr.set(key, value)
        for key, count in finding.adds:
            tr.atomic_add(key, count)
        return True

    is_done = await transact(engine, body, runtime=runtime, is_idempotent=not finding.adds)
    if is_done:
        log.warning("repaired: %s", finding.line())
    else:
        log.info("changed meanwhile, or repaired with another finding: %s", finding.line())
    return is_done


async def void_caches(engine: KvEngine, runtime: Runtime) -> None:
    """Have services forget what they remember of directories:
    what was wrong may be what they remember.
    """

    async def body(tr: Transaction) -> None:
        begin_epoch(tr, runtime.random.randbytes(16), runtime.clock.wall_ns())

    await transact(engine, body, runtime=runtime)


async def _holds(tr: Transaction, finding: Finding) -> bool:
    for key, value in finding.guards:
        if await tr.get(key) != value:
            return False
    for begin, end in finding.empty:
        if await tr.get_range(begin, end, limit=1):
            return False
    return all([await tr.get(key) is not None for key in finding.exists])


async def _adopt(tr: Transaction, finding: Finding, now_ns: int) -> bool:
    """Give an inode without a name one in lost+found;
    what counts there is put right by the next round.
    """
    folder = await _lost_and_found(tr, now_ns)
    stored = finding.guards[0][1]
    assert stored is not None, "an inode without record is no orphan"
    inode = pb.InodePb.FromString(stored)
    name = b"%x" % finding.inode_id
    if await tr.get(records.dentry_key(folder, name)) is not None:
        return False
    if inode.type == pb.DIRECTORY:
        inode.directory.parent_inode_id, inode.directory.name = folder, name
        tr.atomic_add(records.subdirectory_count_key(folder), 1)
    else:
        inode.nlink, inode.home_inode_id = 1, folder
        prefix = records.link_prefix(finding.inode_id)
        tr.clear_range(prefix, prefix + b"\xff")
    tr.set(records.inode_key(finding.inode_id), inode.SerializeToString())
    await end_at_once(tr, folder)
    store_dentry(tr, folder, name, inode)
    return True


async def _lost_and_found(tr: Transaction, now_ns: int) -> int:
    """Return the directory for what has lost its name;
    make it, for root alone, if it is not there.
    """
    found = await tr.get(records.dentry_key(ROOT_INODE_ID, LOST_AND_FOUND))
    if found is not None:
        record = DentryRecordPb.FromString(found)
        if record.type == pb.DIRECTORY:
            return record.inode_id
        raise FsError(
            Status.EXISTS,
            f"/{LOST_AND_FOUND.decode()} is no directory: rename it, it is needed for a repair",
        )
    made = pb.InodePb(
        inode_id=(await take_block(tr, 0))[0],
        type=pb.DIRECTORY,
        mode=0o700,
        nlink=2,
        atime_ns=now_ns,
        mtime_ns=now_ns,
        ctime_ns=now_ns,
        btime_ns=now_ns,
    )
    made.directory.parent_inode_id, made.directory.name = ROOT_INODE_ID, LOST_AND_FOUND
    store_inode(tr, made)
    tr.atomic_add(records.INODE_COUNT_KEY, 1)
    tr.atomic_add(records.subdirectory_count_key(ROOT_INODE_ID), 1)
    tr.atomic_add(records.usage_key(ROOT_INODE_ID, records.KIND_DIRECTORIES), 1)
    store_dentry(tr, ROOT_INODE_ID, LOST_AND_FOUND, made)
    return made.inode_id
