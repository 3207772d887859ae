"""Files without a name that a program holds, though none has them open: their content stays.

A program may hold a file by a descriptor of O_PATH, and open it by way of /proc/self/fd later on.
The kernel tells nobody of such descriptors.  But it forgets an inode without a name as soon as
nobody holds it.  So a file that lost its last name by this mount, and that the kernel has not
forgotten after a moment, is held.  Then this mount takes a file session, as for readers of a
removed file that have it open, and ends it when the kernel forgets the file.

Invariants:
    - At most HELD_MAX files are kept so.  What is more goes after meta.gc_delay_s.
    - A session is ended when the kernel forgets its file, when that gets a name, and with the
      mount.

Does not: keep what another mount removed, or what went with its directory.  While its name may be
cached the kernel forgets nothing, whether anybody holds it or not, and the space of the file would
not come back.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from ...schema import services
from ...schema.ids import InodeId, SessionId
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from ..api import MetaCaller
from ..ending import EndingSessions
from .known import Known
from .ports import Caller

_log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""After so long, and no more than twice that, what is not forgotten yet is held."""

HELD_MAX: Final = 1024


class HeldFiles:
    """Of one mount."""

    def __init__(
        self,
        meta: MetaCaller,
        ending: EndingSessions,
        known: Mapping[InodeId, Known],
        new_session_id: Callable[[], SessionId],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        """Keep what a mount holds.

        Args:
            meta: whom to ask.
            ending: ends sessions.
            known: what the kernel has not forgotten.
            new_session_id: makes one.
            spawn: runs something in the background.
        """
        self._meta = meta
        self._ending = ending
        self._known = known
        self._new_session_id = new_session_id
        self._spawn = spawn
        self._noted: list[tuple[InodeId, Caller]] = []
        self._is_looking = False
        self._sessions: dict[InodeId, SessionId] = {}

    def note(self, inode_id: InodeId, caller: Caller) -> None:
        """A file that no program has open has lost its last name by this mount:
        whether somebody holds it shows in a moment.
        """
        self._noted.append((inode_id, caller))
        if not self._is_looking:
            self._is_looking = True
            self._spawn(self._look)

    def take_over(self, inode_id: InodeId, session_id: SessionId) -> bool:
        """Go on with the session that has kept a file without a name, which nobody has open any
        more; False: nobody holds it, and the caller has to end its session.
        """
        is_wanted = self._is_held(inode_id) and inode_id not in self._sessions
        if not is_wanted or len(self._sessions) >= HELD_MAX:
            return False
        self._sessions[inode_id] = session_id
        return True

    def forget(self, inode_id: InodeId) -> None:
        """Nobody holds the file any more, or it has a name."""
        session_id = self._sessions.pop(inode_id, None)
        if session_id is not None and not self._ending.end(inode_id, session_id):
            self._spawn(partial(self._end, inode_id, session_id))

    def end_all(self) -> None:
        """End all sessions."""
        for inode_id in list(self._sessions):
            self.forget(inode_id)

    async def _end(self, inode_id: InodeId, session_id: SessionId) -> None:
        """End a session by itself: too many wait for their end."""
        request = meta_pb2.CloseReq(session_id=session_id)
        request.sync.caller.CopyFrom(Caller(0, 0).to_pb())
        request.sync.inode_id = inode_id
        try:
            await self._meta.call(services.META_CLOSE, request)
        except FsError as error:
            _log.warning("the session of inode %#x is not ended: %s", inode_id, error)

    def _is_held(self, inode_id: InodeId) -> bool:
        known = self._known.get(inode_id)
        return known is not None and known.nameless is not None

    async def _look(self) -> None:
        """Look at everything that was noted, after a moment, until nothing is left."""
        waiting: list[tuple[InodeId, Caller]] = []
        try:
            while self._noted or waiting:
                await trio.sleep(LOOK_S)
                looked_at, waiting, self._noted = waiting, self._noted, []
                for inode_id, caller in looked_at:
                    if self._is_held(inode_id) and inode_id not in self._sessions:
                        await self._keep(inode_id, caller)
        finally:
            self._is_looking = False

    async def _keep(self, inode_id: InodeId, caller: Caller) -> None:
        if len(self._sessions) >= HELD_MAX:
            _log.warning(
                "inode %#x was removed and is held without being open, as %d others are:"
                " its content is not kept",
                inode_id,
                HELD_MAX,
            )
            return
        session_id = self._new_session_id()
        request = meta_pb2.OpenReq(
            caller=caller.to_pb(),
            inode_id=inode_id,
            session=meta_pb2.FileSessionPb(session_id=session_id),
        )
        try:
            await self._meta.call(services.META_OPEN, request)
        except FsError as error:
            level = logging.DEBUG if error.status is Status.STALE else logging.WARNING
            _log.log(level, "inode %#x was removed, and is not kept: %s", inode_id, error)
            return
        self._sessions[inode_id] = session_id
        if not self._is_held(inode_id):  # it was forgotten meanwhile
            self.forget(inode_id)
