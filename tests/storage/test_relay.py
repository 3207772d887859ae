# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Requests that a node passes on for clients that do not reach the other one:
what comes of them, and what is refused.
"""

import math
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from google.protobuf.message import DecodeError
from xxhash import xxh3_64_intdigest

import fs.storage.relay as relay_module
from fs.client.relay_channel import RelayChannel, Vain
from fs.rpc.api import Call, Identity, Reply
from fs.rpc.transport_memory import DelayRange
from fs.schema import services
from fs.schema.ids import NodeId
from fs.schema.method import Access, Method
from fs.schema.proto import storage_pb2 as pb
from fs.schema.read_columns import WantedRead, read_request
from fs.schema.routing import NodeState
from fs.schema.status import FsError, Status
from fs.schema.user import User
from fs.storage.relay import METHODS, RELAYED_COUNT_MAX, TOLD_S, check_rights

from .cluster import CHAIN, CHUNK, INODE, content, open_caller, open_cluster

METHODS_ALL = [m for m in vars(services).values() if isinstance(m, Method)]
DATA = b"by another way" * 100


@asynccontextmanager
async def detour(node_count=3, *, relay=2, to=1):
    """A cluster, a client, and its way to one node over another one."""
    async with open_cluster(node_count) as cluster, open_caller(cluster) as client:
        nodes = cluster.info.nodes
        client.vain = []
        way = RelayChannel(
            nodes[NodeId(relay)],
            nodes[NodeId(to)],
            client.channel(relay),
            on_vain=client.vain.append,
        )
        yield cluster, client, way
        relays = cluster.nodes[relay].storage
        if cluster.nodes[relay].is_alive:
            assert (relays.service.relays.byte_count, relays.service.relays.request_count) == (0, 0)


def cut(cluster, client, node_id):
    cluster.network.partition([client.client_id], [f"node-{node_id}"])


async def passed(way, request, data=b"", method=services.STORAGE_WRITE, timeout_s=5.0):
    request.chain_version = request.chain_version or 1
    payload = [data] if data else ()
    received = await way.call(method, request, payload=payload, timeout_s=timeout_s)
    return received.message


async def test_only_what_clients_ask_nodes_for_is_passed_on():
    assert {str(method) for method in METHODS.values()} == {
        "Core.GetInfo",
        "Storage.BatchRead",
        "Storage.Write",
        "Storage.WriteGroup",
        "Storage.WriteRanges",
        "Storage.QueryLastChunk",
        "Storage.RemoveChunks",
        "Storage.SyncChains",
        "Storage.SpaceInfo",
    }
    assert all(method.is_idempotent for method in METHODS.values())


@pytest.mark.parametrize("relay", [2, 3])
async def test_a_write_that_is_passed_on_is_that_of_the_client(mock_clock, relay):
    async with detour(relay=relay) as (cluster, client, way):
        request = client.write_request(0, DATA)
        cut(cluster, client, 1)
        first = await passed(way, request, DATA)
        assert first.commit_ver == 1
        again = await passed(way, request, DATA)
        assert again.update_ver == first.update_ver
        cluster.network.heal()
        straight = await client.attempt(request, DATA)
        assert straight.update_ver == first.update_ver
        assert {content(cluster, n) for n in cluster.nodes} == {(1, 0, DATA)}
        assert not client.vain


async def test_who_is_gone_is_finished_only_when_nothing_can_be_on_its_way_elsewhere(mock_clock):
    """It could have come true under a lock that somebody else had by then."""
    async with detour() as (cluster, client, way):
        cut(cluster, client, 1)
        await passed(way, client.write_request(0, DATA), DATA)
        storage = cluster.nodes[2].storage
        with pytest.raises(FsError, match="passed on lately") as caught:
            await storage.finish_client(client.client_id)
        assert caught.value.status is Status.BUSY
        await storage.finish_client("another")
        await cluster.nodes[3].storage.finish_client(client.client_id)
        await trio.sleep(TOLD_S + 1)
        await storage.finish_client(client.client_id)


async def test_nobody_is_finished_while_not_all_links_are_noted(mock_clock, monkeypatch):
    monkeypatch.setattr(relay_module, "LINKS_MAX", 1)
    async with detour() as (cluster, client, way):
        cut(cluster, client, 1)
        await passed(way, client.write_request(0, DATA), DATA)
        with pytest.raises(FsError, match="passed on lately"):
            await cluster.nodes[2].storage.finish_client("another")


async def test_a_request_whose_reply_alone_was_lost_is_not_executed_twice(mock_clock):
    """The cut begins when the original has arrived: what is passed on is a repeat of it."""
    async with detour() as (cluster, client, way):
        await client.write(0, b"before")
        request = client.write_request(0, DATA)
        cluster.network.block("node-1", client.client_id)
        with pytest.raises(FsError) as caught:
            await client.attempt(request, DATA, timeout_s=1.0)
        assert not caught.value.definite
        reply = await passed(way, request, DATA)
        assert reply.commit_ver == 2
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, DATA)}


async def test_a_repeat_that_is_passed_on_while_the_original_is_executed_waits_for_it(mock_clock):
    async with detour() as (cluster, client, way):
        await client.write(0, b"first")
        await passed(way, client.write_request(0, b"before"), b"before")
        cluster.network.delay = DelayRange(0.2, 0.2)
        request = client.write_request(0, DATA)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.attempt, request, DATA)
            await trio.sleep(0.3)  # it has gone on to the successor
            with pytest.raises(FsError) as caught:
                await passed(way, request, DATA)
            assert caught.value.status is Status.CHANNEL_BUSY
            await trio.sleep(3.0)
            reply = await passed(way, request, DATA)
        assert reply.commit_ver == 3
        assert {content(cluster, n)[0] for n in cluster.nodes} == {3}


async def test_reads_queries_and_syncs_are_passed_on(mock_clock):
    async with detour() as (cluster, client, way):
        await client.write(0, DATA)
        cut(cluster, client, 1)
        version = cluster.chain.chain_version
        wanted = read_request([WantedRead(INODE, 0, CHAIN, version, 3, 50)], want_checksums=True)
        buffer = bytearray(50)
        received = await way.call(
            services.STORAGE_BATCH_READ,
            wanted.SerializeToString(),
            into=lambda reply, _size: [memoryview(buffer)[: sum(reply.lengths)]],
        )
        assert received.payload_bytes == 50 and bytes(buffer) == DATA[3:53]
        assert received.message.checksums[:] == [xxh3_64_intdigest(buffer)]
        received = await way.call(services.STORAGE_BATCH_READ, wanted)
        assert bytes(received.payload) == DATA[3:53]
        query = pb.LastChunkQueryPb(inode_id=INODE, chain_id=CHAIN, chain_version=version)
        received = await way.call(
            services.STORAGE_QUERY_LAST_CHUNK, pb.QueryLastChunkReq(queries=[query])
        )
        assert received.message.results[0].chunk_length == len(DATA)
        chains = [pb.ChainRefPb(chain_id=CHAIN, chain_version=version)]
        await way.call(services.STORAGE_SYNC_CHAINS, pb.SyncChainsReq(chains=chains))
        removed = pb.RemoveRangePb(
            inode_id=INODE, chain_id=CHAIN, chain_version=version, end_index=9
        )
        request = pb.RemoveChunksReq(ranges=[removed], client_id=client.client_id)
        received = await way.call(services.STORAGE_REMOVE_CHUNKS, request)
        assert received.message.results[0].removed_count == 1


async def test_what_the_node_refuses_is_refused_in_its_own_words(mock_clock):
    async with detour() as (_, client, way):
        request = client.write_request(0, DATA)
        request.chain_version = 99
        with pytest.raises(FsError) as caught:
            await passed(way, request, DATA)
        assert caught.value.status is Status.ROUTING_MISMATCH
        assert caught.value.detail.startswith("through node 2: ")
        request.chain_version, request.payload_checksum = 1, 5
        with pytest.raises(FsError) as caught:
            await passed(way, request, DATA)
        assert caught.value.status is Status.CHECKSUM_MISMATCH
        assert not client.vain  # it was reached


async def refusal(channel, request, payload=()):
    with pytest.raises(FsError) as caught:
        await channel.call(services.STORAGE_RELAY, request, payload=payload, timeout_s=30.0)
    return caught.value


def relay_request(method, message=b"", node_id=1):
    return pb.RelayReq(
        node_id=node_id,
        service_number=method.service_number,
        method_number=method.number,
        message=message,
    )


async def test_nothing_else_and_to_nobody_else(mock_clock):
    async with detour() as (cluster, client, _):
        channel = client.channel(2)
        for method in METHODS_ALL:
            if method not in METHODS.values():  # Relay itself, too: there is no second hop
                error = await refusal(channel, relay_request(method))
                assert (error.status, error.definite) == (Status.RPC_BAD_REQUEST, True), method
        sync = services.STORAGE_SYNC_CHAINS
        for node_id, status in (
            (0, Status.NODE_UNKNOWN),
            (77, Status.NODE_UNKNOWN),
            (2**32 - 1, Status.NODE_UNKNOWN),
            (2, Status.RPC_BAD_REQUEST),
        ):
            error = await refusal(channel, relay_request(sync, node_id=node_id))
            assert error.status is status
        error = await refusal(channel, relay_request(sync), payload=[b"too much"])
        assert error.status is Status.RPC_BAD_REQUEST
        nodes = dict(cluster.info.nodes)
        nodes[NodeId(1)] = replace(nodes[NodeId(1)], state=NodeState.FAILED)
        cluster.nodes[2].routing.info = replace(cluster.info, nodes=nodes)
        error = await refusal(channel, relay_request(sync))
        assert error.status is Status.RPC_CONNECT_FAILED
        assert {content(cluster, n) for n in cluster.nodes} == {None}
        assert not cluster.nodes[2].storage.service.relays.links
        cluster.nodes[2].routing.info = cluster.info
        received = await channel.call(services.STORAGE_RELAY, relay_request(sync, b"\xff" * 9))
        assert received.message.status  # the node that it is for does not understand it
        assert not received.message.is_silent


ALICE = Identity("test", client_id="a-1")
USER, ADMIN = User(1, "alice", 1), User(2, "bob", 2, is_admin=True)
FOREIGN = pb.TagPb(client_id="b-1")
OWN = pb.TagPb(client_id="a-1")


def is_refused(user, method, message=b""):
    try:
        check_rights(user, ALICE, relay_request(method, message))
    except FsError as error:
        return error.status is Status.RPC_NOT_ALLOWED
    return False


def test_a_token_opens_no_more_by_way_of_others():
    """The other node takes the cluster's key, which the relay proves, for leave to do anything."""
    nameless = {services.STORAGE_WRITE.name, services.STORAGE_WRITE_RANGES.name}
    for method in METHODS.values():
        is_wrong = (
            method.name in nameless
        )  # an empty request speaks for no client, so not for its own
        assert is_refused(USER, method) is (is_wrong or method.access > Access.USER)
        assert is_refused(ADMIN, method) is (is_wrong or method.access > Access.ADMIN)


