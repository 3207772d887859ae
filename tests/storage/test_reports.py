# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""What a node tells the manager of its targets, besides their states."""

import pytest
import trio

from fs.schema import services
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status
from fs.storage import resync
from fs.storage.local_state import Hold
from fs.storage.rate_limit import RateLimit

from .cluster import CHUNK, content, open_caller, open_cluster


def report(cluster, node_id):
    (one,) = cluster.nodes[node_id].storage.report()
    return one


async def offline(client, node_id, **flags):
    request = pb.OfflineTargetReq(target_id=100 + node_id, **flags)
    await client.channel(node_id).call(services.STORAGE_OFFLINE_TARGET, request)


async def test_the_progress_of_a_resync_is_reported(mock_clock, monkeypatch):
    monkeypatch.setattr(resync, "PAGE_CHUNK_COUNT", 4)
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for index in range(20):
            await client.write(0, b"x" * CHUNK, index)
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        for index in range(10):
            await client.write(0, b"y" * CHUNK, index)
        await trio.sleep(2)  # space is measured now and then
        assert not report(cluster, 1).HasField("resync")
        cluster.nodes[1].storage._resync._rate = RateLimit(2 * CHUNK)
        await cluster.start_node(2)
        await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
        seen = []
        while cluster.states()[2] == "SYNCING":
            found = report(cluster, 1)
            if found.HasField("resync"):
                seen.append(found.resync)
            await trio.sleep(0.5)
        last = seen[-1]
        assert (last.target_id, last.chain_version) == (102, cluster.history[-2].chain_version)
        assert 0 < last.chunks_done <= last.chunks_total
        assert last.bytes_total == 20 * CHUNK
        assert 0 < last.bytes_done <= last.bytes_total
        etas = [r.elapsed_s + r.eta_s for r in seen if r.eta_s]
        assert etas
        assert seen[0].chunks_done < last.chunks_done
        # 10 chunks at 2 a second, whatever else was compared.
        assert 4 <= last.elapsed_s <= 7
        await cluster.wait_all_serving()
        assert not report(cluster, 1).HasField("resync")
        assert content(cluster, 2, 3) == content(cluster, 1, 3)


async def test_a_failed_disk_is_named(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"good")
        assert report(cluster, 2).trouble == ""

        def fail(_name):
            raise FsError(Status.IO_ERROR, "sector 7")

        cluster.nodes[2].disk.on_step = fail
        await client.write(0, b"better")
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        trouble = report(cluster, 2).trouble
        assert trouble.startswith("broken")
        assert "sector 7" in trouble


async def test_put_offline_by_an_operator_it_stays_so_over_restarts(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        await offline(client, 2)
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        for power_loss in (False, True):
            await cluster.nodes[2].kill()
            if power_loss:
                cluster.nodes[2].disk.power_loss(cluster.random)
            await cluster.start_node(2)
            await trio.sleep(3)
            assert cluster.states() == {1: "SERVING", 2: "OFFLINE"}
            assert cluster.nodes[2].target.hold is Hold.REQUESTED
            assert report(cluster, 2).trouble
        await client.write(0, b"two")
        await offline(client, 2, is_released=True)
        await cluster.wait_all_serving()
        assert report(cluster, 2).trouble == ""
        assert content(cluster, 2) == content(cluster, 1) == (2, 0, b"two")
        await cluster.nodes[2].kill()
        await cluster.start_node(2)
        await cluster.wait_all_serving()


@pytest.mark.slow
async def test_a_slow_disk_is_told(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        disk = cluster.nodes[2].target.disk
        cluster.nodes[2].disk.is_quick = lambda: False
        real, pause_s = disk.calls._run_blocking, [0.0]

        async def paused(function, *arguments):
            await trio.sleep(pause_s[0])
            return await real(function, *arguments)

        disk.calls._run_blocking = paused
        for slow_s in (0.001, 0.5):
            pause_s[0] = slow_s
            began_s = trio.current_time()
            while trio.current_time() - began_s < 40:
                await client.write(0, b"x")
                await trio.sleep(0.2)
            assert report(cluster, 2).is_slow is (slow_s > 0.1)
        assert not report(cluster, 1).is_slow
        assert await client.read(node_id=2) == b"x"


@pytest.mark.slow
async def test_sparse_groups_give_their_space_back(mock_clock, monkeypatch):
    monkeypatch.setattr("fs.storage.storage.COMPACT_INTERVAL_S", 5.0)
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        cluster.nodes[1].engine._space._at_hand_bytes_max = 0
        for index in range(600):
            await client.write(0, b"x" * CHUNK, index)
        for index in range(600):
            if index % 20:
                await client.remove(index)
        await cluster.nodes[1].target.disk.run(cluster.nodes[1].engine.sync)
        await trio.sleep(40)
        space = cluster.nodes[1].engine.space()
        assert space.used_bytes == 30 * CHUNK
        assert space.allocated_bytes < 300 * CHUNK < 600 * CHUNK
        assert await client.read(20) == b"x" * CHUNK
