"""What a process tells systemd, when systemd started it: ready, stopping, alive.

The protocol of sd_notify(3): one datagram per message to the socket that NOTIFY_SOCKET
names.  Without it, nothing is said.
"""

import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final

import trio

log = logging.getLogger(__name__)

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
INTERVAL_VARIABLE: Final = "WATCHDOG_USEC"
PID_VARIABLE: Final = "WATCHDOG_PID"


class SystemdLink:
    """The way to systemd; takes its variables out of the environment,
    so that children do not speak for us.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._path = environment.pop(SOCKET_VARIABLE, "")
        interval_us = environment.pop(INTERVAL_VARIABLE, "")
        pid = environment.pop(PID_VARIABLE, "")
        is_meant = pid in {"", str(os.getpid())}
        self.watchdog_s = int(interval_us) / 1e6 if interval_us and is_meant else 0.0
        """Within which a word is expected; 0: none is."""

    def say(self, word: str) -> None:
        """Send READY=1, STOPPING=1 or WATCHDOG=1; one that is lost is told in the log,
        and no more than that.
        """
        if not self._path:
            return
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(word.encode(), address)
        except OSError as error:
            log.warning("systemd was not told %s: %s", word, error)

    async def keep_saying(self) -> None:
        """Say that the loop runs, twice as often as expected, until cancelled.

        A loop that hangs says nothing.
        """
        while self.watchdog_s:
            self.say("WATCHDOG=1")
            await trio.sleep(self.watchdog_s / 2)
