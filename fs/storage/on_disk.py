"""What a target does with its disk as a whole when its service begins or ends;
blocking, called off the event loop.

Nobody is inside the target meanwhile: it neither serves nor is written.
"""

import logging
from collections.abc import Sequence
from typing import Final

from ..chunkengine.api import DISK_LOSS_KEY, ChunkEngine, Note
from ..schema.ids import TargetId
from .forward import result_of
from .local_state import Hold
from .target import LocalTarget
from .update_notes import UpdateNote, is_borne_out, note_of, read_note, unpack_tag

log = logging.getLogger(__name__)

PAGE_CHUNK_COUNT: Final = 1024

OFFLINE_KEY: Final = b"o"
"""Of the note that an operator wants the target offline."""

FLUSHED_KEY: Final = b"f"
"""Of the note with the incarnation of the process that stopped
after it had made everything durable.
"""


def keep_offline_if_asked(target: LocalTarget) -> None:
    """Before the service begins: a target that was put offline by an operator stays so."""
    engine = target.disk.engine
    if any(note.key == OFFLINE_KEY for note in engine.notes(target.target_id)):
        target.hold = Hold.REQUESTED
        target.trouble = f"{Hold.REQUESTED.value}: before this process was started"


def note_offline(target: LocalTarget, *, is_wanted: bool) -> None:
    """Remember durably whether an operator wants the target offline."""
    engine, target_id = target.disk.engine, target.target_id
    if is_wanted:
        engine.put_notes(target_id, [Note(OFFLINE_KEY, b"")])
    else:
        engine.forget_notes(target_id, [OFFLINE_KEY])
    engine.sync()


def note_flushed(engine: ChunkEngine, target_ids: Sequence[TargetId], incarnation: str) -> None:
    """Make everything durable, then note who did so; nothing is acknowledged any more.

    The note is on the disk only if all that it speaks of is.  It is never taken away: it says
    something only as long as that process is the last one that the manager has heard, since any
    later one has to be heard before it may acknowledge anything.
    """
    engine.sync()
    for target_id in target_ids:
        engine.put_notes(target_id, [Note(FLUSHED_KEY, incarnation.encode())])
    engine.sync()


def flushed_by(target: LocalTarget) -> str:
    """Return the incarnation of the last process that stopped in order here, empty if none did."""
    notes = target.disk.engine.notes(target.target_id)
    return next((n.value.decode(errors="replace") for n in notes if n.key == FLUSHED_KEY), "")


def disk_losses(target: LocalTarget) -> int:
    """Return how often the target's disk, when it was opened, lacked what had been committed."""
    notes = target.disk.engine.notes(target.target_id)
    return next((int.from_bytes(n.value, "big") for n in notes if n.key == DISK_LOSS_KEY), 0)


def commit_pending(target: LocalTarget, chain_version: int) -> int:
    """Commit every pending version of a target; return how many."""
    engine, after, count = target.disk.engine, b"", 0
    while True:
        page = engine.list_chunks(target.target_id, after=after, limit=PAGE_CHUNK_COUNT)
        for state in page:
            if state.pending_ver:
                tag = unpack_tag(state.pending_tag) if state.pending_tag else None
                engine.commit(
                    target.target_id,
                    state.chunk_id,
                    version=state.pending_ver,
                    chain_version=chain_version,
                    note=note_of(tag, result_of(state)) if tag is not None else None,
                )
                count += 1
        if len(page) < PAGE_CHUNK_COUNT:
            return count
        after = page[-1].chunk_id.pack()


def load_updates(target: LocalTarget) -> Sequence[UpdateNote]:
    """Return the clients' updates that the disk knows to be executed;
    forgets what a power loss took back.
    """
    engine, known, void = target.disk.engine, list[UpdateNote](), list[bytes]()
    for stored in engine.notes(target.target_id):
        note = read_note(stored)
        if note is None:
            continue
        chunk_id = note.result.chunk_id
        assert chunk_id is not None, note
        if is_borne_out(note.result, engine.get(target.target_id, chunk_id)):
            known.append(note)
        else:
            void.append(stored.key)
    if void:
        log.info(
            "target %d: forgets %d updates of clients: their chunks were removed since, or lost "
            "with the power",
            target.target_id,
            len(void),
        )
        engine.forget_notes(target.target_id, void)
    return known


def forget_updates(target: LocalTarget) -> None:
    """Forget all that the disk knows of clients' updates."""
    engine = target.disk.engine
    keys = [stored.key for stored in engine.notes(target.target_id) if read_note(stored)]
    if keys:
        engine.forget_notes(target.target_id, keys)
