"""What a review of the batch interface found: each of these failed once."""

import asyncio
import ctypes
import errno
import mmap
import os
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import trio
from emberfs.batch import Transfer
from emberfs.connection import socket_address
from emberfs.protocol import COUNT, REQUEST, Call, Op
from emberfs.ring import RingClient
from emberfs.rows import Rows, read_rows

from tests.client.user.pieces import CONTENT
from tests.client.user.serving import NEEDS_MOUNT, Server

pytestmark = NEEDS_MOUNT
MAP_FIXED_NOREPLACE = 0x100000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("review") / "mnt")
    yield server
    server.close()


@pytest.fixture
def client(server):
    with RingClient(server.mount_point) as client:
        yield client


@pytest.fixture
def path(server, request):
    path = server.mount_point / request.node.name
    path.write_bytes(CONTENT)
    return str(path)


def address(view):
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def plain_memory_at(start, size):
    """Return private memory at an address that was just given back."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    got = libc.mmap(start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert got == start
    return (ctypes.c_char * size).from_address(start)


@pytest.mark.parametrize("is_closed", [False, True])
def test_memory_in_place_of_dropped_memory_is_other_memory(client, path, is_closed):
    iov = client.allocate(1 << 20)
    start = address(iov.view)
    kept = iov.view.obj if is_closed else None  # the mapping: closed, and still there
    if is_closed:
        iov.close()
    del iov
    buffer = memoryview(plain_memory_at(start, 1 << 20)).cast("B")
    with client.open(path) as file:
        assert client.read([Transfer(file, 10, buffer[:1000])]) == [1000]
    assert bytes(buffer[:1000]) == CONTENT[10:1010]
    assert kept is None or kept.closed


@pytest.mark.parametrize("kind", [np.int8, np.bool_])
def test_buffers_of_any_bytes(client, path, kind):
    array = np.zeros(1000, dtype=kind)
    with client.open(path) as file:
        assert client.read([Transfer(file, 3, memoryview(array))]) == [1000]
    assert array.tobytes() == CONTENT[3:1003]


def test_more_calls_at_once_than_rings(client, path):
    """Threads and coroutines of both kinds, a blocking call in the midst
    of coroutines among them.
    """
    buffers = [bytearray(100) for _ in range(300)]

    with client.open(path) as file:
        transfers = [[Transfer(file, i, memoryview(b))] for i, b in enumerate(buffers)]

        async def in_asyncio():
            await asyncio.gather(*(client.read_async(t) for t in transfers[:100]))

        async def in_trio():
            async with trio.open_nursery() as nursery:
                for t in transfers[100:199]:
                    nursery.start_soon(client.read_async, t)
                await trio.lowlevel.checkpoint()
                client.read(transfers[199])

        def in_threads():
            with ThreadPoolExecutor(50) as pool:
                list(pool.map(client.read, transfers[200:]))

        with ThreadPoolExecutor(3) as pool:
            done = [
                pool.submit(asyncio.run, in_asyncio()),
                pool.submit(trio.run, in_trio),
                pool.submit(in_threads),
            ]
            for one in done:
                one.result()
    assert buffers == [CONTENT[i : i + 100] for i in range(300)]


def lingering():
    """Return a connection whose last close takes a minute, and its other end,
    which is to be kept.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(1 << 20))
    except BlockingIOError:
        return near, far


def hello(server):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(socket_address(str(server.mount_point)))
    connection.send(REQUEST.pack(Call.HELLO, 1, 1, 0, 0, 0, 0, 0))
    connection.recv(1000)
    return connection


def stop(server):
    """Let the daemon look only when the test has closed its own: then it has the last one."""
    server.process.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)


def by_request(server, _, near):
    connection = hello(server)
    stop(server)
    socket.send_fds(connection, [bytes(REQUEST.size)], [near.fileno()])
    return connection


def by_many(server, _, near):
    connection = hello(server)
    stop(server)
    null = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(connection, [bytes(REQUEST.size)], [null] * 20 + [near.fileno()])
    os.close(null)
    return connection


def unread(server, _, near):
    connection = hello(server)
    stop(server)
    connection.send(b"no request")
    socket.send_fds(connection, [bytes(REQUEST.size)], [near.fileno()])
    return connection


def by_bell(server, client, near):
    ring = client.ring(8)
    stop(server)
    socket.send_fds(ring._bell, [COUNT.pack(0)], [near.fileno()])
    return ring


