"""A stand-in for libfdb_c: FoundationDB's C functions, in Python, below the real Python binding.

`install` has the real package `fdb` use it instead of the shared library, in this process, for
good.  Everything of the binding that EmberFS touches therefore runs as it is: lazy values, key
selectors, options, futures and their callbacks.

As tried on a real one: callbacks come on the network thread; a future that is ready calls back at
once; a cancelled one fails with 1101; a value is read once and then released; who cannot be reached
is waited for without end; a commit whose connection breaks fails with 1021.  Only what the engine
uses is here; anything else is an AttributeError.
"""

import contextlib
import ctypes
import heapq
import itertools
import random
import selectors
import socket
import struct
import threading
import time
from collections import deque

from tests.kv.fake_fdb.wire import address_of, pack, unpack

CANCELLED, RELEASED, UNKNOWN_RESULT, NETWORK_TWICE = 1101, 1102, 1021, 2009
NO_VERSION, INVERTED, INVALID, OUTSIDE = 2021, 2005, 2000, 2004
MAYBE_COMMITTED = {1021, 1039}
NOT_COMMITTED = {1020, 1007, 1009, 1037, 1038, 1042, 1051, 1078, 1213, 1223}
TEXTS = {
    1007: b"Transaction is too old to perform reads or be committed",
    1020: b"Transaction not committed due to conflict with another transaction",
    1021: b"Transaction may or may not have committed",
    1037: b"Storage process does not have recent mutations",
    2101: b"Transaction exceeds byte limit",
}
RECONNECT_S = 0.05
MUTATIONS = {2: "add", 12: "max", 14: "stamped_key", 15: "stamped_value"}
KEY_END = b"\xff"
"""Where the keys of users end."""
STATUS_KEY = b"\xff\xff/status/json"


class Future:
    def __init__(self) -> None:
        self.value: object = None
        self.error = 0
        self.is_ready = False
        self.is_released = False
        self.kept: list = []
        self._callbacks: list = []
        self._lock = threading.Lock()

    def settle(self, value: object, error: int) -> None:
        """On the network thread."""
        with self._lock:
            if self.is_ready:
                return
            self.value, self.error, self.is_ready = value, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(None)

    def call_back(self, callback) -> None:
        with self._lock:
            if not self.is_ready:
                self._callbacks.append(callback)
                return
        callback(None)


class Network:
    """The network thread: one connection per cluster file, calls from other threads, delays."""

    def __init__(self) -> None:
        self.is_set_up = False
        self.options: dict[int, bytes] = {}
        self._calls: deque = deque()
        self._later: list = []
        self._order = itertools.count()
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)
        self.connections: dict[str, Connection] = {}

    def call(self, function, *arguments) -> None:
        """Have the network thread call this soon; from any thread."""
        self._calls.append((function, arguments))
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"!")

    def call_later(self, delay_s: float, function) -> None:
        heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._order), function))

    def watch(self, connection: socket.socket, function) -> None:
        self._selector.register(connection, selectors.EVENT_READ, function)

    def forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)

    def stop(self) -> None:
        self._is_stopping = True
        self.call(lambda: None)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def run(self) -> None:
        while not self._is_stopping:
            while self._calls:
                function, arguments = self._calls.popleft()
                function(*arguments)
            wait_s = None
            if self._later:
                wait_s = max(0.0, self._later[0][0] - time.monotonic())
            for key, _ in self._selector.select(wait_s):
                key.data()
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()


class Connection:
    """To one server; requests wait while it is away,
    but a commit that was sent is never sent again.
    """

    def __init__(self, network: Network, cluster_file: str) -> None:
        self._network = network
        self._cluster_file = cluster_file
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple] = {}

    def send(self, done, name: str, *arguments) -> None:
        """On the network thread.  `done(value, error)` is called there with the answer."""
        number = next(self._numbers)
        self._waiting[number] = (done, name, arguments)
        if self._socket is None:
            self._connect()
        else:
            self._write(number, name, arguments)

    def _write(self, number: int, name: str, arguments: tuple) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(pack((number, name, *arguments)))
        except OSError:
            self._lost()

    def _connect(self) -> None:
        if self._socket is not None or not self._waiting:
            return
        try:
            self._socket = socket.create_connection(address_of(self._cluster_file), timeout=1)
        except OSError:
            self._network.call_later(RECONNECT_S, self._connect)
            return
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._network.watch(self._socket, self._read)
        for number, (_, name, arguments) in list(self._waiting.items()):
            if self._socket is not None:
                self._write(number, name, arguments)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            chunk = self._socket.recv(1 << 20)
        except OSError:
            chunk = b""
        if not chunk:
            self._lost()
            return
        self._buffer += chunk
        for number, value, error in unpack(self._buffer):
            self._waiting.pop(number)[0](value, error)

    def _lost(self) -> None:
        if self._socket is None:
            return
        self._network.forget(self._socket)
        self._socket.close()
        self._socket = None
        self._buffer.clear()
        for number, (done, name, _) in list(self._waiting.items()):
            if name == "commit":
                del self._waiting[number]
                done(None, UNKNOWN_RESULT)
        self._network.call_later(RECONNECT_S, self._connect)


