"""Whichever record of metadata is damaged, and however: it is told as damage, by its name.
What it is not about works on, and `ember fsck` finds it.
"""

import contextlib
from dataclasses import replace

import pytest
import trio

from fs.admin.backup import UNFINISHED_VERSION
from fs.admin.dump import dentry_rows, inode_rows, session_rows
from fs.admin.fsck import Check
from fs.admin.stored import garbage
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.check import check
from fs.meta.context import CLIENT_ID_BYTES_MAX
from fs.meta.fsck_facts import Kind
from fs.meta.inode_ids import SHARD_COUNT
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.schema.ids import GC_ROOT_INODE_ID
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import FileLocksRecordPb, FormatRecordPb, IdempotencyRecordPb
from fs.schema.status import FsError, Status
from tests.admin.namespace import SECOND_CLIENT, furnish
from tests.meta.harness import ROOT, World, hint, inline_report, session

pytestmark = pytest.mark.thorough

DAMAGES = {
    "empty": lambda _value: b"",
    "cut": lambda value: value[:-1],
    "longer": lambda value: value + b"\xff",
    "ones": lambda value: b"\xff" * len(value),
    "nonsense": lambda value: b"\xff" * (len(value) + 1),
}
VALUED = {
    records.INODE, records.DENTRY, records.DIRECTORY_TIMES, records.SUBDIRECTORY_COUNT,
    records.FILE_SESSION, records.IDEMPOTENCY, records.TRUNCATION, records.FILE_LOCKS,
    records.CLIENT_LOCKS, records.DIRECTORY_LOCKS, records.LOCK_WAITS, records.USAGE,
    records.QUOTA, records.USAGE_FENCE, records.GC_FILE, records.GC_DIRECTORY, records.INLINE,
}  # fmt: skip
"""Kinds of which each record but those of the roots is damaged here."""
ALL_ANYTHING = {records.USAGE_EPOCH_KEY, records.USAGE_STATE_KEY}
LEFT = {Kind.DAMAGED_RECORD: (records.INODE, records.FORMAT_KEY), Kind.WRONG_INLINE: (b"INLN",)}
"""What no check can put right, by what was damaged."""


def lock(first: int) -> pb.FileLockPb:
    return pb.FileLockPb(kind=pb.POSIX_LOCK, first=first, last=first + 9, is_write=True)


async def furnished():
    world = World(
        MemoryEngine(SimulatedClock()), inline_bytes_max=4096, inline_total_bytes_max=100_000
    )
    await world.initialise()
    place = await furnish(world)
    root = world.user(0)
    inline = (await root.create(place.deep, b"inline", session=session(7))).inode_id
    await root.sync(inline, **inline_report(b"hello"))
    await root.close(inline, session(7).session_id)
    await root.call("lock_directory", meta.LockDirectoryReq(inode_id=place.deep, action=1))
    await root.create(place.deep, b"trashed")
    request = meta.MoveToTrashReq(parent_inode_id=place.deep, name=b"trashed", expire_s=3600)
    await root.call("move_to_trash", request)
    waiting = meta.SetLockReq(inode_id=place.locked, lock=lock(0), wait_id=1)
    await world.user(0, client=SECOND_CLIENT).call("set_lock", waiting)
    fence = b"\x0a\x01r\x11" + bytes(8)
    await place.change({
        records.usage_fence_key(place.deep): fence,
        records.truncation_key(place.open): records.pack_u64(5),
    })  # fmt: skip
    await place.set_part(place.open, "file", truncate_pending=True)
    beside = (await root.mkdir(ROOT, b"beside")).inode_id
    return world, place, inline, beside


class Deeds:
    """Does one thing after the other, and notes what was said of damage."""

    def __init__(self, world):
        self.world = world
        self.root = world.user(0)
        self.told: list[str] = []

    async def __call__(self, deed, *args, **fields) -> None:
        try:
            await (self.root.call if isinstance(deed, str) else deed)(
                *((deed,) if isinstance(deed, str) else ()), *args, **fields
            )
        except FsError as error:
            if error.status in (Status.RPC_BAD_REQUEST, Status.INTERNAL_ERROR):
                raise
            if error.status is Status.METADATA_DAMAGED:
                self.told.append(str(error))