@pytest.mark.parametrize("method", [services.STORAGE_WRITE, services.STORAGE_WRITE_RANGES])
def test_a_channel_of_another_client_is_refused_by_way_of_others(method):
    assert is_refused(USER, method, pb.UpdateReq(tag=FOREIGN).SerializeToString())
    assert is_refused(ADMIN, method, pb.UpdateReq(tag=FOREIGN).SerializeToString())
    assert not is_refused(USER, method, pb.UpdateReq(tag=OWN).SerializeToString())
    # The last of several counts for both who judges and who executes.
    both = [pb.UpdateReq(tag=tag).SerializeToString() for tag in (OWN, FOREIGN)]
    assert is_refused(USER, method, b"".join(both))


def test_so_it_is_within_a_group():
    group = pb.UpdateGroupReq(updates=[pb.UpdateReq(tag=OWN), pb.UpdateReq(tag=FOREIGN)])
    assert is_refused(USER, services.STORAGE_WRITE_GROUP, group.SerializeToString())
    with pytest.raises(FsError) as caught:
        check_rights(USER, ALICE, relay_request(services.STORAGE_WRITE_GROUP, b"\xff\xff"))
    assert caught.value.status is Status.RPC_BAD_REQUEST
    check_rights(USER, ALICE, relay_request(services.STORAGE_OFFLINE_TARGET))  # refused to all


