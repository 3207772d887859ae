"""Faults of a key-value store, injected at commit; works over every engine.

What a real cluster does to its clients: conflicts that nobody can explain, commits whose outcome
is unknown (both kinds), and delays before and after the commit takes effect.  A commit reported as
unknown has been decided by the time the error is raised: it never takes effect later.

Who decides is a port, `Faults`: a script in tests, a seeded random in simulation.
"""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import trio

from ..schema.status import FsError, Status
from .api import KvEngine, Transaction
from .forwarding import ForwardingTransaction


class Fate(Enum):
    """What happens to one commit."""

    OK = "ok"
    CONFLICT = "conflict"
    UNKNOWN_COMMITTED = "unknown, committed"
    UNKNOWN_LOST = "unknown, not committed"


@dataclass(frozen=True, slots=True)
class CommitFault:
    """Fate of one commit, and how long it waits before and after it is decided."""

    fate: Fate = Fate.OK
    delay_before_s: float = 0.0
    delay_after_s: float = 0.0


class Faults(Protocol):
    """Decides the fate of commits; asked once per commit that writes, in commit order."""

    def next_commit(self) -> CommitFault:
        """Return the fate of the next commit."""
        ...


class ScriptedFaults:
    """Fates from a list, then OK for ever; counts what was asked."""

    def __init__(self, fates: Iterable[Fate | CommitFault] = ()) -> None:
        self._fates = deque(fates)
        self.commit_count = 0

    def push(self, *fates: Fate | CommitFault) -> None:
        """Append fates."""
        self._fates.extend(fates)

    def next_commit(self) -> CommitFault:
        """See Faults.next_commit."""
        self.commit_count += 1
        fault = self._fates.popleft() if self._fates else Fate.OK
        return fault if isinstance(fault, CommitFault) else CommitFault(fault)


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """Fates drawn from `source`; probabilities are per commit, delays up to the given seconds."""

    source: random.Random
    conflict: float = 0.0
    unknown_committed: float = 0.0
    unknown_lost: float = 0.0
    delay_before_s_max: float = 0.0
    delay_after_s_max: float = 0.0

    def next_commit(self) -> CommitFault:
        """See Faults.next_commit."""
        return CommitFault(
            self._fate(self.source.random()),
            self.source.uniform(0.0, self.delay_before_s_max),
            self.source.uniform(0.0, self.delay_after_s_max),
        )

    def _fate(self, drawn: float) -> Fate:
        for fate, probability in (
            (Fate.CONFLICT, self.conflict),
            (Fate.UNKNOWN_COMMITTED, self.unknown_committed),
            (Fate.UNKNOWN_LOST, self.unknown_lost),
        ):
            if drawn < probability:
                return fate
            drawn -= probability
        return Fate.OK


class FaultyTransaction(ForwardingTransaction):
    """A transaction whose commit meets a fault; everything else goes straight through."""

    def __init__(self, inner: Transaction, faults: Faults) -> None:
        super().__init__(inner)
        self._faults = faults

    async def commit(self) -> bytes | None:
        """See Transaction.commit."""
        if not self._has_written:
            return await self._inner.commit()
        fault = self._faults.next_commit()
        try:
            return await self._commit_under(fault)
        finally:
            self._inner.close()

    async def _commit_under(self, fault: CommitFault) -> bytes | None:
        if fault.delay_before_s > 0:
            await trio.sleep(fault.delay_before_s)
        if fault.fate is Fate.CONFLICT:
            raise FsError(Status.KV_CONFLICT, "injected")
        stamp = None
        if fault.fate is not Fate.UNKNOWN_LOST:
            stamp = await self._inner.commit()
        if fault.delay_after_s > 0:
            await trio.sleep(fault.delay_after_s)
        if fault.fate is not Fate.OK:
            raise FsError(Status.KV_COMMIT_UNKNOWN, f"injected: {fault.fate.value}")
        return stamp


class FaultyEngine:
    """Wraps an engine so that its commits meet `faults`; None: no faults."""

    def __init__(self, inner: KvEngine, faults: Faults | None) -> None:
        self.inner = inner
        self.faults = faults
        """May be replaced at any time; transactions begun later obey it."""

    @property
    def trouble(self) -> str:
        """See KvEngine.trouble."""
        return self.inner.trouble

    def transaction(self) -> Transaction:
        """See KvEngine.transaction."""
        inner = self.inner.transaction()
        return inner if self.faults is None else FaultyTransaction(inner, self.faults)

    async def sync(self) -> None:
        """See KvEngine.sync."""
        await self.inner.sync()

    async def aclose(self) -> None:
        """See KvEngine.aclose."""
        await self.inner.aclose()
