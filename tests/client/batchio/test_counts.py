# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What a mount counts of rings, for its metrics, its profile and its traces."""

import json

import trio.testing
from emberfs.protocol import Op

from fs.client.vfs.ports import Caller

from .fuzz import CONTENT


async def test_rings_are_counted(autojump_clock, program):
    async with program(CONTENT) as it:
        batches = it.mount.vfs.batches
        assert await it.do({"length": 100}, {"place": 200, "length": 100}) == [100, 100]
        await it.do({"op": Op.WRITE, "length": 7})
        await trio.testing.wait_all_tasks_blocked()
        assert (batches.batch_count, batches.entry_count, batches.wake_count) == (2, 3, 2)
        assert batches.open_count == 0


async def test_the_profile_shows_batches_by_program(autojump_clock, program):
    async with program(CONTENT) as it:
        profile = it.mount.vfs.profile
        profile._find_process = lambda thread_id: (thread_id, "trainer")
        profile.look(Caller(0, 0))
        await it.do({"length": 100}, {"place": 200, "length": 100})
        (process,) = json.loads(profile.look(Caller(0, 0)))["processes"]
        assert process["command"] == "trainer"
        read = process["operations"]["ring_read"]
        assert (read["calls"], read["bytes"], sum(read["counts"])) == (2, 200, 1)


async def test_a_batch_begins_a_trace(autojump_clock, program):
    async with program(CONTENT) as it:
        tracer, ended = it.mount.vfs.tracer, []
        tracer.sink = ended.append
        await it.do({"length": 100})
        assert not ended
        tracer.sample_rate = 1.0
        await it.do({"length": 100}, {"length": 200})
        await trio.testing.wait_all_tasks_blocked()
        (span,) = ended
        assert span.name == "batch" and span.attributes["entries"] == 2
