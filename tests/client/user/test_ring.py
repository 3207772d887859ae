"""The batch interface through a mount daemon that serves a model of a cluster:
real rings, real processes.
"""

import asyncio
import errno
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from array import array

import numpy as np
import pytest
import trio
from emberfs.batch import Transfer
from emberfs.lanes import STAGE_BYTES
from emberfs.posix import PosixClient
from emberfs.protocol import Call, Op
from emberfs.ring import RingClient

from tests.client.user.pieces import CONTENT, HAS_HUGE_PAGES, kinds_of_pages, read_pieces
from tests.client.user.serving import NEEDS_MOUNT, PATHS, Server, eventually

pytestmark = NEEDS_MOUNT


@pytest.fixture
def mnt(server):
    return server.mount_point


@pytest.fixture
def client(mnt):
    with RingClient(mnt) as client:
        yield client


@pytest.fixture
def path(mnt, request):
    path = mnt / request.node.name
    path.write_bytes(CONTENT)
    return str(path)


def test_many_threads_share_a_client(client, path):
    failures = []

    def work(seed):
        try:
            for step in range(3):
                read_pieces(client, path, seed * 100 + step)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("run", [asyncio.run, lambda main: trio.run(lambda: main)])
def test_coroutines(client, path, run):
    async def main():
        buffer = bytearray(10_000)
        with client.open(path, "r+") as file:
            await client.write_async([Transfer(file, 5, memoryview(b"coroutine"))])
            counts = await client.read_async([Transfer(file, 0, memoryview(buffer))])
        assert counts == [10_000]
        assert buffer == CONTENT[:5] + b"coroutine" + CONTENT[14:10_000]

    run(main())


def test_numpy_memory_is_moved_without_the_stage(client, path):
    iov = client.allocate(1 << 20)
    array = np.frombuffer(iov.view, dtype=np.float32)
    with client.open(path) as file:
        rows = array.reshape(-1, 64)[3:7]
        assert client.read([Transfer(file, 128, memoryview(rows).cast("B"))]) == [rows.nbytes]
        assert all(lane._stage is None for lane in client._lanes._free)
    assert rows.tobytes() == CONTENT[128 : 128 + rows.nbytes]


def test_other_memory_goes_through_the_stage(client, mnt):
    size = 2 * STAGE_BYTES + 12_345
    content = random.Random(1).randbytes(size)
    with client.open(str(mnt / "staged"), "x") as file:
        client.write([Transfer(file, 0, memoryview(content))])
    with client.open(str(mnt / "staged")) as file:
        buffers = [bytearray(size), bytearray(100), bytearray(0)]
        transfers = [Transfer(file, i, memoryview(b)) for i, b in enumerate(buffers)]
        assert client.read(transfers) == [size, 100, 0]
    assert buffers[0] == content
    assert buffers[1] == content[1:101]


def test_what_the_kernel_holds_is_not_shown_after_a_write(client, path):
    with open(path, "rb") as seen, client.open(path, "r+") as file:
        assert seen.read(10) == CONTENT[:10]
        client.write([Transfer(file, 0, memoryview(b"0123456789"))])
        assert os.pread(seen.fileno(), 10, 0) == b"0123456789"
        client.write([Transfer(file, len(CONTENT), memoryview(b"more"))])
        assert os.fstat(seen.fileno()).st_size == file.length() == len(CONTENT) + 4


def test_memory_lives_as_long_as_something_refers_to_it(server, client):
    before = server.held()
    iov = client.allocate(4096)
    array = np.frombuffer(iov.view, dtype=np.uint8)
    with pytest.raises(BufferError):
        iov.close()
    array.flags.writeable = True
    array[0] = 7
    del iov
    assert array[0] == 7
    assert len(server.held() - before) == 1
    del array
    client.allocate(4096).close()
    assert server.held() <= before


def test_blocks_are_not_crossed(client, path):
    iov = client.allocate(40_000, block_size=8192)
    with client.open(path) as file:
        assert client.read([Transfer(file, 0, iov.view[100:40_000])]) == [39_900]
    assert iov.view[100:] == CONTENT[:39_900]


