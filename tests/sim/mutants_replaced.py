"""Mutants of what holds for files that are replaced; see mutants.py."""

import fs.meta.runner as runner_module
import fs.storage.finished_cuts as cuts_module

from .broken import mutant, nothing


@mutant("kill_storage")
def open_does_not_wait_for_its_cut() -> None:
    """An open that empties a file returns before its chunks are cut,
    and no head knows which truncations are over.
    """
    runner_module.RequestRunner._finish_truncation = nothing  # type: ignore[method-assign]
    cuts_module.FinishedCuts.note = lambda *_: None  # type: ignore[method-assign]
