"""splice(2), sendfile(2), copy_file_range(2) and vectored reads and writes with flags:
outcomes, lengths, what is refused.
"""

import os
import resource
import signal
from collections.abc import Callable

from .calls import Probe, check

RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_UNKNOWN = 2, 4, 16, 1 << 20
FAR = 2**63 - 5


def _opened(p: Probe) -> dict[str, int]:
    p.touch("a", content=b"0123456789" * 1000)
    p.touch("b")
    read, write = os.pipe()
    return {
        "source": os.open("a", os.O_RDONLY),
        "file": os.open("b", os.O_RDWR),
        "append": os.open("b", os.O_RDWR | os.O_APPEND),
        "write only": os.open("b", os.O_WRONLY),
        "directory": os.open(".", os.O_RDONLY),
        "path": os.open("a", os.O_PATH),
        "pipe out": read,
        "pipe in": write,
    }


def _between(p: Probe, name: str, call: Callable[..., object], fds: dict[str, int]) -> None:
    for target in ("file", "append", "source", "directory", "pipe in"):
        for source in ("source", "write only", "directory", "path", "pipe out"):
            if (target, source) == ("pipe in", "pipe out"):
                continue
            p.t(f"{name} {source} to {target}", call, fds[target], fds[source])
            p.stat("b", label=f"{name} {source} to {target}: b")


@check
def sending_files(p: Probe) -> None:
    """Between every two kinds of descriptors, from odd places."""
    fds = _opened(p)
    os.set_blocking(fds["pipe out"], False)
    os.set_blocking(fds["pipe in"], False)
    _between(p, "sendfile", lambda to, of: os.sendfile(to, of, 0, 100), fds)
    for offset in (-1, 9_990, 10_000, 10**6, FAR):
        p.t(f"sendfile at {offset}", os.sendfile, fds["file"], fds["source"], offset, 100)
    while p.t("drained", os.read, fds["pipe out"], 5000):
        pass
    _between(p, "splice", lambda to, of: os.splice(of, to, 100), fds)
    for offset in (-5, 5, 20_000):
        there = {"offset_src": offset}
        p.t(f"splice at {offset}", os.splice, fds["source"], fds["pipe in"], 10, **there)
    p.stat("b")


@check
def copying_ranges(p: Probe) -> None:
    """Over itself, beyond every end, and where nothing may be written."""
    fds = _opened(p)
    copy, source, file = os.copy_file_range, fds["source"], fds["file"]
    _between(p, "copy", lambda to, of: copy(of, to, 100, 0, 0), fds)
    for start, place in ((0, 25), (0, 50), (0, 0), (25, 0)):
        p.t(f"over itself {start} to {place}", copy, file, file, 50, start, place)
    for start, place in ((-1, 0), (0, -1), (10**6, 0), (FAR, 0), (0, FAR), (9_999, 7)):
        p.t(f"from {start} to {place}", copy, source, file, 10, start, place)
    for count in (0, 2**40):
        p.t(f"{count} bytes", copy, source, file, count, 0, 0)
    p.t("all", lambda: os.pread(file, 20_000, 0))


@check
def vectors_with_flags(p: Probe) -> None:
    """preadv2(2) and pwritev2(2): one write may append, or be durable;
    unknown flags are refused.
    """
    p.touch("f", content=b"x" * 8192)
    for how in (os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDONLY, os.O_WRONLY):
        fd = os.open("f", how)
        for flags in (0, RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_APPEND | RWF_DSYNC, RWF_UNKNOWN):
            label = f"{how:#x} {flags:#x}"
            p.t(f"read {label}", os.preadv, fd, [bytearray(100)], 0, flags)
            p.t(f"write {label}", os.pwritev, fd, [b"yy", b"", b"z" * 4096], 10, flags)
            p.stat("f", label=f"after {label}")
            os.truncate("f", 8192)
        for count in (0, 1024, 1025):
            p.t(f"{how:#x} {count} parts", os.readv, fd, [bytearray(1)] * count)
        os.close(fd)


def _limited(p: Probe) -> None:
    """In a process of its own, for its limit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    fds = _opened(p)
    file, source = fds["file"], fds["source"]
    p.t("within", os.write, file, b"x" * 4990)
    p.t("partly", os.write, file, b"x" * 100)
    p.t("behind", os.write, file, b"x")
    p.t("appended", os.write, fds["append"], b"x")
    p.t("far", os.pwrite, file, b"x", 2**40)
    p.t("cut longer", os.ftruncate, file, 6000)
    p.t("cut longer by name", os.truncate, "b", 5001)
    p.t("allocated", os.posix_fallocate, file, 0, 6000)
    p.t("copied partly", os.copy_file_range, source, file, 100, 0, 4950)
    p.t("copied behind", os.copy_file_range, source, file, 100, 0, 5000)
    p.t("sent", os.sendfile, file, source, 0, 100)
    p.stat("b")


@check
def limits_of_length(p: Probe) -> None:
    """RLIMIT_FSIZE: what fits is written, and nothing behind."""
    os.chmod(".", 0o777)
    p.as_user(_limited)
