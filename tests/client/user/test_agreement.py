"""Rings, plain system calls and the client inside the process refuse the same,
with the same words where users see them.
"""

import errno
import os
import pickle
import re
from array import array
from contextlib import suppress

import pytest
from emberfs.batch import Transfer
from emberfs.native import NativeClient
from emberfs.posix import PosixClient
from emberfs.protocol import Op
from emberfs.ring import RingClient

from tests.client.user.serving import NEEDS_MOUNT, Server

NATIVE = "ember://test@host:1"


@pytest.fixture(params=["posix", "native", pytest.param("ring", marks=NEEDS_MOUNT)])
def at(request, tmp_path):
    """(a client, its folder)."""
    if request.param == "native":
        yield request.getfixturevalue("native_client"), NATIVE
        return
    if request.param == "posix":
        with PosixClient() as client:
            yield client, str(tmp_path)
        return
    folder = request.getfixturevalue("mount_point") / tmp_path.name
    folder.mkdir()
    with RingClient(folder) as client:
        yield client, str(folder)


def made(client, path, content=b"0123456789"):
    with client.open(path, "w") as file:
        client.write([Transfer(file, 0, memoryview(content))])
    return client.open(path, "r+")


@pytest.mark.parametrize("count", [1, 8], ids=["one", "many"])
def test_behind_the_end_is_nothing_however_far(at, count):
    client, folder = at
    file = made(client, f"{folder}/f")
    iov = client.allocate(100 * count)
    for offset in (10, 2**40, 2**46 - 50, 2**46, 2**47, 2**62):
        batch = [Transfer(file, offset, iov.view[i * 100 :][:100]) for i in range(count)]
        assert client.read(batch) == [0] * count
        assert client.read([Transfer(file, offset, memoryview(bytearray(100)))]) == [0]


@pytest.mark.parametrize("count", [1, 8], ids=["one", "many"])
@pytest.mark.parametrize("offset", [-1, 2**63, 2**64, 2**70])
def test_places_that_no_file_has(at, offset, count):
    client, folder = at
    file = made(client, f"{folder}/f")
    iov = client.allocate(count)
    batch = [Transfer(file, offset, iov.view[i : i + 1]) for i in range(count)]
    with pytest.raises(ValueError, match=f"offset {offset} of "):
        client.read(batch)
    with pytest.raises(ValueError, match=f"offset {offset} of "):
        client.write(batch)
    assert file.length() == 10


@pytest.mark.parametrize("count", [1, 8], ids=["one", "many"])
def test_numbers_that_are_no_integers(at, count):
    client, folder = at
    file = made(client, f"{folder}/f")
    iov = client.allocate(count)
    batch = [Transfer(file, 1.5, iov.view[i : i + 1]) for i in range(count)]
    for call in (client.read, client.write):
        with pytest.raises(TypeError, match=r"1\.5 as an offset of .*f' is float, not an integer"):
            call(batch)
    with pytest.raises(TypeError, match=r"1000000\.0 bytes of memory is float, not an integer"):
        client.allocate(1e6)


def test_integers_of_numpy_are_integers(at):
    numpy = pytest.importorskip("numpy")
    client, folder = at
    file = made(client, f"{folder}/f")
    iov = client.allocate(int(numpy.int64(8)))
    for count in (1, 8):
        batch = [Transfer(file, numpy.int64(i), iov.view[i : i + 1]) for i in range(count)]
        assert client.read(batch) == [1] * count
        assert bytes(iov.view[:count]) == b"01234567"[:count]


@pytest.mark.parametrize("size", [0, -1])
def test_memory_has_a_size(at, size):
    with pytest.raises(ValueError, match=f"{size} bytes of memory"):
        at[0].allocate(size)


def test_a_path_may_be_an_object(at):
    """`pathlib.Path`, or whatever else has `__fspath__`; errors and `path` have its text."""

    class Named:
        def __init__(self, name):
            self._name = name

        def __fspath__(self):
            return f"{folder}/{self._name}"

    client, folder = at
    made(client, Named("f")).close()
    with client.open(Named("f")) as file:
        assert file.path == f"{folder}/f"
        assert client.read([Transfer(file, 8, memoryview(bytearray(4)))]) == [2]
    with pytest.raises(FileNotFoundError) as failed:
        client.open(Named("no"))
    assert failed.value.filename == f"{folder}/no"


