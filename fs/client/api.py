"""The two halves of the native client, as the vfs and everything above use them.  No I/O here.

Both retry by status, follow routing changes and fail over by themselves; what they raise is final.
Concurrency: any number of tasks may use one client.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from ..rpc.api import UnderWay
from ..runtime.ports import Buffer
from ..schema.layout import FileRef
from ..schema.method import Method, ReqT, RspT
from ..schema.status import FsError
from .file_read import FileRead
from .read_table import ReadTable


class MetaCaller(Protocol):
    """The metadata side."""

    @property
    def client_id(self) -> str:
        """This client's id; put into every request's caller."""
        ...

    async def call(
        self, method: Method[ReqT, RspT], request: ReqT, *, timeout_s: float | None = None
    ) -> RspT:
        """Call any meta service; sets `caller.client_id` and, when empty,
        a fresh `caller.request_id`.

        Retries under the same request id, so every operation happens exactly once.

        Raises:
            FsError: what the operation says, or the last transport status after the retry time.
        """
        ...

    async def fetch(self, method: Method[ReqT, RspT], request: ReqT) -> tuple[RspT, memoryview]:
        """As `call`, of a method whose replies may have a payload, which is returned, too,
        in memory of its own.

        No byte of it may be used for anything before it matches a checksum of the message.
        """
        ...


@runtime_checkable
class BeginsCalls(Protocol):
    """A MetaCaller that can also begin a call and have its end told, which takes no task."""

    def begin(
        self, method: Method[ReqT, RspT], request: ReqT, on_end: "OnMetaReply[RspT]"
    ) -> UnderWay | None:
        """Ask a meta service once, for what changes nothing; see `fs.rpc.api.Channel.begin`.

        Where `on_end` gets an error that another try may cure, `MetaCaller.call` is
        to be used, which tries again.
        """
        ...


@runtime_checkable
class BeginsChanges(Protocol):
    """A MetaCaller that can also begin what changes something, and go on with it."""

    def begin_change(
        self, method: Method[ReqT, RspT], request: ReqT, on_end: "OnMetaReply[RspT]"
    ) -> bool:
        """Ask a meta service once, under a request id that is set here;
        False: nothing has been asked.

        Where `on_end` gets an error that another try may cure, `call_again` has to
        find out what has become of it.
        """
        ...

    async def call_again(
        self, method: Method[ReqT, RspT], request: ReqT, error: FsError, began_s: float
    ) -> RspT:
        """Go on as `MetaCaller.call` with a request of `begin_change`,
        begun at `began_s` (trio time), that has ended with `error`.

        Raises:
            FsError: as `MetaCaller.call`; `error` itself, if it is final.
        """
        ...


OnMetaReply = Callable[[RspT | None, FsError | None], None]
"""Called once, with the reply or with why there is none; neither waits nor raises."""


class ChunkStore(Protocol):
    """The storage side."""

    async def read(self, reads: Sequence[FileRead], *, is_relaxed: bool = False) -> None:
        """Fill all buffers; batched by node, failing over between replicas.

        Raises:
            FsError: CHUNK_DAMAGED or CHECKSUM_MISMATCH when no replica has good bytes;
                CHAIN_UNAVAILABLE, IO_ERROR or RPC_TIMEOUT after the retry time.
                Buffers are then partly filled.
        """
        ...

    def begin_read(
        self,
        table: ReadTable,
        on_end: Callable[[bool], None],
        *,
        is_relaxed: bool = False,
        bytes_max: int = 4096,
    ) -> UnderWay | None:
        """Begin a few small reads of one node, if nothing has to be waited for before they
        are on their way.

        Args:
            table: as for `read`.
            on_end: called once, later, in whatever task: True: all buffers are filled; False: they
                hold anything, and `read` is to be asked.  It neither waits nor raises.
            is_relaxed: as for `read`.
            bytes_max: nothing is begun for more than so many; see `Channel.begin`.

        Returns:
            What can give the reads up: no buffer is touched after that, and `on_end` is told
            so.  None: nothing was begun.
        """
        ...

    async def warm(self, reads: Sequence[FileRead]) -> tuple[int, list[FsError]]:
        """Have every serving replica read what `reads` names into its page cache;
        the buffers only say how much.

        Nothing is tried twice: it is a favour.  Returns the bytes that were read,
        replicas counted, and what failed.
        """
        ...

    async def write(
        self, file: FileRef, offset: int, data: Buffer, *, is_durable: bool = False
    ) -> bool:
        """Write bytes, replicated to every serving target; not atomic across chunks.

        The chunks must lie within the file's dyn_stripe.  `data` must stay unchanged until return.

        Args:
            file: where.
            offset: in bytes.
            data: of at least one byte.
            is_durable: have these bytes flushed on their way, which is
                cheaper than a `sync` behind.

        Returns:
            Whether these bytes would survive a power loss.  False is no
            error: then, it takes a `sync`.

        Raises:
            FsError: NO_SPACE and others, when a part could not be written within the retry time.
        """
        ...

    async def write_ranges(
        self,
        file: FileRef,
        ranges: Sequence[tuple[int, Sequence[Buffer]]],
        *,
        is_durable: bool = False,
    ) -> bool:
        """Write at several places of one chunk, as one update if its head can do that,
        else one after the other.

        Args:
            file: where, as for `write`.
            ranges: offsets in the file, growing, each with the bytes that go there as
                buffers one after the other, which do not reach the next offset; not
                empty, at most 1,024 of them.
            is_durable: as for `write`.

        Returns and raises as `write`.
        """
        ...

    async def empty_chunks(self, file: FileRef, first_index: int, end_index: int) -> None:
        """Make the chunks [first_index, end_index) read as zeros and take no space;
        each exactly once.

        Raises:
            FsError: as `write`; some chunks may be empty then.
        """
        ...

    async def sync(self, files: Iterable[FileRef]) -> None:
        """Return when all acknowledged writes to the files' chains would survive a power loss.

        Raises:
            FsError: WRITES_LOST when all replicas of a chain lost power since this client wrote to
                it without syncing: bytes may be gone.  Told once per file, to the first sync that
                finds it; others as `write`.
        """
        ...

    async def remove_files(self, files: Sequence[FileRef]) -> None:
        """See ChunkPort in fs/meta/ports.py."""
        ...

    async def truncate_file(
        self,
        file: FileRef,
        length: int,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """See ChunkPort in fs/meta/ports.py."""
        ...

    async def fill_file(
        self,
        file: FileRef,
        data: Buffer,
        truncate_ver: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """See ChunkPort in fs/meta/ports.py."""
        ...

    async def file_length(self, file: FileRef) -> tuple[int, int]:
        """See ChunkPort in fs/meta/ports.py."""
        ...

    async def next_data(self, file: FileRef, first_index: int) -> int | None:
        """Return an index such that no chunk from `first_index` on and before it holds a byte,
        or None: none does.

        Mostly that of the first chunk that holds one.  Raises what `read` raises
        when a chain cannot be asked.
        """
        ...

    async def space(self) -> tuple[int, int]:
        """See ChunkPort in fs/meta/ports.py."""
        ...


@runtime_checkable
class BeginsWrites(Protocol):
    """A ChunkStore that can also begin a durable write and have its end told,
    which takes no task.
    """

    def begin_write(self, file: FileRef, offset: int, data: Buffer, on_end: "OnWritten") -> bool:
        """Send bytes of one chunk on their way, to be durable there,
        if nothing has to be waited for; False: nothing is done.

        Args:
            file: where, as for `ChunkStore.write`.
            offset: in bytes.
            data: must stay unchanged until the write has ended.
            on_end: called once, later, in whatever task.

        Raises nothing: whatever is wrong, the usual way meets it again.
        """
        ...


GoOn = Callable[[], Awaitable[bool]]
"""Tries a write that was begun again, as the same update, until it is done; as `ChunkStore.write`.

To be awaited once.
"""

OnWritten = Callable[[bool, GoOn | None], None]
"""Called with whether the bytes would survive a power loss, and None if they have arrived;
else with what has to be awaited for that.  It neither waits nor raises.
"""
