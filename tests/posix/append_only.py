"""What Linux lets be done with append-only files and directories (`chattr +a`), call by call.

    python -m tests.posix.append_only DIRECTORY      prints what happens there, as root

Each call has a place of its own: a directory with an append-only file `f` ("text"), or an
append-only directory `d` with a file `old` and a directory `sub` in it, and a file `other` beside.
Places are made by root and belong to OWNER, and everybody may write there.
"""

import ctypes
import fcntl
import mmap
import os
import shutil
import struct
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .calls import LIBC, RENAME_EXCHANGE, RENAME_NOREPLACE, Probe, renameat2, run_child

SETFLAGS: Final = 0x40086602
GETFLAGS: Final = 0x80086601
APPEND_ONLY: Final = 0x20
IMMUTABLE: Final = 0x10
OWNER: Final = 4321
USERS: Final = {"root": 0, "owner": OWNER, "stranger": 4322}
SET_ID: Final = "append to a set-id program"
A, W, R, RW, T, C = (
    os.O_APPEND,
    os.O_WRONLY,
    os.O_RDONLY,
    os.O_RDWR,
    os.O_TRUNC,
    os.O_CREAT,
)
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 0x10


def set_flags(path, flags):
    """As `chattr`: other flags stay."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        (others,) = struct.unpack("i", fcntl.ioctl(fd, GETFLAGS, bytes(4)))
        others &= ~(APPEND_ONLY | IMMUTABLE)
        fcntl.ioctl(fd, SETFLAGS, struct.pack("q", others | flags))
    finally:
        os.close(fd)


def flags_of(path):
    """As `lsattr`."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return struct.unpack("i", fcntl.ioctl(fd, GETFLAGS, bytes(4)))[0] & 0x30
    finally:
        os.close(fd)


@contextmanager
def opened(path, flags):
    """Open a file for a while."""
    fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def opens(flags):
    """Return a call that opens the file."""

    def call():
        with opened("f", flags):
            pass

    return call


def with_fd(flags, act):
    """Return a call that does something with the opened file."""

    def call():
        with opened("f", flags) as fd:
            return act(fd)

    return call


def allocate(mode, offset, length):
    """Return what calls fallocate."""

    def act(fd):
        if LIBC.fallocate64(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
            raise OSError(ctypes.get_errno(), "")
        return os.fstat(fd).st_size

    return act


def write(data, offset=None):
    """Return what writes, and tells what the file holds then."""

    def act(fd):
        os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)
        return Path("f").read_text()

    return act


def without_append(fd):
    """Take O_APPEND from a descriptor, then write at the beginning."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    os.pwrite(fd, b"NEW!", 0)
    return Path("f").read_text()


def with_nonblock(fd):
    """Set another flag of the descriptor."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)


def maps(flags, protection):
    """Return what maps the file."""

    def act(fd):
        mmap.mmap(fd, 4, flags, protection).close()

    return act


