"""What the programs on a mount do: per process and operation, and which files,
while somebody looks.

Whoever reads the attribute PROFILE_ATTRIBUTE of anything on the mount looks; `is_on` goes back to
False KEPT_S after the last look. While nobody does, an operation pays one look at `is_on`.

Only the superuser and the user of the mount daemon may look: command names and inodes of others
are none of anybody's business.

Bounds: PROCESS_COUNT_MAX processes and FILE_COUNT_MAX files are kept, those that were active last;
of THREAD_COUNT_MAX threads it is remembered whose they are; what is told is cut to VALUE_BYTES_MAX,
the busiest first.

Concurrency: event loop only.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from ...runtime.figures import Histogram
from ...schema.status import FsError, Status
from .ports import Caller

PROFILE_ATTRIBUTE: Final = b"ember.profile"
KEPT_S: Final = 15.0
PROCESS_COUNT_MAX: Final = 512
THREAD_COUNT_MAX: Final = 4096
FILE_COUNT_MAX: Final = 4096
VALUE_BYTES_MAX: Final = 60_000
"""The kernel takes values of 64 KiB."""

_FORMAT: Final = 1


def process_of(thread_id: int) -> tuple[int, str]:
    """Return process id and command of a thread; those of the thread itself when it has gone."""
    if not thread_id:
        return 0, "kernel"
    try:
        lines = Path(f"/proc/{thread_id}/status").read_text(errors="replace").splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        process_id = int(status["Tgid"])
        command = Path(f"/proc/{process_id}/comm").read_text(errors="replace").rstrip("\n")
    except (OSError, KeyError, ValueError):
        return thread_id, "?"
    return process_id, command


@dataclass(slots=True)
class _Operation:
    calls: int = 0
    byte_count: int = 0
    duration: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class _Process:
    command: str
    operations: dict[str, _Operation] = field(default_factory=dict)
    sum_s: float = 0.0


@dataclass(slots=True)
class _File:
    calls: int = 0
    byte_count: int = 0
    process_id: int = 0
    """Of the last one that used it."""


class Profile:
    """Of one mount; see module head."""

    def __init__(self, find_process: Callable[[int], tuple[int, str]] = process_of) -> None:
        self.is_on = False
        self._find_process = find_process
        self._until_s = 0.0
        self._began_s = 0.0
        self._process_ids: dict[int, int] = {}
        self._processes: dict[int, _Process] = {}
        self._files: dict[int, _File] = {}

    def note(  # noqa: PLR0917 - one call per operation
        self,
        thread_id: int,
        operation: str,
        inode_id: int,
        byte_count: int,
        took_s: float,
        calls: int = 1,
    ) -> None:
        """An operation of a program has ended; only while `is_on`.

        Args:
            thread_id: who asked; 0: the kernel of its own accord.
            operation: what.
            inode_id: of which file or directory; 0: several.
            byte_count: read or written.
            took_s: how long it took.
            calls: how many operations this was, done together.
        """
        if trio.current_time() > self._until_s:
            self._stop()
            return
        process_id = self._process_ids.get(thread_id)
        if process_id is None:
            process_id = self._meet(thread_id)
        process = self._processes[process_id]
        process.sum_s += took_s
        found = process.operations.get(operation)
        if found is None:
            found = process.operations[operation] = _Operation()
        found.calls += calls
        found.byte_count += byte_count
        found.duration.note(took_s)
        if inode_id:
            self._note_file(inode_id, process_id, byte_count)

    def _meet(self, thread_id: int) -> int:
        process_id, command = self._find_process(thread_id)
        if process_id not in self._processes and len(self._processes) >= PROCESS_COUNT_MAX:
            oldest = next(iter(self._processes))
            del self._processes[oldest]
            self._process_ids = {t: p for t, p in self._process_ids.items() if p != oldest}
        if len(self._process_ids) >= THREAD_COUNT_MAX:  # they come and go
            self._process_ids.clear()
        self._process_ids[thread_id] = process_id
        self._processes.setdefault(process_id, _Process(command))
        return process_id

    def _note_file(self, inode_id: int, process_id: int, byte_count: int) -> None:
        file = self._files.pop(inode_id, None)
        if file is None:
            file = _File()
            if len(self._files) >= FILE_COUNT_MAX:
                del self._files[next(iter(self._files))]
        self._files[inode_id] = file  # at the end: active last
        file.calls += 1
        file.byte_count += byte_count
        file.process_id = process_id

    def _stop(self) -> None:
        self.is_on = False
        self._process_ids.clear()
        self._processes.clear()
        self._files.clear()

    def look(self, caller: Caller) -> bytes:
        """Return everything since `began_s`, as JSON, and go on for KEPT_S.

        Raises:
            FsError: NOT_PERMITTED: the caller may not look.
        """
        if caller.uid not in (0, os.geteuid()):
            raise FsError(Status.NOT_PERMITTED, "the profile of a mount is for its own user")
        now_s = trio.current_time()
        if not self.is_on or now_s > self._until_s:
            self._stop()
            self.is_on = True
            self._began_s = now_s
        self._until_s = now_s + KEPT_S
        return self._told(now_s)

    def _told(self, now_s: float) -> bytes:
        processes = sorted(self._processes.items(), key=lambda item: -item[1].sum_s)
        files = sorted(self._files.items(), key=lambda item: -item[1].calls)
        process_count, file_count = len(processes), min(100, len(files))
        while True:
            value = json.dumps(
                {
                    "format": _FORMAT,
                    "began_s": self._began_s,
                    "at_s": now_s,
                    "left_out": len(processes) - process_count,
                    "processes": [_process(*item) for item in processes[:process_count]],
                    "files": [_file(*item) for item in files[:file_count]],
                },
                separators=(",", ":"),
            ).encode()
            if len(value) <= VALUE_BYTES_MAX:
                return value
            process_count, file_count = process_count * 3 // 4, file_count * 3 // 4


def _process(process_id: int, process: _Process) -> dict[str, Any]:
    operations = {
        name: {
            "calls": one.calls,
            "bytes": one.byte_count,
            "sum_s": round(one.duration.sum_s, 6),
            "counts": one.duration.counts,
        }
        for name, one in process.operations.items()
    }
    return {"pid": process_id, "command": process.command, "operations": operations}


def _file(inode_id: int, file: _File) -> dict[str, int]:
    return {
        "inode_id": inode_id,
        "calls": file.calls,
        "bytes": file.byte_count,
        "pid": file.process_id,
    }
