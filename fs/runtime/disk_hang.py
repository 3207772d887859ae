"""Whether a disk hangs: neither answers a call nor fails it.

It does when a call has been under way for `hang_s` and the devices below have completed nothing in
that time; or for HANG_FACTOR times that, whatever else they do.  So a disk that is only busy, with
a flush of a minute before it, is left in peace; and so is one whose call gets no core, or computes:
its thread runs, or waits to run, instead of waiting for the disk.

Invariant: time in which nobody looked, since this process did not run, counts as two
looks at most, however long it was.

Decision: specs/decisions/0107-disks-that-hang.md.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

from .mount_table import MOUNTINFO, unescaped

LOOK_INTERVAL_S: Final = 0.5
HANG_FACTOR: Final = 12.0
_STAT_FIELDS: Final = (0, 4, 11, 15)
"""Of a block device's `stat`: reads, writes, discards and flushes completed;
the last two are missing in older kernels.
"""

WORK_SHARE: Final = 0.2
"""A thread that runs, or waits for a core, for so much of the time does not wait for the disk.

One that does wakes up now and then at the most, as a writer that the kernel holds
back for too many dirty pages.
"""

_BLOCK_DEVICES: Final = Path("/sys/dev/block")
_BTRFS: Final = Path("/sys/fs/btrfs")


def source_of(device: str, mounts: bytes) -> str:
    """Return what is mounted under a device number that stands for a file system and no device,
    as those of btrfs do; empty: unknown.

    Args:
        device: its numbers, with a colon.
        mounts: as /proc/self/mountinfo says.
    """
    for line in mounts.split(b"\n"):
        about, _, rest = line.partition(b" - ")
        if about.split(b" ")[2:3] == [device.encode()]:
            return unescaped(rest.split(b" ")[1])
    return ""


def _device_of(source: str) -> str:
    """Return the numbers of a block device by its path, with a colon; empty: it is none."""
    try:
        found = Path(source).stat()
    except OSError:
        return ""
    if not stat.S_ISBLK(found.st_mode):
        return ""
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def _companions(device: str) -> list[Path]:
    """Return the block devices, in sysfs, of the file system that one of them holds;
    btrfs knows of several.
    """
    own = _BLOCK_DEVICES / device
    for folder in _BTRFS.glob("*/devices"):
        devices = list(folder.iterdir())
        if any(path.resolve() == own.resolve() for path in devices):
            return devices
    return [own]


def open_probe(directory: str | Path) -> int:
    """Return the descriptor of a file without a name,
    to be written to see whether its file system takes writes; -1 where it makes none.

    Raises:
        OSError: it takes none, or none of that kind.
    """
    try:
        return os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        return -1


def work_ns(thread_id: int) -> int:
    """Return for how long a thread of this process has run or waited for a core;
    -1: it does so just now, 0: unknown.

    Args:
        thread_id: the kernel's (`threading.get_native_id`); 0: not known.
    """
    try:
        about = Path(f"/proc/self/task/{thread_id}/stat").read_text()
        times = Path(f"/proc/self/task/{thread_id}/schedstat").read_text().split()
    except OSError:  # it has ended, or the kernel does not count
        return 0
    if about.rpartition(")")[2].split()[0] == "R":
        return -1
    return int(times[0]) + int(times[1])


class HangJudge:
    """Judges one disk by its oldest call, whenever somebody looks."""

    def __init__(self, path: str, hang_s: float) -> None:
        """Take a directory of the disk, and when it hangs (seconds; 0: never)."""
        self.path = path
        self.hang_s = hang_s
        self.now_s = 0.0
        """Seconds that somebody has looked; calls begin at one of these."""
        self._stat_paths: list[Path] = []
        self._completed = 0
        self._moved_s = 0.0
        self._worked = (0, 0, 0.0)
        """A thread, for how long it had worked, in nanoseconds, when it was looked at last."""

    def learn_device(self) -> None:
        """Find out which devices the disk is on; blocks.  Without any only time counts."""
        try:
            number = Path(self.path).stat().st_dev
            device = f"{os.major(number)}:{os.minor(number)}"
            if not (_BLOCK_DEVICES / device).exists():
                device = _device_of(source_of(device, MOUNTINFO.read_bytes()))
            self._stat_paths = [path / "stat" for path in _companions(device)] if device else []
        except OSError:
            return

    def pass_time(self, elapsed_s: float) -> None:
        """Note that so much time has gone by since the last look."""
        self.now_s += min(elapsed_s, 2 * LOOK_INTERVAL_S)

    def hung_s(self, began_s: float, thread_id: int = 0) -> float:
        """Return for how long the oldest call, begun then, has been under way,
        if the disk hangs; else 0.

        Args:
            began_s: by `now_s`.
            thread_id: the kernel's, of the thread that makes the call; 0: not known.
        """
        age_s = self.now_s - began_s
        if not self.hang_s or age_s < self.hang_s / 2:
            return 0.0
        completed = self._count_completed()
        if completed != self._completed:
            self._completed, self._moved_s = completed, self.now_s
        if self._works(thread_id):
            self._moved_s = self.now_s
        silent_s = min(age_s, self.now_s - self._moved_s)
        hangs = silent_s >= self.hang_s or age_s >= HANG_FACTOR * self.hang_s
        return age_s if hangs else 0.0

    def _works(self, thread_id: int) -> bool:
        """Whether the thread did something else than wait
        for the disk since it was looked at last.
        """
        worked_ns = work_ns(thread_id)
        if worked_ns < 0:
            return True
        before_id, before_ns, before_s = self._worked
        self._worked = (thread_id, worked_ns, self.now_s)
        elapsed_ns = (self.now_s - before_s) * 1e9
        return thread_id == before_id and worked_ns - before_ns > WORK_SHARE * elapsed_ns

    def _count_completed(self) -> int:
        count = 0
        for path in self._stat_paths:
            try:
                numbers = path.read_text().split()
            except OSError:  # the device is gone: on it nothing moves any more
                continue
            count += sum(int(numbers[at]) for at in _STAT_FIELDS if at < len(numbers))
        return count
