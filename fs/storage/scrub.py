"""Rereads everything slowly, and compares it with the successor:
damage and differences that nobody's reads would meet.

A pass over a target goes page by page in chunk-id order:
    1. The page is compared with the successor's listing of the same chunks: versions, lengths,
       digests.  What differs is looked at again under the chunk lock, where nothing moves, with
       nothing pending on either side; then somebody's disk has lost or changed a record, and
       whoever has less gets more (`judge`).
    2. Each chunk is read and verified; a bad copy goes to repair (damage.py).  One that is marked
       as damaged is read as well: its mark ends if the disk gives its bytes again.
    3. The place is noted on the disk: the next process goes on there.  A loss
       of the power may set it back.

Of several targets the one with the fewest passes goes first, so that frequent restarts
starve nobody.  Memory is bounded by two pages; the rate by
`storage.scrub_bytes_per_s_max` for the whole process.

Concurrency: one task.
"""

import logging
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import trio

from ..chunkengine.api import ChunkState, Note
from ..schema.ids import ChunkId, TargetId
from ..schema.routing import PublicState
from ..schema.status import FsError
from .context import StorageContext
from .damage import is_unmarked, is_whole, note_damage
from .forward import evict
from .local_state import Hold
from .resync_plan import window_end
from .target import LocalTarget
from .targets import Place
from .there import list_there, state_there
from .transfer import transfer

log = logging.getLogger(__name__)

PAGE_CHUNK_COUNT: Final = 256
BEGIN_AFTER_S: Final = 60.0
"""From the start of the process, which has better things to do at first."""

PASS_S_MIN: Final = 600.0
"""From the start of one pass over all targets to that of the next, at least."""

STOPPED_LOOK_S: Final = 1.0
"""While the scrub is stopped in the middle of a pass: between two looks whether it may go on."""

_KEY: Final = b"s"
_PASSES: Final = struct.Struct(">Q")


class Verdict(Enum):
    """What a difference between two serving targets means."""

    NONE = "none"
    SUCCESSOR_LACKS = (
        "successor lacks"  # it gets the chunk; by resync, if the bytes are lost here too
    )
    WE_LACK = "we lack"  # we leave the chain and come back through resync
    CONTRADICTION = "contradiction"  # the successor does: the predecessor is the truth


def judge(here: ChunkState | None, there: ChunkState | None) -> Verdict:
    """Decide about one chunk, nothing moving on either side.  Pure.

    A serving target commits no later than its predecessor, and no earlier than its
    successor has; so with nothing under way, less than the neighbour has means that a disk
    forgot.  More is never taken for wrong: bringing a removed chunk back is a nuisance,
    removing the last copy of one is a loss.
    """
    mine, theirs = (here.commit_ver if here else 0), (there.commit_ver if there else 0)
    if mine != theirs:
        return Verdict.SUCCESSOR_LACKS if mine > theirs else Verdict.WE_LACK
    if here is None or there is None:
        return Verdict.NONE
    is_same = (here.length, here.checksum) == (there.length, there.checksum)
    return Verdict.NONE if is_same else Verdict.CONTRADICTION


@dataclass(slots=True)
class Cursor:
    """How far the scrub of one target is."""

    pass_count: int = 0
    after: bytes = b""
    """Packed id of the last chunk done in this pass."""


def load_cursor(target: LocalTarget) -> Cursor:
    """Return where the last process stopped; blocking."""
    for note in target.disk.engine.notes(target.target_id):
        if note.key == _KEY:
            (pass_count,) = _PASSES.unpack_from(note.value)
            return Cursor(pass_count, note.value[_PASSES.size :])
    return Cursor()


def store_cursor(target: LocalTarget, cursor: Cursor) -> None:
    """Note it on the disk, without waiting for it."""
    value = _PASSES.pack(cursor.pass_count) + cursor.after
    target.disk.engine.put_notes(target.target_id, [Note(_KEY, value)])


