# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Exactly once, across restarts of every replica:
tags of pending versions, notes of committed ones.
"""

import random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fs.chunkengine.api import ChunkState, Note
from fs.schema import services
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import mgmtd_pb2
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status
from fs.storage.channels import Tag, UpdateResult
from fs.storage.chunk_messages import result_from_pb, result_to_pb
from fs.storage.update_notes import (
    CLIENT_ID_BYTES_MAX,
    is_borne_out,
    note_key,
    note_of,
    pack_tag,
    read_note,
    unpack_tag,
)

from .cluster import content, open_caller, open_cluster

pytestmark = pytest.mark.thorough

tags = st.builds(
    Tag,
    st.text(min_size=1, max_size=CLIENT_ID_BYTES_MAX // 4),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=64),
)
results = st.builds(
    UpdateResult,
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**26),
    st.integers(0, 2**64 - 1),
    st.builds(ChunkId, st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1)),
    st.booleans(),
)


@given(tags, results)
def test_stored_forms_are_read_back(tag, result):
    assert unpack_tag(pack_tag(tag)) == tag
    note = note_of(tag, result)
    assert note.key == note_key(tag.client_id, tag.channel_id)
    found = read_note(note)
    assert (found.tag, found.result) == (tag, result)
    assert result_from_pb(result_to_pb(tag, result)) == (tag, result)


def test_other_notes_are_none_of_ours():
    assert read_note(Note(b"t", b"\x01")) is None
    assert read_note(Note(b"c\0\0\0\1a", b"\x63rest")) is None


CHUNK_ID = ChunkId(InodeId(1), 0)


def committed(version, length=5, checksum=7):
    return ChunkState(CHUNK_ID, version, 1, length, checksum, 1 << 16)


@pytest.mark.parametrize(
    ("state", "is_remove", "is_true"),
    [
        (committed(4), False, True),
        (committed(4, length=6), False, False),
        (committed(4, checksum=8), False, False),
        (committed(9, checksum=8), False, True),
        (committed(3), False, False),
        (None, False, False),
        (None, True, True),
        (committed(3), True, False),
        (committed(1), True, True),
    ],
)
def test_a_note_needs_its_chunk(state, is_remove, is_true):
    result = UpdateResult(4, 5, 7, CHUNK_ID, is_remove)
    assert is_borne_out(result, state) is is_true


async def restart_all(cluster, order=None, power_random=None):
    for node_id in order or list(cluster.nodes):
        await cluster.nodes[node_id].kill()
        if power_random is not None:
            cluster.nodes[node_id].disk.power_loss(power_random)
        await cluster.wait_judged(node_id)
    for node_id in cluster.nodes:
        await cluster.start_node(node_id)
    await cluster.wait_all_serving()


@pytest.mark.parametrize("node_count", [1, 3])
async def test_a_repeat_is_known_after_every_replica_was_down(mock_clock, node_count):
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        await client.write(0, b"gone", 1)
        request = client.write_request(3, b"more")
        first = await client.attempt(request, b"more")
        client.channel_id = 2
        removal = client.write_request(0, b"", 1, pb.REMOVE)
        await client.attempt(removal)
        client.channel_id = 3
        await restart_all(cluster)
        again = await client.update(request, b"more")
        assert (again.update_ver, again.chunk_checksum) == (2, first.chunk_checksum)
        await client.write(0, b"new", 1)
        await client.update(removal)
        assert await client.read(1) == b"new"
        # And again: what was loaded is kept.
        await restart_all(cluster)
        assert (await client.update(request, b"more")).update_ver == 2
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, b"onemore")}


async def test_what_was_only_pending_is_known_when_it_has_become_the_truth(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"base")
        cluster.network.block("node-1", "node-2")
        cluster.is_frozen = True
        request = client.write_request(0, b"left")
        with pytest.raises(FsError, match="RPC_TIMEOUT"):
            await client.attempt(request, b"left", timeout_s=1.0)
        assert content(cluster, 1) == (1, 2, b"base")
        for node in cluster.nodes.values():
            await node.kill()
        cluster.is_frozen = False
        cluster.network.heal()
        await cluster.wait_judged(1)
        for node_id in cluster.nodes:
            await cluster.start_node(node_id)
        await cluster.wait_all_serving()
        client.channel_id = 2
        await client.write(0, b"L")
        assert (await client.update(request, b"left")).update_ver == 2
        assert {content(cluster, n) for n in cluster.nodes} == {(3, 0, b"Left")}


async def test_what_the_power_took_back_is_executed_again(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        lost = 0
        for seed in range(20):
            request = client.write_request(0, b"%04d" % seed * 5000)
            await client.attempt(request, b"%04d" % seed * 5000)
            await restart_all(cluster, power_random=random.Random(seed))
            before = content(cluster, 1)
            lost += before is None or before[2] != b"%04d" % seed * 5000
            await client.update(request, b"%04d" % seed * 5000)
            assert content(cluster, 1)[2] == b"%04d" % seed * 5000
        assert 0 < lost < 20


async def test_a_resynced_replica_keeps_what_it_was_told(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        request = client.write_request(0, b"one")
        await client.attempt(request, b"one")
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        await cluster.nodes[1].kill()
        await cluster.wait_states({2: "SERVING", 1: "OFFLINE"})
        await cluster.nodes[2].kill()
        await cluster.wait_judged(2)
        await cluster.start_node(2)
        await cluster.wait_states({2: "SERVING", 1: "OFFLINE"})
        assert (await client.update(request, b"one")).update_ver == 1
        assert content(cluster, 2) == (1, 0, b"one")


async def test_a_replaced_replica_forgets_what_it_believed(mock_clock):
    """What it knew may never have happened, as its chain sees it."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        engine, target_id = cluster.nodes[2].engine, TargetId(102)
        ghost = note_of(Tag("ghost", 1, 1, b"x"), UpdateResult(1, 3, 0, CHUNK_ID))
        engine.put_notes(target_id, [ghost])
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        engine = cluster.nodes[2].engine
        assert [n.tag.client_id for n in updates_on(engine, target_id)] == ["client-a"]


