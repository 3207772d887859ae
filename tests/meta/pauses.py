"""An engine whose callers wait before each read and commit, as they would for a store elsewhere.

So other transactions come in between; what a wait is, a random sleep or a turn given by
a test, is the caller's to say.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from fs.kv.api import KvEngine, Transaction

Pause = Callable[[str], Awaitable[None]]
"""Awaited with what comes next: `begin` (the first read, which fixes the snapshot), `read`,
`commit`; or with what has just been: `committed`.
"""


class PausingTransaction:
    """See fs.kv.api.Transaction."""

    def __init__(self, inner: Transaction, pause: Pause) -> None:
        self.inner = inner
        self._pause = pause
        self._has_begun = False

    async def _before_read(self) -> None:
        await self._pause("read" if self._has_begun else "begin")
        self._has_begun = True

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        await self._before_read()
        return await self.inner.get(key, snapshot=snapshot)

    async def get_many(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list:
        await self._before_read()
        return await self.inner.get_many(keys, snapshot=snapshot)

    async def prefetch(self, keys: Iterable[bytes]) -> None:
        await self.inner.prefetch(keys)

    async def get_range(self, begin: bytes, end: bytes, **options) -> list:
        await self._before_read()
        return await self.inner.get_range(begin, end, **options)

    async def commit(self) -> bytes | None:
        await self._pause("commit")
        stamp = await self.inner.commit()
        await self._pause("committed")
        return stamp

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


class PausingEngine:
    """A KvEngine over another one."""

    def __init__(self, inner: KvEngine, pause: Pause) -> None:
        self.inner = inner
        self.pause = pause

    def transaction(self) -> PausingTransaction:
        return PausingTransaction(self.inner.transaction(), self.pause)

    async def sync(self) -> None:
        await self.inner.sync()

    async def aclose(self) -> None:
        await self.inner.aclose()
