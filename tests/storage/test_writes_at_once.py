# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Small writes that need no thread: when they are made on the event loop,
and when it is spared them.
"""

import random

import pytest
import trio

from fs.runtime.ports import Runtime
from fs.schema.config import DiskSection, StorageSection
from fs.schema.status import FsError, Status
from fs.storage.disk import (
    AT_ONCE_BYTES_MAX,
    AT_ONCE_FLUSH_S_MAX,
    AT_ONCE_PAUSE_S,
    AT_ONCE_S_MAX,
    Disk,
)

from .cluster import content, open_caller, open_cluster


class HandClock:
    """Shows what a test says."""

    now_s = 100.0

    def monotonic_s(self):
        return self.now_s


class Engine:
    """Flushes when a test lets it."""

    def sync(self):
        pass


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def disk(clock):
    async def run_blocking(_function):
        await trio.sleep_forever()

    return Disk(
        0, "/disk", Engine(), Runtime(clock, None, run_blocking, random.Random(1)), StorageSection()
    )


def test_large_writes_go_to_a_thread(disk):
    assert disk.may_write_at_once(AT_ONCE_BYTES_MAX)
    assert not disk.may_write_at_once(AT_ONCE_BYTES_MAX + 1)


def test_a_write_that_took_long_has_others_leave_the_event_loop_alone(disk, clock):
    def slow():
        clock.now_s += 2 * AT_ONCE_S_MAX
        return 7

    assert disk.write_at_once(1, slow) == 7
    assert not disk.may_write_at_once(1)
    clock.now_s += AT_ONCE_PAUSE_S
    assert disk.may_write_at_once(1)


async def test_a_flush_that_takes_long_has_writes_leave_the_event_loop_alone(disk, clock, nursery):
    nursery.start_soon(disk.sync)
    await trio.testing.wait_all_tasks_blocked()
    assert disk.may_write_at_once(1)
    clock.now_s += 2 * AT_ONCE_FLUSH_S_MAX
    assert not disk.may_write_at_once(1)
    nursery.cancel_scope.cancel()


def test_a_write_that_fails_takes_the_disk_out_of_service(disk):
    def fail():
        raise FsError(Status.IO_ERROR, "injected")

    with pytest.raises(FsError, match="injected"):
        disk.write_at_once(1, fail)
    assert disk.is_failed


@pytest.mark.parametrize("is_quick", [True, False])
async def test_a_small_new_chunk_needs_a_thread_only_where_it_may_have_to_wait(
    mock_clock, is_quick, monkeypatch
):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, b"claims space, and makes the data file")
        calls = []
        for node in cluster.nodes.values():
            node.disk.is_quick = lambda: is_quick
            disk = node.target.disk
            real = disk.calls._run_blocking

            async def counted(function, *arguments, real=real):
                calls.append(function)
                return await real(function, *arguments)

            monkeypatch.setattr(disk.calls, "_run_blocking", counted)
        await client.write(0, b"small", 1)
        await client.write(0, b"also whole", 1)
        assert len(calls) == (0 if is_quick else 6)
        assert {content(cluster, n, 1)[2] for n in cluster.nodes} == {b"also whole"}


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_process_with_several_disks_writes_to_none_of_them_on_its_event_loop(
    mock_clock, is_alone, monkeypatch
):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        inside, on_loop = [], []
        for node in cluster.nodes.values():
            disk = node.target.disk
            assert disk.writes_on_loop
            disk.writes_on_loop = is_alone
            real = disk.calls._run_blocking

            async def counted(function, *arguments, real=real):
                def flagged():
                    inside.append(function)
                    try:
                        return function(*arguments)
                    finally:
                        inside.pop()

                return await real(flagged)

            def note(name):
                if name not in {"read", "flush"} and not inside:
                    on_loop.append(name)

            monkeypatch.setattr(disk.calls, "_run_blocking", counted)
            node.disk.on_step = note
        for index in range(3):
            await client.write(0, b"new", index)
            await client.write(1, b"changed", index)
        await client.truncate(2, 0)
        await client.remove(1)
        assert bool(on_loop) is is_alone, on_loop


async def test_removals_leave_the_event_loop_alone_while_a_disk_is_short_of_space(
    mock_clock, monkeypatch
):
    """They give back what is at hand before: a call to the kernel for each run of blocks."""
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        (node,) = cluster.nodes.values()
        for index in range(2):
            await client.write(0, b"bytes", index)
        disk, calls = node.target.disk, []
        real = disk.calls._run_blocking

        async def counted(function, *arguments):
            calls.append(function)
            return await real(function, *arguments)

        monkeypatch.setattr(disk.calls, "_run_blocking", counted)
        await client.remove(0)
        assert not calls
        monkeypatch.setattr(disk.engine, "removes_at_once", lambda: False)
        await client.remove(1)
        assert len(calls) == 1


def test_two_disks_are_several(disk):
    two = StorageSection(disks=[DiskSection(path="/a"), DiskSection(path="/b")])
    runtime = Runtime(HandClock(), None, None, random.Random(1))
    assert disk.writes_on_loop
    assert not Disk(0, "/a", Engine(), runtime, two).writes_on_loop