async def use_directory(do: Deeds, inode_id: int) -> None:
    root = do.root
    for fields in ({"with_inodes": True, "wants_directory": True}, {"with_directories": True}):
        await do(root.list, inode_id, **fields)
    await do(root.usage, inode_id)
    await do(root.create, inode_id, b"new")
    await do(root.mkdir, inode_id, b"newer")
    await do(root.rename, inode_id, b"new", inode_id, b"newest")
    await do(root.rmdir, inode_id, b"newer")
    await do(root.set_quota, inode_id, 10**12, 10**6)
    request = meta.MoveToTrashReq(parent_inode_id=inode_id, name=b"newest", expire_s=3600)
    await do("move_to_trash", request)


async def use_file(do: Deeds, inode_id: int) -> None:
    root, one = do.root, session(50)
    await do(root.open, inode_id, session=one, wants_write=True)
    await do("set_xattr", meta.SetXattrReq(inode_id=inode_id, name=b"user.b", value=b"1"))
    await do(root.sync, inode_id, has_new_data=True, length_hint=hint(9))
    await do(root.close, inode_id, one.session_id)
    await do(root.append, inode_id, 10)
    await do("set_lock", meta.SetLockReq(inode_id=inode_id, lock=lock(20), wait_id=9))


async def use(world, place, inline: int) -> list[str]:
    do = Deeds(world)
    directories = (ROOT, place.directory, place.deep)
    files = (place.file, place.linked, place.open, place.locked, inline)
    for inode_id in (*directories, *files):
        await do(do.root.attr, inode_id)
        await do("list_xattrs", meta.ListXattrsReq(inode_id=inode_id))
        await do(do.root.set_attr, inode_id, mode=0o700)
        await do("batch_get_attr", meta.BatchGetAttrReq(inode_ids=[inode_id]))
    for inode_id in directories:
        await use_directory(do, inode_id)
    for inode_id in files:
        await use_file(do, inode_id)
        await do(do.root.set_attr, inode_id, length=10)
    await do("list_quotas", meta.ListQuotasReq())
    await do("stat_fs", meta.StatFsReq(inode_id=place.file))
    await do(do.root.link, place.linked, place.deep, b"more")
    await do(do.root.unlink, place.directory, b"linked")
    await do(do.root.rename, place.directory, b"deep", ROOT, b"moved")
    await do(do.root.remove_tree, ROOT, b"d")
    return do.told


async def visit(world) -> None:
    """Background work goes on, whatever there is."""
    world.mgmtd.client_ids = []
    for task in (world.meta.gc, world.meta.trash, world.meta.sessions):
        with contextlib.suppress(FsError):  # some of it needs this very record: it says so
            await task.step()


def checker(world) -> Check:
    return Check(world.engine, simulated_runtime(None, 1), is_paced=False)


async def chosen_keys(prefix: bytes) -> list[bytes]:
    world, place, inline, _ = await furnished()
    rows = await world.dump()
    if prefix == records.SINGLETON:
        single = [key for key in rows if key.startswith(prefix) and b"inode-ids" not in key]
        return [*sorted(set(single) - ALL_ANYTHING), records.inode_ids_key(3)]
    about = [place.directory, place.deep, place.file, place.open, place.locked, inline]
    packed = [*map(records.pack_id, about), *(one.to_bytes(8, "big") for one in about)]
    found = sorted(key for key in rows if key.startswith(prefix))
    return [key for key in found if key[4:12] in packed] or found[:1]


def damaged_key(rows: dict[bytes, bytes], wanted: bytes) -> bytes:
    """Keys with times in them differ from world to world."""
    return wanted if wanted in rows else min(key for key in rows if key.startswith(wanted[:4]))