@pytest.mark.parametrize("send", [by_request, by_many, unread, by_bell])
def test_nobody_waits_for_the_close_of_what_a_program_has_sent(server, path, send):
    with RingClient(server.mount_point) as hostile:
        near, far = lingering()
        kept = send(server, hostile, near)
        began_s = time.monotonic()
        near.close()
        server.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        with RingClient(server.mount_point) as honest, honest.open(path) as file:
            buffer = memoryview(bytearray(10))
            honest.read([Transfer(file, 0, buffer)])
        assert time.monotonic() - began_s < 40
        far.close()
        kept.close()


@pytest.mark.slow
def test_a_daemon_that_comes_back_is_found(tmp_path):
    """A cache that lives for weeks goes on after the mount was restarted."""
    mnt = tmp_path / "mnt"
    server = Server(mnt)
    client = RingClient(mnt)
    try:
        iov = client.allocate(10_000)
        lost = client.open(str(mnt / "lost"), "w")
        client.write([Transfer(lost, 0, iov.view[:10])])
        server.stop()
        server = Server(mnt)
        (mnt / "file").write_bytes(CONTENT)
        with client.open(str(mnt / "file")) as file:
            assert client.read([Transfer(file, 7, iov.view[:1000])]) == [1000]
        assert iov.view[:1000] == CONTENT[7:1007]
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            lost.close()
        assert failed.value.errno == errno.ENOTCONN
        client.close()
    finally:
        server.close()


def test_what_came_before_the_daemon_went_is_not_lost(server, path):
    client = RingClient(server.mount_point)
    iov = client.allocate(1000)
    with client.open(path) as file:
        ring = client.ring(8, depth=-2)
        for i in range(2):
            ring.prepare(Op.READ, file, 0, iov, 0, 10, user_data=i)
        ring.submit()
        assert len(ring.wait(2, max_results=1)) == 1
        client.daemon.connection().close()
        while True:  # until the daemon has seen it
            try:
                ring._listen(block=True)
            except OSError:
                break
        assert len(ring.wait(1)) == 1
        file._connection = None
    ring.abandon()
    client.close()


def read_by_rows(client, file, view):
    read_rows(client, Rows([file] * 5, [0] * 5, [20] * 5, range(0, 100, 20)), view)


def read_by_transfers(client, file, view, count=5):
    client.read([Transfer(file, 0, view[n : n + 20]) for n in range(0, 20 * count, 20)])


def read_one(client, file, view):
    read_by_transfers(client, file, view, count=1)


def write_one(client, file, view):
    client.write([Transfer(file, 0, view[:20])])


def prepare_one(client, file, view):
    iov = client.allocate(len(view))
    with client.ring(8) as ring:
        ring.prepare(Op.READ, file, 0, iov, 0, 20)


@pytest.mark.parametrize("use", [read_by_rows, read_by_transfers, read_one, write_one, prepare_one])
def test_a_file_of_another_client_is_not_taken_for_ones_own(server, client, path, use):
    """Both know their first file by the same number: what went to one would come from the other."""
    other_path = server.mount_point / "other"
    other_path.write_bytes(b"other" * 100)
    with RingClient(server.mount_point) as other, other.open(str(other_path), "r+") as file:
        with client.open(path, "r+"), pytest.raises(TypeError, match="client"):
            use(client, file, client.allocate(1 << 20).view)
        assert other_path.read_bytes() == b"other" * 100
    assert Path(path).read_bytes() == CONTENT


def test_memory_of_another_client_is_not_taken_for_ones_own(server, client, path):
    with RingClient(server.mount_point) as other, client.open(path) as file, client.ring(8) as ring:
        iov = other.allocate(4096)
        with pytest.raises(TypeError, match="client"):
            ring.prepare(Op.READ, file, 0, iov, 0, 20)


@pytest.mark.parametrize("use", [read_by_rows, read_by_transfers])
def test_ids_of_a_daemon_that_has_gone_count_for_no_other(server, client, path, use, monkeypatch):
    """Another thread finds out that it has gone, and registers what it uses,
    just when a ring is taken for this read.
    """
    other_path = server.mount_point / "other"
    other_path.write_bytes(b"other" * 100)
    iov, take = client.allocate(1 << 20), client._lanes.take
    with client.open(path) as file, client.open(str(other_path)) as other:

        def take_late():
            client.daemon.forget(client.daemon.connection())
            assert other.id
            assert iov.id
            return take()

        monkeypatch.setattr(client._lanes, "take", take_late)
        use(client, file, iov.view)
        assert iov.view[:20] == CONTENT[:20]
