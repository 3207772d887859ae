"""Making the pending version of one update on our disk, step 8 of write_path.py,
and what becomes of one that cannot be made.

Concurrency: the caller holds the chunk's lock on our target.
"""

from functools import partial

from msgspec.structs import replace

from ..chunkengine.api import ChunkState, CommitsAtOnce, Note
from ..schema.ids import ChunkId
from ..schema.routing import PublicState
from ..schema.status import FsError, Status
from .context import StorageContext
from .damage import note_damage
from .forward import result_of
from .local_state import Hold
from .replica import Action, Decision, UpdateType
from .target import LocalTarget
from .targets import Place
from .update_notes import note_of
from .update_request import Update


def check_new_version(
    context: StorageContext, place: Place, update: Update, state: ChunkState | None
) -> None:
    """Check what depends on the chunk that is there;
    raises FsError(INVALID_ARGUMENT, NO_SPACE or TARGET_OFFLINE).
    """
    if update.kind is UpdateType.REMOVE:
        return
    is_syncing = place.public_state is PublicState.SYNCING
    if state is not None and state.commit_ver and not is_syncing:
        size = state.chunk_size_bytes
        if update.request.chunk_size_bytes != size:
            raise FsError(Status.INVALID_ARGUMENT, f"{state.chunk_id}: its chunk size is {size}")
    disk = place.target.disk
    if state is None and disk.free_bytes < context.section.reject_create_free_bytes_min:
        if is_syncing:
            context.targets.put_offline(place.target, Hold.FULL, f"{disk.free_bytes} bytes free")
            raise FsError(Status.TARGET_OFFLINE, f"disk {disk.index} is full")
        raise FsError(Status.NO_SPACE, f"disk {disk.path}: {disk.free_bytes} bytes free")


async def prepare(
    place: Place,
    update: Update,
    decision: Decision,
    state: ChunkState | None,
    *,
    commits: bool = False,
) -> ChunkState:
    """Make the pending version on our disk; with `commits`, commit it in the same blocking call,
    and written bytes in the same batch.
    """
    if decision.action is Action.RESUME:
        assert state is not None
        return state
    disk = place.target.disk
    commit_at = update.request.commit_chain_version or place.chain.chain_version
    work = partial(
        _prepare_blocking,
        place.target,
        update,
        decision.version,
        is_syncing=place.public_state is PublicState.SYNCING,
        commit_at=commit_at if commits else 0,
    )
    if update.kind is UpdateType.REMOVE:
        # A metadata batch, as a commit is, but on a disk that is short of space.
        if disk.writes_on_loop and disk.run_inline(disk.engine.removes_at_once):
            return disk.run_inline(work)
        return await disk.run(work)
    byte_count = len(update.payload)
    disk.note_written(byte_count)
    place.target.written_bytes += byte_count
    if byte_count and not update.ranges and disk.may_write_at_once(byte_count):
        about = place.target.target_id, update.chunk_id, update.request.offset, byte_count
        if disk.run_inline(disk.engine.takes_at_once, *about):
            return disk.write_at_once(byte_count, work)
    return await disk.write_timed(byte_count, work)


def _prepare_blocking(
    target: LocalTarget, update: Update, version: int, *, is_syncing: bool, commit_at: int
) -> ChunkState:
    """Return the state with the pending version,
    also if it was committed at once (`commit_at` not 0).
    """
    engine, target_id, chunk_id = target.disk.engine, target.target_id, update.chunk_id
    request = update.request
    if request.is_damaged:
        return _put_damaged(target, update, version)

    def note(state: ChunkState) -> Note | None:
        return note_of(update.tag, result_of(state)) if update.tag is not None else None

    if update.kind is UpdateType.WRITE:
        return engine.prepare_write(
            target_id,
            chunk_id,
            version=version,
            chunk_size_bytes=request.chunk_size_bytes,
            offset=request.offset,
            data=update.payload,
            is_full_replace=update.is_whole,
            tag=update.packed_tag,
            commits=CommitsAtOnce(commit_at, note) if commit_at else None,
            ranges=update.ranges,
        )
    if update.kind is UpdateType.REMOVE:
        if is_syncing:
            engine.drop_pending(target_id, chunk_id)
        if commit_at and update.tag is None:
            return engine.remove(target_id, chunk_id, version=version)
        state = engine.prepare_remove(target_id, chunk_id, version=version, tag=update.packed_tag)
    else:
        state = engine.prepare_truncate(
            target_id,
            chunk_id,
            version=version,
            chunk_size_bytes=request.chunk_size_bytes,
            length=request.length,
            tag=update.packed_tag,
        )
    if commit_at:
        engine.commit(
            target_id,
            chunk_id,
            version=version,
            chain_version=commit_at,
            note=note(state),
        )
    return state


def _put_damaged(target: LocalTarget, update: Update, version: int) -> ChunkState:
    """Take a version without bytes; returned as if it had been prepared."""
    request = update.request
    state = target.disk.engine.put_damaged(
        target.target_id,
        update.chunk_id,
        version=version,
        chain_version=request.commit_chain_version,
        length=request.length,
        checksum=request.chunk_checksum,
        chunk_size_bytes=request.chunk_size_bytes,
    )
    return replace(
        state,
        pending_ver=version,
        pending_length=state.length,
        pending_checksum=state.checksum,
    )


def refusal(
    context: StorageContext,
    place: Place,
    chunk_id: ChunkId,
    state: ChunkState | None,
    error: FsError,
) -> FsError:
    """Clean up after an update that could not be prepared here,
    so that nobody below has heard of it.

    Returns:
        What the sender is told.
    """
    target = place.target
    if place.public_state is PublicState.SYNCING:
        hold = Hold.FULL if error.status is Status.NO_SPACE else Hold.EVICTED
        context.targets.put_offline(target, hold, f"{chunk_id}: {error}")
        return FsError(Status.TARGET_OFFLINE, str(error))
    if state is not None and state.pending_ver:  # an older one, which could still be somewhere
        return FsError(Status.OUTCOME_UNKNOWN, str(error))
    target.unsettled.pop(chunk_id, None)
    if error.status is Status.CHECKSUM_MISMATCH:
        note_damage(target, chunk_id, str(error))
        if place.chain.serving == (target.target_id,):
            return FsError(Status.CHUNK_DAMAGED, str(error))
    return error
