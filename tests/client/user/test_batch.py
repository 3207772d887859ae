"""What every implementation of the batch interface does: one suite, one line per implementation.

To add one, add a name to IMPLEMENTATIONS and what makes it to `made`;
`folder` is where its files lie.
"""

import errno
import gc
import multiprocessing
import os
import random
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from emberfs.batch import Transfer
from emberfs.posix import PosixClient
from emberfs.ring import RingClient

from tests.client.user.serving import NEEDS_MOUNT, Server

IMPLEMENTATIONS = ["posix", "posix-alone", pytest.param("ring", marks=NEEDS_MOUNT)]
MOUNT = "EMBER_TEST_MOUNT"
"""Where the children of a test find its mount."""


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    return request.param


@pytest.fixture(scope="module")
def mount_point(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("batch") / "mnt")
    os.environ[MOUNT] = str(server.mount_point)
    yield server.mount_point
    del os.environ[MOUNT]
    try:
        assert server.stop()["sessions"] == 0
    finally:
        server.close()


@pytest.fixture
def folder(implementation, tmp_path, request):
    if implementation != "ring":
        return tmp_path
    folder = request.getfixturevalue("mount_point") / tmp_path.name
    folder.mkdir()
    return folder


@contextmanager
def made(implementation):
    """Yield a client; module level, so that a spawned child can make one, too."""
    if implementation == "ring":
        with RingClient(os.environ[MOUNT]) as client:
            yield client
        return
    helpers = {"posix": 7, "posix-alone": 0}[implementation]
    with PosixClient(helpers) as client:
        yield client


@contextmanager
def failing(number, path=None):
    """Expect an OSError of this errno that names this path."""
    with pytest.raises(OSError) as failed:  # noqa: PT011 - the number says more than the text
        yield
    assert (failed.value.errno, failed.value.filename) == (number, path)


@pytest.fixture
def client(implementation, folder):  # noqa: ARG001 - its mount is there before, and after
    with made(implementation) as client:
        yield client