def test_errors_say_number_and_path(client, path, mnt, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"")
    for wrong, number in [
        (str(mnt / "missing"), errno.ENOENT),
        (str(tmp_path / "elsewhere"), errno.EOPNOTSUPP),
        (str(mnt), errno.EISDIR),
    ]:
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            client.open(wrong)
        assert (failed.value.errno, failed.value.filename) == (number, wrong)
    with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
        RingClient(tmp_path)
    assert failed.value.errno == errno.EOPNOTSUPP
    with pytest.raises(FileExistsError):
        client.open(path, "x")
    file = client.open(path)
    buffer = memoryview(bytearray(10))
    with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
        client.write([Transfer(file, 0, buffer)])
    assert (failed.value.errno, failed.value.filename) == (errno.EBADF, path)
    file.close()
    with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
        client.read([Transfer(file, 0, buffer)])
    assert failed.value.errno == errno.EBADF


def test_what_another_program_has_registered_is_out_of_reach(client, path, mnt):
    iov = client.allocate(4096)
    with RingClient(mnt) as other, client.open(path) as file, other.open(path) as own:
        assert iov.id and file.id
        ring = other.ring(8)  # which ends with its client
        own_memory = other.allocate(100)
        for file_id, memory_id in [(file.id + 1000, own_memory.id), (own.id, iov.id + 1000)]:
            ring.put(1, 0, 0, 10, file_id, memory_id, Op.READ, 0)
        ring.submit()
        results = [r.result for r in ring.wait(2)]
        assert results == [-errno.EBADF, -errno.EFAULT]


def test_a_ring_in_the_hands_of_a_program(client, path):
    iov = client.allocate(64 * 1024)
    with client.open(path) as file, client.ring(4, depth=-4, timeout_s=0.05) as ring:
        for i in range(4):
            ring.prepare(Op.READ, file, i * 1000, iov, i * 1000, 1000, user_data=i)
        with pytest.raises(BlockingIOError):
            ring.prepare(Op.READ, file, 0, iov, 0, 1)
        assert ring.wait(0) == []
        with pytest.raises(ValueError, match="1 results wanted of 0"):
            ring.wait(1)
        assert ring.submit() == 4
        first = ring.wait(4, max_results=3)
        assert len(first) == 3 and ring.free_count == 3
        rest = ring.wait(1, timeout_s=60)
        assert sorted(r.user_data for r in first + rest) == [0, 1, 2, 3]
        ring.prepare(Op.READ, file, 0, iov, 0, 10, user_data=9)
        ring.submit()
        assert ring.wait(1) == [(9, 10)]
    assert iov.view[:4000] == CONTENT[:4000]


@pytest.mark.parametrize("run", [asyncio.run, lambda main: trio.run(lambda: main)])
def test_a_ring_in_the_hands_of_a_coroutine(client, path, run):
    async def main():
        iov = client.allocate(4096)
        with client.open(path) as file, client.ring(4) as ring:
            assert await ring.wait_async() == []  # none is under way
            ring.prepare(Op.READ, file, 7, iov, 0, 100, user_data=5)
            ring.submit()
            assert await ring.wait_async() == [(5, 100)]
        assert iov.view[:100] == CONTENT[7:107]

    run(main())


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.slow
def test_children_use_a_client_of_their_parent(client, path, method):
    context = multiprocessing.get_context(method)
    read_pieces(client, path, 1)
    child = context.Process(target=read_pieces, args=(client, path, 5))
    child.start()
    read_pieces(client, path, 2)
    child.join(100)
    assert child.exitcode == 0
    read_pieces(client, path, 3)


def test_after_a_fork_files_and_memory_of_the_parent_are_good(client, path):
    iov = client.allocate(10_000)
    file = client.open(path, "r+")
    client.read([Transfer(file, 0, iov.view[:100])])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            client.read([Transfer(file, 1000, iov.view[5000:6000])])
            client.write([Transfer(file, 50, memoryview(b"child"))])
            client.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert iov.view[5000:6000] == CONTENT[1000:2000]
    client.read([Transfer(file, 0, iov.view[:100])])
    assert iov.view[50:55] == b"child"


