"""One contract for every kind of network, and what only real sockets have."""

import socket

import pytest
import trio

from fs.rpc.api import ConnectionRefused
from fs.rpc.transport import SocketNetwork, split_tcp
from fs.schema.status import FsError, Status


async def echo(stream):
    buffer = memoryview(bytearray(100_000))
    while count := await stream.receive_into(buffer):
        await stream.send_all([buffer[:count]])


async def receive_exactly(stream, count):
    data = memoryview(bytearray(count))
    done = 0
    while done < count:
        got = await stream.receive_scatter([data[done : done + 5], data[done + 5 :]])
        assert got > 0
        done += got
    return bytes(data)


async def test_bytes_come_back_in_order_whatever_the_sizes(net):
    async with trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), echo)
        stream = await net.b.connect(address)
        sent = [bytes([i % 251]) * (i * 37 % 5000) for i in range(1, 300)]
        nursery.start_soon(stream.send_all, sent)
        whole = b"".join(sent)
        assert await receive_exactly(stream, len(whole)) == whole
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_what_has_come_is_received_without_waiting(net):
    async with trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), echo)
        stream = await net.b.connect(address)
        data = memoryview(bytearray(10))
        assert not stream.receive_now([data])
        await stream.send_all([b"some words"])
        assert await stream.receive_into(data[:1]) == 1
        done = 1
        with trio.fail_after(60):
            while done < 10:
                done += stream.receive_now([data[done : done + 2], data[done + 2 :]])
                await trio.sleep(0.001)
        assert bytes(data) == b"some words"
        assert not stream.receive_now([data])
        await stream.aclose()
        with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
            stream.receive_now([data])
        nursery.cancel_scope.cancel()


async def test_end_of_stream_is_seen_after_the_bytes_before_it(net):
    async def talk(stream):
        await stream.send_all([b"last", b" words"])

    async with trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), talk)
        stream = await net.b.connect(address)
        assert await receive_exactly(stream, 10) == b"last words"
        assert await stream.receive_into(memoryview(bytearray(8))) == 0
        assert await stream.receive_into(memoryview(bytearray(8))) == 0
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_a_cancelled_receive_took_nothing_and_a_cancelled_send_sent_nothing(net):
    hold = trio.Event()
    received = bytearray()

    async def late(stream):
        await hold.wait()
        buffer = memoryview(bytearray(65536))
        while count := await stream.receive_into(buffer):
            received.extend(buffer[:count])
        await stream.send_all([b"done"])

    async with trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), late)
        stream = await net.b.connect(address)
        buffer = bytearray(b"\xaa" * 16)
        with trio.move_on_after(0.02):
            await stream.receive_into(memoryview(buffer))
        assert buffer == b"\xaa" * 16
        sent = 0
        piece = bytes(range(256)) * 512

        async def send():
            nonlocal sent
            sent += await stream.send_some([memoryview(piece)[sent % len(piece) :]])

        with trio.fail_after(60):  # so much fits in any case
            while sent <= len(piece):
                await send()
        with trio.move_on_after(0.2) as scope:
            while True:
                await send()
        assert scope.cancelled_caught
        hold.set()
        await stream.send_all([b"END"])
        with trio.fail_after(60):
            while len(received) < sent + 3:  # noqa: ASYNC110
                await trio.sleep(0.01)
        whole = piece * (sent // len(piece) + 1)
        assert bytes(received) == whole[:sent] + b"END"
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_nobody_listening_is_told_apart(net):
    async with trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), echo)
        await (await net.b.connect(address)).aclose()
        nursery.cancel_scope.cancel()
    with pytest.raises(ConnectionRefused) as caught:
        await net.b.connect(address)
    assert caught.value.status is Status.RPC_CONNECT_FAILED
    assert caught.value.definite


async def test_an_address_can_be_used_again_but_not_twice(net):
    address = net.address()
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(net.a.serve, address, echo)
            with pytest.raises(FsError) as caught:
                await net.a.serve(address, echo)
            assert caught.value.status is Status.START_FAILED
            stream = await net.b.connect(address)
            await stream.send_all([b"x"])
            assert await receive_exactly(stream, 1) == b"x"
            await stream.aclose()
            nursery.cancel_scope.cancel()


async def test_closing_wakes_who_waits(net):
    async with trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), echo)
        stream = await net.b.connect(address)

        async def wait():
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_into(memoryview(bytearray(1)))
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all([b"x"])


async def test_a_stale_socket_file_is_replaced_and_other_files_are_not(tmp_path):
    network = SocketNetwork()
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    async with trio.open_nursery() as nursery:
        await nursery.start(network.serve, f"unix:{path}", echo)
        await (await network.connect(f"unix:{path}")).aclose()
        nursery.cancel_scope.cancel()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(FsError, match="not a socket") as caught:
        await network.serve(f"unix:{path}", echo)
    assert caught.value.status is Status.START_FAILED
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "address",
    [
        "tcp:localhost",
        "tcp::1",
        "tcp:h:99999",
        "udp:h:1",
        "",
        "unix:relative",
        "unix:/" + "x" * 120,
    ],
)
async def test_bad_addresses_are_named(address):
    with pytest.raises(FsError) as caught:
        await SocketNetwork().connect(address)
    assert caught.value.status is Status.BAD_CONFIG
    assert repr(address.removeprefix("unix:"))[1:-1] in caught.value.detail


def test_ipv6_hosts_stand_in_brackets():
    assert split_tcp("tcp:[::1]:80") == ("::1", 80)
    assert split_tcp("tcp:node-3.local:80") == ("node-3.local", 80)
