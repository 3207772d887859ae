"""An engine in memory: a multi-version ordered map, deterministic, for tests and simulation.

The object outlives the processes that use it: a restarted process gets the same engine.  Several
processes of one simulation may share one, as they would share a FoundationDB cluster.

It models durability: a commit becomes durable when `sync` returns, or by itself within
`unsynced_s_max`, as the embedded engine's background flush does.  `power_loss` keeps a prefix of
the commits that holds everything durable.

Invariants:
    - Every view of a version >= the window's horizon reads exactly that version.
    - What is needed to go back to the synced version is never thrown away.

Does not survive the interpreter.  Concurrency: as LocalEngine.
"""

import random
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar, Final
from weakref import WeakSet

import trio
from sortedcontainers import SortedDict

from ..runtime.ports import Clock
from ..runtime.until_wait import in_task
from ..schema.status import FsError, Status
from .api import KeyValue, Transaction
from .buffer import Mutations
from .faulty import Faults, FaultyTransaction
from .local import LocalEngine

UNSYNCED_S_MAX: Final = 0.1
"""A commit older than this has been made durable by the (modelled) background flush."""

SYNC_S: Final = 0.001
"""Time one modelled flush takes."""

Revision = tuple[int, bytes | None]
"""Commit version and the value since then; None: absent."""


