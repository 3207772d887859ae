"""When a file was made, as statx(2) tells: it stays, whatever happens to the file."""

import ctypes
import os
import time

from .calls import AT_FDCWD, LIBC, Probe, check

AT_SYMLINK_NOFOLLOW, AT_STATX_FORCE_SYNC, STATX_BTIME = 0x100, 0x2000, 0x800
_BTIME_AT = 80
"""Of struct statx: seconds, then nanoseconds."""


def birth_ns(path: str, flags: int = 0) -> int | None:
    """Return when an object was made; None: the file system does not know."""
    found = ctypes.create_string_buffer(256)
    flags |= AT_SYMLINK_NOFOLLOW
    if LIBC.statx(AT_FDCWD, path.encode(), flags, STATX_BTIME, found):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if not int.from_bytes(found.raw[:4], "little") & STATX_BTIME:
        return None
    seconds = int.from_bytes(found.raw[_BTIME_AT : _BTIME_AT + 8], "little", signed=True)
    return seconds * 10**9 + int.from_bytes(found.raw[_BTIME_AT + 8 : _BTIME_AT + 12], "little")


@check
def births(p: Probe) -> None:
    """Of every kind; neither writing nor renaming nor setting times moves them."""
    began_ns = time.time_ns() - 10**9
    p.touch("file", content=b"x")
    os.mkdir("directory")
    os.mkfifo("pipe")
    os.symlink("nowhere", "link")
    os.mknod("device", 0o20644, os.makedev(5, 300))
    for name in ("file", "directory", "pipe", "link", "device"):
        born_ns = birth_ns(name)
        assert born_ns is not None
        p.note(f"{name} is new", began_ns < born_ns < time.time_ns() + 10**9)
        os.utime(name, ns=(1, 1), follow_symlinks=False)
        os.chown(name, 7, 7, follow_symlinks=False)
        os.rename(name, "other")
        p.note(f"{name} keeps it", birth_ns("other", AT_STATX_FORCE_SYNC) == born_ns)
        p.stat("other")
        found = os.lstat("other")
        p.note("device", (os.major(found.st_rdev), os.minor(found.st_rdev)))
        os.rename("other", name)
    with open("file", "ab") as file:
        file.write(b"more")
    os.truncate("file", 2)
    os.link("file", "second")
    p.note("by another name", birth_ns("second") == birth_ns("file"))
    p.note("a copy is younger", _copied())


def _copied() -> bool:
    time.sleep(0.011)
    with open("copy", "xb"):
        pass
    return (birth_ns("copy") or 0) > (birth_ns("file") or 0)
