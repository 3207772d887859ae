"""Syncs of storage nodes that several files share:
who comes while one is under way waits for the next.

A node's flush covers everything acknowledged before it began, whoever asked for it, so of many
files that are closed at the same time each needs no request of its own.

Invariants:
    - A sync returns only after a request that was sent after it was asked for: what was
      acknowledged before is covered.
    - Only syncs of the same disks of a node wait for each other: a slow disk
      delays nobody who does not need it.
    - Whoever is cancelled takes nobody along: another one of those who share sends the request.

Does not: repeat what failed; all who share a request share its error,
each as an exception of its own.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import trio

from ..schema.ids import NodeId
from ..schema.status import FsError
from .patience import same_error

Disks = tuple[NodeId, frozenset[int]]
"""A node, and indices of its disks."""

ChainAt = tuple[int, int]
"""Chain id, chain version."""

Send = Callable[[NodeId, Collection[ChainAt]], Awaitable[None]]
"""Sync targets of chains on one node; raises FsError."""


@dataclass(slots=True, eq=False)
class _Round:
    """One request, and those who wait for it."""

    chains: dict[ChainAt, None] = field(default_factory=dict)
    ended: trio.Event = field(default_factory=trio.Event)
    is_done: bool = False
    """False when it ended: whoever was to send it was cancelled."""
    error: FsError | None = None


class SharedSyncs:
    """See module head."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._running: dict[Disks, _Round] = {}
        self._next: dict[Disks, _Round] = {}

    async def sync(
        self, node_id: NodeId, disks: frozenset[int], chains: Collection[ChainAt]
    ) -> None:
        """Sync targets of chains, which lie on these disks of a node.

        Raises:
            FsError: what the request was refused with, the reason may be a chain of somebody else.
        """
        key = node_id, disks
        while True:
            joined = self._next.get(key)
            if joined is None:
                await self._lead(key, chains)
                return
            joined.chains.update(dict.fromkeys(chains))
            await joined.ended.wait()
            if joined.error is not None:
                raise same_error(joined.error)
            if joined.is_done:
                return

    async def _lead(self, key: Disks, chains: Collection[ChainAt]) -> None:
        own = _Round(dict.fromkeys(chains))
        try:
            if key in self._running:
                self._next[key] = own
                try:
                    while (running := self._running.get(key)) is not None:
                        await running.ended.wait()
                finally:
                    del self._next[key]
            self._running[key] = own
            try:
                await self._send(key[0], own.chains)
                own.is_done = True
            except FsError as error:
                own.error = error
                raise
            finally:
                del self._running[key]
        finally:
            own.ended.set()
