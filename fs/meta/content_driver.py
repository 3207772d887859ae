"""Drives what needs a file's chunks: cutting them after a truncation, asking for their length.

A truncation is four steps:
    1. A transaction sets the new length and marks the file.
    2. The chunks are cut.
    3. A transaction notes that.
    4. Another one takes the mark away.

Whoever finds the mark does what the note does not say to be done, so a service may die between any
two of them.  The first two transactions are durable before anything is done that relies on them.
The last one may come undone with the power, and is done again.

Within one process one cut of a file runs at a time, however many tasks wait for it: a second,
slower run could cut what a writer has written after the first had finished.

Who comes while one runs waits for the next, which all who wait share.  The one that runs
may have looked before the truncation began that he asks for, or have finished an earlier
one without having heard of it yet.  Had he taken its end for his own, his client would
write, and lose that to the cut to come.

The bytes of an inline file are moved to its chunk in the same four steps, as a truncation to its
present length: instead of being cut the chunk is filled.  The note drops the record of the bytes,
so they are always in one place at least.

With each truncation that succeeds all who wait begin another round.  Who has been through some of
them without success queues for his turn, and is let try first when a truncation ends.  Else those
who have just succeeded, and come again, would always be before him.

Concurrency: any number of tasks.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import trio

from ..kv.api import KvEngine, Transaction
from ..kv.tally import Tally
from ..kv.transact import snapshot_read, transact_stamped
from ..runtime.ports import Runtime
from ..runtime.until_wait import in_task
from ..schema.ids import InodeId
from ..schema.layout import FileRef, layout_from_pb
from ..schema.proto.common_pb2 import FilePartPb, InodePb
from ..schema.status import FsError, Status
from . import inline, records
from .context import (
    LengthUnknownError,
    PreciseLength,
    StillInlineError,
    TruncationUnfinishedError,
)
from .damage import inode_record
from .ops.finish_truncation import begin_move, find_moving, finish_truncation, note_cut
from .ports import ChunkPort
from .turns import Turn, Turns

T = TypeVar("T")

_Wanted = TruncationUnfinishedError | StillInlineError | LengthUnknownError

ROUND_COUNT_MAX: Final = 32
"""How often one operation may be rerun because of the chunks before it gives up as BUSY,
unless the time for retries lasts longer: of many who truncate one file all but one begin
another round with each that succeeds.
"""
PATIENT_ROUND_COUNT: Final = 3
"""So many rounds everybody goes on side by side with all others,
which is quicker where nobody truncates the file again.
"""
LATE_ROUND_PAUSE_S: Final = 0.001
"""Before each further round: whatever goes wrong, time passes."""


def file_ref(inode_id: int, part: FilePartPb) -> FileRef:
    """Return what finds the chunks of a file."""
    return FileRef(InodeId(inode_id), layout_from_pb(part.layout), max(part.dyn_stripe, 1))


class _Cut:
    """One cut that tasks wait for."""

    def __init__(self) -> None:
        self.done = trio.Event()
        # Stands when the task is cancelled: those who wait must not take that for success.
        self.error: FsError | None = FsError(Status.SHUTTING_DOWN, "cutting a file's chunks")


class ContentDriver:
    """Brings chunks and inodes into step."""

    def __init__(
        self, engine: KvEngine, runtime: Runtime, chunks: ChunkPort, retry_time_s_max: float
    ) -> None:
        self._engine = engine
        self._runtime = runtime
        self._chunks = chunks
        self._retry_time_s_max = retry_time_s_max
        self.tally = Tally()
        self._running: dict[int, _Cut] = {}
        self._turns = Turns()
        self._nursery: trio.Nursery | None = None

    async def transact(self, fn: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run and commit `fn`; see fs/kv/transact.py."""
        result, _ = await transact_stamped(
            self._engine,
            fn,
            runtime=self._runtime,
            retry_time_s_max=self._retry_time_s_max,
            tally=self.tally,
        )
        return result

    async def run(self, attempt: Callable[[PreciseLength | None], Awaitable[T]]) -> T:
        """Run an operation, doing with the chunks whatever it asks for, until it succeeds.

        Raises:
            FsError: what `attempt` or the storage raises; BUSY when others truncate the file faster
                than this can follow.
        """
        try:
            return await attempt(None)  # nearly always this is all
        except (TruncationUnfinishedError, StillInlineError, LengthUnknownError) as error:
            turn = Turn(self._turns)
            try:
                return await self._run_again(attempt, error, turn)
            finally:
                turn.end()

    async def _run_again(
        self, attempt: Callable[[PreciseLength | None], Awaitable[T]], wanted: _Wanted, turn: Turn
    ) -> T:
        """Go on with an operation whose first round has ended with what it wants of the chunks;
        raises as `run`.
        """
        known: PreciseLength | None = None
        clock, round_count = self._runtime.clock, 1
        give_up_s = clock.monotonic_s() + self._retry_time_s_max
        while True:
            await in_task()
            turn.end_try()
            is_patient = round_count <= PATIENT_ROUND_COUNT
            if isinstance(wanted, LengthUnknownError):
                known = await self._ask_length(wanted.inode, is_patient=is_patient)
            else:
                inode_id = await self._begun(wanted)
                if is_patient:
                    await self.finish_truncation(inode_id)
                else:
                    if await turn.take(inode_id):
                        give_up_s = clock.monotonic_s() + self._retry_time_s_max
                    await self._finish_truncation(inode_id)
            if round_count >= ROUND_COUNT_MAX and clock.monotonic_s() >= give_up_s:
                raise FsError(Status.BUSY, "the file is being truncated again and again")
            round_count += 1
            if round_count > ROUND_COUNT_MAX:
                await trio.sleep(LATE_ROUND_PAUSE_S)
            try:
                return await attempt(known)
            except (TruncationUnfinishedError, StillInlineError, LengthUnknownError) as error:
                wanted = error

    async def _begun(self, error: TruncationUnfinishedError | StillInlineError) -> int:
        """Return the inode whose truncation is to be finished next;
        where bytes are inline, begin to move them.
        """
        if isinstance(error, TruncationUnfinishedError):
            return error.inode.inode_id
        first, *others = error.inodes
        for inode in others:
            await self.move_inline(inode.inode_id)
        await self._begin_move(first.inode_id)
        return first.inode_id

    async def move_inline(self, inode_id: int) -> None:
        """Move the bytes of a file to its chunk, if they are inline;
        raises as `finish_truncation`, and METADATA_DAMAGED.
        """
        await in_task()
        await self._begin_move(inode_id)
        await self.finish_truncation(inode_id)

    async def _begin_move(self, inode_id: int) -> None:
        now_ns = self._runtime.clock.wall_ns()
        await self.transact(lambda tr: begin_move(tr, inode_id, now_ns))

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the tasks that cut chunks, so that a caller who goes away does
        not stop them halfway.

        Without it the caller's own task does the work.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def finish_truncation(self, inode_id: int) -> None:
        """Cut the chunks of a file whose truncation is pending, and take the mark away.

        Raises:
            FsError: what the storage or the key-value layer raised.
        """
        await in_task()
        await self._finish_truncation(inode_id)
        await self._turns.let_try(inode_id)

    async def _finish_truncation(self, inode_id: int) -> None:
        earlier = self._running.get(inode_id)
        if earlier is not None:
            await earlier.done.wait()
            if earlier.error is not None:
                # The next would most likely end in the same way, and take as long.
                raise FsError(earlier.error.status, earlier.error.detail) from earlier.error
        cut = self._running.get(inode_id)  # begun after we came
        if cut is None:
            cut = self._running[inode_id] = _Cut()
            if self._nursery is not None:
                self._nursery.start_soon(self._drive, inode_id, cut)
            else:
                await self._drive(inode_id, cut)
        await cut.done.wait()
        if cut.error is not None:
            raise FsError(cut.error.status, cut.error.detail) from cut.error

    async def _drive(self, inode_id: int, cut: "_Cut") -> None:
        try:
            await self._cut(inode_id)
            cut.error = None
        except FsError as error:
            cut.error = error
        finally:
            del self._running[inode_id]
            cut.done.set()

    async def _cut(self, inode_id: int) -> None:
        # Read afresh: what the caller saw may have been finished, and written over, since.
        inode = await self._inode(inode_id)
        if inode is None:
            await self.transact(lambda tr: finish_truncation(tr, inode_id, 0))
            return
        part = inode.file
        if not part.truncate_pending:
            return
        if part.is_inline:
            await self._fill_chunk(inode_id, part)
        elif part.cut_ver != part.truncate_ver:
            await self._cut_chunks(inode_id, part)
        # Whoever has the file open for writing from the next transaction on may outlive a power
        # loss, and go on writing. Also a note of another service may not be durable yet.
        await self._engine.sync()
        await self.transact(lambda tr: finish_truncation(tr, inode_id, part.truncate_ver))

    async def _cut_chunks(self, inode_id: int, part: FilePartPb) -> None:
        # The chunks must not be cut for good while the new length could
        # still be lost with the power.
        await self._engine.sync()
        file, used_bytes = file_ref(inode_id, part), None
        is_pending = partial(self._is_pending, inode_id, part.truncate_ver)
        await self._chunks.truncate_file(file, part.length, part.truncate_ver, is_pending)
        if part.has_holes:
            _, used_bytes = await self._chunks.file_length(file)
        await self.transact(lambda tr: note_cut(tr, inode_id, part.truncate_ver, used_bytes))

    async def _fill_chunk(self, inode_id: int, part: FilePartPb) -> None:
        # The number of the move must not be lost with the power while storage knows it as over: the
        # next move would have it again.
        await self._engine.sync()
        truncate_ver = part.truncate_ver
        record = await snapshot_read(
            self._engine, lambda tr: find_moving(tr, inode_id, truncate_ver)
        )
        if record is None:  # another service has done it since, or removed the file
            return
        data, file = inline.check_bytes(inode_id, record), file_ref(inode_id, part)
        is_pending = partial(self._is_pending, inode_id, truncate_ver)
        await self._chunks.fill_file(file, data, truncate_ver, is_pending)
        await self.transact(lambda tr: note_cut(tr, inode_id, truncate_ver, None))

    async def _is_pending(self, inode_id: int, truncate_ver: int) -> bool:
        """Another service may have finished it, and clients may have written behind
        the new end since.
        """
        inode = await self._inode(inode_id)
        if inode is None or not inode.file.truncate_pending:
            return False
        part = inode.file
        return part.truncate_ver == truncate_ver != part.cut_ver

    async def _inode(self, inode_id: int) -> InodePb | None:
        key = records.inode_key(inode_id)
        value = await snapshot_read(self._engine, lambda tr: tr.get(key, snapshot=True))
        return None if value is None else inode_record(inode_id, value)

    async def _ask_length(self, inode: InodePb, *, is_patient: bool) -> PreciseLength:
        """Ask the chains; the answer holds for the content that the inode knows of,
        unless who asks has waited for long.
        """
        part = inode.file
        length, used_bytes = await self._chunks.file_length(file_ref(inode.inode_id, part))
        data_ver = part.data_ver if is_patient else None
        return PreciseLength(inode.inode_id, part.truncate_ver, length, used_bytes, data_ver)
