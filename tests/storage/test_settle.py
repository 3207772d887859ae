# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Leftovers whose bytes rotted: when one may be dropped, and that no late copy brings it back."""

from functools import partial

import pytest
import trio

from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.rpc.channel import RpcChannel
from fs.schema import services
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import FsError, Status
from fs.storage import service
from fs.storage import settle as settle_module
from fs.storage.leftovers import LOOK_INTERVAL_S
from fs.storage.lone_update import LoneUpdates

from .cluster import CHUNK, open_caller, open_cluster
from .test_resync import copies, hold_resync, state_of

pytestmark = pytest.mark.thorough

OLD, LOST = b"A" * 100, b"B" * 100


@pytest.fixture
def sent(monkeypatch):
    """Every update that a replica passes on, as it left."""
    frames = []
    real, real_begin = RpcChannel.call, RpcChannel.begin

    async def call(self, method, request, *args, **options):
        if method is services.STORAGE_UPDATE:
            kept = pb.UpdateReq()
            kept.CopyFrom(request)
            frames.append((kept, [bytes(piece) for piece in options.get("payload", ())]))
        return await real(self, method, request, *args, **options)

    def begin(self, method, request, *args, **options):
        if method is services.STORAGE_UPDATE:
            pieces = [bytes(piece) for piece in options["payload"]]
            frames.append((pb.UpdateReq.FromString(request), pieces))
        return real_begin(self, method, request, *args, **options)

    monkeypatch.setattr(RpcChannel, "call", call)
    monkeypatch.setattr(RpcChannel, "begin", begin)
    return frames


def rot(cluster, node_id):
    """Damage the bytes of a node's pending second version, not those of the first."""
    node = cluster.nodes[node_id]
    for file_id in node.disk.files:
        node.disk.flip_bit(file_id, CHUNK)
    state = state_of(cluster, node_id)
    assert state.pending_ver == 2
    read = partial(node.engine.read_whole, node.target.target_id, state.chunk_id)
    assert read(version=1) == OLD
    with pytest.raises(FsError, match="CHECKSUM_MISMATCH"):
        read(version=2)


async def leave_over(cluster, client, *, cut, rotten):
    """Cut one way between two nodes; an update is left over on some, where its bytes rot."""
    await client.write(0, OLD)
    cluster.is_frozen = True
    one, two = (f"node-{n}" for n in cut)
    cluster.network.block(one, two)
    with pytest.raises(FsError, match="RPC_TIMEOUT"):
        await client.attempt(client.write_request(0, LOST), LOST, timeout_s=1.0)
    await trio.sleep(6)  # whoever was inside has given up
    for node_id in rotten:
        rot(cluster, node_id)
    cluster.network.reset(one, two)
    cluster.network.heal()
    cluster.is_frozen = False
    client.channel_id = 2


@pytest.mark.parametrize("is_epoch_taken", [True, False])
async def test_a_late_copy_does_not_bring_a_dropped_leftover_back(
    mock_clock, monkeypatch, sent, is_epoch_taken
):
    """The copy arrives when the successor has answered and the leftover is gone;
    the control tells no epoch.
    """
    real = settle_module.state_there

    async def without_epoch(*args, **options):
        return await real(*args, **{**options, "sender_epoch": 1})

    if not is_epoch_taken:
        monkeypatch.setattr(settle_module, "state_there", without_epoch)
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await leave_over(cluster, client, cut=(1, 2), rotten=[1])
        late, payload = next(frame for frame in sent if frame[0].update_ver == 2)
        assert late.sender_epoch == 1
        await trio.sleep(3 * LOOK_INTERVAL_S)
        assert copies(cluster, 0) == {(1, 0, OLD)}, "dropped, since the successor lacks it"
        assert late.chain_version == cluster.chain.chain_version
        call = client.channel(2).call
        if not is_epoch_taken:
            await call(services.STORAGE_UPDATE, late, payload=payload)
            assert copies(cluster, 0) == {(1, 0, OLD), (2, 0, LOST)}
            return
        for _ in range(2):
            with pytest.raises(FsError) as caught:
                await call(services.STORAGE_UPDATE, late, payload=payload)
            assert caught.value.status is Status.SUPERSEDED_UPDATE
            await client.write(0, b"C" * 50)
        assert copies(cluster, 0) == {(3, 0, b"C" * 50 + OLD[50:])}
        assert len(cluster.history) == 1, "nobody left the chain"


