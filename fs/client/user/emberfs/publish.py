"""Files and folders that appear complete, or not at all:
written beside, made durable, renamed into place.

Purpose: checkpoints.  A job can be killed at any moment; what bears a checkpoint's name is whole,
and what was cut off bears a name with `.partial-` in it, which the next pruning removes.

Invariants:
    - Nothing is renamed before it is durable, and a name counts as given only when
      its directory is durable, too.
    - What is removed loses its name first, in one step: a writer that still believes in it fails,
      and does not publish the half that is left.
    - Nothing is made beneath a mount that is not there, on another disk, nor is a run without its
      mount one without checkpoints: ENOTCONN.

What this module does not do: move bytes.
"""

import ctypes
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import index
from pathlib import Path

from .mounted import require_mounted
from .protocol import CHUNK_SIZE_ATTRIBUTE
from .urls import PROTOCOLS, is_url

PARTIAL = ".partial-"
REMOVED = ".removed-"
CHUNK_BYTES = 4 << 20
"""Of files in a folder that is published: written once, from end to end,
by updates that cost nearly the same whatever their size.
"""

_FOLDED_URLS = tuple(f"{protocol}:/" for protocol in PROTOCOLS)
MODE_BITS = 0o777
"""Who may read, write and run a file."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


def partial_name(path: str | os.PathLike[str]) -> str:
    """Return a name beside `path` that nobody else uses."""
    return f"{os.fspath(path)}{PARTIAL}{os.urandom(6).hex()}"


def refuse_url(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for a URL, which must not be taken for a path:
    that would be one below the current folder.

    Also for what `pathlib.Path` makes of a URL, with one slash.
    """
    if is_url(path) or os.fspath(path).startswith(_FOLDED_URLS):
        raise ValueError(
            f"{path}: is written under a path of a mount, or with fsspec, not by its URL"
        )


