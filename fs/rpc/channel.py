"""Channels: the calling side of a process.  Connects when first used, and again after a break.

Invariants:
    - One connection attempt per channel at a time; every call that waits for it shares its outcome.
    - A call is sent at most once.  Repeating is the business of whoever knows what the call means.
    - After a call ran into its deadline with nothing received since it began, new calls take a new
      connection: the old one may be dead without anybody having said so.

Concurrency: trio; all tasks live in the pool's nursery, so they end with `open_channels`.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from ..runtime import tracing
from ..runtime.background import open_background
from ..runtime.ports import Buffer, Runtime
from ..runtime.readiness import current_time
from ..schema.config import RpcSection
from ..schema.lacks import is_lack, lacking
from ..schema.method import Method, ReqT, RspT
from ..schema.status import FsError, Status
from .api import ConnectionRefused, Identity, Into, Lending, OnReply, Received, UnderWay
from .begun_call import BegunCall
from .call_under_way import CallUnderWay, TimeUpError
from .connection import Connection
from .credentials import NONCE_BYTES, Secret
from .framed_stream import SMALL_PAYLOAD_BYTES_MAX
from .observer import MethodObserver, RpcObserver
from .reply_messages import reply_to

log = logging.getLogger(__name__)

_NOTHING: Final = memoryview(b"")


class _Attempt:
    """One attempt to connect: its outcome, for all who wait."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.connection: Connection | None = None
        self.error: FsError | None = None


def _same_error(error: FsError | None, address: str) -> FsError:
    """Return a fresh exception for one of several tasks that share an outcome; None: closed."""
    if error is None:
        return FsError(Status.RPC_CONNECT_FAILED, f"{address}: the channels of this process closed")
    if isinstance(error, ConnectionRefused):
        return ConnectionRefused(error.detail)
    return FsError(error.status, error.detail)


def _failed_here(method: Method[Any, Any], error: Exception) -> FsError:
    """Return how a call ends of whose reply nothing could be made."""
    if is_lack(error):
        return lacking(str(method), error)
    log.error("bug in taking a reply of %s", method, exc_info=error)
    return FsError(Status.INTERNAL_ERROR, f"reply of {method}: {type(error).__name__}")


