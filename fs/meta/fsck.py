"""The rules of the namespace, judged for one inode at a time.  Pure.

`judge` gets everything that is said of an inode, wherever (fs/meta/fsck_scan.py gathers it), and
says what contradicts what, each with a repair where one is certain.  What is judged over the
whole tree is in fsck_tree.py.

Repairs keep what users wrote: an inode without a name gets one in
lost+found; a name without an inode goes.
"""

from collections import Counter as Bag
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ..kv.api import prefix_end
from ..schema.ids import FIRST_INODE_ID, GC_ROOT_INODE_ID, ROOT_INODE_ID
from ..schema.inode import NAME_BYTES_MAX, is_bare
from ..schema.layout import MAX_FILE_LENGTH_BYTES
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import FileLocksRecordPb, GcRecordPb
from . import records
from .damage import is_spread
from .fsck_counts import Counter, put_right
from .fsck_facts import BY_INODE, Facts, Finding, Kind, Name, Row
from .fsck_inline import inline_findings, left_over_bytes
from .inode_ids import BLOCK_COUNT, SHARD_COUNT

LONG_AGO_NS: Final = 1
"""When a repaired removal or truncation is due: at once."""


def judge(facts: Facts, id_blocks: Sequence[int]) -> Iterator[Finding]:
    """Yield what is wrong with one inode.

    Args:
        facts: everything about it.
        id_blocks: per shard, how many blocks of inode ids were given out.
    """
    for name in facts.names:
        yield from _bad_name(facts, name)
    if facts.inode is None:
        yield from _absent(facts)
        return
    yield from _allotment(facts, id_blocks)
    yield from _entries(facts, facts.inode)
    yield from _trash(facts)
    if facts.inode_id not in (ROOT_INODE_ID, GC_ROOT_INODE_ID):
        yield from _types(facts, facts.inode)
        rule = _directory_names if facts.inode.type == pb.DIRECTORY else _names
        yield from rule(facts, facts.inode)
    if facts.inode_id != GC_ROOT_INODE_ID:
        yield from _collection(facts, facts.inode)
    yield from _content(facts, facts.inode)
    yield from _bare(facts, facts.inode)
    yield from _locks(facts)
    yield from _directory_lock(facts, facts.inode)


def _stored(inode: pb.InodePb, change: Callable[[pb.InodePb], None]) -> Row:
    """Return an inode's record after a change."""
    changed = pb.InodePb.FromString(inode.SerializeToString())
    change(changed)
    return records.inode_key(inode.inode_id), changed.SerializeToString()


def _bad_name(facts: Facts, found: Name) -> Iterator[Finding]:
    name = found.name
    if (
        not name
        or len(name) > NAME_BYTES_MAX
        or b"/" in name
        or b"\0" in name
        or name in (b".", b"..")
    ):
        yield Finding(Kind.BAD_NAME, facts.inode_id, f"{found.text}: cannot be a name")


def _absent(facts: Facts) -> Iterator[Finding]:
    """What leads to, or belongs to, an inode that does not exist."""
    inode_id, gone = facts.inode_id, (facts.key, None)
    for name in facts.names:
        yield Finding(
            Kind.DANGLING_NAME, inode_id, f"{name.text}: inode {inode_id:#x} does not exist",
            guards=((name.key, name.value), gone), writes=((name.key, None),),
        )  # fmt: skip
    if facts.entries.name_count:
        yield _no_directory(facts, "does not exist")
    for prefix in BY_INODE:
        if facts.rows.get(prefix):
            own = prefix + records.pack_id(inode_id)
            yield Finding(
                Kind.LEFT_OVER,
                inode_id,
                f"{prefix.decode()} of inode {inode_id:#x}, which does not exist",
                guards=(gone,),
                clears=((own, prefix_end(own)),),
            )
    keys = [records.client_locks_key(c, inode_id) for c in sorted(facts.locking_clients)]
    keys += [records.directory_lock_key(c, inode_id) for c in sorted(facts.directory_lockers)]
    keys += [records.quota_key(inode_id)] if facts.has_quota else []
    for key in keys:
        text = f"{key[:4].decode()} of inode {inode_id:#x}, which does not exist"
        yield Finding(Kind.LEFT_OVER, inode_id, text, guards=(gone,), writes=((key, None),))
    for key, value, record in facts.gc_records():
        if not record.HasField("file"):
            yield Finding(
                Kind.WRONG_GC, inode_id, f"GC record of inode {inode_id:#x}, which does not exist",
                guards=((key, value), gone), writes=((key, None),),
            )  # fmt: skip


