# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""A failed disk comes back by itself, when that is sound and makes sense."""

import itertools
from functools import partial

import pytest
import trio

from fs.chunkengine.books import StuckError
from fs.schema import services
from fs.schema.ids import TargetId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.routing import LocalState
from fs.schema.status import FsError, Status
from fs.storage import failed_disks
from fs.storage.local_state import Hold

from .cluster import content, open_caller, open_cluster

pytestmark = pytest.mark.thorough

LONG_S = 60.0


def fill(node, *, steps=("meta_sync",), status=Status.NO_SPACE, has_room=False):
    """Let a disk refuse these operations; with `has_room`, of what it has."""

    def refuse(name):
        if name in steps:
            raise FsError(status, f"injected into {name}")

    node.disk.on_step = refuse
    if not has_room:
        node.disk.capacity_bytes = node.disk.reserved_bytes()


def empty(node):
    node.disk.on_step = None
    node.disk.capacity_bytes = 1 << 40


async def wait_failed(cluster, node_ids):
    with trio.fail_after(LONG_S):
        while not all(disk_of(cluster, n).is_failed for n in node_ids):  # noqa: ASYNC110 - polls
            await trio.sleep(0.05)


def disk_of(cluster, node_id):
    return cluster.nodes[node_id].target.disk


@pytest.mark.parametrize("step", ["meta_sync", "meta_write"])
@pytest.mark.parametrize("full", [1, 2, 3])
async def test_a_full_disk_serves_again_when_there_is_room(mock_clock, full, step):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        node, engine = cluster.nodes[full], cluster.nodes[full].engine
        fill(node, steps=(step,))
        await wait_failed(cluster, [full])
        await client.write(0, b"during")
        await client.write(0, b"new", 1)
        await trio.sleep(LONG_S)
        assert cluster.states()[full] == "OFFLINE"
        assert node.engine is engine
        empty(node)
        await cluster.wait_all_serving()
        assert node.engine is not engine
        assert node.incarnation == 1
        await client.write(0, b"after.")
        for index, wanted in ((0, b"after."), (1, b"new")):
            assert await client.read(index, node_id=full) == wanted
            assert len({content(cluster, n, index) for n in cluster.nodes}) == 1
        assert not disk_of(cluster, full).is_failed
        with pytest.raises(FsError, match="NOT_SERVING"):
            engine.sync()


