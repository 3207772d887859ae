# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""The scrub: what it finds, what it does about it, and where it goes on."""

import pytest
import trio

from fs.chunkengine.api import ChunkState
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.storage import scrub
from fs.storage.scrub import Verdict, judge

from .cluster import CHUNK, INODE, content, open_caller, open_cluster

pytestmark = pytest.mark.thorough


def chunk_id(index=0):
    return ChunkId(InodeId(INODE), index)


def state(version, checksum=1):
    return ChunkState(chunk_id(), version, 1, 5, checksum, CHUNK)


@pytest.mark.parametrize(
    ("here", "there", "verdict"),
    [
        (None, None, Verdict.NONE),
        (state(3), state(3), Verdict.NONE),
        (state(3), None, Verdict.SUCCESSOR_LACKS),
        (state(3), state(2), Verdict.SUCCESSOR_LACKS),
        (None, state(3), Verdict.WE_LACK),
        (state(2), state(3), Verdict.WE_LACK),
        (state(3), state(3, checksum=2), Verdict.CONTRADICTION),
    ],
)
def test_the_verdict(here, there, verdict):
    assert judge(here, there) is verdict


def forget(cluster, node_id, index):
    """A disk loses a chunk behind everybody's back."""
    engine, target_id = cluster.nodes[node_id].engine, TargetId(100 + node_id)
    version = engine.get(target_id, chunk_id(index)).commit_ver
    engine.prepare_remove(target_id, chunk_id(index), version=version + 1)
    engine.commit(target_id, chunk_id(index), version=version + 1, chain_version=1)


def replace(cluster, node_id, index, version, data):
    engine, target_id = cluster.nodes[node_id].engine, TargetId(100 + node_id)
    engine.prepare_write(
        target_id,
        chunk_id(index),
        version=version,
        chunk_size_bytes=CHUNK,
        offset=0,
        data=data,
        is_full_replace=True,
    )
    engine.commit(target_id, chunk_id(index), version=version, chain_version=1)


async def one_pass():
    await trio.sleep(scrub.BEGIN_AFTER_S + 30)


@pytest.mark.slow
async def test_what_a_successor_lacks_is_brought_there(mock_clock, monkeypatch):
    monkeypatch.setattr(scrub, "PAGE_CHUNK_COUNT", 3)
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for index in range(10):
            await client.write(0, b"%d" % index * 100, index)
            await client.write(0, b"!", index)
        forget(cluster, 3, 4)
        forget(cluster, 3, 9)
        replace(cluster, 3, 0, 1, b"old")
        await one_pass()
        for index in range(10):
            assert {content(cluster, n, index) for n in cluster.nodes} == {
                (2, 0, b"!" + (b"%d" % index * 100)[1:])
            }
        assert len(cluster.history) == 1
        assert sum(node.target.difference_count for node in cluster.nodes.values()) >= 3


@pytest.mark.parametrize("index", [0, 5])
async def test_who_has_less_than_his_successor_comes_back_through_resync(mock_clock, index):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"precious", index)
        await client.write(0, b"other", 1)
        forget(cluster, 1, index)
        await one_pass()
        await cluster.wait_all_serving()
        assert len(cluster.history) > 1
        for node_id in cluster.nodes:
            assert content(cluster, node_id, index) == (1, 0, b"precious")


async def test_contradicting_content_is_replaced_by_the_predecessors(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"right")
        replace(cluster, 2, 0, 1, b"wrong")
        await one_pass()
        await cluster.wait_all_serving()
        assert {content(cluster, n) for n in cluster.nodes} == {(1, 0, b"right")}
        assert len(cluster.history) > 1


@pytest.mark.thorough
async def test_under_load_nothing_differs(mock_clock, monkeypatch):
    monkeypatch.setattr(scrub, "BEGIN_AFTER_S", 0.1)
    monkeypatch.setattr(scrub, "PASS_S_MIN", 0.1)
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for count in range(300):
            index = count % 7
            if count % 5 == 4:
                await client.remove(index)
            else:
                await client.write(0, b"%d" % count, index)
        assert [node.target.difference_count for node in cluster.nodes.values()] == [0] * 3
        assert len(cluster.history) == 1


async def test_it_goes_on_where_the_last_process_stopped(mock_clock, monkeypatch):
    monkeypatch.setattr(scrub, "PAGE_CHUNK_COUNT", 2)
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        for index in range(40):
            await client.write(0, b"x" * CHUNK, index)
        # 20 pages of 128 KiB: the rate allows 64 of them in a second.
        rate = cluster.nodes[1].storage._context.section.scrub_bytes_per_s_max
        await trio.sleep(scrub.BEGIN_AFTER_S + 20 * CHUNK / rate - trio.current_time())
        seen = scrub.load_cursor(cluster.nodes[1].target)
        assert seen.pass_count == 0
        assert seen.after
        await cluster.nodes[1].kill()
        await cluster.wait_judged(1)
        await cluster.start_node(1)
        await cluster.wait_all_serving()
        read = []
        real = scrub.is_whole
        monkeypatch.setattr(
            scrub, "is_whole", lambda t, s: (read.append(s.chunk_id.index), real(t, s))[1]
        )
        await trio.sleep(scrub.BEGIN_AFTER_S + 5)
        # The page under way when it was killed may have been noted, too.
        assert 0 < read[0] - ChunkId.unpack(seen.after).index <= 3
        assert read[-1] == 39
        assert scrub.load_cursor(cluster.nodes[1].target).pass_count == 1