async def require_found(world, key: bytes, *, is_certain: bool) -> None:
    """A value that could be one is found if anything else tells otherwise."""
    report = await checker(world).run(is_repair=False)
    kinds = {finding.kind for finding in report.findings}
    expected = {Kind.DAMAGED_RECORD, Kind.WRONG_INLINE, Kind.DANGLING_NAME}
    assert not is_certain or kinds & expected, key
    if Kind.DAMAGED_RECORD in kinds:
        assert any(repr(key) in finding.text for finding in report.findings)


async def require_others_usable(world, place, beside: int, key: bytes) -> None:
    do = Deeds(world)
    await use_directory(do, beside)
    if not key.startswith(records.SINGLETON) or key == records.inode_ids_key(3):
        assert not do.told
    if key != records.inode_key(place.deep):
        listed = (await do.root.list(place.deep, with_inodes=True)).entries
        names = {entry.name for entry in listed}
        assert {b"file", b"inline", b"locked", b"open", b"second"} <= names


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("prefix", sorted(VALUED | {records.SINGLETON}))
async def test_a_damaged_record_is_told_and_found(prefix, damage, caplog):
    for wanted in await chosen_keys(prefix):
        world, place, inline, beside = await furnished()
        rows = await world.dump()
        key = damaged_key(rows, wanted)
        value = DAMAGES[damage](rows[key])
        if (prefix, value) in {(records.FILE_LOCKS, b""), (records.USAGE_FENCE, b"")}:
            continue  # says that there is none
        await place.change({key: value})
        await require_found(world, key, is_certain=damage != "ones")
        world.meta = world.new_meta()
        await require_others_usable(world, place, beside, key)
        told = await use(world, place, inline)
        assert all(repr(key) in line for line in told), (key, told)
        await visit(world)
    assert not [one for one in caplog.records if one.levelname in ("ERROR", "CRITICAL")]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("prefix", sorted(VALUED | {records.SINGLETON}))
async def test_a_damaged_record_is_repaired(prefix, damage):
    for wanted in await chosen_keys(prefix):
        world, place, _, _ = await furnished()
        rows = await world.dump()
        key = damaged_key(rows, wanted)
        await place.change({key: DAMAGES[damage](rows[key])})
        report = await checker(world).run(is_repair=True)
        left = {finding.kind for finding in report.left}
        assert all(key.startswith(LEFT[kind]) for kind in left), report.left
        if not left:
            assert await check(world.engine) == []
            world.meta = world.new_meta()
            await world.user(0).create(ROOT, b"after")


@pytest.mark.parametrize("prefix", sorted(VALUED | {
    records.XATTR, records.LINK, records.QUOTA_NEAR, records.TRASH,
}))  # fmt: skip
async def test_what_cannot_be_a_key_is_found_and_goes(prefix):
    world, place, _, _ = await furnished()
    await place.change({prefix + bytes(tail): b"\xff" for tail in (1, 5)})
    report = await checker(world).run(is_repair=False)
    assert sum(finding.kind is Kind.DAMAGED_RECORD for finding in report.findings) == 2
    await visit(world)
    report = await checker(world).run(is_repair=True)
    assert report.left == []
    assert await check(world.engine) == []


@pytest.mark.parametrize("which", ["file", "linked", "deep", "removed"])
async def test_an_inode_that_cannot_be_read_goes_where_somebody_says_so(which):
    """Its names could never be removed, nor could the directory that they are in."""
    world, place, _, _ = await furnished()
    inode_id = getattr(place, which)
    await place.change({records.inode_key(inode_id): b"\xff"})
    assert (await checker(world).run(is_repair=True)).left
    assert await place.rows(records.inode_key(inode_id))
    check_all = Check(
        world.engine, simulated_runtime(None, 1), is_paced=False, removes_damaged=True
    )
    assert (await check_all.run(is_repair=True)).left == []
    assert await check(world.engine) == []
    world.meta = world.new_meta()
    root = world.user(0)
    if which == "deep":  # what was in it is kept
        folder = (await root.lookup(ROOT, b"lost+found")).inode_id
        assert b"%x" % place.file in await root.names(folder)
    await root.remove_tree(ROOT, b"d")


