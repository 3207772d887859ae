"""Metadata services that break one rule each: what tests/meta/histories.py must find.

The first four are the simulation's own.
"""

from collections.abc import Callable
from typing import Any, Final

import fs.kv.buffer as buffer_module
import fs.meta.ops.link as link_module
import fs.meta.ops.rename as rename_module
import fs.meta.ops.reserve_append as append_module
import fs.meta.ops.rmdir as rmdir_module
import fs.meta.runner as meta_runner
from fs.kv.memory import MemoryEngine, MemoryView
from fs.meta import records
from tests.sim import mutants as simulated

LAG = 3
"""Commits that readers of `readers_lag` do not see."""


def rmdir_without_range_conflict() -> None:
    """That a directory is empty does not conflict with a name being added,
    nor with the time of that.
    """
    real = buffer_module.WriteBuffer.add_read_key

    def add_read_key(self: Any, key: bytes) -> None:
        if not key.startswith(records.DIRECTORY_TIMES):
            real(self, key)

    buffer_module.WriteBuffer.add_read_key = add_read_key  # type: ignore[method-assign]

    async def is_empty(tr: Any, directory_id: int) -> bool:
        begin, end = records.dentry_prefix(directory_id), records.dentry_end(directory_id)
        return not await tr.get_range(begin, end, limit=1, snapshot=True)

    rmdir_module.is_empty = rename_module.is_empty = is_empty  # type: ignore[assignment]


def link_count_without_conflict() -> None:
    """Link raises a name count that it read without a conflict."""
    real = link_module.load_inode

    async def load(tr: Any, inode_id: int) -> Any:
        return await real(tr, inode_id, snapshot=True)

    link_module.load_inode = load  # type: ignore[assignment]


def append_without_conflict() -> None:
    """Two appenders may read one end of the file."""
    real = append_module.load_file

    class Unwatched:
        def __init__(self, tr: Any) -> None:
            self.tr = tr

        async def get(self, key: bytes, **_options: Any) -> Any:
            return await self.tr.get(key, snapshot=True)

    append_module.load_file = lambda tr, inode_id: real(Unwatched(tr), inode_id)  # type: ignore[arg-type,assignment]


def moves_without_conflict() -> None:
    """A rename conflicts neither with other moves of directories nor with changes
    of those above.
    """
    real = buffer_module.WriteBuffer.add_read_key

    def add_read_key(self: Any, key: bytes) -> None:
        if not key.startswith((records.INODE, records.USAGE, records.USAGE_EPOCH_KEY)):
            real(self, key)

    buffer_module.WriteBuffer.add_read_key = add_read_key  # type: ignore[method-assign]


def readers_lag() -> None:
    """Readers get a snapshot from before the newest commits,
    as with a read version kept too long.
    """
    real = meta_runner.snapshot_read

    async def lagging(engine: Any, fn: Any) -> Any:
        store = engine.inner
        assert isinstance(store, MemoryEngine)
        transaction = engine.transaction

        class Old:
            @staticmethod
            def transaction() -> Any:
                tr = transaction()
                inner = getattr(tr.inner, "_inner", tr.inner)
                inner._view = MemoryView(store, max(0, store.version - LAG))
                inner._pinned_s = store.now_s()
                return tr

        return await real(Old(), fn)  # type: ignore[arg-type]

    meta_runner.snapshot_read = lagging  # type: ignore[assignment]


def refusals_forgotten() -> None:
    """That a repeat was refused is not remembered: an earlier try may still succeed."""

    async def refuse(_tr: Any, *_args: Any, **_options: Any) -> bool:
        return True

    meta_runner.refuse = refuse  # type: ignore[assignment]


_OWN = (
    refusals_forgotten,
    rmdir_without_range_conflict,
    link_count_without_conflict,
    append_without_conflict,
    moves_without_conflict,
    readers_lag,
)
_SIMULATED = (
    "idempotency_record_ignored",
    "rename_not_atomic",
    "dentry_read_without_conflict",
    "unknown_commit_taken_for_done",
)

MUTANTS: Final[dict[str, Callable[[], None]]] = {
    **{name: simulated.MUTANTS[name] for name in _SIMULATED},
    **{patch.__name__: patch for patch in _OWN},
}