async def test_who_does_not_reach_the_node_either_says_so_soon(mock_clock):
    async with detour() as (cluster, client, way):
        await passed(way, client.write_request(0, DATA), DATA)
        cluster.network.partition(["node-2"], ["node-1"])
        began_s = trio.current_time()
        with pytest.raises(FsError) as caught:
            await passed(way, client.write_request(0, DATA), DATA, timeout_s=10.0)
        assert trio.current_time() - began_s < 3.0
        assert caught.value.status is Status.RPC_CONNECTION_LOST and not caught.value.definite
        assert client.vain == [Vain.UNREACHED]


async def test_a_node_that_dies_is_told_to_the_manager(mock_clock, monkeypatch):
    async with detour() as (cluster, client, way):
        reported = []

        async def call(method, request, **_options):
            reported.append((str(method), request.node_id))

        monkeypatch.setattr(cluster.nodes[2].storage._context.mgmtd, "call", call)
        await cluster.nodes[1].kill()
        with pytest.raises(FsError) as caught:
            await passed(way, client.write_request(0, DATA), DATA)
        assert caught.value.status is Status.RPC_CONNECT_FAILED
        assert client.vain == [Vain.UNREACHED] and reported == [("Mgmtd.ReportUnreachable", 1)]


async def test_a_slow_node_is_waited_for(mock_clock):
    """It can be connected to: that it needs longer than a cut is believed for says nothing."""
    async with detour() as (cluster, client, way):
        await passed(way, client.write_request(0, b"before"), b"before")
        cluster.network.delay = DelayRange(1.2, 1.2)
        began_s = trio.current_time()
        reply = await passed(way, client.write_request(0, DATA), DATA, timeout_s=60.0)
        assert reply.commit_ver == 2 and trio.current_time() - began_s > 6.0