def test_buffers_that_are_no_bytes_are_told_what_helps(at):
    client, folder = at
    file = made(client, f"{folder}/f")
    numbers = memoryview(array("i", [0, 0]))
    square = memoryview(bytearray(4)).cast("B", (2, 2))
    with_gaps = memoryview(bytearray(4))[::2]
    for buffer, says in (
        (numbers, "has items of 4 bytes: view.cast('B') shows them as bytes"),
        (square, "has 2 dimensions: view.cast('B') shows it as bytes"),
        (with_gaps, "has gaps"),
    ):
        for call in (client.read, client.write):
            with pytest.raises(ValueError, match=re.escape(says)) as failed:
                call([Transfer(file, 0, buffer)])
            assert f"{folder}/f" in str(failed.value)
    assert client.read([Transfer(file, 0, numbers.cast("B"))]) == [8]
    assert client.read([Transfer(file, 0, square.cast("B"))]) == [4]


def test_what_is_shown_of_files_memory_and_clients(at):
    """No addresses: what it is, which one, and whether it is of any use still."""
    client, folder = at
    file = made(client, f"{folder}/f")
    kind = type(file).__name__.removesuffix("File")
    assert repr(file) == f"<{kind}File '{folder}/f'>"
    file.close()
    assert repr(file) == f"<{kind}File '{folder}/f', closed>"
    with client.allocate(100) as iov:
        assert repr(iov).endswith("Iov of 100 bytes>")
    assert re.fullmatch("<[A-Z][a-z]+Iov( of 100 bytes)?, closed>", repr(iov))
    assert re.fullmatch(f"<{kind}Client [^<>]+>", repr(client))
    client.close()
    assert re.fullmatch(f"<{kind}Client [^<>]+, closed>", repr(client))


def test_urls_are_told_where_they_belong():
    with pytest.raises(ValueError, match=r"ember:///d: is no path of a mount: open_client of"):
        RingClient("ember:///d")
    with pytest.raises(ValueError, match=r"cluster='ember:///d': is a URL.*open_client\(URL\)"):
        NativeClient("ember:///d")


def test_what_is_no_transfer(at):
    client, folder = at
    file = made(client, f"{folder}/f")
    buffer = memoryview(bytearray(1))
    for call in (client.read, client.write):
        for given in ([(file, 0, buffer)], Transfer(file, 0, buffer)):
            with pytest.raises(TypeError, match=r"in place of a Transfer: .*Transfer\(file, "):
                call(given)


def test_a_file_that_was_opened_for_something_else(at):
    client, folder = at
    made(client, f"{folder}/f").close()
    iov = client.allocate(8)
    pieces = [iov.view[i : i + 1] for i in range(8)]
    for mode, name in (("r", "write"), ("w", "read")):
        with client.open(f"{folder}/f", mode) as file:
            for some in (pieces, pieces[:1]):
                with pytest.raises(OSError, match="was not opened for this") as failed:
                    getattr(client, name)(
                        [Transfer(file, i, piece) for i, piece in enumerate(some)]
                    )
                assert (failed.value.errno, failed.value.filename) == (errno.EBADF, f"{folder}/f")


@pytest.mark.parametrize("count", [1, 2, 8], ids=["one", "two", "many"])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared", "own"])
def test_a_closed_file_keeps_no_other_transfer_from_being_done(at, count, is_shared):
    client, folder = at
    file, closed = made(client, f"{folder}/f"), made(client, f"{folder}/closed")
    closed.close()
    size = 2 * count
    view = client.allocate(size).view if is_shared else memoryview(bytearray(size))
    reads = [
        Transfer(some, i, view[2 * i + j : 2 * i + j + 1])
        for i in range(count)
        for j, some in enumerate((closed, file))
    ]
    with pytest.raises(OSError, match="is closed") as failed:
        client.read(reads)
    assert (failed.value.errno, failed.value.filename) == (errno.EBADF, f"{folder}/closed")
    assert bytes(view[1::2]) == b"0123456789"[:count]
    view[:] = b"x" * size
    with pytest.raises(OSError, match="is closed"):
        client.write(reads)
    whole = bytearray(10)
    client.read([Transfer(file, 0, memoryview(whole))])
    assert whole == b"x" * count + b"0123456789"[count:]


