"""The real network: TCP and Unix stream sockets under trio.

Addresses: `tcp:HOST:PORT` (`tcp:[V6]:PORT`) and `unix:/PATH`.

Invariants:
    - A system call is tried before waiting; after several that succeeded
      at once other tasks get a turn.
    - A listening socket lives exactly as long as `serve`: a refused
      connection proves that nobody serves.
    - A socket file left by a dead process is replaced; one with a listener behind it is not.

Concurrency: see `fs.runtime.ports.Stream`.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Sequence
from typing import Any, Final

import outcome
import trio

from ..runtime import readiness
from ..runtime.ports import Buffer, OnBytes, Stream, StreamHandler
from ..schema.lacks import is_lack, lacking
from ..schema.status import FsError, Status
from .api import ConnectionRefused
from .peer_memory import UnixPeerMemory, memory_behind

log = logging.getLogger(__name__)

IOV_MAX: Final = 1024
BUSY_COUNT_MAX: Final = 16
"""Operations in a row that did not wait, before other tasks get a turn."""

SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024
LISTEN_BACKLOG: Final = 1024
PORT_MAX: Final = 65_535
SUN_PATH_BYTES_MAX: Final = 107
CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_MS_MAX: Final = 10_000
"""A TCP peer that acknowledges nothing for this long is gone."""

KEEPALIVE_IDLE_S: Final = 5
KEEPALIVE_INTERVAL_S: Final = 2
ACCEPT_PAUSE_S: Final = 0.1

RESOLVE_S: Final = 0.5
"""After that a name service counts as silent, for who is content with what it said before."""

KNOWN_MAX: Final = 4096
"""Addresses of which it is known where they led."""

Target = tuple[int, Any]
"""Socket family and the address as the socket module wants it."""


def _closed() -> trio.ClosedResourceError:
    return trio.ClosedResourceError("this side closed the connection")


class SocketStream:
    """A connected stream socket; see `fs.runtime.ports.Stream`."""

    def __init__(self, sock: socket.socket, peer_name: str) -> None:
        """Take over `sock`, which must be connected and not blocking."""
        self._socket = sock
        self._peer_name = peer_name
        self._busy_count = 0
        self._is_closed = False
        self._watch = readiness.watch(sock.fileno(), self._readable)
        self._receiver: trio.lowlevel.Task | None = None
        """Waits for what the watch finds: with a buffer, for bytes in it."""
        self._buffer: memoryview | None = None
        self._on_bytes: OnBytes | None = None

    @property
    def peer_name(self) -> str:
        """The other side's address."""
        return self._peer_name

    @property
    def peer_memory(self) -> UnixPeerMemory | None:
        """See `fs.runtime.ports.Stream`."""
        return memory_behind(self._socket)

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Send all of the buffers."""
        rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while rest:
            count = await self.send_some(rest)
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if count:
                rest[0] = rest[0][count:]

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        """Send at least one byte."""
        if len(buffers) > IOV_MAX:
            buffers = buffers[:IOV_MAX]
        await self._take_turn()
        while True:
            try:
                return self._socket.sendmsg(buffers)
            except BlockingIOError:
                self._busy_count = 0
                if self._watch is None:
                    await trio.lowlevel.wait_writable(self._socket)
                else:
                    await self._watch.wait_writable()
            except OSError as error:
                raise self._broken(error) from error

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """As `send_some`, without waiting."""
        if self._is_closed:
            raise _closed()
        if self._busy_count >= BUSY_COUNT_MAX or len(buffers) > IOV_MAX:
            return 0
        self._busy_count += 1
        try:
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    async def receive_into(self, buffer: memoryview, on_bytes: OnBytes | None = None) -> int:
        """Receive at least one byte; 0 at end of stream."""
        if self._is_closed or self._busy_count >= BUSY_COUNT_MAX:
            await self._take_turn()
        else:
            self._busy_count += 1  # the same, without a coroutine
        while True:
            try:
                count = self._socket.recv_into(buffer)
            except BlockingIOError:
                self._busy_count = 0
                if self._watch is not None:
                    self._wait_with(buffer, on_bytes)
                    return await trio.lowlevel.wait_task_rescheduled(self._abort)  # type: ignore[no-any-return]
                await trio.lowlevel.wait_readable(self._socket)
                continue
            except OSError as error:
                raise self._broken(error) from error
            rest = on_bytes(count) if on_bytes is not None and count else None
            if rest is None:
                return count
            buffer = rest
            await self._take_turn()

    async def receive_scatter(self, buffers: Sequence[memoryview]) -> int:
        """Receive at least one byte into several buffers; 0 at end of stream."""
        if len(buffers) > IOV_MAX:
            buffers = buffers[:IOV_MAX]
        await self._take_turn()
        while True:
            try:
                return self._socket.recvmsg_into(buffers)[0]
            except BlockingIOError:
                self._busy_count = 0
                if self._watch is not None:
                    self._wait_with(None, None)
                    await trio.lowlevel.wait_task_rescheduled(self._abort)
                else:
                    await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                raise self._broken(error) from error

    def receive_now(self, buffers: Sequence[memoryview]) -> int:
        """As `receive_scatter`, without waiting."""
        if self._is_closed:
            raise _closed()
        if self._busy_count >= BUSY_COUNT_MAX:
            return 0
        self._busy_count += 1
        try:
            return self._socket.recvmsg_into(buffers[:IOV_MAX])[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    async def aclose(self) -> None:
        """Close at once."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._watch is None:
            trio.lowlevel.notify_closing(self._socket)
        else:
            self._watch.close(_closed())
            if self._receiver is not None:
                self._wake(outcome.Error(_closed()))
        self._socket.close()

    async def _take_turn(self) -> None:
        """Let other tasks run now and then, also when the socket never makes this one wait."""
        if self._is_closed:
            raise _closed()
        self._busy_count += 1
        if self._busy_count > BUSY_COUNT_MAX:
            self._busy_count = 0
            await trio.lowlevel.checkpoint()

    def _broken(self, error: OSError) -> Exception:
        if self._is_closed:
            return _closed()
        return trio.BrokenResourceError(f"{self._peer_name}: {error.strerror}")

    # ---- with a watch ------------------------------------------------------------------------

    def _wait_with(self, buffer: memoryview | None, on_bytes: OnBytes | None) -> None:
        """The current task is about to wait for bytes."""
        assert self._watch is not None
        if self._receiver is not None:
            raise trio.BusyResourceError("another task is already receiving")
        self._watch.begin()  # first: should it fail, nobody waits
        self._receiver = trio.lowlevel.current_task()
        self._buffer, self._on_bytes = buffer, on_bytes

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._receiver = self._buffer = self._on_bytes = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self, result: outcome.Outcome[int]) -> None:
        task = self._receiver
        assert task is not None
        self._receiver = self._buffer = self._on_bytes = None
        trio.lowlevel.reschedule(task, result)

    def _readable(self) -> None:
        """Something has come, or the stream has ended: give it to who waits for it."""
        if self._receiver is None:
            assert self._watch is not None
            self._watch.stop()
            return
        self._busy_count = 0
        count, failure = 0, None
        if self._buffer is not None:
            try:
                count = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError as error:
                self._wake(outcome.Error(self._broken(error)))
                return
            if count and self._on_bytes is not None:
                try:
                    rest = self._on_bytes(count)
                except BaseException as error:  # noqa: BLE001 - raised by the task that waits
                    failure = error
                else:
                    if rest is not None:
                        if self._receiver is not None:  # else closed meanwhile
                            self._buffer = rest
                        return
        if self._receiver is not None:
            self._wake(outcome.Value(count) if failure is None else outcome.Error(failure))


