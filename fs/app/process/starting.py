"""What a start waits for: a store or a manager that is down, starting, or out of reach for a while.

A process that ended instead would only be started again, with a log that tells of an error where
there is none: after a power failure everything comes back in any order.  Whoever asks the process
to stop meanwhile need not wait (compose.py).
"""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ...node.membership import Membership
from ...node.mgmtd_link import MgmtdLink, is_transient
from ...runtime.background import open_background
from ...schema.proto.mgmtd_pb2 import GetPrimaryReq
from ...schema.services import MGMTD_GET_PRIMARY
from ...schema.status import FsError

if TYPE_CHECKING:
    from .compose import Process

T = TypeVar("T")

log = logging.getLogger(__name__)

TELL_AFTER_S: Final = 1.0
"""What takes less is not worth a line."""
TELL_INTERVAL_S: Final = 60.0
PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 1.0
MANAGER_TIMEOUT_S: Final = 5.0
"""Of one round of questions to all managers."""


class _Telling:
    """Says for what a process waits, since when, and why it is not there yet:
    in the log, and to systemd.
    """

    def __init__(self, process: "Process", what: str) -> None:
        self._process = process
        self._what = what
        self._since_s = trio.current_time()
        self._since = datetime.fromtimestamp(time.time(), UTC)
        self._has_told = False
        self.reason = ""
        self.look: Callable[[], str] = lambda: self.reason
        """Says why; empty: not known yet."""

    async def run(self) -> None:
        """Tell after a moment, once more as soon as it is known why, then now and then,
        until cancelled.
        """
        await trio.sleep(TELL_AFTER_S)
        while True:
            is_known = self._tell()
            for _ in range(round(TELL_INTERVAL_S / TELL_AFTER_S)):
                await trio.sleep(TELL_AFTER_S)
                if self.look() and not is_known:
                    break

    def _tell(self) -> bool:
        """Tell; return whether it was known why."""
        text = f"waiting for {self._what} since {self._since:%H:%M:%S} UTC"
        known = " ".join(self.look().split())  # each line would be another word to systemd
        reason = known or "no answer yet"
        log.warning("%s: %s", text, reason)
        self._process.systemd.say(f"STATUS={text}: {reason}")
        self._has_told = True
        return bool(known)

    def end(self) -> None:
        """Tell that it is there, if it was missed."""
        if self._has_told:
            waited_s = trio.current_time() - self._since_s
            log.info("%s answers, after %.1f s", self._what, waited_s)
            self._process.systemd.say(
                "STATUS=serving" if self._process.has_served else "STATUS=starting"
            )


async def wait_for(process: "Process", what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what `attempt` returns, made again and again while what it needs is away.

    Args:
        process: that starts.
        what: that is waited for, for people.
        attempt: may be made any number of times; must not leave anything open, nor open a nursery
            that outlives it.

    Raises:
        FsError: of `attempt`, when another one cannot help.
    """
    telling = _Telling(process, what)
    pause_s = PAUSE_S_MIN
    async with open_background() as nursery:
        nursery.start_soon(telling.run)
        while True:
            try:
                result = await attempt()
            except FsError as error:
                if not is_transient(error):
                    raise
                telling.reason = str(error)
            else:
                telling.end()
                return result
            await trio.sleep(pause_s * process.runtime.random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


async def tell_until_joined(process: "Process", membership: Membership) -> None:
    """Wait for the first lease of a process that serves nobody before,
    and say so as long as no manager gives one.
    """
    where = ", ".join(process.config.process.mgmtd_addresses)
    telling = _Telling(process, f"a lease of the manager at {where}")
    telling.look = lambda: membership.trouble
    async with open_background() as nursery:
        nursery.start_soon(telling.run)
        await membership.wait_joined()
        telling.end()


async def wait_for_store(process: "Process", attempt: Callable[[], Awaitable[T]]) -> T:
    """As `wait_for`, for the key-value store of a process."""
    section = process.config.kv
    places = {"remote": section.address, "foundationdb": section.cluster_file}
    where = places.get(section.engine, section.path)
    return await wait_for(process, f"the key-value store {section.engine}:{where}", attempt)


async def wait_for_manager(process: "Process") -> None:
    """Wait until a primary manager answers; raises FsError for what no waiting cures,
    such as another cluster's id.
    """
    link = MgmtdLink(process.channels, process.config.process.mgmtd_addresses, process.runtime)

    async def ask() -> None:
        await link.call(MGMTD_GET_PRIMARY, GetPrimaryReq(), timeout_s=MANAGER_TIMEOUT_S)

    await wait_for(process, f"a manager at {', '.join(link.addresses)}", ask)