@pytest.mark.parametrize("inode_id", [ROOT, GC_ROOT_INODE_ID])
async def test_a_root_that_cannot_be_read_stays(inode_id):
    world, place, _, _ = await furnished()
    await place.change({records.inode_key(inode_id): b"\xff"})
    check_all = Check(
        world.engine, simulated_runtime(None, 1), is_paced=False, removes_damaged=True
    )
    assert (await check_all.run(is_repair=True)).left
    assert await place.rows(records.inode_key(inode_id))


async def test_ids_go_on_behind_all_others_where_their_counter_was_damaged():
    world, place, _, _ = await furnished()
    key = records.inode_ids_key(3)
    before = max([
        records.unpack_u64(value)
        for value in (await place.rows(records.SINGLETON + b"inode-ids")).values()
    ])  # fmt: skip
    await place.change({key: b"\xff" * 8})
    await checker(world).run(is_repair=True)
    assert records.unpack_u64((await place.rows(key))[key]) > before + SHARD_COUNT


async def test_a_damaged_counter_of_ids_keeps_nobody_from_making_files(caplog):
    world, place, _, _ = await furnished()
    left = records.inode_ids_key(9)
    keys = {records.inode_ids_key(shard) for shard in range(SHARD_COUNT)} - {left}
    await place.change(dict.fromkeys(keys, b"\xff"))
    world.meta = world.new_meta()
    await world.user(0).create(ROOT, b"made")
    assert "inode ids are not used" in caplog.text or not caplog.records
    await place.change({left: b"\xff"})
    world.meta = world.new_meta()
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*inode-ids"):
        await world.user(0).create(ROOT, b"none")


async def test_an_inode_under_anothers_number_is_not_stored_over_that():
    world, place, _, _ = await furnished()
    stored = await place.rows(records.inode_key(place.locked))
    await place.change({records.inode_key(place.file): next(iter(stored.values()))})
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*it says it is inode"):
        await world.user(0).set_attr(place.file, mode=0o600)
    assert await place.rows(records.inode_key(place.locked)) == stored


async def test_an_inode_under_anothers_number_is_not_told_as_that():
    """A mount would have opened the one by the name of the other."""
    world, place, _, _ = await furnished()
    root = world.user(0)
    stored = await place.rows(records.inode_key(place.locked))
    await place.change({records.inode_key(place.file): next(iter(stored.values()))})
    listed = {
        entry.name: entry for entry in (await root.list(place.deep, with_inodes=True)).entries
    }
    assert listed[b"file"].inode_id == place.file
    assert not listed[b"file"].HasField("inode")
    assert listed[b"locked"].inode.inode_id == place.locked
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*it says it is inode"):
        await root.call("batch_get_attr", meta.BatchGetAttrReq(inode_ids=[place.file]))


async def test_nothing_in_the_background_stores_an_inode_over_another_one():
    """What ends sessions of the dead took the record for the file's,
    and stored it under the number in it: what had been acknowledged since was gone.
    """
    world, place, _, _ = await furnished()
    root = world.user(0)
    stored = await place.rows(records.inode_key(place.file))
    await place.change({records.inode_key(place.open): next(iter(stored.values()))})
    await root.set_attr(place.file, mode=0o604)
    world.mgmtd.client_ids = []
    await world.pruner(lambda: 2**62).step()
    await world.meta.gc.step()
    assert (await root.attr(place.file)).mode & 0o777 == 0o604


async def test_a_name_of_nothing_is_damaged():
    world, place, _, _ = await furnished()
    root, key = world.user(0), records.dentry_key(place.deep, b"file")
    await place.change({key: b""})
    for deed in (root.lookup(place.deep, b"file"), root.unlink(place.deep, b"file")):
        with pytest.raises(FsError, match=r"METADATA_DAMAGED.*a name of nothing"):
            await deed
    report = await checker(world).run(is_repair=False)
    assert Kind.DAMAGED_RECORD in {finding.kind for finding in report.findings}


