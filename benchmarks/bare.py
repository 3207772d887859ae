"""What moving the same bytes costs without a file system: bare processes that receive, verify, write and pass on blocks.

A program hands blocks of a MiB to the first of three processes in a row, as a client hands them to a chain of replicas: each
receives a block, checks its checksum, passes it on, writes it past the page cache and says so when the next one has, and
makes all of it durable in the end.  Reads: one process reads past the page cache, checks and sends, and the program checks again.
Where these two fill the processors, no file system that keeps three checked copies does better, however quick the disk is.

`python -m benchmarks.bare write FILE UP [DOWN]` and `python -m benchmarks.bare read FILE UP` are such processes; UP and DOWN are
sockets that they inherit.  No metadata, no versions, no order between writers, no failures: nothing of a file system.
"""

import mmap
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from .cluster import ROOT
from .table import Row
from .used import Used
from .workloads import MIB

SLOT_COUNT = 16
"""Blocks on their way in one process; as many as the benchmarks of storage have in flight."""
DONE = b"."
_HEAD_BYTES = 8


class Bare(NamedTuple):
    """What bare processes did."""

    mib_s: float
    used: Used
    """Processor time for each GB: of the program, and of the other processes."""


class Slots:
    """Page-aligned memory for blocks with their checksums before them, taken and given back by threads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SLOT_COUNT * MIB)
        self.blocks = [memoryview(self._memory)[i * MIB : (i + 1) * MIB] for i in range(SLOT_COUNT)]
        self.free: SimpleQueue[int] = SimpleQueue()
        for number in range(SLOT_COUNT):
            self.free.put(number)


def bare_writes(folder: Path, count: int) -> Bare:
    """Have three processes in a row write so many blocks durably, to files in `folder` that go with them."""
    program, up = socket.socketpair()
    with tempfile.TemporaryDirectory(dir=folder) as place, program:
        ends: list[socket.socket | None] = [up]
        with _processes() as processes:
            for number in range(3):
                up_end, (near, far) = ends[-1], socket.socketpair()
                assert up_end is not None
                down = near if number < 2 else None  # noqa: PLR2004 - the last of three
                processes.append(_start("write", Path(place) / str(number), up_end, down))
                up_end.close()
                near.close()
                ends.append(far)
            last = ends[-1]
            assert last is not None
            last.close()
            began, before = time.perf_counter(), _own_s()
            _hand_in(program, count)
            return _told(count, time.perf_counter() - began, _own_s() - before, processes)


def bare_reads(path: Path, count: int) -> Bare:
    """Have a process read so many blocks of a local file past the page cache, and receive them."""
    program, up = socket.socketpair()
    with program, _processes() as processes:
        processes.append(_start("read", path, up, None))
        up.close()
        began, before = time.perf_counter(), _own_s()
        program.send(count.to_bytes(_HEAD_BYTES, "little"))
        target = memoryview(mmap.mmap(-1, MIB))
        for _ in range(count):
            _receive_checked(program, target)
        return _told(count, time.perf_counter() - began, _own_s() - before, processes)


def write_row(local: Path, mib: int, limit: float) -> Row:
    """Return what bare processes write next to `local`; `limit` in MiB/s is what a third of its disk takes."""
    found = bare_writes(local.parent, mib)
    name = "bare processes in a row, 1 MiB written (of local / 3)"
    return Row(name, found.mib_s, "MiB/s", limit, used=found.used)


def read_row(local: Path, mib: int, limit: float) -> Row:
    """Return at which rate bare processes read `local` past the page cache; `limit` in MiB/s is its disk's."""
    found = bare_reads(local, mib)
    return Row("bare processes, 1 MiB read (of disk)", found.mib_s, "MiB/s", limit, used=found.used)


@contextmanager
def _processes() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Keep processes until the end, and end them."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _start(
    what: str, path: Path, up: socket.socket, down: socket.socket | None
) -> "subprocess.Popen[bytes]":
    fds = [end.fileno() for end in (up, down) if end is not None]
    command = [sys.executable, "-m", "benchmarks.bare", what, str(path), *map(str, fds)]
    process = subprocess.Popen(command, pass_fds=fds, cwd=ROOT, stdout=subprocess.PIPE)  # noqa: S603
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{' '.join(command)} does not start")
    return process


