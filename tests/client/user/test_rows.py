"""Reading by columns: the same bytes and errors as by transfers, at a cost that is counted."""

import cProfile
import errno
import os
import random

import numpy as np
import pytest
from emberfs.batch import Transfer
from emberfs.ffrecord import RecordReader, RecordWriter
from emberfs.lanes import ENTRY_COUNT
from emberfs.posix import PosixClient
from emberfs.ring import RingClient
from emberfs.rows import HELD_COUNT_MAX, SHARED_BYTES_MIN, Rows, new_buffer, read_rows

from tests.client.user.serving import NEEDS_MOUNT

CONTENT = random.Random(5).randbytes(300_000)
SIZE = 2 * SHARED_BYTES_MIN
CALLS_PER_SAMPLE_MAX = 12
"""Of any function, in the program; by transfers it were 53."""


def mounted(test):
    for mark in NEEDS_MOUNT:
        test = mark(test)
    return test


@pytest.fixture(params=["posix", pytest.param("ring", marks=NEEDS_MOUNT)])
def folder(request, tmp_path):
    if request.param == "posix":
        return tmp_path
    folder = request.getfixturevalue("mount_point") / tmp_path.name
    folder.mkdir()
    return folder


@pytest.fixture
def client(folder, tmp_path):
    with PosixClient() if folder == tmp_path else RingClient(folder) as client:
        yield client


def written(folder, *names):
    for name in names:
        (folder / name).write_bytes(CONTENT)
    return [str(folder / name) for name in names]


def test_rows_of_several_files_land_where_they_should(client, folder):
    files = [client.open(path) for path in written(folder, "a", "b")]
    rng = random.Random(1)
    count = ENTRY_COUNT + 300  # more than a ring has room for
    sizes = [rng.choice((0, 1, 100, 4096)) for _ in range(count)]
    places, end = [], 7
    for size in sizes:
        places.append(end)
        end += size + rng.choice((0, 0, 3))
    offsets = [rng.randrange(len(CONTENT) + 2000) for _ in range(count)]
    rows = Rows([rng.choice(files) for _ in range(count)], offsets, sizes, places)
    expected = bytearray(b"\xaa" * (end + 5))
    for offset, size, place in zip(offsets, sizes, places, strict=True):
        piece = CONTENT[offset : offset + size]
        expected[place : place + len(piece)] = piece
    for buffer in (new_buffer(client, end + 5), memoryview(bytearray(end + 5))):
        buffer[:] = b"\xaa" * len(buffer)
        counts = read_rows(client, rows, buffer)
        assert counts == [len(CONTENT[o : o + s]) for o, s in zip(offsets, sizes, strict=True)]
        assert buffer == expected
    columns = [np.array(column) for column in rows[1:]]
    for buffer in (new_buffer(client, end + 5), memoryview(bytearray(end + 5))):
        buffer[:] = b"\xaa" * len(buffer)
        assert read_rows(client, Rows(rows.files, *columns), buffer) == counts
        assert buffer == expected
    assert read_rows(client, Rows([], [], [], []), buffer) == []
    with pytest.raises(TypeError, match="is bytearray, not a memoryview"):
        read_rows(client, rows, bytearray(end))
    assert len(new_buffer(client, 0)) == 0


def test_bytes_between_rows_stay_what_they_are(client, folder):
    """Also where rows that go to the same place have as many bytes as the buffer."""
    (path,) = written(folder, "a")
    with client.open(path) as file:
        for places in [0, 0], [0, SIZE]:
            buffer = memoryview(bytearray(b"\xaa" * (2 * SIZE)))
            assert (
                read_rows(client, Rows([file] * 2, [5, 5], [SIZE] * 2, places), buffer)
                == [SIZE] * 2
            )
            assert buffer[:SIZE] == CONTENT[5 : 5 + SIZE]
            assert buffer[SIZE:] == (CONTENT[5 : 5 + SIZE] if places[1] else b"\xaa" * SIZE)


def test_memory_with_blocks_is_cut_as_it_must(folder, tmp_path):
    if folder == tmp_path:
        pytest.skip("only shared memory has blocks")
    (path,) = written(folder, "a")
    with RingClient(folder) as client, client.open(path) as file:
        iov = client.allocate(16384, block_size=4096)
        assert read_rows(client, Rows([file], [10], [10_000], [5]), iov.view) == [10_000]
        assert iov.view[5:10_005] == CONTENT[10:10_010]


