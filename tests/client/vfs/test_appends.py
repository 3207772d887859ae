# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Appends of several handles and mounts: nothing lost, nothing torn."""

import os
import random

import pytest
import trio
import trio.testing

from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK

from .conftest import RW, A, fault


async def test_two_appenders_lose_and_tear_nothing(autojump_clock, mounts, cluster):
    cluster.chunks.delay_s = 0.2
    async with mounts(2, write_buffer_bytes=4096) as both:
        await both[0].write_file(b"log", b"")
        rng = random.Random(3)

        async def appender(m, tag):
            h = (await m.open(b"log", A)).handle_id
            for i in range(60):
                body = b"%s%04d" % (tag, i) + b"." * rng.randrange(300)
                await m.files.write(h, 0, b"<" + body + b">\n")
                if rng.random() < 0.2:
                    await m.files.fsync(h, is_data_only=False)
                await trio.sleep(rng.random() / 50)
            await m.close(h)

        async with trio.open_nursery() as nursery:
            for m, tag in zip((*both, both[0]), (b"a", b"b", b"c"), strict=True):
                nursery.start_soon(appender, m, tag)
        lines = (await both[1].read_file(b"log")).splitlines()
        assert all(line.startswith(b"<") and line.endswith(b">") for line in lines)
        for tag in (b"a", b"b", b"c"):
            mine = [line[2:6] for line in lines if line[1:2] == tag]
            assert mine == [b"%04d" % i for i in range(60)]
        assert both[0].kernel.content  # the kernel's guess of the offset was wrong at times


async def test_append_handles_see_their_own_records(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"log", os.O_RDWR | os.O_APPEND)
        await m.files.write(h, 0, b"one")
        assert (await m.stat(b"log")).length == 3
        await m.files.write(h, 3, b"two")
        assert bytes(await m.files.read(h, 0, 100)) == b"onetwo"
        await m.close(h)


async def test_a_handle_whose_flag_was_taken_away_writes_and_copies_where_it_is_told(
    autojump_clock, mounts
):
    async with mounts() as m:
        h = await m.create(b"log", os.O_RDWR | os.O_APPEND)
        await m.files.write(h, 0, b"one-two")
        assert await m.files.write(h, 0, b"ONE", appends=False) == 3
        assert bytes(await m.files.read(h, 0, 100)) == b"ONE-two"
        assert await m.vfs.copying.copy(h, 0, h, 4, 3) == 3
        await m.files.write(h, 0, b"!")
        assert bytes(await m.files.read(h, 0, 100)) == b"ONE-ONE!"
        await m.close(h)
        assert await m.read_file(b"log") == b"ONE-ONE!"


async def test_a_failed_reservation_is_an_error_at_close(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"log", A)
        await m.files.write(h, 0, b"one")
        cluster.meta_faults["ReserveAppend"] = [fault(Status.QUOTA_EXCEEDED)]
        with pytest.raises(FsError) as e:
            await m.files.flush(h)
        assert e.value.status is Status.QUOTA_EXCEEDED
        await m.close(h)


async def test_an_interrupted_append_is_an_error_at_close(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"log", A)
        await m.files.write(h, 0, b"one")
        meta = m.vfs._core.meta
        meta.reserve_append = lambda _request: trio.sleep_forever()  # noqa: ASYNC105 - the fake awaits it
        with trio.move_on_after(1) as scope:
            await m.files.flush(h)
        assert scope.cancelled_caught
        del meta.reserve_append
        with pytest.raises(FsError) as e:
            await m.files.flush(h)
        assert e.value.status is Status.IO_ERROR
        await m.files.write(h, 0, b"two")
        await m.close(h)
        assert await m.read_file(b"log") == b"two"


async def test_a_write_comes_after_the_records_appended_before_it(autojump_clock, mounts):
    async with mounts() as m:
        appender = await m.create(b"f", RW | os.O_APPEND)
        writer = (await m.open(b"f")).handle_id
        await m.files.write(appender, 0, b"one")
        await m.files.write(writer, 0, b"ONE-and-more")
        await m.files.write(appender, 12, b"two")
        assert await m.read_all(writer) == b"ONE-and-moretwo"
        await m.close(appender)
        await m.close(writer)


async def test_an_append_has_the_time_at_which_it_was_written(autojump_clock, mounts):
    async with mounts() as m:
        handle_id = await m.create(b"f", RW | os.O_APPEND)
        await m.files.write(handle_id, 0, b"x")
        seen = (await m.stat(b"f")).mtime_ns
        await trio.sleep(0.001)
        await m.files.fsync(handle_id, is_data_only=False)
        assert (await m.stat(b"f")).mtime_ns == seen
        await trio.sleep(1)
        await m.close(handle_id)
        assert (await m.stat(b"f")).mtime_ns == seen


async def test_pages_of_a_map_go_to_their_place_after_what_was_appended(autojump_clock, mounts):
    """The kernel writes them by any open file, also by one that appends."""
    async with mounts() as m:
        await m.write_file(b"log", b"first ")
        h = (await m.open(b"log", os.O_RDWR | os.O_APPEND)).handle_id
        await m.files.write(h, 6, b"second")
        assert await m.files.write_mapped(h, 0, b"FIRST") == 5
        await m.close(h)
        assert await m.read_file(b"log") == b"FIRST second"


async def test_records_follow_bytes_of_which_only_the_chains_know(autojump_clock, mounts, cluster):
    """A write has failed, so that the end of what was written is not known any more:
    meta is not to go by what it was told before.
    """
    async with mounts(write_back_interval_s=1000.0) as m:
        h = await m.create(b"log", RW)
        appending = (await m.open(b"log", A)).handle_id
        state = m.files.open_state(h)
        await m.files.write(h, 0, b"a" * CHUNK)
        await m.vfs._core.drain(state)
        cluster.chunks.write_faults = [fault(Status.IO_ERROR)]
        await m.files.write(h, 0, b"lost")
        await m.vfs._core.drain(state)
        with pytest.raises(FsError):
            await m.files.write(appending, 0, b"behind")
        await m.files.write(appending, 0, b"behind")
        await m.close(appending)
        with pytest.raises(FsError):
            await m.files.flush(h)
        await m.close(h)
        assert await m.read_file(b"log") == b"a" * CHUNK + b"behind"


async def test_a_record_has_no_place_while_nobody_knows_where_the_file_ends(
    autojump_clock, mounts, cluster
):
    async with mounts(write_back_interval_s=1000.0) as m:
        h = await m.create(b"log", RW)
        appending = (await m.open(b"log", A)).handle_id
        await m.files.write(h, 0, b"first")
        await m.vfs._core.drain(m.files.open_state(h))
        await m.files.write(appending, 0, b"behind")
        m.files.open_state(h).is_length_unknown = True
        cluster.meta_faults["Sync"] = [fault(Status.KV_UNAVAILABLE)]
        for told in (appending, h):
            with pytest.raises(FsError) as e:
                await m.files.flush(told)
            assert e.value.status is Status.IO_ERROR
        assert "ReserveAppend" not in cluster.calls
        await m.close(appending)
        await m.close(h)
        assert await m.read_file(b"log") == b"first"