class RpcChannel:
    """A way to call one peer; see `fs.rpc.api.Channel`."""

    def __init__(self, pool: "ChannelPool", address: str, node_id: int) -> None:
        self.address = address
        self._pool = pool
        self._node_id = node_id
        self._connection: Connection | None = None
        self._attempt: _Attempt | None = None
        self._begun_method: Method[Any, Any] | None = None
        """The last one of `begin`, and who measures it."""
        self._begun_observed: MethodObserver | None = None

    @property
    def peer(self) -> Identity | None:
        """What the connected peer said of itself; None while not connected."""
        connection = self._connection
        return connection.peer if connection is not None and connection.is_usable else None

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
        """Send one request and wait for its reply; see `fs.rpc.api.Channel.call`."""
        observer = self._pool.observer
        span = self._begin_span(method) if tracing.live.count else None
        options = timeout_s, under_way, may_be_lent
        if observer is None and span is None:
            return await self._call(method, request, payload, into, *options)
        observed = None if observer is None else observer.called(method)
        began_s = 0.0 if observed is None else observed.begin()
        received: Received[RspT] | None = None
        try:
            received = await self._call(method, request, payload, into, *options)
        except BaseException as error:
            if observed is not None:
                observed.note_error(error if isinstance(error, FsError) else None)
            if span is not None:
                span.note_error(error)
            raise
        finally:
            if observed is not None:
                received_bytes = 0 if received is None else received.payload_bytes
                observed.end(began_s, received_bytes, sum(map(len, payload)))
            if span is not None:
                span.end()
        return received

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
        reply_bytes_max: int = SMALL_PAYLOAD_BYTES_MAX,
    ) -> UnderWay | None:
        """Send one small request and return at once; see `fs.rpc.api.Channel.begin`."""
        connection = self._connection
        if connection is None or tracing.live.count:
            return None
        observer = self._pool.observer
        began_s = current_time()
        observed = self._begun_observed
        if method is not self._begun_method:  # mostly it is the same as the last time
            observed = None if observer is None else observer.called(method)
            self._begun_method, self._begun_observed = method, observed
        received_before = connection.received_count
        sent_bytes = sum(map(len, payload)) if payload else 0

        # Quoted: it would be evaluated for every call.
        def end(call: BegunCall, error: "Exception | None") -> None:
            under_way.discard(call)
            received: Received[Any] | None = None
            failure: FsError | None = None
            header = call.header
            if is_packed and header is not None and not header.status:
                received = Received(call.message, header.payload_bytes, call.payload or _NOTHING)
            elif error is None:
                try:
                    reply, size = reply_to(method, call)
                    received = Received(reply, size, call.payload or _NOTHING)
                except FsError as refused:
                    failure = refused
                except Exception as error_here:  # noqa: BLE001 - whoever asked has to hear of the end
                    failure = _failed_here(method, error_here)
            elif isinstance(error, FsError):
                failure = error
            else:  # its time is up
                failure = self._no_reply(method, timeout_s, connection, received_before)
            on_end(received, failure)  # first: somebody is in a hurry for it
            if observed is not None:
                if failure is not None:
                    observed.note_error(failure)
                received_bytes = 0 if received is None else received.payload_bytes
                observed.end(began_s, received_bytes, sent_bytes)

        call = BegunCall(began_s + timeout_s, end, reply_bytes_max)
        under_way.add(call)  # before it is sent: there may be no memory for it
        is_begun = False
        try:
            is_begun = connection.begin(method, request, call, timeout_s, payload)
        finally:
            if not is_begun:
                under_way.discard(call)
        if not is_begun:
            return None
        if observed is not None:
            observed.in_flight += 1
        return call

    def _begin_span(self, method: Method[Any, Any]) -> tracing.Span | None:
        span = tracing.enter(str(method), tracing.SpanKind.CLIENT)
        if span is not None:
            span.attributes["address"] = self.address
            span.attributes["node_id"] = self._node_id
        return span

    async def _call(  # noqa: PLR0917 - those of `call`
        self,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        payload: Sequence[Buffer],
        into: Into | None,
        timeout_s: float | None,
        under_way: set[UnderWay] | None,
        may_be_lent: int,
    ) -> Received[RspT]:
        limit_s = self._pool.limits.call_timeout_s if timeout_s is None else timeout_s
        call = CallUnderWay(current_time() + limit_s)
        if under_way is not None:
            under_way.add(call)
        used = None
        # Of a connection that is yet to be made, a hello since this call began.
        received_before = -1
        try:
            connection = self._connection
            if connection is None or not connection.is_usable:
                connection = await call.within(self._connected())
            else:
                received_before = connection.received_count
            used = connection
            return await connection.call(
                method, request, payload, into, call, may_be_lent=may_be_lent
            )
        except TimeUpError:
            if used is None:
                detail = f"{self.address}: not connected within {limit_s:g} s"
                raise FsError(Status.RPC_CONNECT_FAILED, detail) from None
            raise self._no_reply(method, limit_s, used, received_before) from None
        finally:
            if under_way is not None:
                under_way.discard(call)

    def _no_reply(
        self, method: Method[Any, Any], limit_s: float, used: Connection, received_before: int
    ) -> FsError:
        """Return how a call ends whose time is up;
        gives a connection up by which nothing has come since it began.
        """
        if used.received_count == received_before:
            used.retire()
        detail = f"{method} to {self.address}: no reply in {limit_s:g} s"
        return FsError(Status.RPC_TIMEOUT, detail)

    def retire_unless(self, key_id: bytes) -> None:
        """Take a new connection for new calls, unless the present one was made by this key."""
        if self._connection is not None and self._connection.key_id != key_id:
            self._connection.retire()

    async def aclose(self) -> None:
        """Close the connection; calls in flight fail with RPC_CONNECTION_LOST."""
        if self._connection is not None:
            await self._connection.aclose()

    async def _connected(self) -> Connection:
        """Return a usable connection, made now or by an attempt under way."""
        attempt = self._attempt
        if attempt is None:
            if self._pool.is_closed:
                raise _same_error(None, self.address)
            attempt = _Attempt()
            self._pool.start_soon(self._connect, attempt)
            self._attempt = attempt  # behind it: all others wait for what has really begun
        await attempt.done.wait()
        if attempt.connection is None:
            raise _same_error(attempt.error, self.address)
        return attempt.connection

    async def _connect(self, attempt: _Attempt) -> None:
        """Make a connection, tell everybody who waits, and carry it until it ends."""
        try:
            connection = await self._open()
        except FsError as error:
            attempt.error = error
        except Exception as error:
            if not is_lack(error):
                raise
            attempt.error = lacking(self.address, error)
        else:
            attempt.connection = self._connection = connection
        finally:
            self._attempt = None
            attempt.done.set()
        if attempt.connection is not None:
            if tracing.live.count:
                tracing.leave()  # of the call that connected first
            await attempt.connection.run()

    async def _open(self) -> Connection:
        pool = self._pool
        with trio.move_on_after(pool.limits.connect_timeout_s):
            stream = await pool.runtime.network.connect(self.address)
            connection = Connection(stream, pool.limits, pool.identity, self.address)
            try:
                await connection.shake_hands(self._node_id, pool.secrets, pool.nonce())
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                await connection.aclose()
                detail = f"{self.address}: connection lost in the handshake: {error}"
                raise FsError(Status.RPC_CONNECT_FAILED, detail) from error
            except BaseException:
                await connection.aclose()
                raise
            return connection
        raise FsError(
            Status.RPC_CONNECT_FAILED,
            f"{self.address}: no answer within {pool.limits.connect_timeout_s:g} s",
        )