def test_a_child_in_another_folder_finds_a_mount_named_by_a_relative_path(path, monkeypatch):
    monkeypatch.chdir(os.path.dirname(path))
    with RingClient(".") as client, client.open(os.path.basename(path)) as file:
        monkeypatch.chdir("/")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if client.read([Transfer(file, 0, memoryview(bytearray(5)))]) == [5] else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(FileNotFoundError):
        RingClient("")


def test_a_descriptor_that_is_not_open_ends_nothing(client, path):
    connection = client.daemon.connection()
    with client.open(path) as file:
        for said, share in (
            ("kept", lambda: client.share(9999, 10)),
            ("sent", lambda: connection.call(Call.SHARE_MEMORY, first=10, fd=9999)),
        ):
            with pytest.raises(OSError, match=f"descriptor 9999 cannot be {said}") as failed:
                share()
            assert failed.value.errno == errno.EBADF
            assert failed.value.filename == str(client.daemon.mount_path)
        assert client.read([Transfer(file, 0, client.allocate(10).view)]) == [10]
    assert client.daemon.connection() is connection


def test_what_a_process_has_no_room_for_is_not_registered(client, monkeypatch):
    """The daemon kept it for as long as the connection lasted."""
    asked = []

    def refuse(_):
        raise OSError(errno.EMFILE, "no room")

    memory = os.memfd_create("shared")
    os.ftruncate(memory, 4096)
    with monkeypatch.context() as patched:
        patched.setattr(os, "dup", refuse)
        patched.setattr(client.daemon.connection(), "call", lambda *call, **_: asked.append(call))
        with pytest.raises(OSError, match="no room"):
            client.share(memory, 4096)
    assert asked == []
    with client.share(memory, 4096) as iov:
        assert len(iov.view) == 4096
    os.close(memory)


def test_a_pipe_is_no_file(mnt, client, request):
    pipe = mnt / request.node.name
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file") as failed:
        client.open(pipe, "r+")
    assert (failed.value.errno, failed.value.filename) == (errno.EOPNOTSUPP, str(pipe))


def test_numbers_that_no_request_has(client):
    for count in (-1, 2**32, 1.5):
        said = f"NEW_RING with a number that no request has, one of {count}, 0, "
        with pytest.raises(ValueError, match=re.escape(said)):
            client.ring(count)


@pytest.mark.parametrize("timeout_s", [1e9, float("inf")])
def test_a_wait_may_be_longer_than_the_system_counts(client, path, timeout_s):
    iov = client.allocate(10)
    ring = client.ring(2, depth=-2, timeout_s=timeout_s)
    with client.open(path) as file:
        for _ in range(2):
            ring.prepare(Op.READ, file, 0, iov, 0, 10)
        ring.submit()
        assert [done.result for done in ring.wait(2, timeout_s=timeout_s)] == [10, 10]
    ring.close()


KILLED = """
import os, sys, time
from emberfs.ring import RingClient
from emberfs.batch import Transfer
client = RingClient(sys.argv[1])
iovs = [client.allocate(1 << 20) for _ in range(5)]
file = client.open(sys.argv[2], "r+")
client.read([Transfer(file, 0, iovs[0].view)])
ring = client.ring(16, depth=16)
ring.prepare(1, file, 0, iovs[0], 0, 10)
ring.submit()
if os.fork() == 0:  # without Python's knowledge a child would hold copies of everything
    time.sleep(1000)
print("here", flush=True)
time.sleep(1000)
"""


