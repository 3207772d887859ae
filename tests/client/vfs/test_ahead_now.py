# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What was read ahead and is answered at once:
the bytes that any other way would return, or nothing.
"""

import os
import random

import pytest
import trio

from fs.client.vfs.changing_attributes import AttrChange
from fs.schema.layout import KIB, MIB
from fs.schema.status import FsError, Status
from tests.examples import first_quick

from .conftest import ROOT, RW

SIZE = 2 * MIB
STEP = 160 * KIB


async def streaming(m, content, flags=RW):
    """Make a file, and return a handle that has read the start of it in order,
    so that more was read ahead.
    """
    await m.write_file(b"f", content)
    handle_id = (await m.open(b"f", flags)).handle_id
    for number in range(3):
        await m.files.read(handle_id, number * STEP, STEP)
    await trio.sleep(1)
    return handle_id


async def cut_to(m, handle_id, length):
    state = m.files.handle(handle_id).state
    await m.names.setattr(state.inode_id, AttrChange(length=length), handle_id, ROOT)


@pytest.mark.parametrize("seed", first_quick(range(8), 2))
async def test_it_is_never_anything_else_than_a_read_returns(autojump_clock, mounts, seed):
    rng, found_count = random.Random(seed), 0
    content = bytearray(rng.randbytes(SIZE))
    async with mounts() as m:
        handle_id = await streaming(m, bytes(content))
        at = 3 * STEP
        for _ in range(150):
            kind = rng.random()
            if kind < 0.1 and content:
                offset, data = rng.randrange(len(content)), rng.randbytes(rng.choice([1, 5000]))
                content[offset : offset + len(data)] = data
                await m.files.write(handle_id, offset, data)
            elif kind < 0.15:
                length = rng.randrange(SIZE)
                del content[length:]
                content += bytes(length - len(content))
                await cut_to(m, handle_id, length)
            elif kind < 0.2:
                at = rng.randrange(SIZE)
            elif kind < 0.3:
                await m.files.fsync(handle_id, is_data_only=False)
            else:
                await trio.sleep(rng.choice([0, 1]))
            count = rng.choice([STEP, 2 * STEP, 5])
            ahead = m.files.ahead_now(handle_id, at, count)
            wanted = bytes(content[at : at + count])
            if ahead is not None:
                assert bytes(ahead) == wanted and len(wanted) == count
                m.files.note_ahead(handle_id, at, count)
                found_count += 1
            assert bytes(await m.files.read(handle_id, at, count)) == wanted
            at += count
            if at >= len(content):
                at = 0
        await m.close(handle_id)
    assert found_count > 2


async def test_a_stream_is_answered_so_and_goes_on_reading_ahead(autojump_clock, mounts):
    content = random.Random(1).randbytes(SIZE)
    async with mounts() as m:
        handle_id = await streaming(m, content)
        core, at, found = m.vfs._core, 3 * STEP, []
        hits, fetched = core.ahead_hit_count, core.fetched_ahead_bytes
        while at < SIZE:
            count = min(STEP, SIZE - at)
            data = m.files.ahead_now(handle_id, at, count)
            if data is None:  # it lies in two blocks
                data = await m.files.read(handle_id, at, count)
            else:
                found.append(at)
                assert core.ahead_hit_count == hits, "nothing is done but that"
                m.files.note_ahead(handle_id, at, count)
            hits = core.ahead_hit_count
            assert bytes(data) == content[at : at + count]
            await trio.sleep(0.1)
            at += count
        assert len(found) > 5 and core.fetched_ahead_bytes > fetched
        assert m.files.ahead_now(handle_id, SIZE - 5, 6) is None, "it would be short"
        await m.close(handle_id)


async def test_only_what_is_read_ahead_is_said_to_be(autojump_clock, mounts, monkeypatch):
    async with mounts() as m:
        chunks, asked = m.cluster.chunks, {}
        read = chunks.read

        async def noted(reads, **others):
            asked.update({one.offset: one.is_ahead for one in reads})
            await read(reads, **others)

        monkeypatch.setattr(chunks, "read", noted)
        handle_id = await streaming(m, bytes(SIZE))
        assert asked.pop(0) is False and not asked.pop(STEP, False)
        assert asked and all(asked.values())
        await m.close(handle_id)


async def _dirty(m, handle_id):
    await m.files.write(handle_id, SIZE - 1, b"x")


async def _cut(m, handle_id):
    await cut_to(m, handle_id, SIZE - 1)


async def _being_cut(m, handle_id):
    m.files.handle(handle_id).state.cuts_under_way += 1


async def _unknown(m, handle_id):
    m.files.handle(handle_id).state.is_length_unknown = True


async def _append(m, handle_id):
    m.files.handle(handle_id).is_append = True


async def _not_come(m, handle_id):
    for block in m.files.handle(handle_id).readahead.blocks:
        block.content.done = trio.Event()


async def _failed(m, handle_id):
    for block in m.files.handle(handle_id).readahead.blocks:
        block.content.error = FsError(Status.IO_ERROR, "a test")


@pytest.mark.parametrize(
    "change", [_dirty, _cut, _being_cut, _unknown, _append, _not_come, _failed]
)
async def test_there_is_nothing_while_another_answer_may_be_the_right_one(
    autojump_clock, mounts, change
):
    async with mounts() as m:
        handle_id = await streaming(m, bytes(SIZE))
        handle = m.files.handle(handle_id)
        fresh = handle.is_append, handle.state.cuts_under_way, handle.state.is_length_unknown
        assert m.files.ahead_now(handle_id, 3 * STEP, 100) is not None
        await change(m, handle_id)
        assert m.files.ahead_now(handle_id, 3 * STEP, 100) is None
        handle.is_append, handle.state.cuts_under_way, handle.state.is_length_unknown = fresh
        for block in handle.readahead.blocks:
            block.content.done.set()


async def test_of_a_handle_that_cannot_read_there_is_an_error(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"f", b"content")
        handle_id = (await m.open(b"f", os.O_WRONLY)).handle_id
        with pytest.raises(FsError) as caught:
            m.files.ahead_now(handle_id, 0, 1)
        assert caught.value.status is Status.BAD_FILE
        await m.close(handle_id)
