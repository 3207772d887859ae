"""Membership: leases counted from sending, triggers, stops; finding the primary; routing info;
client sessions.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

from functools import partial

import pytest
import trio

from fs.node.client_session import ClientSessionKeeper
from fs.node.membership import HeartbeatLease, Membership
from fs.node.mgmtd_link import MgmtdLink
from fs.node.routing_cache import RoutingCache
from fs.rpc.api import ConnectionRefused, Received
from fs.rpc.call_under_way import CallUnderWay, TimeUpError
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import ProcessConfig, ProcessSection
from fs.schema.ids import ClientId, NodeId
from fs.schema.proto import common_pb2 as common
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.routing import Node, Role
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import cluster_of


class ScriptedManagers:
    """Managers whose every answer a test decides; stands for Channels."""

    def __init__(self, **handlers) -> None:
        self.handlers = handlers  # by address
        self.calls: list[tuple[str, str]] = []

    def get(self, address, **_options):
        return ScriptedChannel(self, address)


class ScriptedChannel:
    def __init__(self, managers, address) -> None:
        self.managers, self.address = managers, address

    async def call(self, method, request, *, timeout_s=None, under_way=None):
        await trio.lowlevel.checkpoint()
        self.managers.calls.append((self.address, method.name))
        handler = self.managers.handlers.get(self.address)
        if handler is None:
            raise ConnectionRefused(self.address)
        call = CallUnderWay(trio.current_time() + timeout_s)
        calls = set() if under_way is None else under_way
        calls.add(call)
        try:
            return Received(await call.within(handler(method, request)))
        except TimeUpError:
            raise FsError(Status.RPC_TIMEOUT, self.address) from None
        finally:
            calls.remove(call)


def runtime():
    return simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 7)


def config(*addresses):
    return ProcessConfig(process=ProcessSection(mgmtd_addresses=list(addresses)))


NODE = Node(NodeId(5), frozenset({Role.STORAGE}), "mem:n5", "inc")


async def test_who_finds_no_primary_is_told_what_was_said_last(autojump_clock):
    """Was: no primary among [...], whether nobody listened there, or somebody was silent,
    or waited for its store.
    """
    link = MgmtdLink(ScriptedManagers(), ["tcp:a:1", "tcp:b:1"], runtime())
    with pytest.raises(FsError) as caught:
        await link.call(services.MGMTD_GET_PRIMARY, pb.GetPrimaryReq(), timeout_s=5.0)
    assert caught.value.status is Status.RPC_TIMEOUT
    assert "no primary manager at tcp:a:1, tcp:b:1 within 5 s" in caught.value.detail
    assert "last: RPC_CONNECT_FAILED" in caught.value.detail


async def test_why_there_is_no_lease_is_known_until_there_is_one(autojump_clock):
    """A start that waits for its first lease tells it:
    was, for ever, that nobody has answered yet.
    """
    answers = [
        FsError(Status.NODE_UNKNOWN, "node 5: make it known"),
        pb.HeartbeatRsp(lease_duration_s=5.0),
    ]

    async def answer(method, _request):
        if method is not services.MGMTD_HEARTBEAT:
            await trio.sleep_forever()
        said = answers[0]
        if isinstance(said, FsError):
            raise said
        return said

    made = Membership(runtime(), config("a"), NODE, ScriptedManagers(a=answer))
    assert not made.trouble
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        await trio.sleep(1.0)
        assert "make it known" in made.trouble
        del answers[0]
        await made.wait_joined()
        assert not made.trouble
        nursery.cancel_scope.cancel()


async def silent(_method, _request):
    await trio.sleep_forever()


def test_a_lease_counts_from_sending_and_never_shrinks():
    class Clock:
        now_s = 10.0

        def monotonic_s(self):
            return self.now_s

    clock = Clock()
    lease = HeartbeatLease(clock)
    assert not lease.is_valid()
    lease.grant(9.0, 5.0)
    assert lease.margin_s == 4.0
    lease.grant(9.5, 0.0)  # an answer without a lease
    assert lease.margin_s == 4.0
    clock.now_s = 14.0
    assert not lease.is_valid()
    lease.grant(13.0, 5.0)
    assert lease.is_valid()
    lease.revoke()
    lease.grant(13.9, 5.0)
    assert not lease.is_valid()


async def test_a_slow_answer_grants_a_shorter_lease(autojump_clock):
    sent: list[float] = []

    async def manager(method, request):
        if method.name != "Heartbeat":
            return await silent(method, request)
        sent.append(trio.current_time())
        await trio.sleep(0.7)
        return pb.HeartbeatRsp(lease_duration_s=5.0)

    member = Membership(runtime(), config("a"), NODE, ScriptedManagers(a=manager))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.run)
        await member.wait_joined()
        assert member.lease.margin_s == pytest.approx(4.3, abs=0.01)
        nursery.cancel_scope.cancel()
    assert sent == [0.0]


async def test_a_silent_manager_costs_a_fifth_of_the_lease(autojump_clock):
    async def manager(method, request):
        if method.name != "Heartbeat":
            return await silent(method, request)
        return pb.HeartbeatRsp(lease_duration_s=5.0)

    managers = ScriptedManagers(a=silent, b=manager)
    member = Membership(runtime(), config("a", "b"), NODE, managers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member._beat, nursery)
        await member.wait_joined()
        assert 1.0 <= trio.current_time() < 1.2
        nursery.cancel_scope.cancel()


async def test_heartbeats_have_growing_versions_and_can_be_triggered(autojump_clock):
    seen: list[tuple[float, int, int]] = []
    reports: list[pb.TargetReportPb] = []

    async def manager(method, request):
        if method.name != "Heartbeat":
            return await silent(method, request)
        seen.append((trio.current_time(), request.heartbeat_version, len(request.targets)))
        if len(seen) == 2:
            raise FsError(Status.STALE_HEARTBEAT, "try again")
        return pb.HeartbeatRsp(lease_duration_s=5.0)

    member = Membership(runtime(), config("a"), NODE, ScriptedManagers(a=manager), lambda: reports)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.run)
        await trio.sleep(0.5)
        reports.append(pb.TargetReportPb(target_id=1))
        member.trigger()
        await trio.sleep(0.4)
        assert [v for _, v, _ in seen] == [1, 2, 3]
        assert [round(t, 1) for t, _, _ in seen] == [0.0, 0.5, 0.5]
        assert seen[-1][2] == 1
        await trio.sleep(10)
        assert len(seen) == pytest.approx(13, abs=1)
        await member.announce_stop()
        count = len(seen)
        await trio.sleep(5)
        assert len(seen) <= count + 1
        nursery.cancel_scope.cancel()


async def test_a_heartbeat_tells_of_routing_info_that_the_long_poll_missed(autojump_clock):
    async def manager(method, request):
        if method.name == "Heartbeat":
            return pb.HeartbeatRsp(lease_duration_s=5.0, routing_version=7)
        if request.known_routing_version and request.wait_s:
            return await silent(method, request)
        version = 7 if trio.current_time() > 1 else 6
        return pb.GetRoutingInfoRsp(
            routing_info=common.RoutingInfoPb(routing_version=version), routing_version=version
        )

    member = Membership(runtime(), config("a"), NODE, ScriptedManagers(a=manager))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.run)
        await member.routing.wait_newer(6)
        assert trio.current_time() < 2.5
        nursery.cancel_scope.cancel()


async def test_a_stop_that_nobody_hears_ends_in_time(autojump_clock):
    member = Membership(runtime(), config("a"), NODE, ScriptedManagers())
    began_s = trio.current_time()
    await member.announce_stop()
    assert trio.current_time() - began_s <= 1.0


async def test_the_link_follows_hints_and_goes_round(autojump_clock):
    async def primary(_method, _request):
        return pb.ListClientSessionsRsp(is_complete=True)

    async def other(method, _request):
        if method.name == "GetPrimary":
            return pb.GetPrimaryRsp(address="c")
        raise FsError(Status.NOT_PRIMARY)

    managers = ScriptedManagers(b=other, c=primary)
    link = MgmtdLink(managers, ["a", "b"], runtime())
    for _ in range(2):
        reply = await link.call(services.MGMTD_LIST_CLIENT_SESSIONS, pb.ListClientSessionsReq())
        assert reply.is_complete
    assert [address for address, _ in managers.calls] == ["a", "b", "b", "c", "c"]
    del managers.handlers["c"]
    managers.handlers["a"] = primary
    await link.call(services.MGMTD_LIST_CLIENT_SESSIONS, pb.ListClientSessionsReq())
    assert trio.current_time() < 1


async def test_what_waits_at_a_silent_manager_is_asked_anew_where_the_primary_has_answered(
    autojump_clock,
):
    """Its long poll would end after 12 s; by then others have long judged who fell silent with it,
    and this process would go on by what it knew.
    """
    is_silent = True

    async def old(_method, request):
        if is_silent:
            await trio.sleep_forever()
        return pb.GetRoutingInfoRsp(
            routing_info=common.RoutingInfoPb(routing_version=1), routing_version=1
        )

    async def new(method, request):
        if method.name == "GetRoutingInfo":
            return pb.GetRoutingInfoRsp(
                routing_info=common.RoutingInfoPb(routing_version=2), routing_version=2
            )
        return pb.ListClientSessionsRsp()

    managers = ScriptedManagers(a=old, b=new)
    link = MgmtdLink(managers, ["a", "b"], runtime())
    cache = RoutingCache(link, runtime())
    is_silent = False
    await cache.refresh()
    is_silent = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.run)
        await trio.sleep(0.5)
        with pytest.raises(FsError, match="RPC_TIMEOUT"):
            await link.call_once(
                services.MGMTD_LIST_CLIENT_SESSIONS, pb.ListClientSessionsReq(), timeout_s=1.0
            )
        assert cache.info.routing_version == 1
        await link.call(services.MGMTD_LIST_CLIENT_SESSIONS, pb.ListClientSessionsReq())
        with trio.fail_after(0.1):
            await cache.wait_newer(1)
        nursery.cancel_scope.cancel()


async def test_who_fails_late_turns_nobody_away_from_who_has_answered_meanwhile(autojump_clock):
    async def primary(_method, _request):
        return pb.ListClientSessionsRsp()

    managers = ScriptedManagers(a=silent, b=primary)
    link = MgmtdLink(managers, ["a", "b", "c"], runtime())
    ask = partial(link.call, services.MGMTD_LIST_CLIENT_SESSIONS, pb.ListClientSessionsReq())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.5)  # so that the second one fails when the first one has gone on
        nursery.start_soon(ask)
    assert trio.current_time() < 3.0
    assert "c" not in {address for address, _ in managers.calls}


async def test_managers_that_hint_at_each_other_do_not_spin(autojump_clock):
    def pointing_to(address):
        async def manager(method, _request):
            if method.name == "GetPrimary":
                return pb.GetPrimaryRsp(address=address)
            raise FsError(Status.NOT_PRIMARY)

        return manager

    managers = ScriptedManagers(a=pointing_to("b"), b=pointing_to("a"))
    link = MgmtdLink(managers, ["a", "b"], runtime())
    with pytest.raises(FsError) as caught:
        await link.call(
            services.MGMTD_LIST_CLIENT_SESSIONS, pb.ListClientSessionsReq(), timeout_s=10
        )
    assert caught.value.status is Status.RPC_TIMEOUT
    assert trio.current_time() == pytest.approx(10, abs=1)
    assert len(managers.calls) < 400


async def test_what_the_primary_refuses_is_raised(autojump_clock):
    async def primary(_method, _request):
        raise FsError(Status.CONFLICTING_CHANGE, "no")

    link = MgmtdLink(ScriptedManagers(a=primary), ["a"], runtime())
    with pytest.raises(FsError) as caught:
        await link.call(services.MGMTD_SET_CHAINS, pb.SetChainsReq())
    assert caught.value.status is Status.CONFLICTING_CHANGE


async def test_routing_info_never_becomes_older_and_refreshes_are_shared(autojump_clock):
    version, asked = 5, 0

    async def manager(_method, request):
        nonlocal asked
        asked += 1
        await trio.sleep(0.1 + request.wait_s)
        return pb.GetRoutingInfoRsp(
            routing_info=common.RoutingInfoPb(routing_version=version), routing_version=version
        )

    cache = RoutingCache(MgmtdLink(ScriptedManagers(a=manager), ["a"], runtime()), runtime())
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(cache.refresh)
    assert (asked, cache.info.routing_version) == (1, 5)
    version = 4
    assert (await cache.refresh()).routing_version == 5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.run)
        version = 9
        assert (await cache.wait_newer(5)).routing_version == 9
        nursery.cancel_scope.cancel()


async def test_a_refresh_of_a_silent_manager_returns_what_is_known(autojump_clock):
    link = MgmtdLink(ScriptedManagers(a=silent), ["a"], runtime())
    cache = RoutingCache(link, runtime())
    assert (await cache.refresh()).routing_version == 0
    assert trio.current_time() == pytest.approx(3, abs=0.5)


async def test_a_cancelled_refresh_does_not_hold_up_the_others(autojump_clock):
    link = MgmtdLink(ScriptedManagers(a=silent), ["a"], runtime())
    cache = RoutingCache(link, runtime())
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def first() -> None:
            with scope:
                await cache.refresh()

        nursery.start_soon(first)
        await trio.sleep(0.1)
        nursery.start_soon(cache.refresh)
        await trio.sleep(0.1)
        scope.cancel()
    assert trio.current_time() < 1


@pytest.mark.thorough
async def test_a_client_session_is_kept_and_closed(autojump_clock):
    async with cluster_of() as cluster:
        manager = await cluster.start_manager(1)

        def sessions():
            reply = manager.mgmtd.service.primary.sessions.listed(trio.current_time())
            return [s.client_id for s in reply]

        keeper = ClientSessionKeeper(
            cluster.link, simulated_runtime(manager.network, 3), ClientId("c" * 32), host_name="h"
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(keeper.run)
            assert sessions() == ["c" * 32]
            await trio.sleep(300)
            assert sessions() == ["c" * 32]
            await manager.kill()
            await trio.sleep(5)
            manager = await cluster.start_manager(1)
            await trio.sleep(15)
            assert sessions() == ["c" * 32]
            nursery.cancel_scope.cancel()
        assert sessions() == []