async def test_what_is_passed_on_has_its_bounds(mock_clock, monkeypatch):
    monkeypatch.setattr(relay_module, "RELAYED_BYTES_MAX", 3 * CHUNK + 1000)
    async with detour() as (cluster, client, way):
        statuses = []

        async def write(index, size):
            client.channel_id = index + 1
            data = bytes([index]) * size
            request = client.write_request(0, data, index)
            try:
                await passed(way, request, data, timeout_s=20.0)
                statuses.append(Status.OK)
            except FsError as error:
                statuses.append(error.status)

        cluster.network.delay = DelayRange(0.1, 0.1)
        async with trio.open_nursery() as nursery:
            for index in range(6):
                nursery.start_soon(write, index, CHUNK)
        assert statuses.count(Status.OK) == 3
        assert statuses.count(Status.RPC_OVERLOADED) == 3
        monkeypatch.setattr(relay_module, "RELAYED_BYTES_MAX", CHUNK // 2)
        statuses.clear()
        await write(9, CHUNK)  # what is larger than all has its turn when it is alone
        assert statuses == [Status.OK]
        monkeypatch.setattr(relay_module, "RELAYED_COUNT_MAX", 0)
        await write(9, 1)
        assert statuses == [Status.OK, Status.RPC_OVERLOADED]
        assert RELAYED_COUNT_MAX > 0 and set(client.vain) == {Vain.TROUBLE}  # others may have room


async def test_replies_count_as_well(mock_clock, monkeypatch):
    async with detour() as (cluster, client, way):
        await client.write(0, bytes(CHUNK))
        monkeypatch.setattr(relay_module, "RELAYED_BYTES_MAX", CHUNK + 500)
        version = cluster.chain.chain_version
        wanted = read_request([WantedRead(INODE, 0, CHAIN, version, 0, CHUNK)])
        statuses = []

        async def read():
            try:
                await way.call(services.STORAGE_BATCH_READ, wanted, timeout_s=9.0)
                statuses.append(Status.OK)
            except FsError as error:
                statuses.append(error.status)

        cluster.network.delay = DelayRange(0.1, 0.1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(read)
        assert sorted(statuses) == [Status.OK, Status.RPC_OVERLOADED]
        await read()
        assert statuses[2] is Status.OK
        await trio.sleep(1.0)  # the last reply is sent


async def test_who_gives_up_leaves_nothing_behind(mock_clock):
    async with detour() as (cluster, client, way):
        await passed(way, client.write_request(0, b"before"), b"before")
        cluster.network.delay = DelayRange(0.5, 0.5)
        with trio.move_on_after(0.7) as scope:  # it is under way to the node by then
            await passed(way, client.write_request(0, DATA), DATA, timeout_s=60.0)
        assert scope.cancelled_caught
        assert cluster.nodes[2].storage.service.relays.byte_count > len(DATA)  # with its message
        await trio.sleep(3.0)


async def test_links_are_told_once_and_forgotten(mock_clock, caplog):
    async with detour() as (cluster, client, way):
        relays = cluster.nodes[2].storage.service.relays
        for _ in range(3):
            await passed(way, client.write_request(0, DATA), DATA)
        (link,) = relays.told()
        assert (link.client_id, link.caller_node_id, link.node_id) == (client.client_id, 0, 1)
        assert link.request_count == 3
        told = [r for r in caplog.records if "does not reach node 1" in r.getMessage()]
        assert len(told) == 1 and client.client_id in told[0].getMessage()
        await trio.sleep(relay_module.TOLD_S + 1.0)
        assert not relays.told()


async def test_an_older_release_passes_nothing_on(mock_clock):
    class Older:
        async def call(self, *_what, **_options):
            raise FsError(Status.RPC_UNKNOWN_METHOD, "service 3 method 21")

    async with detour() as (_, client, way):
        old = RelayChannel(way.relay, way._node, Older(), on_vain=client.vain.append)
        with pytest.raises(FsError) as caught:
            await passed(old, client.write_request(0, DATA), DATA)
        assert caught.value.status is Status.RPC_CONNECT_FAILED and caught.value.definite
        assert client.vain == [Vain.UNABLE]
        assert "\n" not in str(caught.value)


async def test_whether_a_node_lives_is_asked_by_way_of_others(mock_clock):
    async with detour() as (_, _, way):
        with pytest.raises(FsError) as caught:  # these nodes offer no Core, and say so
            await way.call(services.CORE_GET_INFO, services.CORE_GET_INFO.request_type())
        assert caught.value.status is Status.RPC_UNKNOWN_METHOD
    assert not services.CORE_ECHO.is_relayed


def connecting(cluster, one, two):
    """Have a node's connections to another be counted; return the list of when they were made."""
    made, real = [], cluster.network.connect

    async def connect(name, address):
        if (name, address) == (f"node-{one}", f"mem:node-{two}"):
            made.append(trio.current_time())
        return await real(name, address)

    cluster.network.connect = connect
    return made


async def together(cluster, way, count, timeout_s=9.0):
    """Have so many requests passed on at once, one after the other within a second."""
    statuses = []

    async def one(after_s):
        await trio.sleep(after_s)
        try:
            await way.call(services.STORAGE_SYNC_CHAINS, pb.SyncChainsReq(), timeout_s=timeout_s)
            statuses.append(Status.OK)
        except FsError as error:
            statuses.append(error.status)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number / count)
    return statuses


async def test_a_slow_node_is_not_connected_to_once_for_each_request(mock_clock, monkeypatch):
    """Was: so hundreds of connections waited for a stopped node to accept them, and its kernel
    keeps only so many.
    """
    async with detour() as (cluster, _, way):
        hang(cluster, monkeypatch)
        made = connecting(cluster, 2, 1)
        statuses = await together(cluster, way, 60)
        assert set(statuses) == {Status.RPC_TIMEOUT}
        assert 1 < len(made) <= 10


def hang(cluster, monkeypatch):
    """Have node 1 answer no sync of chains."""

    async def sync_chains(*_what):
        await trio.sleep_forever()

    monkeypatch.setattr("fs.storage.queries.sync_chains", sync_chains)


async def test_all_hear_of_a_cut_that_one_has_found(mock_clock, monkeypatch):
    async with detour() as (cluster, client, way):
        hang(cluster, monkeypatch)
        await together(cluster, way, 1, 0.5)
        client.vain.clear()
        cluster.network.partition(["node-2"], ["node-1"])
        made = connecting(cluster, 2, 1)
        began_s = trio.current_time()
        statuses = await together(cluster, way, 60)
        assert trio.current_time() - began_s < 4.0
        assert set(statuses) == {Status.RPC_CONNECTION_LOST} and len(made) < 5
        assert client.vain == [Vain.UNREACHED] * 60


async def test_who_tried_for_others_may_be_given_up(mock_clock, monkeypatch):
    async with detour() as (cluster, client, way):
        hang(cluster, monkeypatch)
        await together(cluster, way, 1, 0.5)
        client.vain.clear()
        cluster.network.partition(["node-2"], ["node-1"])
        began_s = trio.current_time()

        async def other():
            await trio.sleep(0.2)
            await together(cluster, way, 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            with trio.move_on_after(1.5):
                await together(cluster, way, 1)
        assert trio.current_time() - began_s < 1.5 + 1.5 + 0.2
        assert client.vain == [Vain.UNREACHED]


@pytest.mark.parametrize("error", [MemoryError(), FsError(Status.OUT_OF_RESOURCES, "injected")])
async def test_who_cannot_try_waits(mock_clock, monkeypatch, error):
    async with detour() as (cluster, _, way):
        hang(cluster, monkeypatch)

        async def no_way(*_what):
            raise error

        monkeypatch.setattr("fs.storage.ways.is_way_free", no_way)
        assert await together(cluster, way, 1) == [Status.RPC_TIMEOUT]


async def test_a_dead_node_is_told_to_the_manager_once(mock_clock, monkeypatch):
    """Was: once for each request, and each waited for the manager, for up to two seconds."""
    async with detour() as (cluster, _, way):
        reported = []

        async def call(_method, request, **_options):
            reported.append(request.incarnation)
            await trio.sleep(2.0)
            if len(reported) == 1:
                raise FsError(Status.RPC_TIMEOUT, "no manager")

        monkeypatch.setattr(cluster.nodes[2].storage._context.mgmtd, "call", call)
        await cluster.nodes[1].kill()
        for count in (1, 2, 2):  # the first one did not reach it
            assert set(await together(cluster, way, 20)) == {Status.RPC_CONNECT_FAILED}
            assert len(reported) == count
        nodes = dict(cluster.info.nodes)
        nodes[NodeId(1)] = replace(nodes[NodeId(1)], incarnation="next")
        cluster.nodes[2].routing.info = replace(cluster.nodes[2].routing.info, nodes=nodes)
        with trio.move_on_after(1.0):  # who is given up has told nothing
            await together(cluster, way, 1)
        assert set(await together(cluster, way, 3)) == {Status.RPC_CONNECT_FAILED}
        assert reported[2:] == ["next", "next"]


async def test_a_request_without_a_limit_has_one_here(mock_clock, monkeypatch):
    """A peer may name none.  Was: a bug, told with its traceback."""
    async with detour() as (cluster, _, _way):
        relays = cluster.nodes[2].storage.service.relays
        request = relay_request(services.STORAGE_SYNC_CHAINS)
        reply = await relays.relay(Call(ALICE, 1, math.inf), request)
        assert not reply.message.status
        reply.release()
        hang(cluster, monkeypatch)
        monkeypatch.setattr(relay_module, "RELAYED_S_MAX", 10.0)  # else it is long
        began_s = trio.current_time()
        reply = await relays.relay(Call(ALICE, 1, math.inf), request)
        assert reply.message.status == Status.RPC_TIMEOUT
        assert trio.current_time() - began_s <= relay_module.RELAYED_S_MAX
        reply.release()


async def test_a_connection_that_breaks_says_nothing_against_the_way(mock_clock):
    """Was: the relay was taken for one that does not reach the node, for ten seconds."""
    async with detour() as (cluster, client, way):
        await passed(way, client.write_request(0, b"before"), b"before")
        cluster.network.delay = DelayRange(0.2, 0.2)
        request = client.write_request(0, DATA)
        async with trio.open_nursery() as nursery:

            async def one():
                with pytest.raises(FsError) as caught:
                    await passed(way, request, DATA)
                assert caught.value.status is Status.RPC_CONNECTION_LOST

            nursery.start_soon(one)
            await trio.sleep(0.5)
            cluster.network.reset("node-2", "node-1")
        assert client.vain == [Vain.TROUBLE]
        await trio.sleep(3.0)
        reply = await passed(way, request, DATA)
        assert reply.commit_ver == 2
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, DATA)}