async def test_a_leftover_that_rotted_on_two_replicas_is_dropped_from_below(mock_clock):
    """The one asked settles its own first: what was before it is the truth on all."""
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await leave_over(cluster, client, cut=(2, 3), rotten=[1, 2])
        await client.write(0, b"C" * 50)
        assert copies(cluster, 0) == {(2, 0, b"C" * 50 + OLD[50:])}
        assert [node.target.lost_count for node in cluster.nodes.values()] == [0, 0, 0]


async def test_a_dead_member_does_not_hold_up_the_proof(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await cluster.nodes[3].kill()
        await cluster.wait_states({1: "SERVING", 2: "SERVING", 3: "OFFLINE"})
        await leave_over(cluster, client, cut=(1, 2), rotten=[1])
        await client.write(0, b"C" * 50, retry_s=5.0)
        assert state_of(cluster, 1).commit_ver == state_of(cluster, 2).commit_ver == 2


@pytest.fixture
def muted(monkeypatch):
    """Nodes that do not answer updates of the second version, and whether they execute them."""
    real, nodes = service.run_update, dict[int, bool]()

    async def run_update(context, request, *args, **options):
        is_muted = request.update_ver == 2 and context.node_id in nodes
        if is_muted and not nodes[context.node_id]:
            await trio.sleep_forever()
        reply = await real(context, request, *args, **options)
        if is_muted:
            await trio.sleep_forever()
        return reply

    monkeypatch.setattr(service, "run_update", run_update)
    monkeypatch.setattr(LoneUpdates, "begin", lambda *_args, **_options: False)
    return nodes


async def test_a_successor_that_came_back_empty_proves_nothing(mock_clock, muted):
    """It had committed the version, and shown it: nobody may be shown what was before."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD)
        muted[2] = True
        with pytest.raises(FsError, match="RPC_TIMEOUT"):
            await client.attempt(client.write_request(0, LOST), LOST, timeout_s=1.0)
        await trio.sleep(6)
        rot(cluster, 1)
        assert await client.read(node_id=2) == LOST
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        cluster.nodes[2].disk = SimulatedDisk()
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        for node_id in (1, 2):
            with pytest.raises(FsError, match="CHUNK_DAMAGED"):
                await client.read(node_id=node_id)
        client.channel_id = 2
        await client.write(0, b"D" * 100)
        assert copies(cluster, 0) == {(3, 0, b"D" * 100)}


async def test_a_late_copy_to_a_syncing_successor_is_void_when_a_leftover_is_given_up(
    mock_clock, muted, sent
):
    """Found by the model: else it would have the bytes of what the head has declared lost,
    and serve them.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, OLD)
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        async with hold_resync(cluster, 1):
            await cluster.start_node(2)
            await cluster.wait_states({1: "SERVING", 2: "SYNCING"})
            muted[2] = False
            with pytest.raises(FsError, match="RPC_TIMEOUT"):
                await client.attempt(client.write_request(0, LOST), LOST, timeout_s=1.0)
            await trio.sleep(6)
            rot(cluster, 1)
            del muted[2]
            late, payload = next(frame for frame in sent if frame[0].update_ver == 2)
            await trio.sleep(3 * LOOK_INTERVAL_S)
            assert state_of(cluster, 1).is_damaged
            with pytest.raises(FsError, match="SUPERSEDED_UPDATE"):
                await client.channel(2).call(services.STORAGE_UPDATE, late, payload=payload)
            assert state_of(cluster, 2).commit_ver == 1
        await cluster.wait_all_serving()
        assert [state_of(cluster, n).is_damaged for n in (1, 2)] == [True, True]


async def test_an_answer_under_another_chain_version_proves_nothing(mock_clock, monkeypatch):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        real = settle_module.state_there
        answers = []

        async def state_there(*args, **options):
            found = await real(*args, **options)
            if not answers:
                await cluster.nodes[3].kill()
                await cluster.wait_states({1: "SERVING", 2: "SERVING", 3: "OFFLINE"})
                answers.append(state_of(cluster, 1).pending_ver)
            return found

        monkeypatch.setattr(settle_module, "state_there", state_there)
        await leave_over(cluster, client, cut=(1, 2), rotten=[1])
        request = client.write_request(0, b"C" * 50)
        with pytest.raises(FsError, match="ROUTING_MISMATCH"):
            await client.attempt(request, b"C" * 50)
        assert state_of(cluster, 1).pending_ver == 2
        await client.update(request, b"C" * 50)
        assert state_of(cluster, 2).commit_ver == 2
