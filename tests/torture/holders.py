"""Who holds the managers' lease, watched while holders are made to change under clocks that drift.

At most one manager may act at a time: what that means in the store and in every answer is
checked by tests/real/watching.py.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from tests.real.watching import Watch, watch_managers

from .fleet import CLUSTER_ID, Fleet

START_TIMEOUT_S: Final = 30.0
CHANGE_TIMEOUT_S: Final = 60.0
STOPPED_S: Final = 8.0
"""Longer than the lease."""
POLL_S: Final = 0.1


@contextmanager
def watched(fleet: Fleet) -> Iterator[Watch]:
    """Watch the managers in a thread; they must be several over one store."""
    watch, started = Watch(), threading.Event()
    scope = trio.CancelScope()
    (store,) = (fleet.address(name) for name in fleet.stores)

    token: list[trio.lowlevel.TrioToken] = []

    async def work() -> None:
        token.append(trio.lowlevel.current_trio_token())
        with scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(watch_managers, watch, CLUSTER_ID, store, fleet.addresses)
                started.set()

    thread = threading.Thread(target=trio.run, args=(work,), daemon=True)
    thread.start()
    assert started.wait(START_TIMEOUT_S), "the managers cannot be watched"
    try:
        yield watch
    finally:
        token[0].run_sync_soon(scope.cancel)
        thread.join()
    assert not watch.violations, watch.violations[:5]


def change_holder(fleet: Fleet, watch: Watch, *, is_killed: bool) -> None:
    """Kill the present holder, or stop it for longer than its lease,
    and wait until another one holds it.

    Raises:
        AssertionError: nobody does.
    """
    before = watch.lease
    holder = fleet.managers[before.node_id - 1]
    fleet.send(holder, signal.SIGKILL if is_killed else signal.SIGSTOP)
    began = time.monotonic()
    try:
        while watch.lease.epoch == before.epoch or not watch.lease.node_id:
            took = time.monotonic() - began
            assert took < CHANGE_TIMEOUT_S, f"nobody but {holder} holds the lease for {took:.0f} s"
            time.sleep(POLL_S)
        time.sleep(max(0.0, STOPPED_S - (time.monotonic() - began)) * (not is_killed))
    finally:
        if not is_killed:
            fleet.send(holder, signal.SIGCONT)
