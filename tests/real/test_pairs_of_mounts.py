"""What one mount does to files, seen by another that has looked at all of them just before,
and has some open: as on a local file system.

At once, by opening; of names of directories, of attributes, and of what is held open, after the
second for which they may be older (specs/semantics.md, Names).
"""

import ctypes
import errno
import hashlib
import mmap
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.posix.calls import LIBC, RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

OLDEST_S = 1.2
"""What a mount may show for longer than this is a fault."""
AT_ONCE = 12
"""So that nothing is held for long enough to be removed for good (`meta.gc_delay_s`)."""
HELD = ["f", "e", "h", "d", "D", "big"]
FILES = ["f", "e", "h", "h2", "l", "D/in", "big", "new", "D/new"]
PUNCH, ZERO = 3, 16
"""Modes of fallocate(2)."""
SET_NS = 10**18


def make(place: Path) -> None:
    """Files, some with several names, links, a pipe, directories with and without a file."""
    for name in ("f", "e", "h"):
        (place / name).write_bytes(name.encode() * 10)
    (place / "h2").hardlink_to(place / "h")
    (place / "l").symlink_to("f")
    os.mkfifo(place / "p")
    (place / "d").mkdir()
    (place / "D").mkdir()
    (place / "D" / "in").write_bytes(b"inside")
    (place / "big").write_bytes(b"B" * 100_000)
    os.setxattr(place / "f", "user.a", b"1")


def put(path: Path, data: bytes, flags: int, offset: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def write_through_map(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[3:7] = b"MAPS"


def replace(path: Path) -> None:
    path.with_suffix(".tmp").write_bytes(b"replaced")
    path.with_suffix(".tmp").rename(path)


def allocate(path: Path, mode: int, offset: int, length: int) -> None:
    with path.open("r+b") as file:
        code = LIBC.fallocate(file.fileno(), mode, ctypes.c_long(offset), ctypes.c_long(length))
        assert code == 0, os.strerror(ctypes.get_errno())


def copy_into(source: Path, target: Path) -> None:
    with source.open("rb") as a, target.open("r+b") as b:
        os.copy_file_range(a.fileno(), b.fileno(), 5000, 0, 5)


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inner").touch()


def become_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"was a directory")


def moved(old: str, new: str, flags: int = 0) -> Callable[[Path], None]:
    return lambda place: renameat2(str(place / old), str(place / new), flags)


def renamed(pair: str, flags: int = 0) -> Callable[[Path], object]:
    old, new = pair.split()
    return lambda place: renameat2(str(place / old), str(place / new), flags)


RENAMES = [
    "f e",
    "f new",
    "f D/in",
    "f D/new",
    "f d",
    "d D",
    "D d",
    "D new",
    "h h2",
    "l e",
    "d D/new",
]
EXCHANGES = ["f e", "f d", "D d", "f D/in", "h h2"]
CHANGES: dict[str, Callable[[Path], object]] = {
    **{f"rename {pair}": renamed(pair) for pair in RENAMES},
    **{f"exchange {pair}": renamed(pair, RENAME_EXCHANGE) for pair in EXCHANGES},
    "no replacing": renamed("f e", RENAME_NOREPLACE),
    "link": lambda at: os.link(at / "f", at / "new"),
    "link of a link": lambda at: os.link(at / "l", at / "new", follow_symlinks=False),
    "unlink": lambda at: (at / "f").unlink(),
    "unlink one of two": lambda at: (at / "h").unlink(),
    "unlink a link": lambda at: (at / "l").unlink(),
    "rmdir": lambda at: (at / "d").rmdir(),
    "rmdir of what is full": lambda at: (at / "D").rmdir(),
    "mkdir": lambda at: (at / "new").mkdir(),
    "create": lambda at: (at / "D" / "new").write_bytes(b"created"),
    "symlink": lambda at: (at / "new").symlink_to("e"),
    "another link": lambda at: ((at / "l").unlink(), (at / "l").symlink_to("e")),
    "replace": lambda at: replace(at / "f"),
    "a file becomes a directory": lambda at: become_directory(at / "f"),
    "a directory becomes a file": lambda at: become_file(at / "D"),
    "chmod": lambda at: ((at / "f").chmod(0o4711), (at / "d").chmod(0o1700)),
    "chown": lambda at: os.chown(at / "f", 12, 13),
    "cut": lambda at: os.truncate(at / "big", 70_000),
    "empty": lambda at: os.truncate(at / "f", 0),
    "empty by opening": lambda at: (at / "big").write_bytes(b""),
    "lengthen": lambda at: os.truncate(at / "f", 50_000),
    "append": lambda at: put(at / "big", b"more", os.O_APPEND),
    "overwrite": lambda at: put(at / "big", b"other" * 100, 0, 65_500),
    "write far behind": lambda at: put(at / "f", b"far", 0, 300_000),
    "write through a map": lambda at: write_through_map(at / "big"),
    "allocate": lambda at: allocate(at / "f", 0, 0, 90_000),
    "punch": lambda at: allocate(at / "big", PUNCH, 1000, 80_000),
    "zero": lambda at: allocate(at / "big", ZERO, 90_000, 20_000),
    "copy_file_range": lambda at: copy_into(at / "big", at / "f"),
    "utime": lambda at: os.utime(at / "f", ns=(SET_NS, SET_NS)),
    "setxattr": lambda at: os.setxattr(at / "f", "user.a", b"22"),
    "removexattr": lambda at: os.removexattr(at / "f", "user.a"),
}


def outcome(function: Callable[..., object], *args: object) -> object:
    """Return what a call returns, or the name of its error."""
    try:
        return function(*args)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def content(path: Path) -> tuple[int, str] | str:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return "directory"
        data = os.read(fd, 1 << 20)
    finally:
        os.close(fd)
    return len(data), hashlib.sha256(data).hexdigest()[:16]


def facts(at: os.stat_result) -> list[object]:
    """Return what must be equal: no times but one that was set,
    of directories neither length nor links.
    """
    is_set = at.st_mtime_ns == SET_NS
    if stat.S_ISDIR(at.st_mode):
        return [oct(at.st_mode), at.st_uid, at.st_gid, at.st_nlink == 0]
    return [oct(at.st_mode), at.st_uid, at.st_gid, at.st_nlink, at.st_size, is_set]


def tree(place: Path) -> dict[str, list[object]]:
    found = {}
    for path in sorted(place.rglob("*")):
        name, at = str(path.relative_to(place)), path.lstat()
        if stat.S_ISLNK(at.st_mode):
            found[name] = [facts(at), path.readlink()]
        else:
            own = [(n, os.getxattr(path, n)) for n in os.listxattr(path) if n.startswith("user.")]
            found[name] = [facts(at), own, content(path)]
    return found


def look(place: Path) -> None:
    """Have everything in caches: names, attributes, content, and that there is nothing."""
    tree(place)
    for name in FILES:
        outcome(content, place / name)
    with os.scandir(place) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)


