"""A stand-in for fdbserver, written from FoundationDB's documentation
and from what was tried on a real one.

    python -m tests.kv.fake_fdb.server CLUSTERFILE

Listens on a free port and writes CLUSTERFILE; commits go to CLUSTERFILE.log, so that a killed
server comes back with them.  What it keeps to: versions of a million per second; reads at a
version; resolution of conflicts by ranges; mutations in the order in which they came; limits as
FoundationDB counts; 1007 after five seconds; ranges in parts.  It shares no code with EmberFS.
What it cannot show: recovery, several machines, tenants, locks, back-pressure, TLS.
"""

import os
import pickle
import socket
import socketserver
import struct
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from pathlib import Path

from sortedcontainers import SortedDict

from tests.kv.fake_fdb.wire import pack, unpack

VERSIONS_PER_S = 1_000_000
LIFE = 5 * VERSIONS_PER_S
PAGE_ROWS = 100
PAGE_BYTES = 80_000
KEY_MAX, VALUE_MAX, SIZE_MAX = 10_000, 100_000, 10_000_000
RANGE_RECORD, MUTATION_RECORD = 24, 44
"""What a client counts besides the bytes themselves;
of a mutation 28 before release 7.3 gave it checksums.
"""
NOT_COMMITTED, TOO_OLD, UNKNOWN = 1020, 1007, 1021
TOO_LARGE, KEY_TOO_LARGE, VALUE_TOO_LARGE = 2101, 2102, 2103


