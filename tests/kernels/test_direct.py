"""Having a disk read several places at once: the compiled kernel and its twin do the same."""

import os
import random
import subprocess
import sys
import threading

import pytest

from fs.kernels import direct, direct_twin

from .fuzz_io import DirectFuzzer
from .growth import assert_nothing_stays

if direct.IS_COMPILED:
    from fs.kernels import _direct as compiled
else:
    compiled = None

PATIENCE_S = 60.0
"""Of a test that would hang otherwise."""

CONTENT = random.Random(1).randbytes(300_000)


@pytest.fixture
def fd(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("count", [0, 1, 2, 64, 65, 200])
def test_all_places_are_read(kernel, fd, count):
    rng = random.Random(count)
    wanted = [(rng.randrange(200_000), rng.choice([0, 1, 4096, 70_000])) for _ in range(count)]
    buffers = [bytearray(length) for _, length in wanted]
    places = [(fd, at, into) for (at, _), into in zip(wanted, buffers, strict=True)]
    assert kernel.read_places(places) is True
    assert buffers == [CONTENT[at : at + length] for at, length in wanted]


@pytest.mark.parametrize("position", [0, 1, 70, 99])
def test_one_that_is_not_whole_or_cannot_be_read_is_told(kernel, fd, position):
    closed = os.dup(fd)
    os.close(closed)
    for bad in ((fd, 299_999, bytearray(2)), (closed, 0, bytearray(1)), (-1, 0, bytearray(1))):
        places = [(fd, n, bytearray(1000)) for n in range(100)]
        places[position] = bad
        assert kernel.read_places(places) is False, bad
        assert kernel.read_places([bad]) is False
    assert kernel.read_places([(closed, 300_000, bytearray(0)), (fd, 299_999, bytearray(1))])


def test_what_makes_no_sense_is_refused_before_anything_is_read(kernel, fd):
    into = bytearray(10)
    for bad in ((fd, 2**63 - 5, bytearray(6)), (fd, 2**64 - 1, bytearray(1))):
        with pytest.raises(ValueError, match="beyond any file"):
            kernel.read_places([(fd, 0, into), bad])
    for bad in ((fd, 0), "no place", (fd, 0, b"not to be written to"), (fd, 0, "no bytes")):
        with pytest.raises(TypeError):
            kernel.read_places([(fd, 0, into), bad])
    assert into == bytes(10)
    into.append(1)  # nobody holds it


@pytest.mark.parametrize("bytes_max", [1, 5000, 1 << 30])
def test_those_in_a_line_all_read_what_they_want(kernel, fd, bytes_max):
    """Places that are refused, or not whole, give their room back, too:
    one that needs all of it would wait for ever.
    """
    line, wrong, reader_count = kernel.new_line(bytes_max), [], 8

    def read(seed):
        rng = random.Random(seed)
        for number in range(20):
            wanted = [
                (rng.randrange(200_000), rng.choice([0, 1, 4096, 70_000]))
                for _ in range(rng.choice([0, 1, 5, 70]))
            ]
            buffers = [bytearray(length) for _, length in wanted]
            places = [(fd, at, into) for (at, _), into in zip(wanted, buffers, strict=True)]
            is_bad = number % 10 == seed
            if is_bad:
                places.insert(rng.randrange(len(places) + 1), (fd, 299_999, bytearray(2)))
            if kernel.read_places(places, line) is is_bad:
                wrong.append((seed, number))
            elif not is_bad and buffers != [CONTENT[at : at + n] for at, n in wanted]:
                wrong.append((seed, number, "bytes"))

    readers = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(reader_count)]
    for one in readers:
        one.start()
    for one in readers:
        one.join(PATIENCE_S)
        assert not one.is_alive()
    assert not wrong
    whole = bytearray(len(CONTENT))
    assert kernel.read_places([(fd, 0, whole)], line) and whole == CONTENT


def test_what_is_no_line_is_refused(kernel, fd):
    for count in (0, -1, 2**63):
        with pytest.raises((ValueError, OverflowError)):
            kernel.new_line(count)
    into = bytearray(10)
    for line in (0, "line", object()):
        with pytest.raises(TypeError):
            kernel.read_places([(fd, 0, into)], line)
    assert into == bytes(10)
    assert kernel.read_places([(fd, 0, into)], None) and into == CONTENT[:10]


def test_who_makes_no_sense_takes_no_place_in_a_line(kernel, fd):
    line = kernel.new_line(100)
    with pytest.raises(ValueError, match="beyond any file"):
        kernel.read_places([(fd, 2**64 - 1, bytearray(1))], line)
    assert kernel.read_places([(fd, 0, bytearray(10))], line)


def test_who_has_no_memory_to_wait_in_the_twins_line_holds_up_nobody(fd, monkeypatch):
    """All others waited for him for ever, though he had been told."""
    line, into = direct_twin.new_line(1), bytearray(10)
    is_inside, may_end = threading.Event(), threading.Event()

    def no_memory(*_args):
        raise MemoryError

    def slow(buffers, at, _flags):
        is_inside.set()
        may_end.wait(PATIENCE_S)
        return os.preadv(fd, buffers, at)

    def begun(*places):
        reader = threading.Thread(target=direct_twin.read_places, args=(places, line), daemon=True)
        reader.start()
        return reader

    first = begun((slow, 0, bytearray(10)))
    assert is_inside.wait(PATIENCE_S)
    with monkeypatch.context() as patch:
        for name in ("Lock", "_allocate_lock"):
            patch.setattr(threading, name, no_memory)
        with pytest.raises(MemoryError):
            direct_twin.read_places([(fd, 0, bytearray(10))], line)
    last = begun((fd, 0, into))
    may_end.set()
    for reader in (first, last):
        reader.join(3)
        assert not reader.is_alive()
    assert into == CONTENT[:10]


FORKS = """
import os, sys
from importlib import import_module
kernel, fd = import_module(sys.argv[1]), os.open(sys.argv[2], os.O_RDONLY)

def is_read(start):
    places = [(fd, start, bytearray(50)), (fd, start + 50, bytearray(50))]
    return kernel.read_places(places) and places[1][2] == os.pread(fd, 50, start + 50)

assert is_read(0)
pid = os.fork()
if not pid:
    os._exit(0 if is_read(100) else 1)
assert os.waitpid(pid, 0)[1] == 0
assert is_read(200)
"""


def test_the_child_of_a_fork_reads_too(kernel, tmp_path):
    """The kernel knows nothing there of what its parent has set up."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    subprocess.run([sys.executable, "-c", FORKS, kernel.__name__, str(path)], check=True)


@pytest.mark.thorough
def test_nothing_stays(kernel, fd):
    buffers = [bytearray(100) for _ in range(70)]

    def once():
        line = kernel.new_line(1000)
        kernel.read_places([(fd, 0, one) for one in buffers], line)
        kernel.read_places([(fd, 0, one) for one in buffers])
        kernel.read_places([(fd, 299_999, one) for one in buffers])
        with pytest.raises(TypeError):
            kernel.read_places([(fd, 0, buffers[0]), (fd, 0, b"x")])

    assert_nothing_stays(once)


@pytest.mark.skipif(compiled is None, reason="not compiled: python setup.py build_ext --inplace")
def test_random_calls_end_alike():
    with DirectFuzzer(compiled, 1) as fuzzer:
        for _ in range(500):
            fuzzer.call_each()
        assert fuzzer.done > 100
