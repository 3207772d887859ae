"""A namespace with something of everything, and defects planted into it."""

from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from fs.meta import records
from fs.meta.fsck_facts import Kind
from fs.schema.ids import GC_ROOT_INODE_ID
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import (
    DentryRecordPb,
    FileSessionRecordPb,
    GcRecordPb,
    InlineRecordPb,
    QuotaRecordPb,
)
from tests.meta.harness import ROOT, World, session

SECOND_CLIENT = "d" * 32


@dataclass
class Place:
    """What the defects are about."""

    world: World
    directory: int
    deep: int
    file: int
    linked: int
    symlink: int
    open: int
    removed: int
    removed_tree: int
    locked: int

    async def change(self, rows: dict[bytes, bytes | None]) -> None:
        tr = self.world.engine.transaction()
        for key, value in rows.items():
            if value is None:
                tr.clear(key)
            else:
                tr.set(key, value)
        await tr.commit()

    async def rows(self, prefix: bytes) -> dict[bytes, bytes]:
        return {k: v for k, v in (await self.world.dump()).items() if k.startswith(prefix)}

    async def inode(self, inode_id: int) -> pb.InodePb:
        (value,) = (await self.rows(records.inode_key(inode_id))).values()
        return pb.InodePb.FromString(value)

    async def set_inode(self, inode_id: int, /, **fields) -> None:
        inode = await self.inode(inode_id)
        for name, value in fields.items():
            setattr(inode, name, value)
        await self.change({records.inode_key(inode_id): inode.SerializeToString()})

    async def set_part(self, inode_id: int, part: str, **fields) -> None:
        inode = await self.inode(inode_id)
        for name, value in fields.items():
            setattr(getattr(inode, part), name, value)
        await self.change({records.inode_key(inode_id): inode.SerializeToString()})

    async def gc_key(self, inode_id: int) -> bytes:
        found = await self.rows(b"GC")
        return next(k for k, v in found.items() if GcRecordPb.FromString(v).inode_id == inode_id)


async def furnish(world: World) -> Place:
    root = world.user(0)
    directory = (await root.mkdir(ROOT, b"d")).inode_id
    deep = (await root.mkdir(directory, b"deep")).inode_id
    await root.set_quota(directory, 10**12, 10**6)
    file = (await root.create(deep, b"file")).inode_id
    await root.set_attr(file, length=5000)
    linked = (await root.create(directory, b"linked")).inode_id
    await root.set_attr(linked, length=700)
    await root.link(linked, deep, b"second")
    await root.link(linked, ROOT, b"third")
    symlink = (await root.symlink(deep, b"symlink", b"../file")).inode_id
    opened = (await root.create(deep, b"open", session=session(1))).inode_id
    await root.call("set_xattr", meta.SetXattrReq(inode_id=file, name=b"user.a", value=b"1"))
    removed = (await root.create(ROOT, b"removed")).inode_id
    await root.unlink(ROOT, b"removed")
    tree = (await root.mkdir(ROOT, b"tree")).inode_id
    inside = (await root.mkdir(tree, b"inside")).inode_id
    await root.create(inside, b"f")
    await root.remove_tree(ROOT, b"tree")
    locked = (await root.create(deep, b"locked", session=session(2))).inode_id
    lock = pb.FileLockPb(kind=pb.POSIX_LOCK, first=0, last=9, is_write=True)
    await root.call("set_lock", meta.SetLockReq(inode_id=locked, lock=lock))
    return Place(
        world, directory, deep, file, linked, symlink, opened, removed, tree, locked
    )  # fmt: skip


def dentry(inode_id: int, kind=pb.FILE) -> bytes:
    return DentryRecordPb(inode_id=inode_id, type=kind).SerializeToString()


GONE = 0x1999
"""An inode id that was allotted and is in use by nobody."""


DEFECTS = {}


def defect(kind: Kind, *, repairable: bool = True):
    def note(plant):
        DEFECTS[plant.__name__] = (kind, repairable, plant)
        return plant

    return note


