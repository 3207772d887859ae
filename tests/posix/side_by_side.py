"""The same random system calls on a local file system and on the mount:
every outcome and every attribute must be equal.

`python -m tests.posix.side_by_side LOCAL MOUNT [--runs N] [--seed S] [--calls C]`,
as root; both are directories.

No model stands in between, so whatever Linux does is the rule: paths of every shape (dots,
doubled and trailing slashes, names that are too long, symbolic links that lead on, nowhere
or round in circles), three users, open files that outlive their names, removed directories
that somebody still has open.  After every call the whole tree is compared, and which times
of which file the call moved.  Each user is a process of its own below a root directory of
its own, so that `..` ends there.

Not called, since libfuse or pyfuse3 pass them on to nobody (specs/semantics.md): O_TMPFILE,
fallocate, SEEK_DATA, and opening with O_PATH, after which a removed file does not last;
pipes, of which the same holds.  Not compared: device files, which a mount does not open;
times of access; sizes of directories.
"""

import argparse
import errno
import hashlib
import os
import random
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import track

from tests.meta.model import SUPERUSER, Person

from .calls import renameat2
from .people import PEOPLE, Actor
from .random_calls import Calls

PART_BYTES = 64 * 1024
NOT_OPEN = 999_999
"""A descriptor that nobody has."""


# ---- in the process of a user --------------------------------------------------------------------

_open: dict[int, int] = {}


def _open_file(slot: int, path: str, flags: int, mode: int, at: int | None) -> None:
    where = {} if at is None else {"dir_fd": _fd(at)}
    fd = os.open(path, flags | os.O_NONBLOCK, mode, **where)
    _close(slot)
    _open[slot] = fd


def _close(slot: int) -> None:
    fd = _open.pop(slot, None)
    if fd is not None:
        os.close(fd)


def _fd(slot: int) -> int:
    return _open.get(slot, NOT_OPEN)


def _facts(at: os.stat_result) -> list[int]:
    size = 0 if stat.S_ISDIR(at.st_mode) else at.st_size
    return [at.st_mode, at.st_uid, at.st_gid, at.st_nlink, size]