@pytest.mark.parametrize("count", [1, 8], ids=["one", "many"])
def test_transfers_of_a_generator(at, count):
    """The client inside the process went through them twice, and so wrote nothing."""
    client, folder = at
    file = made(client, f"{folder}/f")
    client.write(Transfer(file, i, memoryview(b"x")) for i in range(count))
    found = [bytearray(1) for _ in range(count + 1)]
    counts = client.read(Transfer(file, i, memoryview(found[i])) for i in range(count + 1))
    assert counts == [1] * (count + 1)
    assert b"".join(found) == b"x" * count + b"0123456789"[count : count + 1]


@pytest.mark.parametrize("kind", ["b", "B", "c", "?"])
def test_items_of_one_byte_are_bytes(at, kind):
    client, folder = at
    file = made(client, f"{folder}/f")
    buffer = bytearray(b"??????????")
    client.write([Transfer(file, 8, memoryview(buffer)[:2].cast(kind))])
    assert client.read([Transfer(file, 0, memoryview(buffer).cast(kind))]) == [10]
    assert buffer == b"01234567??"


def test_more_memory_than_any_machine_has(at):
    for size in (2**63, 2**64, 2**70):
        with pytest.raises(OSError, match="memory") as failed:
            at[0].allocate(size)
        assert failed.value.errno == errno.ENOMEM


def test_a_path_in_bytes(at):
    client, folder = at
    file = made(client, f"{folder}/f")
    with client.open(os.fsencode(file.path)) as same:
        assert same.length() == 10


def test_what_belongs_to_one_process_is_not_pickled(at):
    client, folder = at
    file = made(client, f"{folder}/f")
    for thing in (file, client.allocate(1)):
        with pytest.raises(TypeError, match="of this process alone: give another one the client"):
            pickle.dumps(thing)


def test_an_error_comes_out_of_a_block_whose_memory_is_in_use(at):
    """By its own traceback, at least: everybody was told of memory instead, and by no OSError."""
    client, folder = at
    file = made(client, f"{folder}/f")
    file.close()
    with pytest.raises(OSError, match="the file is closed"), client.allocate(8) as iov:
        client.read([Transfer(file, 0, iov.view[i : i + 1]) for i in range(8)])
    with pytest.raises(BufferError, match="let go of them first"), client.allocate(8) as iov:
        piece = iov.view[:4]
    piece.release()
    iov.close()


def test_a_client_travels_without_what_it_has_open(at):
    """As an argument of a spawned process does, also of a client that has been used."""
    client, folder = at
    file = made(client, f"{folder}/f")
    iov = client.allocate(10)
    client.read([Transfer(file, i, iov.view[i : i + 1]) for i in range(10)])
    with pickle.loads(pickle.dumps(client)) as copy, copy.open(f"{folder}/f") as same:
        assert copy.read([Transfer(same, 0, memoryview(bytearray(20)))]) == [10]
    assert file.length() == 10


def test_memory_in_use_is_not_given_back(at):
    iov = at[0].allocate(8)
    piece = iov.view[:4]
    with pytest.raises(BufferError, match=r"8 bytes of memory: views of it.* let go of them first"):
        iov.close()
    piece[:] = b"kept"
    assert bytes(iov.view) == b"kept\0\0\0\0"
    piece.release()
    iov.close()
    iov.close()


def test_modes(at):
    with pytest.raises(ValueError, match="mode 'rb' is none of r, r\\+, w, x"):
        at[0].open(f"{at[1]}/f", "rb")


def test_a_directory_is_no_file(at):
    client, folder = at
    if folder == NATIVE:
        client.fs().mkdir("/d")
    else:
        os.mkdir(f"{folder}/d")
    for mode in ("r", "r+", "w"):
        with pytest.raises(IsADirectoryError) as failed:
            client.open(f"{folder}/d", mode)
        assert failed.value.filename == f"{folder}/d"
        assert "directory" in failed.value.strerror
        assert "not opened for this" not in failed.value.strerror


