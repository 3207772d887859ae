"""Notes on our disks of the chain versions under which our targets serve,
for the manager of a restored cluster.

Invariants:
    - An update is acknowledged by a serving target only after its disk says, durably,
      who is written with it, as far as anybody has gone since (`is_noted`;
      write_path.py and forward.py wait for it).
    - A target is brought up to date only by one whose disk says that it is joining (resync.py).
    - What was noted under chains of another store stays: the manager has
      to see it (fs/mgmtd/births.py).

Source: decisions 0059 and 0140; read by fs/mgmtd/restored.py and births.py.
"""

import logging
from typing import Final

import trio

from ..chunkengine.api import ChunkEngine, Note
from ..schema.ids import TargetId
from ..schema.proto.common_pb2 import StandingPb
from ..schema.routing import PublicState
from ..schema.standing import Standing, standing_from_pb, standing_to_pb
from ..schema.status import FsError, Status
from .target import LocalTarget
from .targets import Place, Targets

log = logging.getLogger(__name__)

STANDING_KEY: Final = b"w"
"""Of the note."""
RETRY_S: Final = 1.0


def load_standing(engine: ChunkEngine, target_id: TargetId) -> Standing | None:
    """Return what a target's disk remembers; blocking."""
    for note in engine.notes(target_id):
        if note.key == STANDING_KEY:
            return standing_from_pb(StandingPb.FromString(note.value))
    return None


def note_standing(engine: ChunkEngine, target_id: TargetId, standing: Standing) -> None:
    """Write it, durably; blocking."""
    packed = standing_to_pb(standing).SerializeToString(deterministic=True)
    engine.put_notes(target_id, [Note(STANDING_KEY, packed)], is_durable=True)


def is_noted(place: Place) -> bool:
    """Return whether an update may be acknowledged here, as far as the note goes."""
    noted, chain = place.target.standing, place.chain
    if noted is None:
        return place.public_state is not PublicState.SERVING
    if place.public_state is not PublicState.SERVING:
        return True
    if (noted.chain_id, noted.generation) != (chain.chain_id, chain.generation):
        return False
    if noted.is_of_other_store(chain.birth_ns):
        return False
    return noted.chain_version == chain.chain_version or all(
        t in chain.writable for t in noted.heirs
    )


async def wait_noted(targets: Targets, deadline_s: float) -> None:
    """Wait until some standing has been noted, or places have changed.

    Raises:
        FsError: OUTCOME_UNKNOWN at the deadline.
    """
    noted, looked = targets.noted, targets.looked
    with trio.move_on_at(deadline_s) as scope:
        async with trio.open_nursery() as nursery:

            async def wait(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait, noted)
            nursery.start_soon(wait, looked)
    if scope.cancelled_caught:
        raise FsError(Status.OUTCOME_UNKNOWN, "who serves the chain could not be noted in time")


def _may_be_noted(place: Place) -> bool:
    return place.public_state is PublicState.SERVING and not place.is_of_other_store


async def run(targets: Targets) -> None:
    """Note every change until cancelled."""
    async with trio.open_nursery() as nursery:
        writing: set[LocalTarget] = set()
        while True:
            wanted = targets.looked
            for place in targets.places():
                target = place.target
                is_wanted = _may_be_noted(place) and not target.disk.is_failed
                if is_wanted and target not in writing and target.standing != place.chain.standing:
                    writing.add(target)
                    nursery.start_soon(_write, targets, target, writing)
            await wanted.wait()


async def _write(targets: Targets, target: LocalTarget, writing: set[LocalTarget]) -> None:
    """Note the newest version of one target's chain, and again while that changes."""
    try:
        while True:
            place = next((p for p in targets.places() if p.target is target), None)
            if place is None or not _may_be_noted(place):
                return
            standing = place.chain.standing
            if target.standing == standing:
                return
            await target.disk.run(note_standing, target.disk.engine, target.target_id, standing)
            target.standing = standing
            targets.noted.set()
            targets.noted = trio.Event()
    except FsError as error:
        log.warning("target %d: its standing is not noted: %s", target.target_id, error)
        await trio.sleep(RETRY_S)
    finally:
        writing.discard(target)
        targets.looked.set()
        targets.looked = trio.Event()