async def test_a_client_may_go_by_any_name_that_is_served():
    """Its locks were damage to a check, whose repair did not end, and stayed when it had gone."""
    world, _, _, _ = await furnished()
    client_id = "\u00fc" * CLIENT_ID_BYTES_MAX
    named = world.user(0, client=client_id)
    inode_id = (await named.create(ROOT, b"named")).inode_id
    await named.call("set_lock", meta.SetLockReq(inode_id=inode_id, lock=lock(0)))
    assert (await checker(world).run(is_repair=False)).findings == []
    world.mgmtd.client_ids = []
    await world.pruner(lambda: 2**62).step()
    assert records.client_locks_key(client_id, inode_id) not in await world.dump()


@pytest.mark.parametrize("value", [b"\xff", b"\xff" * 8], ids=["short", "ones"])
async def test_a_damaged_count_of_ticks_forgets_nothing_and_holds_nothing_up(value):
    """All outcomes were over at once by it, and to count on ended the service."""
    world, place, _, _ = await furnished()
    outcomes = await place.rows(records.IDEMPOTENCY)
    assert outcomes
    assert await place.rows(records.GC_DIRECTORY)
    await place.change({records.OUTCOME_TICK_KEY: value})
    world.meta = world.new_meta()
    for _ in range(3):
        await world.meta.gc.step()
        world.meta.service.ticks._since_s -= 1000
    assert await place.rows(records.IDEMPOTENCY) == outcomes
    assert await place.rows(records.GC_DIRECTORY) == {}


async def test_an_outcome_of_a_tick_that_never_comes_is_damaged():
    world, place, _, _ = await furnished()
    key, value = (await place.rows(records.IDEMPOTENCY)).popitem()
    late = IdempotencyRecordPb.FromString(value)
    late.tick = 2**64 - 1
    await place.change({key: late.SerializeToString(), records.OUTCOME_TICK_KEY: b"\xff"})
    report = await checker(world).run(is_repair=True)
    assert len(report.findings) == 2
    assert report.left == []


async def test_while_nobody_knows_whether_collection_is_held_up_it_is(caplog):
    world, place, _, _ = await furnished()
    await place.change({records.GC_PAUSE_KEY: b"\xff"})
    queued = await place.rows(records.GC_DIRECTORY)
    for _ in range(3):
        assert await world.meta.gc.step() == 0
    assert await place.rows(records.GC_DIRECTORY) == queued
    assert len([line for line in caplog.messages if "is held up: METADATA_DAMAGED" in line]) == 1
    await place.change({records.GC_PAUSE_KEY: None})
    assert await world.meta.gc.step() > 0


@pytest.mark.parametrize("key", [
    records.INLINE_BYTES_KEY, records.INODE_COUNT_KEY, records.OUTCOME_TICK_KEY,
    records.GC_PAUSE_KEY, records.inode_ids_key(3),
])  # fmt: skip
async def test_a_service_starts_without_what_it_can_do_without(key):
    world, place, _, _ = await furnished()
    await place.change({key: b"\xff"})
    async with trio.open_nursery() as nursery:
        await nursery.start(world.new_meta().run)
        await world.wait_quiet()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 2**62 + 1])
async def test_a_counter_from_which_no_addition_leads_back_is_set(value):
    """Some stayed as they were, and some ended the check as a bug."""
    world, place, _, _ = await furnished()
    rows = await place.rows(b"")
    keys = [
        records.subdirectory_count_key(place.directory),
        records.INODE_COUNT_KEY,
        records.INLINE_BYTES_KEY,
        records.usage_key(place.directory, records.KIND_FILES),
        records.usage_key(place.deep, records.KIND_BYTES),
    ]
    await place.change(dict.fromkeys(keys, records.pack_count(value)))
    report = await checker(world).run(is_repair=True)
    assert len(report.findings) == len(keys)
    assert report.left == []
    after = await place.rows(b"")
    assert {key: after[key] for key in keys} == {key: rows[key] for key in keys}


