"""Storage that is slow is waited for, also for longer than a call,
or an operation that meets only silence, may take.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

import fs.storage.disk as disk_module
from fs.client.native import EmberFs

from .cluster import CHUNK_BYTES, SimCluster
from .determinism import run_deterministic
from .shape import Shape

DATA = b"slow" * CHUNK_BYTES
FLUSH_S = 11.0
"""Somewhat longer than a call to a silent node is waited for."""


def run(seed: int, use: Callable[[EmberFs], Awaitable[None]]) -> None:
    """Run a cluster until one client has done its part."""
    cluster = SimCluster(seed, Shape.draw(seed))

    async def observe() -> None:
        """Nothing is looked at beside the client."""

    async def main() -> None:
        async def scenario() -> None:
            await cluster.connect_client("client", use)

        await cluster.run(scenario, observe)

    run_deterministic(main, seed)


def slow(monkeypatch, took_s: Callable[[str], float]) -> None:
    """Have each call to a disk take longer, by its name; the disk itself does not hang."""
    real = disk_module.Disk.run

    async def run(disk: Any, function: Any, *args: Any) -> Any:
        with trio.CancelScope(shield=True):  # as a thread, which cannot be stopped
            called = function.func if isinstance(function, partial) else function
            await trio.sleep(took_s(getattr(called, "__name__", "")))
        return await real(disk, function, *args)

    monkeypatch.setattr(disk_module.Disk, "run", run)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_fsync_waits_for_flushes_that_take_longer_than_a_call(monkeypatch):
    """Each repetition would need a flush that begins after it,
    and be given up before that one ends.
    """

    async def use(fs: EmberFs) -> None:
        file = await fs.create("/f")
        await file.write(0, DATA)
        slow(monkeypatch, lambda name: FLUSH_S if name == "_sync" else 0.0)
        began_s = trio.current_time()
        await file.fsync()
        assert FLUSH_S <= trio.current_time() - began_s < 6 * FLUSH_S
        await file.close()
        assert await fs.read_file("/f") == DATA

    run(1, use)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_writes_and_reads_wait_for_disks_that_need_seconds_for_each_call(monkeypatch):
    """A write has to wait for several of them, one replica after the other."""

    async def use(fs: EmberFs) -> None:
        file = await fs.create("/f")
        slow(monkeypatch, lambda _name: 6.0)
        await file.write(0, DATA)
        await file.close()
        assert await fs.read_file("/f") == DATA

    run(1, use)
