# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Small batches that a ring begins, and that no task waits for."""

import errno

import pytest
import trio
import trio.testing
from emberfs.protocol import EntryFlag, Op

from .fuzz import CONTENT


@pytest.fixture
def flushed(program):
    """Return a program on a file that is in storage, and the model of that."""

    class Opened:
        async def __aenter__(self):
            self.context = program(CONTENT)
            it = await self.context.__aenter__()
            await it.mount.files.flush(it.base)
            return it, it.mount.vfs._core.store.chunks

        async def __aexit__(self, *error):
            await self.context.__aexit__(*error)

    return Opened()


async def test_small_reads_are_begun_and_larger_ones_not(autojump_clock, flushed):
    async with flushed as (it, chunks):
        assert await it.do({"offset": 7, "place": 50, "length": 4096}) == [4096]
        assert it.memory.view[50:4146] == CONTENT[7:4103]
        assert await it.do({"length": 100}, {"place": 200, "offset": 500, "length": 100}) == [
            100,
            100,
        ]
        assert it.memory.view[200:300] == CONTENT[500:600]
        assert len(chunks.begun) == 2
        assert await it.do({"length": 4000}, {"place": 8192, "length": 97}) == [4000, 97]
        assert await it.do({"offset": 9, "length": 65_537}) == [65_537]
        assert len(chunks.begun) == 2
        assert await it.do({"offset": 9, "length": 65_536}) == [65_536]  # by itself
        assert it.memory.view[:65_536] == CONTENT[9:65_545]
        assert len(chunks.begun) == 3
        assert await it.do({"op": Op.WRITE, "length": 100}) == [100]
        assert await it.do({"offset": len(CONTENT) - 5, "length": 10}) == [5]
        assert len(chunks.begun) == 3
        batches = it.mount.vfs.batches
        assert (batches.batch_count, batches.entry_count, batches.open_count) == (7, 9, 0)
        assert it.ring._turns._free == 4


async def test_nobody_waits_for_a_begun_read(autojump_clock, flushed):
    async with flushed as (it, chunks):
        await it.do({"length": 100})
        chunks.begun_gate = trio.Event()
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        it.put(length=100)
        it.ring_bell(1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(chunks.begun) == 2
        assert trio.lowlevel.current_statistics().tasks_living == before + 1  # the model's own
        chunks.begun_gate.set()
        assert await it.results(1) == [(1, 100)]


async def test_own_writes_that_are_buffered_are_waited_for(autojump_clock, flushed):
    async with flushed as (it, chunks):
        await it.mount.files.write(it.base, 0, b"newer")
        assert await it.do({"length": 5}) == [5]
        assert it.memory.view[:5] == b"newer"
        assert not chunks.begun


async def test_holes_are_told_of(autojump_clock, flushed):
    async with flushed as (it, chunks):
        await it.mount.files.write(it.base, len(CONTENT) + 1_000_000, b"end")
        await it.mount.files.flush(it.base)
        hole = {"offset": len(CONTENT) + 500_000, "length": 100}
        it.memory.view[:100] = b"x" * 100
        assert await it.do(hole) == [100]
        assert it.memory.view[:100] == bytes(100)
        assert await it.do(hole | {"flags": EntryFlag.HOLES_ARE_ERRORS}) == [-errno.ENODATA]
        assert len(chunks.begun) == 2


async def test_what_cannot_be_finished_is_done_the_ordinary_way(autojump_clock, flushed):
    async with flushed as (it, chunks):
        chunks.has_begun_faults = True
        assert await it.do({"offset": 3, "length": 1000}) == [1000]
        assert it.memory.view[:1000] == CONTENT[3:1003]
        assert len(chunks.begun) == 1
        assert it.ring._turns._free == 4


async def test_a_bug_in_beginning_one_ends_no_ring(autojump_clock, flushed, monkeypatch, caplog):
    async with flushed as (it, chunks):

        def begin_read(*_, **__):
            raise RuntimeError("broken invariant")

        with monkeypatch.context() as patch:
            patch.setattr(chunks, "begin_read", begin_read)
            assert await it.do({"offset": 3, "length": 1000}) == [1000]
        assert "broken invariant" in caplog.text
        assert it.ring._turns._free == 4
        assert await it.do({"length": 10}) == [10]
        assert len(chunks.begun) == 1


async def test_the_ring_goes_on_while_one_is_under_way(autojump_clock, flushed):
    async with flushed as (it, chunks):
        chunks.begun_gate = trio.Event()
        it.put(length=100, user_data=1)
        it.ring_bell(1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(chunks.begun) == 1
        it.put(place=1 << 17, length=1 << 17, user_data=2)
        it.ring_bell(1)
        assert await it.results(1) == [(2, 1 << 17)]
        chunks.begun_gate.set()
        assert await it.results(1) == [(1, 100)]


async def test_at_the_end_of_a_ring_no_read_reaches_memory_any_more(autojump_clock, flushed):
    async with flushed as (it, chunks):
        chunks.begun_gate = trio.Event()
        it.put(length=100)
        it.ring_bell(1)
        await trio.testing.wait_all_tasks_blocked()
        it.bell.close()
        await trio.testing.wait_all_tasks_blocked()
        assert chunks.begun[0].has_ended
        chunks.begun_gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert it.memory.view[:100] == bytes(100)
        assert it.ring._turns._free == 4
        assert it.mount.vfs.batches.open_count == 0