@pytest.mark.parametrize("client_id", ["", "a\0b", "x" * (CLIENT_ID_BYTES_MAX + 1)])
async def test_a_lock_of_a_client_that_cannot_be_one_is_damaged(client_id):
    """A check wrote an index for it, and took that away again, round after round."""
    world, place, _, _ = await furnished()
    held = FileLocksRecordPb(locks=[pb.FileLockPb(client_id=client_id, kind=pb.POSIX_LOCK)])
    await place.change({records.file_locks_key(place.file): held.SerializeToString()})
    report = await checker(world).run(is_repair=True)
    assert Kind.DAMAGED_RECORD in {finding.kind for finding in report.findings}
    assert report.left == []


@pytest.mark.parametrize("figure", ["chunk_size_bytes", "stripe_size"])
async def test_a_file_whose_bytes_are_nowhere_is_damaged(figure, caplog):
    """Who wrote to it met a bug; a removed one went without its chunks."""
    world, place, _, _ = await furnished()
    root = world.user(0)
    for inode_id in (place.file, place.open, place.removed):
        inode = await place.inode(inode_id)
        inode.file.layout.ClearField(figure)
        await place.change({records.inode_key(inode_id): inode.SerializeToString()})
    deeds = (
        root.open(place.file),
        root.open(place.file, session=session(9), wants_write=True),
        root.sync(place.open, has_new_data=True, length_hint=hint(9)),
        root.set_attr(place.file, length=10),
        root.call("resolve_path", meta.ResolvePathReq(path=b"/d/deep/file", wants_read=True)),
    )
    for deed in deeds:
        with pytest.raises(FsError, match=r"METADATA_DAMAGED.*or nowhere"):
            await deed
    opens = meta.LookupReq(parent_inode_id=place.deep, name=b"file", opens=True)
    found = await root.call("lookup", opens)
    assert found.inode.inode_id == place.file and not found.is_opened
    own = world.meta.service.own_context
    world.meta.gc._make_context = lambda: own()._replace(now_ns=own().now_ns + 10**12)
    await world.meta.gc.step()
    assert "a removed inode stays for now" in caplog.text
    assert place.removed not in world.chunks.removed
    report = await checker(world).run(is_repair=False)
    wrong = {one.inode_id for one in report.findings if one.kind is Kind.WRONG_FILE}
    assert {place.file, place.open, place.removed} <= wrong


@pytest.mark.parametrize("other", ["linked", "locked", "removed_tree", "symlink"])
@pytest.mark.parametrize("victim", ["file", "open", "deep", "directory"])
async def test_a_repair_takes_no_record_of_another_inode_for_what_it_lies_under(victim, other):
    """A directory under which that of a file lay lost all its names to lost+found."""
    world, place, _, _ = await furnished()
    rows = await place.rows(b"")
    key = records.inode_key(getattr(place, victim))
    rows[key] = rows[records.inode_key(getattr(place, other))]
    await place.change({key: rows[key]})
    report = await checker(world).run(is_repair=True)
    assert {finding.kind for finding in report.left} == {Kind.WRONG_ID, Kind.DAMAGED_RECORD}
    assert await place.rows(b"") == rows
    lossy = replace(checker(world), removes_damaged=True)
    assert (await lossy.run(is_repair=True)).left == []
    assert await check(world.engine) == []


@pytest.mark.parametrize("type_", [pb.FILE, pb.DIRECTORY, pb.SYMLINK, pb.FIFO])
@pytest.mark.parametrize("victim", ["file", "open", "deep", "directory"])
async def test_a_repair_believes_no_type_that_the_rest_of_an_inode_contradicts(victim, type_):
    """A directory lost all its names, and a file became a pipe, of which nobody read a byte."""
    world, place, _, _ = await furnished()
    inode_id = getattr(place, victim)
    was = (await place.inode(inode_id)).type
    await place.set_inode(inode_id, type=type_)
    rows = await place.rows(b"")
    report = await checker(world).run(is_repair=True)
    assert [finding.kind for finding in report.left] == [Kind.DAMAGED_RECORD] * (was != type_)
    assert await place.rows(b"") == rows


