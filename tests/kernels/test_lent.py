"""Reading what another process lends: the compiled kernel and its twin do the same,
to the byte and to the errno.
"""

import ctypes
import errno
import mmap
import os
import random
import subprocess
import sys

import pytest

from fs.kernels import lent, lent_twin
from fs.kernels.lent_twin import NONCE_BYTES, PIECE, PIECE_COUNT_MAX, RANGE
from tests.examples import many

from .fuzz_io import LentFuzzer

if lent.IS_COMPILED:
    from fs.kernels import _lent as compiled
else:
    compiled = None

NONCE = bytes(range(NONCE_BYTES))
ME = os.getpid()

CHILD = """
import sys
from fs.kernels.lent_twin import pieces_of
nonce, data = bytes(range(16)), bytes(range(256)) * 4096
sys.stdout.buffer.write(pieces_of([nonce, data]))
sys.stdout.buffer.flush()
sys.stdin.read()
"""


def place_of(kernel, buffer):
    return PIECE.unpack(kernel.pieces_of([buffer]))[0]


def errno_of(call, *arguments):
    with pytest.raises(OSError, match="Errno") as caught:
        call(*arguments)
    return caught.value.errno


@pytest.fixture
def other():
    """Yield another process that has the nonce and a MiB of data:
    (process, where the nonce is, pieces of the data).
    """
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        said = child.stdout.read(2 * PIECE.size)
        yield child, PIECE.unpack_from(said)[0], said[PIECE.size :]
        child.stdin.close()


def test_pieces_say_where_buffers_lie(kernel):
    data = bytearray(100)
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    found = list(
        PIECE.iter_unpack(kernel.pieces_of([data, memoryview(data)[7:50], memoryview(b"")]))
    )
    assert found[:2] == [(address, 100), (address + 7, 43)]
    assert found[2][1] == 0
    data.append(1)  # nobody holds it
    assert kernel.pieces_of([]) == b""
    with pytest.raises(ValueError, match="too many"):
        kernel.pieces_of([b""] * (PIECE_COUNT_MAX + 1))
    with pytest.raises((TypeError, BufferError)):
        kernel.pieces_of([b"x", "no bytes"])
    with pytest.raises(BufferError):
        kernel.pieces_of([memoryview(b"abcd")[::2]])


def test_what_another_process_lends_is_read(kernel, other):
    child, place, pieces = other
    into = bytearray(300)
    kernel.read_lent(child.pid, pieces, 5000, into, place, NONCE)
    assert into == (bytes(range(256)) * 3)[5000 % 256 :][:300]
    kernel.read_lent(child.pid, b"", 0, bytearray(), place, NONCE)  # it has the nonce
    child.stdin.close()
    child.wait()
    assert errno_of(kernel.read_lent, child.pid, pieces, 0, into, place, NONCE) == errno.ESRCH


def test_every_part_of_scattered_pieces_is_read_from_its_place(kernel):
    rng = random.Random(1)
    buffers = [rng.randbytes(size) for size in (3, 0, 5, 1, 0, 4)]
    whole = b"".join(buffers)
    pieces, place = kernel.pieces_of(buffers), place_of(kernel, NONCE)
    for skip in range(len(whole) + 1):
        for size in range(len(whole) - skip + 1):
            into = bytearray(size)
            kernel.read_lent(ME, pieces, skip, into, place, NONCE)
            assert into == whole[skip : skip + size]
    most = [b"%d" % (n % 10) for n in range(PIECE_COUNT_MAX)]
    into = bytearray(PIECE_COUNT_MAX)
    kernel.read_lent(ME, kernel.pieces_of(most), 0, into, place, NONCE)
    assert bytes(into) == b"".join(most)


def test_a_process_without_the_nonce_is_another_one(kernel, other):
    child, place, pieces = other
    into = bytearray(10)
    assert errno_of(kernel.read_lent, child.pid, pieces, 0, into, place, bytes(16)) == errno.ESRCH
    assert errno_of(kernel.read_lent, child.pid, pieces, 0, into, place + 1, NONCE) == errno.ESRCH
    assert errno_of(kernel.read_lent, child.pid, pieces, 0, into, 0, NONCE) == errno.EFAULT


