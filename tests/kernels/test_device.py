"""READs taken in and answered: the compiled kernel and its twin do the same,
over a socket that keeps boundaries as the device does.
"""

import ctypes
import errno
import os
import random
import socket
import struct
import sys

import pytest

from fs.client.fuse.direct.device import mount_device
from fs.kernels import device, device_twin
from fs.kernels.device_twin import ANSWER, COUNT_MAX, READ_REQUEST

from .fuzz_io import DeviceFuzzer

if device.IS_COMPILED:
    from fs.kernels import _device as compiled
else:
    compiled = None

MNT_FORCE, MNT_DETACH = 1, 2


@pytest.fixture
def pair():
    """Yield both ends: of the kernel, and of the mount, which does not block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs


def a_read(unique, offset=0, size=4096):
    return READ_REQUEST.pack(80, 15, unique, 7, 1, 2, 3, 0, 0, 5, offset, size, 0, 9, 0, 0)


def other(opcode, body, length=None):
    length = 40 + len(body) if length is None else length
    return struct.pack("=IIQQIIIHH", length, opcode, 2, 1, 0, 0, 0, 0, 0) + body


def taken(kernel, theirs, count_max=COUNT_MAX):
    head, data = bytearray(80), bytearray(5000)
    rows, count = kernel.receive_reads(theirs.fileno(), head, data, count_max)
    return rows, count, (bytes(head) + bytes(data))[: max(count, 0)]


def test_reads_are_taken_in_until_there_is_no_more(kernel, pair):
    ours, theirs = pair
    assert taken(kernel, theirs) == (b"", -1, b"")
    for unique in range(5):
        ours.send(a_read(unique, unique * 10))
    rows, count, _ = taken(kernel, theirs, 3)
    found = list(READ_REQUEST.iter_unpack(rows))
    assert (count, [(row[2], row[10]) for row in found]) == (-1, [(0, 0), (1, 10), (2, 20)])
    assert found[0][3:7] == (7, 1, 2, 3)
    assert taken(kernel, theirs)[:2] == (a_read(3, 30) + a_read(4, 40), -1)


@pytest.mark.parametrize(
    "request_",
    [
        other(1, b"name\0"),
        other(16, bytes(40) + b"x" * 4096),
        other(14, bytes(8)),
        other(3, bytes(40)),
        other(15, bytes(40), length=81),
        other(15, bytes(48)),
    ],
)
def test_what_is_no_plain_read_ends_it_and_is_left_whole(kernel, pair, request_):
    ours, theirs = pair
    for message in (a_read(1), request_, a_read(3)):
        ours.send(message)
    assert taken(kernel, theirs) == (a_read(1), len(request_), request_)
    assert taken(kernel, theirs) == (a_read(3), -1, b"")


def test_there_is_a_bound_on_what_one_call_takes(kernel, pair):
    ours, theirs = pair
    for unique in range(COUNT_MAX + 1):
        ours.send(a_read(unique))
    assert len(taken(kernel, theirs, 10**9)[0]) == COUNT_MAX * READ_REQUEST.size
    assert taken(kernel, theirs)[:2] == (a_read(COUNT_MAX), -1)


def test_the_end_is_told_once_all_reads_are(kernel, pair):
    ours, theirs = pair
    ours.send(a_read(1))
    ours.shutdown(socket.SHUT_WR)
    assert taken(kernel, theirs)[:2] == (a_read(1), 0)
    assert taken(kernel, theirs)[:2] == (b"", 0)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            kernel.receive_reads(writer, bytearray(80), bytearray(1), 1)
    finally:
        os.close(writer)


@pytest.mark.parametrize(("head", "count_max"), [(79, 1), (81, 1), (0, 1), (80, 0), (80, -1)])
def test_a_head_of_another_size_and_no_requests_are_refused(kernel, pair, head, count_max):
    with pytest.raises(ValueError, match="for a head"):
        kernel.receive_reads(pair[1].fileno(), bytearray(head), bytearray(10), count_max)


@pytest.mark.parametrize("count", [0, 1, 39, 40, 41, 300, 5040])
def test_a_request_is_taken_apart_wherever_its_bytes_lie(kernel, pair, count):
    ours, theirs = pair
    body = random.Random(count).randbytes(count)
    ours.send(
        struct.pack("=IIQQIIIHH", 40 + count, 3, 2**64 - 2, 2**63, 2**32 - 1, 6, 7, 0, 0) + body
    )
    head, data = bytearray(80), bytearray(5000)
    assert kernel.receive_reads(theirs.fileno(), head, data, 1) == (b"", 40 + count)
    fields = (2**64 - 2, 3, 2**63, 2**32 - 1, 6, 7, body)
    assert kernel.take_request(head, data, 40 + count) == fields


@pytest.mark.parametrize(
    ("head", "length", "size"),
    [(80, 39, 39), (80, 181, 181), (80, 50, 51), (79, 50, 50), (81, 50, 50), (80, 0, 0)],
)
def test_what_is_no_request_is_not_taken_apart(kernel, head, length, size):
    begin = struct.pack("=II", length, 1) + bytes(head - 8)
    with pytest.raises(ValueError, match=f"{size} bytes of a request"):
        kernel.take_request(bytearray(begin), bytearray(100), size)


@pytest.mark.parametrize("parts", [(), (b"",), (b"entry", memoryview(b"open")), (b"x" * 100_000,)])
def test_a_request_is_answered_with_its_parts_or_an_errno(kernel, pair, parts):
    ours, theirs = pair
    unique, said = 2**64 - 2, b"".join(parts)
    for number in (0, errno.ENOENT):
        assert kernel.answer_request(theirs.fileno(), unique, number, parts) == 0
        assert ours.recv(1 << 20) == struct.pack("=IiQ", 16 + len(said), -number, unique) + said


@pytest.mark.parametrize(
    ("fd", "unique", "number", "count"),
    [
        (0, -1, 0, 1),
        (0, 2**64, 0, 1),
        (0, 1, -1, 1),
        (0, 1, 2**31, 1),
        (2**31, 1, 0, 1),
        (0, 1, 0, 9),
    ],
)
def test_an_answer_beyond_its_fields_or_of_too_many_parts_is_refused(  # noqa: PLR0917 - the table
    kernel, pair, fd, unique, number, count
):
    ours, theirs = pair
    with pytest.raises(ValueError, match=r"number|parts"):
        kernel.answer_request(fd or theirs.fileno(), unique, number, (b"x",) * count)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(100)


def test_an_answer_that_the_device_refuses_is_told_of(kernel, pair):
    theirs = pair[1]
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    for size in (10_000, 1 << 20):
        failed = kernel.answer_request(theirs.fileno(), 2, 0, (bytes(size),))
        assert failed == errno.EMSGSIZE
    assert kernel.answer_request(1 << 20, 2, 0, ()) == errno.EBADF


def test_each_read_is_answered_by_its_part_of_the_memory(kernel, pair):
    ours, theirs = pair
    memory = random.Random(3).randbytes(9000)
    rows = [(2, 0, 4096, 0), (4, 4096, 4904, 0), (6, 100, 50, errno.EINTR), (8, 9000, 0, 0)]
    packed = b"".join(ANSWER.pack(*row) for row in rows)
    assert kernel.answer_reads(theirs.fileno(), packed, memory) == []
    for unique, place, length, number in rows:
        part = memory[place : place + length] if not number else b""
        assert ours.recv(10_000) == struct.pack("=IiQ", 16 + len(part), -number, unique) + part


@pytest.mark.parametrize(
    ("place", "length", "number"),
    [(0, 101, 0), (100, 1, 0), (101, 0, 0), (2**64 - 1, 2, 0), (2**64 - 4096, 4096, 0), (0, 1, -1)],
)
def test_answers_beyond_the_memory_are_refused_and_nothing_is_said(
    kernel, pair, place, length, number
):
    ours, theirs = pair
    good, bad = ANSWER.pack(2, 0, 10, 0), ANSWER.pack(4, place, length, number)
    with pytest.raises(ValueError, match="answer 1 is beyond the memory"):
        kernel.answer_reads(theirs.fileno(), good + bad, bytes(100))
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(100)


def test_what_is_no_whole_number_of_answers_or_too_many_is_refused(kernel, pair):
    for packed in (b"x", bytes(ANSWER.size + 1), bytes(ANSWER.size * (COUNT_MAX + 1))):
        with pytest.raises(ValueError, match="bytes of answers"):
            kernel.answer_reads(pair[1].fileno(), packed, b"")
    assert kernel.answer_reads(pair[1].fileno(), b"", b"") == []


def test_what_the_device_refuses_is_told_of_each_and_the_others_are_answered(kernel, pair):
    ours, theirs = pair
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    packed = ANSWER.pack(2, 0, 1 << 20, 0) + ANSWER.pack(4, 0, 3, 0)
    refused = kernel.answer_reads(theirs.fileno(), packed, bytes(1 << 20))
    assert refused == [(0, errno.EMSGSIZE)]
    assert ours.recv(100) == struct.pack("=IiQ", 19, 0, 4) + bytes(3)


def test_of_many_calls_both_say_the_same(pair):
    if compiled is None:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    ours, theirs = pair
    rng = random.Random(11)
    for _ in range(200):
        messages = [
            a_read(rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(32))
            if rng.random() < 0.7
            else other(rng.randrange(20), rng.randbytes(rng.choice((0, 39, 40, 41, 300))))
            for _ in range(rng.randrange(6))
        ]
        found = []
        for kernel in (compiled, device_twin):
            for message in messages:
                ours.send(message)
            calls = [taken(kernel, theirs, 3)]
            while calls[-1] != (b"", -1, b""):
                calls.append(taken(kernel, theirs, 3))
            found.append(calls)
        assert found[0] == found[1]


def test_of_random_calls_both_say_and_leave_the_same():
    if compiled is None:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    with DeviceFuzzer(compiled, 1) as fuzzer:
        for _ in range(300):
            fuzzer.call_each()
        assert 300 < fuzzer.done < 600, "of refused ones there are some, too"


def test_refusals_keep_nothing(kernel, pair):
    closed = os.dup(pair[1].fileno())
    os.close(closed)
    head, data, answers = bytearray(80), bytearray(5), bytearray(ANSWER.pack(1, 0, 6, 0))
    things = head, data, answers
    before = list(map(sys.getrefcount, things))
    for _ in range(50):
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            kernel.receive_reads(closed, head, data, 1)
        with pytest.raises(ValueError, match="for a head"):
            kernel.receive_reads(closed, head, data, 0)
        with pytest.raises((TypeError, BufferError)):
            kernel.receive_reads(closed, head, b"read-only", 1)
        with pytest.raises(ValueError, match="beyond the memory"):
            kernel.answer_reads(closed, answers, data)
        assert kernel.answer_reads(closed, answers, bytes(6)) == [(0, errno.EBADF)]
        with pytest.raises(ValueError, match="of a request"):
            kernel.take_request(head, data, 86)
        assert kernel.answer_request(closed, 1, 0, (data, head)) == errno.EBADF
        with pytest.raises(TypeError):
            kernel.answer_request(closed, 1, 0, (data, head, "text"))
    assert list(map(sys.getrefcount, things)) == before
    for memory in things:
        memory.append(0)  # refused while somebody holds it


@pytest.mark.mount
def test_a_real_device_refuses_what_it_has_no_use_for_and_says_that_it_is_gone(kernel, tmp_path):
    libc = ctypes.CDLL(None)
    fd = mount_device(tmp_path, [], "test")
    os.set_blocking(fd, False)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            kernel.receive_reads(fd, bytearray(80), bytearray(100), 1)  # smaller than it allows
        head, data = bytearray(80), bytearray(1 << 20)
        rows, count = kernel.receive_reads(fd, head, data, 5)
        opcode = struct.unpack_from("=I", head, 4)[0]
        assert (rows, opcode) == (b"", 26) and count > 40  # the handshake
        assert kernel.receive_reads(fd, head, data, 5) == (b"", -1)
        nobody, no_errno = ANSWER.pack(10**6, 0, 3, 0), ANSWER.pack(10**6, 0, 0, 5000)
        assert kernel.answer_reads(fd, nobody + no_errno, b"abc") == [(1, errno.EINVAL)]
        assert libc.umount2(os.fsencode(tmp_path), MNT_FORCE) == 0
        with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
            kernel.receive_reads(fd, head, data, 5)
        assert kernel.answer_reads(fd, nobody, b"abc") == []
        assert kernel.answer_request(fd, 10**6, 0, (b"abc",)) in {errno.ENOENT, errno.ENODEV}
    finally:
        os.close(fd)
        libc.umount2(os.fsencode(tmp_path), MNT_DETACH)
