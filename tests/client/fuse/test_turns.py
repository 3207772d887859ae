"""What else the event loop has to do has its turns while requests come without an end."""

from collections import Counter

import pytest
import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.device import Device
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.direct.together import REQUEST_COUNT_MAX
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    cluster,
    is_watched,
    kernel,
    killed,
)

COUNT = 300


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("opcode", [Opcode.READLINK, Opcode.GETATTR])
async def test_requests_that_never_wait_leave_turns_to_others(
    kernel,  # noqa: F811 - the fixture
    nursery,
    monkeypatch,
    opcode,
):
    error, made = await kernel.ask(Opcode.SYMLINK, b"s\0target\0")
    assert error == 0
    turn_count, reply, answered = 0, Device.reply, Counter()

    async def take_turns():
        nonlocal turn_count
        while True:
            await trio.lowlevel.checkpoint()
            turn_count += 1

    def counting_reply(self, unique, buffers):
        answered[turn_count] += 1
        reply(self, unique, buffers)

    monkeypatch.setattr(Device, "reply", counting_reply)
    nursery.start_soon(take_turns)
    node_id = p.ENTRY_OUT.unpack_from(made)[0] if opcode is Opcode.READLINK else 1
    body = b"" if opcode is Opcode.READLINK else p.GETATTR_IN.pack(0, 0, 0)
    kernel.send_together(*[(opcode, body, node_id)] * COUNT)
    for _ in range(COUNT):
        await kernel.receive()
    assert sum(answered.values()) == COUNT
    assert max(answered.values()) <= 2 * REQUEST_COUNT_MAX
