# ruff: noqa: ARG001 - the clock works by being asked for
"""The simulated network: faults look to programs as a kernel's would, and runs repeat."""

import random

import pytest
import trio
from trio.testing import MockClock

from fs.rpc.api import ConnectionRefused, Identity
from fs.rpc.channel import open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.server import Server
from fs.rpc.transport_memory import DelayRange, MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.status import FsError, Status


async def echo(stream):
    buffer = memoryview(bytearray(1 << 16))
    try:
        while count := await stream.receive_into(buffer):
            await stream.send_all([buffer[:count]])
    except trio.BrokenResourceError:
        return


@pytest.fixture
async def network():
    """A network with an echo at mem:a."""
    made = MemoryNetwork(seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.endpoint("a").serve, "mem:a", echo)
        yield made
        nursery.cancel_scope.cancel()


async def round_trip(stream, data=b"x"):
    await stream.send_all([data])
    buffer = memoryview(bytearray(len(data)))
    assert await stream.receive_into(buffer) > 0
    return bytes(buffer)


async def test_delays_are_kept(autojump_clock, network):
    network.delay = DelayRange(0.5, 0.5)
    stream = await network.endpoint("b").connect("mem:a")
    begin = trio.current_time()
    assert await round_trip(stream) == b"x"
    assert trio.current_time() - begin == pytest.approx(1.0)


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
async def test_a_short_block_delays_and_a_long_one_breaks(autojump_clock, network, way):
    stream = await network.endpoint("b").connect("mem:a")
    network.block(*way)
    with trio.move_on_after(5) as scope:
        await round_trip(stream)
    assert scope.cancelled_caught
    network.unblock(*way)
    assert await stream.receive_into(memoryview(bytearray(1))) == 1
    network.block(*way)
    begin = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await round_trip(stream)
    assert trio.current_time() - begin == pytest.approx(network.silence_s_max)
    network.heal()
    with pytest.raises(trio.BrokenResourceError):
        await round_trip(stream)
    assert await round_trip(await network.endpoint("b").connect("mem:a")) == b"x"


async def test_a_partition_divides_only_its_sides(autojump_clock, network):
    async with trio.open_nursery() as nursery:
        await nursery.start(network.endpoint("c").serve, "mem:c", echo)
        network.partition(["a"], ["b", "c"])
        assert await round_trip(await network.endpoint("b").connect("mem:c")) == b"x"
        begin = trio.current_time()
        with pytest.raises(FsError) as caught:
            await network.endpoint("b").connect("mem:a")
        assert caught.value.status is Status.RPC_CONNECT_FAILED
        assert not isinstance(caught.value, ConnectionRefused)
        assert trio.current_time() - begin > 5
        nursery.cancel_scope.cancel()


async def test_reset_breaks_both_ends_and_only_those(autojump_clock, network):
    one = await network.endpoint("b").connect("mem:a")
    other = await network.endpoint("c").connect("mem:a")
    network.reset("a", "b")
    with pytest.raises(trio.BrokenResourceError):
        await round_trip(one)
    assert await round_trip(other) == b"x"


async def test_a_killed_process_refuses_and_its_streams_break(autojump_clock, network):
    stream = await network.endpoint("b").connect("mem:a")
    network.kill("a")
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_into(memoryview(bytearray(1)))
    with pytest.raises(ConnectionRefused):
        await network.endpoint("b").connect("mem:a")
    async with trio.open_nursery() as nursery:
        await nursery.start(network.endpoint("a").serve, "mem:a", echo)
        assert await round_trip(await network.endpoint("b").connect("mem:a")) == b"x"
        nursery.cancel_scope.cancel()


async def test_a_machine_switched_off_says_nothing(autojump_clock, network):
    stream = await network.endpoint("b").connect("mem:a")
    network.switch_off("a")
    with trio.move_on_after(9) as scope:
        await round_trip(stream)
    assert scope.cancelled_caught
    with pytest.raises(FsError) as caught:
        await network.endpoint("b").connect("mem:a")
    assert not isinstance(caught.value, ConnectionRefused)
    with pytest.raises(trio.BrokenResourceError):
        await round_trip(stream)
    network.switch_on("a")
    with pytest.raises(ConnectionRefused):
        await network.endpoint("b").connect("mem:a")


async def test_a_sender_waits_for_a_reader(autojump_clock, network):
    hold = trio.Event()

    async def late(stream):
        await hold.wait()
        await echo(stream)

    async with trio.open_nursery() as nursery:
        await nursery.start(network.endpoint("c").serve, "mem:c", late)
        stream = await network.endpoint("b").connect("mem:c")
        with trio.move_on_after(100) as scope:
            while True:
                await stream.send_some([bytes(100_000)])
        assert scope.cancelled_caught
        hold.set()
        await stream.receive_into(memoryview(bytearray(10)))
        nursery.cancel_scope.cancel()


