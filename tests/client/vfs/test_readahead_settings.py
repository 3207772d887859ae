# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What open files have read ahead when somebody changes how much that may be."""

import msgspec
import pytest
import trio
import trio.testing

from fs.schema.layout import KIB, MIB


async def test_what_was_read_ahead_is_void_once_nothing_is_any_more(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"f", b"old" * 200_000)
        handle_id = (await m.open(b"f")).handle_id
        for number in range(4):
            await m.files.read(handle_id, number * 10_000, 10_000)
        assert m.vfs._core.readahead_bytes
        m.vfs.adopt(msgspec.structs.replace(m.vfs.section, readahead_bytes_max=0))
        await m.files.write(handle_id, 40_000, b"new")
        assert await m.files.read(handle_id, 40_000, 6) == b"newldo"
        assert not m.vfs._core.readahead_bytes
        await m.close(handle_id)


async def test_what_is_on_its_way_counts_though_the_reader_has_jumped(autojump_clock, mounts):
    """Each jump left fetches behind that took memory and were not counted: many jumps, no bound."""
    total_bytes_max = 1024 * KIB
    async with mounts(readahead_total_bytes_max=total_bytes_max) as m:
        await m.write_file(b"f", bytes(16 * MIB))
        handle_id = (await m.open(b"f")).handle_id
        m.cluster.chunks.delay_s = 100.0
        async with trio.open_nursery() as nursery:
            for number in range(8):
                for at in range(3):
                    offset = number * 2 * MIB + at * 64 * KIB
                    nursery.start_soon(m.files.read, handle_id, offset, 64 * KIB)
                    await trio.testing.wait_all_tasks_blocked()
                assert m.vfs._core.readahead_bytes <= total_bytes_max
                assert m.vfs._core.fetched_ahead_bytes <= total_bytes_max, "none has come yet"
            assert m.vfs._core.readahead_bytes == m.vfs._core.fetched_ahead_bytes > 0
        await trio.sleep(200)
        held = sum(h.readahead.held_bytes for h in m.files._handles.values())
        assert m.vfs._core.readahead_bytes == held
        await m.close(handle_id)
        assert m.vfs._core.readahead_bytes == 0


async def test_what_is_written_between_two_streams_leaves_the_memory_of_the_first_to_the_second(
    autojump_clock, mounts
):
    """Else each stream after a write has fresh memory, each page of which is cleared first."""
    async with mounts(readahead_bytes_max=8 * MIB) as m:
        await m.write_file(b"f", bytes(16 * MIB))
        core, kept = m.vfs._core, []
        for _ in range(2):
            handle_id = (await m.open(b"f")).handle_id
            for number in range(16):
                await m.files.read(handle_id, number * MIB, MIB)
            await m.close(handle_id)
            await trio.testing.wait_all_tasks_blocked()
            kept.append(core.ahead_memory.idle_bytes)
            written = [core.memory.take(MIB) for _ in range(100)]
            written.clear()
        assert kept[0] == kept[1] == core.ahead_memory.idle_bytes >= 8 * MIB


async def test_blocks_that_are_wanted_sooner_are_asked_for_sooner(autojump_clock, mounts):
    """A nursery begins its tasks in any order."""
    async with mounts(readahead_bytes_max=16 * MIB) as m:
        await m.write_file(b"f", bytes(16 * MIB))
        for _ in range(10):
            handle_id = (await m.open(b"f")).handle_id
            m.cluster.chunks.reads.clear()
            ahead = m.files.handle(handle_id).readahead
            ahead.next_offset, ahead.sequential_count, ahead.window_bytes = MIB, 5, 8 * MIB
            await m.files.read(handle_id, MIB, MIB)
            await trio.testing.wait_all_tasks_blocked()
            fetched = [offset for _, offset, _ in m.cluster.chunks.reads]
            assert fetched == [MIB, 2 * MIB, 8 * MIB]
            await m.close(handle_id)


async def test_what_no_task_could_be_had_for_is_not_waited_for(autojump_clock, mounts, monkeypatch):
    """Where memory is short a block would count as on its way for ever,
    and so would whoever reads there.
    """
    async with mounts(readahead_bytes_max=8 * MIB) as m:
        await m.write_file(b"f", bytes(8 * MIB))
        handle_id = (await m.open(b"f")).handle_id
        core, spawn = m.vfs._core, m.vfs._core.spawn

        def fail(*_):
            raise MemoryError("injected")

        monkeypatch.setattr(core, "spawn", fail)
        with pytest.raises(MemoryError):
            await m.files.read(handle_id, 0, MIB)
        monkeypatch.setattr(core, "spawn", spawn)
        with trio.fail_after(60):
            assert await m.files.read(handle_id, 0, MIB) == bytes(MIB)
        await trio.testing.wait_all_tasks_blocked()
        held = sum(h.readahead.held_bytes for h in m.files._handles.values())
        assert core.readahead_bytes == held
        await m.close(handle_id)
        assert core.readahead_bytes == 0