def _told(
    count: int, took_s: float, own_s: float, processes: list["subprocess.Popen[bytes]"]
) -> Bare:
    others_s = 0.0
    for process in processes:
        assert process.stdout is not None
        others_s += float(process.stdout.readline())
    used = Used(program=own_s, storage=others_s).per_gb(count * MIB)
    return Bare(count / took_s, used)


def _own_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _hand_in(chain: socket.socket, count: int) -> None:
    """Send blocks, `SLOT_COUNT` of them on their way at most, and return when all are durable."""
    block = memoryview(os.urandom(MIB))
    head = xxh3_64_intdigest(block).to_bytes(_HEAD_BYTES, "little")
    room = threading.Semaphore(SLOT_COUNT)

    def hear() -> None:
        while chain.recv(1):
            room.release()

    hearing = threading.Thread(target=hear)
    hearing.start()
    for _ in range(count):
        room.acquire()
        chain.sendall(head)
        chain.sendall(block)
    chain.shutdown(socket.SHUT_WR)
    hearing.join()


def _receive_all(source: socket.socket, target: memoryview) -> bool:
    """Fill `target`; False: nothing comes any more."""
    done = 0
    while done < len(target):
        count = source.recv_into(target[done:])
        if not count:
            return False
        done += count
    return True


def _receive_checked(source: socket.socket, target: memoryview) -> bytes | None:
    """Receive a block; return its checksum, None: there are no more.

    Raises:
        ValueError: it is another block's.
    """
    head = bytearray(_HEAD_BYTES)
    if not _receive_all(source, memoryview(head)) or not _receive_all(source, target):
        return None
    if xxh3_64_intdigest(target) != int.from_bytes(head, "little"):
        raise ValueError("a block came damaged")
    return bytes(head)


def write_blocks(path: Path, up: socket.socket, down: socket.socket | None) -> None:
    """Be one of the replicas: three threads receive, write and answer."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    slots = Slots()
    received: SimpleQueue[int | None] = SimpleQueue()
    written: SimpleQueue[int | None] = SimpleQueue()

    def write() -> None:
        place = 0
        while (number := received.get()) is not None:
            os.pwrite(fd, slots.blocks[number], place)
            place += MIB
            written.put(number)
        os.fdatasync(fd)
        written.put(None)

    def answer() -> None:
        while (number := written.get()) is not None:
            slots.free.put(number)
            if down is None or down.recv(1):
                up.send(DONE)
        if down is not None:
            down.recv(1)  # its end: the next one is durable, too
        up.shutdown(socket.SHUT_RDWR)

    threads = [threading.Thread(target=work) for work in (write, answer)]
    for thread in threads:
        thread.start()
    while True:
        number = slots.free.get()
        head = _receive_checked(up, slots.blocks[number])
        if head is None:
            break
        if down is not None:
            down.sendall(head)
            down.sendall(slots.blocks[number])
        received.put(number)
    if down is not None:
        down.shutdown(socket.SHUT_WR)
    received.put(None)
    for thread in threads:
        thread.join()
    os.close(fd)


def read_blocks(path: Path, up: socket.socket) -> None:
    """Be the process that is asked for blocks: two threads read, and this one checks and sends."""
    count = int.from_bytes(up.recv(_HEAD_BYTES), "little")
    blocks_in_file = path.stat().st_size // MIB
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for _ in range(2)]
    parts = [(Slots(), SimpleQueue[int]()) for _ in fds]

    def read(turn: int) -> None:
        slots, ready = parts[turn]
        for place in range(turn, count, len(fds)):
            number = slots.free.get()
            os.preadv(fds[turn], [slots.blocks[number]], place % blocks_in_file * MIB)
            ready.put(number)

    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(len(fds))]
    for thread in threads:
        thread.start()
    for place in range(count):
        slots, ready = parts[place % len(fds)]
        number = ready.get()
        block = slots.blocks[number]
        up.sendall(xxh3_64_intdigest(block).to_bytes(_HEAD_BYTES, "little"))
        up.sendall(block)
        slots.free.put(number)
    for thread in threads:
        thread.join()


def main(what: str, path: str, *fds: str) -> None:
    """Be one process, and tell its processor time in seconds when all is done."""
    ends = [socket.socket(fileno=int(fd)) for fd in fds]
    before = _own_s()
    print("ready", flush=True)  # noqa: T201 - to who started us
    if what == "write":
        write_blocks(Path(path), ends[0], ends[1] if len(ends) > 1 else None)
    else:
        read_blocks(Path(path), ends[0])
    print(_own_s() - before, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