class MemoryView:
    """The map as of one version."""

    __slots__ = ("__weakref__", "_engine", "version")

    known: ClassVar[dict[bytes, bytes | None]] = {}
    """None: looking is as cheap."""

    def __init__(self, engine: "MemoryEngine", version: int) -> None:
        self._engine = engine
        self.version = version

    def get(self, key: bytes) -> bytes | None:
        """See View.get."""
        return self._engine.at(self.version, key)

    def scan(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """See View.scan."""
        rows = self._engine.rows_at(self.version, begin, end, reverse=reverse)
        return list(islice(rows, limit or None))


class MemoryEngine(LocalEngine):
    """A KvEngine without a disk; `faults` decides the fate of each commit when given."""

    def __init__(
        self,
        clock: Clock,
        *,
        faults: Faults | None = None,
        sync_s: float = SYNC_S,
        unsynced_s_max: float = UNSYNCED_S_MAX,
    ) -> None:
        super().__init__(clock, 0)
        self.faults = faults
        """May be replaced at any time; transactions begun later obey it."""
        self._sync_s = sync_s
        self._unsynced_s_max = unsynced_s_max
        self._revisions: SortedDict[bytes, list[Revision]] = SortedDict()
        self._synced_version = 0
        self._unsynced: deque[tuple[float, int, tuple[bytes, ...]]] = deque()
        self._collectable: deque[tuple[int, bytes]] = deque()
        self._is_available = True
        self._lasting: WeakSet[MemoryView] = WeakSet()

    @property
    def synced_version(self) -> int:
        """The newest commit that certainly survives a power loss."""
        self._settle()
        return self._synced_version

    def transaction(self) -> Transaction:
        """See KvEngine.transaction."""
        inner = super().transaction()
        return inner if self.faults is None else FaultyTransaction(inner, self.faults)

    def set_available(self, is_available: bool) -> None:
        """Make the store answer or refuse (KV_UNAVAILABLE) every new snapshot and commit."""
        self._is_available = is_available

    def open_view(self) -> MemoryView:
        """See LocalEngine.open_view."""
        self._check_available()
        return MemoryView(self, self._version)

    def open_lasting_view(self) -> MemoryView:
        """See LocalEngine.open_lasting_view: what it shows is kept until nobody holds it."""
        view = self.open_view()
        self._lasting.add(view)
        return view

    def _check_available(self) -> None:
        if not self._is_available:
            raise FsError(Status.KV_UNAVAILABLE, "the engine was made unavailable")

    def current(self, key: bytes) -> bytes | None:
        """See LocalEngine.current."""
        revisions = self._revisions.get(key)
        return revisions[-1][1] if revisions else None

    def at(self, version: int, key: bytes) -> bytes | None:
        """Return the value of `key` as of `version`."""
        for since, value in reversed(self._revisions.get(key, ())):
            if since <= version:
                return value
        return None

    def rows_at(
        self, version: int, begin: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[KeyValue]:
        """Yield the rows of begin <= key < end as of `version`; no commit may come in between."""
        if begin >= end:
            return
        for key in self._revisions.irange(begin, end, inclusive=(True, False), reverse=reverse):
            value = self.at(version, key)
            if value is not None:
                yield key, value

    def dump(self) -> dict[bytes, bytes]:
        """Return the newest committed content, in key order; for checkers."""
        return {
            key: value
            for key, revs in self._revisions.items()
            if (value := revs[-1][1]) is not None
        }

    def apply(self, version: int, mutations: Mutations) -> None:
        """See LocalEngine.apply."""
        self._check_available()
        touched: list[bytes] = []
        for begin, end in mutations.ranges:
            keys = self._revisions.irange(begin, end, inclusive=(True, False))
            touched.extend(self._revise(version, key, None) for key in list(keys))
        touched.extend(self._revise(version, key, value) for key, value in mutations.points)
        self._unsynced.append((self.now_s(), version, tuple(touched)))
        self._settle()
        self._collect()

    def _revise(self, version: int, key: bytes, value: bytes | None) -> bytes:
        revisions = self._revisions.setdefault(key, [])
        if revisions and revisions[-1][0] == version:
            revisions.pop()
        revisions.append((version, value))
        if len(revisions) > 1 or value is None:
            self._collectable.append((version, key))
        return key

    def _settle(self) -> None:
        """Let the background flush's time pass."""
        durable_before_s = self.now_s() - self._unsynced_s_max
        while self._unsynced and self._unsynced[0][0] <= durable_before_s:
            self._synced_version = max(self._synced_version, self._unsynced.popleft()[1])

    def _collect(self) -> None:
        """Drop revisions that neither a view nor a power loss can need any more."""
        held = (view.version for view in self._lasting)
        needed = min(self._window.horizon, self._synced_version, *held)
        while self._collectable and self._collectable[0][0] <= needed:
            version, key = self._collectable.popleft()
            revisions = self._revisions.get(key)
            if revisions is None:
                continue
            keep_from = max(
                (index for index, (since, _) in enumerate(revisions) if since <= version), default=0
            )
            del revisions[:keep_from]
            if len(revisions) == 1 and revisions[0][1] is None and revisions[0][0] <= needed:
                del self._revisions[key]

    async def sync(self) -> None:
        """See KvEngine.sync."""
        version, generation = self._version, self.generation
        await in_task()
        await trio.sleep(self._sync_s)
        if generation != self.generation:
            raise FsError(Status.KV_UNAVAILABLE, "power was lost during the flush")
        self._synced_version = max(self._synced_version, version)
        while self._unsynced and self._unsynced[0][1] <= version:
            self._unsynced.popleft()

    async def aclose(self) -> None:
        """Make everything durable; the map stays usable for the next process."""
        await self.sync()

    def power_loss(self, source: random.Random) -> int:
        """Lose the commits after a prefix chosen by `source`; return the version that is left.

        Everything synced stays.  Open transactions become too old.
        """
        self._settle()
        kept = source.randint(self._synced_version, self._version)
        for _, version, keys in reversed(self._unsynced):
            if version > kept:
                for key in keys:
                    self._unrevise(key, kept)
        self._unsynced.clear()
        self._collectable = deque(entry for entry in self._collectable if entry[0] <= kept)
        self._synced_version = kept
        self._restart_at(kept)
        return kept

    def _unrevise(self, key: bytes, kept: int) -> None:
        revisions = self._revisions.get(key)
        if revisions is None:
            return
        while revisions and revisions[-1][0] > kept:
            revisions.pop()
        if not revisions:
            del self._revisions[key]
