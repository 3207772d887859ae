"""The history of the routing info, and maintenance:
what is kept of changes, and what work on a machine does not set off.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

from dataclasses import replace

import pytest
import trio

from fs.kv.memory import MemoryEngine
from fs.kv.transact import snapshot_read
from fs.mgmtd.history import EVENT_BYTES_MAX, event_of
from fs.mgmtd.store import Change, event_key, event_records, read_events
from fs.runtime.simulated import SimulatedClock
from fs.schema import services
from fs.schema.config import MgmtdSection
from fs.schema.ids import ChainId, NodeId, TargetId
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import (
    Chain,
    ChainTarget,
    LocalState,
    Node,
    NodeState,
    PublicState,
    Role,
    RoutingInfo,
    Target,
)
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import O, S, cluster_of

NODE = Node(NodeId(7), frozenset({Role.STORAGE}), "tcp:h:7", "seven", NodeState.CONNECTED)
CHAIN = Chain(ChainId(5), 4, (ChainTarget(TargetId(71), S),), (TargetId(71),))
INFO = RoutingInfo(
    9,
    "c",
    nodes={NODE.node_id: NODE},
    targets={TargetId(71): Target(TargetId(71), ChainId(5), NodeId(7), 2)},
    chains={CHAIN.chain_id: CHAIN},
)


@pytest.fixture
def autojump_clock():
    return trio.testing.MockClock(autojump_threshold=0)


def texts(change, info=INFO, local=LocalState.OFFLINE):
    event = event_of(info, change, lambda _: local, "")
    return [] if event is None else [one.text for one in event.changes]


def test_a_change_that_nobody_asks_about_is_no_event():
    assert event_of(INFO, Change(), lambda _: LocalState.ONLINE, "") is None
    assert texts(Change(targets={71: INFO.target(71)})) == []
    assert texts(Change(nodes={7: replace(NODE, host_name="h")})) == []


def test_the_cause_of_a_member_s_state_is_told():
    off = replace(CHAIN, chain_version=5, targets=(ChainTarget(TargetId(71), PublicState.LASTSRV),))
    (said,) = texts(Change(chains={5: off}))
    assert said == "71 serving -> lastsrv (node 7 says offline); now 71:lastsrv"
    failed = replace(NODE, state=NodeState.FAILED)
    node_text, chain_text = texts(Change(nodes={7: failed}, chains={5: off}))
    assert node_text == "connected -> failed"
    assert "(node 7 is failed)" in chain_text


def test_an_event_of_very_many_chains_still_fits_into_one_value():
    chains = {
        ChainId(c): Chain(ChainId(c), 1, tuple(ChainTarget(TargetId(71), S) for _ in range(3)))
        for c in range(10, 5000)
    }
    event = event_of(INFO, Change(chains=chains), lambda _: LocalState.ONLINE, "x" * 10_000)
    assert event.ByteSize() < EVENT_BYTES_MAX + 2_000
    assert len(event.changes) + event.left_out_count == len(chains)
    assert event.left_out_count > 0


def test_the_key_of_an_event_byte_for_byte():
    assert event_key(258) == b"RTEV\x00\x00\x00\x00\x00\x00\x01\x02"
    assert event_records(pb.RoutingEventPb(event_id=12), 10)[1:] == [(event_key(2), None)]
    assert len(event_records(pb.RoutingEventPb(event_id=10), 10)) == 1


async def test_events_are_read_from_the_newest_on(autojump_clock):
    engine = MemoryEngine(SimulatedClock())
    tr = engine.transaction()
    for event_id in range(1, 8):
        for key, value in event_records(pb.RoutingEventPb(event_id=event_id), 5):
            tr.clear(key) if value is None else tr.set(key, value)
    await tr.commit()

    async def ids(before, count):
        events = await snapshot_read(engine, lambda tr: read_events(tr, before, count))
        return [event.event_id for event in events]

    assert await ids(0, 3) == [7, 6, 5]
    assert await ids(5, 9) == [4, 3]


async def events_of(cluster):
    found, before = [], 0
    while True:
        request = pb.ListRoutingEventsReq(before_event_id=before, event_count_max=4)
        reply = await cluster.call(services.MGMTD_LIST_ROUTING_EVENTS, request)
        found += reply.events
        if not reply.has_more:
            return found[::-1]
        before = reply.events[-1].event_id


def maintain(cluster, node_id, for_s, **options):
    request = pb.SetMaintenanceReq(node_id=node_id, for_s=for_s, **options)
    return cluster.call(services.MGMTD_SET_MAINTENANCE, request)


@pytest.mark.thorough
async def test_the_history_says_what_happened_and_goes_on_under_another_primary(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        await cluster.storages[12].kill()
        await cluster.until(lambda i: cluster.states(i) == [S, S, O])
        await cluster.managers[1].kill()
        await cluster.start_manager(1)
        await cluster.start_storage(12)
        info = await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        events = await events_of(cluster)
        assert [e.event_id for e in events] == list(range(1, len(events) + 1))
        versions = [e.routing_version for e in events]
        assert versions == sorted(set(versions))
        said = [(one.chain_id or one.node_id, one.text) for e in events for one in e.changes]
        assert (12, "connected -> failed") in said
        assert any(c == 1 and "1201 serving -> offline (node 12 is failed)" in t for c, t in said)
        of_chain = [one for e in events for one in e.changes if one.chain_id == 1]
        assert [one.chain_version for one in of_chain] == list(
            range(1, info.chain(1).chain_version + 1)
        )
        assert [e.why for e in events if "made of" in e.changes[0].text] == [
            "new chains were asked for"
        ]


@pytest.mark.thorough
async def test_what_is_worked_on_is_not_replaced_until_it_is_over(autojump_clock):
    section = MgmtdSection(replace_after_s=10.0, move_stall_s=5.0)
    async with cluster_of(section=section, storages=4) as cluster:
        cluster.storage_ids = [11, 12, 13]
        await cluster.start_manager(1)
        cluster.storage_ids = [11, 12, 13, 14]
        await cluster.register()
        for node_id in cluster.storage_ids:
            await cluster.start_storage(node_id, () if node_id == 14 else (1, 2))
        await trio.sleep(7)
        cluster.storage_ids = [11, 12, 13]
        await cluster.set_chains()
        await cluster.until(lambda i: cluster.states(i) == [S, S, S])
        reply = await maintain(cluster, 12, 60.0)
        assert reply.until_ns > 0
        await cluster.storages[12].kill()
        await cluster.until(lambda i: cluster.states(i) == [S, S, O])
        await trio.sleep(15)
        assert not (await cluster.call(services.MGMTD_LIST_MOVES, pb.ListMovesReq())).moves
        assert (await cluster.info()).node(12).maintenance_until_ns == reply.until_ns
        await maintain(cluster, 12, 0.0)
        await trio.sleep(10)
        await cluster.until(
            lambda i: (
                all(i.target(t).node_id != 12 for t in i.chain(1).serving)
                and cluster.states(i) == [S] * 3
            )
        )


@pytest.mark.thorough
async def test_maintenance_that_would_take_the_last_replica_is_refused(autojump_clock):
    async with cluster_of() as cluster:
        await cluster.up()
        for node_id in (11, 12):
            await cluster.storages[node_id].kill()
        await cluster.until(lambda i: cluster.states(i) == [S, O, O])
        for status, call in (
            (Status.UNSAFE_CHANGE, maintain(cluster, 13, 60.0)),
            (Status.NODE_UNKNOWN, maintain(cluster, 99, 60.0)),
            (Status.RPC_BAD_REQUEST, maintain(cluster, 13, 1e9)),
        ):
            with pytest.raises(FsError) as caught:
                await call
            assert caught.value.status is status
        await maintain(cluster, 13, 60.0, accept_unavailable_chains=True)
        await maintain(cluster, 13, 0.0)
        await maintain(cluster, 13, 0.0)
