"""Notices to the kernel: what is sent, in threads of their own,
and what becomes of those that cannot be.
"""

import _thread
import errno
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from fs.client.fuse import frontend
from fs.client.fuse.direct.device import Device
from fs.client.fuse.frontend import ATTRIBUTES_ALONE, KernelNotifier
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema.ids import InodeId

INODE = InodeId(7)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what a thread does."""
    while not is_so():  # noqa: ASYNC110 - of what happens there is no event
        await trio.sleep(0.001)


async def run_in_place(function: Callable[..., object], *args: object) -> object:
    return function(*args)


def notifier(invalidate: Callable[[InodeId, int, int], None]) -> KernelNotifier:
    return KernelNotifier(invalidate, real_runtime(SocketNetwork()))


async def test_they_are_sent_off_the_event_loop() -> None:
    told: list[tuple[InodeId, int, int]] = []
    threads: set[int] = set()

    def invalidate(inode_id: InodeId, start: int, length: int) -> None:
        told.append((inode_id, start, length))
        threads.add(threading.get_ident())

    kernel = notifier(invalidate)
    await kernel.invalidate_attributes(INODE)
    await kernel.invalidate_content(INODE, 4096, 8192)
    await kernel.invalidate_content(INODE)
    assert told == [(INODE, ATTRIBUTES_ALONE, 0), (INODE, 4096, 8192), (INODE, 0, 0)]
    assert threading.get_ident() not in threads


async def test_one_that_the_kernel_keeps_waiting_can_be_given_up() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def invalidate(_inode_id: InodeId, _start: int, _length: int) -> None:
        begun.set()
        may_end.wait()
        ended.set()

    kernel = notifier(invalidate)
    try:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kernel.invalidate_content, INODE)
                await until(begun.is_set)
                nursery.cancel_scope.cancel()
            assert not ended.is_set()
            may_end.set()
            await until(ended.is_set)
            await trio.sleep(0.01)  # what it says in the end wakes nobody
    finally:
        may_end.set()


async def test_one_given_up_before_its_thread_has_begun_is_sent_all_the_same() -> None:
    """Else the kernel would go on to show what it was not told to forget."""
    begun: list[Callable[[], object]] = []
    sent: list[InodeId] = []
    runtime = replace(
        real_runtime(SocketNetwork()),
        own_threads=lambda: (run_in_place, lambda function, _on_end: begun.append(function)),
    )
    kernel = KernelNotifier(lambda inode_id, _start, _length: sent.append(inode_id), runtime)
    with trio.move_on_after(0.01):
        await kernel.invalidate_content(INODE)
    for function in begun:
        function()
    assert sent == [INODE]


def test_one_that_comes_after_the_end_of_the_mount_goes_into_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.touch()
    device = Device(os.open(path, os.O_WRONLY), 1 << 17)
    device.close()
    # A file that is opened now takes the number that has become free.
    with path.open("wb"), pytest.raises(OSError, match="Bad file descriptor"):
        device.notify(1, b"notice")
    assert not path.read_bytes()


async def test_those_that_wait_hold_up_no_threads_of_others() -> None:
    may_end = threading.Event()
    begun = threading.Semaphore(0)

    def invalidate(_inode_id: InodeId, _start: int, _length: int) -> None:
        begun.release()
        may_end.wait()

    kernel = notifier(invalidate)
    count = int(trio.to_thread.current_default_thread_limiter().total_tokens)
    try:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(kernel.invalidate_attributes, INODE)
                for _ in range(count):
                    await until(lambda: begun.acquire(blocking=False))
                # As the unmounting does, which ends what they wait for.
                await trio.to_thread.run_sync(may_end.set)
    finally:
        may_end.set()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
async def test_a_notice_waits_for_a_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It must not be left out, and nobody is to fail for want of it."""
    sent: list[InodeId] = []
    refusals = [error] * 3
    start = _thread.start_new_thread

    def short_of_threads(*arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return start(*arguments)

    monkeypatch.setattr(_thread, "start_new_thread", short_of_threads)
    monkeypatch.setattr(frontend, "THREAD_PAUSE_S", 0.001)
    with trio.fail_after(10):
        await notifier(lambda inode_id, _start, _length: sent.append(inode_id)).invalidate_content(
            INODE
        )
    assert sent == [INODE] and not refusals
    assert caplog.text.count("waits for a thread") == 1


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTCONN, errno.ENODEV])
async def test_there_may_be_nothing_to_forget(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    def invalidate(_inode_id: InodeId, _start: int, _length: int) -> None:
        raise OSError(number, "as the kernel says")

    with caplog.at_level(logging.WARNING):
        await notifier(invalidate).invalidate_content(INODE)
    assert not caplog.records


async def test_other_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def invalidate(_inode_id: InodeId, _start: int, _length: int) -> None:
        raise OSError(errno.EIO, "as the kernel says")

    with caplog.at_level(logging.WARNING):
        await notifier(invalidate).invalidate_content(INODE)
    assert "inode 7: invalidation failed" in caplog.text


async def test_a_bug_is_raised_to_who_waits() -> None:
    def invalidate(_inode_id: InodeId, _start: int, _length: int) -> None:
        raise AssertionError("no device")

    with pytest.raises(AssertionError, match="no device"):
        await notifier(invalidate).invalidate_attributes(INODE)
