"""Random calls of the kernels that write rows, talk to the device, read many places,
and read other processes' memory, compared with their twins; `tests.kernels.fuzz` runs them.

Both are given the same files, sockets and memory, each its own, and must say, and leave
behind, the same.  Some calls are of things that no caller should give: descriptors that are
closed, of another kind or no number of one, sizes and offsets from anywhere, requests that
are torn or longer than known.
"""

import mmap
import os
import random
import resource
import signal
import socket
import struct
import tempfile
from contextlib import contextmanager

from fs.kernels import device_twin, direct_twin, lent_twin, writes_twin
from fs.kernels.device_twin import ANSWER, COUNT_MAX
from fs.kernels.lent_twin import NONCE_BYTES, PIECE, PIECE_COUNT_MAX, RANGE

FILE_BYTES = 1 << 16
UNIT = 512
CACHED_TRY_COUNT = 3
"""What one read brings back into the page cache, the other finds there:
a difference that stays has another reason.
"""


def outcome(call, *arguments):
    """Return what a call says, or how it refuses: the type, and of an operating error the number.

    A number that C has no type for is refused as one that cannot be is.
    """
    try:
        return call(*arguments)
    except (ValueError, OverflowError):
        return "ValueError"
    except (TypeError, BufferError, OSError) as error:
        return f"{type(error).__name__} {getattr(error, 'errno', None)}"


