"""Large READs of what was read ahead: answered where the loop waits,
before anything else is done for them.
"""

import random
from collections import Counter

import pytest
import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.device import Device
from fs.client.fuse.direct.operations import Operations
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.direct.together import REQUEST_COUNT_MAX
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    a_read,
    cluster,
    is_watched,
    kernel,
    killed,
    several,
)

STEP = 160 << 10
DATA = random.Random(7).randbytes(12 * STEP)
COUNT = 300


def part(number):
    return 0, DATA[number * STEP :][:STEP]


@pytest.fixture
async def stream(kernel):  # noqa: F811 - the fixture
    """Return a handle that has read the first parts of a file in order."""
    inode_id, fh = await kernel.make(b"f")
    for at in range(0, len(DATA), STEP):
        data = DATA[at : at + STEP]
        error, _ = await kernel.ask(
            Opcode.WRITE, p.WRITE_IN.pack(fh, at, len(data), 0, 0, 0, 0) + data, inode_id
        )
        assert error == 0
    assert (await kernel.ask(Opcode.FSYNC, p.FSYNC_IN.pack(fh, 0, 0), inode_id))[0] == 0
    for number in range(3):
        assert await kernel.ask(*a_read(fh, number * STEP, STEP)) == part(number)
    await trio.testing.wait_all_tasks_blocked()
    return fh


@pytest.fixture
def steps(monkeypatch):
    """What the server does, in order."""
    done, reply, note = [], Device.reply, Operations.note_ahead

    def replied(self, unique, buffers):
        done.append("reply")
        reply(self, unique, buffers)

    def noted(self, row):
        done.append("note")
        note(self, row)

    monkeypatch.setattr(Device, "reply", replied)
    monkeypatch.setattr(Operations, "note_ahead", noted)
    return done


async def test_the_reader_has_his_bytes_before_what_comes_next_is_looked_at(
    kernel,  # noqa: F811 - the fixture
    stream,
    steps,
):
    steps.clear()
    for number in range(3, 12):
        assert await kernel.ask(*a_read(stream, number * STEP, STEP)) == part(number)
        await trio.testing.wait_all_tasks_blocked()
    assert steps.count("reply") == 9 and steps.count("note") > 4
    assert all(steps[at - 1] == "reply" for at, step in enumerate(steps) if step == "note")


async def test_a_failure_to_read_ahead_is_nobody_elses(
    kernel,  # noqa: F811 - the fixture
    stream,
    monkeypatch,
    caplog,
):
    def fail(*_):
        raise MemoryError("no more")

    monkeypatch.setattr(Operations, "note_ahead", fail)
    assert await kernel.ask(*a_read(stream, 3 * STEP, STEP)) == part(3)
    assert "no more" in caplog.text
    monkeypatch.undo()
    assert await kernel.ask(*a_read(stream, 4 * STEP, STEP)) == part(4)


async def test_what_was_written_since_is_what_is_read(kernel, stream):  # noqa: F811 - the fixture
    _, reply = await kernel.ask(Opcode.LOOKUP, b"f\0")
    inode_id = p.ENTRY_OUT.unpack_from(reply)[0]
    error, reply = await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(2, 0), inode_id)
    assert error == 0
    writer = p.OPEN_OUT.unpack_from(reply)[0]
    write = p.WRITE_IN.pack(writer, 3 * STEP, 3, 0, 0, 0, 0) + b"new"
    sent = kernel.send_together((Opcode.WRITE, write, inode_id), a_read(stream, 3 * STEP, STEP))
    found = await several(kernel, sent)
    assert found[0][0] == 0
    assert found[1] == (0, b"new" + DATA[3 * STEP + 3 : 4 * STEP])


async def test_a_reader_without_an_end_leaves_turns_to_others(
    kernel,  # noqa: F811 - the fixture
    stream,
    nursery,
    monkeypatch,
):
    turn_count, answered, all_answered = 0, Counter(), trio.Event()

    async def take_turns():
        nonlocal turn_count
        while True:
            await trio.lowlevel.checkpoint()
            turn_count += 1

    def count(*_):
        answered[turn_count] += 1
        if sum(answered.values()) == COUNT:
            all_answered.set()

    monkeypatch.setattr(Device, "reply", count)
    nursery.start_soon(take_turns)
    kernel.send_together(*[a_read(stream, 3 * STEP, STEP)] * COUNT)
    with trio.fail_after(30):
        await all_answered.wait()
    assert max(answered.values()) <= 2 * REQUEST_COUNT_MAX
