"""What moving the same bytes costs without a file system:
bare processes that receive, verify, write and pass on blocks.

A program hands blocks of a MiB to the first of three processes in a row, as a client hands
them to a chain of replicas: each receives a block, checks its checksum, passes it on, writes
it past the page cache and says so when the next one has, and makes all of it durable in the
end.  Reads: one process reads past the page cache, checks and gives, and the program checks
again.  Where these two fill the processors, no file system that keeps three checked copies
does better, however quick the disk is.

They have what a storage process has: payloads that are read out of the memory of whoever has
them (lent; where the kernel does not let them, over the socket), buffers of huge pages that
were touched before, space claimed in front, several writes at once.  And they do less: a
block is passed on before it is written, nobody keeps checksums of its parts, names, versions,
order, or anything for failures.

`python -m benchmarks.bare write FILE COUNT UP [DOWN]` and `python -m benchmarks.bare read FILE UP`
are such processes; UP and DOWN are sockets that they inherit.
"""

import os
import resource
import socket
import struct
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

from fs.kernels.lent import NONCE_BYTES, PIECE, pieces_of, read_lent

from .cluster import ROOT
from .disk import huge_memory, new_file_mib_s
from .table import Row
from .used import Used
from .workloads import MIB

SLOT_COUNT = 16
"""Blocks on their way in one process; as many as the benchmarks of storage have in flight."""
WRITER_COUNT = 4
"""Threads that write, in each process."""
DONE = b"."
_HEAD_BYTES = 8
"""The checksum of a block, before it."""
_GREETING = struct.Struct(f"<QQ{NONCE_BYTES}s")
"""Of who hands blocks down: its process, where in its memory it has a nonce, and that."""
_LENT, _SENT = b"L", b"S"
"""The answer: in which way blocks are to come."""


class Bare(NamedTuple):
    """What bare processes did."""

    mib_s: float
    used: Used
    """Processor time for each GB: of the program, and of the other processes."""


class Slots:
    """Memory for blocks, in huge pages where there are some, taken and given back by threads."""

    def __init__(self) -> None:
        view = huge_memory(SLOT_COUNT * MIB)
        self.blocks = [view[i * MIB : (i + 1) * MIB] for i in range(SLOT_COUNT)]
        self.free: SimpleQueue[int] = SimpleQueue()
        for number in range(SLOT_COUNT):
            self.free.put(number)


class Receiver:
    """The lower end of a socket over which blocks come."""

    def __init__(self, source: socket.socket, *, may_borrow: bool = True) -> None:
        """Take the greeting of who hands blocks down, and answer in which way they are to come."""
        self._source = source
        greeting = bytearray(_GREETING.size)
        if not _receive_all(source, memoryview(greeting)):
            raise ValueError("nobody is there")
        self._pid, self._place, self._nonce = _GREETING.unpack(greeting)
        self.is_lent = may_borrow and self._can_borrow()
        source.sendall(_LENT if self.is_lent else _SENT)

    def _can_borrow(self) -> bool:
        try:
            read_lent(self._pid, b"", 0, bytearray(), self._place, self._nonce)
        except OSError:
            return False
        return True

    def receive(self, target: memoryview) -> bytes | None:
        """Fill `target` with the next block; return its checksum, None: there are no more.

        Raises:
            ValueError: it is another block's.
        """
        if not self.is_lent:
            return _receive_checked(self._source, target)
        head = bytearray(_HEAD_BYTES + PIECE.size)
        if not _receive_all(self._source, memoryview(head)):
            return None
        read_lent(self._pid, head[_HEAD_BYTES:], 0, target, self._place, self._nonce)
        return _checked(head[:_HEAD_BYTES], target)


class Giver:
    """The upper end of it.  What has been handed down stays as it is until the answer has come."""

    def __init__(self, target: socket.socket) -> None:
        """Greet who is, or comes to be, at the other end."""
        self._target = target
        self._nonce = os.urandom(NONCE_BYTES)
        place, _ = PIECE.unpack(pieces_of([self._nonce]))
        target.sendall(_GREETING.pack(os.getpid(), place, self._nonce))
        self._way = b""

    def hear(self) -> bytes:
        """Return the answer to the greeting, once it has come."""
        self._way = self._way or self._target.recv(1)
        return self._way

    def give(self, head: bytes, block: memoryview) -> None:
        """Hand down a block with its checksum."""
        if self.hear() == _LENT:
            self._target.sendall(head + pieces_of([block]))
            return
        self._target.sendall(head)
        self._target.sendall(block)


