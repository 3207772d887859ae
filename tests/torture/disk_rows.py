"""The rows of specs/reliability.md about disks and clocks: D1, D2, D5, D6, D7, C1.

One function each.
"""

import errno
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from .content import BLOCK_BYTES, run_bytes
from .direct import read_target
from .disk import MIB, StoredChunk, flip, ruin, stored_chunks
from .fleet import LOOP_NODE
from .holders import change_holder, watched
from .load import read_fully
from .plan import Fault
from .rows import Run, row, say
from .runner import Torture, TortureError

FILE_BLOCKS = 25
"""100 KiB: one chunk a file."""
SCRUB_TIMEOUT_S = 240.0
GOOD_BYTES = "good bytes found at target"
"""What a storage process logs, after the chunk, when it serves or repairs it from a good copy."""
FILL_FILE_BLOCKS = 256
SLOW_FILE_BLOCKS = 1024
SLOW_FILE_COUNT = 6
SAID_SLOW_TIMEOUT_S = 90.0
"""Pace is judged over several flushes, and without a load there is one in ten seconds."""


class Files:
    """Files that are written once and compared whole."""

    def __init__(self, torture: Torture, blocks: int = FILE_BLOCKS) -> None:
        self._directory = torture.fleet.mount / "files"
        self._directory.mkdir()
        self._seed, self._blocks = torture.seed, blocks
        self.names: dict[int, Path] = {}

    def content(self, number: int) -> bytes:
        return run_bytes(self._seed, number, 0, [1] * self._blocks)

    def write(self, number: int) -> int:
        """Write and sync one; return its inode."""
        path = self._directory / f"{number:06d}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            data = self.content(number)
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, str(path))
            os.fsync(descriptor)
            self.names[number] = path
            return os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)

    def read(self, number: int) -> bytes:
        """Read one from storage, not from the kernel's cache."""
        descriptor = os.open(self.names[number], os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            return read_fully(descriptor, 0, self._blocks * BLOCK_BYTES + 1)
        finally:
            os.close(descriptor)

    def check(self, numbers: Sequence[int]) -> None:
        """Read them all; raises TortureError for a wrong byte."""
        for number in numbers:
            if self.read(number) != self.content(number):
                raise TortureError(f"wrong bytes in {self.names[number]}")

    def remove(self) -> None:
        for path in self.names.values():
            path.unlink()
        self.names.clear()


def copies_of(it: Torture, inodes: set[int]) -> dict[str, list[StoredChunk]]:
    """Return what each node holds of the files."""
    return {
        name: [c for c in stored_chunks(it.fleet.disk(name)) if c.inode_id in inodes]
        for name in it.fleet.storages
    }


@row("D1")
def flips(run: Run) -> dict:
    """Bits flipped at rest in one replica of each chunk:
    half found by reading, half by the scrub alone; none served.
    """
    count = len(run.times(200))
    with run.torture(sizes=replace(run.sizes, loop_mib=0), loads=()).running() as it:
        files = Files(it)
        inodes = {files.write(n): n for n in range(count)}
        held = copies_of(it, set(inodes))
        by_node = {name: {c.inode_id: c for c in chunks} for name, chunks in held.items()}
        damaged: dict[str, list[StoredChunk]] = {name: [] for name in held}
        for inode_id, number in inodes.items():
            name = it.fleet.storages[number % len(it.fleet.storages)]
            damaged[name].append(by_node[name][inode_id])
        for name, chunks in damaged.items():
            for chunk in chunks:
                flip(it.fleet.disk(name), chunk, it.generator)
        it.fleet.remount()
        files.check(range(0, count, 2))  # from whichever target; the others are left to the scrub
        scrubbed_s = wait_logged_repairs(it, damaged)
        for name, chunks in damaged.items():
            it.faults.wait_repaired(name, chunks)
            for chunk, answer in zip(chunks, read_target(it.fleet, chunks), strict=True):
                if answer.data != files.content(inodes[chunk.inode_id]):
                    raise TortureError(f"{name}: {chunk} is not what was written")
        files.check(range(count))
        report = it.finish()
    return report | {"flips": count, "all repaired after": scrubbed_s}


def wait_logged_repairs(it: Torture, damaged: dict[str, list[StoredChunk]]) -> str:
    """Wait until each damaged chunk was repaired, by what the processes log,
    without reading any.
    """
    began = time.monotonic()
    wanted = {(c.target_id, c.inode_id, c.index) for chunks in damaged.values() for c in chunks}
    while True:
        done = len(
            {
                line.partition(GOOD_BYTES)[0].partition("target")[2]
                for name in it.fleet.storages
                for line in it.fleet.log(name).read_text().splitlines()
                if GOOD_BYTES in line
            }
        )
        if done >= len(wanted):
            return f"{time.monotonic() - began:.0f} s"
        if time.monotonic() - began > SCRUB_TIMEOUT_S:
            raise TortureError(f"{done} of {len(wanted)} damaged chunks repaired")
        time.sleep(1)


@row("D2")
def all_flipped(run: Run) -> dict:
    """Every block of every replica damaged, so that no parts make a whole: EIO, never wrong bytes;
    other files go on.
    """
    count = len(run.times(20))
    with run.torture(sizes=replace(run.sizes, loop_mib=0), loads=()).running() as it:
        files = Files(it)
        inodes = {files.write(n): n for n in range(2 * count)}
        lost = {inode_id for inode_id, n in inodes.items() if n < count}
        for name, chunks in copies_of(it, lost).items():
            for chunk in chunks:
                ruin(it.fleet.disk(name), chunk)
        it.fleet.remount()
        for number in range(count):
            try:
                files.read(number)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise TortureError(f"{error} instead of EIO") from error
            else:
                raise TortureError(f"{files.names[number]} was read although every copy is damaged")
        files.check(range(count, 2 * count))
        for number in range(count):
            files.names.pop(number).unlink()
        time.sleep(8)  # its chunks are collected
        report = it.finish()
    return report | {"EIO": count, "other files right": count}


@row("D5")
def full_disks(run: Run) -> dict:
    """Every target on a disk of 256 MiB, filled through the mount:
    ENOSPC, nothing damaged, space comes back.
    """
    sizes = replace(run.sizes, loop_mib=256, loops_everywhere=True)
    filled: list[int] = []
    with run.torture(sizes=sizes, loads=()).running() as it:
        for _ in [*run.times(5), "once more"]:
            files = Files(it, FILL_FILE_BLOCKS)
            filled.append(fill(files))
            go_on_with_metadata(it.fleet.mount)
            files.check(sorted(files.names))
            it.compare()
            files.remove()
            (it.fleet.mount / "files").rmdir()
            wait_space(it, filled[0])
            say(f"cycle {len(filled)}: {filled[-1]} files of 1 MiB, then ENOSPC; all right")
        report = it.finish()
    least = min(filled[1:]) / filled[0]
    if least < 0.95:
        raise TortureError(f"only {least:.0%} of the space was usable again: {filled}")
    return report | {"MiB filled": filled, "usable again": f"{least:.1%}"}


def fill(files: Files) -> int:
    """Write until the disk is full; return how many files are whole."""
    number = 0
    while True:
        try:
            files.write(number)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise TortureError(f"{error} instead of ENOSPC") from error
            files.names.pop(number, None)
            path = next(iter(files.names.values())).parent / f"{number:06d}"
            path.unlink(missing_ok=True)
            return number
        number += 1


def go_on_with_metadata(mount: Path) -> None:
    """Names can be made, moved and removed on a full cluster."""
    (mount / "a").mkdir()
    (mount / "a/f").touch()
    (mount / "a/f").rename(mount / "a/g")
    (mount / "a/g").unlink()
    (mount / "a").rmdir()


def wait_space(it: Torture, mib: int) -> None:
    """Wait until what was removed has been collected."""
    deadline = time.monotonic() + 60
    while (
        os.statvfs(it.fleet.mount).f_bavail * os.statvfs(it.fleet.mount).f_frsize < mib * MIB // 2
    ):
        if time.monotonic() > deadline:
            return  # the next cycle will tell how much is usable
        time.sleep(1)
    time.sleep(6)


@row("D6")
def dying_disks(run: Run) -> dict:
    """A disk gives only errors: its targets leave their chains within 30 s,
    everything is served meanwhile.
    """
    with run.torture(loads=("fsx", "files")).running() as it:
        time.sleep(5)
        for _ in run.times(20):
            it.round(Fault("disk_error", LOOP_NODE, 1.0))
        return it.finish()


@row("D7")
def slow_disks(run: Run) -> dict:
    """One disk of three at 1 MiB/s: nothing wrong, no slower than that disk,
    and said to be slow while it is.
    """
    rates, told, over = [], [], []
    with run.torture(loads=("fsx", "files")).running() as it:
        time.sleep(3)
        for index in run.times(3):
            it.round(Fault("slow_disk", LOOP_NODE, 20.0))
            wait_said_slow(it, is_slow=False)
            rate, told_s = rate_with_slow_disk(it)
            over_s = wait_said_slow(it, is_slow=False)
            say(
                f"slow disk {index + 1}: {rate:.2f} MiB/s written and synced meanwhile;"
                f" said to be slow after {told_s:.1f} s, not any more {over_s:.1f} s after its end"
            )
            rates.append(round(rate, 2))
            told.append(round(told_s, 1))
            over.append(round(over_s, 1))
        report = it.finish()
    return report | {
        "MiB/s while one disk does 1": rates,
        "said to be slow after": told,
        "not any more after": over,
    }


def is_said_slow(it: Torture) -> bool:
    """What the manager says of the targets of the disk; it must not say it of any other."""
    slow = {t.node_id for t in it.fleet.routing().targets.values() if t.is_slow}
    if others := slow - {11}:
        raise TortureError(f"said to be slow: nodes {sorted(others)}")
    return bool(slow)


def wait_said_slow(it: Torture, *, is_slow: bool) -> float:
    """Wait until the manager says so; return the seconds,
    raise TortureError after SAID_SLOW_TIMEOUT_S.
    """
    began = time.monotonic()
    while is_said_slow(it) is not is_slow:
        if time.monotonic() - began > SAID_SLOW_TIMEOUT_S:
            raise TortureError(f"is_slow is {not is_slow} for {SAID_SLOW_TIMEOUT_S:g} s")
        time.sleep(0.5)
    return time.monotonic() - began


def rate_with_slow_disk(it: Torture) -> tuple[float, float]:
    """Write big files while one disk is slow and nobody else writes, each synced;
    return MiB/s, and when it was said to be slow.
    """
    files = Files(it, SLOW_FILE_BLOCKS)
    disk = it.fleet.disks[LOOP_NODE]
    with it.load_held():
        disk.throttle(it.fleet.pid(LOOP_NODE), MIB)
        try:
            began, told_s = time.monotonic(), 0.0
            for number in range(SLOW_FILE_COUNT):
                files.write(number)
                if not told_s and is_said_slow(it):
                    told_s = time.monotonic() - began
            took = time.monotonic() - began
            told_s = told_s or took + wait_said_slow(it, is_slow=True)
        finally:
            disk.release()
    files.check(range(SLOW_FILE_COUNT))
    files.remove()
    (it.fleet.mount / "files").rmdir()
    return SLOW_FILE_COUNT * SLOW_FILE_BLOCKS * BLOCK_BYTES / MIB / took, told_s


CLOCK_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
STEPS = ("+1", "-1", "+3600", "-3600", "+31536000", "-31536000", "+0 x1.1", "+0 x0.9")
DRIFTS = ("+0 x1.1", "+0 x0.9", "+0")
"""Of the managers while the lease changes hands: never the same two of them alike."""


def prove_clocks_move(it: Torture) -> None:
    """A file made while all clocks are an hour ahead says so;
    raises TortureError if it does not.
    """
    set_clock(it, *it.fleet.children, step="+3600")
    path = it.fleet.mount / "made-ahead"
    path.touch()
    ahead_s = path.stat().st_ctime - time.time()
    set_clock(it, *it.fleet.children, step="+0")
    path.unlink()
    if not 3000 < ahead_s < 4000:
        raise TortureError(f"the clocks did not move: a file is {ahead_s:.0f} s ahead, not 3600")


@row("C1")
def clocks(run: Run) -> dict:
    """The wall clock of each process in turn stepped and skewed:
    no chain changes, no error, no loss.

    With several managers their lease changes hands after each round of steps,
    while their clocks drift apart.
    """
    if not CLOCK_LIBRARY.exists():
        raise TortureError(f"{CLOCK_LIBRARY} is not there (Debian package libfaketime)")
    torture = run.torture(loads=("fsx", "files"))
    for name, child in torture.fleet.children.items():
        clock = torture.fleet.base / f"clock-{name}"
        clock.write_text("+0\n")
        child.environment = {
            "LD_PRELOAD": str(CLOCK_LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
    with torture.running() as it:
        time.sleep(2)
        before = chain_versions(it)
        prove_clocks_move(it)
        with watched(it.fleet) if it.fleet.stores else nullcontext() as watch:
            steps = 0
            for index in run.times(20):
                steps += step_all(it, STEPS[index % len(STEPS)], is_undone=index % 3 == 2)
                if watch is not None:
                    for offset, name in enumerate(it.fleet.managers):
                        set_clock(it, name, step=DRIFTS[(index + offset) % len(DRIFTS)])
                    change_holder(it.fleet, watch, is_killed=index % 2 == 0)
                    it.check_load()
                if (after := chain_versions(it)) != before:
                    raise TortureError(f"chains changed: {before} to {after} in round {index}")
            set_clock(it, *it.fleet.children, step="+0")
            holders = watch.lease.epoch if watch is not None else 1
        report = it.finish()
    return report | {"steps": steps, "chains": "none changed", "holders of the lease": holders}


def chain_versions(it: Torture) -> dict[int, int]:
    """Return the version of every chain; a manager may just be taking over."""
    return {c.chain_id: c.chain_version for c in it.fleet.routing(60.0).chains.values()}


def set_clock(it: Torture, *names: str, step: str) -> None:
    for name in names:
        (it.fleet.base / f"clock-{name}").write_text(f"{step}\n")


def step_all(it: Torture, step: str, *, is_undone: bool) -> int:
    """Step the clock of one process after the other; return how many that were."""
    for name in it.fleet.children:
        set_clock(it, name, step=step)
        time.sleep(0.8)
        it.check_load()
        if is_undone:
            set_clock(it, name, step="+0")
    return len(it.fleet.children)
