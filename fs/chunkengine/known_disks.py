"""Which disk is expected where: a list in the node's own directory, not on the disks.

A disk that is not mounted looks like an empty directory, and formatting that would let the
node come up with nothing where its chunks were.  Two disks that changed places would each
answer for the other's targets.  So the identity of each disk is noted when it is formatted or
first seen, and compared at every start.

Does not repair anything: what is not as expected is refused with one line that says what
to do. A person who follows that line changes the list while the process runs, so each
opening of a disk reads it again. Concurrency: none; read and written while disks are
being opened, one after the other.
"""

import errno
from pathlib import Path
from typing import Final

import msgspec

from ..runtime.durable_file import write_durable
from ..schema.lacks import is_lack, lacking
from ..schema.status import FsError, Status

LIST_NAME: Final = "disks.json"


class KnownDisks:
    """The list of one node: directory of a disk -> its uuid."""

    def __init__(self, file: Path) -> None:
        """Read the list; a missing one is empty.

        Raises:
            FsError: IO_ERROR if it cannot be read, BAD_DISK_FORMAT if it is no list: the disk that
                it is on, mostly that of the chunks, is to blame then, not the configuration;
                BAD_CONFIG if this process may not read it; OUT_OF_RESOURCES.
        """
        self._file = file
        self._uuids: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        """Of this process's disks that were opened: they go into a list that is made anew."""
        self.read()

    def read(self) -> None:
        """Read the list again; arguments and errors as at the first time."""
        try:
            self._uuids = msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            self._uuids = {}
        except OSError as error:
            raise self._trouble(error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FsError(
                Status.BAD_DISK_FORMAT,
                f"{self._file}: {error}; this list of disks may be removed when all of them are "
                "mounted",
            ) from error

    def _trouble(self, error: OSError) -> FsError:
        """Return what to raise where the list cannot be read or written."""
        if is_lack(error):
            return lacking(str(self._file), error)
        if isinstance(error, PermissionError):
            return FsError(Status.BAD_CONFIG, f"{self._file}: {error.strerror}")
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return FsError(Status.NO_SPACE, f"{self._file}: {error.strerror}")
        remedy = "look at the disk that it is on (smartctl, dmesg)"
        return FsError(Status.IO_ERROR, f"{self._file}: {error.strerror}: {remedy}")

    def check_missing(self, directory: Path, what: str) -> None:
        """Raise FsError(FOREIGN_DISK) if a disk is expected in a directory that holds none."""
        uuid = self._uuids.get(str(directory))
        if uuid is not None:
            raise FsError(
                Status.FOREIGN_DISK,
                f"{directory}: disk {uuid} is expected here, but {what}: mount it;"
                f" if it is lost and this is its replacement, remove it from {self._file}",
            )

    def check_found(self, directory: Path, uuid: str) -> None:
        """Raise FsError(FOREIGN_DISK) if another disk is expected there, or this one elsewhere."""
        expected = self._uuids.get(str(directory))
        elsewhere = [path for path, known in self._uuids.items() if known == uuid]
        if expected == uuid or (expected is None and not elsewhere):
            return
        wanted = f", disk {expected} is expected" if expected else ""
        home = f"; its place is {elsewhere[0]}" if elsewhere else ""
        raise FsError(
            Status.FOREIGN_DISK,
            f"{directory}: disk {uuid} is here{wanted}{home}: mount it there,"
            f" or change {self._file} if it was moved on purpose",
        )

    def add(self, directory: Path, uuid: str) -> None:
        """Note a disk, durably.

        Raises:
            FsError: as when the list is read; NO_SPACE.  The disk is not noted then.
        """
        self._noted[str(directory)] = uuid
        if self._uuids.get(str(directory)) == uuid:
            return
        uuids = (self._uuids or self._noted) | {str(directory): uuid}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_durable(self._file, msgspec.json.encode(uuids).decode() + "\n")
        except OSError as error:
            raise self._trouble(error) from error
        self._uuids = uuids