async def test_messages_count_as_well(mock_clock, monkeypatch):
    async with detour() as (cluster, _, way):
        hang(cluster, monkeypatch)
        chains = [pb.ChainRefPb(chain_id=CHAIN, chain_version=1)] * 500
        request = pb.SyncChainsReq(chains=chains)
        monkeypatch.setattr(relay_module, "RELAYED_BYTES_MAX", 2 * request.ByteSize() + 100)
        statuses = []

        async def one():
            try:
                await way.call(services.STORAGE_SYNC_CHAINS, request, timeout_s=3.0)
            except FsError as error:
                statuses.append(error.status)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert statuses.count(Status.RPC_OVERLOADED) == 3


async def test_no_place_is_lost_for_a_lack_of_memory(mock_clock, monkeypatch):
    """Was: where there was none to say how the place is given back, it was taken for good."""

    class LackingReply(Reply):
        @property
        def release(self):
            return None

        @release.setter
        def release(self, value):
            if value is not None:
                raise MemoryError

    async with detour() as (_, client, way):
        monkeypatch.setattr(relay_module, "Reply", LackingReply)
        for _ in range(3):
            with pytest.raises(FsError) as caught:
                await passed(way, client.write_request(0, DATA), DATA)
            assert caught.value.status is Status.OUT_OF_RESOURCES
        assert client.vain == [Vain.TROUBLE] * 3