@defect(Kind.DANGLING_NAME)
async def name_without_inode(p):
    await p.change({records.dentry_key(p.deep, b"x"): dentry(GONE)})


@defect(Kind.DANGLING_NAME)
async def inode_lost(p):
    await p.change({records.inode_key(p.file): None})


@defect(Kind.LEFT_OVER)
async def directory_lost(p):
    """All that it held is found again in lost+found."""
    await p.change({records.inode_key(p.deep): None})


@defect(Kind.NO_DIRECTORY)
async def names_in_nothing(p):
    await p.change({records.dentry_key(GONE, b"x"): dentry(p.file)})


@defect(Kind.NO_DIRECTORY)
async def names_in_a_file(p):
    await p.change({records.dentry_key(p.file, b"x"): dentry(p.symlink, pb.SYMLINK)})


@defect(Kind.BAD_NAME, repairable=False)
async def slash_in_a_name(p):
    rows = await p.rows(records.dentry_key(p.deep, b"file"))
    await p.change(dict.fromkeys(rows) | {records.dentry_key(p.deep, b"a/b"): dentry(p.file)})


@defect(Kind.BAD_NAME, repairable=False)
async def dots_as_a_name(p):
    await p.change(
        {
            records.dentry_key(p.deep, b"file"): None,
            records.dentry_key(p.deep, b".."): dentry(p.file),
        }
    )


@defect(Kind.WRONG_TYPE)
async def name_of_another_type(p):
    await p.change({records.dentry_key(p.deep, b"file"): dentry(p.file, pb.SYMLINK)})


@defect(Kind.WRONG_TYPE)
async def file_named_as_directory(p):
    await p.change({records.dentry_key(p.deep, b"file"): dentry(p.file, pb.DIRECTORY)})


@defect(Kind.ORPHAN_INODE)
async def file_without_name(p):
    await p.change({records.dentry_key(p.deep, b"file"): None})


@defect(Kind.ORPHAN_INODE)
async def links_without_any_name(p):
    names = [(p.directory, b"linked"), (p.deep, b"second"), (ROOT, b"third")]
    await p.change({records.dentry_key(*name): None for name in names})


@defect(Kind.ORPHAN_INODE)
async def directory_without_name(p):
    await p.change({records.dentry_key(p.directory, b"deep"): None})


@defect(Kind.EXTRA_NAME)
async def directory_with_two_names(p):
    await p.change({records.dentry_key(ROOT, b"again"): dentry(p.deep, pb.DIRECTORY)})


@defect(Kind.WRONG_PARENT)
async def directory_says_it_is_elsewhere(p):
    await p.set_part(p.deep, "directory", parent_inode_id=ROOT)


@defect(Kind.WRONG_PARENT)
async def directory_says_another_name(p):
    await p.set_part(p.deep, "directory", name=b"other")


@defect(Kind.LOOP, repairable=False)
async def directories_in_a_loop(p):
    await p.set_part(p.directory, "directory", parent_inode_id=p.deep, name=b"loop")
    await p.change({
        records.dentry_key(ROOT, b"d"): None,
        records.dentry_key(p.deep, b"loop"): dentry(p.directory, pb.DIRECTORY),
    })  # fmt: skip


@defect(Kind.WRONG_NLINK)
async def too_many_links(p):
    await p.set_inode(p.linked, nlink=9)


@defect(Kind.WRONG_NLINK)
async def too_few_links(p):
    await p.set_inode(p.linked, nlink=1)


@defect(Kind.WRONG_NLINK)
async def named_but_without_links(p):
    await p.set_inode(p.file, nlink=0)


@defect(Kind.WRONG_NLINK)
async def directory_named_but_removed(p):
    await p.set_inode(p.deep, nlink=0)


@defect(Kind.WRONG_NLINK)
async def removed_with_links(p):
    await p.set_inode(p.removed, nlink=1)