def run_calls(seed):
    """Return what happens when callers meet faults, with the virtual times it happens at."""
    events = []

    async def caller(channel, number):
        for index in range(20):
            try:
                reply = await channel.call(
                    services.CORE_ECHO,
                    core.EchoReq(data=b"%d" % index),
                    payload=[bytes(number * 5000)] if number else (),
                    timeout_s=1.5,
                )
                events.append((trio.current_time(), number, index, reply.message.data))
            except FsError as error:
                events.append((trio.current_time(), number, index, error.status))
            await trio.sleep(0.1)

    async def main():
        trio._core._run._r.seed(seed)
        network = MemoryNetwork(seed)
        identity = Identity("c", 1)
        faults = random.Random(seed)
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                runtime = simulated_runtime(network.endpoint(name), seed)
                server = Server(identity, RpcSection())
                server.add_service("Core", CoreService(identity, runtime.clock, ()))
                await nursery.start(server.run, network.endpoint(name), f"mem:{name}")
            runtime = simulated_runtime(network.endpoint("c"), seed)
            async with (
                open_channels(runtime, Identity("c"), RpcSection()) as channels,
                trio.open_nursery() as callers,
            ):
                for number in range(6):
                    callers.start_soon(caller, channels.get(f"mem:{'ab'[number % 2]}"), number)
                for _ in range(10):
                    await trio.sleep(faults.uniform(0, 0.3))
                    match faults.randrange(3):
                        case 0:
                            network.reset("c", faults.choice("ab"))
                        case 1:
                            network.partition(["c"], [faults.choice("ab")])
                        case 2:
                            network.heal()
                network.heal()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return events


def test_one_seed_is_one_run():
    first = run_calls(7)
    assert first == run_calls(7)
    assert first != run_calls(8)
    assert len(first) == 120
    outcomes = {event[3] for event in first}
    assert {Status.RPC_CONNECTION_LOST, Status.RPC_TIMEOUT} & outcomes
    assert all(isinstance(e[3], Status) or e[3] == b"%d" % e[2] for e in first)


async def test_after_a_silent_timeout_new_calls_take_a_new_connection(autojump_clock, network):
    identity = Identity("c", 1)
    runtime = simulated_runtime(network.endpoint("b"), 1)
    async with trio.open_nursery() as nursery:
        server = Server(identity, RpcSection())
        server.add_service("Core", CoreService(identity, runtime.clock, ()))
        await nursery.start(server.run, network.endpoint("s"), "mem:s")
        async with open_channels(runtime, Identity("c"), RpcSection()) as channels:
            channel = channels.get("mem:s")
            await channel.call(services.CORE_ECHO, core.EchoReq())
            network.partition(["b"], ["s"])
            with pytest.raises(FsError) as caught:
                await channel.call(services.CORE_ECHO, core.EchoReq(), timeout_s=1)
            assert caught.value.status is Status.RPC_TIMEOUT
            with pytest.raises(FsError) as caught:
                await channel.call(services.CORE_ECHO, core.EchoReq(), timeout_s=30)
            assert caught.value.status is Status.RPC_CONNECT_FAILED
            assert caught.value.definite
            network.heal()
            await channel.call(services.CORE_ECHO, core.EchoReq(), timeout_s=1)
        nursery.cancel_scope.cancel()


async def test_a_lost_piece_arrives_after_its_retransmissions(autojump_clock, network):
    stream = await network.endpoint("b").connect("mem:a")
    network.loss = 1.0
    begin = trio.current_time()
    assert await round_trip(stream) == b"x"
    assert trio.current_time() - begin == pytest.approx(2 * 0.2 * 31, rel=0.01)


async def test_a_held_up_stream_is_overtaken_by_another(autojump_clock, network):
    slow = await network.endpoint("b").connect("mem:a")
    fast = await network.endpoint("b").connect("mem:a")
    await slow.send_all([b"1"])
    for stream in network.streams("a", "b")[:1]:
        stream.clog(trio.current_time() + 3)
    assert await round_trip(fast) == b"x"
    assert trio.current_time() < 1
    assert await slow.receive_into(memoryview(bytearray(1))) == 1
    assert 3 < trio.current_time() < 3.1


async def test_what_was_sent_over_a_stream_that_is_given_up_arrives_late(autojump_clock):
    network, got = MemoryNetwork(seed=1), []

    async def listen(stream):
        buffer = memoryview(bytearray(10))
        count = await stream.receive_into(buffer)
        got.append((bytes(buffer[:count]), trio.current_time()))
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_into(buffer)

    async with trio.open_nursery() as nursery:
        await nursery.start(network.endpoint("a").serve, "mem:a", listen)
        stream = await network.endpoint("b").connect("mem:a")
        await stream.send_all([b"late"])
        stream.abandon(2.0)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all([b"never"])
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    ((data, at_s),) = got
    assert data == b"late" and at_s >= 2


async def test_a_half_open_end_learns_it_by_sending(autojump_clock, network):
    stream = await network.endpoint("b").connect("mem:a")
    network.half_open("a", "b")
    with trio.move_on_after(100) as scope:
        await stream.receive_into(memoryview(bytearray(1)))
    assert scope.cancelled_caught  # hears nothing
    await stream.send_all([b"x"])
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_into(memoryview(bytearray(1)))