async def test_a_whole_chain_of_full_disks_comes_back_with_all_it_acknowledged(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for round_number in range(3):
            for index in range(5):
                await client.write(0, b"%d-%d" % (round_number, index), index)
            for node in cluster.nodes.values():
                fill(node)
            await wait_failed(cluster, cluster.nodes)
            await trio.sleep(LONG_S / 2)
            assert not cluster.chain.serving
            for node_id in cluster.random.sample(sorted(cluster.nodes), 3):
                empty(cluster.nodes[node_id])
                await trio.sleep(cluster.random.random() * 5)
            await cluster.wait_all_serving()
            for index in range(5):
                assert await client.read(index) == b"%d-%d" % (round_number, index)
                assert len({content(cluster, n, index) for n in cluster.nodes}) == 1
        assert [node.incarnation for node in cluster.nodes.values()] == [1, 1, 1]


async def test_what_came_back_survives_a_power_loss(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"kept")
        fill(cluster.nodes[2])
        await wait_failed(cluster, [2])
        await client.write(0, b"newer")
        empty(cluster.nodes[2])
        await cluster.wait_all_serving()
        await trio.sleep(15)  # flushed
        await cluster.nodes[2].kill()
        cluster.nodes[2].disk.power_loss(cluster.random)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert content(cluster, 2) == content(cluster, 1) == (2, 0, b"newer")


@pytest.mark.parametrize(
    ("step", "status"),
    [
        ("flush", Status.NO_SPACE),  # of data: nobody knows which pages the kernel has dropped
        ("flush", Status.IO_ERROR),
        ("meta_sync", Status.IO_ERROR),
        ("meta_write", Status.IO_ERROR),
    ],
)
async def test_after_any_other_failure_it_is_tried_later(mock_clock, step, status):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        await cluster.nodes[2].target.disk.sync()
        await client.write(0, b"two")
        engine = cluster.nodes[2].engine
        fill(cluster.nodes[2], steps=(step,), status=status, has_room=True)
        await wait_failed(cluster, [2])
        empty(cluster.nodes[2])
        await trio.sleep(failed_disks.RECHECK_PAUSE_S_MIN - 5)
        assert cluster.states() == {1: "SERVING", 2: "OFFLINE"}
        assert cluster.nodes[2].engine is engine
        await cluster.wait_all_serving()
        assert cluster.nodes[2].incarnation == 1
        assert content(cluster, 2) == content(cluster, 1) == (2, 0, b"two")
        await cluster.nodes[2].target.disk.sync()
        await cluster.nodes[2].kill()
        cluster.nodes[2].disk.power_loss(cluster.random)
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert content(cluster, 2) == (2, 0, b"two")


async def test_a_disk_that_keeps_failing_is_tried_ever_more_seldom(mock_clock, monkeypatch):
    monkeypatch.setattr(failed_disks, "RECHECK_PAUSE_S_MIN", 4.0)
    monkeypatch.setattr(failed_disks, "RECHECK_PAUSE_S_MAX", 30.0)
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        node, failed_s = cluster.nodes[2], []

        def refuse(name):
            if name == "flush" and node.storage is not None and not disk_of(cluster, 2).is_failed:
                failed_s.append(trio.current_time())
                raise FsError(Status.IO_ERROR, "injected")

        node.disk.on_step = refuse
        for count in range(100):
            await client.write(0, b"%d" % count)
            await trio.sleep(1)
        pauses = [b - a for a, b in itertools.pairwise(failed_s)]
        assert 3 <= len(pauses) <= 5
        assert pauses[-1] > 1.5 * pauses[0]
        empty(node)
        await cluster.wait_all_serving()
        assert content(cluster, 2) == content(cluster, 1)


async def test_a_disk_that_was_refused_at_the_start_comes_when_it_is_put_right(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        node = cluster.nodes[3]
        await node.kill()
        node.refusal = FsError(Status.FOREIGN_DISK, "/disk: not mounted, mount it")
        await cluster.start_node(3)
        await client.write(0, b"two")
        (report,) = node.storage.report()
        assert report.local_state == LocalState.OFFLINE
        assert "not mounted, mount it" in report.trouble
        assert [disk.is_failed for disk in node.storage.report_disks()] == [True]
        with pytest.raises(FsError, match="not mounted"):
            await client.channel(3).call(
                services.STORAGE_LIST_CHUNKS, pb.ListChunksReq(target_id=103)
            )
        await trio.sleep(LONG_S)
        assert cluster.states() == {1: "SERVING", 2: "SERVING", 3: "OFFLINE"}
        node.refusal = None
        with trio.fail_after(failed_disks.TRY_PAUSE_S + 5):
            await cluster.wait_all_serving()
        assert node.incarnation == 2
        assert content(cluster, 3) == content(cluster, 1) == (2, 0, b"two")


async def test_a_later_failure_of_another_kind_counts(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        engine = cluster.nodes[2].engine
        fill(cluster.nodes[2])
        await wait_failed(cluster, [2])
        assert engine.room_after_refusal() == 0
        with pytest.raises(FsError), engine._books.poison_on_failure("a flush", is_metadata=False):
            raise FsError(Status.NO_SPACE, "of data")
        assert engine.room_after_refusal() is None


async def test_nothing_is_opened_while_somebody_is_inside(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        node, engine = cluster.nodes[2], cluster.nodes[2].engine
        node.target.inflight.enter(1)
        fill(node)
        await wait_failed(cluster, [2])
        empty(node)
        await trio.sleep(LONG_S)
        assert node.engine is engine
        node.target.disk.calls._in_place_count += 1
        node.target.inflight.leave(1)
        await trio.sleep(LONG_S)
        assert node.engine is engine
        node.target.disk.calls._in_place_count -= 1
        await cluster.wait_all_serving()
        assert node.engine is not engine


async def test_an_opening_refused_for_space_is_tried_again_after_a_pause(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        node, tries = cluster.nodes[2], []

        def refuse(name):
            if name == "meta_sync":
                tries.append(trio.current_time())
                raise FsError(Status.NO_SPACE, "injected")

        node.disk.on_step = refuse
        await wait_failed(cluster, [2])
        await trio.sleep(LONG_S)
        assert 3 < len(tries) < 8
        pauses = [b - a for a, b in itertools.pairwise(tries)]
        assert min(pauses) >= failed_disks.TRY_PAUSE_S
        empty(node)
        await cluster.wait_all_serving()
        assert content(cluster, 2) == content(cluster, 1) == (1, 0, b"one")


@pytest.mark.parametrize("step", ["flush", "meta_write"])
async def test_an_opening_refused_otherwise_is_tried_again_much_later(mock_clock, step):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        node, fired = cluster.nodes[2], []

        def refuse(name):
            if name == "meta_sync" and not fired:
                fired.append(name)
                raise FsError(Status.NO_SPACE, "injected")
            if name == step and len(fired) == 1 and node.target.disk.is_failed:
                fired.append(name)
                status = Status.NO_SPACE if step == "flush" else Status.IO_ERROR
                raise FsError(status, "injected into the opening")

        node.disk.on_step = refuse
        await wait_failed(cluster, [2])
        await trio.sleep(LONG_S)
        assert fired == ["meta_sync", step]
        assert cluster.states() == {1: "SERVING", 2: "OFFLINE"}
        assert node.target.hold is Hold.BROKEN
        await cluster.wait_all_serving()
        assert content(cluster, 2) == content(cluster, 1) == (1, 0, b"one")


async def test_a_late_call_of_the_old_engine_is_refused_and_harms_nobody(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        node, old = cluster.nodes[2], cluster.nodes[2].engine
        fill(node)
        await wait_failed(cluster, [2])
        empty(node)
        await cluster.wait_all_serving()
        disk = node.target.disk
        for late in (old.sync, partial(old.compact, 1), partial(old.notes, TargetId(102))):
            with pytest.raises(FsError, match="NOT_SERVING"):
                await disk.run(late)
        assert not disk.is_failed
        assert cluster.states() == {1: "SERVING", 2: "SERVING"}


async def test_targets_return_though_the_books_are_held_for_long_just_then(mock_clock, monkeypatch):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        refused = []

        def stuck_once(target):
            if not refused:
                refused.append(target)
                raise StuckError(Status.IO_ERROR, "a call does not return")

        monkeypatch.setattr(failed_disks, "keep_offline_if_asked", stuck_once)
        fill(cluster.nodes[2])
        await wait_failed(cluster, [2])
        empty(cluster.nodes[2])
        await cluster.wait_all_serving()
        assert refused


async def test_what_an_operator_put_offline_stays_so(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        request = pb.OfflineTargetReq(target_id=102)
        await client.channel(2).call(services.STORAGE_OFFLINE_TARGET, request)
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        node = cluster.nodes[2]
        fill(node)
        with pytest.raises(FsError, match="IO_ERROR"):
            await node.target.disk.run(node.engine.add_target, TargetId(500))
        assert node.target.hold is Hold.BROKEN
        empty(node)
        await trio.sleep(LONG_S)
        assert node.target.hold is Hold.REQUESTED
        assert node.storage.targets.target(500).hold is Hold.NONE
        request.is_released = True
        await client.channel(2).call(services.STORAGE_OFFLINE_TARGET, request)
        await cluster.wait_all_serving()


async def test_what_a_failed_flush_took_is_told_to_the_manager(mock_clock):
    """Also by the process that comes next; but not what a process left
    to the kernel when it died.
    """
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        node = cluster.nodes[1]
        await client.write(0, b"kept")
        await node.target.disk.sync()
        await client.write(0, b"lost")
        await node.kill()
        await cluster.start_node(1)
        await cluster.wait_all_serving()
        assert node.storage.report()[0].disk_loss_count == 0
        await client.write(0, b"lost again")
        fill(node, steps=("flush",), status=Status.IO_ERROR, has_room=True)
        await wait_failed(cluster, [1])
        empty(node)
        await cluster.wait_all_serving()
        assert await client.read() == b"lost"
        assert node.storage.report()[0].disk_loss_count == 1
        await node.kill()
        await cluster.start_node(1)
        assert node.storage.report()[0].disk_loss_count == 1


async def test_a_target_being_removed_does_not_come_back_with_its_disk(mock_clock):
    """The disk's own record still names it: nothing was dropped before the disk failed."""
    new = TargetId(250)
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        call, node = client.channel(1).call, cluster.nodes[1]
        await client.write(0, b"kept")
        await call(services.STORAGE_CREATE_TARGET, pb.CreateTargetReq(target_id=new))
        inflight = node.storage.targets.targets[new].inflight
        inflight.enter(1)
        await call(services.STORAGE_REMOVE_TARGET, pb.RemoveTargetReq(target_id=new))
        fill(node)
        await client.write(0, b"else")
        await wait_failed(cluster, [1])
        empty(node)
        await trio.sleep(LONG_S / 2)
        assert disk_of(cluster, 1).is_failed, "an update is still inside of a target of this disk"
        inflight.leave(1)
        await cluster.wait_all_serving()
        assert new not in {report.target_id for report in node.storage.report()}
        await trio.sleep(LONG_S / 2)
        assert node.engine.target_ids() == [101]
        await call(services.STORAGE_CREATE_TARGET, pb.CreateTargetReq(target_id=new))
        assert node.engine.target_ids() == [101, new]
