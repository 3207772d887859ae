"""Processes that get no descriptor and no memory any more, under a load:
no error, no wrong byte, and they go on by themselves.
"""

import os
import random
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow]

LACK_BYTES = 64 << 20
"""So much less than it has a process may have: nothing new can be had."""


class Writer(threading.Thread):
    """Replaces and reads files until told to stop; keeps the first that went wrong."""

    def __init__(self, place: Path, seed: int) -> None:
        super().__init__()
        self._place, self._random = place / str(seed), random.Random(seed)
        self._place.mkdir()
        self.has_ended = threading.Event()
        self.error: Exception | None = None
        self.count = 0

    def run(self) -> None:
        written: dict[Path, bytes] = {}
        try:
            while not self.has_ended.is_set():
                path = self._place / str(self._random.randrange(10))
                if path in written and self._random.random() < 0.5:
                    assert path.read_bytes() == written[path], path
                else:
                    data = self._random.randbytes(self._random.choice([5, 4096, 3_000_000]))
                    with path.open("wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    written[path] = data
                self.count += 1
        except (OSError, AssertionError) as error:
            self.error = error


def _take_memory(pid: int) -> tuple[int, int]:
    """Let a process have less than it has; return the limit to be set again."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    has_bytes = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))
    old = resource.prlimit(pid, resource.RLIMIT_AS)
    return resource.prlimit(pid, resource.RLIMIT_AS, (has_bytes - LACK_BYTES, old[1]))


def _take_descriptors(pid: int) -> tuple[int, int]:
    count = len(os.listdir(f"/proc/{pid}/fd"))
    old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, old[1]))


def _pid_of_running(cluster, name):
    """Return the process of a service, once it serves:
    a lack of memory may have ended the one before.
    """
    while True:
        (found,) = [s for s in cluster.status()["services"] if s["name"] == name]
        if found["state"] == "running":
            return found["pid"]
        time.sleep(0.1)


def test_a_process_without_memory_or_descriptors_goes_on(own_cluster):
    """Where memory was short a thread died before its first step,
    and the event loop waited for it for ever.
    """
    writers = [Writer(own_cluster.mount, seed) for seed in range(8)]
    for writer in writers:
        writer.start()
    # In the short form one storage process stands for all: on it lie heads, middles and tails.
    services = ["control", *(f"storage-{n + 1}" for n in range(scaled(1, 3)))]
    try:
        for _ in range(scaled(1, 5)):
            for name in services:
                for take, what in (
                    (_take_memory, resource.RLIMIT_AS),
                    (_take_descriptors, resource.RLIMIT_NOFILE),
                ):
                    pid = _pid_of_running(own_cluster, name)
                    old = take(pid)
                    time.sleep(scaled(2, 10))
                    with suppress(ProcessLookupError):  # it ended, and has been started again
                        resource.prlimit(pid, what, old)
                    time.sleep(1)
    finally:
        for writer in writers:
            writer.has_ended.set()
        for writer in writers:
            writer.join()
    assert [writer.error for writer in writers] == [None] * len(writers)
    assert all(writer.count for writer in writers)
    own_cluster.wait_healthy()