@defect(Kind.WRONG_NLINK)
async def removed_tree_with_links(p):
    await p.set_inode(p.removed_tree, nlink=2)


@defect(Kind.WRONG_NLINK)
async def one_name_of_three_lost(p):
    await p.change({records.dentry_key(p.deep, b"second"): None})


@defect(Kind.WRONG_HOME)
async def home_that_is_none(p):
    await p.set_inode(p.linked, home_inode_id=GONE)


@defect(Kind.WRONG_HOME)
async def home_of_a_removed_file(p):
    await p.set_inode(p.removed, home_inode_id=p.deep)


@defect(Kind.WRONG_HOME)
async def link_record_lost(p):
    await p.change({records.link_key(p.linked, p.deep, b"second"): None})


@defect(Kind.WRONG_HOME)
async def link_record_of_no_name(p):
    await p.change({records.link_key(p.file, p.deep, b"nothing"): b""})


@defect(Kind.WRONG_ID)
async def record_with_another_id(p):
    await p.set_inode(p.file, inode_id=p.file + 2**30)


@defect(Kind.NOT_ALLOTTED)
async def ids_forgotten(p):
    await p.change(dict.fromkeys(await p.rows(records.SINGLETON + b"inode-ids")))


@defect(Kind.WRONG_SUBDIRECTORIES)
async def subdirectories_miscounted(p):
    await p.change({records.subdirectory_count_key(p.directory): records.pack_count(7)})


@defect(Kind.WRONG_USAGE)
async def bytes_miscounted(p):
    key = records.usage_key(p.deep, records.KIND_BYTES)
    await p.change({key: records.pack_count(1)})


@defect(Kind.WRONG_USAGE)
async def usage_forgotten(p):
    await p.change(dict.fromkeys(await p.rows(records.USAGE)))


@defect(Kind.WRONG_USAGE)
async def length_changed_behind(p):
    await p.set_part(p.file, "file", length=77)


@defect(Kind.WRONG_INODE_COUNT)
async def inodes_miscounted(p):
    await p.change({records.INODE_COUNT_KEY: records.pack_count(3)})


@defect(Kind.NO_ROOT, repairable=False)
async def root_lost(p):
    await p.change({records.inode_key(ROOT): None})


@defect(Kind.NO_ROOT, repairable=False)
async def gc_root_lost(p):
    await p.change({records.inode_key(GC_ROOT_INODE_ID): None})


@defect(Kind.NOT_COLLECTED)
async def removed_and_forgotten(p):
    await p.change({await p.gc_key(p.removed): None})


@defect(Kind.NOT_COLLECTED)
async def removed_tree_forgotten(p):
    await p.change({await p.gc_key(p.removed_tree): None})


@defect(Kind.WRONG_GC)
async def gc_record_of_a_file_with_a_name(p):
    record = GcRecordPb(inode_id=p.file, type=pb.FILE).SerializeToString()
    await p.change({records.gc_key(records.GC_FILE, 2**62, p.file): record})


@defect(Kind.WRONG_GC)
async def gc_record_twice(p):
    (value,) = (await p.rows(await p.gc_key(p.removed))).values()
    await p.change({records.gc_key(records.GC_FILE, 2**62, p.removed): value})


@defect(Kind.WRONG_GC)
async def gc_record_without_inode(p):
    record = GcRecordPb(inode_id=GONE, type=pb.FILE).SerializeToString()
    await p.change({records.gc_key(records.GC_FILE, 2**62, GONE): record})


@defect(Kind.WRONG_GC)
async def gc_record_of_a_tree_without_inode(p):
    record = GcRecordPb(inode_id=GONE, type=pb.DIRECTORY).SerializeToString()
    await p.change({records.gc_key(records.GC_DIRECTORY, 2**62, GONE): record})


@defect(Kind.WRONG_GC)
async def gc_record_with_inode_and_file_part(p):
    key = await p.gc_key(p.removed)
    record = GcRecordPb.FromString((await p.rows(key))[key])
    record.file.length = 1
    await p.change({key: record.SerializeToString()})