class ChannelPool:
    """A process's channels; made by `open_channels`."""

    def __init__(
        self,
        runtime: Runtime,
        identity: Identity,
        limits: RpcSection,
        nursery: trio.Nursery,
        *,
        secrets: Sequence[Secret],
        observer: RpcObserver | None,
    ) -> None:
        self.runtime = runtime
        self.identity = identity
        self.limits = limits
        self.secrets = secrets
        self.observer = observer
        self.start_soon = nursery.start_soon
        self.is_closed = False
        self._channels: dict[tuple[str, int], RpcChannel] = {}

    def nonce(self) -> bytes:
        """Return fresh random bytes for one handshake; nothing when we have nothing to prove."""
        return self.runtime.random.randbytes(NONCE_BYTES) if self.secrets else b""

    def get(self, address: str, *, node_id: int = 0) -> RpcChannel:
        """Return the channel to an address; with `node_id`,
        a peer that says another id is refused.
        """
        key = (address, node_id)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = RpcChannel(self, address, node_id)
        return channel

    def replace_secrets(self, secrets: Sequence[Secret]) -> None:
        """Prove one of these from now on; what was connected by another one
        than the first connects again.

        Calls under way end on the connections that they began on.
        """
        self.secrets = secrets
        for channel in self._channels.values():
            channel.retire_unless(secrets[0].key_id)

    async def aclose(self) -> None:
        """Close all connections; channels stay usable and connect again."""
        for channel in self._channels.values():
            await channel.aclose()


@asynccontextmanager
async def open_channels(
    runtime: Runtime,
    identity: Identity,
    limits: RpcSection,
    *,
    secrets: Sequence[Secret] = (),
    observer: RpcObserver | None = None,
) -> AsyncIterator[ChannelPool]:
    """Make the channels of one process, alive as long as the block.

    Args:
        runtime: its network and randomness are used.
        identity: who calls.
        limits: the [rpc] section.
        secrets: what proves who we are, preferred first; then peers have to know
            it, too.  Default: nothing.
        observer: measures the calls; default: nobody.
    """
    async with open_background() as nursery:
        pool = ChannelPool(runtime, identity, limits, nursery, secrets=secrets, observer=observer)
        try:
            yield pool
        finally:
            pool.is_closed = True