def write_file(folder, name, content):
    path = str(folder / name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def get(client, path, size, offset=0):
    """Read through the client into memory of its own."""
    iov = client.allocate(size)
    with client.open(path) as file:
        (count,) = client.read([Transfer(file, offset, iov.view)])
    return bytes(iov.view[:count])


def test_one_batch_reads_pieces_of_many_files(client, folder):
    contents = [random.Random(i).randbytes(10_000 + 777 * i) for i in range(9)]
    paths = [write_file(folder, f"{i}", content) for i, content in enumerate(contents)]
    files = [client.open(path) for path in paths]
    wanted = [(i % 9, (i * 1237) % 9000, 100 + i) for i in range(200)]
    iov = client.allocate(sum(size for _, _, size in wanted))
    transfers, begin = [], 0
    for number, offset, size in wanted:
        transfers.append(Transfer(files[number], offset, iov.view[begin : begin + size]))
        begin += size
    assert client.read(transfers) == [size for _, _, size in wanted]
    for transfer, (number, offset, size) in zip(transfers, wanted, strict=True):
        assert bytes(transfer.buffer) == contents[number][offset : offset + size]


def test_memory_of_any_kind_is_filled(client, folder):
    path = write_file(folder, "f", b"0123456789")
    one, two = bytearray(4), bytearray(3)
    with client.open(path) as file:
        counts = client.read(
            [Transfer(file, 5, memoryview(one)), Transfer(file, 1, memoryview(two))]
        )
    assert (counts, one, two) == ([4, 3], b"5678", b"123")


def test_only_the_end_of_the_file_makes_a_read_short(client, folder):
    path = write_file(folder, "f", b"x" * 1000)
    iov = client.allocate(4096)
    with client.open(path) as file:
        batch = [
            Transfer(file, 0, iov.view[:1000]),
            Transfer(file, 990, iov.view[1000:1100]),
            Transfer(file, 1000, iov.view[1100:1200]),
            Transfer(file, 1_000_000, iov.view[1200:1300]),
            Transfer(file, 500, iov.view[1300:1300]),
        ]
        assert client.read(batch) == [1000, 10, 0, 0, 0]
        assert client.read([]) == []


def test_neighbours_and_overlaps_and_one_large_transfer(client, folder):
    content = random.Random(1).randbytes(9_000_001)
    path = write_file(folder, "f", content)
    iov = client.allocate(2 * len(content) + 3000)
    with client.open(path) as file:
        whole = Transfer(file, 0, iov.view[: len(content) + 10])
        begin = len(content) + 10
        small = [
            Transfer(file, i * 1000, iov.view[begin + i * 1000 : begin + (i + 1) * 1000])
            for i in range(9000)
        ]
        counts = client.read([*small[::2], whole, *small[1::2]])
    assert counts == [1000] * 4500 + [len(content)] + [1000] * 4500
    assert iov.view[: len(content)] == content
    assert iov.view[begin : begin + 9_000_000] == content[:9_000_000]


def test_one_batch_writes_pieces_of_many_files(client, folder):
    content = random.Random(2).randbytes(300_000)
    iov = client.allocate(len(content))
    iov.view[:] = content
    paths = [str(folder / f"{i}") for i in range(3)]
    files = [client.open(path, "w") for path in paths]
    order = list(range(300))
    random.Random(3).shuffle(order)
    client.write(
        [
            Transfer(files[i // 100], (i % 100) * 1000, iov.view[i * 1000 : (i + 1) * 1000])
            for i in order
        ]
    )
    for file in files:
        assert file.length() == 100_000
        file.close()
    assert b"".join(read_file(path) for path in paths) == content


def test_what_was_written_is_read_back_and_holes_are_zeros(client, folder):
    path = str(folder / "f")
    with client.open(path, "x") as file:
        client.write([Transfer(file, 5000, memoryview(b"tail"))])
        client.write([Transfer(file, 0, memoryview(b"head"))])
        file.fsync()
    assert get(client, path, 6000) == b"head" + bytes(4996) + b"tail"
    with client.open(path, "r+") as file:
        client.write([Transfer(file, 2, memoryview(b"XY"))])
        back = bytearray(6)
        assert client.read([Transfer(file, 0, memoryview(back))]) == [6]
    assert back == b"heXY\0\0"
    with client.open(path, "w") as file:
        assert file.length() == 0


@pytest.mark.parametrize(
    ("mode", "name", "number"),
    [
        ("r", "none", errno.ENOENT),
        ("r+", "none", errno.ENOENT),
        ("x", "there", errno.EEXIST),
        ("w", "none/below", errno.ENOENT),
        ("r", "there/below", errno.ENOTDIR),
    ],
)
def test_open_fails_as_the_standard_library_does(client, folder, mode, name, number):
    write_file(folder, "there", b"")
    path = str(folder / name)
    with failing(number, path):
        client.open(path, mode)


def test_a_failed_transfer_leaves_the_others_done_and_the_first_is_raised(client, folder):
    good = client.open(write_file(folder, "good", b"0123456789"))
    path, other = str(folder / "writable"), str(folder / "other")
    bad, worse = client.open(path, "w"), client.open(other, "w")
    iov = client.allocate(30)
    with failing(errno.EBADF, path):
        client.read(
            [
                Transfer(good, 0, iov.view[:5]),
                Transfer(bad, 0, iov.view[10:20]),
                Transfer(good, 5, iov.view[5:10]),
                Transfer(worse, 0, iov.view[20:30]),
            ]
        )
    assert bytes(iov.view[:10]) == b"0123456789"
    with failing(errno.EBADF, good.path):
        client.write([Transfer(good, 0, iov.view[:1]), Transfer(bad, 0, iov.view[:10])])
    bad.close()
    assert read_file(path) == b"0123456789"


def test_what_is_closed_says_so(implementation, folder):
    path = write_file(folder, "f", b"abc")
    with made(implementation) as client:
        file = client.open(path)
        file.close()
        file.close()
        for act in (
            file.length,
            lambda: client.read([Transfer(file, 0, memoryview(bytearray(1)))]),
        ):
            with failing(errno.EBADF, path):
                act()
        left_open = client.open(path)
    client.close()
    with failing(errno.EBADF, path):
        left_open.length()
    with failing(errno.EBADF, path):
        client.open(path)


@pytest.mark.thorough
def test_an_iov_outlives_nothing_that_refers_to_it(client):
    iov = client.allocate(10)
    assert (len(iov.view), iov.view.readonly, bytes(iov.view)) == (10, False, bytes(10))
    part = iov.view[3:6]
    with pytest.raises(BufferError):
        iov.close()
    part[:] = b"abc"
    assert bytes(iov.view) == b"\0\0\0abc\0\0\0\0"
    del iov
    gc.collect()
    assert bytes(part) == b"abc"
    other = client.allocate(1)
    other.close()
    other.close()


def test_what_nobody_has_closed_goes_with_the_last_reference(implementation, folder):
    """Data sets have no `close`: of each that was made anew, for each epoch, descriptors stayed."""
    path = write_file(folder, "f", b"0123456789")

    def use():
        client = RingClient(folder) if implementation == "ring" else PosixClient()
        files = [client.open(path, mode) for mode in ("r", "r+")]
        memory = client.allocate(10)
        assert client.read([Transfer(file, 0, memory.view) for file in files]) == [10, 10]

    def descriptors():
        gc.collect()
        return set(os.listdir("/proc/self/fd"))

    use()
    before = descriptors()
    use()
    assert descriptors() == before


def test_numpy_uses_the_memory_itself(client, folder):
    numpy = pytest.importorskip("numpy")
    iov = client.allocate(16)
    array = numpy.frombuffer(iov.view[:8], dtype="<u4")
    with client.open(write_file(folder, "f", b"\1\0\0\0\2\0\0\0")) as file:
        client.read([Transfer(file, 0, iov.view[:8])])
    assert array.tolist() == [1, 2]


def test_wrong_arguments_are_refused(client, folder):
    file = client.open(write_file(folder, "f", b"abc"))
    with pytest.raises(TypeError, match="read-only"):
        client.read([Transfer(file, 0, memoryview(b"abc"))])
    with pytest.raises(ValueError, match="bytes"):
        client.read([Transfer(file, 0, memoryview(bytearray(8)).cast("I"))])
    with pytest.raises(ValueError, match="bytes"):
        client.read([Transfer(file, 0, memoryview(bytearray(8))[::2])])
    with pytest.raises(TypeError, match="opened by"):
        client.read([Transfer(object(), 0, memoryview(bytearray(8)))])
    for buffer in (bytearray(8), None):
        with pytest.raises(TypeError, match="not a memoryview"):
            client.read([Transfer(file, 0, buffer)])
    tensor = SimpleNamespace(numpy=lambda: None)  # which memoryview() does not take
    with pytest.raises(TypeError, match=r"memoryview\(\.\.\.numpy\(\)\)\.cast\('B'\) makes one"):
        client.read([Transfer(file, 0, tensor)])


def test_an_offset_before_the_beginning_moves_nothing(client, folder):
    """-1 means to preadv and pwritev: where the descriptor stands;
    so a write went over the first bytes.
    """
    path = write_file(folder, "f", b"first")
    with client.open(path, "r+") as file:
        buffer = bytearray(b"other")
        with pytest.raises(ValueError, match="offset -1"):
            client.write([Transfer(file, -1, memoryview(buffer))])
        with pytest.raises(ValueError, match="offset -1"):
            client.read([Transfer(file, -1, memoryview(buffer))])
    assert buffer == b"other"
    assert Path(path).read_bytes() == b"first"


def test_threads_share_a_client(client, folder):
    contents = [random.Random(i).randbytes(50_000) for i in range(4)]
    paths = [write_file(folder, f"{i}", content) for i, content in enumerate(contents)]
    wrong = []

    def loop(number):
        for _ in range(20):
            iov = client.allocate(50_000)
            with client.open(paths[number]) as file:
                client.read(
                    [Transfer(file, i * 1000, iov.view[i * 1000 :][:1000]) for i in range(50)]
                )
            if iov.view != contents[number]:
                wrong.append(number)

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def use_inherited(client, file, path, answers):
    """In a forked child: the client and the file of the parent."""
    iov = client.allocate(20_000)
    batch = [Transfer(file, i * 100, iov.view[i * 100 :][:100]) for i in range(0, 200, 2)]
    counts = client.read(batch)
    answers.put((counts == [100] * 100, get(client, path, 20_000) == read_file(path)))


def use_own(implementation, mount_point, path, answers):
    """In a spawned child: a client of its own; a fork server may have an environment of before."""
    os.environ[MOUNT] = mount_point
    with made(implementation) as client:
        answers.put((True, get(client, path, 20_000) == read_file(path)))


def test_a_forked_child_opens_the_client_anew(client, folder):
    context = multiprocessing.get_context("fork")
    path = write_file(folder, "f", random.Random(7).randbytes(20_000))
    file = client.open(path)
    get(client, path, 20_000)
    answers = context.SimpleQueue()
    children = [
        context.Process(target=use_inherited, args=(client, file, path, answers)) for _ in range(2)
    ]
    for child in children:
        child.start()
    assert get(client, path, 20_000) == read_file(path)
    for child in children:
        child.join()
        assert child.exitcode == 0
        assert answers.get() == (True, True)
    assert get(client, path, 20_000) == read_file(path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_spawned_child_makes_its_own(implementation, client, folder, method, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # the child imports this module
    context = multiprocessing.get_context(method)
    path = write_file(folder, "f", random.Random(8).randbytes(20_000))
    get(client, path, 20_000)
    answers = context.SimpleQueue()
    mount_point = os.environ.get(MOUNT, "")
    child = context.Process(target=use_own, args=(implementation, mount_point, path, answers))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert answers.get() == (True, True)


@pytest.mark.slow
def test_no_descriptor_stays_behind(implementation, folder):
    path = write_file(folder, "f", b"abc")

    def count():
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = count()
    for _ in range(3):
        with made(implementation) as client:
            client.open(path)
            client.open(path, "r+").close()
            get(client, path, 3)
    gc.collect()
    assert count() == before


def test_a_close_makes_durable_what_was_written_while_another_thread_synced(tmp_path, monkeypatch):
    synced = []
    with PosixClient(0) as client:
        file = client.open(str(tmp_path / "f"), "w")
        pwritev = os.pwritev

        def write_late(*args):
            file.fsync()  # as another thread may just then
            return pwritev(*args)

        monkeypatch.setattr(os, "pwritev", write_late)
        monkeypatch.setattr(os, "fsync", lambda _: synced.append(os.stat(file.path).st_size))
        client.write([Transfer(file, 0, memoryview(b"bytes"))])
        assert synced == [0]
        file.close()
    assert synced == [0, 5]