@defect(Kind.WRONG_TRUNCATION)
async def truncation_without_mark(p):
    await p.set_part(p.file, "file", truncate_pending=True)


@defect(Kind.WRONG_TRUNCATION)
async def mark_without_truncation(p):
    await p.change({records.truncation_key(p.file): records.pack_u64(5)})


@defect(Kind.WRONG_TRASH)
async def trash_that_never_expires(p):
    record = DentryRecordPb(inode_id=p.file, type=pb.FILE, trash=pb.TrashMarkPb(due_ns=77))
    await p.change({records.dentry_key(p.deep, b"file"): record.SerializeToString()})


@defect(Kind.WRONG_FILE, repairable=False)
async def stripe_out_of_range(p):
    await p.set_part(p.file, "file", dyn_stripe=0)


@defect(Kind.WRONG_FILE, repairable=False)
async def length_out_of_range(p):
    await p.set_part(p.file, "file", length=2**63)


async def put_inline(p, data: bytes, said: bytes, **fields) -> None:
    """Make a file inline whose record has `data`, while inode and checksum are about `said`."""
    record = InlineRecordPb(data=data, checksum=xxh3_64_intdigest(said))
    await p.change({records.inline_key(p.file): record.SerializeToString()})
    part = {"length": len(said), "dyn_stripe": 0, "has_holes": False, "is_inline": True}
    await p.set_part(p.file, "file", **part | fields)
    await p.set_inode(p.file, used_bytes=len(said))
    await p.change({records.INLINE_BYTES_KEY: records.pack_count(len(said))})


@defect(Kind.WRONG_INLINE)
async def inline_length_wrong(p):
    await put_inline(p, b"bytes", b"bytes", length=77)


@defect(Kind.WRONG_INLINE)
async def inline_file_with_a_stripe(p):
    await put_inline(p, b"bytes", b"bytes", dyn_stripe=1)


@defect(Kind.WRONG_INLINE, repairable=False)
async def inline_bytes_changed(p):
    await put_inline(p, b"BYTES", b"bytes")


@defect(Kind.WRONG_INLINE, repairable=False)
async def inline_bytes_unreadable(p):
    await put_inline(p, b"bytes", b"bytes")
    await p.change({records.inline_key(p.file): b"\xff"})


@defect(Kind.WRONG_INLINE, repairable=False)
async def inline_bytes_lost(p):
    await put_inline(p, b"bytes", b"bytes")
    await p.change({records.inline_key(p.file): None})


@defect(Kind.LEFT_OVER)
async def inline_bytes_of_a_file_in_chunks(p):
    await p.change({records.inline_key(p.file): b"\xff"})


@defect(Kind.LEFT_OVER)
async def inline_bytes_of_a_directory(p):
    await p.change({records.inline_key(p.deep): b""})


@defect(Kind.LEFT_OVER)
async def inline_bytes_of_nothing(p):
    await p.change({records.inline_key(GONE): b""})


@defect(Kind.WRONG_INLINE_BYTES)
async def inline_bytes_miscounted(p):
    await p.change({records.INLINE_BYTES_KEY: records.pack_count(3)})


@defect(Kind.WRONG_BARE)
async def file_hides_attributes(p):
    await p.set_inode(p.file, bare_ctime_ns=(await p.inode(p.file)).ctime_ns)


@defect(Kind.WRONG_BARE)
async def directory_hides_attributes(p):
    await p.change({records.xattr_key(p.deep, b"security.label"): b"x"})


@defect(Kind.WRONG_LOCKS)
async def lock_index_lost(p):
    await p.change(dict.fromkeys(await p.rows(records.CLIENT_LOCKS)))


@defect(Kind.WRONG_LOCKS)
async def lock_index_without_lock(p):
    key = records.client_locks_key(SECOND_CLIENT, p.locked)
    await p.change({key: records.pack_u64(9)})