def test_the_first_failure_is_raised_and_the_others_are_done(client, folder):
    first, second = (client.open(path) for path in written(folder, "a", "b"))
    only_written = client.open(str(folder / "c"), "x")
    buffer = new_buffer(client, 30)
    rows = Rows([first, only_written, second], [0, 0, 5], [10, 10, 10], [0, 10, 20])
    with pytest.raises(OSError, match="/c'") as failed:
        read_rows(client, rows, buffer)
    assert failed.value.errno == errno.EBADF
    assert (buffer[:10], buffer[20:]) == (CONTENT[:10], CONTENT[5:15])
    for wrong in (
        Rows([first], [0], [31], [0]),
        Rows([first], [0], [1], [-1]),
        Rows([first], [-1], [1], [0]),
        Rows([first], [0], [1], []),
    ):
        with pytest.raises(ValueError, match=r"beyond|no file|lengths"):
            read_rows(client, wrong, buffer)
    with pytest.raises(TypeError):
        read_rows(client, Rows([first], [0], [1], [0]), memoryview(bytes(1)))


@mounted
def test_buffers_come_back_but_never_while_they_or_a_child_are_looked_at(folder, tmp_path):
    if folder == tmp_path:
        pytest.skip("only shared memory is used again")
    with RingClient(folder) as client:

        def used():
            buffer = new_buffer(client, SIZE)
            buffer[:7] = b"used it"
            return buffer[:7]

        view = used()
        assert new_buffer(client, SIZE)[:7] == bytes(7)  # while a slice lives, other memory
        del view
        assert new_buffer(client, SIZE - 100)[:7] == b"used it"
        inherited = used()
        told, tell = os.pipe()
        go, let_go = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(go, 1)
            os.write(tell, inherited)
            os._exit(0)
        del inherited
        again = new_buffer(client, SIZE)
        again[:7] = b"changed"
        os.write(let_go, b"x")
        assert os.read(told, 7) == b"used it"
        os.waitpid(child, 0)
        for fd in (told, tell, go, let_go):
            os.close(fd)


@mounted
def test_who_keeps_much_takes_few_descriptors(mount_point):
    path = mount_point / "kept.ffr"
    samples = [random.Random(i).randbytes(700) for i in range(300)]
    with RecordWriter(path, len(samples)) as writer:
        for sample in samples:
            writer.write(sample)
    with RecordReader(path) as reader:
        before = len(os.listdir("/proc/self/fd"))
        each = [reader.read_one(index) for index in range(len(samples))]
        assert each == samples
        assert len(os.listdir("/proc/self/fd")) <= before + 4
        batches = [reader.read(range(len(samples))) for _ in range(HELD_COUNT_MAX + 20)]
        assert all(batch == samples for batch in batches)
        assert len(os.listdir("/proc/self/fd")) <= before + 4 + 2 * HELD_COUNT_MAX
        del batches
        again = reader.read(range(len(samples)))
        assert again == samples


@mounted
def test_what_a_sample_costs_the_program(mount_point):
    samples = [random.Random(i).randbytes(512) for i in range(1024)]
    path = mount_point / "samples.ffr"
    with RecordWriter(path, len(samples)) as writer:
        for sample in samples:
            writer.write(sample)
    with RecordReader(path) as reader:
        order = random.Random(3).sample(range(len(samples)), 256)
        assert reader.read(order) == [samples[index] for index in order]
        profile = cProfile.Profile()
        profile.runcall(reader.read, order)
        calls = sum(entry.callcount for entry in profile.getstats())
        assert calls <= CALLS_PER_SAMPLE_MAX * len(order), calls / len(order)


def test_transfers_and_rows_mix(client, folder):
    (path,) = written(folder, "a")
    with client.open(path) as file:
        buffer = new_buffer(client, 20)
        assert client.read([Transfer(file, 3, buffer[:10])]) == [10]
        assert read_rows(client, Rows([file], [50], [10], [10]), buffer) == [10]
        assert buffer == CONTENT[3:13] + CONTENT[50:60]
