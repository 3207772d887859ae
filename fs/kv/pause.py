"""Holding up the changes of some services for a while, so that a long read sees one state.

For stores that keep no old versions for longer than a transaction lives (FoundationDB).
Whoever reads sets one record, the mark; services that are to heed it work through a
`PausableEngine`, whose commits read the mark.

Invariants:
    - While the mark of one owner is there, no commit through a PausableEngine happens: it reads
      the mark with a conflict, so one that began before the mark was set conflicts with it, and
      one that began later finds it.
    - No clock is trusted for that.  A mark that has expired by the clock of a service is
      removed in the transaction of the change itself; the reader looks for its mark in the
      transaction of every page, so it notices.

What heeds the mark loses nothing: its commits are refused as conflicts, definite, and tried again.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ..runtime.ports import Clock, Runtime
from ..schema.status import FsError, Status
from .api import KvEngine, Transaction
from .forwarding import ForwardingTransaction
from .transact import transact

PAUSE_KEY: Final = b"PAUS"
"""Its value: owner (16 random bytes), end (BE8, wall clock, nanoseconds).

Never part of a backup.
"""

OWNER_BYTES: Final = 16
PAUSE_S: Final = 20.0
"""A reader that falls silent holds up changes for no longer than this."""


def until_ns(mark: bytes) -> int:
    """Return when a mark expires."""
    return int.from_bytes(mark[OWNER_BYTES:], "big")


class PausableTransaction(ForwardingTransaction):
    """A transaction whose commit is refused while there is a mark."""

    def __init__(self, inner: Transaction, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._is_asked = False

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        """See Transaction.get."""
        await self._ask([key])
        return await super().get(key, snapshot=snapshot)

    async def get_many(
        self, keys: Sequence[bytes], *, snapshot: bool = False
    ) -> list[bytes | None]:
        """See Transaction.get_many."""
        await self._ask(keys)
        return await super().get_many(keys, snapshot=snapshot)

    async def prefetch(self, keys: Iterable[bytes]) -> None:
        """See Transaction.prefetch."""
        wanted = list(keys)
        if wanted and not self._is_asked:
            wanted.append(PAUSE_KEY)
            self._is_asked = True
        await super().prefetch(wanted)

    async def _ask(self, keys: Sequence[bytes]) -> None:
        """Have the mark come with the first keys: it costs no way there and back of its own."""
        if not self._is_asked:
            await self.prefetch(keys)

    async def commit(self) -> bytes | None:
        """See Transaction.commit.

        Raises:
            FsError: also KV_CONFLICT while changes are held up.
        """
        if self._has_written:
            mark = await self._inner.get(PAUSE_KEY)
            if mark is not None and until_ns(mark) > self._clock.wall_ns():
                self.close()
                raise FsError(
                    Status.KV_CONFLICT,
                    "changes of metadata are held up by a backup or check; they go on when it ends",
                )
            if mark is not None:
                self._inner.clear(PAUSE_KEY)
        return await super().commit()


class PausableEngine:
    """Wraps an engine so that commits through it heed the mark."""

    def __init__(self, inner: KvEngine, clock: Clock) -> None:
        self.inner = inner
        self._clock = clock

    @property
    def trouble(self) -> str:
        """See KvEngine.trouble."""
        return self.inner.trouble

    def transaction(self) -> Transaction:
        """See KvEngine.transaction."""
        return PausableTransaction(self.inner.transaction(), self._clock)

    async def sync(self) -> None:
        """See KvEngine.sync."""
        await self.inner.sync()

    async def aclose(self) -> None:
        """See KvEngine.aclose."""
        await self.inner.aclose()


class Pause:
    """The mark of one reader."""

    def __init__(self, engine: KvEngine, runtime: Runtime) -> None:
        """`engine` is the store itself, not one that heeds marks."""
        self._engine = engine
        self._runtime = runtime
        self._owner = runtime.random.randbytes(OWNER_BYTES)
        self._renewed_s = 0.0

    def is_ours(self, mark: bytes | None) -> bool:
        """True if this is what we set."""
        return mark is not None and mark.startswith(self._owner)

    async def begin(self) -> None:
        """Hold up changes from now on.

        Raises:
            FsError: BUSY while another reader does; as a commit.
        """

        async def body(tr: Transaction) -> None:
            found = await tr.get(PAUSE_KEY)
            is_free = found is None or self.is_ours(found)
            if not is_free and until_ns(found or b"") > self._runtime.clock.wall_ns():
                raise FsError(Status.BUSY, "another backup or check holds up changes now")
            tr.set(PAUSE_KEY, self._mark())

        await transact(self._engine, body, runtime=self._runtime)
        self._renewed_s = self._runtime.clock.monotonic_s()

    async def renew(self) -> None:
        """Say that we are still at it, if it is time to;
        raises FsError(BUSY) when the mark has gone.
        """
        if self._runtime.clock.monotonic_s() - self._renewed_s < PAUSE_S / 4:
            return

        async def body(tr: Transaction) -> None:
            self.check(await tr.get(PAUSE_KEY))
            tr.set(PAUSE_KEY, self._mark())

        await transact(self._engine, body, runtime=self._runtime, retry_time_s_max=PAUSE_S / 4)
        self._renewed_s = self._runtime.clock.monotonic_s()

    def check(self, mark: bytes | None) -> None:
        """Raise FsError(BUSY) unless the mark, read together with a page, is ours."""
        if not self.is_ours(mark):
            raise FsError(
                Status.BUSY,
                f"this read stood still for more than {PAUSE_S:g} s, and changes went on; start "
                "it again",
            )

    async def end(self) -> None:
        """Let changes go on; harmless when they do already."""

        async def body(tr: Transaction) -> None:
            if self.is_ours(await tr.get(PAUSE_KEY)):
                tr.clear(PAUSE_KEY)

        await transact(self._engine, body, runtime=self._runtime)

    def _mark(self) -> bytes:
        end_ns = self._runtime.clock.wall_ns() + int(PAUSE_S * 1e9)
        return self._owner + end_ns.to_bytes(8, "big")
