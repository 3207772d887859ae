"""When a READ may be answered with fewer bytes than the kernel takes the file to have.

Linux makes the file it shows as short as such an answer, unless its attributes have been changed
since it sent the READ: by any reply that tells them, by a notice, by another such answer.  Then it
leaves the size as it is, fills the page with zeros and shows them.  So (specs/decisions/0138):
    - Notices wait for READs that are being done.
    - Short answers are given in the order of the file.
    - A short answer that may be overlooked waits a little, for the kernel to act on a
      reply that tells the new length.

It cannot wait for ever: nobody may ask, and a READ may itself wait for what waits for the page of
this one.  And one thing nobody can tell: whether the kernel sent a READ before or after it acted on
what this mount had told it just before that READ arrived.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from ...schema.ids import InodeId
from .ports import KernelCache

ACTED_ON_S: Final = 0.005
"""From when the kernel is told something until the thread that waited
for it has most likely run.
"""
QUIET_S: Final = 1.0
"""Neither a notice nor a short answer waits longer for reads."""
HELD_S: Final = 0.1
"""A short answer waits no longer for a reply."""
LOOK_AGAIN_S: Final = 0.001


@dataclass(slots=True)
class ToldLengths:
    """What length the kernel may take a file to have,
    and what may make it overlook a short answer.
    """

    touched_at: int = 0
    """The mount's count of such changes, after the last one of this file."""
    read_count: int = 0
    """READs that are being done together with others, wherever they begin."""
    held: list[int] = field(default_factory=list)
    """Where the others begin that have arrived:
    that are being done, are to be done again, or whose answers wait.
    """
    waiting_count: int = 0
    """Notices that wait for reads."""
    notice_count: int = 0
    """Notices that are being sent."""
    unstable_until_s: float = 0.0
    """Until then it may not have acted yet on the answer to a truncation."""
    touched_s: float = -math.inf
    """When that was, by the clock of the mount."""
    told_length: int = -1
    """By the last reply that told it, or a larger one that the kernel may have kept; -1: none has.
    A notice makes the kernel ask again, and leaves it with this size until it is answered."""
    longer: int = -1
    longer_until_s: float = 0.0
    """Until then the kernel may not have acted yet on being told a smaller length than this one."""

    def may_overlook(self, asked_s: float) -> bool:
        """Return whether the kernel may take nothing from a reply that tells attributes,
        and that it asked for by `asked_s` at the latest.

        So it is where it has been told something else since.  Nor can anybody tell whether it had
        acted already on what it was told a moment before.
        """
        return asked_s < self.touched_s + ACTED_ON_S

    def note_told(self, length: int, now_s: float, *, may_be_overlooked: bool = False) -> None:
        """The kernel is told a length."""
        if self.told_length > length:
            if may_be_overlooked:
                return
            self.note_shorter(self.told_length, now_s)
        self.told_length = length

    def note_shorter(self, length: int, now_s: float) -> None:
        """A file has become shorter than `length`, which the kernel was told before."""
        self.longer = max(length, self.longer) if now_s < self.longer_until_s else length
        self.longer_until_s = now_s + ACTED_ON_S

    def may_answer(self, mark: int, offset: int, now_s: float) -> bool:
        """Return whether the kernel surely goes by a short answer to a READ from `offset` on,
        which arrived at `mark`.

        Such an answer changes the size itself, and makes the kernel overlook those to
        READs that it sent before: so what begins first in the file goes first, and READs
        that are being done are waited for.
        """
        if self._is_behind(offset) or self.notice_count or now_s < self.unstable_until_s:
            return False
        # Once a notice is sent it is too late.
        return self.waiting_count > 0 or self.touched_at <= mark

    def awaits_reads(self, offset: int) -> bool:
        """Return whether READs of what lies before `offset` are being done,
        which an answer now might make the kernel overlook.

        Also one that it seems to overlook itself: of a reply that told attributes it may have taken
        nothing, as it asked for that too early.
        """
        return self._is_behind(offset) and not self.notice_count

    def _is_behind(self, offset: int) -> bool:
        return self.read_count > 0 or offset > min(self.held, default=offset)

    def acts_in_s(self, now_s: float) -> float:
        """Return after how many seconds the kernel has most likely acted
        on what it was told last.
        """
        return max(0.0, self.unstable_until_s - now_s, self.longer_until_s - now_s)

    def may_show_longer(self, length: int, now_s: float) -> bool:
        """Return whether the kernel may take the file for longer."""
        return self.told_length > length or (now_s < self.longer_until_s and self.longer > length)

    def note_truncated(self, before: int, length: int, now_s: float) -> None:
        """A truncation through this mount is answered:
        until the kernel has acted on that it counts no short answer.
        """
        self.note_told(max(before, self.told_length), now_s)
        self.note_told(length, now_s)
        self.unstable_until_s = now_s + ACTED_ON_S


@dataclass(slots=True)
class Patience:
    """How long one short answer, which the kernel may overlook, has waited."""

    _begun_s: float = -1.0
    """-1: not yet."""
    _since_s: float = 0.0
    _length: int = -1
    """By which it was read last."""

    def has_ended(self, told: ToldLengths, offset: int, length: int, now_s: float) -> bool:
        """Return whether the answer to a READ from `offset` on is to be given whatever comes of it.

        Where the file has been cut once more, by `length` says, the kernel is told of that again.
        """
        if self._begun_s < 0:
            self._begun_s = now_s
        if length != self._length:
            self._length, self._since_s = length, now_s
        if self.waits_for_reads(told, offset, now_s):
            return False
        return now_s >= min(self._since_s + HELD_S, self._begun_s + QUIET_S)

    def waits_for_reads(self, told: ToldLengths, offset: int, now_s: float) -> bool:
        """Return whether it waits for other READs:
        until they have ended nothing is gained by reading once more.
        """
        if now_s >= self._begun_s + QUIET_S or not told.awaits_reads(offset):
            return False
        self._since_s = now_s
        return True


Touch = Callable[[ToldLengths], None]


class NotedKernel:
    """The caches of the kernel, with notices counted:
    they change attributes at some time while they are being sent.
    """

    def __init__(
        self, kernel: KernelCache, known: Mapping[InodeId, ToldLengths], touch: Touch
    ) -> None:
        """`touch` counts a change of what is `known`."""
        self._kernel = kernel
        self._known = known
        self._touch = touch

    async def invalidate_attributes(self, inode_id: InodeId) -> None:
        """See KernelCache."""
        await self._wait_for_reads(inode_id)
        with self._noted(inode_id):
            await self._kernel.invalidate_attributes(inode_id)

    async def invalidate_content(self, inode_id: InodeId, start: int = 0, length: int = 0) -> None:
        """See KernelCache."""
        await self._wait_for_reads(inode_id)
        with self._noted(inode_id):
            await self._kernel.invalidate_content(inode_id, start, length)

    async def _wait_for_reads(self, inode_id: InodeId) -> None:
        """Let READs be answered first, so that the kernel goes by what is short among them."""
        told = self._known.get(inode_id)
        if told is None or not (told.read_count or told.held):
            return
        until_s = trio.current_time() + QUIET_S
        told.waiting_count += 1
        try:
            while (told.read_count or told.held) and trio.current_time() < until_s:  # noqa: ASYNC110
                await trio.sleep(LOOK_AGAIN_S)
        finally:
            told.waiting_count -= 1

    @contextmanager
    def _noted(self, inode_id: InodeId) -> Iterator[None]:
        told = self._known.get(inode_id)
        if told is None:
            yield
            return
        told.notice_count += 1
        try:
            yield
        finally:
            told.notice_count -= 1
            self._touch(told)
