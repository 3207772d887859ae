"""Notices to the kernel: what is sent, and what becomes of those that cannot be."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import errno

import pytest
import trio
from trio.testing import MockClock

from fs.client.fuse.frontend import ATTRIBUTES_ALONE, KernelNotifier


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0.05)


async def test_what_the_kernel_does_not_have_need_not_be_forgotten(caplog):
    sent = []

    def invalidate(*what):
        sent.append(what)
        raise OSError(errno.ENOENT if len(sent) == 1 else errno.EIO, "injected")

    notifier = KernelNotifier(invalidate)
    await notifier.invalidate_attributes(7)
    assert not caplog.records
    await notifier.invalidate_content(7, 4096, 10)
    assert sent == [(7, ATTRIBUTES_ALONE, 0), (7, 4096, 10)]
    assert "inode 7: invalidation failed" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
async def test_a_notice_waits_for_a_thread(autojump_clock, monkeypatch, caplog, error):
    """It must not be left out, and nobody is to fail for want of it."""
    sent, refusals, run_sync = [], [error] * 3, trio.to_thread.run_sync

    async def short_of_threads(*arguments, **options):
        if refusals:
            raise refusals.pop()
        return await run_sync(*arguments, **options)

    monkeypatch.setattr(trio.to_thread, "run_sync", short_of_threads)
    await KernelNotifier(lambda *what: sent.append(what)).invalidate_content(7)
    assert sent == [(7, 0, 0)] and not refusals
    assert caplog.text.count("waits for a thread") == 1