def _no_directory(facts: Facts, why: str) -> Finding:
    """Names below something that is no directory:
    they go, what they lead to is found as orphans.
    """
    inode_id = facts.inode_id
    count = facts.entries.name_count
    return Finding(
        Kind.NO_DIRECTORY, inode_id, f"{count} names in {inode_id:#x}, which {why}",
        guards=(facts.seen,),
        clears=((records.dentry_prefix(inode_id), records.dentry_end(inode_id)),),
    )  # fmt: skip


def _allotment(facts: Facts, id_blocks: Sequence[int]) -> Iterator[Finding]:
    inode_id = facts.inode_id
    if inode_id < FIRST_INODE_ID:
        return
    block, shard = divmod((inode_id - FIRST_INODE_ID) // BLOCK_COUNT, SHARD_COUNT)
    if block >= id_blocks[shard]:
        key, before = records.inode_ids_key(shard), id_blocks[shard]
        yield Finding(
            Kind.NOT_ALLOTTED, inode_id, f"{facts.text} was never allotted",
            guards=((key, records.pack_u64(before) if before else None),),
            writes=((key, records.pack_u64(block + 1)),),
        )  # fmt: skip


def _entries(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    """The names inside, and their counter."""
    if inode.type != pb.DIRECTORY:
        if facts.entries.name_count:
            yield _no_directory(facts, "is no directory")
        return
    # A removed tree's counters do not matter: they go with their directory.
    counters = facts.rows.get(records.SUBDIRECTORY_COUNT)
    stored = records.unpack_count(counters[0][1] if counters else None)
    counted = facts.entries.subdirectory_count
    if inode.nlink and stored != counted:
        key = records.subdirectory_count_key(facts.inode_id)
        yield Finding(
            Kind.WRONG_SUBDIRECTORIES, facts.inode_id,
            f"{facts.text}: counter {stored}, {counted} subdirectories",
            exists=(facts.key,), **put_right([Counter(key, stored, counted)]),
        )  # fmt: skip


def _trash(facts: Facts) -> Iterator[Finding]:
    """What is in the trash has a key by which it is found when its time is over.

    A key whose name has gone, or has another mark, means nothing, and goes by itself.
    """
    for name in facts.trashed:
        key = records.trash_key(name.record.trash.due_ns, *name.place)
        if key not in facts.trash_keys:
            yield Finding(
                Kind.WRONG_TRASH, facts.inode_id, f"{name.text}: in the trash for ever",
                guards=((name.key, name.value),), writes=((key, b""),),
            )  # fmt: skip


def _types(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    for name in facts.names:
        record = name.record
        if record.type != inode.type:
            text = f"{name.text}: type {record.type}, {facts.text} has {inode.type}"
            record.type = inode.type
            yield Finding(
                Kind.WRONG_TYPE, facts.inode_id, text,
                guards=((name.key, name.value), facts.seen),
                writes=((name.key, record.SerializeToString()),),
            )  # fmt: skip


def _orphan(facts: Facts) -> Finding:
    return Finding(
        Kind.ORPHAN_INODE, facts.inode_id, f"{facts.text} has no name and was not removed",
        guards=(facts.seen,), is_adoption=True,
    )  # fmt: skip


def _wrong_nlink(facts: Facts, inode: pb.InodePb, nlink: int) -> Finding:
    """With the GC records of an inode that has names; homes are put right in a second step."""

    def correct(changed: pb.InodePb) -> None:
        changed.nlink = nlink

    forgotten = [(key, value) for key, value in facts.gc if nlink]
    return Finding(
        Kind.WRONG_NLINK, facts.inode_id,
        f"{facts.text}: nlink {inode.nlink}, {len(facts.names)} names",
        guards=(facts.seen, *((n.key, n.value) for n in facts.names), *forgotten),
        writes=(_stored(inode, correct), *((key, None) for key, _ in forgotten)),
    )  # fmt: skip


def _directory_names(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    """A directory has one name, where it says, or none when it was removed."""
    here = (inode.directory.parent_inode_id, inode.directory.name)
    if not facts.names:
        if inode.nlink:
            yield _wrong_nlink(facts, inode, 0) if facts.gc else _orphan(facts)
        return
    if not inode.nlink:
        yield _wrong_nlink(facts, inode, 2)
    kept = next((n for n in facts.names if n.place == here), facts.names[0])
    for name in facts.names:
        if name is not kept:
            yield Finding(
                Kind.EXTRA_NAME,
                facts.inode_id,
                f"{name.text}: {facts.text} has another name, {kept.text}",
                guards=((name.key, name.value), (kept.key, kept.value), facts.seen),
                writes=((name.key, None),),
            )
    if kept.place != here:

        def correct(changed: pb.InodePb) -> None:
            changed.directory.parent_inode_id, changed.directory.name = kept.place

        yield Finding(
            Kind.WRONG_PARENT, facts.inode_id,
            f"{kept.text}: {facts.text} says it is {here[1]!r} in {here[0]:#x}",
            guards=((kept.key, kept.value), facts.seen), writes=(_stored(inode, correct),),
        )  # fmt: skip


def _names(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    """What is no directory has `nlink` names; all but the home's have a LINK record."""
    if not facts.names and inode.nlink:
        yield _wrong_nlink(facts, inode, 0) if facts.gc else _orphan(facts)
        return
    if len(facts.names) != inode.nlink:
        yield _wrong_nlink(facts, inode, len(facts.names))
        return
    links = Bag[tuple[int, bytes]](
        records.link_place(key) for key, _ in facts.rows.get(records.LINK, ())
    )
    places = Bag[tuple[int, bytes]](name.place for name in facts.names)
    rest = list((places - links).elements())
    homes = [parent_id for parent_id, _ in rest]
    if links - places or homes != ([inode.home_inode_id] if inode.home_inode_id else []):
        yield _wrong_home(facts, inode, f"{homes}, {len(links)} link records")


def _wrong_home(facts: Facts, inode: pb.InodePb, text: str) -> Finding:
    home = next((n for n in facts.names if n.parent_id == inode.home_inode_id), None)
    home = home or (facts.names[0] if facts.names else None)

    def correct(changed: pb.InodePb) -> None:
        changed.home_inode_id = home.parent_id if home else 0

    prefix = records.link_prefix(facts.inode_id)
    others = [name for name in facts.names if name is not home]
    return Finding(
        Kind.WRONG_HOME, facts.inode_id, f"{facts.text}: home {inode.home_inode_id:#x}, but {text}",
        guards=(facts.seen, *((n.key, n.value) for n in facts.names)),
        clears=((prefix, prefix_end(prefix)),),
        writes=(
            _stored(inode, correct),
            *((records.link_key(facts.inode_id, *name.place), b"") for name in others),
        ),
    )  # fmt: skip


def _collection(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    """An inode without names has one GC record, without the file part; one with names has none."""
    inode_id, found = facts.inode_id, facts.gc_records()
    if not inode.nlink and not facts.names and not found:
        is_tree = facts.entries.name_count > 0
        prefix = records.GC_DIRECTORY if is_tree else records.GC_FILE
        record = GcRecordPb(inode_id=inode_id, type=inode.type, uid=inode.uid, gid=inode.gid)
        key = records.gc_key(prefix, LONG_AGO_NS, inode_id)
        yield Finding(
            Kind.NOT_COLLECTED, inode_id, f"{facts.text} was removed, but has no GC record",
            guards=(facts.seen, (key, None)), writes=((key, record.SerializeToString()),),
        )  # fmt: skip
    extra = found if inode.nlink and facts.names else found[1:]
    for key, value, _ in extra:
        yield Finding(
            Kind.WRONG_GC, inode_id, f"{facts.text}: nlink {inode.nlink}, {len(found)} GC records",
            guards=((key, value), facts.seen), writes=((key, None),),
        )  # fmt: skip
    for key, value, record in found:
        if record.HasField("file"):
            record.ClearField("file")
            yield Finding(
                Kind.WRONG_GC,
                inode_id,
                f"{facts.text} exists, but its GC record says it is deleted",
                guards=((key, value), facts.seen),
                writes=((key, record.SerializeToString()),),
            )


def _content(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    inode_id, part = facts.inode_id, inode.file
    has_mark = bool(facts.rows.get(records.TRUNCATION))
    if part.truncate_pending != has_mark:
        key = records.truncation_key(inode_id)
        mark = records.pack_u64(LONG_AGO_NS) if part.truncate_pending else None
        yield Finding(
            Kind.WRONG_TRUNCATION,
            inode_id,
            f"{facts.text}: truncation "
            f"{'pending, but not marked' if mark else 'marked, but not pending'}",
            guards=(facts.seen,),
            writes=((key, mark),),
        )
    if inode.type != pb.FILE:
        yield from left_over_bytes(facts)
        return
    yield from inline_findings(facts, inode)
    # 0: inline, or emptied since.
    if not (part.dyn_stripe or part.truncate_ver or part.is_inline) or (
        part.dyn_stripe > part.layout.stripe_size
    ):
        text = f"{facts.text}: dyn_stripe {part.dyn_stripe} of {part.layout.stripe_size}"
        yield Finding(Kind.WRONG_FILE, inode_id, text)
    if not is_spread(part):
        yield Finding(Kind.WRONG_FILE, inode_id, f"{facts.text}: in chunks of no size, or nowhere")
    if part.length > MAX_FILE_LENGTH_BYTES:
        yield Finding(Kind.WRONG_FILE, inode_id, f"{facts.text}: length {part.length}")


def _bare(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    """What says that it has no extended attributes has none: mounts would not ask for them."""
    found = facts.rows.get(records.XATTR, ())
    if not (found and is_bare(inode)):
        return

    def correct(changed: pb.InodePb) -> None:
        changed.bare_ctime_ns = 0

    yield Finding(
        Kind.WRONG_BARE,
        facts.inode_id,
        f"{facts.text} says it has no extended attributes, and has {len(found)}",
        guards=(facts.seen,),
        writes=(_stored(inode, correct),),
    )


def _locks(facts: Facts) -> Iterator[Finding]:
    """The table of locks and the index by client name the same clients."""
    table = facts.rows.get(records.FILE_LOCKS)
    locks = FileLocksRecordPb.FromString(table[0][1] if table else b"").locks
    held = {lock.client_id for lock in locks}
    guard = (records.file_locks_key(facts.inode_id), table[0][1] if table else None)
    for client_id in sorted(held ^ facts.locking_clients):
        key = records.client_locks_key(client_id, facts.inode_id)
        # Of long ago: if the client is gone, its locks go in the usual way.
        value = records.pack_u64(LONG_AGO_NS) if client_id in held else None
        yield Finding(
            Kind.WRONG_LOCKS, facts.inode_id,
            f"locks of client {client_id} on {facts.text}: table and index disagree",
            guards=(guard,), writes=((key, value),),
        )  # fmt: skip


def _directory_lock(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    """The client that an inode names as the holder of its lock is the one in the index."""
    holder = inode.directory.lock_client_id
    for client_id in sorted(({holder} if holder else set()) ^ facts.directory_lockers):
        key = records.directory_lock_key(client_id, facts.inode_id)
        value = records.pack_u64(LONG_AGO_NS) if client_id == holder else None
        yield Finding(
            Kind.WRONG_LOCKS, facts.inode_id,
            f"lock of client {client_id} on {facts.text}: inode and index disagree",
            guards=(facts.seen,), writes=((key, value),),
        )  # fmt: skip