def test_a_buffer_that_is_read_only_is_named_by_its_file(at):
    client, folder = at
    file = made(client, f"{folder}/f")
    with pytest.raises(TypeError, match="/f' is read-only"):
        client.read([Transfer(file, 0, memoryview(b"abc"))])


def test_a_client_that_was_closed(at):
    client, folder = at
    file = made(client, f"{folder}/f")
    iov = client.allocate(1)
    client.close()
    client.close()
    for call in (
        lambda: client.open(f"{folder}/f"),
        lambda: client.allocate(1),
        lambda: client.read([Transfer(file, 0, iov.view)]),
        lambda: client.write([Transfer(file, 0, iov.view)]),
        file.length,
    ):
        with pytest.raises(OSError, match="is closed") as failed:
            call()
        assert failed.value.errno == errno.EBADF


@pytest.mark.mount
@pytest.mark.skipif(*NEEDS_MOUNT[1].args, **NEEDS_MOUNT[1].kwargs)
def test_a_client_says_that_a_file_is_of_another_mount(mount_point, tmp_path):
    other = Server(tmp_path / "mnt")
    try:
        (other.mount_point / "f").write_bytes(b"x")
        with RingClient(mount_point) as client:
            with pytest.raises(OSError, match=f"on another mount than {mount_point}") as failed:
                client.open(other.mount_point / "f")
            assert failed.value.errno == errno.EXDEV
            assert failed.value.filename == f"{other.mount_point}/f"
    finally:
        other.stop()
        other.close()


@pytest.mark.mount
@pytest.mark.skipif(*NEEDS_MOUNT[1].args, **NEEDS_MOUNT[1].kwargs)
def test_a_ring_says_what_it_does_not_take(mount_point):
    path = mount_point / "ring"
    path.write_bytes(b"0123456789")
    with RingClient(mount_point) as client, client.ring(4) as ring, client.open(path) as file:
        iov = client.allocate(8)
        for op, offset, said in (("read", 0, "'read' of 8 bytes"), (Op.READ, -5, "8 bytes at -5")):
            with pytest.raises(ValueError, match=f"no entry for '{path}'.*{said}"):
                ring.prepare(op, file, offset, iov, 0, 8)
        ring.prepare(Op.READ, file, 0, iov, 0, 8)
        assert repr(ring) == "<Ior of 4 entries: 1 prepared, 0 under way>"
        with pytest.raises(ValueError, match=r"1 results wanted of 0 .*1 are prepared: submit\(\)"):
            ring.wait(1)
        ring.submit()
        assert [result.result for result in ring.wait(1)] == [8]
        iov.close()
        with pytest.raises(OSError, match="this memory is closed") as failed:
            ring.prepare(Op.READ, file, 0, iov, 0, 8)
        assert failed.value.errno == errno.EBADF
        with pytest.raises(OSError, match="a ring of 65537 entries: 1 to 65536 are possible"):
            client.ring(65537)


@pytest.mark.mount
@pytest.mark.skipif(*NEEDS_MOUNT[1].args, **NEEDS_MOUNT[1].kwargs)
def test_errors_of_the_daemon_say_the_mount(tmp_path):
    """Also what it does not lend says how much there is, and what to do."""
    server = Server(tmp_path / "mnt", f"batch_memory_bytes_max={64 << 20}")
    mount = str(server.mount_point)
    client = RingClient(mount)
    try:
        with pytest.raises(OSError, match=r"client\.batch_memory_bytes_max.*raised") as failed:
            client.allocate(65 << 20)
        assert (failed.value.errno, failed.value.filename) == (errno.ENOMEM, mount)
        with pytest.raises(OSError, match="a ring of 0 entries") as failed:
            client.ring(0)
        assert failed.value.filename == mount
        ring, file, iov = client.ring(1), made(client, f"{mount}/f"), client.allocate(1)
        ring.prepare(Op.READ, file, 0, iov, 0, 1)
        server.close()
        with pytest.raises(OSError, match="has ended this ring") as failed:
            ring.submit()
        assert (failed.value.errno, failed.value.filename) == (errno.ENOTCONN, mount)
    finally:
        with suppress(OSError):  # the daemon has gone
            client.close()
        server.close()