FULL = """
import errno, os, resource, sys
from emberfs.batch import Transfer
from emberfs.ring import RingClient
client = RingClient(sys.argv[1])
file = client.open(sys.argv[2])
read = lambda: client.read([Transfer(file, 0, memoryview(bytearray(5)))])
limit = max(map(int, os.listdir("/proc/self/fd")))
for room in [0] * 10 + [1, 2]:
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 20, limit + 20))
    while len(held) < 1000:
        try:
            held.append(os.open("/", os.O_RDONLY))
        except OSError:
            break
    for _ in range(room):
        os.close(held.pop())
    for act in (read, lambda: client.allocate(10), lambda: client.ring(4)):
        try:
            act()
            assert room, act
        except OSError as error:
            assert error.errno == errno.EMFILE, error
    for fd in held:
        os.close(fd)
assert read() == [5]
assert len(client.allocate(10).view) == 10
print("done", flush=True)
sys.stdin.read()
"""


def test_a_program_that_has_no_more_descriptors_is_told_so(server, mnt, path):
    before = server.held()
    command, env = [sys.executable, "-c", FULL, str(mnt), path], os.environ | {"PYTHONPATH": PATHS}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=env, text=True, **pipes) as program:
        said = program.stdout.readline()
        if said:
            # Of some twenty pieces that it could not take.
            eventually(lambda: len(server.held() - before) <= 4, "what was not taken is held")
        _, error = program.communicate()
    assert said == "done\n", error


def test_all_of_a_killed_process_is_freed(server, path):
    before = server.held()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(server.mount_point), path],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    ) as process:
        try:
            assert process.stdout.readline() == "here\n"
            assert len(server.held() - before) > 5
            process.kill()
            eventually(lambda: server.held() <= before, "memory of a dead process is held")
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_nobody_works_while_nothing_happens(server, client, path):
    read_pieces(client, path, 1)
    done = threading.Event()
    with client.open(path) as file, client.ring(4, depth=2) as ring:
        ring.prepare(Op.READ, file, 0, client.allocate(10), 0, 10)
        ring.submit()
        waiter = threading.Thread(target=lambda: (ring.wait(1, timeout_s=1.5), done.set()))
        waiter.start()
        time.sleep(0.2)
        before = server.cpu_s(), time.process_time()
        time.sleep(1)
        after = server.cpu_s(), time.process_time()
        waiter.join()
    assert done.is_set()
    assert after[0] - before[0] < 0.1
    assert after[1] - before[1] < 0.1


def test_a_file_of_another_file_system_is_not_emptied_before_it_is_refused(client, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"kept")
    for path, mode in ((other, "w"), (tmp_path / "new", "w"), (tmp_path / "new", "x")):
        with pytest.raises(OSError, match="not on an EmberFS mount") as failed:
            client.open(path, mode)
        assert failed.value.errno == errno.EOPNOTSUPP
    assert other.read_bytes() == b"kept"
    assert os.listdir(tmp_path) == ["other"]


def test_nothing_is_made_where_the_mount_was(tmp_path):
    """It would lie on another disk, and keep the mount from being made again."""
    server = Server(tmp_path / "mnt")
    try:
        with RingClient(server.mount_point) as client:
            server.stop()
            for mode in ("w", "x"):
                with pytest.raises(OSError, match="mount"):
                    client.open(server.mount_point / "new", mode)
            assert os.listdir(server.mount_point) == []
            server = Server(server.mount_point)
            for mode in ("x", "w"):
                with client.open(server.mount_point / "new", mode) as file:
                    client.write([Transfer(file, 0, memoryview(b"there"))])
            assert (server.mount_point / "new").read_bytes() == b"there"
    finally:
        server.close()


def test_an_unmount_ends_what_programs_have(tmp_path):
    server = Server(tmp_path / "mnt")
    try:
        client = RingClient(server.mount_point)
        buffer = memoryview(bytearray(10))
        file = client.open(str(server.mount_point / "file"), "w")
        client.write([Transfer(file, 0, memoryview(b"kept" * 10))])
        assert server.stop()["lengths"] == {"file": 40}
        for _ in range(2):  # when the daemon has gone, and when another is looked for
            with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
                client.read([Transfer(file, 0, buffer)])
            assert failed.value.errno == errno.ENOTCONN
        with pytest.raises(OSError, match="not served now"):
            client.allocate(1)
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            client.close()
        assert failed.value.errno == errno.ENOTCONN
    finally:
        server.close()