@contextmanager
def files_end_at(size):
    """Let the process write no file beyond a size: calls are cut short, or refused with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


class Fuzzer:
    """What both have in common; `done` counts calls that were not refused as a whole."""

    def __init__(self, compiled, twin, seed):
        self._both = compiled, twin
        self._rng = random.Random(seed)
        self._opened = []
        self.done = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for item in self._opened:
            item.close()

    def _number(self):
        """Return a small number, any, or one at an edge of what C has."""
        rng = self._rng
        edge = rng.choice([0, 1 << 30, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64])
        return rng.choice([rng.randrange(200), rng.getrandbits(70), edge + rng.randint(-3, 3)])

    def _bad_fd(self, *kinds):
        """Return what is no descriptor of a device, or of a file:
        closed, of another kind, or no number of one.

        It is never a small number of which nobody knows what it is: descriptors of this process
        that others use are not touched.
        """
        number = abs(self._number()) | 1 << 30
        return self._rng.choice([*(kind.fileno() for kind in kinds), -1, number, -number])

    def _keep(self, item):
        self._opened.append(item)
        return item


class WritesFuzzer(Fuzzer):
    """Compares `block_checksums` and `write_rows`."""

    def __init__(self, compiled, seed):
        super().__init__(compiled, writes_twin, seed)
        self._files = [self._keep(tempfile.TemporaryFile(buffering=0)) for _ in range(2)]  # noqa: SIM115
        self._full = self._keep(open("/dev/full", "wb", buffering=0))  # noqa: SIM115
        self._null = self._keep(open("/dev/null", "rb", buffering=0))  # noqa: SIM115
        self._socket = self._keep(socket.socket())
        self._memory = memoryview(mmap.mmap(-1, FILE_BYTES))
        self._memory[:] = self._rng.randbytes(FILE_BYTES)

    def call_each(self):
        """Call both once."""
        rng = self._rng
        data = self._data()
        block = rng.randrange(1, 3000) if rng.random() < 0.9 else self._number() or 1
        sums = [outcome(kernel.block_checksums, data, block) for kernel in self._both]
        assert sums[0] == sums[1], (block, len(data), sums)
        unit = rng.choice([1, UNIT, UNIT, 4096]) if rng.random() < 0.9 else self._number()
        rows = [self._row(rng.random() < 0.03) for _ in range(rng.choice([0, 1, 6, 30]))]
        if rng.random() < 0.02 and rows:
            rows = (rows * 1025)[: rng.choice([1024, 1025])]
        limit = rng.randrange(FILE_BYTES) if rng.random() < 0.2 else FILE_BYTES * 2
        found = []
        for kernel in self._both:
            for file in self._files:
                file.truncate(0)
            with files_end_at(limit):
                said = outcome(kernel.write_rows, block, unit, list(rows))
            found.append((said, [os.pread(f.fileno(), FILE_BYTES * 2, 0) for f in self._files]))
        assert found[0] == found[1], (block, unit, rows, limit, [said for said, _ in found])
        is_list = isinstance(found[0][0], list)
        assert is_list or not any(found[0][1]), "refused, and written"
        self.done += is_list

    def _data(self):
        rng = self._rng
        first = rng.randrange(FILE_BYTES)
        if rng.random() < 0.8:
            first -= first % UNIT
        size = rng.choice([0, 1, UNIT, 2 * UNIT, rng.randrange(4000)])
        part = self._memory[first : first + size]
        return rng.choice([part] * 8 + [bytes(part), bytearray(part), part.toreadonly()])

    def _row(self, is_bad):
        rng = self._rng
        data = self._data()
        number = rng.randrange(2)
        fd, offset = self._files[number].fileno(), rng.randrange(FILE_BYTES // UNIT) * UNIT
        if rng.random() < 0.5:
            # Often behind the row that was made before, if that was of this file.
            offset = getattr(self, "_next", 0)
        if is_bad:
            fd = self._bad_fd(self._full, self._null, self._socket)
            offset = rng.choice([offset, self._number(), -self._number()])
        self._next = min(offset + len(data), FILE_BYTES) if offset >= 0 else 0
        return fd, offset, data


class LentFuzzer(Fuzzer):
    """Compares `pieces_of`, `read_lent` and `read_files`,
    of this process and of such as are not there.
    """

    def __init__(self, compiled, seed):
        super().__init__(compiled, lent_twin, seed)
        self._memory = memoryview(bytearray(self._rng.randbytes(FILE_BYTES)))
        self._nonce = self._rng.randbytes(NONCE_BYTES)
        (self._base, _), (self._place, _) = PIECE.iter_unpack(
            lent_twin.pieces_of([self._memory, self._nonce])
        )
        self._files = [self._keep(tempfile.TemporaryFile(buffering=0)) for _ in range(2)]  # noqa: SIM115
        for file in self._files:
            file.write(self._rng.randbytes(FILE_BYTES))
        self._full = self._keep(open("/dev/full", "wb", buffering=0))  # noqa: SIM115
        self.files_read = 0

    def call_each(self):
        """Call both once."""
        self._read_memory()
        self._read_files()

    def _whose(self):
        """Return a process, where it has the nonce, and the nonce; not always."""
        rng = self._rng
        pid = os.getpid() if rng.random() < 0.9 else rng.choice([2**31 - 1, 2**30])
        place = self._place if rng.random() < 0.9 else self._number() % 2**64
        return (
            pid,
            place,
            self._nonce if rng.random() < 0.9 else rng.randbytes(rng.choice([0, 15, 16, 17])),
        )

    def _read_files(self):
        rng = self._rng
        rows = [self._row() for _ in range(rng.choice([0, 1, 3, 30]))]
        wanted = sum(length for _, _, length in rows)
        packed = b"".join(RANGE.pack(*row) for row in rows)
        if rng.random() < 0.05:
            packed = rng.choice([packed[:-1], packed * rng.choice([2, PIECE_COUNT_MAX])])
        sizes = self._sizes(wanted if wanted < 1 << 20 else 100)
        is_read_only = rng.random() < 0.03
        pid, place, nonce = self._whose()
        found = []
        for _ in range(CACHED_TRY_COUNT):
            found = []
            for kernel in self._both:
                into = [bytearray(size) for size in sizes]
                given = [*map(bytes, into)] if is_read_only else into
                found.append((outcome(kernel.read_files, pid, packed, given, place, nonce), into))
            if found[0][0] == found[1][0]:
                break
            self._have_cached()
        assert found[0][0] == found[1][0], (rows, sizes, place, [said for said, _ in found])
        if found[0][0] is None:
            assert found[0][1] == found[1][1]
            self.files_read += bool(wanted)

    def _have_cached(self):
        for file in self._files:
            os.pread(file.fileno(), FILE_BYTES, 0)

    def _row(self):
        rng = self._rng
        number = rng.choice(self._files).fileno()
        if rng.random() < 0.02:
            number = rng.choice([self._full.fileno(), 1 << 20, 2**31, 2**64 - 1])
        offset = rng.randrange(FILE_BYTES)
        length = rng.choice([0, 1, 100, 4096, FILE_BYTES - offset])
        if rng.random() < 0.02:
            offset, length = rng.choice(
                [(offset, FILE_BYTES), (2**63 - 5, 6), (2**64 - 1, 2), (0, 2**64 - 1)]
            )
        return (
            number,
            offset,
            min(length, FILE_BYTES - offset)
            if rng.random() < 0.8 and offset < FILE_BYTES
            else length,
        )

    def _sizes(self, wanted):
        """Return sizes of buffers, mostly of as many bytes as are wanted together."""
        rng, sizes = self._rng, []
        while wanted:
            sizes.append(min(wanted, rng.choice([0, 1, 7, 5000, wanted])))
            wanted -= sizes[-1]
        return [*sizes, rng.choice([0, 1])] if rng.random() < 0.1 else sizes

    def _read_memory(self):
        rng = self._rng
        parts = [self._part() for _ in range(rng.choice([0, 1, 3, 30]))]
        said = [outcome(kernel.pieces_of, parts) for kernel in self._both]
        assert said[0] == said[1], (parts, said)
        pieces = said[0] if rng.random() < 0.7 else b"".join(self._piece() for _ in range(3))
        if rng.random() < 0.05:
            pieces = rng.choice([pieces[:-1], pieces * rng.choice([2, PIECE_COUNT_MAX])])
        size = sum(map(len, parts))
        skip = rng.choice([0, rng.randrange(size + 1), self._number() % 2**64])
        size = rng.choice([max(0, size - skip), rng.randrange(FILE_BYTES)])
        pid, place, nonce = self._whose()
        found = []
        for kernel in self._both:
            into = bytearray(size)
            found.append((outcome(kernel.read_lent, pid, pieces, skip, into, place, nonce), into))
        assert found[0][0] == found[1][0], (pieces, skip, size, place, [s for s, _ in found])
        if found[0][0] is None:
            assert found[0][1] == found[1][1]
            self.done += 1

    def _part(self):
        first = self._rng.randrange(FILE_BYTES)
        return self._memory[first : first + self._rng.choice([0, 1, 100, 4000])]

    def _piece(self):
        rng = self._rng
        address = self._base + rng.randrange(FILE_BYTES)
        length = rng.choice([0, 1, 100, self._base + FILE_BYTES - address])
        if rng.random() < 0.3:
            address, length = rng.choice([(1, length), (address, 2**64 - 1), (2**64 - 5, length)])
        return PIECE.pack(address, length)


class DirectFuzzer(Fuzzer):
    """Compares `read_places`."""

    def __init__(self, compiled, seed):
        super().__init__(compiled, direct_twin, seed)
        self._file = self._keep(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
        self._file.write(self._rng.randbytes(FILE_BYTES))
        self._full = self._keep(open("/dev/full", "wb", buffering=0))  # noqa: SIM115

    def call_each(self):
        """Call both once."""
        rng = self._rng
        wanted = [self._place() for _ in range(rng.choice([0, 1, 3, 30, 150]))]
        is_read_only, bytes_max = rng.random() < 0.03, rng.choice([None, 1, 4096, self._number()])
        found = []
        for kernel in self._both:
            line = None if bytes_max is None else outcome(kernel.new_line, bytes_max)
            into = [bytearray(length) for _, _, length in wanted]
            given = [*map(bytes, into)] if is_read_only else into
            places = [(fd, at, to) for (fd, at, _), to in zip(wanted, given, strict=True)]
            found.append((outcome(kernel.read_places, places, line), into))
        assert found[0][0] == found[1][0], (wanted, [said for said, _ in found])
        if found[0][0] is True:
            assert found[0][1] == found[1][1]
            self.done += bool(wanted)

    def _place(self):
        rng = self._rng
        fd, offset = self._file.fileno(), rng.randrange(FILE_BYTES)
        length = rng.choice([0, 1, 100, 4096, FILE_BYTES])
        if rng.random() < 0.003:
            fd = rng.choice([self._full.fileno(), 1 << 20, -1])
        if rng.random() < 0.003:
            return fd, rng.choice([2**63 - 5, 2**64 - 1, self._number() % 2**64]), length
        return fd, offset, min(length, FILE_BYTES - offset) if rng.random() < 0.999 else length


class DeviceFuzzer(Fuzzer):
    """Compares `receive_reads`, `take_request`, and the answers."""

    def __init__(self, compiled, seed):
        super().__init__(compiled, device_twin, seed)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours, self._theirs = self._keep(ours), self._keep(theirs)
        for end in (ours, theirs):
            end.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        self._file = self._keep(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
        self._file.write(self._rng.randbytes(100))
        self._full = self._keep(open("/dev/full", "wb", buffering=0))  # noqa: SIM115

    def call_each(self):
        """Call each once; what is taken apart, and single answers, do not count as done."""
        self._receive()
        self._answer()
        self._take()
        self._answer_one()

    def _take(self):
        rng = self._rng
        size = rng.choice([0, 39, 40, 41, 79, 80, 81, 180, 181, self._number(), -self._number()])
        length = size if rng.random() < 0.9 else self._number()
        head = struct.pack("=I", length % 2**32) + rng.randbytes(76 if rng.random() < 0.9 else 40)
        args = bytearray(head), rng.randbytes(100), size
        both = [outcome(kernel.take_request, *args) for kernel in self._both]
        assert both[0] == both[1], (args, both)

    def _answer_one(self):
        rng = self._rng
        sizes = [rng.choice([0, 1, 100, 4096, 20_000]) for _ in range(rng.choice([0, 1, 2, 8, 9]))]
        parts = tuple(rng.randbytes(size) for size in sizes)
        unique = rng.choice([rng.getrandbits(64), self._number(), -1])
        error = rng.choice([0] * 8 + [2, 2**31 - 1, 2**31, -1])
        found, fd = [], self._fd()
        for kernel in self._both:
            said = outcome(kernel.answer_request, fd, unique, error, parts)
            found.append((said, self._rest(self._ours)))
            self._file.truncate(100)
            self._file.seek(0)
        assert found[0] == found[1], (fd, unique, error, sizes, found)

    def _fd(self):
        if self._rng.random() < 0.95:
            return self._theirs.fileno()
        return self._bad_fd(self._file, self._full)

    def _receive(self):
        rng = self._rng
        is_plain = rng.random() < 0.3  # so that some calls meet as many as they take
        messages = [self._message(is_plain) for _ in range(rng.choice([0, 1, 3, 70]))]
        fd, head_bytes = self._fd(), 80 if rng.random() < 0.95 else rng.randrange(100)
        data_bytes = rng.choice([0, 1, 100, 5000])
        count_max = rng.choice([1, 2, COUNT_MAX, 1000, self._number(), -self._number()])
        count_max = min(count_max, 2**63 - 1)
        found = []
        for kernel in self._both:
            self._file.seek(0)
            for message in messages:
                try:
                    self._ours.send(message)
                except BlockingIOError:
                    break  # no more fit; as many fit the next time
            head, data = bytearray(head_bytes), bytearray(data_bytes)
            said = outcome(kernel.receive_reads, fd, head, data, count_max)
            found.append((said, head, data, self._rest(self._theirs)))
        assert found[0] == found[1], (fd, head_bytes, count_max, messages, found)
        self.done += isinstance(found[0][0], tuple)

    def _message(self, is_plain):
        rng = self._rng
        if is_plain:
            return struct.pack("=II", 80, 15) + rng.randbytes(72)
        opcode, size = rng.choice([(15, 80)] * 20 + [(15, 40), (1, 80), (15, 88), (16, 300)])
        length = size if rng.random() < 0.9 else rng.choice([0, 80, 2**32 - 1])
        message = struct.pack("=II", length, opcode) + rng.randbytes(size - 8)
        return message[: rng.randrange(size) + 1] if rng.random() < 0.05 else message

    def _answer(self):
        rng = self._rng
        memory = rng.randbytes(rng.choice([0, 10, 1000, 9000]))
        rows = [self._row(len(memory)) for _ in range(rng.choice([0, 1, 5, 64, 65]))]
        packed = b"".join(rows)
        if rng.random() < 0.05:
            packed += rng.randbytes(rng.randrange(1, 24))
        fd = self._fd() if packed else self._theirs.fileno()  # unused where nothing is answered
        found = []
        for kernel in self._both:
            said = outcome(kernel.answer_reads, fd, packed, memory)
            found.append((said, self._rest(self._ours)))
            self._file.truncate(100)
            self._file.seek(0)
        assert found[0] == found[1], (fd, packed, len(memory), found)
        is_list = isinstance(found[0][0], list)
        assert is_list or not found[0][1], "refused, and answered"
        self.done += is_list

    def _row(self, size):
        rng = self._rng
        place = rng.randrange(size + 1)
        length = rng.randrange(size - place + 1)
        error = rng.choice([0] * 8 + [2, 5, 2**31 - 1])
        if rng.random() < 0.01:
            place, length = self._number() & (2**64 - 1), self._number() & (2**32 - 1)
            error = rng.choice([0, -1, -(2**31)])
        return ANSWER.pack(rng.getrandbits(64), place, length, error)

    @staticmethod
    def _rest(end):
        """Return the messages that nobody has taken."""
        found = []
        while True:
            try:
                found.append(end.recv(1 << 16))
            except BlockingIOError:
                return found
