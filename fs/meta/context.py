"""What an operation knows besides its transaction and its request.  No I/O here.

An operation may run several times (conflicts, unknown outcomes), so nothing in its context changes
while it runs, but for caches whose content makes no difference.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ..runtime.recycled import RecycledMemory
from ..schema.config import MetaSection
from ..schema.proto.common_pb2 import CallerPb, InodePb, LayoutPb
from .lineage import Lineages

SESSION_ID_BYTES = 32
CLIENT_ID_BYTES_MAX = 64
REQUEST_ID_BYTES = 16
GROUP_COUNT_MAX = 65_536

CLOCK_ERROR_S_MAX: Final = 60.0
"""Of the wall clocks of two services against each other.

What is further in the future than any delay and this was written by a clock that has been set back
since: nothing may wait until that time comes again.
"""


class Caller(NamedTuple):
    """On whose behalf an operation runs.

    One is made for each request, and a named tuple in a third of the time of a frozen dataclass.
    """

    uid: int
    gid: int
    groups: frozenset[int]
    """Supplementary groups and `gid`."""
    client_id: str = ""
    request_id: bytes = b""
    is_repeat: bool = False
    """An earlier try of the request may have been executed, or may still be."""

    @property
    def is_root(self) -> bool:
        """True when permission bits do not bind the caller."""
        return self.uid == 0


def caller_from_pb(message: CallerPb) -> Caller:
    """Return the caller of a request."""
    return Caller(
        message.uid,
        message.gid,
        frozenset((message.gid, *message.groups)),
        message.client_id,
        message.request_id,
        message.is_repeat,
    )


class LayoutSource(Protocol):
    """Turns a default layout into the layout of one new file."""

    def place(self, default: LayoutPb) -> LayoutPb:
        """Return a layout with table version, first chain and seed filled in.

        Raises:
            FsError: CHAIN_TABLE_UNKNOWN.
        """
        ...


@dataclass(frozen=True, slots=True)
class PreciseLength:
    """What the chains said about the length of a file, and for which state of it."""

    inode_id: int
    truncate_ver: int
    length: int
    used_bytes: int
    data_ver: int | None
    """As the file had when they were asked; None:
    whatever it is now, others report new content all the time.
    """


_NONE_KEPT: Final = RecycledMemory(0)


class OpContext(NamedTuple):
    """The circumstances of one operation; a named tuple for the same reason as `Caller`."""

    caller: Caller
    now_ns: int
    config: MetaSection
    layouts: LayoutSource
    lineages: Lineages
    new_inode_id: int = 0
    """For the inode the operation makes, if it makes one."""
    precise_length: PreciseLength | None = None
    tick: int = 0
    """See outcome_ticks.py; 0: not known."""
    memory: RecycledMemory = _NONE_KEPT
    """For payloads."""


class TruncationUnfinishedError(Exception):
    """The file's chunks must be cut first; then the operation is run again.

    Nothing was changed.
    """

    def __init__(self, inode: InodePb) -> None:
        super().__init__(f"inode {inode.inode_id:#x}")
        self.inode = inode


class StillInlineError(Exception):
    """The bytes of these files must be moved to chunks first; then the operation is run again.

    Nothing was changed.
    """

    def __init__(self, *inodes: InodePb) -> None:
        super().__init__(" ".join(f"inode {inode.inode_id:#x}" for inode in inodes))
        self.inodes = inodes


class LengthUnknownError(Exception):
    """The chains must be asked for the length first; then the operation is run again."""

    def __init__(self, inode: InodePb) -> None:
        super().__init__(f"inode {inode.inode_id:#x}")
        self.inode = inode


class NamesLeasedError(Exception):
    """A client may know what names of a directory lead to;
    when that is over, the operation is run again.  Nothing was changed.
    """

    def __init__(self, directory_id: int) -> None:
        super().__init__(f"directory {directory_id:#x}")
        self.directory_id = directory_id


class UsageFencedError(Exception):
    """A directory is about to be moved; when it has been, the operation is run again.

    Nothing was changed.
    """

    def __init__(self, directory_id: int) -> None:
        super().__init__(f"directory {directory_id:#x}")
        self.directory_id = directory_id