def map_and_change(fd):
    """Change the first byte by a shared map."""
    with mmap.mmap(fd, 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as found:
        found[0:1] = b"N"
        found.flush()


def makes_and_opens(flags):
    """Return a call that makes a file in the directory."""

    def call():
        with opened("d/new", flags):
            pass

    return call


def unnamed_then_linked():
    """Make a file without a name in the directory, and name it there."""
    with opened("d", os.O_TMPFILE | W) as fd, opened(".", R) as here:
        # Without a directory Python would not have the link followed.
        os.link(f"/proc/self/fd/{fd}", "d/new", src_dir_fd=here, follow_symlinks=True)


def copy_into(fd):
    """Copy a range into the file."""
    with opened("other", R) as source:
        os.copy_file_range(source, fd, 4)


def append_to_set_id():
    """Append to what loses its set-id bit by that; return its mode afterwards."""
    with opened("f", W | A) as fd:
        os.write(fd, b"+more")
    return oct(os.stat("f").st_mode & 0o7777)


FILE_CALLS = {
    "open read": opens(R),
    "open write": opens(W),
    "open read and write": opens(RW),
    "open append": opens(W | A),
    "open read and append": opens(RW | A),
    "open append and truncate": opens(W | A | T),
    "open read and truncate": opens(R | T),
    "open create": opens(W | C),
    "open create append": opens(W | C | A),
    "open create read": opens(R | C),
    "open create truncate append": opens(W | C | T | A),
    "open only the path": opens(os.O_PATH),
    "open read noatime": opens(R | os.O_NOATIME),
    "append": with_fd(W | A, write(b"+more")),
    SET_ID: append_to_set_id,
    "append at an offset": with_fd(W | A, write(b"+more", 0)),
    "read": with_fd(R, lambda fd: os.read(fd, 10).decode()),
    "take O_APPEND away": with_fd(W | A, without_append),
    "set O_NONBLOCK": with_fd(W | A, with_nonblock),
    "ftruncate to 0": with_fd(W | A, lambda fd: os.ftruncate(fd, 0)),
    "ftruncate to the same": with_fd(W | A, lambda fd: os.ftruncate(fd, 4)),
    "ftruncate longer": with_fd(W | A, lambda fd: os.ftruncate(fd, 9)),
    "truncate to 0": lambda: os.truncate("f", 0),
    "truncate to the same": lambda: os.truncate("f", 4),
    "truncate longer": lambda: os.truncate("f", 9),
    "fallocate": with_fd(W | A, allocate(0, 0, 9)),
    "fallocate inside": with_fd(W | A, allocate(0, 0, 2)),
    "fallocate keep size": with_fd(W | A, allocate(KEEP_SIZE, 0, 9)),
    "fallocate punch": with_fd(W | A, allocate(KEEP_SIZE | PUNCH_HOLE, 0, 2)),
    "fallocate zero": with_fd(W | A, allocate(ZERO_RANGE, 0, 2)),
    "copy_file_range": with_fd(W | A, copy_into),
    "map shared for writing": with_fd(
        RW | A, maps(mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    ),
    "map shared for reading, opened to append": with_fd(
        RW | A, maps(mmap.MAP_SHARED, mmap.PROT_READ)
    ),
    "map shared for reading": with_fd(R, maps(mmap.MAP_SHARED, mmap.PROT_READ)),
    "map private": with_fd(RW | A, maps(mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)),
    "change by a map": with_fd(RW | A, map_and_change),
    "chmod": lambda: os.chmod("f", 0o600),
    "chmod to the same": lambda: os.chmod("f", 0o666),
    "fchmod": with_fd(R, lambda fd: os.fchmod(fd, 0o600)),
    "chown": lambda: os.chown("f", OWNER, OWNER),
    "chown of nothing": lambda: os.chown("f", -1, -1),
    "times to now": lambda: os.utime("f"),
    "times to a time": lambda: os.utime("f", (1, 1)),
    "set attribute": lambda: os.setxattr("f", "user.x", b"1"),
    "remove attribute": lambda: os.removexattr("f", "user.had"),
    "read attribute": lambda: os.getxattr("f", "user.had").decode(),
    "set list": lambda: os.setxattr("f", "system.posix_acl_access", ACCESS_LIST),
    "unlink": lambda: os.unlink("f"),
    "rename": lambda: os.rename("f", "g"),
    "rename over": lambda: os.rename("other", "f"),
    "rename without replacing": lambda: renameat2("f", "g", RENAME_NOREPLACE),
    "exchange": lambda: renameat2("f", "other", RENAME_EXCHANGE),
    "exchange the other way": lambda: renameat2("other", "f", RENAME_EXCHANGE),
    "link": lambda: os.link("f", "g"),
    "access for writing": lambda: os.access("f", os.W_OK),
    "take the flag away": lambda: set_flags("f", 0),
    "set both flags": lambda: set_flags("f", APPEND_ONLY | IMMUTABLE),
    "show the flag": lambda: hex(flags_of("f")),
    "set the flag of another": lambda: set_flags("other", APPEND_ONLY),
    "lock": with_fd(W | A, lambda fd: fcntl.flock(fd, fcntl.LOCK_EX)),
}
DIRECTORY_CALLS = {
    "create in it": makes_and_opens(W | C),
    "create exclusively in it": makes_and_opens(W | C | os.O_EXCL),
    "make a directory in it": lambda: os.mkdir("d/new"),
    "make a link in it": lambda: os.symlink("x", "d/new"),
    "make a pipe in it": lambda: os.mkfifo("d/new"),
    "link into it": lambda: os.link("other", "d/new"),
    "make without a name in it": unnamed_then_linked,
    "rename into it": lambda: os.rename("other", "d/new"),
    "rename in it": lambda: os.rename("d/old", "d/new"),
    "rename over in it": lambda: os.rename("other", "d/old"),
    "rename without replacing into it": lambda: renameat2("other", "d/new", RENAME_NOREPLACE),
    "rename out of it": lambda: os.rename("d/old", "new"),
    "exchange with what is in it": lambda: renameat2("other", "d/old", RENAME_EXCHANGE),
    "unlink in it": lambda: os.unlink("d/old"),
    "rmdir in it": lambda: os.rmdir("d/sub"),
    "rmdir": lambda: os.rmdir("d"),
    "rename it": lambda: os.rename("d", "e"),
    "rename a directory over it": lambda: os.rename("sub", "d"),
    "write a file in it": lambda: Path("d/old").write_text("new"),
    "make in a directory below": lambda: os.mkdir("d/sub/new"),
    "remove in a directory below": lambda: os.unlink("d/sub/below"),
    "chmod it": lambda: os.chmod("d", 0o700),
    "chown it": lambda: os.chown("d", OWNER, OWNER),
    "its times to now": lambda: os.utime("d"),
    "its times to a time": lambda: os.utime("d", (1, 1)),
    "its attribute": lambda: os.setxattr("d", "user.x", b"1"),
    "its default list": lambda: os.setxattr("d", "system.posix_acl_default", ACCESS_LIST),
    "list it": lambda: sorted(os.listdir("d")),
    "flags of what is made in it": lambda: os.mkdir("d/new") or hex(flags_of("d/new")),
    "remove all of it": lambda: shutil.rmtree("d"),
}
ACCESS_LIST = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, 6, number)
    for tag, number in ((1, 2**32 - 1), (2, 77), (4, 2**32 - 1), (16, 2**32 - 1), (32, 2**32 - 1))
)
CALLS: Final = {**FILE_CALLS, **DIRECTORY_CALLS}
STRANGERS: Final = {
    "open write", "open append", "append", SET_ID, "truncate to 0", "times to now", "chmod",
    "unlink", "link", "set attribute", "create in it", "rename out of it", "unlink in it",
}  # fmt: skip
"""What somebody else tries, who may write."""


