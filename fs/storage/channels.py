"""Exactly once: one table per target remembers the last update of every client channel.  Pure.

A client gives each update in flight a channel of its own, and a sequence number that grows with
each use of the channel.  A repeat carries the same number and request id and gets the first result.

Invariants:
    - A slot's sequence number never falls.
    - Successes are remembered, and refusals that end an update (`is_final`).  After such a refusal
      the client has told its user that nothing happened; a copy of an earlier try, held up on its
      way, must not make it happen after all.
    - Not remembered: a failure that is repeated, and an unknown outcome.  The latter is resolved by
      the chunk's pending version (write_path) before the table is asked again.
    - Only the head that made a refusal knows of it, in memory.  That is enough: a request names its
      chain version, so copies of it reach no later head and no later process.
    - Serving replicas record the tags of forwarded updates, and a resynced one is given its
      predecessor's results.  So a new head answers repeats.
    - The table is bounded: COUNT_MAX channels.  Then new ones are refused until others have been
      idle for long enough to be forgotten; those of a client whose session has ended are forgotten
      sooner.  What a client may still repeat is never dropped for lack of room.
    - The table lives in memory.  Results that changed something are also noted on disk with the
      commit (update_notes.py), from where the last serving target takes them when it comes back.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from ..schema.ids import ChunkId
from ..schema.status import FsError, Retry, Status

COUNT_MAX: Final = 50_000
"""About 30 MB; a client uses as many channels of a chain as it has updates
of it under way at once.
"""

IDLE_S: Final = 3600.0
IDLE_S_CROWDED: Final = 900.0
"""When half full.  An operation is under way for 10 minutes at the most;
after that nobody repeats anything.
"""

IDLE_S_ENDED: Final = 660.0
"""Of a client whose session has ended: it may live on behind a cut network,
and has given up by then.
"""


class Tag(msgspec.Struct, frozen=True):
    """Who asks, and which of his updates it is."""

    client_id: str
    channel_id: int
    sequence: int
    request_id: bytes


class UpdateResult(msgspec.Struct, frozen=True):
    """What the client was, or would have been, told."""

    update_ver: int
    chunk_length: int
    chunk_checksum: int
    chunk_id: ChunkId | None = None
    """None: it changed nothing, so nothing is lost when it is forgotten."""
    is_remove: bool = False


@dataclass(slots=True)
class _Slot:
    sequence: int
    request_id: bytes
    result: UpdateResult | None
    is_busy: bool
    used_s: float
    refusal: tuple[Status, str] | None = None
    """Never together with a result."""

    def take(self, tag: Tag, result: UpdateResult | None) -> None:
        """Stand for another update, or for what is known of it by now."""
        self.sequence, self.request_id = tag.sequence, tag.request_id
        self.result, self.refusal = result, None


def is_final(error: FsError) -> bool:
    """True if nothing has happened and the client will not repeat the update."""
    return error.definite and error.retry is Retry.NEVER


class ChannelTable:
    """The channels of all clients on one target."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, int], _Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def begin(self, tag: Tag, now_s: float) -> UpdateResult | None:
        """Return the known result of a repeat, else occupy the channel until `end`.

        Raises:
            FsError: DUPLICATE_UPDATE if the channel was used for a later update; CHANNEL_BUSY if
                an update of the channel is being executed; RPC_BAD_REQUEST if a number was used
                for two requests; RPC_OVERLOADED if there is no room for one more channel; what
                the update was refused with.
        """
        key = (tag.client_id, tag.channel_id)
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= COUNT_MAX:
                raise FsError(Status.RPC_OVERLOADED, f"{COUNT_MAX} client channels are in use")
            self._slots[key] = _Slot(tag.sequence, tag.request_id, None, True, now_s)
            return None
        if tag.sequence < slot.sequence:
            raise FsError(Status.DUPLICATE_UPDATE, f"{_name(tag)}, last was {slot.sequence}")
        if slot.is_busy:
            raise FsError(Status.CHANNEL_BUSY, _name(tag))
        slot.used_s = now_s
        if tag.sequence > slot.sequence:
            slot.take(tag, None)
        elif tag.request_id != slot.request_id:
            raise FsError(Status.RPC_BAD_REQUEST, f"{_name(tag)} was used for another request")
        elif slot.refusal is not None:
            raise FsError(*slot.refusal)
        elif slot.result is not None:
            return slot.result
        slot.is_busy = True
        return None

    def result_of(self, tag: Tag) -> UpdateResult | None:
        """Return the result if exactly this update is known to have been executed."""
        slot = self._slots.get((tag.client_id, tag.channel_id))
        if slot is None or slot.sequence != tag.sequence or slot.request_id != tag.request_id:
            return None
        return slot.result

    def refuse(self, tag: Tag, error: FsError) -> None:
        """Remember that the update which occupies its channel will not happen; `error` is final."""
        assert is_final(error), error
        slot = self._slots.get((tag.client_id, tag.channel_id))
        if slot is not None and slot.sequence == tag.sequence and slot.result is None:
            slot.refusal = (error.status, error.detail)

    def end(self, tag: Tag) -> None:
        """Free the channel that `begin` occupied."""
        slot = self._slots.get((tag.client_id, tag.channel_id))
        if slot is not None:
            slot.is_busy = False

    def record(self, tag: Tag, result: UpdateResult, now_s: float) -> None:
        """Remember a success, unless the channel has been used for a later update."""
        key = (tag.client_id, tag.channel_id)
        slot = self._slots.get(key)
        if slot is None:
            self._slots[key] = _Slot(tag.sequence, tag.request_id, result, False, now_s)
        elif tag.sequence == slot.sequence and slot.result and result.chunk_id is None:
            slot.used_s = now_s  # "in effect already" says less than what is known
        elif tag.sequence >= slot.sequence:
            slot.take(tag, result)
            slot.used_s = now_s

    def results(self, count_max: int) -> list[tuple[Tag, UpdateResult]]:
        """Return what is known of the most recently used channels."""
        known = [(key, slot) for key, slot in self._slots.items() if slot.result is not None]
        if len(known) > count_max:
            known = sorted(known, key=lambda item: item[1].used_s)[-count_max:]
        return [
            (Tag(*key, slot.sequence, slot.request_id), slot.result)
            for key, slot in known
            if slot.result is not None
        ]

    def expire(
        self, now_s: float, live_clients: Collection[str] | None = None
    ) -> list[tuple[str, int]]:
        """Forget channels that nobody will repeat anything on; return their clients and numbers.

        Args:
            now_s: the present.
            live_clients: those that have a session; None: not known.
        """
        idle_s = IDLE_S_CROWDED if len(self._slots) > COUNT_MAX // 2 else IDLE_S

        def bound_s(client_id: str) -> float:
            has_ended = live_clients is not None and client_id not in live_clients
            return IDLE_S_ENDED if has_ended else idle_s

        old = [
            key
            for key, slot in self._slots.items()
            if not slot.is_busy and now_s - slot.used_s > bound_s(key[0])
        ]
        for key in old:
            del self._slots[key]
        return old


def _name(tag: Tag) -> str:
    return f"client {tag.client_id} channel {tag.channel_id} sequence {tag.sequence}"