class SocketNetwork:
    """Connects and listens with real sockets; see `fs.runtime.ports.Network`."""

    def __init__(self) -> None:
        self._known: dict[str, list[Target]] = {}
        """Where addresses led when they were last connected to."""

    async def connect(self, address: str, *, may_be_old: bool = False) -> Stream:
        """Connect to an address; `may_be_old` as of the port.

        Raises:
            FsError: RPC_CONNECT_FAILED; `ConnectionRefused` when nobody listens there;
                OUT_OF_RESOURCES of this process.
        """
        failure: FsError | None = None
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            for target in await self._targets(address, may_be_old=may_be_old):
                try:
                    return SocketStream(await _connect(target), address)
                except (ConnectionRefusedError, FileNotFoundError) as error:
                    failure = ConnectionRefused(f"{address}: connection refused: {error.strerror}")
                except OSError as error:
                    if is_lack(error):  # which says nothing of the peer
                        raise lacking(address, error) from error
                    failure = FsError(Status.RPC_CONNECT_FAILED, f"{address}: {error.strerror}")
        raise failure or FsError(Status.RPC_CONNECT_FAILED, f"{address}: no answer in time")

    async def _targets(self, address: str, *, may_be_old: bool) -> list[Target]:
        known = self._known.get(address) if may_be_old else None
        if known is None:
            return await self._resolved(address)
        with trio.move_on_after(RESOLVE_S):
            try:
                return await self._resolved(address)
            except FsError as error:
                log.debug("%s leads where it did: %s", address, error)
        return known

    async def _resolved(self, address: str) -> list[Target]:
        found = await _resolve(address)
        self._known.pop(address, None)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[address] = found
        return found

    async def serve(
        self,
        address: str,
        handler: StreamHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and run `handler` for each connection until cancelled.

        Raises:
            FsError: START_FAILED when the address cannot be bound.
        """
        listener = await _listen(address)
        bound = _bound_address(address, listener)
        inode = os.stat(listener.getsockname()).st_ino if bound.startswith("unix:") else 0  # noqa: PTH116 - a plain string
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(bound)
                await _accept_all(listener, bound, handler, nursery)
        finally:
            trio.lowlevel.notify_closing(listener)
            listener.close()
            _remove_socket_file(bound, inode)


async def _accept_all(
    listener: socket.socket, bound: str, handler: StreamHandler, nursery: trio.Nursery
) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            await trio.lowlevel.wait_readable(listener)
            continue
        except ConnectionError as error:
            log.debug("%s: a connection broke before it was accepted: %s", bound, error)
            continue
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            log.warning("%s: cannot accept connections now: %s", bound, error.strerror)
            await trio.sleep(ACCEPT_PAUSE_S)
            continue
        _set_options(sock)
        nursery.start_soon(_handle, handler, SocketStream(sock, _peer_name(sock, bound)))


async def _handle(handler: StreamHandler, stream: SocketStream) -> None:
    try:
        await handler(stream)
    finally:
        await stream.aclose()


async def _resolve(address: str) -> list[Target]:
    """Return where an address points; raises FsError(RPC_CONNECT_FAILED)."""
    if address.startswith("unix:"):
        return [(socket.AF_UNIX, _unix_path(address))]
    host, port = split_tcp(address)
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise FsError(Status.RPC_CONNECT_FAILED, f"{address}: {error.strerror}") from error
    return [(int(family), where) for family, _, _, _, where in found]


def split_tcp(address: str) -> tuple[str, int]:
    """Return host and port of `tcp:HOST:PORT`; raises FsError(BAD_CONFIG)."""
    kind, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise FsError(Status.BAD_CONFIG, f"address {address!r}; allowed: tcp:HOST:PORT, unix:/PATH")
    return host.strip("[]"), int(port)


def _unix_path(address: str) -> str:
    path = address.removeprefix("unix:")
    if not path.startswith("/"):
        raise FsError(Status.BAD_CONFIG, f"address {address!r}: the path must begin with /")
    if len(os.fsencode(path)) > SUN_PATH_BYTES_MAX:
        raise FsError(
            Status.BAD_CONFIG,
            f"socket path {path!r} is longer than the {SUN_PATH_BYTES_MAX} bytes the kernel allows",
        )
    return path


async def _connect(target: Target) -> socket.socket:
    """Return a connected socket; raises OSError."""
    family, where = target
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _set_options(sock)
        while True:
            code = sock.connect_ex(where)
            if code != errno.EAGAIN:
                break
            await trio.sleep(ACCEPT_PAUSE_S / 10)  # a Unix listener's backlog is full
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        sock.close()
        raise
    if code:
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


async def _listen(address: str) -> socket.socket:
    """Return a listening socket; raises FsError(START_FAILED)."""
    (family, where), *_ = await _resolve(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family == socket.AF_UNIX:
            await _remove_stale_file(str(where))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        detail = f"cannot listen at {address}: {error.strerror}"
        raise FsError(Status.START_FAILED, detail) from error
    except BaseException:
        sock.close()
        raise
    return sock


async def _remove_stale_file(path: str) -> None:
    """Remove the socket file of a dead process; raises OSError(EADDRINUSE) when it is not one."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EADDRINUSE, f"{path} exists and is not a socket")
    try:
        sock = await _connect((socket.AF_UNIX, path))
    except ConnectionRefusedError:
        os.unlink(path)  # noqa: PTH108 - a plain string fits sockets better
        return
    sock.close()
    raise OSError(errno.EADDRINUSE, "another process listens there")


def _remove_socket_file(bound: str, inode: int) -> None:
    """Remove our own socket file, unless a successor has put its own there."""
    if bound.startswith("unix:"):
        path = bound.removeprefix("unix:")
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_ino == inode:
                os.unlink(path)  # noqa: PTH108 - a plain string fits sockets better


def _bound_address(address: str, listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return address
    host, _ = split_tcp(address)
    port = listener.getsockname()[1]
    return f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"


def _peer_name(sock: socket.socket, bound: str) -> str:
    if sock.family == socket.AF_UNIX:
        return f"a caller of {bound}"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return f"a caller of {bound} that left at once"
    return f"tcp:{host}:{port}"


def _set_options(sock: socket.socket) -> None:
    """Set what every connection needs, whichever side opened it."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        return
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS_MAX),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
    ):
        sock.setsockopt(level, option, value)
