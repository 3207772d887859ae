"""Ending a process that cannot end itself:
some thread of it, maybe that of the event loop, waits for a disk that does not answer.

The kernel keeps such a thread, and with it all that the process has open, until the disk answers.
Peers would go on waiting for an answer from its sockets; so these are shut down first, and whoever
calls is refused, which proves that nobody serves.  They are not closed: their numbers would go to
the next files that the store's own threads open, and what the event loop, which may still run for a
moment, closes or writes by such a number would be the store's.
"""

import logging
import os
import socket
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

log = logging.getLogger(__name__)

EXIT_HUNG: Final = 1
STANDARD_FDS: Final = range(3)
"""Where the log goes, maybe a socket of the service manager's."""
TELL_S_MAX: Final = 1.0
"""The log may lie on the disk that hangs."""


def abandon(text: str) -> NoReturn:
    """End this process at once, and say why if that can be done; from any thread."""
    try:
        shut_sockets()
        teller = threading.Thread(target=log.critical, args=("%s", text), daemon=True)
        teller.start()
        teller.join(TELL_S_MAX)
    finally:
        os._exit(EXIT_HUNG)


def shut_sockets() -> None:
    """Shut every socket of this process down but the standard ones:
    peers, also those not taken in yet, see the end; nobody can connect.
    """
    try:
        descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    except OSError:  # no descriptor is left to read it with; the end of the process has to do
        return
    for descriptor in descriptors:
        if descriptor not in STANDARD_FDS:
            _shut(descriptor)


def _shut(descriptor: int) -> None:
    # It may be closed already, as that of the listing is, or connected to nobody.
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            found = socket.socket(fileno=descriptor)
            try:
                found.shutdown(socket.SHUT_RDWR)
                while found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    waiting, _ = found.accept()  # without a wait, since it is shut down
                    waiting.close()
            finally:
                found.detach()