class Scrub:
    """The scrub of one process."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Scrub all serving targets, pass after pass, until cancelled."""
        await trio.sleep(BEGIN_AFTER_S)
        while True:
            began_s = trio.current_time()
            if self._context.section.scrub_bytes_per_s_max:
                for target in await self._in_turn():
                    await self._scrub_target(target)
            await trio.sleep(max(PASS_S_MIN - (trio.current_time() - began_s), 1.0))

    async def _in_turn(self) -> list[LocalTarget]:
        counts: dict[TargetId, int] = {}
        for place in self._context.targets.places():
            if place.can_read:
                try:
                    found = await place.target.disk.run(load_cursor, place.target)
                except FsError as error:
                    log.warning("target %d: not scrubbed: %s", place.target.target_id, error)
                    continue
                counts[place.target.target_id] = found.pass_count
        own = self._context.targets.targets
        in_turn = sorted(counts, key=lambda target_id: (counts[target_id], target_id))
        return [own[target_id] for target_id in in_turn if target_id in own]

    async def _scrub_target(self, target: LocalTarget) -> None:
        """Go on with the pass of one target where it stopped."""
        try:
            await self.scrub_from(target, await target.disk.run(load_cursor, target))
        except FsError as error:
            log.warning("target %d: scrub interrupted: %s", target.target_id, error)

    async def scrub_from(self, target: LocalTarget, cursor: Cursor) -> bool:
        """Scrub a target from `cursor` to the end of its pass.

        Returns:
            False if it ended early, since the target does not serve any more.

        Raises:
            FsError: of our own disk.
        """
        while True:
            place = self._serving_place(target)
            if place is None:
                return False
            has_more = await self._scrub_page(place, cursor)
            if not has_more:
                cursor.pass_count, cursor.after = cursor.pass_count + 1, b""
                target.scrub_pass_count += 1
            await target.disk.run(store_cursor, target, cursor)
            if not has_more:
                log.info(
                    "target %d: scrub pass %d done: %d bad copies and %d differences found,"
                    " %d repaired since the start",
                    target.target_id,
                    cursor.pass_count,
                    target.checksum_error_count,
                    target.difference_count,
                    target.repaired_count,
                )
                return True

    def _serving_place(self, target: LocalTarget) -> Place | None:
        for place in self._context.targets.places():
            if place.target is target and place.can_read and self._context.lease.is_valid():
                return place
        return None

    async def _scrub_page(self, place: Place, cursor: Cursor) -> bool:
        """Scrub the next page; return whether another follows."""
        target = place.target
        page = await target.disk.run(_list_page, target, cursor.after)
        successor = place.successor
        if successor is not None and successor.public_state is PublicState.SERVING:
            try:
                await self._compare(place, successor.target_id, page, cursor.after)
            except FsError as error:
                log.info("target %d: not compared: %s", target.target_id, error)
        for state in page:
            await self._scrub_chunk(target, state)
        if page:
            cursor.after = page[-1].chunk_id.pack()
        return len(page) == PAGE_CHUNK_COUNT

    async def _scrub_chunk(self, target: LocalTarget, state: ChunkState) -> None:
        if not state.length:
            return
        look = is_unmarked if state.is_damaged else is_whole
        if not await target.disk.run(look, target, state):
            note_damage(target, state.chunk_id, "found by the scrub")
        target.scrubbed_bytes += state.length
        while not (rate := self._context.section.scrub_bytes_per_s_max):  # noqa: ASYNC110 - nobody would set an event
            await trio.sleep(STOPPED_LOOK_S)
        await trio.sleep(state.length / rate)

    async def _compare(
        self, place: Place, successor_id: TargetId, page: list[ChunkState], after: bytes
    ) -> None:
        """Compare a page with the successor's, as far as both reach."""
        theirs = await list_there(self._context, successor_id, after, PAGE_CHUNK_COUNT)
        end = window_end(_last_of_full(page), _last_of_full(theirs))
        here, there = _up_to(page, end), _up_to(theirs, end)
        for chunk_id in sorted({**here, **there}):
            if judge(here.get(chunk_id), there.get(chunk_id)) is not Verdict.NONE:
                await self._look_again(place, successor_id, chunk_id)

    async def _look_again(self, place: Place, successor_id: TargetId, chunk_id: ChunkId) -> None:
        context, target, chain = self._context, place.target, place.chain
        deadline_s = trio.current_time() + context.section.forward_timeout_s
        async with target.locks.hold(chunk_id):
            there = await state_there(context, successor_id, chunk_id)
            here = target.disk.run_inline(target.disk.engine.get, target.target_id, chunk_id)
            context.check_lease()
            context.place_now(chain.chain_id, chain.chain_version)
            if any(state is not None and state.pending_ver for state in (here, there)):
                return
            verdict = judge(here, there)
            if verdict is Verdict.NONE:
                return
            target.difference_count += 1
            log.error(
                "target %d chunk %s: the copy of target %d differs (%s): %s, there %s",
                target.target_id,
                chunk_id,
                successor_id,
                verdict.value,
                here,
                there,
            )
            is_lost_here = here is not None and here.is_damaged
            if verdict is Verdict.SUCCESSOR_LACKS and not is_lost_here:
                assert here is not None, there
                await transfer(
                    context,
                    target,
                    chain.chain_id,
                    here,
                    chain_version=chain.chain_version,
                    deadline_s=deadline_s,
                )
            elif verdict is Verdict.WE_LACK:
                context.targets.put_offline(
                    target, Hold.EVICTED, f"{chunk_id}: the successor has more of it"
                )
            else:
                await evict(context, successor_id)


def _list_page(target: LocalTarget, after: bytes) -> list[ChunkState]:
    return target.disk.engine.list_chunks(target.target_id, after=after, limit=PAGE_CHUNK_COUNT)


def _last_of_full(page: list[ChunkState]) -> bytes | None:
    return page[-1].chunk_id.pack() if len(page) == PAGE_CHUNK_COUNT else None


def _up_to(states: Iterable[ChunkState], end: bytes | None) -> dict[ChunkId, ChunkState]:
    return {s.chunk_id: s for s in states if end is None or s.chunk_id.pack() <= end}
