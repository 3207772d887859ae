"""Remote calls as their users see them: methods, calls, replies, channels.  No I/O here.

A method is declared once, in a .proto file; `fs/schema/services.py` (generated) holds one typed
`Method` each. Bulk bytes travel beside the message as a raw payload and are never copied into one.

Concurrency: trio.  A `Channel` may be used by many tasks at once; calls do not wait for each
other's replies.  Cancelling a call (scope or deadline) leaves the channel usable.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, Generic, NamedTuple, Protocol

from ..runtime.ports import Buffer, FileSource
from ..schema.method import Method, ReqT, RspT
from ..schema.status import FsError, Status
from ..schema.user import User

_NO_BYTES: Final = memoryview(b"")


class ConnectionRefused(FsError):  # noqa: N818 - named for what it proves
    """RPC_CONNECT_FAILED because the host itself said that nobody listens at the address.

    Proof that the process which listened there has ended; silence would prove nothing.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(Status.RPC_CONNECT_FAILED, detail)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks: sent by both sides in the handshake."""

    cluster_id: str
    node_id: int = 0
    """0 for clients."""
    incarnation: str = ""
    client_id: str = ""
    release: str = ""


@dataclass(slots=True)
class Call:
    """The circumstances of one request, for the method that serves it."""

    peer: Identity
    request_id: int
    """Unique within its connection; appears in the logs of both sides."""
    deadline_s: float
    """trio time; the server cancels the method when it passes."""
    payload: memoryview = field(default_factory=lambda: memoryview(b""))
    """Owned by the transport: valid until the method returns."""
    would_block: bool = False
    """Its quick form has found out that it has to wait."""
    tell: "Callable[[Any], bool] | None" = None
    """Sends a small reply before the method returns, if nothing has to be waited
    for; False: nothing is done.  What the method returns, or raises, is not sent
    then.  Of requests with a payload.
    """
    takes_ranges: "Callable[[int, int, int], bool] | None" = None
    """Tells whether the payload of a reply (bytes, count of ranges,
    bytes of its message) may be ranges of files now; None: it may not.
    """
    takes_direct: bool = False
    """Where it may be: also ranges that the disk has yet to read (`Reply.is_direct`)."""
    answer: "Callable[[Any], None] | None" = None
    """Where the method is plain and returns `LATER`: to be called once, later, on the event loop,
    with what the method would have returned or raised, also after the deadline, and after the
    connection has ended.  It does not raise.  A coroutine is run by a task, or, where there may be
    none any more, closed before it begins: it has to hold nothing by then.
    """


class Later(Enum):
    """What a plain method, or its packed form,
    returns when it has begun something and answers when that has ended, without a task.
    """

    LATER = 1


LATER: Final = Later.LATER


class FileRange(NamedTuple):
    """Bytes of a regular file that is open here."""

    source: FileSource
    offset: int
    length: int


@dataclass(slots=True)
class Reply(Generic[RspT]):
    """What a serving method returns when raw bytes go with its message."""

    message: RspT | bytes
    """Or as it is on the wire, where making an object of it costs more than all else."""
    payload: Sequence[Buffer] = ()
    """Sent from these buffers without a copy."""
    release: Callable[[], None] | None = None
    """Called once the payload has been sent or the connection has died."""
    ranges: Sequence[FileRange] = ()
    """In place of a payload, where `Call.takes_ranges` has said so with no checkpoint
    since: where it lies, unread.  All stays as it is until `release` is called, and
    the message has checksums of it.
    """
    is_direct: bool = False
    """The ranges are to be read past the page cache, by descriptors that do so,
    and the disk has to be waited for; where `Call.takes_direct`.
    """


@dataclass(slots=True)
class Received(Generic[RspT]):
    """What a caller gets."""

    message: RspT
    payload_bytes: int = 0
    payload: memoryview = _NO_BYTES
    """The payload, unless the caller gave its own buffers by `into`."""


Into = Callable[[Any, int], Sequence[memoryview]]
"""Called with (reply message, payload bytes) before the payload is received: returns the buffers
to fill, whose total length is exactly the payload's.  They may be a `ReadApart`.
"""


class ReadApart(list[memoryview]):
    """Buffers into which a lent payload is read beside the event loop;
    any other payload comes as into others.
    """

    def __init__(
        self,
        buffers: Iterable[memoryview],
        have_read: Callable[[Callable[[], None]], Awaitable[None]],
        have_read_direct: Callable[[Callable[[], None]], Awaitable[None]] | None = None,
    ) -> None:
        """Take the buffers, and what calls the function that fills them, once, in a thread,
        and returns, or raises, when it has: not before.

        The other one does so with a function that waits for a disk (`Lending.DIRECT`).  It may
        raise before that has ended, as may its cancellation: then the buffers are filled at any
        later time, and who owns them uses them for nothing else.
        """
        super().__init__(buffers)
        self.have_read = have_read
        self.have_read_direct = have_read_direct


class UnderWay(Protocol):
    """A call that has not ended yet."""

    deadline_s: float
    """Trio time."""

    @property
    def is_answered(self) -> bool:
        """Whether a reply has come, of whatever status."""
        ...

    def fail(self, error: FsError) -> None:
        """End it with an error, which is indefinite:
        the request may have been executed, or may be yet.
        """
        ...


OnReply = Callable[[Received[Any] | None, FsError | None], None]
"""Called once, with the reply or with why there is none; neither waits nor raises."""


class Lending(IntEnum):
    """How a payload of a reply may come, between processes of one machine,
    that is used for nothing before it matches checksums of the message.
    """

    NOT = 0
    MEMORY = 1
    """It may be read where the server has it in its memory."""
    RANGES = 2
    """Or in its files: then the message has the checksums that the files' owner knows,
    not those of what is there.
    """
    DIRECT = 3
    """Also where the caller has to have the disk read them:
    its buffers are a `ReadApart` that knows how.
    """


class Channel(Protocol):
    """A way to call one peer; connects when first used and again after a break."""

    async def call(
        self,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        *,
        payload: Sequence[Buffer] = (),
        into: Into | None = None,
        timeout_s: float | None = None,
        under_way: set[UnderWay] | None = None,
        may_be_lent: int = Lending.NOT,
    ) -> Received[RspT]:
        """Send one request and wait for its reply.

        The request may be the message that it is on the wire.  While it lasts the call is in
        `under_way`, for those who may have to give it up.  `may_be_lent`: a `Lending`.

        Raises:
            FsError: the status the peer replied with, or RPC_CONNECT_FAILED (definite: never
                sent; a `ConnectionRefused` when the host said so), RPC_CONNECTION_LOST,
                RPC_TIMEOUT (indefinite), RPC_TOO_LARGE, RPC_BAD_VERSION, RPC_WRONG_CLUSTER,
                RPC_WRONG_NODE, RPC_UNAUTHENTICATED.
        """
        ...

    def begin(
        self,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        on_end: OnReply,
        *,
        timeout_s: float,
        under_way: set[UnderWay],
        payload: Sequence[Buffer] = (),
        is_packed: bool = False,
        reply_bytes_max: int = 4096,
    ) -> UnderWay | None:
        """Send one small request and return at once;
        `on_end` is called when it ends, as `call` would.

        Cheaper than `call`, and for those only who can do without it: where anything had to be
        waited for, nothing is done.

        Args:
            method: its replies have at most `reply_bytes_max` of payload,
                which is handed over with them.
            request: of it, or the message that it is on the wire.
            on_end: called in whatever task, never before this returns.
            timeout_s: of the call.
            under_way: as for `call`.
            payload: of up to AT_ONCE_BYTES_MAX (frame_sender.py) with all else, which belongs to
                the caller again when this returns.
            is_packed: the message of a reply that is no error is handed
                over as the bytes that came.
            reply_bytes_max: more than 4 KiB is the caller's only until `on_end` returns, and takes
                as much of a receive buffer from now on.

        Returns:
            What can give the call up; None: it was not begun, and `on_end` will not be called.

        Raises:
            FsError: RPC_TOO_LARGE, RPC_BAD_VERSION.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection; calls in flight fail with RPC_CONNECTION_LOST."""
        ...


class Channels(Protocol):
    """A process's channels, one per peer address, made on demand and shared."""

    def get(self, address: str, *, node_id: int = 0) -> Channel:
        """Return the channel to an address; with `node_id`,
        a peer that says another id is refused.
        """
        ...

    async def aclose(self) -> None:
        """Close them all."""
        ...


