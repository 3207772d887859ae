# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""A process that is stopped for longer than its lease in the middle of a request:
it wakes up, and must not answer.

The pause lies in the last blocking step of each way, where a check before it would not help.
"""

import pytest
import trio

from fs.schema import services
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status

from .cluster import CHAIN, INODE, content, open_caller, open_cluster


class Stopped:
    """While it is entered, every blocking call of a node's disk, and every write on the event loop,
    ends after the lease has run out.
    """

    def __init__(self, cluster, node_id):
        self.cluster, self.node = cluster, cluster.nodes[node_id]
        self.disk = self.node.target.disk
        self.real = self.disk.calls._run_blocking
        self.real_write = self.disk.write_at_once

    async def __aenter__(self):
        self.cluster.is_frozen = True
        self.cluster.cut_off.add(self.node.node_id)

        async def stop_then_wake(function, *arguments):
            done = await self.real(function, *arguments)
            self.node.lease.until_s = trio.current_time() - 10.0
            return done

        def write_then_stop(*arguments):
            done = self.real_write(*arguments)
            self.node.lease.until_s = trio.current_time() - 10.0
            return done

        self.disk.calls._run_blocking = stop_then_wake
        self.disk.write_at_once = write_then_stop

    async def __aexit__(self, *_exc):
        self.disk.calls._run_blocking, self.disk.write_at_once = self.real, self.real_write
        self.cluster.cut_off.clear()
        self.cluster.is_frozen = False


async def status_of(function, *arguments, **options):
    with pytest.raises(FsError) as caught:
        await function(*arguments, **options)
    return caught.value.status


def reference(cluster):
    return {"chain_id": CHAIN, "chain_version": cluster.chain.chain_version}


@pytest.mark.parametrize("node_count", [1, 2])
async def test_no_write_is_acknowledged(mock_clock, node_count):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        await client.write(0, b"old")
        request = client.write_request(0, b"new")
        async with Stopped(cluster, 1):
            assert await status_of(client.attempt, request, b"new") is Status.OUTCOME_UNKNOWN
        # It may have happened, and has; then it happened once.
        assert (await client.update(request, b"new")).update_ver == 2
        assert content(cluster, 1) == (2, 0, b"new")


async def test_no_bytes_are_served(mock_clock, monkeypatch):
    monkeypatch.setattr("fs.storage.read_path.INLINE_BYTES_MAX", 0)
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x" * 60_000)
        async with Stopped(cluster, 2):
            status = await status_of(client.read_attempt, 2, [(0, 0, 60_000)])
            assert status is Status.LEASE_EXPIRED


async def test_no_cached_bytes_are_served(mock_clock):
    """Nothing blocks there: the process is stopped right behind the read."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"x" * 60_000)
        node = cluster.nodes[2]
        disk = node.target.disk
        real = disk.run_inline

        def read_then_stop(function, *arguments):
            done = real(function, *arguments)
            node.lease.until_s = trio.current_time() - 10.0
            return done

        async with Stopped(cluster, 2):
            disk.run_inline = read_then_stop
            status = await status_of(client.read_attempt, 2, [(0, 0, 60_000)])
            assert status is Status.LEASE_EXPIRED


async def test_no_repeat_is_answered(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        request = client.write_request(0, b"one")
        await client.attempt(request, b"one")
        cluster.is_frozen = True
        cluster.cut_off.add(1)
        cluster.nodes[1].lease.until_s = 0.0
        assert await status_of(client.attempt, request, b"one") is Status.LEASE_EXPIRED


async def test_no_length_is_told(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        query = pb.QueryLastChunkReq()
        query.queries.add(inode_id=INODE, **reference(cluster))
        async with Stopped(cluster, 1):
            reply = await client.channel(1).call(services.STORAGE_QUERY_LAST_CHUNK, query)
            assert [r.status for r in reply.message.results] == [Status.LEASE_EXPIRED]
            assert not reply.message.results[0].has_chunk


@pytest.mark.parametrize("inode_id", [INODE, INODE + 1])
async def test_no_removal_is_acknowledged(mock_clock, inode_id):
    """Also not that of nothing: by now there may be something."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        request = pb.RemoveChunksReq()
        request.ranges.add(inode_id=inode_id, **reference(cluster))
        async with Stopped(cluster, 1):
            reply = await client.channel(1).call(services.STORAGE_REMOVE_CHUNKS, request)
            (result,) = reply.message.results
            assert result.status in {Status.LEASE_EXPIRED, Status.OUTCOME_UNKNOWN}
            assert result.has_more


async def test_no_version_is_named(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        query = pb.QueryVersionsReq()
        query.queries.add(inode_id=INODE, **reference(cluster))
        async with Stopped(cluster, 2):
            cluster.nodes[2].lease.until_s = trio.current_time() + 0.0001
            await trio.sleep(0.01)
            reply = await client.channel(2).call(services.STORAGE_QUERY_VERSIONS, query)
            assert [r.status for r in reply.message.results] == [Status.LEASE_EXPIRED]


async def test_nothing_is_called_durable(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        request = pb.SyncChainsReq(chains=[pb.ChainRefPb(**reference(cluster))])
        async with Stopped(cluster, 2):
            call = client.channel(2).call
            status = await status_of(call, services.STORAGE_SYNC_CHAINS, request)
            assert status is Status.LEASE_EXPIRED
