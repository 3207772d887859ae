# ruff: noqa: ARG001 - a test that waits names the clock it wants
"""A connection of its own tells whether a way is free."""

import errno
import os
import socket

import pytest
import trio

import fs.rpc.transport as transport_module
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
        async def connect(self, _address):
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
