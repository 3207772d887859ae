"""A mount over the model, and programs of one's own making on both ends of a ring."""

import os
import socket
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from emberfs.protocol import (
    COMPLETION,
    COUNT,
    ENTRY,
    Op,
    Priority,
    completion_offset,
    entry_offset,
    ring_bytes,
)

from fs.client.batchio.checks import Share
from fs.client.batchio.descriptors import Closer
from fs.client.batchio.memory import new_memory
from fs.client.batchio.ring import Ring
from fs.client.batchio.turns import Turns
from tests.client.vfs.conftest import autojump_clock, cluster, inline_bytes_max, mounts

__all__ = ["autojump_clock", "cluster", "inline_bytes_max", "mounts", "program"]
ENTRY_COUNT = 16


class ModelProgram:
    """The program's end of one ring, with one file and some memory."""

    def __init__(self, mount, handle_id, **settings):
        self.files = {1: Share(handle_id, True, True)}
        self.memory, fd = new_memory(1 << 20)
        os.close(fd)
        self.memories = {1: self.memory}
        ring_memory, fd = new_memory(ring_bytes(ENTRY_COUNT))
        os.close(fd)
        self.view = ring_memory.view
        ours, self.bell = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        options = {"depth": 0, "timeout_s": 0.0, "priority": Priority.NORMAL} | settings
        self.ring = Ring(
            ring_memory,
            ours,
            entry_count=ENTRY_COUNT,
            pid=os.getpid(),
            files=self.files,
            memories=self.memories,
            batches=mount.vfs.batches,
            turns=Turns(4),
            uid=0,
            end_bell=partial(Closer().end, 0),
            **options,
        )
        self.put_count = self.got_count = 0

    def put(
        self,
        *,
        op=Op.READ,
        offset=0,
        place=0,
        length=100,
        user_data=None,
        file=1,
        memory=1,
        flags=0,
    ):
        """Write one entry; the daemon does not know of it yet."""
        user_data = self.put_count if user_data is None else user_data
        ENTRY.pack_into(
            self.view, entry_offset(self.put_count, ENTRY_COUNT),
            user_data, offset, place, length, file, memory, op, flags,
        )  # fmt: skip
        self.put_count += 1

    def ring_bell(self, count):
        self.bell.send(COUNT.pack(count))

    def heard(self):
        """Return the completions that are announced now."""
        try:
            counts = self.bell.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        found = []
        for (count,) in COUNT.iter_unpack(counts):
            for _ in range(count):
                place = completion_offset(self.got_count, ENTRY_COUNT)
                found.append(COMPLETION.unpack_from(self.view, place))
                self.got_count += 1
        return found

    async def results(self, count):
        """Wait for so many completions."""
        found = []
        with trio.fail_after(60):
            while len(found) < count:
                await trio.lowlevel.wait_readable(self.bell)
                found += self.heard()
        return found

    async def do(self, *puts):
        """Do entries at once; return their results in the order of their user data."""
        for put in puts:
            self.put(**put)
        self.ring_bell(len(puts))
        return [result for _, result in sorted(await self.results(len(puts)))]


@asynccontextmanager
async def running_program(mount, content=b"", **settings):
    """Serve one ring on a file of a mount."""
    base = await mount.create(b"file")
    if content:
        await mount.files.write(base, 0, content)
    handle_id = mount.vfs.batches.open(mount.vfs.batches.ticket(base))
    model = ModelProgram(mount, handle_id, **settings)
    model.mount, model.base = mount, base
    async with trio.open_nursery() as nursery:
        nursery.start_soon(model.ring.run)
        yield model
        nursery.cancel_scope.cancel()
    model.bell.close()
    await mount.vfs.batches.close(handle_id)
    await mount.close(base)


@pytest.fixture
def program(mounts):
    @asynccontextmanager
    async def start(content=b"", **settings):
        async with mounts() as mount, running_program(mount, content, **settings) as model:
            yield model

    return start
