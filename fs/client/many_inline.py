"""The bytes of many inline files, asked of the metadata service with few calls;
see specs/decisions/0154-many-inline-files.md.

Invariants:
    - No byte counts before it matches its checksum.
    - What a reply leaves out is asked for again, and alone where a call has brought nothing: so a
      service of an earlier release is asked file by file, and one file whose record is damaged
      keeps no other from being read.
    - At most CALLS_AT_ONCE calls are under way for one batch, each for REPLY_BYTES_MAX at most.

Does not: keep anything, or know what else its callers know of a file.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from xxhash import xxh3_64_intdigest

from ..runtime.ports import Buffer
from ..schema import services
from ..schema.ids import InodeId
from ..schema.proto import meta_pb2
from ..schema.proto.common_pb2 import CallerPb, InodePb
from ..schema.status import FsError, Status
from .api import MetaCaller
from .inline_bytes import brought_bytes
from .patience import same_error
from .side_by_side import each_or_error

REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of inline bytes that one call asks for."""
REPLY_COUNT_MAX: Final = 128
"""Files that one call asks for: with 16 KiB each the next call is answered
while this reply is received.
"""
CALLS_AT_ONCE: Final = 4
ALONE_AT_ONCE: Final = 64

T = TypeVar("T")


class Wanted(NamedTuple):
    """A file whose bytes are to be asked for."""

    inode_id: InodeId
    length: int
    """Of the file, as far as known."""


class Told(NamedTuple):
    """What meta has told of a file."""

    inode: InodePb
    data: Buffer | None
    """All bytes of it, maybe a part of much larger memory, which they keep;
    None: it is not inline.
    """


class Slot(Protocol):
    """What a reply about many files says of one of them."""

    @property
    def inode(self) -> InodePb:
        """As it was when the bytes were read."""
        ...

    @property
    def is_in_payload(self) -> bool:
        """All its bytes are in the payload."""
        ...

    @property
    def inline_checksum(self) -> int:
        """Their xxh3-64."""
        ...


Part = memoryview | FsError | None
"""What a payload has of one file; None: nothing."""


def parts_of(slots: Iterable[Slot], payload: memoryview) -> list[Part]:
    """Return what the payload of a reply about many files has of each,
    which is CHECKSUM_MISMATCH where that is not what was written.

    Raises:
        FsError: RPC_BAD_FRAME: the payload is not what the message says.
    """
    parts: list[Part] = []
    start = 0
    for slot in slots:
        if not slot.is_in_payload:
            parts.append(None)
            continue
        inode = slot.inode
        end = start + inode.file.length
        data = payload[start:end]
        start = end
        if xxh3_64_intdigest(data) == slot.inline_checksum:
            parts.append(data)
        else:
            what = f"inode {inode.inode_id:#x}: {len(data)} bytes from the metadata service"
            parts.append(FsError(Status.CHECKSUM_MISMATCH, what))
    if start != len(payload):
        what = f"{len(payload)} bytes of payload for {start} of {len(parts)} files"
        raise FsError(Status.RPC_BAD_FRAME, what)
    return parts


def cut(wanted: Sequence[Wanted], positions: Sequence[int]) -> list[list[int]]:
    """Return positions in batches of what one call may ask for."""
    batches: list[list[int]] = []
    room = 0
    for position in positions:
        length = wanted[position].length
        if not batches or length > room or len(batches[-1]) == REPLY_COUNT_MAX:
            batches.append([])
            room = REPLY_BYTES_MAX
        batches[-1].append(position)
        room -= length
    return batches


async def ask_many(
    meta: MetaCaller, caller: Callable[[], CallerPb], wanted: Sequence[Wanted]
) -> list[Told | FsError]:
    """Return for each file what meta tells of it now, or why nothing: STALE: it is gone;
    CHECKSUM_MISMATCH, and others of meta.
    """
    asking = _Asking(meta, caller, wanted)
    if len(wanted) == 1:
        await asking.ask_alone(0)
    left: Sequence[int] = range(len(wanted) if len(wanted) > 1 else 0)
    while left:
        calls = [partial(asking.ask, batch) for batch in cut(wanted, left)]
        left = [position for rest in await _at_once(calls, CALLS_AT_ONCE) for position in rest]
    return [asking.told[position] for position in range(len(wanted))]


async def _at_once(calls: Sequence[Callable[[], Awaitable[T]]], at_once_max: int) -> list[T]:
    """Run calls that raise nothing but bugs side by side; a single one without a task."""
    if len(calls) == 1:
        return [await calls[0]()]
    results = []
    for result in await each_or_error(calls, at_once_max=at_once_max):
        assert not isinstance(result, FsError), result
        results.append(result)
    return results


class _Asking:
    """The calls of one `ask_many`."""

    def __init__(
        self, meta: MetaCaller, caller: Callable[[], CallerPb], wanted: Sequence[Wanted]
    ) -> None:
        self._meta = meta
        self._caller = caller
        self._wanted = wanted
        self.told: dict[int, Told | FsError] = {}
        """By position."""

    async def ask(self, positions: Sequence[int]) -> Sequence[int]:
        """Ask for some files; return those that have to be asked for again."""
        request = meta_pb2.BatchGetAttrReq(
            caller=self._caller(),
            inode_ids=[self._wanted[position].inode_id for position in positions],
            payload_bytes_max=REPLY_BYTES_MAX,
        )
        try:
            reply, payload = await self._meta.fetch(services.META_BATCH_GET_ATTR, request)
            parts = parts_of(reply.inodes, payload)
            if len(parts) != len(positions):
                what = f"BatchGetAttr: {len(parts)} inodes for {len(positions)}"
                raise FsError(Status.RPC_BAD_FRAME, what)  # noqa: TRY301 - as if it had been so
        except FsError as error:
            for position in positions:
                self.told[position] = same_error(error)
            return ()
        left = [
            position
            for position, slot, part in zip(positions, reply.inodes, parts, strict=True)
            if not self._take(position, slot, part)
        ]
        if len(left) < len(positions):
            return left
        # Nothing has come: of an earlier release, or damaged, or of a service
        # that gives less than one file.
        await _at_once([partial(self.ask_alone, position) for position in left], ALONE_AT_ONCE)
        return ()

    def _take(self, position: int, slot: meta_pb2.InodeRsp, part: Part) -> bool:
        """Take in what a reply says of one file; False:
        it is inline, and its bytes have not come.
        """
        if isinstance(part, FsError):
            self.told[position] = part
            return True
        if part is None:
            if not slot.HasField("inode"):
                what = f"inode {self._wanted[position].inode_id:#x}"
                self.told[position] = FsError(Status.STALE, what)
                return True
            if slot.inode.file.is_inline:
                return False
        self.told[position] = Told(slot.inode, part)
        return True

    async def ask_alone(self, position: int) -> None:
        """Ask for one file, whose bytes come in the message."""
        inode_id = self._wanted[position].inode_id
        request = meta_pb2.GetAttrReq(caller=self._caller(), inode_id=inode_id, takes_inline=True)
        try:
            reply = await self._meta.call(services.META_GET_ATTR, request)
            data = brought_bytes(reply)
            if data is None and reply.inode.file.is_inline:
                what = f"inode {inode_id:#x}: none of its bytes from the metadata service"
                raise FsError(Status.CHECKSUM_MISMATCH, what)  # noqa: TRY301 - collected
            self.told[position] = Told(reply.inode, data)
        except FsError as error:
            self.told[position] = error.with_traceback(None)
