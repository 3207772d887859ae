"""Checks of content: reading, writing, truncating, mapping, seeking, holes, several descriptors."""

import fcntl
import hashlib
import mmap
import os
import signal
from pathlib import Path

from .calls import GROUP, Probe, check


@check
def read_and_write_errors(p: Probe) -> None:
    p.touch("f", content=b"0123456789")
    reader, writer = os.open("f", os.O_RDONLY), os.open("f", os.O_WRONLY)
    os.mkdir("d")
    directory = os.open("d", os.O_RDONLY)
    p.t("write to reader", os.write, reader, b"x")
    p.t("read from writer", os.read, writer, 1)
    p.t("truncate reader", os.ftruncate, reader, 1)
    p.t("truncate negative", os.ftruncate, writer, -1)
    p.t("read dir", os.read, directory, 1)
    p.t("truncate dir", os.truncate, "d", 0)
    p.t("truncate dir fd", os.ftruncate, directory, 0)
    p.t("truncate missing", os.truncate, "m", 0)
    p.t("truncate below", os.truncate, "f/x", 0)
    p.t("read behind", os.pread, reader, 5, 10)
    p.t("read far behind", os.pread, reader, 5, 10**9)
    p.t("read over end", os.pread, reader, 50, 7)
    p.t("seek end", os.lseek, reader, 0, os.SEEK_END)
    p.t("seek before", os.lseek, reader, -1, os.SEEK_SET)
    p.t("pwrite negative", os.pwrite, writer, b"x", -1)
    p.t("fsync dir", os.fsync, directory)
    p.t("fdatasync dir", os.fdatasync, directory)
    p.t("fsync reader", os.fsync, reader)
    os.mkfifo("p")
    p.t("truncate fifo", os.truncate, "p", 0)


@check
def truncation_and_holes(p: Probe) -> None:
    fd = os.open("f", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, b"A" * 100_000)
    p.t("shorter", os.ftruncate, fd, 10)
    p.t("longer", os.ftruncate, fd, 50)
    p.t("zeros", os.pread, fd, 100, 0)
    p.t("write behind", os.pwrite, fd, b"Z", 200_000)
    p.t("hole", lambda: os.pread(fd, 200_001, 0) == b"A" * 10 + bytes(199_990) + b"Z")
    p.t("zero", os.ftruncate, fd, 0)
    p.t("longer", os.ftruncate, fd, 1000)
    p.t("zeros", lambda: os.pread(fd, 2000, 0) == bytes(1000))
    p.t("write", os.pwrite, fd, b"B" * 500, 0)
    p.t("cut in buffer", os.ftruncate, fd, 100)
    p.t("grow", os.ftruncate, fd, 300)
    p.t("content", os.pread, fd, 1000, 0)
    p.stat(fd, label="fstat")
    os.close(fd)
    with open("f", "rb") as file:
        p.note("content", file.read())
    fd = os.open("g", os.O_CREAT | os.O_RDWR, 0o644)
    p.t("sparse", os.pwrite, fd, b"end", 3 * 2**30)
    p.stat(fd, label="sparse")
    p.t("middle", os.pread, fd, 4, 2**30)
    p.t("end", os.pread, fd, 10, 3 * 2**30 - 2)
    p.t("cut", os.ftruncate, fd, 3 * 2**30 + 1)
    p.t("grow", os.ftruncate, fd, 3 * 2**30 + 5)
    p.t("end", os.pread, fd, 10, 3 * 2**30 - 2)


@check
def two_descriptors(p: Probe) -> None:
    one = os.open("f", os.O_CREAT | os.O_RDWR, 0o644)
    two = os.open("f", os.O_RDWR)
    os.write(one, b"hello world")
    p.t("other reads", os.pread, two, 50, 0)
    p.stat(two, label="other's stat")
    p.t("seek end", os.lseek, two, 0, os.SEEK_END)
    p.t("open trunc", lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)))
    p.stat("f")
    p.t("read", os.pread, one, 50, 0)
    os.write(one, b"!")
    p.t("behind the cut", os.pread, two, 50, 0)
    os.close(one)
    os.close(two)
    p.stat("f")
    with open("f", "rb") as file:
        p.note("content", file.read())