def names_for(user):
    """Return what a user calls."""
    return [name for name in CALLS if user != "stranger" or name in STRANGERS]


def prepare(base, user):
    """Make the places of a user's calls."""
    for name in names_for(user):
        place = Path(base, user, name)
        place.mkdir(parents=True)
        (place / "other").write_text("other")
        if name in FILE_CALLS:
            (place / "f").write_text("text")
            os.setxattr(place / "f", "user.had", b"it")
        else:
            (place / "d" / "sub").mkdir(parents=True)
            (place / "sub").mkdir()
            (place / "d" / "old").write_text("old")
            (place / "d" / "sub" / "below").touch()
        for path in [place, *place.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
            os.chown(path, OWNER, OWNER)
        if name == SET_ID:
            (place / "f").chmod(0o4777)
        set_flags(place / ("f" if name in FILE_CALLS else "d"), APPEND_ONLY)


def clear(base):
    """Take all flags away, so that the places can be removed."""
    for path in Path(base).rglob("*"):
        if path.is_file() or path.is_dir():
            set_flags(path, 0)


def outcomes(base, user):
    """Return what comes of a user's calls, by name, as text."""
    prepare(base, user)

    def calls(p: Probe) -> None:
        home = os.open(".", R)
        for name in names_for(user):
            os.chdir(name)
            p.t(name, CALLS[name])
            os.fchdir(home)

    uid = USERS[user]
    return dict(run_child(calls, Path(base, user), (uid, uid, ())))


def main():
    """Print what happens in a directory."""
    base = Path(sys.argv[1]) / "append-only"
    base.mkdir()
    try:
        for user in USERS:
            for name, what in outcomes(base, user).items():
                print(f"{user:9} {name:42} {what}")
    finally:
        clear(base)
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