def test_memory_that_is_not_there_is_no_success(kernel):
    place, into = place_of(kernel, NONCE), bytearray(mmap.PAGESIZE)
    gone = PIECE.pack(4096, mmap.PAGESIZE)
    assert errno_of(kernel.read_lent, ME, gone, 0, into, place, NONCE) == errno.EFAULT
    good = bytes(mmap.PAGESIZE // 2)
    pieces = kernel.pieces_of([good]) + gone
    assert errno_of(kernel.read_lent, ME, pieces, 0, into, place, NONCE) == errno.EFAULT, "a part"
    high = PIECE.pack(2**64 - 2 * mmap.PAGESIZE, mmap.PAGESIZE)
    assert errno_of(kernel.read_lent, ME, high, 0, into, place, NONCE) == errno.EFAULT, (
        "the kernel's"
    )
    assert errno_of(kernel.read_lent, 2**31 - 1, gone, 0, into, place, NONCE) == errno.ESRCH


def test_what_makes_no_sense_is_refused_before_anything_is_read(kernel):
    place, into = place_of(kernel, NONCE), bytearray(b"as before")
    good = kernel.pieces_of([bytes(9)])
    for pieces, skip, nonce in [
        (good[:-1], 0, NONCE),
        (good, 1, NONCE),
        (good, 2**63, NONCE),
        (b"", 0, NONCE),
        (good, 0, NONCE[:-1]),
        (PIECE.pack(2**64 - 1, 9), 0, NONCE),
        (PIECE.pack(1, 2**64 - 1), 0, NONCE),
        (PIECE.pack(place, 0) * (PIECE_COUNT_MAX + 1) + good, 0, NONCE),
    ]:
        with pytest.raises(ValueError, match=r"piece|nonce"):
            kernel.read_lent(ME, pieces, skip, into, place, nonce)
    with pytest.raises((TypeError, BufferError)):
        kernel.read_lent(ME, good, 0, b"not to be written to", place, NONCE)
    assert into == b"as before"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_of_another_user_nothing_is_read(kernel):
    pieces, place = kernel.pieces_of([b"private"]), place_of(kernel, NONCE)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            kernel.read_lent(os.getppid(), pieces, 0, bytearray(7), place, NONCE)
        except OSError as error:
            code = 0 if error.errno == errno.EPERM else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def files(disk_path):
    """Yield two files and what is in them: [(descriptor, bytes), ...]."""
    rng, made = random.Random(2), []
    for name in ("one", "two"):
        data = rng.randbytes(200_000)
        (disk_path / name).write_bytes(data)
        made.append((os.open(disk_path / name, os.O_RDONLY), data))
    yield made
    for fd, _ in made:
        os.close(fd)


def open_count():
    return len(os.listdir("/proc/self/fd"))


def test_ranges_of_files_go_to_buffers_one_after_the_other(kernel, files):
    (one, first), (two, second) = files
    ranges = [
        (one, 5, 100_000),
        (two, 0, 7),
        (one, 150_000, 0),
        (one, 3, 50_000),
        (two, 9, 190_000),
    ]
    contents = {one: first, two: second}
    whole = b"".join(contents[fd][at : at + size] for fd, at, size in ranges)
    packed, place, before = (
        b"".join(RANGE.pack(*row) for row in ranges),
        place_of(kernel, NONCE),
        open_count(),
    )
    for sizes in ([len(whole)], [1, 0, 99_999, 100_000], [7] * (len(whole) // 7)):
        into = [bytearray(size) for size in (*sizes, len(whole) - sum(sizes))]
        kernel.read_files(ME, packed, into, place, NONCE)
        assert b"".join(into) == whole
    kernel.read_files(ME, b"", [], place, NONCE)
    assert open_count() == before


def test_files_of_another_process_are_read(kernel, files, disk_path):
    fd, data = files[0]
    source = CHILD.replace(
        "sys.stdout.buffer.flush()",
        "file = open(sys.argv[1], 'rb'); print(file.fileno()); sys.stdout.flush()",
    )
    command = [sys.executable, "-c", source, str(disk_path / "one")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        (place, _), number = (
            PIECE.unpack(child.stdout.read(2 * PIECE.size)[: PIECE.size]),
            int(child.stdout.readline()),
        )
        into = bytearray(1000)
        kernel.read_files(child.pid, RANGE.pack(number, 500, 1000), [into], place, NONCE)
        assert into == data[500:1500]
        assert (
            errno_of(
                kernel.read_files, child.pid, RANGE.pack(number, 0, 1000), [into], place, bytes(16)
            )
            == errno.ESRCH
        )
        child.stdin.close()
        child.wait()
        assert (
            errno_of(
                kernel.read_files, child.pid, RANGE.pack(number, 0, 1000), [into], place, NONCE
            )
            == errno.ESRCH
        )
    assert fd != -1


@pytest.mark.parametrize("name", ["pidfd_open", "RWF_NOWAIT"])
def test_an_interpreter_that_lacks_a_call_reads_no_files(files, monkeypatch, name):
    """Those for all distributions are built with old headers."""
    (one, _), _ = files
    place, packed = place_of(lent_twin, NONCE), RANGE.pack(one, 0, 10)
    monkeypatch.delattr(os, name)
    error = errno_of(lent_twin.read_files, ME, packed, [bytearray(10)], place, NONCE)
    assert error == errno.ENOSYS


def test_what_cannot_be_read_of_files_is_no_success(kernel, files):
    (one, data), _ = files
    place, into, before = place_of(kernel, NONCE), bytearray(10), open_count()
    ends, folder = os.pipe(), os.open("/", os.O_RDONLY)
    for number, offset, error in [
        (one, len(data) - 9, errno.EAGAIN),
        (one, 2**62, errno.EAGAIN),
        (1 << 20, 0, errno.EBADF),
        (2**31, 0, errno.EBADF),
        (2**64 - 1, 0, errno.EBADF),
        (ends[0], 0, errno.EINVAL),
        (folder, 0, errno.EINVAL),
    ]:
        good, bad = RANGE.pack(one, 0, 10), RANGE.pack(number, offset, 10)
        for packed, count in ((bad, 1), (good + bad, 2), (bad + good, 2)):
            assert errno_of(kernel.read_files, ME, packed, [into] * count, place, NONCE) == error
    assert (
        errno_of(kernel.read_files, ME, RANGE.pack(one, 0, 10), [into], place + 1, NONCE)
        == errno.ESRCH
    )
    assert errno_of(kernel.read_files, 2**31 - 1, b"", [], place, NONCE) in (
        errno.ESRCH,
        errno.EINVAL,
    )
    for fd in (*ends, folder):
        os.close(fd)
    assert open_count() == before


def test_ranges_that_make_no_sense_are_refused_before_anything_is_read(kernel, files):
    (one, _), _ = files
    place, into = place_of(kernel, NONCE), bytearray(b"as before")
    good = RANGE.pack(one, 0, 9)
    for ranges, nonce in [
        (good[:-1], NONCE),
        (good, NONCE[:-1]),
        (RANGE.pack(one, 0, 8), NONCE),
        (RANGE.pack(one, 0, 10), NONCE),
        (RANGE.pack(one, 2**63 - 9, 9), NONCE),
        (RANGE.pack(one, 2**64 - 1, 9), NONCE),
        (good + RANGE.pack(one, 0, 2**64 - 9), NONCE),
        (RANGE.pack(one, 0, 0) * PIECE_COUNT_MAX + good, NONCE),
    ]:
        with pytest.raises(ValueError, match=r"range|nonce"):
            kernel.read_files(ME, ranges, [into], place, nonce)
    with pytest.raises((TypeError, BufferError)):
        kernel.read_files(ME, good, [b"read only"], place, NONCE)
    with pytest.raises(TypeError):
        kernel.read_files(ME, good, [9], place, NONCE)
    assert into == b"as before"


@pytest.mark.skipif(compiled is None, reason="not compiled: python setup.py build_ext --inplace")
def test_random_calls_end_alike():
    with LentFuzzer(compiled, 1) as fuzzer:
        for _ in range(many(2000)):
            fuzzer.call_each()
        assert fuzzer.done > many(100) and fuzzer.files_read > many(100)
    assert lent_twin.PIECE.size == 16
