"""Files and folders that appear complete, or not at all: written beside, made durable, renamed into place.

Purpose: checkpoints.  A job can be killed at any moment; what bears a checkpoint's name is whole, and what was cut off
bears a name with `.partial-` in it, which the next pruning removes.

Invariant: nothing is renamed before it is durable, and a name counts as given only when its directory is durable, too.

What this module does not do: move bytes.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"
REMOVED = ".removed-"


def partial_name(path: str | os.PathLike[str]) -> str:
    """Return a name beside `path` that nobody else uses."""
    return f"{os.fspath(path)}{PARTIAL}{os.urandom(6).hex()}"


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a name to write a file under; at the end of the block, it replaces `path`; if the block fails, it is gone.

    The block makes the file's content durable.
    """
    partial = partial_name(path)
    try:
        yield partial
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    sync_folder(Path(path).absolute().parent)


def make_partial_folder(path: str | os.PathLike[str]) -> str:
    """Remove what earlier attempts at this folder have left, make a new one beside it, return its name."""
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{target.name}{PARTIAL}*"):
        shutil.rmtree(left)
    partial = partial_name(target)
    Path(partial).mkdir()
    return partial


def publish_folder(partial: str, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Give a folder its name.

    Args:
        partial: from `make_partial_folder`; all in it is durable.
        path: its name to be.
        overwrite: remove a folder of that name; a kill between the two renames leaves none of that name, and the old
            one under a name with `.removed-`.

    Raises:
        FileExistsError: there is one, and `overwrite` is not set.
    """
    target = Path(path).absolute()
    sync_folder(partial)
    removed = None
    if target.exists():
        if not overwrite:
            raise FileExistsError(f"{target}: is there already; overwrite=True replaces it")
        removed = Path(f"{target}{REMOVED}{os.urandom(6).hex()}")
        target.rename(removed)
    Path(partial).rename(
        target
    )  # onto a folder that has just appeared it fails: that one is not empty
    sync_folder(target.parent)
    if removed:
        shutil.rmtree(removed)


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


class CheckpointFolder:
    """Checkpoints of one run, numbered by step: `BASE/step-000000100`.

    Args:
        base: the folder of the run; made with the first checkpoint.
        keep: how many of the newest `prune` keeps, >= 1.
    """

    def __init__(self, base: str | os.PathLike[str], keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep {keep} must be at least 1")
        self.base = Path(base)
        self.keep = keep

    def path(self, step: int) -> Path:
        """Return the path of a step's checkpoint, whether it exists or not."""
        return self.base / f"step-{step:09d}"

    def steps(self) -> list[int]:
        """Return the steps that have a complete checkpoint, oldest first."""
        if not self.base.is_dir():
            return []
        matches = (re.fullmatch(r"step-(\d{9,})", name) for name in _names(self.base))
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> int | None:
        """Return the step of the newest complete checkpoint."""
        steps = self.steps()
        return steps[-1] if steps else None

    def prune(self) -> list[int]:
        """Remove all but the newest `keep`, and what saves that were cut off before the newest have left; return the steps.

        Call it on one rank, when no save of an earlier step is under way.  What is being removed loses its name first.
        """
        steps = self.steps()
        gone = steps[: -self.keep]
        for step in gone:
            self.path(step).rename(f"{self.path(step)}{REMOVED}{os.urandom(6).hex()}")
        for name in _names(self.base) if steps else []:
            match = re.fullmatch(
                rf"step-(\d{{9,}})({re.escape(PARTIAL)}|{re.escape(REMOVED)}).*", name
            )
            if match and (match[2] == REMOVED or int(match[1]) < steps[-1]):
                shutil.rmtree(self.base / name)
        return gone