Handler = Callable[[Call, Any], Any]
"""A serving method: (call, request message) -> reply message or Reply,
or what has to be awaited for it; raises FsError for a status.
"""


Quick = Callable[[bytes], tuple[bytes, Buffer] | None]
"""What a service object may offer as `quick_NAME` beside a plain method NAME: its quick form, for
the commonest requests.  Called first, with the message as it came; returns those of the reply, its
payload (a few KiB; it may be empty) included.  None, or BlockingIOError: it has done nothing, and
the method is called.  Nobody is asked to admit it.
"""

Packed = Callable[[Call, bytes], Any]
"""What a service object may offer as `packed_NAME` beside a plain method NAME, for most requests:
called in place of it, with the message as it came, and returns what the method does.  None: it has
done nothing, and the method is called.  Nobody is asked to admit it.
"""

Answer = Callable[[Any], None]
"""Given the reply's message as it is on the wire, or what the method would have raised;
does not raise.  The request's payload is not its method's any more then.
"""

Begin = Callable[[Call, bytes, Answer], bool]
"""What a service object may offer as `begin_NAME` beside a method NAME with a payload, for its
commonest requests: called in place of it with the message as it came, maybe outside of any task.
True: it has begun, and answers once, maybe already, also after the deadline, which is its own to
heed.  False: it has done nothing, and the method is called.  Where somebody had to be asked to
admit the request, it is not called.
"""

Admit = Callable[[User, Identity, Any], None]
"""What a service object may offer as `admit`: called with (user, peer, request) before each method
that a user's token calls; raises FsError(RPC_NOT_ALLOWED) for a request in another's name.  It may
put the user's groups into the request.
"""


def check_owner(named: str, peer: Identity) -> None:
    """Raise FsError(RPC_NOT_ALLOWED) unless a client belongs to the token of the peer, itself a
    client of a user: what the id of such a client begins with (`client_prefix`) is proved.
    """
    if named.rpartition("-")[0] != peer.client_id.rpartition("-")[0]:
        raise FsError(
            Status.RPC_NOT_ALLOWED, f"client {named!r} is not of the token of {peer.client_id!r}"
        )


def check_client_id(named: str, peer: Identity) -> None:
    """Raise FsError(RPC_NOT_ALLOWED) when a request of a user's client speaks of another client."""
    if named != peer.client_id:
        raise FsError(
            Status.RPC_NOT_ALLOWED, f"client {peer.client_id!r} may not speak for {named!r}"
        )