class Transaction:
    """One attempt.  Its methods run on the network thread."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.reset()

    def reset(self) -> None:
        self.version: int | None = None
        self.waiting: list = []
        self.is_asked = False
        self.reads: list = []
        self.writes: list = []
        self.mutations: list = []
        self.stamps: list[Future] = []
        self.deferred = 0
        """The first error of a call that has no future to tell it: told by the commit."""
        self.is_committing = False

    def mutate(self, kind: str, key: bytes, value: bytes, written: tuple[bytes, bytes]) -> None:
        """Note a mutation, in the order of the calls; `written` is what readers conflict with."""
        if key >= KEY_END or written[1] > KEY_END:
            self.deferred = self.deferred or OUTSIDE
            return
        self.mutations.append((kind, key, value))
        if kind != "stamped_key":
            self.writes.append(written)

    def with_version(self, use) -> None:
        """Call `use(error)` once the read version is there."""
        if self.version is not None:
            use(0)
            return
        self.waiting.append(use)
        if not self.is_asked:
            self.is_asked = True
            self.connection.send(self._take_version, "read_version")

    def _take_version(self, value, error: int) -> None:
        self.version = value
        waiting, self.waiting = self.waiting, []
        for use in waiting:
            use(error)

    def ask(self, future: Future, name: str, *arguments) -> None:
        def use(error: int) -> None:
            if error:
                future.settle(None, error)
            else:
                self.connection.send(future.settle, name, self.version, *arguments)

        self.with_version(use)

    def commit(self, future: Future) -> None:
        stamps, self.stamps = self.stamps, []

        def done(value, error: int) -> None:
            for stamp in stamps:
                stamp.settle(value[1] if value else None, error)
            future.settle(None, error)

        if self.deferred:
            done(None, self.deferred)
            return
        if not self.mutations and not self.writes:
            for stamp in stamps:
                stamp.settle(None, NO_VERSION)
            future.settle(None, 0)
            return
        request = (list(self.reads), list(self.writes), list(self.mutations))
        if self.reads and self.version is None:
            self.with_version(
                lambda error: (
                    done(None, error)
                    if error
                    else self.connection.send(done, "commit", self.version, *request)
                )
            )
        else:
            self.connection.send(done, "commit", self.version, *request)


class Function:
    """One C function: what ctypes lets a caller set on it, and the call."""

    def __init__(self, function) -> None:
        self.argtypes = None
        self.restype = None
        self.errcheck = None
        self._function = function

    def __call__(self, *arguments):
        if self.argtypes is not None:
            for kind, argument in zip(self.argtypes, arguments, strict=True):
                _check_argument(kind, argument)
        result = self._function(*(_plain(argument) for argument in arguments))
        if self.errcheck is not None:
            return self.errcheck(result or 0, self, arguments)
        return result


def _check_argument(kind, argument) -> None:
    """Refuse what ctypes would refuse, and numbers that it would cut without a word."""
    kind.from_param(argument)
    if kind is ctypes.c_int:
        assert -(1 << 31) <= argument < 1 << 31, f"{argument} is no int of C"


def _has_place(parameter: bytes) -> bool:
    """Whether a versionstamped parameter says where in it the ten bytes go."""
    if len(parameter) < 4:
        return False
    (place,) = struct.unpack("<l", parameter[-4:])
    return 0 <= place <= len(parameter) - 4 - 10


def _plain(argument):
    return argument.value if isinstance(argument, ctypes.c_void_p) else argument


def _point(reference, kept: list, content: bytes) -> None:
    """Have the pointer behind a reference point at a copy of `content`, kept alive in `kept`."""
    buffer = ctypes.create_string_buffer(content, max(1, len(content)))
    kept.append(buffer)
    reference._obj.contents = ctypes.c_byte.from_address(ctypes.addressof(buffer))


class Library:
    """What `ctypes.CDLL("libfdb_c.so")` would return;
    the attributes of the class are the functions.
    """

    def __init__(self) -> None:
        self.network = Network()
        self.handles: dict[int, object] = {}
        self._numbers = itertools.count(0x1000)
        for name in dir(self):
            if name.startswith("fdb_"):
                setattr(self, name, Function(getattr(self, name)))

    def __getattr__(self, name: str) -> Function:
        """A function that nobody uses: the binding may say what it returns, and may not call it."""
        if not name.startswith("fdb_"):
            raise AttributeError(name)
        setattr(self, name, Function(lambda *_: self._missing(name)))
        return getattr(self, name)

    def _missing(self, name: str) -> None:
        raise AttributeError(f"the fake client library has no {name}")

    def count(self, kind: type) -> int:
        """Return how many things of a kind somebody still holds."""
        return sum(isinstance(thing, kind) for thing in list(self.handles.values()))

    def _handle(self, thing: object) -> int:
        number = next(self._numbers)
        self.handles[number] = thing
        return number

    def _future(self, start, *arguments) -> int:
        future = Future()
        self.network.call(start, future, *arguments)
        return self._handle(future)

    def _got(self, handle: int) -> Future:
        future = self.handles[handle]
        assert future.is_ready, "asked for the value of a future that is not ready"
        return future

    # ---- the process -----------------------------------------------------------------------------

    def fdb_select_api_version_impl(self, version, header_version):
        return 0 if version <= header_version <= 730 else 2203

    def fdb_get_max_api_version(self):
        return 730

    def fdb_get_error(self, code):
        return TEXTS.get(code, b"error %d" % code)

    def fdb_error_predicate(self, predicate, code):
        kinds = {50000: MAYBE_COMMITTED | NOT_COMMITTED, 50001: MAYBE_COMMITTED}
        return code in kinds.get(predicate, NOT_COMMITTED)

    def fdb_network_set_option(self, option, param, length):
        assert not self.network.is_set_up, "network options come before the network"
        assert len(param or b"") == length
        self.network.options[option] = param

    def fdb_setup_network(self):
        if self.network.is_set_up:
            return NETWORK_TWICE
        self.network.is_set_up = True
        return 0

    def fdb_run_network(self):
        self.network.run()

    def fdb_stop_network(self):
        self.network.stop()

    # ---- futures ---------------------------------------------------------------------------------

    def fdb_future_destroy(self, handle):
        del self.handles[handle]

    def fdb_future_cancel(self, handle):
        self.network.call(self.handles[handle].settle, None, CANCELLED)

    def fdb_future_release_memory(self, handle):
        self.handles[handle].is_released = True
        self.handles[handle].kept.clear()

    def fdb_future_is_ready(self, handle):
        return int(self.handles[handle].is_ready)

    def fdb_future_set_callback(self, handle, callback, _param):
        self.handles[handle].call_back(callback)

    def fdb_future_get_error(self, handle):
        return self._got(handle).error

    def fdb_future_get_int64(self, handle, out):
        future = self._got(handle)
        if not future.error:
            out._obj.value = future.value
        return future.error

    def fdb_future_get_value(self, handle, present, out, length):
        future = self._got(handle)
        if future.error or future.is_released:
            return future.error or RELEASED
        present._obj.value = future.value is not None
        _point(out, future.kept, future.value or b"")
        length._obj.value = len(future.value or b"")
        return 0

    def fdb_future_get_key(self, handle, out, length):
        future = self._got(handle)
        if future.error or future.is_released:
            return future.error or RELEASED
        _point(out, future.kept, future.value)
        length._obj.value = len(future.value)
        return 0

    def fdb_future_get_keyvalue_array(self, handle, out, count, more):
        from fdb.impl import KeyValueStruct  # noqa: PLC0415 - the binding loads this module

        future = self._got(handle)
        if future.error:
            return future.error
        rows, more._obj.value = future.value
        array = (KeyValueStruct * max(1, len(rows)))()
        for row, (key, value) in zip(array, rows, strict=False):
            for name, content in (("key", key), ("value", value)):
                buffer = ctypes.create_string_buffer(content, max(1, len(content)))
                future.kept.append(buffer)
                setattr(row, name, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_byte)))
                setattr(row, f"{name}_length", len(content))
        future.kept.append(array)
        out._obj.contents = KeyValueStruct.from_address(ctypes.addressof(array))
        count._obj.value = len(rows)
        return 0

    # ---- databases and transactions --------------------------------------------------------------

    def fdb_create_database(self, cluster_file, out):
        assert self.network.is_set_up, "the network comes before the database"
        name = cluster_file.decode()
        connections = self.network.connections
        connection = connections.setdefault(name, Connection(self.network, name))
        out._obj.value = self._handle(connection)

    def fdb_database_destroy(self, handle):
        del self.handles[handle]

    def fdb_database_create_transaction(self, handle, out):
        out._obj.value = self._handle(Transaction(self.handles[handle]))

    def fdb_transaction_destroy(self, handle):
        del self.handles[handle]

    def fdb_transaction_get_read_version(self, handle):
        tr = self._open(handle)
        return self._future(
            lambda future: tr.with_version(lambda error: future.settle(tr.version, error))
        )

    def fdb_transaction_get(self, handle, key, length, snapshot):
        assert len(key) == length
        tr = self._open(handle)
        if key == STATUS_KEY:
            return self._future(lambda future: tr.connection.send(future.settle, "status"))
        if key >= KEY_END:
            return self._failed(OUTSIDE)
        self._reads(tr, key, key + b"\0", snapshot)
        return self._future(tr.ask, "get", key)

    def _failed(self, code: int) -> int:
        return self._future(lambda future: future.settle(None, code))

    def _open(self, handle: int) -> Transaction:
        """The real one answers 2017, and fails the commit."""
        tr = self.handles[handle]
        assert not tr.is_committing, "a transaction was used after its commit had begun"
        return tr

    def _reads(self, tr: Transaction, begin: bytes, end: bytes, snapshot: int) -> None:
        assert not tr.mutations, "this fake does not merge reads with own writes"
        if not snapshot:
            tr.reads.append((begin, end))

    def fdb_transaction_get_range(  # noqa: PLR0917
        self, handle, begin, _begin_length, begin_equal, begin_offset,
        end, _end_length, end_equal, end_offset,
        limit, _target_bytes, mode, iteration, snapshot, reverse,
    ):  # fmt: skip
        assert (begin_equal, begin_offset, end_equal, end_offset) == (False, 1, False, 1)
        assert iteration >= 1
        assert limit >= 0
        assert (mode == 0) == (limit > 0), "exact needs a limit"
        tr = self._open(handle)
        if begin > end:
            return self._failed(INVERTED)
        if end > KEY_END:
            return self._failed(OUTSIDE)
        self._reads(tr, begin, end, snapshot)
        return self._future(tr.ask, "get_range", begin, end, limit, bool(reverse))

    def fdb_transaction_add_conflict_range(self, handle, begin, _, end, __, kind):
        tr = self._open(handle)
        if begin > end:
            return INVERTED
        if end > KEY_END:
            tr.deferred = tr.deferred or OUTSIDE
        elif kind == 1:
            tr.writes.append((begin, end))
        else:
            # The real one leaves out what the transaction has written by then.
            assert not tr.mutations, "conflicts of reads come before the writes"
            tr.reads.append((begin, end))
        return 0

    def fdb_transaction_set(self, handle, key, _, value, __):
        self._open(handle).mutate("set", key, value, (key, key + b"\0"))

    def fdb_transaction_clear(self, handle, key, _):
        self.fdb_transaction_clear_range(handle, key, 0, key + b"\0", 0)

    def fdb_transaction_clear_range(self, handle, begin, _, end, __):
        assert begin <= end, "the real one ends the process"
        self._open(handle).mutate("clear_range", begin, end, (begin, end))

    def fdb_transaction_atomic_op(self, handle, key, _, param, __, code):
        tr, kind = self._open(handle), MUTATIONS[code]
        stamped = {"stamped_key": key, "stamped_value": param}.get(kind)
        if stamped is not None and not _has_place(stamped):
            tr.deferred = tr.deferred or INVALID
            return
        tr.mutate(kind, key, param, (key, key + b"\0"))

    def fdb_transaction_get_versionstamp(self, handle):
        tr, future = self._open(handle), Future()
        tr.stamps.append(future)
        return self._handle(future)

    def fdb_transaction_commit(self, handle):
        tr = self._open(handle)
        tr.is_committing = True
        return self._future(tr.commit)

    def fdb_transaction_on_error(self, handle, code):
        tr = self.handles[handle]

        def start(future: Future) -> None:
            if code not in MAYBE_COMMITTED | NOT_COMMITTED:
                future.settle(None, code)
                return
            tr.reset()
            self.network.call_later(random.random() * 0.01, lambda: future.settle(None, 0))

        return self._future(start)


def install() -> Library:
    """Have the binding use a fake library; once per process, before anybody loads the real one."""

    class Chosen(ctypes.CDLL):
        def __new__(cls, name=None, *arguments, **options):
            if name == "libfdb_c.so":
                return library
            return super().__new__(cls, name, *arguments, **options)

    library, usual = Library(), ctypes.CDLL
    ctypes.CDLL = Chosen
    try:
        import fdb.impl  # noqa: PLC0415
    finally:
        ctypes.CDLL = usual
    assert fdb.impl._capi is library, "a real client library was loaded before"
    return library