def _content(path: str, size: int) -> str:
    """Return a digest of the beginning and the end of a file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        begin = os.pread(fd, PART_BYTES, 0)
        end = os.pread(fd, PART_BYTES, max(0, size - PART_BYTES))
    finally:
        os.close(fd)
    return hashlib.sha256(begin + b"|" + end).hexdigest()[:16]


def _attributes(path: str) -> dict[str, str]:
    return {
        name: os.getxattr(path, name, follow_symlinks=False).hex()
        for name in sorted(os.listxattr(path, follow_symlinks=False))
        if name.startswith("user.")
    }


def _tree(path: str) -> dict[str, list]:
    """Return everything of everything below a directory; the last two are times of change."""
    found = {}
    for name in [".", *sorted(os.listdir(path))]:
        below = f"{path}/{name}"
        at = os.lstat(below)
        more: object = None
        if stat.S_ISLNK(at.st_mode):
            more = os.readlink(below)
        elif stat.S_ISREG(at.st_mode):
            more = _content(below, at.st_size)
        named = {} if stat.S_ISLNK(at.st_mode) else _attributes(below)
        found[below] = [_facts(at), more, named, at.st_ino, at.st_mtime_ns, at.st_ctime_ns]
        if name != "." and stat.S_ISDIR(at.st_mode):
            found |= _tree(below)
    return found


def _read(slot: int, length: int, offset: int) -> str:
    data = os.read(_fd(slot), length) if offset < 0 else os.pread(_fd(slot), length, offset)
    return f"{len(data)} {hashlib.sha256(data).hexdigest()[:16]}"


def _write(slot: int, length: int, offset: int, fill: int) -> int:
    data = bytes([fill]) * length
    return os.write(_fd(slot), data) if offset < 0 else os.pwrite(_fd(slot), data, offset)


def _seek(slot: int, offset: int, whence: int) -> int | None:
    is_opaque = slot in _open and stat.S_ISDIR(os.fstat(_fd(slot)).st_mode)
    return None if is_opaque else os.lseek(_fd(slot), offset, whence)


def _times(path: str | int, atime: int, mtime: int, follow: bool) -> None:
    if isinstance(path, int):
        os.utime(_fd(path), ns=(atime, mtime))
    else:
        os.utime(path, ns=(atime, mtime), follow_symlinks=follow)


CALLS: dict[str, Callable] = {
    "open": _open_file,
    "close": _close,
    "read": _read,
    "write": _write,
    "seek": _seek,
    "ftruncate": lambda slot, length: os.ftruncate(_fd(slot), length),
    "fchmod": lambda slot, mode: os.fchmod(_fd(slot), mode),
    "fchown": lambda slot, uid, gid: os.fchown(_fd(slot), uid, gid),
    "fstat": lambda slot: _facts(os.fstat(_fd(slot))),
    "fsync": lambda slot: os.fsync(_fd(slot)),
    "mkdir": os.mkdir,
    "mkdirat": lambda slot, path, mode: os.mkdir(path, mode, dir_fd=_fd(slot)),
    "mknod": os.mknod,
    "symlink": os.symlink,
    "readlink": os.readlink,
    "link": lambda old, new, follow: os.link(old, new, follow_symlinks=follow),
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "rename": renameat2,
    "chmod": os.chmod,
    "chown": lambda path, uid, gid, follow: os.chown(path, uid, gid, follow_symlinks=follow),
    "truncate": os.truncate,
    "times": _times,
    "now": lambda path, follow: os.utime(path, follow_symlinks=follow),
    "access": lambda path, mode, real: os.access(path, mode, effective_ids=not real),
    "stat": lambda path, follow: _facts(os.stat(path, follow_symlinks=follow)),
    "list": lambda path: sorted(os.listdir(path)),
    "setxattr": lambda path, name, size, flags: os.setxattr(path, name, b"v" * size, flags),
    "getxattr": lambda path, name: os.getxattr(path, name).hex(),
    "removexattr": os.removexattr,
    "umask": lambda mask: os.umask(mask) and None,
    "tree": _tree,
}


# ---- both sides ----------------------------------------------------------------------------------


class Pair:
    """A local directory, one on the mount, and the same people at work in both."""

    def __init__(self, local: Path, mount: Path, seed: int) -> None:
        self._source = random.Random(seed)
        self._calls = Calls(self._source)
        self._done: list[str] = []
        self._trees: list[dict[str, list]] = []
        self._slots: dict[Person, set[int]] = {who: set() for who in PEOPLE}
        for place in (local, mount):
            place.chmod(0o777)
        self._actors = [
            {who: Actor(who, place, CALLS, is_root=True) for who in PEOPLE}
            for place in (local, mount)
        ]

    def run(self, count: int) -> None:
        """Make calls, compare after each.

        Raises:
            AssertionError: with the last calls and what differs.
        """
        try:
            self._compare()
            for _ in range(count):
                who = self._source.choice([SUPERUSER, *PEOPLE])
                self._calls.open_slots = sorted(self._slots[who])
                call = self._calls.one()
                answers = [side[who].call(*call) for side in self._actors]
                shown = [x if len(str(x)) < 80 else f"{str(x)[:60]}..." for x in call]
                name = errno.errorcode.get(answers[0][0], answers[0][0])
                self._done.append(f"{who.uid}: {shown} -> {name}")
                assert answers[0] == answers[1], self._tell(
                    f"local {answers[0]}, mount {answers[1]}"
                )
                if answers[0][0] == 0 and call[0] in {"open", "close"}:
                    (set.add if call[0] == "open" else set.discard)(self._slots[who], call[1])
                self._compare()
        finally:
            for actor in reversed([actor for side in self._actors for actor in side.values()]):
                actor.close()

    def _compare(self) -> None:
        trees = []
        for side in self._actors:
            number, tree = side[SUPERUSER].call("tree", ".")
            assert number == 0, self._tell(f"the tree cannot be listed: {errno.errorcode[number]}")
            trees.append(tree)
        local, mount = trees
        assert local.keys() == mount.keys(), self._tell(f"names: {local.keys() ^ mount.keys()}")
        for path in local:
            here, there = local[path][:3], mount[path][:3]
            assert here == there, self._tell(f"{path}: local {here}, mount {there}")
        self._compare_times(local, mount)
        self._compare_identities(local, mount)
        self._trees = trees
        self._calls.there = [path[2:] for path in local if not path.endswith(".")]

    def _compare_times(self, local: dict[str, list], mount: dict[str, list]) -> None:
        if not self._trees:
            return
        moved = []
        for before, now in zip(self._trees, (local, mount), strict=True):
            known = {facts[3]: facts[4:] for facts in before.values()}
            moved.append(
                {
                    path: [a != b for a, b in zip(facts[4:], known[facts[3]], strict=True)]
                    for path, facts in now.items()
                    if facts[3] in known
                }
            )
        for path, (mtime, ctime) in moved[0].items():
            there = moved[1].get(path)
            # A report of what was written may move the time of change once more.
            is_right = there in ([mtime, True], [mtime, ctime])
            assert is_right, self._tell(
                f"{path}: [mtime, ctime] moved: {[mtime, ctime]}, mount {there}"
            )

    def _compare_identities(self, local: dict[str, list], mount: dict[str, list]) -> None:
        """Two names are one file on one side if they are on the other."""
        numbers = {path: (local[path][3], mount[path][3]) for path in local}
        for side in (0, 1):
            pairs = {n[side]: n for n in numbers.values()}
            for path, pair in numbers.items():
                assert pairs[pair[side]] == pair, self._tell(f"{path} is another file")

    def _tell(self, what: str) -> str:
        return "\n".join([what, "the last calls:", *self._done[-25:]])


@contextmanager
def fresh(local: Path, mount: Path) -> Iterator[tuple[Path, Path]]:
    """Empty directories in both places."""
    with (
        tempfile.TemporaryDirectory(dir=local) as here,
        tempfile.TemporaryDirectory(dir=mount) as there,
    ):
        yield Path(here), Path(there)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("local", type=Path)
    parser.add_argument("mount", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=400)
    given = parser.parse_args()
    for seed in track(range(given.seed, given.seed + given.runs), "runs"):
        with fresh(given.local, given.mount) as (local, mount):
            try:
                Pair(local, mount, seed).run(given.calls)
            except AssertionError as error:
                raise SystemExit(f"seed {seed}: {error}") from error
    print(f"{given.runs} runs of {given.calls} calls: no difference")


if __name__ == "__main__":
    main()
