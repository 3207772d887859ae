"""Which client serves a mount point of a cluster here: one file, which its daemon holds locked.

The kernel frees that lock when the last thread of the daemon has ended, and not while the daemon is
stopped, waits in the kernel, or ends in order.  So whoever has got the lock has proof that the
clients in the file are gone, and can say so (fs/client/gone_clients.py).

Invariants:
    - A client is in the file before it has a session, and until it has ended in order or everything
      that it held is free.
    - The file is written and believed only by who holds the lock; what it says of another
      start of the machine, or another owner's, is not believed: that may be another machine's.
    - What cannot be read, or written, costs nothing but the haste: silence ends a client, too.

    /run/emberfs/mounts/NAME.client      as a user: /tmp/emberfs-mounts-UID
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...runtime.mount_table import real_place
from ...schema.status import FsError
from .run_folder import made_folder

log = logging.getLogger(__name__)

CLIENT_COUNT_MAX: Final = 16
"""In one file: daemons that died before they could say that those before them had."""
ID_CHARACTERS_MAX: Final = 64
RECORD_BYTES_MAX: Final = 4096


def encode_record(boot_id: str, client_ids: Sequence[str]) -> bytes:
    """Return what a file says; of too many clients the last."""
    return json.dumps({"boot_id": boot_id, "clients": client_ids[-CLIENT_COUNT_MAX:]}).encode()


def decode_record(text: bytes, boot_id: str) -> list[str]:
    """Return the clients in a file; none in one that is damaged, or of another start."""
    try:
        said = json.loads(text)
        client_ids = said["clients"] if said["boot_id"] == boot_id else []
    except (ValueError, TypeError, KeyError):
        return []
    if not isinstance(client_ids, list) or not all(isinstance(one, str) for one in client_ids):
        return []
    return [one for one in client_ids if 0 < len(one) <= ID_CHARACTERS_MAX][-CLIENT_COUNT_MAX:]


class MountRecord:
    """The file of one mount point."""

    def __init__(
        self, folder: Path, cluster_id: str, mount_point: Path, *, boot_id: str, client_id: str
    ) -> None:
        """Name the file; nothing is opened yet.  `client_id`: of this daemon."""
        place = os.fsencode(real_place(mount_point))
        digest = hashlib.sha256(cluster_id.encode() + b"\0" + place).hexdigest()[:24]
        self._path = folder / f"{digest}.client"
        self._boot_id = boot_id
        self._client_id = client_id
        self._descriptor = -1
        self.gone: list[str] = []
        """Clients that served this mount point and are gone, for whom nobody has said so."""

    @property
    def is_held(self) -> bool:
        """Whether this daemon is in the file."""
        return self._descriptor >= 0

    def take(self, *, waits: bool) -> bool:
        """Take the file, learn who is gone, and be in it; False: another one holds it, or it
        cannot be had.

        Args:
            waits: until it is free, for however long.
        """
        try:
            self._descriptor = self._locked(0 if waits else fcntl.LOCK_NB)
            found = os.pread(self._descriptor, RECORD_BYTES_MAX, 0)
            self.gone = decode_record(found, self._boot_id) if self._boot_id else []
            self._write([*self.gone, self._client_id])
        except BlockingIOError:
            log.info("%s: the daemon before this one has not ended", self._path)
            return False
        except (FsError, OSError) as error:
            log.warning(
                "%s: what a dead daemon held stays until it is missed: %s", self._path, error
            )
            self.close()
            return False
        return True

    def _locked(self, how: int) -> int:
        """Return a descriptor that holds the file; raises OSError, FsError."""
        made_folder(self._path.parent)
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | how)
                found = os.fstat(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if found.st_uid != os.geteuid():
                os.close(descriptor)
                raise PermissionError(f"{self._path} belongs to somebody else")
            if found.st_nlink:
                return descriptor
            os.close(descriptor)  # who held it has ended in order, and removed it

    def _write(self, client_ids: Sequence[str]) -> None:
        text = encode_record(self._boot_id, client_ids)
        assert len(text) <= RECORD_BYTES_MAX, len(text)
        os.pwrite(self._descriptor, text.ljust(RECORD_BYTES_MAX), 0)  # over all that was there

    def forget(self, client_id: str) -> None:
        """Take out a client for whom everything has been said; raises nothing."""
        self.gone.remove(client_id)
        try:
            self._write([*self.gone, self._client_id])
        except OSError as error:  # the next one says it once more
            log.warning("%s: %s", self._path, error)

    def remove(self) -> None:
        """End in order: the session of this client has been closed; raises nothing."""
        if not self.is_held:
            return
        try:
            if self.gone:  # the next one speaks for them
                self._write(self.gone)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: %s", self._path, error)
        self.close()

    def close(self) -> None:
        """Give the file back as it is."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
