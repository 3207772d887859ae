"""What the bare machine does, measured in the same run as what is compared with it."""

import mmap
import os
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which

from .fio import run_fio
from .workloads import MIB

DEPTH = 64
THREAD_COUNT = 32


def io_bytes(pid: int, field: str) -> int:
    """Return a field of `/proc/PID/io`: rchar (read by calls), write_bytes (sent to disks)."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def processor_s(pid: int) -> float:
    """Return the processor time a process has used, in the kernel and outside,
    in seconds (exact to some 10 ms).
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


TOUCHED_COPIES = 4
"""So many times what is moved is in memory, or nearly, while it is measured:
in the page caches of mounts and disks, and in processes.
"""


def touch_memory(byte_count: int) -> None:
    """Write to so much memory, but no more than half of what is free, and give it back.

    Where a host has to find memory at its first use, who is measured first
    would pay for all who come later.
    """
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    with mmap.mmap(-1, max(min(byte_count, free_bytes // 2), mmap.PAGESIZE)) as memory:
        for start in range(0, len(memory), mmap.PAGESIZE):
            memory[start] = 1


def loopback_mib_s(seconds: float) -> float:
    """Return MiB/s of one stream between two threads over a Unix socket pair."""
    sender, receiver = socket.socketpair()
    block, total = memoryview(bytearray(MIB)), 0

    def send() -> None:
        try:
            while True:
                sender.sendall(block)
        except BrokenPipeError:
            return

    thread = threading.Thread(target=send)
    thread.start()
    target = memoryview(bytearray(MIB))
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        total += receiver.recv_into(target)
    receiver.close()
    thread.join()
    sender.close()
    return total / MIB / took


def direct_reads(path: Path, block_bytes: int, seconds: float) -> float:
    """Return O_DIRECT reads per second at random places of a local file:
    io_uring by fio, else threads.
    """
    if which("fio"):
        return _fio(path, block_bytes, seconds, "read")
    return _threaded_reads(path, block_bytes, seconds)


def direct_writes(path: Path, block_bytes: int, seconds: float) -> float:
    """Return O_DIRECT writes per second at random places of a local file,
    each one there when it is counted; needs fio.

    Raises:
        FileNotFoundError: fio is not installed.
    """
    return _fio(path, block_bytes, seconds, "write")


def _fio(path: Path, block_bytes: int, seconds: float, what: str) -> float:
    options = [f"--rw=rand{what}", "--time_based", f"--runtime={max(1, round(seconds))}"]
    if what == "read":
        options.append("--readonly")
    return float(run_fio(path, block_bytes, DEPTH, options)[what]["iops"])


def _threaded_reads(path: Path, block_bytes: int, seconds: float) -> float:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    count = os.fstat(descriptor).st_size // block_bytes
    end = time.perf_counter() + seconds

    def worker(number: int) -> int:
        generator = random.Random(number)  # noqa: S311 - not a secret
        buffer, done = mmap.mmap(-1, block_bytes), 0
        while time.perf_counter() < end:
            os.preadv(descriptor, [buffer], generator.randrange(count) * block_bytes)
            done += 1
        return done

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        total = sum(pool.map(worker, range(THREAD_COUNT)))
    os.close(descriptor)
    return total / seconds
