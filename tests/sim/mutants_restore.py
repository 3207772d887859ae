"""Mutants of what holds after a restore, and of updates that are durable when they are answered;
see mutants.py.
"""

from dataclasses import replace
from typing import Any

import fs.admin.rebase as rebase_module
import fs.storage.flusher as flusher_module
import fs.storage.forward as forward_module
import fs.storage.lone_update as lone_module
import fs.storage.write_path as write_module
from fs.mgmtd.restored import CHAIN_VERSIONS

from .broken import mutant


@mutant("restore_managers", "kill_storage")
def restored_chains_believed() -> None:
    """After a restore chains are served by those that served when the backup was made."""

    def guarded(chain: Any, now_ns: int) -> Any:
        version = chain.chain_version + CHAIN_VERSIONS
        return replace(chain, chain_version=version, generation=now_ns)

    rebase_module.guarded = guarded


@mutant("restore_managers", "kill_storage")
def same_numbers_after_each_restore() -> None:
    """A backup that is restored again goes on from the numbers of the first time."""
    rebase_module.beyond = lambda value, step, _now_ns, _unit_ns: value + step


@mutant("restore_managers", "kill_storage")
def standing_not_waited_for() -> None:
    """Updates are acknowledged although no disk says yet who took part."""
    for module in (forward_module, write_module, lone_module):
        if hasattr(module, "is_noted"):
            module.is_noted = lambda _place: True


@mutant("cut_all")
def durable_without_a_flush() -> None:
    """An update that was asked to be durable is said to be, though nothing was flushed."""

    def flush(self: Any, _nursery: Any, disk: Any, flushes: Any) -> None:
        self._under_way[disk] = flushes
        self._ended(disk, disk.engine, None)

    flusher_module.Flusher._flush = flush  # type: ignore[method-assign]