def bare_writes(
    folder: Path, count: int, *, may_borrow: bool = True, is_over: bool = False
) -> Bare:
    """Have three processes in a row write so many blocks durably,
    to files in `folder` that go with them.

    Args:
        folder: on the disk that is meant.
        count: blocks of a MiB.
        may_borrow: blocks may be read out of the memory of whoever has them.
        is_over: the files are there already, and written over.
    """
    program, up = socket.socketpair()
    with tempfile.TemporaryDirectory(dir=folder) as place, program:
        for number in range(3 if is_over else 0):
            new_file_mib_s(Path(place) / str(number), count)
        giver, slots = Giver(program), Slots()
        for block in slots.blocks:
            block[:] = os.urandom(MIB)
        ends: list[socket.socket | None] = [up]
        what = ["write" if may_borrow else "write-sent", str(count)]
        with _processes() as processes:
            for number in range(3):
                up_end, (near, far) = ends[-1], socket.socketpair()
                assert up_end is not None
                down = near if number < 2 else None  # noqa: PLR2004 - the last of three
                processes.append(_start(what, Path(place) / str(number), up_end, down))
                up_end.close()
                near.close()
                ends.append(far)
            last = ends[-1]
            assert last is not None
            last.close()
            began, before = time.perf_counter(), _own_s()
            _hand_in(program, giver, slots, count)
            return _told(count, time.perf_counter() - began, _own_s() - before, processes)


def bare_reads(path: Path, count: int, *, may_borrow: bool = True) -> Bare:
    """Have a process read so many blocks of a local file past the page cache, and receive them.

    Args:
        path: of the file.
        count: blocks of a MiB.
        may_borrow: blocks may be read out of the process's memory.
    """
    program, up = socket.socketpair()
    with program, _processes() as processes:
        processes.append(_start(["read"], path, up, None))
        up.close()
        receiver, target = Receiver(program, may_borrow=may_borrow), Slots().blocks[0]
        began, before = time.perf_counter(), _own_s()
        program.send(count.to_bytes(_HEAD_BYTES, "little"))
        for _ in range(count):
            receiver.receive(target)
            program.send(DONE)
        return _told(count, time.perf_counter() - began, _own_s() - before, processes)


def write_row(local: Path, mib: int, limit: float, *, is_over: bool = False) -> Row:
    """Return what bare processes write next to `local`, to new files or over others;
    `limit` in MiB/s is what a third of its disk takes of that.
    """
    found = bare_writes(local.parent, mib, is_over=is_over)
    what = "written over" if is_over else "written"
    name = f"bare processes in a row, 1 MiB {what} (of local / 3)"
    return Row(name, found.mib_s, "MiB/s", limit, used=found.used)


def limited_row(name: str, value: float, beside: Row) -> Row:
    """Return a row that compares MiB/s with what the machine can do:
    a third of its disk, or what bare processes write if that is less.

    Args:
        name: of what was written.
        value: MiB/s.
        beside: the row of `write_row`.
    """
    assert beside.limit is not None, beside
    least = min(beside.value, beside.limit)
    return Row(f"{name} (of the lesser of disk / 3, bare processes)", value, "MiB/s", least)


def read_row(local: Path, mib: int, limit: float) -> Row:
    """Return at which rate bare processes read `local` past the page cache;
    `limit` in MiB/s is its disk's.
    """
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
    what: list[str], path: Path, up: socket.socket, down: socket.socket | None
) -> "subprocess.Popen[bytes]":
    fds = [end.fileno() for end in (up, down) if end is not None]
    command = [sys.executable, "-m", "benchmarks.bare", *what, str(path), *map(str, fds)]
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


def _hand_in(chain: socket.socket, giver: Giver, slots: Slots, count: int) -> None:
    """Hand in blocks, `SLOT_COUNT` of them on their way at most,
    and return when all are durable.
    """
    room = threading.Semaphore(SLOT_COUNT)

    def hear() -> None:
        while chain.recv(1):
            room.release()

    hearing: threading.Thread | None = None
    for number in range(count):
        room.acquire()
        block = slots.blocks[number % SLOT_COUNT]  # answers come in order
        giver.give(xxh3_64_intdigest(block).to_bytes(_HEAD_BYTES, "little"), block)
        if hearing is None:  # `give` has had the answer to the greeting
            hearing = threading.Thread(target=hear)
            hearing.start()
    chain.shutdown(socket.SHUT_WR)
    if hearing is not None:
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
    return _checked(head, target)


def _checked(head: bytes | bytearray, block: memoryview) -> bytes:
    """Return a checksum that a block came with; raises ValueError if it is another one's."""
    if xxh3_64_intdigest(block) != int.from_bytes(head, "little"):
        raise ValueError("a block came damaged")
    return bytes(head)