def updates_on(engine, target_id):
    return [note for note in map(read_note, engine.notes(target_id)) if note]


async def test_idle_channels_are_forgotten_on_disk_too(mock_clock, monkeypatch):
    monkeypatch.setattr("fs.storage.channels.IDLE_S", 100.0)
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, b"one")
        engine = cluster.nodes[1].engine
        assert len(updates_on(engine, TargetId(101))) == 1
        await trio.sleep(200)
        assert not any(map(read_note, engine.notes(TargetId(101))))


async def test_names_that_do_not_fit_are_refused(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        for field, value in (("client_id", "x" * 60), ("request_id", b"x" * 65)):
            request = client.write_request(0, b"one")
            setattr(request.tag, field, value)
            with pytest.raises(FsError) as caught:
                await client.attempt(request, b"one")
            assert caught.value.status is Status.RPC_BAD_REQUEST


class ListedClients:
    """A manager that knows all clients."""

    def __init__(self):
        self.client_ids, self.is_complete = set(), False

    async def call(self, method, _request, **_options):
        if method is not services.MGMTD_LIST_CLIENT_SESSIONS:
            return method.reply_type()
        sessions = [mgmtd_pb2.ClientSessionPb(client_id=name) for name in sorted(self.client_ids)]
        return mgmtd_pb2.ListClientSessionsRsp(sessions=sessions, is_complete=self.is_complete)


async def test_what_a_client_did_is_forgotten_when_its_session_has_ended(mock_clock, monkeypatch):
    monkeypatch.setattr("fs.storage.channels.IDLE_S_ENDED", 5.0)
    monkeypatch.setattr("fs.storage.storage.CHANNEL_SCAN_INTERVAL_S", 2.0)
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        manager = ListedClients()
        for node in cluster.nodes.values():
            node.storage._context.mgmtd = manager
        await client.write(0, b"one")

        def known():
            return [
                (len(n.target.channels), len(updates_on(n.engine, n.target.target_id)))
                for n in cluster.nodes.values()
            ]

        manager.client_ids = {client.client_id}
        for manager.is_complete in (False, True, False):
            await trio.sleep(10)
            assert known() == [(1, 1), (1, 1)]
            if manager.is_complete:
                manager.client_ids = set()
        manager.is_complete = True
        await trio.sleep(10)
        assert known() == [(0, 0), (0, 0)]
