"""Advisory locks (fcntl and flock) that hold over all mounts:
kept by meta, asked for and freed here.

Owners.  An owner is a number that the kernel gives out: for fcntl it stands for a process, for
flock for an open file description.  Which owners may hold something is remembered, so that closing
a file that was never locked asks nobody.  For fcntl an owner may stand for an open file
description, too (F_OFD_SETLK), and nothing says which of both.  So the handle that a lock was asked
through is remembered.  A process frees its own locks with each close.  So whoever is left when the
last descriptor of a handle is closed, is that handle.

Content.  As on NFS, a lock orders content as well.  Before bytes are freed, what this mount wrote
to the file is sent and reported.  After they are had, what others reported is seen.

Waiting.  A wait can be cancelled at any time; an attempt cannot, so nothing is held that
nobody knows of.  Meta knows, too, what a process waits for, so that no two wait for each
other, on one mount or several.  Of an open file description nobody can tell, here as in
Linux.  An attempt that fails ends its wait.

What is owed.  Bytes may not be freed because no meta service answered, or because its store
is full.  They are freed once one does: a process that has closed its file does not come
back, and others would wait for it until this mount ends.  Owners are numbers that are given
out again.  So who locks under one has what is owed for it freed first.  Should more be owed
while he asks, what his lock brings is not owed any more.  The end of a wait that could not
be told is owed in the same way.

Limits: who falls silent for longer than its client session lasts loses its locks, and is not told.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import trio

from ...schema import services
from ...schema.ids import InodeId
from ...schema.proto import meta_pb2
from ...schema.proto.common_pb2 import FileLockPb, LockKindPb
from ...schema.status import FsError, Status
from ..ending import is_final
from .core import VfsCore
from .files import Files
from .ports import Caller

_log = logging.getLogger(__name__)

LAST_BYTE = 2**63 - 1
"""As the last byte of a lock: to the end of the file, wherever that will be."""
_WAIT_MS = 5000
_OF_MOUNT = Caller(0, 0)

AGAIN_S: Final = 2.0
"""Between two tries to free what could not be freed; each lasts client.retry_time_s_max."""

_END_WAIT_S: Final = 1.0
"""Who gives up a wait, waits for so long until meta has heard so; then it is owed."""
_ASK_COUNT_MAX, _ASK_AGAIN_S = 100, 0.001
"""For what a thread does that has just begun to wait."""

_Owner: TypeAlias = tuple[InodeId, int, bool]
"""Inode, owner, is flock."""


@dataclass(frozen=True, slots=True)
class LockWish:
    """A lock that an owner wants, or the bytes that it frees."""

    owner: int
    is_flock: bool
    is_write: bool = False
    first: int = 0
    last: int = LAST_BYTE
    pid: int = 0

    @property
    def is_whole(self) -> bool:
        """True when it covers all bytes that there may ever be."""
        return self.first == 0 and self.last == LAST_BYTE

    def without(self, taken: "LockWish") -> "list[LockWish]":
        """Return what is left without the bytes of another one."""
        if self.last < taken.first or taken.last < self.first:
            return [self]
        left = []
        if self.first < taken.first:
            left.append(replace(self, last=taken.first - 1))
        if taken.last < self.last:
            left.append(replace(self, first=taken.last + 1))
        return left

    def to_pb(self) -> FileLockPb:
        """Return the wire form; whose client it is, meta knows."""
        return FileLockPb(
            owner=self.owner,
            kind=LockKindPb.FLOCK_LOCK if self.is_flock else LockKindPb.POSIX_LOCK,
            first=self.first,
            last=self.last,
            is_write=self.is_write,
            pid=self.pid,
        )


class Locks:
    """The locks of one mount."""

    def __init__(self, core: VfsCore, files: Files) -> None:
        self._core = core
        self._files = files
        self._holding: set[_Owner] = set()
        """Whoever may hold something."""
        self._owed: dict[_Owner, list[LockWish]] = {}
        """Bytes that were to be freed when no meta service answered."""
        self._waits_to_end: list[tuple[int, int]] = []
        """Owner and number of each wait that was given up, until meta has been told."""
        self._has_owed = trio.Event()
        self._freeing_owed = trio.Lock()
        self._asking: dict[_Owner, set[trio.Event]] = {}
        """One, set at its end, for each attempt to lock that is under way."""
        self._asked_by: dict[InodeId, dict[int, set[int]]] = {}
        """Owners of the fcntl locks that were asked for through a handle, by inode and handle."""
        self._freeing: dict[InodeId, set[trio.Event]] = {}
        """One, set at its end, for each `handle_closes` under way."""
        self._last_wait_id = 0

    async def lock(
        self,
        inode_id: InodeId,
        wish: LockWish,
        *,
        wait: bool,
        handle_id: int | None = None,
        is_process: Callable[[], bool | None] = lambda: False,
    ) -> None:
        """Take a lock; it replaces what its owner had on these bytes.

        It was asked for through `handle_id`: `handle_closes` frees what nobody else has freed by
        then.  `is_process` is asked when it has to be waited for: whether the owner is a process;
        None: that is not known yet.

        Raises:
            FsError: LOCK_HELD without `wait`, NO_LOCKS_LEFT, STALE; DEADLOCK: a
                process would wait for itself.
        """
        self._remember(inode_id, wish, handle_id)
        try:
            await self._lock(inode_id, wish, wait=wait, is_process=is_process)
        finally:
            # Who freed all that the owner had, while it waited for this, has forgotten it.
            self._remember(inode_id, wish, handle_id)
        with trio.CancelScope(shield=True):  # it is held now: who waited must hear so
            await self._files.revalidate(inode_id)

    async def _lock(
        self,
        inode_id: InodeId,
        wish: LockWish,
        *,
        wait: bool,
        is_process: Callable[[], bool | None],
    ) -> None:
        for freed in list(self._freeing.get(inode_id, ())):
            # The kernel does not wait for what a last close frees: who closes, and locks
            # again at once, comes second.
            await freed.wait()
        if await self._is_had(inode_id, wish):
            return
        if not wait:
            raise FsError(Status.LOCK_HELD, f"inode {inode_id}: {wish.first} to {wish.last}")
        is_looked_at = False if wish.is_flock else await _answer(is_process)
        while not is_looked_at:
            await self._test(inode_id, wish, wait_ms=_WAIT_MS)
            if await self._is_had(inode_id, wish):
                return
            if is_looked_at is None:  # the machine is so busy that the thread has not come to wait
                is_looked_at = await _answer(is_process)
        await self._wait_known(inode_id, wish)

    async def _wait_known(self, inode_id: InodeId, wish: LockWish) -> None:
        """Wait for a lock, as a process, with meta's knowledge."""
        self._last_wait_id += 1
        wait_id = self._last_wait_id
        is_had = False
        try:
            while not await self._is_had(inode_id, wish, wait_id=wait_id):
                await self._test(inode_id, wish, wait_ms=_WAIT_MS)
            is_had = True
        finally:
            if not is_had:
                self._waits_to_end.append((wish.owner, wait_id))
                with trio.move_on_after(_END_WAIT_S, shield=True):
                    await self._end_waits()
                if self._waits_to_end:
                    self._has_owed.set()

    async def _end_waits(self) -> None:
        """Have meta forget the waits that were given up:
        others would be told of circles that are none.
        """
        for one in list(self._waits_to_end):
            owner, wait_id = one
            request = meta_pb2.EndLockWaitReq(
                caller=_OF_MOUNT.to_pb(), owner=owner, wait_id=wait_id
            )
            try:
                await self._core.call(services.META_END_LOCK_WAIT, request)
            except FsError as error:
                if not is_final(error):
                    return
                _log.debug("wait %d of owner %#x: %s", wait_id, owner, error)
            if one in self._waits_to_end:
                self._waits_to_end.remove(one)

    async def _is_had(self, inode_id: InodeId, wish: LockWish, *, wait_id: int = 0) -> bool:
        """Try to take a lock, which nothing that is owed frees again; raises FsError."""
        owner = (inode_id, wish.owner, wish.is_flock)
        if owner in self._owed:
            with trio.CancelScope(shield=True):  # what comes late would free the new lock
                await self._free_owed(owner)
        answered = trio.Event()
        asking = self._asking.setdefault(owner, set())
        asking.add(answered)
        try:
            is_had = await self._attempt(inode_id, wish, is_unlock=False, wait_id=wait_id)
            if is_had and owner in self._owed:  # since it was asked for
                owed = self._owed[owner]
                owed[:] = [left for one in owed for left in one.without(wish)]
        finally:
            answered.set()
            asking.discard(answered)
            if not asking:
                del self._asking[owner]
        return is_had

    async def unlock(self, inode_id: InodeId, wish: LockWish) -> None:
        """Free bytes, after what was written under the lock;
        what the owner holds around them stays.

        Raises:
            FsError: what was written could not be reported; the bytes are free all the same.  Or no
                meta service answered: they will be once one does.
        """
        if wish.is_whole:
            # Before anything is waited for: what the owner asks for meanwhile is to be remembered.
            self._forget(inode_id, wish)
        await self._free(inode_id, (wish,))

    async def _free(self, inode_id: InodeId, wishes: Sequence[LockWish]) -> None:
        try:
            await self._files.settle(inode_id)
        finally:
            errors = []
            for wish in wishes:
                try:
                    await self._attempt(inode_id, wish, is_unlock=True)
                except FsError as error:
                    self._remember(inode_id, wish, None)
                    self._owe(inode_id, wish, error)
                    errors.append(error)
            if errors:
                raise errors[0]

    def _owe(self, inode_id: InodeId, wish: LockWish, error: FsError) -> None:
        if is_final(error):
            return
        wishes = self._owed.setdefault((inode_id, wish.owner, wish.is_flock), [])
        if wish.is_whole:
            wishes.clear()
        wishes.append(wish)
        self._has_owed.set()
        _log.warning("inode %d: a lock is not freed yet: %s", inode_id, error)

    async def run(self) -> None:
        """Free what is owed, until cancelled; what is left then goes with the client session."""
        while True:
            await self._has_owed.wait()
            await trio.sleep(AGAIN_S)
            self._has_owed = trio.Event()
            for owner in list(self._owed):
                try:
                    await self._free_owed(owner)
                except FsError as error:
                    _log.debug("inode %d: a lock is not freed yet: %s", owner[0], error)
                    self._has_owed.set()
                    break
            await self._end_waits()
            if self._waits_to_end:
                self._has_owed.set()

    async def _free_owed(self, owner: _Owner) -> None:
        """Free what is owed for an owner; raises FsError when meta does not answer:
        it is owed still.
        """
        inode_id = owner[0]
        async with self._freeing_owed:
            while wishes := self._owed.get(owner):
                if owner in self._asking:  # the answer may be a lock; the next one waits for us
                    await next(iter(self._asking[owner])).wait()
                    continue
                wish = wishes[0]
                try:
                    await self._set(inode_id, wish, is_unlock=True)
                except FsError as error:
                    if not is_final(error):
                        raise
                    _log.warning("inode %d: a lock is not freed: %s", inode_id, error)
                if wish in wishes:  # else all was asked for meanwhile
                    wishes.remove(wish)
                if wish.is_whole:
                    self._forget(inode_id, wish)
            self._owed.pop(owner, None)

    def _remember(self, inode_id: InodeId, wish: LockWish, handle_id: int | None) -> None:
        self._holding.add((inode_id, wish.owner, wish.is_flock))
        if handle_id is not None and not wish.is_flock:
            by_handle = self._asked_by.setdefault(inode_id, {})
            by_handle.setdefault(handle_id, set()).add(wish.owner)

    def _forget(self, inode_id: InodeId, wish: LockWish) -> None:
        self._holding.discard((inode_id, wish.owner, wish.is_flock))
        if wish.is_flock or inode_id not in self._asked_by:
            return
        by_handle = self._asked_by.pop(inode_id)
        left = {handle_id: owners - {wish.owner} for handle_id, owners in by_handle.items()}
        left = {handle_id: owners for handle_id, owners in left.items() if owners}
        if left:
            self._asked_by[inode_id] = left

    async def conflict(self, inode_id: InodeId, wish: LockWish) -> FileLockPb | None:
        """Return a lock that forbids a wanted one;
        its pid is 0 when its process is not of this mount.
        """
        found = await self._test(inode_id, wish, wait_ms=0)
        if found is not None and found.client_id != self._core.meta.client_id:
            found.pid = 0
        return found

    def may_hold(self, inode_id: InodeId, owner: int, *, is_flock: bool) -> bool:
        """Return whether `owner_closes` may have anything to free."""
        return (inode_id, owner, is_flock) in self._holding

    async def owner_closes(self, inode_id: InodeId, owner: int, *, is_flock: bool) -> None:
        """Free everything of an owner, when it may hold anything."""
        if self.may_hold(inode_id, owner, is_flock=is_flock):
            await self.unlock(inode_id, LockWish(owner, is_flock))

    def free_then(self, inode_id: InodeId, owner: int, go_on: Callable[[], None]) -> None:
        """Do what `owner_closes` does for fcntl, without a task that waits:
        its close has failed, and is to say so afterwards, by `go_on`.

        Not before: what its process locks next must not be freed with the rest.
        """

        def freed(_: None, failure: Exception | None) -> None:
            if failure is not None:
                _log.warning("inode %d: locks of a closed file stay: %s", inode_id, failure)
            go_on()

        freeing = self.owner_closes(inode_id, owner, is_flock=False)
        self._core.finish_in_task(freeing, freed)

    def may_hold_by(self, inode_id: InodeId, handle_id: int) -> bool:
        """Return whether `handle_closes` may have anything to free,
        but for what `flock_owner` holds.
        """
        return handle_id in self._asked_by.get(inode_id, ())

    async def handle_closes(
        self, inode_id: InodeId, handle_id: int, flock_owner: int | None = None
    ) -> None:
        """Free what the open file description itself holds: its last descriptor is closed.

        Raises:
            FsError: as `unlock`.
        """
        owners = self._asked_by.get(inode_id, {}).get(handle_id, ())
        wishes = [LockWish(owner, is_flock=False) for owner in owners]
        if flock_owner is not None and self.may_hold(inode_id, flock_owner, is_flock=True):
            wishes.append(LockWish(flock_owner, is_flock=True))
        if not wishes:
            return
        for wish in wishes:
            # Before anything is waited for: the next open file may have the same number.
            self._forget(inode_id, wish)
        freed = trio.Event()
        self._freeing.setdefault(inode_id, set()).add(freed)
        try:
            await self._free(inode_id, wishes)
        finally:
            freed.set()
            self._freeing[inode_id].discard(freed)
            if not self._freeing[inode_id]:
                del self._freeing[inode_id]

    async def release_all(self) -> None:
        """Free everything; what cannot be freed goes with the client session."""
        for inode_id, owner, is_flock in list(self._holding):
            try:
                await self.unlock(inode_id, LockWish(owner, is_flock))
            except FsError as error:
                _log.warning("inode %d: locks stay until the session ends: %s", inode_id, error)

    async def _attempt(
        self, inode_id: InodeId, wish: LockWish, *, is_unlock: bool, wait_id: int = 0
    ) -> bool:
        with trio.CancelScope(shield=True):
            reply = await self._set(inode_id, wish, is_unlock=is_unlock, wait_id=wait_id)
        return reply.is_done

    async def _set(
        self, inode_id: InodeId, wish: LockWish, *, is_unlock: bool, wait_id: int = 0
    ) -> meta_pb2.SetLockRsp:
        request = meta_pb2.SetLockReq(
            caller=_OF_MOUNT.to_pb(),
            inode_id=inode_id,
            lock=wish.to_pb(),
            is_unlock=is_unlock,
            wait_id=wait_id,
        )
        return await self._core.call(services.META_SET_LOCK, request)

    async def _test(self, inode_id: InodeId, wish: LockWish, *, wait_ms: int) -> FileLockPb | None:
        request = meta_pb2.FindLockConflictReq(
            caller=_OF_MOUNT.to_pb(), inode_id=inode_id, lock=wish.to_pb(), wait_ms=wait_ms
        )
        reply = await self._core.call(services.META_FIND_LOCK_CONFLICT, request)
        return reply.conflict if reply.HasField("conflict") else None


async def _answer(question: Callable[[], bool | None]) -> bool | None:
    """Ask again until there is an answer, for a while; None without one."""
    for _ in range(_ASK_COUNT_MAX):
        answer = question()
        if answer is not None:
            return answer
        await trio.sleep(_ASK_AGAIN_S)
    return None