async def test_long_names_fill_no_log(mock_clock, caplog):
    async with detour() as (cluster, _, _way):
        relays = cluster.nodes[2].storage.service.relays
        peer = Identity("test", client_id="x" * 60_000)
        reply = await relays.relay(
            Call(peer, 1, trio.current_time() + 5), relay_request(services.STORAGE_SYNC_CHAINS)
        )
        reply.release()
        (told,) = [r.getMessage() for r in caplog.records if "does not reach" in r.getMessage()]
        assert len(told) < 200


async def test_lacks_of_who_asks_are_no_bad_frames(mock_clock, monkeypatch):
    """Was: what there was no memory to decode was bad, and a user's operation failed with that."""
    async with detour() as (_, client, way):

        class Lacking:
            @staticmethod
            def FromString(_message):  # noqa: N802 - as protobuf has it
                raise DecodeError("Arena alloc failed")

        method = replace(services.STORAGE_WRITE, reply_type=Lacking)
        with pytest.raises(FsError) as caught:
            await passed(way, client.write_request(0, DATA), DATA, method)
        assert caught.value.status is Status.OUT_OF_RESOURCES


@pytest.mark.parametrize("first", ["straight", "relay"])
@pytest.mark.parametrize("is_repeated", [True, False])
async def test_what_arrives_late_changes_nothing(mock_clock, first, is_repeated):
    """A write is held up on its way, and its client goes on by another way: repeats it, or gives it
    up and uses its channel for another one.  Then it arrives.
    """
    async with detour() as (cluster, client, way):
        nodes = cluster.info.nodes
        to = nodes[NodeId(3)], nodes[NodeId(1)], client.channel(3)
        other = RelayChannel(*to, on_vain=client.vain.append)

        async def send(request, data, timeout_s=5.0):
            if first == "relay":
                return await passed(other, request, data, timeout_s=timeout_s)
            return await client.attempt(request, data, timeout_s=timeout_s)

        await send(client.write_request(0, b"first"), b"first")
        cluster.network.block("node-3" if first == "relay" else client.client_id, "node-1")
        request = client.write_request(0, b"late-")
        with pytest.raises(FsError):
            await send(request, b"late-", timeout_s=1.0)
        await client.channel(1).aclose()  # as a client does that has found the cut
        version = 2
        if is_repeated:
            assert (await passed(way, request, b"late-")).commit_ver == version
            version, client.channel_id = 3, 2
        await passed(way, client.write_request(0, b"newer"), b"newer")
        assert content(cluster, 1) == (version, 0, b"newer")
        cluster.network.heal()
        await trio.sleep(5.0)
        assert {content(cluster, n) for n in cluster.nodes} == {(version, 0, b"newer")}
