# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""A mount that gets no more threads for a while goes on all the same,
and what programs had is given back.
"""

import os
import socket

import pytest
import trio
from emberfs.protocol import REPLY, REQUEST, TICKET, VERSION, Call

from fs.client.batchio import descriptors
from fs.client.batchio.descriptors import CLOSES_PER_USER_MAX, Closer
from fs.client.batchio.server import BatchServer

LARGE = 16 << 20
"""Memory that is given back in a thread."""


@pytest.fixture
def no_threads(monkeypatch):
    """Return what has threads refused from now on, and what has them come again."""
    start = trio.lowlevel.start_thread_soon

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    def refuse_all():
        monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refuse)

    def allow():
        monkeypatch.setattr(trio.lowlevel, "start_thread_soon", start)

    return refuse_all, allow


async def test_what_programs_have_sent_is_closed_once_there_is_one(no_threads, monkeypatch):
    refuse, allow = no_threads
    monkeypatch.setattr(descriptors, "AGAIN_S", 0.01)
    closer, ends = Closer(), [os.pipe() for _ in range(CLOSES_PER_USER_MAX)]
    refuse()
    closed = [closer.close(7, [write]) for _, write in ends]
    assert closer.is_busy(7)
    await trio.sleep(0.05)
    assert not any(one.is_set() for one in closed)
    allow()
    with trio.fail_after(60):
        for one in closed:
            await one.wait()
    assert not closer.is_busy(7)
    for read, _ in ends:
        assert os.read(read, 1) == b""
        os.close(read)


async def test_a_program_that_ends_leaves_nothing_open(autojump_clock, mounts, no_threads, caplog):
    async with mounts() as mount:
        server = BatchServer(mount.vfs, mount.vfs.section)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        base = await mount.create(b"f")
        open_count = len(mount.files._handles)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server._serve, trio.socket.from_stdlib_socket(ours))
            ticket = TICKET.unpack(mount.vfs.batches.ticket(base))
            calls = (
                (Call.HELLO, VERSION, 0, 0),
                (Call.NEW_MEMORY, 0, LARGE, 0),
                (Call.NEW_MEMORY, 0, LARGE, 0),
                (Call.ADD_FILE, 0, *ticket),
            )
            for serial, (call, id_, first, second) in enumerate(calls):
                theirs.send(REQUEST.pack(call, serial, id_, 0, 0, 0, first, second))
                await trio.lowlevel.wait_readable(theirs)
                answer, fds, _, _ = socket.recv_fds(theirs, 1024, 1)
                assert REPLY.unpack_from(answer)[:2] == (serial, 0)
                for fd in fds:
                    os.close(fd)
            assert len(mount.files._handles) == open_count + 1
            refuse, allow = no_threads
            refuse()
            theirs.close()
        assert server.room.used_bytes == 0
        assert len(mount.files._handles) == open_count
        assert "bug" not in caplog.text
        allow()
        await mount.close(base)