async def test_a_removed_file_is_collected_as_nothing_else(caplog):
    """Its inode went, and its chunks stayed for ever."""
    world, place, _, _ = await furnished()
    await place.set_inode(place.removed, type=pb.FIFO)
    own = world.meta.service.own_context
    world.meta.gc._make_context = lambda: own()._replace(now_ns=own().now_ns + 10**12)
    await world.meta.gc.step()
    assert "is of type 4, not 1" in caplog.text
    assert (await place.inode(place.removed)).nlink == 0


async def test_a_wrong_number_in_a_record_is_corrected():
    world, place, _, _ = await furnished()
    before = await place.inode(place.file)
    await place.set_inode(place.file, inode_id=before.inode_id ^ 1 << 40)
    lossy = replace(checker(world), removes_damaged=True)
    assert (await lossy.run(is_repair=True)).left == []
    assert await place.inode(place.file) == before


async def test_damage_in_the_trash_holds_up_no_other_name():
    """Three damaged names ended each scan before the others had their turn."""
    world = World(MemoryEngine(SimulatedClock()), gc_batch_count=4)
    await world.initialise()
    root = world.user(0)
    for i in range(12):
        await root.create(ROOT, b"%02d" % i)
        request = meta.MoveToTrashReq(parent_inode_id=ROOT, name=b"%02d" % i, expire_s=3600)
        await root.call("move_to_trash", request)
    rows = await world.dump()
    marks = sorted(key for key in rows if key.startswith(records.TRASH))
    tr = world.engine.transaction()
    for key in marks[:6]:
        _, parent_id, name = records.trash_parts(key)
        tr.set(records.dentry_key(parent_id, name), b"\xff")
    await tr.commit()
    late = world.new_meta()
    late.trash._now_ns = lambda: max(records.trash_parts(key)[0] for key in marks) + 1
    for _ in range(4):
        await late.trash.step()
    left = sorted(key for key in await world.dump() if key.startswith(records.TRASH))
    assert left == marks[:6]


async def test_no_file_system_is_made_over_one_without_its_format():
    """The root was made anew, and inode ids were given out again."""
    world, place, _, _ = await furnished()
    await place.change({records.FORMAT_KEY: None})
    before = await world.dump()
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*meta-format.*is missing"):
        await world.initialise()
    assert await world.dump() == before
    report = await checker(world).run(is_repair=True)
    (left,) = report.left
    assert "meta-format" in left.text and await world.dump() == before
    await place.change({records.FORMAT_KEY: b""})
    with pytest.raises(FsError, match=r"METADATA_DAMAGED.*meta-format"):
        await world.initialise()


@pytest.mark.parametrize(
    ("version", "told"),
    [(UNFINISHED_VERSION, "not finished"), (records.FORMAT_VERSION + 1, "knows")],
)
async def test_what_this_release_would_misjudge_is_not_checked(version, told):
    """A repair of what a restore had brought so far removed names."""
    world, place, _, _ = await furnished()
    record = FormatRecordPb(format_version=version, cluster_id="emberfs")
    await place.change({records.FORMAT_KEY: record.SerializeToString()})
    await place.change({records.inode_key(place.file): None})
    before = await world.dump()
    with pytest.raises(FsError, match=told) as caught:
        await checker(world).run(is_repair=True)
    assert caught.value.status is Status.KV_BAD_FORMAT
    assert await world.dump() == before


@pytest.mark.parametrize(
    ("rows_of", "prefix"),
    [
        (inode_rows, records.INODE),
        (dentry_rows, records.DENTRY),
        (session_rows, records.FILE_SESSION),
        (garbage, records.GC_FILE),
    ],
)
async def test_what_lists_records_leaves_a_damaged_one_out_and_names_it(rows_of, prefix, caplog):
    """One such record ended `ember admin dump`, `session files` and `gc list`."""
    world, place, _, _ = await furnished()
    before = [row async for row in rows_of(world.engine)]
    key = min(await place.rows(prefix))
    await place.change({key: b"\xff", prefix + b"x": b""})
    after = [row async for row in rows_of(world.engine)]
    assert len(after) == len(before) - (prefix != records.GC_FILE)
    told = [record.getMessage() for record in caplog.records]
    assert all(any(repr(one) in line for line in told) for one in (key, prefix + b"x"))