def _check_path(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for a URL, and OSError (ENOTCONN) for a path whose file system
    is not mounted.
    """
    refuse_url(path)
    require_mounted(path)


def _removed_name(path: str | os.PathLike[str]) -> str:
    return f"{os.fspath(path)}{REMOVED}{os.urandom(6).hex()}"


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a name to write a file under; at the end of the block, it replaces `path`, whose mode
    it then has; if the block fails, it is gone.

    The block makes the file's content durable.

    Raises:
        OSError: ENOTCONN: the path's file system is not mounted.
        ValueError: a URL.
    """
    _check_path(path)
    partial = partial_name(path)
    try:
        yield partial
        _keep_mode(Path(path), Path(partial))
        Path(partial).replace(path)
    except BaseException as error:
        # It may not have been made, or cannot go now: the first failure is the one to tell.
        with suppress(OSError):
            Path(partial).unlink()
        if isinstance(error, OSError) and error.filename == partial:
            error.filename = os.fspath(path)  # the name that the caller knows
        raise
    sync_folder(Path(path).absolute().parent)


def _keep_mode(old: Path, new: Path) -> None:
    """Let a file be read by those who may read the one that it replaces, if there is one."""
    with suppress(FileNotFoundError):
        mode = old.lstat().st_mode
        if stat.S_ISREG(mode):
            new.chmod(mode & MODE_BITS)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, each with a durable name."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder and all below it, its name first;
    one that is gone already is none of our business.
    """
    removed = Path(_removed_name(path)) if REMOVED not in path.name else path
    try:
        path.rename(removed)
        shutil.rmtree(removed)
    except FileNotFoundError:
        if path.exists():
            raise


def make_partial_folder(path: str | os.PathLike[str]) -> str:
    """Remove what earlier attempts at this folder have left, make a new one beside it,
    return its name.

    An earlier attempt that is still under way fails: one of the two writers is to be the only one.

    Raises:
        OSError: it cannot be made; ENOTCONN: the file system that it lies on is not mounted.
        ValueError: a URL.
    """
    _check_path(path)
    target = Path(path).absolute()
    make_folder(target.parent)
    for name in _names(target.parent):
        if name.startswith(f"{target.name}{PARTIAL}"):
            remove_folder(target.parent / name)
    partial = partial_name(target)
    Path(partial).mkdir()
    _want_large_chunks(partial)
    return partial


def _want_large_chunks(folder: str) -> None:
    """Have files of a new folder cut into larger chunks,
    where it is on EmberFS and they are not larger already.
    """
    with suppress(OSError):  # no such attribute: another file system, or an older mount
        if int(os.getxattr(folder, CHUNK_SIZE_ATTRIBUTE)) < CHUNK_BYTES:
            os.setxattr(folder, CHUNK_SIZE_ATTRIBUTE, b"%d" % CHUNK_BYTES)


def _exchange(one: str, other: Path) -> bool:
    """Exchange two names in one step; return whether the file system can."""
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(one), os.fsencode(other))
    if not hasattr(library, "renameat2"):
        return False
    if library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), one, None, str(other))


def publish_folder(partial: str, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Give a folder its name.

    Args:
        partial: from `make_partial_folder`; all in it is durable.
        path: its name to be.
        overwrite: replace a folder of that name, by one exchange of names.  On file systems that
            cannot do that (some network file systems), a kill between two renames leaves none of
            that name, and the old one under a name with `.removed-`.

    Raises:
        FileExistsError: there is one, and `overwrite` is not set; or there is
            something else of that name.
    """
    target = Path(path).absolute()
    sync_folder(partial)
    if not check_free(target, overwrite=overwrite):
        Path(partial).rename(target)  # fails if another has been published meanwhile
        sync_folder(target.parent)
        return
    removed = Path(partial)
    if not _exchange(partial, target):
        removed = Path(_removed_name(target))
        target.rename(removed)
        Path(partial).rename(target)
    sync_folder(target.parent)
    remove_folder(removed)


def check_free(target: Path, *, overwrite: bool) -> bool:
    """Return whether there is a folder of that name, which may be replaced.

    Raises:
        FileExistsError: there is one, and `overwrite` is not set; or there is
            something else of that name.
    """
    if not os.path.lexists(target):
        return False
    if not overwrite:
        raise FileExistsError(
            errno.EEXIST, "is there already; overwrite=True replaces it", str(target)
        )
    if target.is_symlink() or not target.is_dir():
        raise FileExistsError(errno.EEXIST, "is no folder that could be replaced", str(target))
    return True


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


class CheckpointFolder:
    """Checkpoints of one run, numbered by step: `BASE/step-000000100`.

    Args:
        base: the folder of the run; made with the first checkpoint.
        keep: how many of the newest `prune` keeps, >= 1.
    """

    def __init__(self, base: str | os.PathLike[str], keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep {keep} must be at least 1")
        refuse_url(base)
        self.base = Path(base)
        self.keep = keep

    def __repr__(self) -> str:
        return f"CheckpointFolder({str(self.base)!r}, keep={self.keep})"

    def path(self, step: int) -> Path:
        """Return the path of a step's checkpoint, whether it exists or not.

        Raises:
            TypeError: no number, such as the None of `latest` where a run has no checkpoint yet.
            ValueError: a step below 0, which no name is given to.
        """
        try:
            number = index(step)
        except TypeError:
            what = f"{self.base}: a step is a number, not {step!r}"
            raise TypeError(f"{what} (latest() is None before the first checkpoint)") from None
        if number < 0:
            raise ValueError(f"{self.base}: step {number} must be at least 0")
        return self.base / f"step-{number:09d}"

    def steps(self) -> list[int]:
        """Return the steps that have a complete checkpoint, oldest first;
        of a folder that is not made yet none.

        Raises:
            OSError: the folder cannot be read; ENOTCONN: its file system is not mounted.
        """
        require_mounted(self.base)
        try:
            found = list(os.scandir(self.base))
        except FileNotFoundError:
            return []
        matches = [(re.fullmatch(r"step-([0-9]{9,})", entry.name), entry) for entry in found]
        steps = [(int(match[1]), entry) for match, entry in matches if match]
        return sorted(s for s, entry in steps if entry.name == self.path(s).name and entry.is_dir())

    def latest(self) -> int | None:
        """Return the step of the newest complete checkpoint; None: there is none yet.

        Errors as of `steps`.
        """
        steps = self.steps()
        return steps[-1] if steps else None

    def prune(self) -> list[int]:
        """Remove all but the newest `keep`, and what saves that were cut off
        before the newest have left; return the steps.

        Call it on one rank, when no save of an earlier step is under way.  What is being
        removed loses its name first.
        """
        steps = self.steps()
        gone = steps[: -self.keep]
        for step in gone:
            remove_folder(self.path(step))
        for name in _names(self.base) if steps else []:
            match = re.match(r"step-([0-9]{9,})\.(partial|removed)-", name)
            if match and (REMOVED in name or int(match[1]) < steps[-1]):
                remove_folder(self.base / name)
        return gone