@defect(Kind.WRONG_LOCKS)
async def lock_table_lost(p):
    await p.change({records.file_locks_key(p.locked): None})


@defect(Kind.WRONG_LOCKS)
async def directory_lock_without_index(p):
    await p.set_part(p.deep, "directory", lock_client_id=SECOND_CLIENT)


@defect(Kind.WRONG_LOCKS)
async def directory_lock_of_nobody(p):
    key = records.directory_lock_key(SECOND_CLIENT, p.deep)
    await p.change({key: records.pack_u64(9)})


def _left_over(prefix: bytes, key: bytes, value: bytes) -> None:
    async def plant(p):
        await p.change({key: value})

    plant.__name__ = f"left_over_{prefix.decode()}"
    defect(Kind.LEFT_OVER)(plant)


for _key, _value in (
    (records.directory_times_key(GONE), records.pack_times(1, 1)),
    (records.subdirectory_count_key(GONE), records.pack_count(1)),
    (records.file_session_key(GONE, "a"), FileSessionRecordPb(session_id="a").SerializeToString()),
    (records.xattr_key(GONE, b"user.a"), b"1"),
    (records.truncation_key(GONE), records.pack_u64(1)),
    (records.file_locks_key(GONE), b""),
    (records.client_locks_key("a", GONE), records.pack_u64(1)),
    (records.directory_lock_key("a", GONE), records.pack_u64(1)),
    (records.usage_key(GONE, b"b"), records.pack_count(1)),
    (records.quota_key(GONE), QuotaRecordPb(bytes_max=1).SerializeToString()),
    (records.quota_near_key(GONE, b"b"), b""),
    (records.usage_fence_key(GONE), b""),
    (records.link_key(GONE, ROOT, b"a"), b""),
):
    _left_over(_key[:4], _key, _value)


NONSENSE = b"\xff\xff\xff"
"""No message."""


def _unreadable(name: str, key_of, *, repairable: bool = True) -> None:
    async def plant(p):
        await p.change({await key_of(p): NONSENSE})

    plant.__name__ = f"unreadable_{name}"
    defect(Kind.DAMAGED_RECORD, repairable=repairable)(plant)


async def _first_key(p, prefix: bytes) -> bytes:
    return min(await p.rows(prefix))


_unreadable("gc_record", lambda p: p.gc_key(p.removed))
_unreadable("gc_tree", lambda p: p.gc_key(p.removed_tree))
_unreadable("name", lambda p: _first_key(p, records.dentry_key(p.deep, b"file")))
_unreadable("name_of_directory", lambda p: _first_key(p, records.dentry_key(p.directory, b"deep")))
_unreadable("name_in_removed_tree", lambda p: _first_key(p, records.dentry_prefix(p.removed_tree)))
_unreadable("locks", lambda p: _first_key(p, records.file_locks_key(p.locked)))
_unreadable("session", lambda p: _first_key(p, records.file_session_prefix(p.open)))
_unreadable("inode", lambda p: _first_key(p, records.inode_key(p.file)), repairable=False)
_unreadable(
    "removed_inode", lambda p: _first_key(p, records.inode_key(p.removed)), repairable=False
)


@defect(Kind.DAMAGED_RECORD)
async def gc_record_of_another(p):
    key = await p.gc_key(p.removed)
    record = GcRecordPb(inode_id=p.file, type=pb.FILE).SerializeToString()
    await p.change({key: record})


@defect(Kind.DAMAGED_RECORD)
async def gc_key_too_short(p):
    await p.change({records.GC_FILE + bytes(3): b""})


@defect(Kind.EXTRA_NAME)
async def name_in_removed_tree_of_what_lives(p):
    await p.change({records.dentry_key(p.removed_tree, b"deep"): dentry(p.deep, pb.DIRECTORY)})


@defect(Kind.DANGLING_NAME)
async def name_of_nothing_in_removed_tree(p):
    await p.change({records.dentry_key(p.removed_tree, b"x"): dentry(GONE)})
