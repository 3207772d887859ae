"""File sessions and locks of dead clients: found by comparing with the manager's list, and ended.

Invariant: no session is ended unless somebody has proof that its client is gone, or the manager
says its list of clients is complete and the session is older than session_grace_s, so a client that
just appeared, or a manager that just started, costs nobody an open file.  The age of one that a
clock wrote which has been set back since is counted from when it was first seen here.

Concurrency: one task runs `run`; tests call `step`.
"""

import logging
from collections.abc import Awaitable, Callable

import trio

from ..kv.api import KvEngine, next_key, prefix_end
from ..kv.transact import snapshot_read
from ..node.api import MgmtdCaller
from ..schema.config import MetaSection
from ..schema.proto.mgmtd_pb2 import ListClientSessionsReq
from ..schema.proto.record_pb2 import FileSessionRecordPb
from ..schema.services import MGMTD_LIST_CLIENT_SESSIONS
from ..schema.status import FsError, Status
from . import records
from .context import CLOCK_ERROR_S_MAX
from .shapes import require_shape

log = logging.getLogger(__name__)

PAGE_COUNT = 1024


class SessionPruner:
    """Ends the file sessions of clients that are gone."""

    def __init__(
        self,
        engine: KvEngine,
        config: MetaSection,
        *,
        mgmtd: MgmtdCaller,
        end_session: Callable[[int, str, str], Awaitable[bool]],
        end_locks: Callable[[int, str], Awaitable[None]],
        end_lock_waits: Callable[[int, str], Awaitable[None]],
        end_directory_lock: Callable[[int, str], Awaitable[None]],
        now_ns: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._config = config
        self._mgmtd = mgmtd
        self._end_session = end_session
        self._free_by_prefix = {
            records.CLIENT_LOCKS: end_locks,
            records.LOCK_WAITS: end_lock_waits,
            records.DIRECTORY_LOCKS: end_directory_lock,
        }
        self._now_ns = now_ns
        self._ahead: dict[bytes, float] = {}
        """Records that say they are of the future: when each was first seen, on trio's clock."""
        self.seen_count = 0
        """File sessions that the last complete look found."""

    def adopt(self, section: MetaSection) -> None:
        """Go on with other settings."""
        self._config = section

    async def run(self) -> None:
        """Prune every session_scan_interval_s until cancelled."""
        while True:
            await trio.sleep(self._config.session_scan_interval_s)
            try:
                await self.step()
            except FsError as error:
                log.warning("pruning file sessions: %s", error)

    async def step(self) -> int:
        """Look at all file sessions and locks once; return how many sessions were ended.

        Raises:
            FsError: the manager or the key-value layer does not answer.
        """
        reply = await self._mgmtd.call(MGMTD_LIST_CLIENT_SESSIONS, ListClientSessionsReq())
        if not reply.is_complete:
            return 0
        living = {session.client_id for session in reply.sessions}
        is_old = self._judge_ages()
        seen_count = 0

        async def end_if_dead(key: bytes, value: bytes) -> bool:
            nonlocal seen_count
            seen_count += 1
            record = FileSessionRecordPb.FromString(value)
            if record.client_id in living or not is_old(key, record.created_ns):
                return False
            return await self._end(records.file_session_inode(key), record)

        async def free_if_dead(key: bytes, value: bytes) -> bool:
            client_id, inode_id = records.client_locks_parts(key)  # of waits, the owner
            if client_id in living or not is_old(key, records.unpack_u64(value[:8])):
                return False
            return await self._free(key[:4], inode_id, client_id)

        for prefix in self._free_by_prefix:
            await self._each(prefix, free_if_dead)
        ended_count = await self._each(records.FILE_SESSION, end_if_dead)
        self.seen_count = seen_count - ended_count
        return ended_count

    async def free_all_of(self, client_id: str) -> None:
        """End all file sessions of a client that is gone, then free its locks, however young:
        somebody has proof.

        In this order, so that who gets a lock sees what was written under it.

        Raises:
            FsError: something stays: the key-value layer, or a chain that has to tell a length,
                does not answer.
        """
        log.info("client %s is gone: what it held is freed", client_id)

        async def end_own(key: bytes, value: bytes) -> bool:
            record = FileSessionRecordPb.FromString(value)
            if record.client_id != client_id:
                return False
            inode_id = records.file_session_inode(key)
            return await self._end_session(inode_id, record.session_id, client_id)

        async def free(key: bytes, _value: bytes) -> bool:
            await self._free_by_prefix[key[:4]](records.client_locks_parts(key)[1], client_id)
            return True

        await self._each(records.FILE_SESSION, end_own)
        for prefix in self._free_by_prefix:
            await self._each(prefix + client_id.encode() + b"\x00", free)

    def _judge_ages(self) -> Callable[[bytes, int], bool]:
        """Return who says whether a dead client's record is older than the grace, from now on:
        made after the answer.
        """
        now_ns, now_s = self._now_ns(), trio.current_time()
        grace_s = self._config.session_grace_s
        seen, self._ahead = self._ahead, {}

        def is_old(key: bytes, created_ns: int) -> bool:
            if created_ns <= now_ns + int(CLOCK_ERROR_S_MAX * 1e9):
                return created_ns < now_ns - int(grace_s * 1e9)
            since_s = self._ahead[key] = seen.get(key, now_s)
            return now_s - since_s > grace_s

        return is_old

    async def _each(self, prefix: bytes, visit: Callable[[bytes, bytes], Awaitable[bool]]) -> int:
        """Visit all records under a prefix; return for how many `visit` was true."""
        cursor, count = prefix, 0
        while True:
            page = await self._page(cursor, prefix_end(prefix))
            for key, value in page:
                count += await self._visit(visit, key, value)
            if len(page) < PAGE_COUNT:
                return count
            cursor = next_key(page[-1][0])

    @staticmethod
    async def _visit(
        visit: Callable[[bytes, bytes], Awaitable[bool]], key: bytes, value: bytes
    ) -> bool:
        try:
            require_shape(key, value)
            return await visit(key, value)
        except FsError as error:
            if error.status is not Status.METADATA_DAMAGED:
                raise
            log.warning("left alone: %s", error)
            return False

    async def _page(self, cursor: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return await snapshot_read(
            self._engine, lambda tr: tr.get_range(cursor, end, limit=PAGE_COUNT, snapshot=True)
        )

    async def _free(self, prefix: bytes, inode_id: int, client_id: str) -> bool:
        try:
            await self._free_by_prefix[prefix](inode_id, client_id)
        except FsError as error:
            log.warning("locks of client %s on inode %#x stay: %s", client_id, inode_id, error)
            return False
        log.info("freed the locks on inode %#x: client %s is gone", inode_id, client_id)
        return True

    async def _end(self, inode_id: int, record: FileSessionRecordPb) -> bool:
        try:
            has_ended = await self._end_session(inode_id, record.session_id, record.client_id)
        except FsError as error:
            log.warning("session %s of inode %#x stays: %s", record.session_id, inode_id, error)
            return False
        log.info("ended session %s of inode %#x: its client is gone", record.session_id, inode_id)
        return has_ended