@pytest.mark.parametrize("kind", [RingClient, PosixClient])
def test_a_mount_that_has_gone_takes_nothing_from_who_has_only_read(tmp_path, kind):
    """A program that had read all it wanted ended with an error."""
    server = Server(tmp_path / "mnt")
    try:
        path = str(server.mount_point / "file")
        client = kind(server.mount_point) if kind is RingClient else kind()
        with client.open(path, "w") as file:
            client.write([Transfer(file, 0, memoryview(b"kept"))])
        reader, writer = client.open(path), client.open(path, "r+")
        assert client.read([Transfer(reader, 0, memoryview(bytearray(4)))]) == [4]
        server.close()
        reader.close()
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            writer.close()
        assert failed.value.errno == errno.ENOTCONN
        client.close()
    finally:
        server.close()


def test_a_socket_with_a_name(tmp_path):
    name = tmp_path / "socket"
    setting = f'batch_socket="{name}"'
    name.write_text("precious")
    refused = Server(tmp_path / "refused", setting)
    refused.process.communicate(timeout=60)
    assert refused.first_line.startswith("error: ")
    assert refused.process.returncode == 1
    assert name.read_text() == "precious"
    assert not (tmp_path / "refused").is_mount()
    name.unlink()
    server = Server(tmp_path / "mnt", setting)
    try:
        assert server.first_line == "ready"
        assert os.getxattr(server.mount_point, "ember.batch") == os.fsencode(name)
        with RingClient(server.mount_point) as client:
            client.allocate(1).close()
        server.stop()
        assert not name.exists()
    finally:
        server.close()


def test_a_ring_that_is_closed_or_of_another_process_says_so(client, path):
    iov = client.allocate(10)
    with client.open(path) as file:
        ring = client.ring(4)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(OSError, match="forked from: make another") as failed:
                    ring.prepare(Op.READ, file, 0, iov, 0, 10)
                assert (failed.value.errno, bool(failed.value.filename)) == (errno.EBADF, True)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        ring.prepare(Op.READ, file, 0, iov, 0, 10)
        ring.close()
        for call in (lambda: ring.prepare(Op.READ, file, 0, iov, 0, 10), ring.submit, ring.wait):
            with pytest.raises(OSError, match="this ring is closed") as failed:
                call()
            assert failed.value.errno == errno.EBADF


class ClosingBell:
    """A ring's bell; when it has been heard another thread closes the client."""

    def __init__(self, ring, close):
        self._bell, self._close = ring._bell, close
        ring._bell = ring._ear._bell = self

    def recv(self, *args):
        heard = self._bell.recv(*args)
        if heard:
            self._close()
        return heard

    def __getattr__(self, name):
        return getattr(self._bell, name)


@pytest.mark.parametrize("use", ["wait", "move_one", "put", "put_columns"])
def test_a_client_that_another_thread_closes_meanwhile_says_so(mnt, path, use):
    client = RingClient(mnt)
    file, iov, ring = client.open(path), client.allocate(10), client.ring(4)
    entry = (0, 0, 0, 10, file.id, iov.id, Op.READ, 0)
    if use == "wait":
        ring.put(*entry)
        ring.submit()
    if use in {"wait", "move_one"}:
        ClosingBell(ring, client.close)
    else:
        client.close()
    calls = {
        "wait": lambda: ring.wait(1),
        "move_one": lambda: ring.move_one(*entry),
        "put": lambda: ring.put(*entry),
        "put_columns": lambda: ring.put_columns([array("Q", [0])]),
    }
    with pytest.raises(OSError, match="this ring is closed") as failed:
        calls[use]()
    assert failed.value.errno == errno.EBADF


def test_large_shared_memory_asks_for_huge_pages(client):
    """Of these storage copies what is written in a quarter of the time,
    where the machine gives memory files any.
    """
    large, small = (6 << 20) + 20480, (1 << 20) + 20480  # as nobody else has
    held = client.allocate(large), client.allocate(small)
    assert [len(iov.view) for iov in held] == [large, small]
    assert kinds_of_pages(large) == {HAS_HUGE_PAGES}
    assert kinds_of_pages(small) == {False}
