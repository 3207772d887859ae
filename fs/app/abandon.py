"""Ending a process that cannot end itself: some thread of it, maybe that of the event loop, waits for a disk that does not answer.

The kernel keeps such a thread, and with it all that the process has open, until the disk answers.  Peers would go on waiting for
an answer from its sockets; so these are closed first, and whoever calls is refused, which proves that nobody serves.
"""

import logging
import os
import stat
import threading
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
    close_sockets()
    teller = threading.Thread(target=log.critical, args=("%s", text), daemon=True)
    teller.start()
    teller.join(TELL_S_MAX)
    os._exit(EXIT_HUNG)


def close_sockets() -> None:
    """Close every socket of this process but the standard ones."""
    for path in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(path.name)
        if descriptor in STANDARD_FDS:
            continue
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
        except OSError:  # it is closed already, as that of the listing is
            continue
