"""The n-th call to the disk fails, n = 1, 2, 3 ... until the work runs through.

    python -m tests.chunkengine.nth_call [--disk simulated|real] [--seeds N] [--steps N] [--jobs J]

Errors: EIO, ENOSPC, a short write, a failed flush.  The work goes on after the error as
long as the engine lets it.  A failed flush or metadata write must end the use of the disk,
nothing may be acknowledged after it; any other error must leave everything as it was.  Then
the disk is checked, opened again (the simulated one after a power loss, too), and every
chunk must hold what was acknowledged.
"""

import argparse
import errno
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fs.chunkengine import data_files
from fs.chunkengine.data_files import LocalDataFiles
from fs.chunkengine.direct_write import DIRECT_UNIT_BYTES
from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.simulated_disk import SimulatedDataFiles, SimulatedDisk
from fs.schema.status import FsError, Status

from .campaign import run_campaign
from .crash import FullWorkload, check_disk_of, open_on
from .witness import no_finding
from .worker import open_disk

FATAL = ("flush", "meta_write", "meta_sync", "fdatasync")
"""After a failure of one of these the disk is in doubt for ever."""

SIMULATED_ERRORS = ("IO_ERROR", "NO_SPACE", "short")
REAL_ERRORS = ("EIO", "ENOSPC", "short")


class Fault:
    """Fails one call, the n-th; knows afterwards which it was."""

    def __init__(self, number: int, error: str) -> None:
        self.left = number
        self.error = error
        self.hit = ""

    def meets(self, name: str) -> bool:
        self.left -= 1
        if self.left == 0:
            self.hit = name
        return self.left == 0

    def __call__(self, step: str) -> None:
        """The hook of a simulated disk."""
        if self.error != "short" and self.meets(step):
            raise FsError(Status[self.error], step)


class FailingOs:
    """Stands for `os` in the file layer."""

    CALLS = ("preadv", "pwritev", "fdatasync", "open", "fsync")

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return partial(self._call, name, real) if name in self.CALLS else real

    def _call(self, name: str, real: Any, *args: Any) -> Any:
        if self._fault.error == "short":
            if name == "pwritev" and self._fault.meets(name):
                return self._half(*args)
            return real(*args)
        if self._fault.meets(name):
            number = getattr(errno, self._fault.error)
            raise OSError(number, os.strerror(number))
        return real(*args)

    @staticmethod
    def _half(fd: int, buffers: Any, offset: int) -> int:
        if len(buffers) > 1:
            data = b"".join(buffers)
            return os.pwrite(fd, data[: max(1, len(data) // 2)], offset)
        view = memoryview(buffers[0])
        half = max(1, len(view) // 2)
        if half >= DIRECT_UNIT_BYTES:  # as a disk would, written to directly or not
            half -= half % DIRECT_UNIT_BYTES
        return os.pwritev(fd, [view[:half]], offset)


def work(engine: DiskEngine, workload: FullWorkload, fault: Fault, steps: int) -> None:
    """Do some steps; whatever fails is either as if never tried, or ends the use of the disk."""
    for _ in range(steps):
        try:
            workload.step(engine)
        except FsError:
            if engine._books.failure:
                break
            assert fault.hit not in FATAL, f"the engine goes on after a failed {fault.hit}"
            workload.removing = None
            for model in workload.models.values():
                model.maybe = []
    fault.left = 0  # what follows is to look, not to fail
    if engine._books.failure:
        assert fault.hit, "the engine has refused although nothing failed"
        for call in (engine.sync, engine.space, lambda: engine.get(*workload.chunks[0])):
            with pytest.raises(FsError, match="IO_ERROR"):
                call()
    elif fault.hit not in FATAL:
        workload.check_now(engine)


def simulated(seed: int, number: int, error: str, steps: int, *, is_power: bool) -> Fault:
    """One run on a simulated disk."""
    disk, workload, fault = SimulatedDisk(), FullWorkload(seed), Fault(number, error)
    engine = open_on(disk)
    disk.on_step = fault
    with pytest.MonkeyPatch.context() as patch:
        if error == "short":
            patch.setattr(SimulatedDataFiles, "write_at", failing_write(fault))
        work(engine, workload, fault, steps)
    if is_power:
        disk.power_loss(random.Random(seed))
    else:
        disk.crash()
    check_disk_of(disk)
    again = open_on(disk)
    # The kernel may drop what it could not write: a failed flush loses what was not
    # durable, without a power loss, too.
    workload.check_after_crash(again, is_power_loss=is_power or fault.hit == "flush")
    check_disk_of(disk)
    return fault


def failing_write(fault: Fault) -> Any:
    """Return a `write_at` of which the n-th writes half, and then the disk is full."""
    whole = SimulatedDataFiles.write_at

    def write_at(files: SimulatedDataFiles, file_id: Any, offset: int, buffers: Any) -> None:
        if not fault.meets("write"):
            whole(files, file_id, offset, buffers)
            return
        data = b"".join(buffers)
        whole(files, file_id, offset, [data[: len(data) // 2]])
        raise FsError(Status.NO_SPACE, "half of it")

    return write_at


def real(path: Path, seed: int, number: int, error: str, steps: int) -> Fault:
    """One run on a real disk, of which the file layer fails (not RocksDB's files)."""
    workload, fault = FullWorkload(seed), Fault(number, error)
    engine = open_disk(str(path))
    with pytest.MonkeyPatch.context() as patch:
        failing = FailingOs(fault)
        claim = LocalDataFiles._fallocate
        patch.setattr(data_files, "os", failing)
        patch.setattr(
            LocalDataFiles, "_fallocate", lambda *a: failing._call("fallocate", claim, *a)
        )
        work(engine, workload, fault, steps)
    if engine._books.failure or seed % 2:
        engine._files.close()  # as a killed process leaves it: nothing is flushed any more
        engine._meta.close()
    else:
        engine.close()
    no_finding(path)
    again = open_disk(str(path))
    workload.check_after_crash(again, is_power_loss=False)
    again.close()
    no_finding(path)
    return fault


def run_loop(disk: str, steps: int, seed: int, directory: Path, *, stride: int = 1) -> Counter[str]:
    """Fail the 1st, 2nd, 3rd ... call until the work runs through, with each error."""
    outcome: Counter[str] = Counter()
    errors = SIMULATED_ERRORS if disk == "simulated" else REAL_ERRORS
    for error in errors:
        for is_power in (False, True) if disk == "simulated" else (False,):
            number = 1
            while True:
                if disk == "simulated":
                    fault = simulated(seed, number, error, steps, is_power=is_power)
                else:
                    fault = real(directory / f"{error}{number}", seed, number, error, steps)
                if not fault.hit:
                    break
                outcome[f"{error} at {fault.hit}"] += 1
                outcome["failed calls"] += 1
                number += stride
            outcome["loops"] += 1
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.nth_call")
    parser.add_argument("--disk", choices=("simulated", "real"), default="simulated")
    parser.add_argument("--seeds", type=int, default=3, help="workloads")
    parser.add_argument("--steps", type=int, default=40, help="operations of a workload")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    trial = partial(run_loop, arguments.disk, arguments.steps)
    outcome = run_campaign(trial, 0, arguments.seeds, arguments.jobs, "workloads")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
