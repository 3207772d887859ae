# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import os
import random

import pytest
import trio

from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK
from tests.examples import first_quick

from .conftest import ROOT, set_length


@pytest.mark.parametrize("seed", first_quick(range(6), 2))
async def test_random_operations_against_a_bytearray(autojump_clock, mounts, cluster, seed):
    rng = random.Random(seed)
    cluster.chunks.delay_s = rng.choice([0.0, 0.3])
    twin = bytearray()
    async with mounts(dirty_bytes_max=1 << 20) as m:
        handles = [await m.create(b"f")]
        for _ in range(250):
            action = rng.choice(
                [
                    "write",
                    "write",
                    "write",
                    "read",
                    "read",
                    "trunc",
                    "sync",
                    "reopen",
                    "wait",
                    "stat",
                ]
            )
            h = rng.choice(handles)
            offset, count = rng.randrange(6 * CHUNK), rng.randrange(1, CHUNK + 5000)
            if rng.random() < 0.4:
                offset = len(twin)
            if action == "write":
                data = rng.randbytes(count)
                if offset > len(twin):
                    twin.extend(bytes(offset - len(twin)))
                twin[offset : offset + count] = data
                await m.files.write(h, offset, data)
            elif action == "read":
                got = bytes(await m.files.read(h, offset, count))
                assert got == bytes(twin[offset : offset + count])
            elif action == "trunc":
                length = rng.randrange(6 * CHUNK)
                await set_length(m, h, b"f", length)
                twin = twin[:length] + bytes(max(0, length - len(twin)))
            elif action == "sync":
                await m.files.fsync(h, is_data_only=False)
                assert cluster.child(1, b"f").length == len(twin)
            elif action == "reopen":
                await m.close(h)
                handles.remove(h)
                handles.append((await m.open(b"f")).handle_id)
                if len(handles) < 3:
                    handles.append((await m.open(b"f")).handle_id)
            elif action == "wait":
                await trio.sleep(rng.random() * 8)
            else:
                assert (await m.stat(b"f")).length == len(twin)
        for h in handles:
            await m.close(h)
        assert await m.read_file(b"f") == bytes(twin)


async def test_shut_down_sends_and_reports_everything(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"left open")
        log = await m.create(b"log", os.O_WRONLY | os.O_APPEND)
        await m.files.write(log, 0, b"record")
    assert cluster.child(1, b"f").length == 9
    assert bytes(cluster.chunks.chunks[cluster.child(1, b"log").inode_id, 0]) == b"record"
    assert not any(cluster.sessions.values())


async def test_a_paused_service_is_a_pause_not_an_error(autojump_clock, mounts, cluster):
    async with mounts() as m:
        cluster.chunks.gate = trio.Event()
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(m.files.flush, h)
            await trio.sleep(3600)
            cluster.chunks.gate.set()
        await m.files.release(h)


async def test_a_report_that_failed_after_release_is_tried_again(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"x")
        cluster.meta_faults["Close"] = [FsError(Status.KV_UNAVAILABLE, "injected")]
        with pytest.raises(FsError):
            await m.files.release(h)
        assert cluster.child(1, b"f").length == 0
        await trio.sleep(10)
        assert cluster.child(1, b"f").length == 1


async def test_statfs_is_cached_for_a_second(autojump_clock, mounts, cluster):
    async with mounts() as m:
        await trio.sleep(0.1)  # the mount looks by itself at its start, and every 5 s
        for _ in range(3):
            assert (await m.vfs.statfs(ROOT)).free_bytes == 1 << 39
        assert cluster.calls.count("StatFs") == 1
        await trio.sleep(1.5)
        await m.vfs.statfs(ROOT)
        assert cluster.calls.count("StatFs") == 2


async def failed_unmount(mounts, act, **settings):
    """Return what the end of a mount says, and how long after the act it came."""

    async def mount_and_act():
        async with mounts(**settings) as m:
            await act(m)
            ended_s.append(trio.current_time())

    ended_s = []
    with pytest.raises(ExceptionGroup) as failed:
        await mount_and_act()
    (error,) = failed.value.exceptions
    assert error.status is Status.NOT_FLUSHED, error
    return error.detail, trio.current_time() - ended_s[0]


async def test_an_unmount_says_what_it_could_not_write(autojump_clock, mounts, cluster):
    async def act(m):
        await m.write_file(b"whole", b"written")
        left_open = await m.create(b"f")
        cluster.chunks.gate = trio.Event()  # from now on no chain takes anything
        await m.files.write(left_open, 0, b"never written")

    told, took_s = await failed_unmount(mounts, act, unmount_time_s_max=20.0)
    assert f"inode {cluster.child(1, b'f').inode_id}" in told
    assert "more" not in told
    assert 20.0 <= took_s < 21.0
    assert cluster.child(1, b"f").length == 0


async def test_an_unmount_tells_of_failures_that_nobody_was_told_of(
    autojump_clock, mounts, cluster
):
    async def act(m):
        for name in (b"f", b"g", b"told"):
            handle_id = await m.create(name)
            cluster.chunks.write_faults.append(FsError(Status.IO_ERROR, "injected"))
            await m.files.write(handle_id, 0, bytes(CHUNK))
            await trio.sleep(1)
        with pytest.raises(FsError):
            await m.files.fsync(handle_id, is_data_only=False)

    told, took_s = await failed_unmount(mounts, act)
    assert "(injected), and of 1 files more" in told
    assert took_s < 1.0
