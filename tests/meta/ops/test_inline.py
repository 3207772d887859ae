"""Inline files: when reports make them, what ends them, what replies tell of them,
and that no bytes are lost on the way.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio
from xxhash import xxh3_64_intdigest

from fs.kv.transact import transact
from fs.meta import records
from fs.meta.init import check_format_record
from fs.runtime.figures import Figures
from fs.schema import metrics
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import FormatRecordPb, InlineRecordPb
from fs.schema.status import FsError, Status
from tests.meta.harness import (
    INLINE_BYTES_MAX,
    ROOT,
    hint,
    inline_report,
    refused,
    session,
)

DATA = b"all of it"


@pytest.fixture
def world(inline_world):
    return inline_world


@pytest.fixture
async def file(root):
    made = await root.create(ROOT, b"f", 0o666, wants_write=True, session=session(1))
    return made.inode_id


async def report(user, inode_id, data=DATA, **fields) -> meta.InodeRsp:
    """Send all bytes with what the file is like now."""
    part = (await user.attr(inode_id)).file
    told = {"data_ver": part.data_ver, "truncate_ver": part.truncate_ver} | fields
    return await user.call("sync", meta.SyncReq(inode_id=inode_id, **inline_report(data, **told)))


async def make_inline(user, inode_id, data=DATA):
    reply = await report(user, inode_id, data)
    assert not reply.is_inline_refused and reply.inode.file.is_inline
    return reply.inode


async def row(world, inode_id) -> bytes | None:
    value = (await world.dump()).get(records.inline_key(inode_id))
    return None if value is None else InlineRecordPb.FromString(value).data


async def total(world) -> int:
    return records.unpack_count((await world.dump()).get(records.INLINE_BYTES_KEY))


async def test_a_report_with_all_bytes_makes_a_file_inline(world, root, file):
    made = await make_inline(root, file)
    part = made.file
    assert (part.length, part.dyn_stripe, part.data_ver, made.used_bytes) == (9, 0, 1, 9)
    assert (await row(world, file), await total(world)) == (DATA, 9)
    longer = await make_inline(root, file, b"x" * INLINE_BYTES_MAX)
    assert (longer.file.length, longer.file.data_ver) == (INLINE_BYTES_MAX, 2)
    shorter = await make_inline(root, file, b"y")
    assert (shorter.file.length, shorter.used_bytes) == (1, 1)
    assert (await row(world, file), await total(world)) == (b"y", 1)
    assert (await root.usage(ROOT)).directory.usage.bytes == 1
    assert not world.chunks.filled and not world.chunks.truncated


async def test_a_report_with_all_bytes_is_a_report(world, root, alice, file):
    await root.set_attr(file, mode=0o4777)
    reply = await report(root, file, mtime_ns=5, atime_ns=6, is_durable=True)
    assert (reply.inode.mtime_ns, reply.inode.atime_ns) == (5, 6)
    assert reply.HasField("is_metered") and not reply.is_metered
    await alice.open(file, wants_write=True, session=session(2), takes_inline=True)
    # The session of root's is of the same client.
    cleared = await report(alice, file, b"others", clears_suid=True)
    assert not cleared.is_inline_refused and cleared.inode.mode == 0o777


@pytest.mark.parametrize(
    "change",
    [
        {"data_ver": 7},
        {"truncate_ver": 7},
        {"inline_data": b"x" * (INLINE_BYTES_MAX + 1), "length_hint": hint(INLINE_BYTES_MAX + 1)},
        {"inline_data": b"", "length_hint": hint(0)},
    ],
)
async def test_what_may_not_be_taken_is_refused_and_nothing_is_done(world, root, file, change):
    before = await root.attr(file)
    fields = inline_report(DATA) | change
    if "data_ver" in change:
        fields = inline_report(DATA, **change)
    if "truncate_ver" in change:
        fields = inline_report(DATA, **change)
    fields["inline_checksum"] = xxh3_64_intdigest(fields["inline_data"])
    reply = await root.call("sync", meta.SyncReq(inode_id=file, **fields))
    assert reply.is_inline_refused
    assert reply.inode == before == await root.attr(file)


async def test_a_file_with_bytes_in_chunks_does_not_become_inline(world, root, file):
    world.chunks.lengths[file] = 100
    await root.sync(file, has_new_data=True)
    assert (await report(root, file)).is_inline_refused
    await root.set_attr(file, length=0)
    assert not (await report(root, file)).is_inline_refused


async def test_others_who_write_refuse_it(world, root, bob, file):
    other = world.user(0, client="d" * 32)
    await other.open(file, wants_write=True, session=session(2))
    assert (await report(root, file)).is_inline_refused
    await other.close(file, session(2).session_id)
    await other.open(file, wants_read=True, takes_inline=True)
    await make_inline(root, file)
    await root.close(file, session(1).session_id)
    # Nobody has it open for writing any more: who reports now is late.
    assert (await report(root, file, b"late")).is_inline_refused


async def test_a_store_of_an_earlier_format_gets_none(world, root, file):
    async def set_format(version):
        record = FormatRecordPb(format_version=version, cluster_id="emberfs", what="meta")

        async def put(tr):
            tr.set(records.FORMAT_KEY, record.SerializeToString())

        await transact(world.engine, put, runtime=world.runtime)

    await set_format(3)
    assert (await report(root, file)).is_inline_refused
    opened = meta.OpenReq(inode_id=file, wants_write=True, session=session(1), takes_inline=True)
    assert (await root.call("open", opened)).inline_bytes_max == 0
    await set_format(4)
    assert (await root.call("open", opened)).inline_bytes_max == INLINE_BYTES_MAX
    await make_inline(root, file)


def test_services_of_earlier_formats_do_not_serve_such_a_store(monkeypatch):
    stored = FormatRecordPb(format_version=4, cluster_id="emberfs").SerializeToString()
    assert check_format_record(stored, "emberfs")
    monkeypatch.setattr(records, "FORMAT_VERSION", 3)
    with pytest.raises(FsError, match="format 4, this release knows 3"):
        check_format_record(stored, "emberfs")


async def test_further_files_go_to_chunks_when_there_are_too_many_bytes(world, root, file):
    await make_inline(root, file, b"x" * 4000)
    others = [
        (await root.create(ROOT, b"%d" % n, wants_write=True, session=session(n))).inode_id
        for n in (2, 3)
    ]
    await make_inline(root, others[0], b"x" * 4000)
    assert (await report(root, others[1], b"x" * 2001)).is_inline_refused
    await make_inline(root, others[1], b"x" * 2000)
    fields = {"wants_write": True, "takes_inline": True}
    full = await root.create_rsp(ROOT, b"full", session=session(4), **fields)
    assert full.inline_bytes_max == 0
    await root.set_attr(others[0], length=0)
    some = await root.create_rsp(ROOT, b"some", session=session(5), **fields)
    assert some.inline_bytes_max == 4000


@pytest.mark.parametrize(
    "fields",
    [
        {"inline_checksum": 1},
        {"length_hint": hint(8)},
        {"length_hint": None},
        {"has_new_data": False},
        {"counts_space": True},
    ],
)
async def test_what_contradicts_itself_is_an_error(world, root, file, fields):
    before = await root.attr(file)
    asked = {k: v for k, v in (inline_report(DATA) | fields).items() if v is not None}
    with refused(Status.INVALID_ARGUMENT):
        await root.sync(file, **asked)
    with refused(Status.INVALID_ARGUMENT):
        await root.close(file, session(1).session_id, **inline_report(DATA))
    d = (await root.mkdir(ROOT, b"d")).inode_id
    with refused(Status.NOT_REGULAR):
        await root.sync(d, **inline_report(DATA))
    assert await root.attr(file) == before


async def test_a_quota_refuses_it_and_nothing_is_done(world, root, alice):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    f = (await alice.create(d, b"f", wants_write=True, session=session(1))).inode_id
    await root.set_quota(d, 5, 0)
    before = await alice.attr(f)
    reply = await report(alice, f)
    assert reply.is_inline_refused and reply.is_metered
    assert await alice.attr(f) == before and await row(world, f) is None
    assert not (await report(alice, f, b"five!")).is_inline_refused
    assert (await root.usage(d)).directory.usage.bytes == 5


async def test_only_who_may_write_reports(world, root, bob, file):
    await root.set_attr(file, mode=0o644)
    with refused(Status.ACCESS_DENIED):
        await world.user(1001, client="d" * 32).sync(file, **inline_report(DATA))


# ---- what moves the bytes to a chunk -------------------------------------------------------------


async def extend(user, inode_id):
    await user.call("extend_stripe", meta.ExtendStripeReq(inode_id=inode_id, dyn_stripe_min=1))


MOVERS = {
    "extend": extend,
    "append": lambda user, i: user.append(i, 5),
    "new data": lambda user, i: user.sync(i, has_new_data=True, length_hint=hint(9, 0)),
    "space": lambda user, i: user.sync(i, counts_space=True),
    "longer": lambda user, i: user.set_attr(i, length=20),
    "shorter": lambda user, i: user.set_attr(i, length=3),
    "as long": lambda user, i: user.set_attr(i, length=9),
    "old reader": lambda user, i: user.open(i, wants_read=True),
    "old writer": lambda user, i: user.open(i, wants_write=True, session=session(3)),
    "old create": lambda user, _: user.create(ROOT, b"f", wants_read=True),
    "old path": lambda user, _: user.call(
        "resolve_path", meta.ResolvePathReq(path=b"/f", wants_read=True)
    ),
    "old paths": lambda user, _: user.call(
        "batch_resolve_path", meta.BatchResolvePathReq(paths=[b"/f", b"/f"], wants_read=True)
    ),
}


@pytest.mark.parametrize("name", MOVERS)
async def test_who_needs_chunks_has_the_bytes_moved(world, root, file, name):
    before = await make_inline(root, file)
    await MOVERS[name](root, file)
    after = (await root.attr(file)).file
    assert not after.is_inline and not after.truncate_pending
    assert after.truncate_ver == (2 if name == "shorter" else 1)
    assert after.dyn_stripe == 1
    assert after.length == {"append": 14, "longer": 20, "shorter": 3}.get(name, 9)
    assert world.chunks.filled == [(file, DATA)]
    assert (await row(world, file), await total(world)) == (None, 0)
    if name.startswith("old") or name == "extend":
        assert (await root.attr(file)).ctime_ns == before.ctime_ns
        assert after.data_ver == before.file.data_ver


async def test_what_does_not_touch_the_bytes_leaves_them(world, root, file):
    await make_inline(root, file)
    await root.set_attr(file, mode=0o600, mtime_ns=7)
    await root.sync(file, atime_ns=8)
    await root.sync(file, length_hint=hint(9))
    await root.open(file, wants_write=True, session=session(2), takes_inline=True)
    await root.close(file, session(2).session_id, atime_ns=9)
    await root.link(file, ROOT, b"g")
    await root.rename(ROOT, b"g", ROOT, b"h")
    await root.call("resolve_path", meta.ResolvePathReq(path=b"/h"))
    await root.call("get_attr", meta.GetAttrReq(inode_id=file))
    await root.reserve(file, 9)
    assert (await row(world, file)) == DATA and not world.chunks.filled


@pytest.mark.parametrize("how", ["set_attr", "open", "create"])
async def test_who_empties_it_needs_no_storage(world, root, file, how):
    await make_inline(root, file)
    if how == "set_attr":
        await root.set_attr(file, length=0, length_hint=hint(9, 5))
    elif how == "open":
        await root.open(file, wants_write=True, is_truncate=True, session=session(2))
    else:
        fields = {"wants_write": True, "is_truncate": True, "session": session(2)}
        await root.create(ROOT, b"f", **fields)
    after = await root.attr(file)
    part = after.file
    assert (part.length, part.truncate_ver, part.dyn_stripe, after.used_bytes) == (0, 1, 0, 0)
    assert not (part.is_inline or part.truncate_pending)
    assert (await row(world, file), await total(world)) == (None, 0)
    assert not world.chunks.filled and not world.chunks.truncated
    # And it may be inline again, or get chunks.
    assert (await make_inline(root, file, b"again")).file.truncate_ver == 1
    await root.set_attr(file, length=0)
    await extend(root, file)
    assert (await root.attr(file)).file.dyn_stripe == 1


async def test_a_move_that_fails_is_gone_on_with_and_may_be_read_meanwhile(world, root, file):
    await make_inline(root, file)
    world.chunks.error = FsError(Status.NO_SPACE, "for a time")
    with refused(Status.NO_SPACE):
        await extend(root, file)
    part = (await root.attr(file)).file
    assert (part.is_inline, part.truncate_pending, part.dyn_stripe) == (True, True, 0)
    asked = meta.GetAttrReq(inode_id=file, takes_inline=True)
    assert (await root.call("get_attr", asked)).inline_data == DATA
    assert (await report(root, file, b"other one")).is_inline_refused
    world.chunks.error = None
    await root.open(file, wants_write=True, session=session(2), takes_inline=True)
    assert world.chunks.filled == [(file, DATA)]
    assert not (await root.attr(file)).file.is_inline


async def test_another_service_goes_on_with_a_move(world, root, file, autojump_clock):
    await make_inline(root, file)
    world.chunks.error = (
        FsError(Status.STORAGE_TIMED_OUT, "for ever")
        if False
        else FsError(Status.NO_SPACE, "for a time")
    )
    with refused(Status.NO_SPACE):
        await extend(root, file)
    world.chunks.error = None
    world.meta = world.new_meta()
    await trio.sleep(11)
    await world.meta.gc.step()
    assert world.chunks.filled == [(file, DATA)]
    part = (await root.attr(file)).file
    assert (part.is_inline, part.truncate_pending, part.dyn_stripe) == (False, False, 1)


async def test_damaged_bytes_are_neither_read_nor_moved(world, root, file):
    await make_inline(root, file)

    async def damage(tr):
        record = InlineRecordPb(data=b"all of IT", checksum=xxh3_64_intdigest(DATA))
        tr.set(records.inline_key(file), record.SerializeToString())

    await transact(world.engine, damage, runtime=world.runtime)
    with refused(Status.METADATA_DAMAGED):
        await extend(root, file)
    assert not world.chunks.filled
    asked = meta.GetAttrReq(inode_id=file, takes_inline=True)
    reply = await root.call("get_attr", asked)  # its client compares
    assert xxh3_64_intdigest(reply.inline_data) != reply.inline_checksum

    async def lose(tr):
        tr.clear(records.inline_key(file))

    await transact(world.engine, lose, runtime=world.runtime)
    with refused(Status.METADATA_DAMAGED):
        await root.call("get_attr", asked)
    # It can be emptied, and then be written again.
    await root.set_attr(file, length=0)
    await make_inline(root, file)


# ---- replies -------------------------------------------------------------------------------------


async def test_who_opens_it_gets_the_bytes(world, root, alice, file):
    await make_inline(root, file)
    checksum = xxh3_64_intdigest(DATA)
    told = [
        await alice.call("open", meta.OpenReq(inode_id=file, wants_read=True, takes_inline=True)),
        await alice.call(
            "open",
            meta.OpenReq(inode_id=file, wants_write=True, session=session(7), takes_inline=True),
        ),
        await alice.create_rsp(ROOT, b"f", wants_read=True, takes_inline=True),
        await alice.call(
            "resolve_path", meta.ResolvePathReq(path=b"/f", wants_read=True, takes_inline=True)
        ),
        (
            await alice.call(
                "batch_resolve_path",
                meta.BatchResolvePathReq(paths=[b"/f"], wants_read=True, takes_inline=True),
            )
        ).resolved[0],
        await alice.call("get_attr", meta.GetAttrReq(inode_id=file, takes_inline=True)),
    ]
    for reply in told:
        assert (reply.inline_data, reply.inline_checksum) == (DATA, checksum)
    assert [reply.inline_bytes_max for reply in told[:3]] == [0, INLINE_BYTES_MAX, 0]
    assert not world.chunks.filled
    plain = await alice.call("get_attr", meta.GetAttrReq(inode_id=file))
    assert plain.inline_data == b""


async def test_who_may_not_read_gets_none(world, root, alice, file):
    await make_inline(root, file)
    await root.set_attr(file, mode=0o622)
    opened = meta.OpenReq(inode_id=file, wants_write=True, session=session(7), takes_inline=True)
    reply = await alice.call("open", opened)
    assert reply.inline_data == b"" and reply.inode.file.is_inline
    with refused(Status.ACCESS_DENIED):
        await alice.call(
            "resolve_path", meta.ResolvePathReq(path=b"/f", wants_read=True, takes_inline=True)
        )
    assert (await row(world, file)) == DATA


async def test_a_repeated_open_gets_the_bytes_and_none_are_kept_with_the_outcome(world, root, file):
    await make_inline(root, file, b"z" * 2000)
    repeat = world.user(0)
    repeat.request_id, repeat.is_repeat = b"r" * 16, True
    opened = meta.OpenReq(
        inode_id=file, wants_read=True, wants_write=True, session=session(7), takes_inline=True
    )
    first = await repeat.call("open", opened)
    assert await repeat.call("open", opened) == first
    assert first.inline_data == b"z" * 2000
    kept = (await world.dump())[records.idempotency_key("c" * 32, b"r" * 16)]
    assert len(kept) < 1000


async def test_many_paths_bring_bytes_up_to_a_limit(world, root, file, monkeypatch):
    await make_inline(root, file, b"z" * 2000)
    monkeypatch.setattr("fs.meta.inline.REPLY_BYTES_MAX", 5000)
    asked = meta.BatchResolvePathReq(
        paths=[b"/f", b"/none", b"/f", b"/f"], wants_read=True, takes_inline=True
    )
    reply = await root.call("batch_resolve_path", asked)
    assert [len(r.inline_data) for r in reply.resolved] == [2000, 0, 2000, 0]
    assert [r.inode.file.is_inline for r in reply.resolved] == [True, False, True, True]


async def test_lost_bytes_of_one_path_are_no_error_of_others(world, root, file):
    other = await root.create(ROOT, b"g", wants_write=True, session=session(2))
    await make_inline(root, file)
    await make_inline(root, other.inode_id, b"of g")

    async def lose(tr):
        tr.clear(records.inline_key(file))

    await transact(world.engine, lose, runtime=world.runtime)
    asked = meta.BatchResolvePathReq(paths=[b"/f", b"/g"], wants_read=True, takes_inline=True)
    lost, found = (await root.call("batch_resolve_path", asked)).resolved
    assert (lost.status, lost.HasField("inode")) == (Status.METADATA_DAMAGED, False)
    assert (found.status, found.may_read, found.inline_data) == (0, True, b"of g")
    await root.set_attr(file, length=0)


async def test_a_client_of_an_earlier_release_has_all_paths_moved(world, root, file):
    other = await root.create(ROOT, b"g", wants_write=True, session=session(2))
    await make_inline(root, file)
    await make_inline(root, other.inode_id, b"of g")
    asked = meta.BatchResolvePathReq(paths=[b"/f", b"/g", b"/none"], wants_read=True)
    reply = await root.call("batch_resolve_path", asked)
    assert [r.inode.file.is_inline for r in reply.resolved] == [False] * 3
    assert sorted(world.chunks.filled) == sorted([(file, DATA), (other.inode_id, b"of g")])


# ---- the end of the file, and of those who have it open ------------------------------------------


async def test_the_bytes_go_with_the_inode_and_storage_is_not_asked(
    world, root, file, autojump_clock
):
    await make_inline(root, file)
    noted = []
    world.meta.gc._events.note = noted.append
    await root.close(file, session(1).session_id)
    await root.unlink(ROOT, b"f")
    await trio.sleep(61)
    await world.meta.gc.step()
    assert (await row(world, file), await total(world)) == (None, 0)
    assert not world.chunks.removed and not world.chunks.filled
    assert [(e["event"], e["length"]) for e in noted if e["event"] == "gc"] == [("gc", 9)]
    dump = await world.dump()
    assert not [key for key in dump if key.startswith((b"GC", b"INLN"))]


async def test_of_a_file_that_is_being_moved_the_chunks_are_removed_too(
    world, root, file, autojump_clock
):
    await make_inline(root, file)
    world.chunks.error = FsError(Status.NO_SPACE, "for a time")
    with refused(Status.NO_SPACE):
        await extend(root, file)
    await root.close(file, session(1).session_id)
    await root.unlink(ROOT, b"f")
    await trio.sleep(61)
    for _ in range(2):  # storage is away still
        await world.meta.gc.step()
        assert (await row(world, file), await total(world)) == (None, 0)
    world.chunks.error = None
    await trio.sleep(61)
    await world.meta.gc.step()
    assert world.chunks.removed == [file]


async def test_of_a_dead_writer_the_bytes_stand(world, root, file, autojump_clock):
    await make_inline(root, file)
    world.chunks.lengths[file] = 777  # nobody is to ask
    world.mgmtd.client_ids = []
    await trio.sleep(1000)
    assert await world.meta.sessions.step() == 1
    part = (await root.attr(file)).file
    assert (part.length, part.is_inline) == (9, True)
    assert (await row(world, file)) == DATA


async def test_no_one_writes_a_chunk_between_a_report_and_an_open(world, root, file, nursery):
    """An open for writing by another client and the report exclude each other,
    whichever comes first.
    """
    other = world.user(0, client="d" * 32)
    outcomes = []

    async def send():
        outcomes.append((await report(root, file)).is_inline_refused)

    async def open_it():
        await other.open(file, wants_write=True, session=session(2), takes_inline=True)

    async with trio.open_nursery() as both:
        both.start_soon(send)
        both.start_soon(open_it)
    assert (await root.attr(file)).file.is_inline == (outcomes == [False])


async def test_how_many_bytes_are_inline_is_told(world, root, file, autojump_clock):
    await make_inline(root, file)
    told = await root.call("stat_fs", meta.StatFsReq())
    assert told.inline_bytes == len(DATA)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.meta.run)
        figures = Figures()
        world.meta.say(figures)
        assert figures.numbers[metrics.INLINE_BYTES] == {(): len(DATA)}
        nursery.cancel_scope.cancel()


async def test_a_look_up_that_opens_brings_the_bytes_to_who_may_read_them(world, root, alice, file):
    await make_inline(root, file)
    name = b"f"
    for user, mode, is_opened in ((root, 0o600, True), (alice, 0o644, True), (alice, 0o600, False)):
        await root.set_attr(file, mode=mode)
        asked = meta.LookupReq(parent_inode_id=ROOT, name=name, opens=True)
        reply = await user.call("lookup", asked)
        opened = meta.OpenReq(inode_id=file, wants_read=True, takes_inline=True)
        assert reply.is_opened is is_opened
        if is_opened:
            reply.is_opened = False
            assert reply == await user.call("open", opened)
        else:
            assert not reply.inline_data
    plain = await root.call("lookup", meta.LookupReq(parent_inode_id=ROOT, name=name))
    assert not plain.is_opened and not plain.inline_data


async def test_a_look_up_finds_a_file_whose_bytes_are_lost_and_does_not_open_it(world, root, file):
    await make_inline(root, file)

    async def lose(tr):
        tr.clear(records.inline_key(file))

    await transact(world.engine, lose, runtime=world.runtime)
    reply = await root.call("lookup", meta.LookupReq(parent_inode_id=ROOT, name=b"f", opens=True))
    assert reply.inode.inode_id == file and not reply.is_opened
    with refused(Status.METADATA_DAMAGED):
        await root.open(file, takes_inline=True)

    async def repair(tr):
        data = InlineRecordPb(data=DATA, checksum=xxh3_64_intdigest(DATA))
        tr.set(records.inline_key(file), data.SerializeToString())

    await transact(world.engine, repair, runtime=world.runtime)


async def test_a_look_up_opens_nothing_but_files(root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    for name in (b".", b"..", b"d"):
        asked = meta.LookupReq(parent_inode_id=ROOT, name=name, opens=True)
        assert not (await root.call("lookup", asked)).is_opened
    assert d
