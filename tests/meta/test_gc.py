"""Garbage collection and file sessions: nothing goes too early, everything goes in the end."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.admin.gc_pause import pause_until, paused_until_ns
from fs.meta import gc, records
from fs.meta.check import check
from fs.meta.ops.retire import empty_tree
from fs.runtime.tracing import Tracer
from fs.runtime.until_wait import begin_without_task
from fs.schema.ids import GC_ROOT_INODE_ID, ROOT_INODE_ID
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import IdempotencyRecordPb
from fs.schema.status import FsError, Status
from tests.meta.harness import CALL, ROOT, hint, outside_any_task, refused, session

YEAR_NS = 365 * 86_400 * 10**9


async def keys(world, prefix):
    tr = world.engine.transaction()
    return [key for key, _ in await tr.get_range(prefix, prefix + b"\xff" * 40)]


async def collect_all(world):
    """Run the collector until nothing more is due."""
    while await world.meta.gc.step():
        assert await check(world.engine) == []


async def test_a_removed_file_goes_after_the_delay(world, root, autojump_clock):
    f = await root.create(ROOT, b"f")
    world.chunks.lengths[f.inode_id] = 10
    request = meta.SetXattrReq(inode_id=f.inode_id, name=b"user.x", value=b"v")
    await root.call("set_xattr", request)
    await root.unlink(ROOT, b"f")
    await trio.sleep(59)
    await world.meta.gc.step()
    assert (await root.open(f.inode_id, wants_read=True)).nlink == 0
    await trio.sleep(2)
    await collect_all(world)
    assert world.chunks.removed == [f.inode_id]
    with refused(Status.STALE, "ESTALE"):
        await root.open(f.inode_id, wants_read=True)
    assert not await keys(world, b"GC") and not await keys(world, b"XATR")


async def test_any_number_of_attributes_and_sessions_is_removed(world, root, autojump_clock):
    """Row by row they would be more than a transaction may change,
    and nothing else would ever be removed.
    """
    removed = [
        (await root.create(ROOT, name)).inode_id for name in (b"few", b"a", b"b", b"c", b"d")
    ]
    directory = (await root.mkdir(ROOT, b"dir")).inode_id
    await root.open(directory, wants_read=True, session=session(1, is_write=False))
    for inode_id in removed:
        request = meta.SetXattrReq(inode_id=inode_id, name=b"user.x", value=b"v")
        await root.call("set_xattr", request)
    for start in range(0, 8000, 2000):
        for inode_id in removed[1:]:
            tr = world.engine.transaction()
            for number in range(start, start + 2000):
                tr.set(records.xattr_key(inode_id, b"user.%d" % number), b"")
            await tr.commit()
        tr = world.engine.transaction()
        for number in range(start, start + 5000):
            tr.set(records.file_session_prefix(directory) + b"%032x" % number, b"")
        await tr.commit()
    for name in (b"few", b"a", b"b", b"c", b"d"):
        await root.unlink(ROOT, name)
    await root.remove_tree(ROOT, b"dir")
    await trio.sleep(61)
    while await world.meta.gc.step():
        pass
    for prefix in (b"GC", b"XATR", b"INOS"):
        assert not await keys(world, prefix)


async def test_an_open_file_stays_until_it_is_closed(world, root, autojump_clock):
    f = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    await root.unlink(ROOT, b"f")
    for _ in range(20):
        await trio.sleep(30)
        await collect_all(world)
    assert (await root.attr(f.inode_id)).nlink == 0
    await root.close(f.inode_id, session(1).session_id)
    await trio.sleep(30)
    await collect_all(world)
    with refused(Status.STALE):
        await root.attr(f.inode_id)


async def test_a_removed_tree_takes_its_sessions_along(world, root, autojump_clock):
    """Found by tests/meta/fuzz.py: the records of the sessions stayed."""
    d = await root.mkdir(ROOT, b"d")
    await root.open(d.inode_id, wants_read=True, session=session(1, is_write=False))
    await root.mkdir(d.inode_id, b"below")
    await root.remove_tree(ROOT, b"d")
    await trio.sleep(61)
    await collect_all(world)
    assert not await keys(world, b"INOS")


async def test_storage_that_stays_away_loses_nothing(world, root, autojump_clock):
    f = await root.create(ROOT, b"f")
    await root.unlink(ROOT, b"f")
    world.chunks.error = FsError(Status.CHAIN_UNAVAILABLE, "all dead")
    await trio.sleep(61)
    await collect_all(world)
    # The inode is gone, so that nobody opens a file whose chunks go; the record stays.
    with refused(Status.STALE):
        await root.attr(f.inode_id)
    assert await keys(world, b"GCFI")
    world.chunks.error = None
    world.meta = world.new_meta()
    await trio.sleep(11)
    await collect_all(world)
    assert world.chunks.removed == [f.inode_id] and not await keys(world, b"GC")


async def test_other_kinds_of_inodes_go_too(world, root, autojump_clock):
    await root.mkdir(ROOT, b"d")
    await root.symlink(ROOT, b"l", b"x")
    await root.rmdir(ROOT, b"d")
    await root.unlink(ROOT, b"l")
    await trio.sleep(61)
    await collect_all(world)
    inodes = await keys(world, b"INOD")
    assert len(inodes) == 2
    assert {records.unpack_id(key[4:]) for key in inodes} == {
        ROOT_INODE_ID,
        GC_ROOT_INODE_ID,
    }
    assert world.chunks.removed == []


@pytest.mark.slow
async def test_a_tree_of_thousands(world, root, autojump_clock):
    top = (await root.mkdir(ROOT, b"t")).inode_id
    kept = await root.create(ROOT, b"kept")
    await root.link(kept.inode_id, top, b"other-name")
    file_count = 0
    for number in range(12):
        sub = (await root.mkdir(top, b"%d" % number)).inode_id
        for inner in range(100):
            await root.create(sub, b"%d" % inner)
            file_count += 1
        for inner in range(5):
            await root.mkdir(sub, b"d%d" % inner)
    await root.remove_tree(ROOT, b"t")
    assert await root.names(ROOT) == [b"kept"]
    assert await check(world.engine) == []
    assert await world.meta.gc.step() > 0
    assert await check(world.engine) == []
    await collect_all(world)
    assert (await root.attr(kept.inode_id)).nlink == 1
    assert world.chunks.removed == []
    await trio.sleep(61)
    await collect_all(world)
    assert len(set(world.chunks.removed)) == len(world.chunks.removed) == file_count
    assert len(await keys(world, b"INOD")) == 3


async def removed_tree(world, root, names):
    """Return the key of the record of a removed directory with these names."""
    d = (await root.mkdir(ROOT, b"d")).inode_id
    for name in names:
        await root.create(d, name)
    await root.remove_tree(ROOT, b"d")
    (key,) = await keys(world, records.GC_DIRECTORY)
    return key


async def test_a_removed_directory_is_emptied_from_where_the_last_batch_has_ended(
    world, root, autojump_clock, monkeypatch
):
    """A store passes over all that was deleted before,
    and that is the more the more has been emptied.
    """
    await removed_tree(world, root, [b"%d" % number for number in range(7)])
    places = []

    async def noted(tr, ctx, key, count, after):
        places.append(after)
        return await empty_tree(tr, ctx, key, count, after)

    monkeypatch.setattr(gc, "EMPTY_COUNT_MAX", 2)
    monkeypatch.setattr(gc, "empty_tree", noted)
    for _ in range(4):
        await world.meta.gc._collect(world.meta.gc.lanes[1], 0.0)
    assert places == [b"", b"1", b"3", b"5"]
    assert not await keys(world, b"GCD") and not await keys(world, b"DENT")
    assert await check(world.engine) == []


@pytest.mark.parametrize("after", [b"", b"a", b"b", b"c"])
async def test_a_removed_directory_stays_until_nothing_is_left_in_it(world, root, after):
    """Wherever it was looked first."""
    key = await removed_tree(world, root, [b"a", b"b", b"c"])
    left, ctx = 3, world.meta.service.own_context()

    async def empty(place):
        tr = world.engine.transaction()
        emptied = await empty_tree(tr, ctx, key, 64, place)
        await tr.commit()
        return emptied

    first = await empty(after)
    left -= len([name for name in (b"a", b"b", b"c") if name > after])
    assert first == (4 if not after else 3 - left, b"")
    assert len(await keys(world, b"DENT")) == left
    assert bool(await keys(world, records.GC_DIRECTORY)) == bool(left)
    if left:
        assert await empty(b"") == (left + 1, b"")
    assert not await keys(world, b"DENT") and not await keys(world, records.GC_DIRECTORY)


async def test_two_collectors_share_the_work(world, root, autojump_clock, nursery):
    for number in range(100):
        await root.create(ROOT, b"%d" % number)
        await root.unlink(ROOT, b"%d" % number)
    await trio.sleep(61)
    other = world.new_meta()
    async with trio.open_nursery() as both:
        both.start_soon(world.meta.gc.step)
        both.start_soon(other.gc.step)
    await collect_all(world)
    assert len(set(world.chunks.removed)) == 100 and not await keys(world, b"GC")


async def test_sessions_of_dead_clients(world, root, autojump_clock):
    living, dead = world.user(client="a" * 32), world.user(client="d" * 32)
    world.mgmtd.client_ids = ["a" * 32]
    f = (await dead.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    g = (await living.create(ROOT, b"g", wants_write=True, session=session(2))).inode_id
    await dead.sync(f, length_hint=hint(10), has_new_data=True)
    world.chunks.lengths[f] = 4096  # it wrote more than it reported
    await trio.sleep(59)
    assert await world.meta.sessions.step() == 0  # too young to be judged
    await trio.sleep(2)
    world.mgmtd.is_complete = False
    assert await world.meta.sessions.step() == 0
    world.mgmtd.is_complete = True
    world.chunks.error = FsError(Status.CHAIN_UNAVAILABLE, "all dead")
    assert await world.meta.sessions.step() == 0
    world.chunks.error = None
    before = (await root.attr(f)).file
    assert await world.meta.sessions.step() == 1
    after = (await root.attr(f)).file
    assert after.length == 4096 and after.data_ver > before.data_ver
    assert (await root.attr(g)).file.length == 0
    assert len(await keys(world, b"INOS")) == 1
    assert await world.meta.sessions.step() == 0


@pytest.mark.parametrize("is_settled", [False, True])
async def test_prune_sessions_of_the_own_client_only(world, root, is_settled, autojump_clock):
    stranger = world.user(client="e" * 32)
    f = (await root.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    request = meta.PruneSessionsReq(is_settled=is_settled)
    request.sessions.add(inode_id=1 << 40, session_id=session(8).session_id)  # the file is gone
    request.sessions.add(inode_id=f, session_id=session(1).session_id)
    request.sessions.add(inode_id=f, session_id=session(9).session_id)
    await stranger.call("prune_sessions", request)
    assert len(await keys(world, b"INOS")) == 1
    await root.call("prune_sessions", request)
    assert not await keys(world, b"INOS")


async def test_settled_sessions_end_without_asking_the_chains(world, root, autojump_clock):
    f = (await root.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    before = await root.attr(f)
    world.chunks.error = FsError(Status.IO_ERROR, "nobody is to be asked")
    request = meta.PruneSessionsReq(is_settled=True)
    request.sessions.add(inode_id=f, session_id=session(1).session_id)
    await root.call("prune_sessions", request)
    assert not await keys(world, b"INOS")
    assert await root.attr(f) == before
    request.sessions.add(inode_id=f, session_id="no session")
    with refused(Status.INVALID_ARGUMENT):
        await root.call("prune_sessions", request)


async def test_ending_many_sessions_one_by_one_does_not_hold_up_everybody_else(
    world, root, autojump_clock
):
    request = meta.PruneSessionsReq(caller=root.caller())
    for number in range(3):
        f = await root.create(ROOT, b"%d" % number)
        kept = session(number, is_write=False)  # the chains need not be asked
        await root.open(f.inode_id, wants_read=True, session=kept)
        request.sessions.add(inode_id=f.inode_id, session_id=kept.session_id)
    rest = outside_any_task(begin_without_task, world.meta.service.prune_sessions(CALL, request))
    assert len(await keys(world, b"INOS")) == 3
    await rest
    assert not await keys(world, b"INOS")


async def pass_time(world, seconds):
    """Let a collector that runs all the time see it pass."""
    for _ in range(round(seconds / 30)):
        await trio.sleep(30)
        await world.meta.gc.step()


async def test_remembered_outcomes_are_forgotten(world, root, autojump_clock):
    await world.meta.gc.step()
    for number in range(300):
        await root.create(ROOT, b"%d" % number)
        await root.unlink(ROOT, b"%d" % number)
    assert len(await keys(world, b"IDEM")) == 600 > gc.FORGET_COUNT
    await pass_time(world, 1800)
    assert len(await keys(world, b"IDEM")) == 600
    await root.mkdir(ROOT, b"d")
    await root.rmdir(ROOT, b"d")
    await pass_time(world, 300)  # a step goes on as long as most of what it finds is old
    assert len(await keys(world, b"IDEM")) == 2


async def test_a_clock_that_is_ahead_forgets_no_outcome(world, root, autojump_clock):
    """Found by seed 1320029: a removal that was done once was NOT_FOUND for its repeat
    at another service.
    """
    await world.meta.gc.step()
    await root.create(ROOT, b"f")
    root.request_id = b"R" * 16
    await root.unlink(ROOT, b"f")
    root.is_repeat = True
    for ahead_s in (3600, 365 * 86_400):
        world.meta = world.new_meta()
        world.runtime.clock.wall_offset_ns += ahead_s * 10**9
        await pass_time(world, 900)
        await root.unlink(ROOT, b"f")
    await pass_time(world, 300)
    assert not await keys(world, b"IDEM")


async def test_services_count_the_time_of_outcomes_together(world, root, autojump_clock):
    """However many they are, it passes no faster;
    who has not looked for long leaves it open, which the next one fills in.
    """
    services = [world.meta, world.new_meta(), world.new_meta()]
    for _ in range(120):
        await trio.sleep(5)
        for service in services:
            await service.gc.step()
    ticks = {service.service.ticks.known() for service in services}
    assert ticks == {10}
    await trio.sleep(130)
    assert world.meta.service.ticks.known() == 0
    await root.create(ROOT, b"f")
    for _ in range(2):
        await world.meta.gc.step()
        assert await stored_ticks(world) == [11]


async def stored_ticks(world):
    tr = world.engine.transaction()
    rows = await tr.get_range(records.IDEMPOTENCY, records.IDEMPOTENCY + b"\xff")
    return [IdempotencyRecordPb.FromString(value).tick for _, value in rows]


async def test_the_loops_run_by_themselves(world, root, autojump_clock, nursery):
    await nursery.start(world.meta.run)
    dead = world.user(client="d" * 32)
    f = (await dead.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    await root.unlink(ROOT, b"f")
    await trio.sleep(200)
    assert world.chunks.removed == [f]
    nursery.cancel_scope.cancel()


async def test_an_unfinishable_truncation_holds_nothing_up(world, root, autojump_clock):
    f = (await root.create(ROOT, b"f")).inode_id
    await root.sync(f, length_hint=hint(100), has_new_data=True)
    world.chunks.error = FsError(Status.CHAIN_UNAVAILABLE, "all dead")
    with refused(Status.CHAIN_UNAVAILABLE):
        await root.set_attr(f, length=1)
    await pass_time(world, 2200)
    assert not await keys(world, b"IDEM")
    assert await keys(world, b"TRUN")
    world.chunks.error = None
    await world.meta.gc.step()
    assert not await keys(world, b"TRUN")


async def test_a_clock_that_was_ahead_puts_nothing_off_for_long(world, root, autojump_clock):
    f, t = await root.create(ROOT, b"f"), await root.create(ROOT, b"t")
    await root.set_attr(t.inode_id, length=10)
    world.chunks.lengths[t.inode_id] = 10
    await root.mkdir(ROOT, b"d")
    await root.create((await root.lookup(ROOT, b"d")).inode_id, b"below")
    world.runtime.clock.wall_offset_ns += YEAR_NS
    await root.unlink(ROOT, b"f")
    await root.remove_tree(ROOT, b"d")
    world.chunks.error = FsError(Status.CHAIN_UNAVAILABLE, "all dead")
    with refused(Status.CHAIN_UNAVAILABLE):
        await root.set_attr(t.inode_id, length=5)
    world.chunks.error = None
    world.meta = world.new_meta()  # somebody whose clock is right
    await collect_all(world)
    assert world.chunks.removed == []  # readers elsewhere get their delay
    await trio.sleep(61)
    await collect_all(world)
    await trio.sleep(61)
    await collect_all(world)
    assert f.inode_id in world.chunks.removed and len(world.chunks.removed) == 2
    assert not await keys(world, b"GC") and not await keys(world, b"TRUN")


async def test_a_clock_that_is_set_back_does_not_stop_collection(world, root, autojump_clock):
    f = await root.create(ROOT, b"f")
    world.runtime.clock.wall_offset_ns -= YEAR_NS
    before = (await root.create(ROOT, b"g")).ctime_ns
    await root.unlink(ROOT, b"f")
    await trio.sleep(2 * 61)
    await collect_all(world)
    assert world.chunks.removed == [f.inode_id]
    assert f.ctime_ns < before < (await root.create(ROOT, b"h")).ctime_ns


async def test_removals_begin_traces(world, root, autojump_clock):
    ended = []
    clock, randomness = world.runtime.clock, world.runtime.random
    world.meta.gc.tracer = Tracer(clock, randomness, sample_rate=1.0, sink=ended.append)
    f = await root.create(ROOT, b"f")
    world.chunks.lengths[f.inode_id] = 10
    await root.unlink(ROOT, b"f")
    await trio.sleep(61)
    await collect_all(world)
    assert world.chunks.removed == [f.inode_id]
    removal = next(span for span in ended if span.name == "remove files")
    assert removal.attributes == {"files": 1}
    inside = [span.name for span in ended if span.parent_id == removal.span_id]
    called = {name for name in inside if name.startswith("Kv.")}  # where the store is a process
    assert inside and set(inside) - called == {"kv commit"}


async def test_a_pause_holds_up_what_cannot_be_taken_back_and_ends_by_itself(
    world, root, autojump_clock
):
    f = await root.create(ROOT, b"f")
    await root.mkdir(ROOT, b"d")
    await root.remove_tree(ROOT, b"d")
    await root.unlink(ROOT, b"f")
    until_ns = world.runtime.clock.wall_ns() + 3600 * 10**9
    await pause_until(world.engine, world.runtime, until_ns)
    assert await paused_until_ns(world.engine) == until_ns
    before = await keys(world, b"GC")
    await trio.sleep(3000)
    assert await world.meta.gc.step() == 0
    assert await keys(world, b"GC") == before
    assert world.meta.gc.lanes[1].due[records.GC_FILE].lag_s > 2900
    await trio.sleep(601)
    await collect_all(world)
    assert world.chunks.removed == [f.inode_id] and not await keys(world, b"GC")
    await pause_until(world.engine, world.runtime, until_ns + 10**15)
    await root.create(ROOT, b"g")
    await root.unlink(ROOT, b"g")
    await trio.sleep(100)
    assert await world.meta.gc.step() == 0
    await pause_until(world.engine, world.runtime, 0)
    await collect_all(world)
    assert len(world.chunks.removed) == 2
