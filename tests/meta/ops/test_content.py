"""open, sync, close, truncation, appends, stripes: the length and version of a file."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import itertools

import pytest
import trio

from fs.meta.content_driver import ContentDriver
from fs.schema.layout import MAX_FILE_LENGTH_BYTES
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, hint, refused, session


@pytest.fixture
async def file(root):
    made = await root.create(ROOT, b"f", 0o666, wants_write=True, session=session(1))
    return made.inode_id


async def test_open_permissions_and_types(world, root, alice):
    f = (await root.create(ROOT, b"f", 0o640)).inode_id
    d = (await root.mkdir(ROOT, b"d")).inode_id
    link = (await root.symlink(ROOT, b"l", b"f")).inode_id
    with refused(Status.ACCESS_DENIED):
        await alice.open(f, wants_read=True)
    with refused(Status.IS_DIRECTORY, "EISDIR"):
        await root.open(d, wants_write=True, session=session(1))
    await root.open(d, wants_read=True)
    with refused(Status.TOO_MANY_SYMLINKS, "ELOOP"):
        await root.open(link, wants_read=True)
    with refused(Status.INVALID_ARGUMENT):
        await root.open(f, wants_write=True)
    for bad in ("x", "A" * 32, "0" * 31):
        request = meta.FileSessionPb(session_id=bad, is_write=True)
        with refused(Status.INVALID_ARGUMENT):
            await root.open(f, wants_write=True, session=request)
    with refused(Status.STALE, "ESTALE"):
        await root.open(0xFFFFF, wants_read=True)


async def test_hints_give_the_largest_end_of_writes(world, root, file):
    first = await root.sync(file, length_hint=hint(100), has_new_data=True)
    assert (first.file.length, first.file.data_ver, first.used_bytes) == (100, 1, 100)
    second = await root.sync(file, length_hint=hint(50), has_new_data=True)
    assert (second.file.length, second.file.data_ver) == (100, 2)
    assert second.mtime_ns > first.mtime_ns and second.ctime_ns > first.ctime_ns
    with refused(Status.FILE_TOO_LARGE, "EFBIG"):
        await root.sync(file, length_hint=hint(MAX_FILE_LENGTH_BYTES + 1))


async def test_no_hint_asks_the_chains(world, root, file):
    world.chunks.lengths[file] = 777
    assert (await root.sync(file, has_new_data=True)).file.length == 777
    await root.set_attr(file, length=5000)
    # A hole at the end stays: the chains know less than the length.
    assert (await root.sync(file, has_new_data=True)).file.length == 5000


async def test_hint_from_before_a_truncation_is_void(world, root, file):
    await root.sync(file, length_hint=hint(1000), has_new_data=True)
    cut = await root.set_attr(file, length=10)
    assert (cut.file.length, cut.file.truncate_ver, cut.file.truncate_pending) == (10, 1, False)
    assert world.chunks.truncated == [(file, 10)]
    world.chunks.lengths[file] = 30
    late = await root.sync(file, length_hint=hint(1000, truncate_ver=0), has_new_data=True)
    assert late.file.length == 30
    fresh = await root.sync(file, length_hint=hint(40, truncate_ver=1), has_new_data=True)
    assert fresh.file.length == 40


async def test_set_length_extends_without_asking_anybody(world, root, file):
    extended = await root.set_attr(file, length=1 << 30)
    assert (extended.file.length, extended.file.truncate_ver) == (1 << 30, 0)
    assert extended.file.data_ver == 1 and not world.chunks.truncated
    assert extended.used_bytes == 0
    for status, inode_id in (
        (Status.IS_DIRECTORY, ROOT),
        (Status.NOT_REGULAR, (await root.mknod(ROOT, b"p", pb.FIFO)).inode_id),
    ):
        with refused(status):
            await root.set_attr(inode_id, length=0)


@pytest.mark.parametrize(("length", "expected"), [(3, 5), (5, 5), (9, 9)])
async def test_who_only_lengthens_cuts_nothing(root, file, length, expected):
    await root.sync(file, length_hint=hint(5), has_new_data=True)
    before = (await root.attr(file)).file
    found = (await root.set_attr(file, length=length, only_lengthens=True)).file
    assert (found.length, found.truncate_ver) == (expected, before.truncate_ver)
    assert found.data_ver == before.data_ver + 1
    assert not found.truncate_pending


async def test_set_length_applies_the_callers_own_hint_first(world, root, file):
    cut = await root.set_attr(file, length=60, length_hint=hint(100))
    assert cut.file.truncate_ver == 1 and world.chunks.truncated == [(file, 60)]


async def test_o_trunc(world, root, alice, file):
    await root.sync(file, length_hint=hint(100), has_new_data=True)
    opened = await root.open(file, wants_write=True, is_truncate=True, session=session(2))
    assert (opened.file.length, opened.file.truncate_pending) == (0, False)
    assert world.chunks.truncated == [(file, 0)]
    await root.sync(file, length_hint=hint(9, 1), has_new_data=True)
    again = await root.create(ROOT, b"f", is_truncate=True, wants_write=True, session=session(3))
    assert again.file.length == 0 and world.chunks.truncated[-1] == (file, 0)
    await root.set_attr(file, mode=0o644)
    with refused(Status.ACCESS_DENIED):
        await alice.open(file, wants_read=True, is_truncate=True)


@pytest.mark.parametrize("finder", ["open", "set_attr", "append", "stripe", "sync", "gc"])
async def test_crash_between_the_two_transactions(world, root, file, finder, autojump_clock):
    await root.sync(file, length_hint=hint(1000), has_new_data=True)
    world.chunks.lengths[file] = 1000
    world.chunks.error = FsError(Status.CHAIN_UNAVAILABLE, "all dead")
    with refused(Status.CHAIN_UNAVAILABLE):
        await root.set_attr(file, length=10)
    assert (await root.attr(file)).file.truncate_pending
    assert (await root.attr(file)).file.length == 10
    world.chunks.error = None
    world.meta = world.new_meta()
    if finder == "open":
        await root.open(file, wants_write=True, session=session(9))
    elif finder == "set_attr":
        await root.set_attr(file, length=20)
    elif finder == "append":
        assert (await root.append(file, 5)).offset == 10
    elif finder == "stripe":
        request = meta.ExtendStripeReq(inode_id=file, dyn_stripe_min=2)
        await root.call("extend_stripe", request)
    elif finder == "sync":
        await root.sync(file, length_hint=hint(15, 1), has_new_data=True)
    else:
        await trio.sleep(11)
        await world.meta.gc.step()
    assert world.chunks.truncated == [(file, 10)]
    assert not (await root.attr(file)).file.truncate_pending


async def test_truncation_is_driven_once_and_others_wait(world, root, file, nursery):
    await root.sync(file, length_hint=hint(1000), has_new_data=True)
    go = trio.Event()
    world.chunks.before_truncate = go.wait
    done = []

    async def run(call):
        done.append(await call)

    nursery.start_soon(run, root.set_attr(file, length=10))
    await world.wait_quiet()
    nursery.start_soon(run, root.append(file, 5))
    await world.wait_quiet()
    assert not done
    go.set()
    while len(done) < 2:  # noqa: ASYNC110 - two lists fill, nobody can signal
        await trio.sleep(0.01)
    assert world.chunks.truncated == [(file, 10)]
    assert (await root.attr(file)).file.length == 15


async def test_a_slow_driver_stops_when_another_has_finished(world, root, file, nursery):
    """It would cut what has been written behind the new end since."""
    await root.sync(file, length_hint=hint(1000), has_new_data=True)
    has_come, go, is_done = trio.Event(), trio.Event(), trio.Event()

    async def be_slow():
        has_come.set()
        await go.wait()

    async def truncate():
        await root.set_attr(file, length=10)
        is_done.set()

    world.chunks.before_truncate = be_slow
    nursery.start_soon(truncate)
    await has_come.wait()
    world.chunks.before_truncate = None
    other = ContentDriver(world.engine, world.runtime, world.chunks, 1.0)
    await other.finish_truncation(file)
    assert world.chunks.truncated == [(file, 10)]
    go.set()
    await is_done.wait()
    assert world.chunks.truncated == [(file, 10)]


async def test_a_caller_who_goes_away_does_not_stop_the_cut(
    world, root, file, nursery, autojump_clock
):
    await nursery.start(world.meta.run)
    await root.sync(file, length_hint=hint(1000), has_new_data=True)
    go = trio.Event()
    world.chunks.before_truncate = go.wait
    with trio.move_on_after(1) as scope:
        await root.set_attr(file, length=10)
    assert scope.cancelled_caught
    go.set()
    while (await root.attr(file)).file.truncate_pending:  # noqa: ASYNC110 - nobody can signal
        await trio.sleep(0.01)
    nursery.cancel_scope.cancel()


async def test_close_reports_and_ends_the_session(world, root, alice, file):
    await root.set_attr(file, mode=0o600)
    tr = world.engine.transaction()
    assert len(await tr.get_range(b"INOS", b"INOT")) == 1
    closed = await root.close(
        file, session(1).session_id, length_hint=hint(7), has_new_data=True, atime_ns=5
    )
    assert (closed.file.length, closed.atime_ns) == (7, 5)
    tr = world.engine.transaction()
    assert not await tr.get_range(b"INOS", b"INOT")


async def test_a_session_of_another_client_is_not_ended(world, root, alice, file):
    """Found by asking what a forged Close may do:
    without its session an open file without a name is collected.
    """
    stranger = world.user(1001, client="e" * 32)
    await stranger.close(file, session(1).session_id)
    assert len(await world.engine.transaction().get_range(b"INOS", b"INOT")) == 1


async def test_opening_for_reading_gives_no_right_to_write(world, root, alice):
    """Found by tests/meta/fuzz.py: a write session could be had with an open for reading,
    and proved the right.
    """
    d = (await root.mkdir(ROOT, b"d", 0o755)).inode_id
    f = (await root.create(d, b"f", 0o644)).inode_id
    for inode_id in (f, d):
        with refused(Status.INVALID_ARGUMENT):
            await alice.open(inode_id, wants_read=True, session=session(4))
    with refused(Status.INVALID_ARGUMENT):
        await alice.create(d, b"f", wants_read=True, session=session(4))
    with refused(Status.ACCESS_DENIED):
        await alice.append(f, 5)


async def test_an_immutable_file_is_written_only_by_who_has_it_open_already(
    world, root, alice, bob
):
    """Found by tests/meta/fuzz.py: reports of content did not look at the flag."""
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    f = (await alice.create(d, b"f", 0o666)).inode_id
    await bob.open(f, wants_write=True, session=session(4))
    await root.set_attr(f, iflags=0x10)
    for uid in (alice.uid, 1001, 0):
        who = world.user(uid, client="e" * 32)
        with refused(Status.ACCESS_DENIED):
            await who.sync(f, mtime_ns=1)
        with refused(Status.ACCESS_DENIED):
            await who.append(f, 5)
    assert (await bob.sync(f, length_hint=hint(5), has_new_data=True)).file.length == 5


async def test_who_may_report_content(world, root, alice, bob):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    f = (await alice.create(d, b"f", 0o666)).inode_id
    await bob.open(f, wants_write=True, session=session(4))
    await alice.set_attr(f, mode=0o600)
    # bob opened it in time: his session proves it, from his client only.
    assert (await bob.sync(f, length_hint=hint(5), has_new_data=True)).file.length == 5
    stranger = world.user(1001, client="e" * 32)
    with refused(Status.ACCESS_DENIED):
        await stranger.sync(f, length_hint=hint(50), has_new_data=True)
    with refused(Status.ACCESS_DENIED):
        await stranger.append(f, 5)
    with refused(Status.ACCESS_DENIED):
        await stranger.set_attr(f, length=0, has_open_file=True)
    closed = await bob.close(f, session(4).session_id, length_hint=hint(6), has_new_data=True)
    assert closed.file.length == 6
    # Without the session a close changes nothing, and is no error: a repeat must not be refused.
    again = await bob.close(f, session(4).session_id, length_hint=hint(60), has_new_data=True)
    assert again.file.length == 6


async def test_writing_clears_suid(world, root, alice, bob):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    f = (await alice.create(d, b"f", 0o6777)).inode_id
    synced = await bob.sync(f, length_hint=hint(1), has_new_data=True, clears_suid=True)
    assert synced.mode == 0o777
    await alice.set_attr(f, mode=0o4777)
    assert (await bob.set_attr(f, length=0)).mode == 0o777


async def test_set_id_bits_that_came_back_are_not_taken_by_a_late_try(root, alice, world):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    f = (await alice.create(d, b"f", 0o4755)).inode_id
    alice.request_id, alice.is_repeat = b"r" * 16, True
    assert (await alice.sync(f, clears_suid=True)).mode == 0o755
    alice.request_id, alice.is_repeat = None, False
    await alice.set_attr(f, mode=0o4755)
    alice.request_id = b"r" * 16
    await alice.sync(f, clears_suid=True)
    assert (await root.attr(f)).mode == 0o4755


@pytest.mark.parametrize("is_later", [True, False])
async def test_of_times_that_a_program_had_set_those_set_later_elsewhere_stay(root, file, is_later):
    seen = await root.attr(file)
    if not is_later:
        await root.set_attr(file, mtime_ns=55)
    set_ns = (await root.attr(file)).ctime_ns
    if is_later:
        await root.set_attr(file, mtime_ns=55)
    times = {"mtime_ns": 7, "atime_ns": 8, "times_set_ns": set_ns}
    known = {"mtime_seen_ns": seen.mtime_ns, "atime_seen_ns": seen.atime_ns}
    found = await root.sync(file, has_new_data=True, length_hint=hint(3), **times, **known)
    assert (found.mtime_ns, found.atime_ns) == (55 if is_later else 7, 8)
    assert found.ctime_ns > set_ns


async def test_an_append_is_dated_by_its_write_once_its_bytes_are_there(root, file, autojump_clock):
    before = await root.attr(file)
    written_ns = before.ctime_ns + 1_000
    await trio.sleep(1)
    place = (await root.append(file, 5, mtime_ns=written_ns)).inode
    assert before.ctime_ns < place.mtime_ns == place.ctime_ns < written_ns
    await trio.sleep(1)
    reported = await root.sync(file, has_new_data=True, length_hint=hint(5), mtime_ns=written_ns)
    assert reported.mtime_ns == reported.ctime_ns == written_ns


async def test_an_append_at_the_first_time_there_is_has_just_that(root, file):
    place = (await root.append(file, 5, mtime_ns=-(1 << 63))).inode
    assert place.mtime_ns == -(1 << 63) and place.file.length == 5


async def test_appends_never_overlap(world, root, file, nursery):
    await root.sync(file, length_hint=hint(3), has_new_data=True)
    ranges = []

    async def append(length):
        reply = await world.user().append(file, length)
        ranges.append((reply.offset, reply.offset + length))

    for length in range(1, 21):
        nursery.start_soon(append, length)
    while len(ranges) < 20:  # noqa: ASYNC110 - two lists fill, nobody can signal
        await trio.sleep(0.01)
    ranges.sort()
    assert ranges[0][0] == 3
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    assert (await root.attr(file)).file.length == 3 + sum(range(1, 21))
    with refused(Status.INVALID_ARGUMENT):
        await root.append(file, 0)
    with refused(Status.FILE_TOO_LARGE):
        await root.append(file, MAX_FILE_LENGTH_BYTES)


async def test_append_applies_the_hint(world, root, file):
    reply = await root.append(file, 10, length_hint=hint(100))
    assert (reply.offset, reply.inode.file.length) == (100, 110)


async def test_stripe_doubles_up_to_its_size(world, root, file):
    async def extend(minimum):
        request = meta.ExtendStripeReq(inode_id=file, dyn_stripe_min=minimum)
        return (await root.call("extend_stripe", request)).inode.file.dyn_stripe

    assert [await extend(m) for m in (1, 2, 3, 2, 99)] == [1, 2, 4, 4, 4]


async def test_nameless_file_still_works(world, root, file):
    await root.unlink(ROOT, b"f")
    await root.sync(file, length_hint=hint(9), has_new_data=True)
    assert (await root.set_attr(file, length=4)).file.length == 4
    assert (await root.append(file, 1)).offset == 4
    await root.close(file, session(1).session_id)


async def test_durable_sync_waits_for_the_store(memory_world, root, file):
    world = memory_world
    await root.sync(file, length_hint=hint(9), has_new_data=True, is_durable=True)
    durable = world.engine.synced_version
    assert durable > 0
    await root.call("sync_meta", meta.SyncMetaReq())
    assert world.engine.synced_version >= durable


async def test_a_reader_reports_its_access_time_and_nothing_else(root, alice):
    f = (await root.create(ROOT, b"r", 0o604)).inode_id
    assert (await alice.sync(f, atime_ns=77)).atime_ns == 77
    assert (await alice.close(f, atime_ns=78)).atime_ns == 78
    with refused(Status.ACCESS_DENIED):
        await alice.sync(f, mtime_ns=1)
    await root.set_attr(f, mode=0o600)
    with refused(Status.ACCESS_DENIED):
        await alice.sync(f, atime_ns=79)


async def test_a_cut_that_is_cancelled_is_no_success(world, root, file, nursery):
    go = trio.Event()
    world.chunks.before_truncate = go.wait
    await root.sync(file, length_hint=hint(1000), has_new_data=True)
    loops = await nursery.start(run_loops, world)
    outcomes = []

    async def truncate():
        with refused(Status.SHUTTING_DOWN):
            await root.set_attr(file, length=10)
        outcomes.append("refused")

    nursery.start_soon(truncate)
    await world.wait_quiet()
    loops.cancel()
    await world.wait_quiet()
    assert outcomes == ["refused"]
    go.set()
    assert (await root.set_attr(file, length=10)).file.truncate_pending is False


async def run_loops(world, *, task_status):
    async with trio.open_nursery() as nursery:
        await nursery.start(world.meta.run)
        task_status.started(nursery.cancel_scope)


@pytest.mark.parametrize("is_opened", [False, True])
async def test_cutting_takes_set_id_bits_also_from_the_owner(world, root, is_opened):
    file = (await root.create(ROOT, b"f", 0o600)).inode_id
    await root.set_attr(file, uid=1000, gid=1000)
    cases = [(0o6755, (1000,), 0o755), (0o2744, (1000,), 0o2744), (0o6744, (), 0o744)]
    for number, (mode, groups, expected) in enumerate(cases):
        owner = world.user(1000, 999, groups)
        await root.set_attr(file, mode=mode)
        if is_opened:
            await owner.open(file, wants_write=True, is_truncate=True, session=session(2 + number))
        else:
            await owner.set_attr(file, length=0)
        assert (await root.attr(file)).mode == expected
        await root.set_attr(file, mode=mode)
        await root.set_attr(file, length=5)
        assert (await root.attr(file)).mode == mode
