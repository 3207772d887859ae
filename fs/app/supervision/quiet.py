"""Stopping a whole cluster: its managers are told before anybody else ends, by a signal,
and judge nobody from then on.

Else each storage process that ends in order is one less that has the newest data of its chains, the
last of all is waited for at the next start, and a loss of just its disk keeps everything away,
though the others have the same.

Signalled first, a manager knows it before it hears of any end: its handler runs before
anything that came later is acted on.
"""

import logging
import os
import signal
from typing import TYPE_CHECKING, Final

import trio

from ..machine.process_id import ProcessId, catches, open_pidfd, send_signal

if TYPE_CHECKING:  # who tells needs no manager
    from ...mgmtd.main import Mgmtd

log = logging.getLogger(__name__)

SIGNAL: Final = signal.SIGUSR1
STOP_S: Final = 30.0
"""So long nobody is judged: longer than a process may take to stop."""


async def hear_of_stop(
    mgmtd: "Mgmtd", *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Tell a manager when all is being stopped, until cancelled.

    In the handler itself, not by a task: what has come through sockets meanwhile is
    acted on by tasks, in any order.
    """
    token = trio.lowlevel.current_trio_token()

    def hear(_number: int, _frame: object) -> None:
        mgmtd.be_quiet(STOP_S)
        token.run_sync_soon(log.info, "all is being stopped: nobody is judged for %g s", STOP_S)

    before = signal.signal(SIGNAL, hear)
    try:
        task_status.started()
        await trio.sleep_forever()
    finally:
        signal.signal(SIGNAL, before)


def tell_of_stop(manager: ProcessId) -> None:
    """Tell a manager that all is about to be stopped;
    one of a release that does not listen would die of it, and is left alone.
    """
    try:
        pidfd = open_pidfd(manager)
    except OSError as error:
        log.warning("process %d is not told that all stops: %s", manager.pid, error.strerror)
        return
    if pidfd is None:
        return
    try:
        if catches(manager, SIGNAL):
            send_signal(pidfd, SIGNAL)
    finally:
        os.close(pidfd)