def of_held(fd: int) -> list[object]:
    at = os.fstat(fd)
    data = os.pread(fd, 1 << 20, 0) if stat.S_ISREG(at.st_mode) else b""
    return [facts(at), hashlib.sha256(data).hexdigest()[:16]]


def seen(
    changed: Path, seen_from: Path, names: list[str], wait_s: float
) -> dict[str, list[object]]:
    """Make each change below one directory; return what was found below the other:
    at once, `wait_s` later, and by what had been open.
    """
    found: dict[str, list[object]] = {}
    held: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        at, there = changed / str(number), seen_from / str(number)
        at.mkdir()
        make(at)
        look(there)
        held[name] = [os.open(there / n, os.O_RDONLY) for n in HELD]
        found[name] = [outcome(lambda do=CHANGES[name], at=at: do(at) and None)]
        # A directory may for a second be found by the name that it had: nothing is asked by
        # way of one, nor where one was.
        asked = [n for n in FILES if "/" not in n and (n != "f" or name != "exchange f d")]
        found[name].append([outcome(content, there / n) for n in asked])
    time.sleep(wait_s)
    for number, name in enumerate(names):
        found[name] += [tree(seen_from / str(number)), [of_held(fd) for fd in held[name]]]
        for fd in held[name]:
            os.close(fd)
        shutil.rmtree(seen_from / str(number))
    return found


@pytest.fixture(scope="module")
def other_mount(cluster, tmp_path_factory):
    mount = tmp_path_factory.mktemp("other")
    cluster.ember("mount", mount, "--dir", cluster.directory)
    yield mount
    cluster.ember("umount", mount, "--dir", cluster.directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_the_other_mount_sees_what_a_local_program_would(place, other_mount, disk_path):
    names = list(CHANGES)
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        local = seen(disk_path, disk_path, some, 0.0)
        there = seen(place, other_mount / place.name, some, OLDEST_S)
        for name, expected in local.items():
            assert there[name] == expected, name