class Replica:
    """One of the processes that write: a thread receives and passes on, some write, one answers."""

    def __init__(
        self, path: Path, count: int, up: socket.socket, down: socket.socket | None
    ) -> None:
        """Take the file to write, and the sockets; nothing is done yet."""
        self._count = count
        self._up, self._down = up, down
        self._giver = None if down is None else Giver(down)
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        self._slots = Slots()
        self._received: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._order: SimpleQueue[int | None] = SimpleQueue()
        self._written = [threading.Semaphore(0) for _ in range(SLOT_COUNT)]

    def run(self, receiver: Receiver) -> None:
        """Write all that comes, and return when it is durable here and below."""
        os.posix_fallocate(self._fd, 0, self._count * MIB)
        works = [self._write] * WRITER_COUNT + [self._answer]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        self._receive(receiver)
        for thread in threads:
            thread.join()
        os.close(self._fd)

    def _receive(self, receiver: Receiver) -> None:
        place = 0
        while True:
            number = self._slots.free.get()
            block = self._slots.blocks[number]
            head = receiver.receive(block)
            if head is None:
                break
            if self._giver is not None:
                self._giver.give(head, block)
            self._received.put((number, place))
            self._order.put(number)
            place += MIB
        if self._down is not None:
            self._down.shutdown(socket.SHUT_WR)
        self._received.put(None)
        self._order.put(None)

    def _write(self) -> None:
        while (job := self._received.get()) is not None:
            number, place = job
            os.pwrite(self._fd, self._slots.blocks[number], place)
            self._written[number].release()
        self._received.put(None)  # for the next thread

    def _answer(self) -> None:
        """Say of each block in turn that it is written here and below,
        and at the end that all are durable.
        """
        while (number := self._order.get()) is not None:
            self._written[number].acquire()
            if self._down is None or self._down.recv(1):
                self._slots.free.put(number)  # nobody reads it any more
                self._up.send(DONE)
        os.fdatasync(self._fd)
        if self._down is not None:
            self._down.recv(1)  # its end: the next one is durable, too
        self._up.shutdown(socket.SHUT_RDWR)


def read_blocks(path: Path, up: socket.socket, giver: Giver, memory: list[Slots]) -> None:
    """Be the process that is asked for blocks: a thread for each part of the memory reads,
    one hears of what was taken, this one checks and gives.
    """
    giver.hear()
    count = int.from_bytes(up.recv(_HEAD_BYTES), "little")
    blocks_in_file = path.stat().st_size // MIB
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for _ in memory]
    parts = [(slots, SimpleQueue[int]()) for slots in memory]
    given = SimpleQueue[tuple[Slots, int]]()

    def read(turn: int) -> None:
        slots, ready = parts[turn]
        for place in range(turn, count, len(fds)):
            number = slots.free.get()
            os.preadv(fds[turn], [slots.blocks[number]], place % blocks_in_file * MIB)
            ready.put(number)

    def hear() -> None:
        left = count
        while left:
            taken = len(up.recv(SLOT_COUNT))
            left = left - taken if taken else 0
            for _ in range(taken):
                slots, number = given.get()
                slots.free.put(number)

    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(len(fds))]
    threads.append(threading.Thread(target=hear))
    for thread in threads:
        thread.start()
    for place in range(count):
        slots, ready = parts[place % len(fds)]
        number = ready.get()
        block = slots.blocks[number]
        given.put((slots, number))
        giver.give(xxh3_64_intdigest(block).to_bytes(_HEAD_BYTES, "little"), block)
    for thread in threads:
        thread.join()


def main(what: str, *arguments: str) -> None:
    """Be one process, and tell its processor time in seconds when all is done."""
    count = int(arguments[0]) if what != "read" else 0
    path, *fds = arguments[what != "read" :]
    ends = [socket.socket(fileno=int(fd)) for fd in fds]
    if what == "read":
        giver, memory = Giver(ends[0]), [Slots(), Slots()]
        before = _ready()
        read_blocks(Path(path), ends[0], giver, memory)
    else:
        replica = Replica(Path(path), count, ends[0], ends[1] if len(ends) > 1 else None)
        receiver = Receiver(ends[0], may_borrow=what == "write")
        before = _ready()
        replica.run(receiver)
    print(_own_s() - before, flush=True)  # noqa: T201


def _ready() -> float:
    """Say to who started us that all is ready; return the processor time until then."""
    before = _own_s()
    print("ready", flush=True)  # noqa: T201
    return before


if __name__ == "__main__":
    main(*sys.argv[1:])
