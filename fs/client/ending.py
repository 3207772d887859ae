"""The end of file sessions that have nothing to report: many in one call of meta, a moment later;
and of those whose last report was not taken.

Nobody waits for the end of a session: close(2) returns before the kernel says that a file is
released, and all that was written through it was reported by then.  Until the session is gone the
content of a removed file stays, as it would have while the file was open.  The mount and the
native client end sessions so.

Who closes a file with something to report does it by itself.  Where no meta service answers that,
or the store has no room, nobody is left to try again: such a session is ended here, too, as one of
a client that is gone, for which meta asks the chains how far the file reaches.

Invariants:
    - A session is ended once its client shuts down in order; when it dies instead, meta
      finds out as with any open file.
    - At most PENDING_MAX sessions of either kind wait; beyond that each is ended by itself.
    - A session whose end was not answered, or for which the store has no room, waits on, for as
      long as the client lives; one whose end is refused does not keep others.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from ..schema import services
from ..schema.ids import InodeId, SessionId
from ..schema.proto import common_pb2, meta_pb2
from ..schema.status import FsError, Retry, Status
from .api import MetaCaller

_log = logging.getLogger(__name__)

PAUSE_S: Final = 0.1
"""How long a session waits for others."""

AGAIN_S: Final = 5.0
"""Between two tries while no meta service answers; each lasts client.retry_time_s_max."""

PER_CALL_MAX: Final = 256
PENDING_MAX: Final = 4096


def is_final(error: FsError) -> bool:
    """Return whether meta, asked once more to end or free something, would say the same:
    a full store gets room again.
    """
    return error.retry is Retry.NEVER and error.status not in {
        Status.INTERNAL_ERROR,
        Status.NO_SPACE,
    }


class EndingSessions:
    """See module head."""

    def __init__(self, meta: MetaCaller, caller: Callable[[], common_pb2.CallerPb]) -> None:
        """End sessions of one client.

        Args:
            meta: whom to ask.
            caller: makes a request header; of a user who is the client's, though meta
                goes by whose client it is.
        """
        self._meta = meta
        self._caller = caller
        self._pending: list[tuple[InodeId, SessionId]] = []
        self._unreported: list[tuple[InodeId, SessionId]] = []
        """Those whose last report was not taken."""
        self._has_pending = trio.Event()
        self._is_running = False
        self._lock = trio.Lock()
        """So that `finish` returns only when nothing is under way."""

    def end(self, inode_id: InodeId, session_id: SessionId, *, is_reported: bool = True) -> bool:
        """Have a session ended soon; False when that is not done here, and the caller has to."""
        pending = self._pending if is_reported else self._unreported
        if not self._is_running or len(pending) >= PENDING_MAX:
            return False
        pending.append((inode_id, session_id))
        self._has_pending.set()
        return True

    async def run(self) -> None:
        """End sessions until cancelled; `finish` ends the rest."""
        self._is_running = True
        try:
            while True:
                await self._has_pending.wait()
                await trio.sleep(PAUSE_S)
                self._has_pending = trio.Event()
                await self.finish()
                if self._pending or self._unreported:
                    await trio.sleep(AGAIN_S)
                    self._has_pending.set()
        finally:
            self._is_running = False

    async def finish(self) -> None:
        """End all that wait; they wait on when no meta service answers,
        which ends sessions of clients that are gone.
        """
        async with self._lock:
            try:
                while self._pending:
                    batch = self._pending[:PER_CALL_MAX]
                    await self._end(batch, is_settled=True)
                    del self._pending[: len(batch)]
                while self._unreported:
                    await self._end(self._unreported[:1], is_settled=False)
                    del self._unreported[:1]
            except (FsError, MemoryError) as error:  # no mount ends for a lack of memory here
                count = len(self._pending) + len(self._unreported)
                _log.warning("%d file sessions are not ended yet: %r", count, error)

    async def _end(self, batch: Sequence[tuple[InodeId, SessionId]], *, is_settled: bool) -> None:
        """End sessions, each by itself when meta refuses one of them;
        raises FsError when it does not answer.
        """
        request = meta_pb2.PruneSessionsReq(caller=self._caller(), is_settled=is_settled)
        for inode_id, session_id in batch:
            request.sessions.add(inode_id=inode_id, session_id=session_id)
        try:
            await self._meta.call(services.META_PRUNE_SESSIONS, request)
        except FsError as error:
            if not is_final(error):
                raise
            if len(batch) == 1:
                _log.warning("inode %d: a file session is not ended: %s", batch[0][0], error)
                return
            for one in batch:
                await self._end([one], is_settled=is_settled)
