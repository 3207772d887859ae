"""name_to_handle_at(2) and open_by_handle_at(2), as servers of NFS use them;
inotify(7) of what this mount does.
"""

import ctypes
import os
import stat
import struct

from .calls import AT_FDCWD, LIBC, Probe, check

AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = 0x400, 0x1000
_HANDLE_BYTES = 128
_EVENT = struct.Struct("iIII")
ALL_EVENTS = 0xFFF


def _fail() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def handle_of(name: str, flags: int = 0, byte_count: int = _HANDLE_BYTES) -> ctypes.Array:
    """Return a file handle; raises OSError."""
    made = ctypes.create_string_buffer(8 + _HANDLE_BYTES)
    struct.pack_into("I", made, 0, byte_count)
    mount = ctypes.c_int()
    if LIBC.name_to_handle_at(AT_FDCWD, name.encode(), made, ctypes.byref(mount), flags):
        _fail()
    return made


def kind_by_handle(handle: ctypes.Array, mount: int, flags: int) -> int:
    """Open by a handle and return what it is; raises OSError."""
    fd = LIBC.open_by_handle_at(mount, handle, flags)
    if fd < 0:
        _fail()
    found = os.fstat(fd)
    os.close(fd)
    return stat.S_IFMT(found.st_mode)


@check
def handles_of_files(p: Probe) -> None:
    """They lead to what they were made of, whatever it is called, until it is gone."""
    mount = os.open(".", os.O_RDONLY)
    p.touch("f", content=b"x")
    os.mkdir("d")
    os.symlink("f", "l")
    os.mkfifo("pipe")
    p.t("too small", lambda: bool(handle_of("f", 0, 0)))
    p.t("too large", lambda: bool(handle_of("f", 0, 2000)))
    p.t("unknown flag", lambda: bool(handle_of("f", 1)))
    p.t("nothing", lambda: bool(handle_of("")))
    p.t("absent", lambda: bool(handle_of("none")))
    handles = {name: handle_of(name) for name in ("f", "d", "l", "pipe")}
    handles["through l"] = handle_of("l", AT_SYMLINK_FOLLOW)
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_DIRECTORY):
        for name, handle in handles.items():
            p.t(f"{name} {flags:#x}", kind_by_handle, handle, mount, flags | os.O_NONBLOCK)
    os.rename("f", "d/g")
    p.t("moved", kind_by_handle, handles["f"], mount, os.O_RDONLY)
    os.unlink("d/g")
    p.t("removed", kind_by_handle, handles["f"], mount, os.O_RDONLY)
    os.rmdir("d")
    p.t("removed directory", kind_by_handle, handles["d"], mount, os.O_RDONLY)


class Watch:
    """An inotify descriptor and the names of what it watches."""

    def __init__(self) -> None:
        self._fd = LIBC.inotify_init1(os.O_NONBLOCK)
        self._names: dict[int, str] = {}

    def add(self, path: str) -> None:
        """Watch everything of an object."""
        self._names[LIBC.inotify_add_watch(self._fd, path.encode(), ALL_EVENTS)] = path

    def seen(self) -> list[tuple[str, str, bytes]]:
        """Return what was told since the last question: whose, which event, of which name."""
        try:
            told = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return []
        found, place = [], 0
        while place < len(told):
            watch, mask, _, length = _EVENT.unpack_from(told, place)
            place += _EVENT.size
            name = told[place : place + length].rstrip(b"\0")
            place += length
            found.append((self._names[watch], hex(mask), name))
        return found


@check
def what_is_told_of_changes(p: Probe) -> None:
    """To who watches on the same mount."""
    watch = Watch()
    os.mkdir("d")
    watch.add("d")
    fd = os.open("d/f", os.O_CREAT | os.O_RDWR, 0o644)
    watch.add("d/f")
    steps = {
        "write": lambda: os.write(fd, b"x" * 100),
        "read": lambda: os.pread(fd, 5, 0),
        "chmod": lambda: os.fchmod(fd, 0o600),
        "cut": lambda: os.ftruncate(fd, 5),
        "allocate": lambda: os.posix_fallocate(fd, 0, 100),
        "cut by name": lambda: os.truncate("d/f", 3),
        "times": lambda: os.utime("d/f"),
        "chown": lambda: os.chown("d/f", 1, 1),
        "attribute": lambda: os.setxattr("d/f", "user.a", b"1"),
        "no attribute": lambda: os.removexattr("d/f", "user.a"),
        "link": lambda: os.link("d/f", "d/g"),
        "rename": lambda: os.rename("d/g", "d/h"),
        "replace": lambda: (p.touch("d/i"), os.replace("d/i", "d/h")),
        "unlink": lambda: os.unlink("d/h"),
        "mkdir": lambda: os.mkdir("d/s"),
        "list": lambda: os.listdir("d"),
        "symlink": lambda: os.symlink("x", "d/l"),
        "readlink": lambda: os.readlink("d/l"),
        "move away": lambda: (os.rename("d/s", "s"), os.unlink("d/l")),
        "unlink what is open": lambda: os.unlink("d/f"),
        "last close": lambda: os.close(fd),
        "move what is watched": lambda: os.rename("d", "e"),
        "rmdir": lambda: os.rmdir("e"),
    }
    watch.seen()
    for name, step in steps.items():
        step()
        p.note(name, watch.seen())