class RefusedError(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


class Store:
    """Values by version, and what was written when."""

    def __init__(self, log_path: Path) -> None:
        self.lock = threading.Lock()
        self.values: SortedDict = SortedDict()  # key -> [(version, value or None)]
        self.written: SortedDict = SortedDict()  # key -> version of its newest write
        self.cleared: deque = deque()  # (version, begin, end)
        self.newest = 0
        self.faults: deque = deque()
        self.requests: dict[str, int] = {}
        self._base = time.monotonic()
        self._log_path = log_path
        self._log = None

    def start(self) -> None:
        if self._log_path.exists():
            with self._log_path.open("rb") as log:
                while True:
                    try:
                        version, effects = pickle.load(log)
                    except EOFError:
                        break
                    self._apply(version, effects)
                    self.newest = version
        self._first = self.newest
        self._log = self._log_path.open("ab", buffering=0)

    def _now(self) -> int:
        passed = int((time.monotonic() - self._base) * VERSIONS_PER_S)
        return max(self.newest, self._first + passed)

    def read_version(self) -> int:
        self.newest = self._now()
        return self.newest

    def _at(self, key: bytes, version: int) -> bytes | None:
        history = self.values.get(key, ())
        index = bisect_right(history, version, key=lambda entry: entry[0])
        return history[index - 1][1] if index else None

    def _check_age(self, version: int) -> None:
        if version < self._now() - LIFE:
            raise RefusedError(TOO_OLD)

    def get(self, version: int, key: bytes) -> bytes | None:
        self._check_age(version)
        return self._at(key, version)

    def get_range(self, version, begin, end, limit, reverse):
        """Return some rows and whether there are more."""
        self._check_age(version)
        rows, size = [], 0
        for key in self.values.irange(begin, end, inclusive=(True, False), reverse=reverse):
            value = self._at(key, version)
            if value is None:
                continue
            if len(rows) == PAGE_ROWS or size > PAGE_BYTES or (limit and len(rows) == limit):
                return rows, True
            rows.append((key, value))
            size += len(key) + len(value)
        return rows, False

    def commit(self, read_version, reads, writes, mutations):
        """Return (version, versionstamp)."""
        self._check_size(reads, writes, mutations)
        if read_version is not None and reads:
            self._check_age(read_version)
            if any(self._is_written(begin, end, read_version) for begin, end in reads):
                raise RefusedError(NOT_COMMITTED)
        version = self.newest = max(self._now(), self.newest + 1)
        stamp = struct.pack(">QH", version, 0)
        effects = [self._effect(mutation, stamp) for mutation in mutations]
        self._log.write(pickle.dumps((version, effects)))
        self._apply(version, effects)
        for begin, end in writes:
            if end == begin + b"\0":
                self.written[begin] = version
            else:
                self.cleared.append((version, begin, end))
        while self.cleared and self.cleared[0][0] < version - 2 * LIFE:
            self.cleared.popleft()
        return version, stamp

    def _check_size(self, reads, writes, mutations) -> None:
        for kind, key, value in mutations:
            if len(key) > KEY_MAX + (kind == "clear_range"):
                raise RefusedError(KEY_TOO_LARGE)
            if kind != "clear_range" and len(value) > VALUE_MAX:
                raise RefusedError(VALUE_TOO_LARGE)
        size = sum(RANGE_RECORD + len(b) + len(e) for b, e in [*reads, *writes])
        size += sum(MUTATION_RECORD + len(key) + len(value) for _, key, value in mutations)
        if size > SIZE_MAX:
            raise RefusedError(TOO_LARGE)

    def _is_written(self, begin: bytes, end: bytes, version: int) -> bool:
        if any(v > version and b < end and begin < e for v, b, e in self.cleared):
            return True
        keys = self.written.irange(begin, end, inclusive=(True, False))
        return any(self.written[key] > version for key in keys)

    def _effect(self, mutation, stamp: bytes):
        """Return what a mutation comes to: as `_apply` takes it,
        with the versionstamp filled in.
        """
        kind, key, value = mutation
        if kind == "stamped_key":
            key, kind = _stamped(key, stamp), "set"
        elif kind == "stamped_value":
            value, kind = _stamped(value, stamp), "set"
        return kind, key, value

    def _apply(self, version: int, effects) -> None:
        for kind, key, value in effects:
            if kind == "clear_range":
                for cleared in list(self.values.irange(key, value, inclusive=(True, False))):
                    self._put(cleared, version, None)
            elif kind == "add":
                old = (self._at(key, version) or b"")[: len(value)].ljust(len(value), b"\0")
                total = int.from_bytes(old, "little") + int.from_bytes(value, "little")
                mask = (1 << 8 * len(value)) - 1
                self._put(key, version, (total & mask).to_bytes(len(value), "little"))
            elif kind == "max":
                old = (self._at(key, version) or b"")[: len(value)].ljust(len(value), b"\0")
                number = max(int.from_bytes(old, "little"), int.from_bytes(value, "little"))
                self._put(key, version, number.to_bytes(len(value), "little"))
            else:
                self._put(key, version, value)

    def _put(self, key: bytes, version: int, value: bytes | None) -> None:
        history = self.values.setdefault(key, [])
        while len(history) > 1 and history[1][0] < version - 2 * LIFE:
            del history[0]
        if history and history[-1][0] == version:
            history.pop()
        history.append((version, value))
        self.written[key] = version

    # ---- what a test asks for ------------------------------------------------------------------

    def answer(self, name: str, *arguments):
        with self.lock:
            self.requests[name] = self.requests.get(name, 0) + 1
            if name == "push_faults":
                self.faults.extend(arguments)
                return None
            if name == "set_faults":
                self.faults = deque(arguments)
                return None
            if name == "count":
                return dict(self.requests)
            if name == "status":
                return _status()
            fault = self.faults[0] if self.faults and self.faults[0][0] == name else None
            if fault is None:
                return getattr(self, name)(*arguments)
            self.faults.popleft()
            _, code, takes_effect = fault
            if code == 0:  # this one meets no fault
                return getattr(self, name)(*arguments)
            if takes_effect:
                getattr(self, name)(*arguments)
            raise RefusedError(code)


def _stamped(parameter: bytes, stamp: bytes) -> bytes:
    (offset,) = struct.unpack("<L", parameter[-4:])
    body = parameter[:-4]
    assert body[offset : offset + 10] == bytes(10), "no placeholder where the offset points"
    return body[:offset] + stamp + body[offset + 10 :]


def _status() -> bytes:
    return (
        b'{"client": {"database_status": {"available": true}}, "cluster": {"processes": {"1":'
        b' {"version": "7.3.0-fake"}}, "configuration": {"redundancy_mode": "single"}}}'
    )


class Handler(socketserver.BaseRequestHandler):
    def setup(self) -> None:
        """Answers are small and many: one that waited for the one before to be acknowledged
        would take 40 ms.
        """
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle(self) -> None:
        buffer = bytearray()
        while chunk := self.request.recv(1 << 16):
            buffer += chunk
            for number, name, *arguments in unpack(buffer):
                try:
                    answer = (number, self.server.store.answer(name, *arguments), 0)
                except RefusedError as refused:
                    answer = (number, None, refused.code)
                self.request.sendall(pack(answer))


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no news."""


def end_with_parent() -> None:
    """End when whoever started this process has, however that came about."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    if "--with-parent" in sys.argv[3:]:
        threading.Thread(target=end_with_parent, daemon=True).start()
    cluster_file = Path(sys.argv[1])
    store = Store(cluster_file.with_suffix(".log"))
    store.start()
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with Server(("127.0.0.1", port), Handler) as server:
        server.store = store
        ready = cluster_file.with_suffix(".new")
        ready.write_text(f"fake:fake@127.0.0.1:{server.server_address[1]}\n")
        ready.rename(cluster_file)
        server.serve_forever()


if __name__ == "__main__":
    main()