@check
def truncating_open_of_unreported_data(p: Probe) -> None:
    for gap in (0, 1):
        fd = os.open("f", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.write(fd, b"old old old")
        if gap:
            os.fsync(fd)
            os.write(fd, b"more")
        other = os.open("f", os.O_WRONLY | os.O_TRUNC)
        p.stat(fd, label="after")
        os.write(other, b"new")
        os.close(other)
        os.close(fd)
        p.stat("f")
        with open("f", "rb") as file:
            p.note("content", file.read())
        fd = os.open("f", os.O_WRONLY)
        os.pwrite(fd, b"tail", 11)
        os.close(os.open("f", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        os.close(fd)
        p.stat("f")


@check
def appending(p: Probe) -> None:
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
    other = os.open("f", os.O_RDWR)
    p.t("append", os.write, fd, b"one")
    p.stat(fd, label="length")
    p.t("position", os.lseek, fd, 0, os.SEEK_CUR)
    p.t("other", os.pwrite, other, b"ONE-and-more", 0)
    p.t("append", os.write, fd, b"two")
    p.t("read", os.pread, fd, 100, 0)
    p.t("seek", os.lseek, fd, 2, os.SEEK_SET)
    p.t("append", os.write, fd, b"three")
    p.t("position", os.lseek, fd, 0, os.SEEK_CUR)
    p.t("truncate", os.ftruncate, fd, 4)
    p.t("append", os.write, fd, b"four")
    p.t("read by other", os.pread, other, 100, 0)
    p.t("set flag", fcntl.fcntl, other, fcntl.F_SETFL, os.O_APPEND)
    p.t("append by flag", os.write, other, b"five")
    p.t("read", os.pread, fd, 100, 0)
    os.close(fd)
    os.close(other)
    with open("f", "rb") as file:
        p.note("content", file.read())


@check
def appending_no_more(p: Probe) -> None:
    p.touch("from", content=b"0123456789")
    source = os.open("from", os.O_RDONLY)
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
    p.t("append", os.write, fd, b"one-two-three")
    p.t("copy", os.copy_file_range, source, fd, 3, 0, 4)
    p.t("take flag", fcntl.fcntl, fd, fcntl.F_SETFL, 0)
    p.t("write in place", os.pwrite, fd, b"ONE", 0)
    p.t("seek", os.lseek, fd, 8, os.SEEK_SET)
    p.t("write at position", os.write, fd, b"THREE")
    p.t("position", os.lseek, fd, 0, os.SEEK_CUR)
    p.t("copy", os.copy_file_range, source, fd, 3, 0, 4)
    p.t("read", os.pread, fd, 100, 0)
    p.t("set flag", fcntl.fcntl, fd, fcntl.F_SETFL, os.O_APPEND)
    p.t("append again", os.pwrite, fd, b"four", 0)
    p.t("copy", os.copy_file_range, source, fd, 3, 0, 4)
    p.t("read", os.pread, fd, 100, 0)
    os.close(fd)
    with open("f", "rb") as file:
        p.note("content", file.read())


@check
def mapping(p: Probe) -> None:
    size = 3 * mmap.PAGESIZE
    p.touch("f", content=b"x" * (size - 100))
    fd = os.open("f", os.O_RDWR)
    with mmap.mmap(fd, size - 100) as shared:
        p.note("see", shared[:3])
        os.pwrite(fd, b"ABC", 0)
        p.note("see write", shared[:3])
        shared[5000:5003] = b"map"
        p.t("read map", os.pread, fd, 5, 4999)
        shared.flush()
        p.t("grow", os.ftruncate, fd, size + 10)
        p.t("read map", os.pread, fd, 5, 4999)
    os.close(fd)
    with open("f", "rb") as file:
        content = file.read()
    p.note("content", (len(content), content[:4], content[4999:5004], content[-112:-108]))
    fd = os.open("f", os.O_RDWR)
    with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE) as private:
        private[0:3] = b"zzz"
        p.note("private", private[:3])
    p.t("unchanged", os.pread, fd, 3, 0)
    with mmap.mmap(fd, size) as shared:
        os.close(fd)
        shared[100:104] = b"late"
    with open("f", "rb") as file:
        p.note("after closing first", file.read()[100:104])
    p.t("map for writing a reader", lambda: mmap.mmap(os.open("f", os.O_RDONLY), 10))
    fd = os.open("s", os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, 10)
    os.ftruncate(fd, 100)  # Python refuses to map more than there is
    with mmap.mmap(fd, 100) as shared:
        os.ftruncate(fd, 10)
        shared[50:54] = b"lost"
        shared[0:4] = b"kept"
        shared.flush()
    p.stat(fd, label="length stays")
    p.t("content", os.pread, fd, 100, 0)
    os.ftruncate(fd, 100)
    p.t("zeros behind", lambda: os.pread(fd, 100, 10) == bytes(90))


@check
def copying_and_seeking(p: Probe) -> None:
    p.touch("a", content=os.urandom(0) + b"0123456789" * 1000)
    a, b = os.open("a", os.O_RDONLY), os.open("b", os.O_CREAT | os.O_RDWR, 0o644)
    p.t("copy_file_range", os.copy_file_range, a, b, 5000, 100, 50)
    p.stat(b, label="copy")
    p.t("content", os.pread, b, 20, 45)
    p.t("sendfile", os.sendfile, b, a, 0, 5000)
    p.t("data", os.lseek, a, 0, os.SEEK_DATA)
    p.t("hole", os.lseek, a, 0, os.SEEK_HOLE)
    p.t("data behind", os.lseek, a, 10_000, os.SEEK_DATA)
    p.t("hole behind", os.lseek, a, 20_000, os.SEEK_HOLE)


@check
def seeking_what_a_map_wrote(p: Probe) -> None:
    """It is data from then on, whether or not the map was synced; else copies leave it out."""
    size, step = 64 << 20, 8 << 20
    fd = os.open("mapped", os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as m:
        for place in (5 * step, 2 * step, 7 * step):
            m[place : place + 4] = b"data"
            for start in range(0, size, step):
                label = f"from {start // step} after {place // step}"
                p.t(label, lambda at=start: os.lseek(fd, at, os.SEEK_DATA) // step)
        p.t("there", os.pread, fd, 6, 2 * step - 1)
        m[step : step + 4] = b"more"
    os.lseek(fd, 0, os.SEEK_SET)
    p.t("not mapped any more", lambda: os.lseek(fd, 0, os.SEEK_DATA) // step)


@check
def copying_ranges(p: Probe) -> None:
    p.touch("a", content=bytes(range(256)) * 1000)
    a = os.open("a", os.O_RDWR)
    os.pwrite(a, b"end", 3_000_000)
    os.lseek(a, 0, os.SEEK_SET)

    def copies(label: str, b: int, *args: int) -> None:
        p.t(label, os.copy_file_range, a, b, *args)
        p.note(f"{label} content", hashlib.sha256(os.pread(b, 10_000_000, 0)).hexdigest())
        p.stat(b, label=f"{label} attributes")

    b = os.open("b", os.O_CREAT | os.O_RDWR, 0o644)
    copies("all", b, 10_000_000, 0, 0)
    copies("a hole onto bytes", b, 100_000, 500_000, 1000)
    copies("a hole behind the end", b, 100_000, 500_000, 5_000_000)
    copies("odd", b, 77_777, 12_345, 54_321)
    copies("at the end", b, 100, 3_000_003, 0)
    copies("behind the end", b, 100, 4_000_000, 0)
    copies("nothing", b, 0, 0, 0)
    copies("itself", a, 1000, 0, 5000)
    copies("overlapping", a, 1000, 0, 500)
    copies("own place", b, 1000)
    p.note("place", (os.lseek(a, 0, os.SEEK_CUR), os.lseek(b, 0, os.SEEK_CUR)))
    copies("appending", os.open("b", os.O_RDWR | os.O_APPEND), 100, 0, 0)
    p.t("write only", os.copy_file_range, os.open("a", os.O_WRONLY), b, 100, 0, 0)
    p.t("read only", os.copy_file_range, a, os.open("b", os.O_RDONLY), 100, 0, 0)
    os.chmod("b", 0o6777)
    p.as_user(lambda q: q.t("by a user", os.copy_file_range, a, b, 10, 0, 0))
    p.changes("copy", "b", lambda: os.copy_file_range(a, b, 10, 0, 0))


@check
def large_scattered_writes(p: Probe) -> None:
    fd = os.open("f", os.O_CREAT | os.O_RDWR, 0o644)
    image = bytearray(6_000_000)
    step = 0
    for turn in range(300):
        step = (step * 7919 + 104_729 * turn + 13) % 5_900_000
        piece = bytes([turn % 251 + 1]) * (1 + step % 9000)
        os.pwrite(fd, piece, step)
        image[step : step + len(piece)] = piece
        if turn % 60 == 59:
            length = 5_000_000 + step % 900_000
            os.ftruncate(fd, length)
            image[length:] = bytes(len(image) - length)
            os.ftruncate(fd, 6_000_000)
    os.ftruncate(fd, 6_000_000)
    p.note("own view", os.pread(fd, 6_000_000, 0) == bytes(image))
    os.close(fd)
    with open("f", "rb") as file:
        p.note("after close", file.read() == bytes(image))


@check
def executing(p: Probe) -> None:
    p.touch("script", 0o755, b"#!/bin/sh\necho ran\n")
    p.touch("plain", 0o644, b"#!/bin/sh\necho ran\n")
    p.touch("secret", 0o711, b"#!/bin/sh\necho ran\n")

    def user(q: Probe) -> None:
        for name in ("script", "plain"):
            q.note(name, os.system(f"./{name} > /dev/null 2>&1"))
        q.t("read secret", os.open, "secret", os.O_RDONLY)

    p.as_user(user)


@check
def running_programs(p: Probe) -> None:
    p.touch("prog", 0o755, Path("/bin/sleep").read_bytes())
    pid = os.posix_spawn("./prog", ["prog", "60"], {})
    try:
        for mode in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY, os.O_ACCMODE):
            for flags in (mode, mode | os.O_TRUNC):
                p.t(f"open {flags}", os.open, "prog", flags)
                p.stat("prog")
        p.t("truncate", os.truncate, "prog", 0)
        p.stat("prog")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@check
def files_without_a_name(p: Probe) -> None:
    p.mkdir("d", 0o777)
    p.touch("f")
    write = os.O_TMPFILE | os.O_RDWR

    def link(fd: int, path: str) -> None:
        # Given a directory, though the path is absolute, Python calls what follows symbolic links.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)

    os.umask(0o027)
    fd = os.open("d", write, 0o666)
    p.stat(fd, label="new")
    p.t("write", os.pwrite, fd, b"0123456789", 0)
    p.stat(fd, label="written")
    p.note("listed", os.listdir("d"))
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    p.t("link onto another", link, fd, "f")
    p.t("link", link, fd, "d/g")
    p.t("link again", link, fd, "h")
    p.stat("d/g")
    p.t("read", lambda: Path("d/g").read_bytes())
    p.t("write on", os.pwrite, fd, b"x", 10)
    os.close(fd)
    p.t("read again", os.pread, again, 20, 0)
    os.unlink("d/g")
    os.unlink("h")
    p.stat(again, label="removed")
    p.t("link removed", link, again, "d/g")
    p.t("read removed", os.pread, again, 20, 0)
    never = os.open("d", write | os.O_EXCL, 0o600)
    p.t("link exclusive", link, never, "d/g")
    p.stat(never, label="exclusive")
    reader = os.open(f"/proc/self/fd/{never}", os.O_RDONLY)
    os.pwrite(never, b"kept", 0)
    os.close(never)
    p.t("read without the writer", os.pread, reader, 20, 0)
    p.t("for reading", os.open, "d", os.O_TMPFILE | os.O_RDONLY)
    p.t("in a file", os.open, "f", write)
    p.t("in nothing", os.open, "missing", write)
    p.changes("temporary", "d", lambda: os.close(os.open("d", write)))
    os.chmod("d", 0o755)
    p.as_user(lambda q: q.t("where one may not write", os.open, "d", write, 0o600))
    os.chmod("d", 0o2777)
    os.chown("d", -1, GROUP)

    def user(q: Probe) -> None:
        fd = os.open("d", write, 0o600)
        q.stat(fd, label="of a user")
        q.t("linked by a user", link, fd, "d/u")

    os.chmod("d", 0o2777)
    p.as_user(user)
    p.stat("d/u")
    p.note("left", sorted(os.listdir("d")))
