# ruff: noqa: ARG001 - a test that waits names the clock it wants
"""A connection of its own tells whether a way is free."""

import errno
import os
import socket

import pytest
import trio

import fs.rpc.transport as transport_module
from fs.rpc.api import ConnectionRefused
from fs.rpc.free_way import is_way_free
from fs.rpc.transport import SocketNetwork
from fs.rpc.transport_memory import MemoryNetwork
from fs.schema.status import FsError, Status


async def drop(stream):
    await stream.receive_into(memoryview(bytearray(1)))


async def test_a_free_way_and_one_that_ends_at_nobody(net):
    async with trio.open_nursery() as nursery:
        address = await nursery.start(net.a.serve, net.address(), drop)
        assert await is_way_free(net.b, address, 5.0)
        nursery.cancel_scope.cancel()
    assert not await is_way_free(net.b, address, 5.0)


@pytest.mark.parametrize("ends", [("a", "b"), ("b", "a")])
async def test_a_way_that_is_cut_in_one_direction_is_not_free(autojump_clock, nursery, ends):
    network = MemoryNetwork(seed=1)
    await nursery.start(network.endpoint("a").serve, "mem:a", drop)
    network.block(*ends)
    began_s = trio.current_time()
    assert not await is_way_free(network.endpoint("b"), "mem:a", 2.0)
    assert trio.current_time() - began_s == pytest.approx(2.0, abs=0.01)


async def test_who_does_not_accept_can_be_connected_to():
    """As a process that is stopped: its kernel does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        host, port = listener.getsockname()
        assert await is_way_free(SocketNetwork(), f"tcp:{host}:{port}", 5.0)


async def test_a_process_that_had_no_turn_finds_that_it_is_connected(autojump_clock):
    """Its time is over by then."""

    class Late:
        async def connect(self, _address, **_options):
            with trio.CancelScope(shield=True):
                await trio.sleep(9.0)
            return self

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    assert await is_way_free(Late(), "mem:a", 2.0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
async def test_a_process_without_descriptors_finds_nothing_out(monkeypatch, number):
    def refuse(*_what):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(transport_module.socket, "socket", refuse)
    with pytest.raises(FsError) as caught:
        await is_way_free(SocketNetwork(), "tcp:127.0.0.1:1", 5.0)
    assert caught.value.status is Status.OUT_OF_RESOURCES


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_name_service_that_fails_takes_no_way_away(monkeypatch, nursery, fault):
    """Was: a node that was just slow then looked cut off, and lost a connection that could not
    be made again.
    """
    network = SocketNetwork()
    real, is_broken = trio.socket.getaddrinfo, False

    async def getaddrinfo(host, port, **options):
        if not is_broken:
            return await real("127.0.0.1" if host == "node-7" else host, port, **options)
        if fault == "hangs":
            await trio.sleep_forever()
        raise socket.gaierror(socket.EAI_AGAIN, "no name service")

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(transport_module, "RESOLVE_S", 0.01)
    bound = await nursery.start(network.serve, "tcp:127.0.0.1:0", drop)
    address = bound.replace("127.0.0.1", "node-7")
    await (await network.connect(address)).aclose()
    is_broken = True
    assert await is_way_free(network, address, 60.0)
    if fault == "fails":
        with pytest.raises(FsError):  # what was there before may be another node's by now
            await network.connect(address)
        assert not await is_way_free(SocketNetwork(), address, 60.0)
    is_broken = False
    nursery.cancel_scope.cancel()


async def test_where_names_led_is_known_of_so_many(monkeypatch):
    monkeypatch.setattr(transport_module, "KNOWN_MAX", 3)
    network = SocketNetwork()
    for number in range(5):
        with pytest.raises(ConnectionRefused):
            await network.connect(f"unix:/nobody-{number}")
    assert list(network._known) == [f"unix:/nobody-{n}" for n in (2, 3, 4)]
