"""The direct frontend against a kernel played by the test,
over a socket that keeps message boundaries as /dev/fuse does.
"""

import errno
import os
import random
import socket
import stat
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from fs.client.fuse.direct import handshake, interrupts, together
from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct import server as server_module
from fs.client.fuse.direct.device import Device
from fs.client.fuse.direct.protocol import InitFlag, Opcode
from fs.client.fuse.direct.server import Server
from fs.client.vfs.ports import Caller
from fs.client.vfs.vfs import Vfs
from fs.runtime import readiness, tracing
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.inode import InodeType
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import BegunRead
from tests.client.fakes import FakeClock, FakeCluster, run_inline

EVERYTHING = (1 << 62) - 1
UINT32 = (1 << 32) - 1


def init_body(major=7, minor=45, flags=EVERYTHING):
    low, high = (flags | InitFlag.INIT_EXT) & UINT32, flags >> 32
    return p.INIT_IN.pack(major, minor, 1 << 17, low) + p.INIT_IN_FLAGS2.pack(high & UINT32)


class Kernel:
    """The other end: sends requests, collects replies by their unique number."""

    def __init__(self, sock):
        self._sock = sock
        self._plain = socket.socket(fileno=sock.fileno())
        self._unique = 0
        self.served = trio.Event()
        self.told_to_end = set()

    def unmount(self):
        self._sock.shutdown(socket.SHUT_WR)

    def close(self):
        self._plain.detach()
        self._sock.close()

    def _request(self, opcode, body=b"", node_id=1, pid=1):
        self._unique += 2
        length = p.IN_HEADER.size + len(body)
        header = p.IN_HEADER.pack(length, opcode, self._unique, node_id, 0, 0, pid, 0, 0)
        return header + body

    async def send(self, opcode, body=b"", node_id=1, pid=1):
        await self._sock.send(self._request(opcode, body, node_id, pid))
        return self._unique

    def send_together(self, *requests):
        """Send requests without a checkpoint: the server finds them all when it looks."""
        sent = []
        for request in requests:
            data = self._request(*request)
            assert socket.socket.send(self._plain, data) == len(data)
            sent.append(self._unique)
        return sent

    async def receive(self):
        data = await self._sock.recv(1 << 21)
        length, error, unique = p.OUT_HEADER.unpack_from(data)
        assert length == len(data)
        return unique, -error, data[p.OUT_HEADER.size :]

    async def ask(self, opcode, body=b"", node_id=1, pid=1):
        unique = await self.send(opcode, body, node_id, pid)
        with trio.fail_after(60):
            answered, error, reply = await self.receive()
        assert answered == unique
        return error, reply

    async def write(self, name, data):
        """Make a file, close it, and return a handle that reads it."""
        inode_id, fh = await self.make(name)
        error, _ = await self.ask(
            Opcode.WRITE, p.WRITE_IN.pack(fh, 0, len(data), 0, 0, 0, 0) + data
        )
        assert error == 0
        for opcode, body in (
            (Opcode.FLUSH, p.FLUSH_IN.pack(fh, 0, 0, 0)),
            (Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0)),
        ):
            assert await self.ask(opcode, body, inode_id) == (0, b"")
        error, reply = await self.ask(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDONLY, 0), inode_id)
        assert error == 0
        return p.OPEN_OUT.unpack_from(reply)[0]

    async def make(self, name, node_id=1):
        body = p.CREATE_IN.pack(os.O_CREAT | os.O_RDWR, stat.S_IFREG | 0o644, 0, 0) + name + b"\0"
        error, reply = await self.ask(Opcode.CREATE, body, node_id)
        assert error == 0
        inode_id = p.ENTRY_OUT.unpack_from(reply)[0]
        return inode_id, p.OPEN_OUT.unpack_from(reply, p.ENTRY_OUT.size + p.ATTR.size)[0]


@pytest.fixture
def cluster():
    return FakeCluster(FakeClock())


@pytest.fixture
def is_watched():
    """Whether the event loop looks after the descriptor itself, as in a daemon."""
    return True


@pytest.fixture
async def kernel(cluster, killed, nursery, is_watched):
    if is_watched:
        readiness.install()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))
    vfs = Vfs(cluster.meta(), cluster.store(), runtime, ClientSection())
    await nursery.start(vfs.run)
    device = Device(theirs.detach(), handshake.WRITE_BYTES_MAX)
    made = Kernel(trio.socket.from_stdlib_socket(ours))

    made.server = Server(
        device, vfs, runtime, killed.__contains__, is_told_to_end=made.told_to_end.__contains__
    )

    async def serve():
        await made.server.run()
        made.served.set()

    nursery.start_soon(serve)
    error, reply = await made.ask(Opcode.INIT, init_body())
    assert (error, len(reply)) == (0, p.INIT_OUT.size)
    made.vfs = vfs
    yield made
    nursery.cancel_scope.cancel()
    device.close()
    made.close()


@pytest.fixture
def killed():
    return set()


def test_only_what_the_kernel_offers_is_agreed():
    rng = random.Random(1)
    needed = (
        InitFlag.ATOMIC_O_TRUNC | InitFlag.MAX_PAGES | InitFlag.DO_READDIRPLUS | InitFlag.POSIX_ACL
    )
    for _ in range(200):
        offered = rng.getrandbits(62) | needed
        agreed = handshake.agree(init_body(flags=offered), 64)
        assert int(agreed.flags) & ~(offered | InitFlag.INIT_EXT) == 0
        fields = p.INIT_OUT.unpack(agreed.reply)
        assert fields[0] == 7
        assert fields[3] | fields[10] << 32 == int(agreed.flags)


@pytest.mark.parametrize("max_background", [1, 64, 1_000_000])
def test_the_kernel_keeps_no_read_back_whatever_is_done_at_a_time(max_background):
    """One that comes after a shorter answer to what lies behind it shows zeros."""
    fields = p.INIT_OUT.unpack(handshake.agree(init_body(), max_background).reply)
    assert fields[4] >= 4096
    assert 1 <= fields[5] <= fields[4]


def test_kernels_of_other_ages():
    assert handshake.agree(init_body(major=8), 64) is None
    for body in (init_body(major=6), init_body(minor=30), init_body(flags=0)):
        with pytest.raises(FsError) as e:
            handshake.agree(body, 64)
        assert e.value.status is Status.FUSE_MISSING
    old = p.INIT_IN.pack(7, 31, 1 << 17, int(UINT32 & ~InitFlag.INIT_EXT))
    assert not handshake.agree(old, 64).flags >> 32


async def test_errors_reach_the_kernel(kernel, cluster, caplog):
    assert await kernel.ask(Opcode.LOOKUP, b"missing\0") == (errno.ENOENT, b"")
    assert await kernel.ask(4095) == (errno.ENOSYS, b"")
    assert await kernel.ask(Opcode.LOOKUP, b"no end") == (errno.EINVAL, b"")
    read = p.READ_IN.pack(99, 0, 4096, 0, 0, 0, 0)
    assert await kernel.ask(Opcode.READ, read) == (errno.EBADF, b"")
    cluster.meta_faults["GetAttr"] = [AssertionError("planted")]
    assert await kernel.ask(Opcode.GETATTR, p.GETATTR_IN.pack(0, 0, 0)) == (errno.EIO, b"")
    assert "planted" in caplog.text


async def test_statx_tells_when_a_file_was_made(kernel, cluster):
    """One that a record does not know is left out of the mask; nothing else is."""
    asked = p.STATX_IN.pack(0, 0, 0, 0, p.STATX_BASIC | p.STATX_BTIME)
    place = p.STATX_OUT.size
    for btime_ns in (-1_500_000_001, 12_000_000_034, 0):
        cluster.inodes[1] = replace(cluster.get(1), btime_ns=btime_ns)
        error, reply = await kernel.ask(Opcode.STATX, asked)
        assert error == 0
        assert len(reply) == place + p.STATX.size == 288
        mask, *fields = p.STATX.unpack_from(reply, place)
        assert mask == p.STATX_BASIC | (p.STATX_BTIME if btime_ns else 0)
        assert fields[12] * 10**9 + fields[13] == btime_ns
        inode = cluster.get(1)
        assert fields[2:6] == [inode.nlink, inode.uid, inode.gid, inode.st_mode]
        assert fields[6] == 1


async def test_statx_of_what_the_kernel_has_asks_nobody_and_prolongs_nothing(kernel, cluster):
    cluster.add(Caller(0, 0), 1, b"f", InodeType.SOCKET, 0o644)
    error, reply = await kernel.ask(Opcode.LOOKUP, b"f\0")
    inode_id, valid_s = p.ENTRY_OUT.unpack_from(reply)[0], kernel.vfs.section.attr_timeout_s
    assert (error, p.ENTRY_OUT.unpack_from(reply)[3]) == (0, valid_s)
    cluster.calls.clear()
    await trio.sleep(0.01)
    error, reply = await kernel.ask(Opcode.STATX, p.STATX_IN.pack(0, 0, 0, 0, UINT32), inode_id)
    left_s, left_ns, _ = p.STATX_OUT.unpack_from(reply)
    assert error == 0 and 0.0 < left_s + left_ns / 10**9 <= valid_s - 0.01
    mask, *fields = p.STATX.unpack_from(reply, p.STATX_OUT.size)
    assert mask & p.STATX_BTIME and fields[6] == inode_id
    assert cluster.calls == []
    # Whoever wants what meta has by now comes again, since the kernel has it all.
    error, _ = await kernel.ask(Opcode.STATX, p.STATX_IN.pack(0, 0, 0, 0, UINT32), inode_id)
    assert (error, cluster.calls) == (0, ["GetAttr"])


async def test_a_sampled_request_begins_a_trace_of_its_own(kernel):
    """While requests wait, others are served, also by workers that the former started."""
    core, ended, seen = kernel.vfs._core, [], {}
    call, is_due, go_on = core.meta.call, [True, False, True], trio.Event()

    async def watched_call(method, request):
        span = tracing.current()
        seen[request.name] = None if span is None else span.span_id
        await go_on.wait()
        return await call(method, request)

    tracer = kernel.vfs.tracer
    tracer.sink, tracer.sample_rate, tracer.is_due = ended.append, 0.5, lambda: is_due.pop(0)
    core.meta.call = watched_call
    for name in (b"one", b"two", b"three"):
        await kernel.send(Opcode.LOOKUP, name + b"\0")
        await trio.testing.wait_all_tasks_blocked()
    go_on.set()
    for _ in range(3):
        assert (await kernel.receive())[1] == errno.ENOENT
    await trio.testing.wait_all_tasks_blocked()
    assert seen[b"two"] is None
    assert [span.name for span in ended] == ["lookup", "lookup"]
    assert {span.span_id for span in ended} == {seen[b"one"], seen[b"three"]}
    assert len({span.trace_id for span in ended}) == 2
    assert tracing.live.count == 0


@pytest.mark.parametrize("is_watched", [True, False])
async def test_bytes_written_are_read(kernel):
    _, fh = await kernel.make(b"f")
    data = random.Random(2).randbytes(300_000)
    body = p.WRITE_IN.pack(fh, 0, len(data), 0, 0, 0, 0) + data
    assert await kernel.ask(Opcode.WRITE, body) == (0, p.WRITE_OUT.pack(len(data), 0))
    for offset in (0, 100_000, 200_000, 290_000, 300_000):
        request = p.READ_IN.pack(fh, offset, 100_000, 0, 0, 0, 0)
        assert await kernel.ask(Opcode.READ, request) == (0, data[offset : offset + 100_000])
    assert await kernel.ask(Opcode.FLUSH, p.FLUSH_IN.pack(fh, 0, 0, 0)) == (0, b"")
    assert await kernel.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0)) == (0, b"")
    assert (await kernel.ask(Opcode.READ, p.READ_IN.pack(fh, 0, 1, 0, 0, 0, 0)))[0] == errno.EBADF


async def test_a_write_goes_to_the_end_only_while_its_descriptor_appends(kernel):
    inode_id, _ = await kernel.make(b"f")
    flags = os.O_RDWR | os.O_APPEND
    _, reply = await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(flags, 0), inode_id)
    fh = p.OPEN_OUT.unpack(reply)[0]
    for now, data in ((flags, b"one-two"), (os.O_RDWR, b"ONE"), (flags, b"!")):
        body = p.WRITE_IN.pack(fh, 0, len(data), 0, 0, now, 0) + data
        assert await kernel.ask(Opcode.WRITE, body) == (0, p.WRITE_OUT.pack(len(data), 0))
    request = p.READ_IN.pack(fh, 0, 100, 0, 0, flags, 0)
    assert await kernel.ask(Opcode.READ, request) == (0, b"ONE-two!")


def entries(reply, is_plus):
    offset, head = 0, p.ENTRY_OUT.size + p.ATTR.size if is_plus else 0
    while offset < len(reply):
        node_id = p.ENTRY_OUT.unpack_from(reply, offset)[0] if is_plus else None
        inode_id, cookie, length, _ = p.DIRENT.unpack_from(reply, offset + head)
        start = offset + head + p.DIRENT.size
        yield reply[start : start + length], cookie, node_id, inode_id
        offset = start + p.padded(length)


@pytest.mark.parametrize(("opcode", "size"), [(Opcode.READDIR, 200), (Opcode.READDIRPLUS, 700)])
async def test_small_listings_miss_and_double_nothing(kernel, opcode, size):
    made = {}
    for i in range(40):
        name = b"n" * (i + 1)
        made[name] = (await kernel.make(name))[0]
    _, reply = await kernel.ask(Opcode.OPENDIR, p.OPEN_IN.pack(0, 0))
    fh = p.OPEN_OUT.unpack(reply)[0]
    seen, cookie, is_plus = {}, 0, opcode is Opcode.READDIRPLUS
    while True:
        error, reply = await kernel.ask(opcode, p.READ_IN.pack(fh, cookie, size, 0, 0, 0, 0))
        assert error == 0
        assert len(reply) <= size
        if not reply:
            break
        for name, next_cookie, node_id, inode_id in entries(reply, is_plus):
            assert name not in seen
            seen[name] = inode_id
            cookie = next_cookie
            if is_plus:
                assert node_id == (0 if name in (b".", b"..") else inode_id)
    assert seen == {b".": 1, b"..": 1} | made
    assert await kernel.ask(Opcode.RELEASEDIR, p.RELEASE_IN.pack(fh, 0, 0, 0)) == (0, b"")


async def listed(kernel, *, is_only_looked_into=False):
    """Return the names of the root, reply by reply,
    as a program of one thread opens and lists it.
    """
    _, reply = await kernel.ask(Opcode.OPENDIR, p.OPEN_IN.pack(0, 0))
    fh, cookie, replies = p.OPEN_OUT.unpack(reply)[0], 0, []
    while True:
        body = p.READ_IN.pack(fh, cookie, 4096, 0, 0, 0, 0)
        error, reply = await kernel.ask(Opcode.READDIRPLUS, body)
        assert error == 0
        replies.append([name for name, *_ in entries(reply, True)])
        if not reply or is_only_looked_into:
            break
        *_, (_, cookie, _, _) = entries(reply, True)
    await kernel.ask(Opcode.RELEASEDIR, p.RELEASE_IN.pack(fh, 0, 0, 0))
    return replies


async def test_who_only_looks_whether_a_directory_is_empty_is_shown_one_name(kernel):
    """As `rm -r` does; if he reads on, nothing is missed or doubled."""
    names = [b"%d" % i for i in range(8)]
    for name in names:
        await kernel.make(name)
    whole = [[b".", b"..", *names], []]
    for _ in range(2):
        assert await listed(kernel, is_only_looked_into=True) == whole[:1]
        assert await listed(kernel) == whole
    assert await listed(kernel, is_only_looked_into=True) == [[b".", b"..", b"0"]]
    assert await listed(kernel) == whole
    assert await listed(kernel) == [[b".", b"..", b"0"], names[1:], []]
    assert await listed(kernel, is_only_looked_into=True) == whole[:1]


async def test_a_listing_that_goes_on_later_lets_its_attributes_be_used_for_less_long(kernel):
    """They were all told at once."""
    for i in range(8):
        await kernel.make(b"%d" % i)
    _, reply = await kernel.ask(Opcode.OPENDIR, p.OPEN_IN.pack(0, 0))
    fh, cookie, pause_s, left = p.OPEN_OUT.unpack(reply)[0], 0, 0.0, []
    for pause_s in (0.0, 0.5):
        await trio.sleep(pause_s)
        body = p.READ_IN.pack(fh, cookie, 1000, 0, 0, 0, 0)
        _, reply = await kernel.ask(Opcode.READDIRPLUS, body)
        *_, (_, cookie, _, _) = entries(reply, True)
        last = len(reply) - p.ENTRY_OUT.size - p.ATTR.size - p.DIRENT.size - p.padded(1)
        _, _, name_s, attr_s, name_ns, attr_ns = p.ENTRY_OUT.unpack_from(reply, last)
        left.append((name_s + name_ns / 1e9, attr_s + attr_ns / 1e9))
    assert left[0] == pytest.approx((1.0, 1.0), abs=0.2)
    assert left[1] == pytest.approx((0.5, 0.5), abs=0.2)
    await kernel.ask(Opcode.RELEASEDIR, p.RELEASE_IN.pack(fh, 0, 0, 0))


async def test_a_value_must_fit_the_buffer_of_who_asks(kernel):
    inode_id, _ = await kernel.make(b"f")
    body = p.SETXATTR_IN.pack(4, 0, 0, 0) + b"user.a\0blue"
    assert await kernel.ask(Opcode.SETXATTR, body, inode_id) == (0, b"")
    for size, expected in (
        (0, (0, struct.pack("=II", 4, 0))),
        (3, (errno.ERANGE, b"")),
        (4, (0, b"blue")),
    ):
        request = p.GETXATTR_IN.pack(size, 0) + b"user.a\0"
        assert await kernel.ask(Opcode.GETXATTR, request, inode_id) == expected
    again = p.SETXATTR_IN.pack(4, 1, 0, 0) + b"user.a\0gray"
    assert await kernel.ask(Opcode.SETXATTR, again, inode_id) == (errno.EEXIST, b"")


@pytest.mark.parametrize("is_watched", [True, False])
async def test_many_requests_wait_at_once_and_none_is_lost(kernel, cluster):
    cluster.meta_gate = trio.Event()
    waiting = [await kernel.send(Opcode.LOOKUP, b"missing\0") for _ in range(100)]
    await trio.testing.wait_all_tasks_blocked(0.01)
    cluster.meta_gate.set()
    answers = [await kernel.receive() for _ in waiting]
    assert sorted(unique for unique, _, _ in answers) == waiting
    assert {error for _, error, _ in answers} == {errno.ENOENT}
    assert (await kernel.ask(Opcode.LOOKUP, b"missing\0"))[0] == errno.ENOENT


@pytest.mark.parametrize("is_killed", [True, False])
async def test_an_interrupted_lookup_ends(kernel, cluster, killed, monkeypatch, is_killed):
    monkeypatch.setattr(interrupts, "INTERRUPT_AFTER_S", 1e6 if is_killed else 0.2)
    cluster.meta_gate = trio.Event()
    other = await kernel.send(Opcode.LOOKUP, b"missing\0", pid=8)
    interrupted = await kernel.send(Opcode.LOOKUP, b"missing\0", pid=7)
    (killed if is_killed else kernel.told_to_end).add(7)
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(interrupted))
    assert await kernel.receive() == (interrupted, errno.EINTR, b"")
    cluster.meta_gate.set()
    assert await kernel.receive() == (other, errno.ENOENT, b"")
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(interrupted))
    assert (await kernel.ask(Opcode.LOOKUP, b"missing\0"))[0] == errno.ENOENT


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_lookup_outlasts_a_timer_and_ends_by_what_comes_later(
    kernel, cluster, killed, monkeypatch, is_killed
):
    monkeypatch.setattr(interrupts, "INTERRUPT_AFTER_S", 0.1)
    cluster.meta_gate = trio.Event()
    lasting = await kernel.send(Opcode.LOOKUP, b"missing\0", pid=8)
    ending = await kernel.send(Opcode.LOOKUP, b"missing\0", pid=7)
    for unique in (lasting, ending):
        await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(unique))
    with trio.move_on_after(0.3):
        pytest.fail(f"answered: {await kernel.receive()}")
    (killed if is_killed else kernel.told_to_end).add(7)
    assert await kernel.receive() == (ending, errno.EINTR, b"")
    cluster.meta_gate.set()
    assert await kernel.receive() == (lasting, errno.ENOENT, b"")


async def test_what_is_interrupted_as_it_is_answered_disturbs_nothing_later(
    kernel, cluster, killed
):
    killed.add(7)
    for i in range(20):
        cluster.meta_gate = trio.Event()
        asked = await kernel.send(Opcode.LOOKUP, b"missing\0", pid=7)
        await trio.testing.wait_all_tasks_blocked()
        cluster.meta_gate.set()
        await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(asked))
        unique, error, _ = await kernel.receive()
        assert (unique, error in {errno.ENOENT, errno.EINTR}) == (asked, True)
        cluster.meta_gate = trio.Event()
        body = p.MKDIR_IN.pack(0o755, 0o022) + b"d%d\0" % i
        making = await kernel.send(Opcode.MKDIR, body, pid=7)
        await trio.testing.wait_all_tasks_blocked()
        cluster.meta_gate.set()
        unique, error, _ = await kernel.receive()
        assert (unique, error) == (making, 0)


async def test_what_has_effects_is_done_when_the_mount_goes(kernel, cluster):
    _, fh = await kernel.make(b"f")
    inode_id, sessions = next(iter(cluster.sessions.items()))
    assert len(sessions) == 1
    error, _ = await kernel.ask(Opcode.WRITE, p.WRITE_IN.pack(fh, 0, 4, 0, 0, 0, 0) + b"data")
    assert error == 0
    cluster.meta_gate = trio.Event()
    await kernel.send(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0))
    await kernel.send(Opcode.LOOKUP, b"missing\0")
    await trio.testing.wait_all_tasks_blocked(0.01)
    kernel.unmount()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not kernel.served.is_set()
    cluster.meta_gate.set()
    await kernel.served.wait()
    assert not cluster.sessions.get(inode_id)


async def test_what_has_effects_is_not_given_up(kernel, cluster, killed):
    cluster.meta_gate = trio.Event()
    body = p.MKDIR_IN.pack(0o755, 0o022) + b"d\0"
    making = await kernel.send(Opcode.MKDIR, body, pid=7)
    killed.add(7)
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(making))
    await trio.testing.wait_all_tasks_blocked(0.01)
    cluster.meta_gate.set()
    unique, error, _ = await kernel.receive()
    assert (unique, error) == (making, 0)


# ---- large writes ----


@pytest.mark.parametrize(
    "size", [1, 100_000, handshake.WRITE_BYTES_MAX // 2, handshake.WRITE_BYTES_MAX]
)
async def test_what_was_written_stays_as_it_was_while_more_comes(kernel, cluster, size):
    """Large writes are kept where they were received until storage has them."""
    gate = trio.Event()
    real = cluster.chunks.write

    async def write(file, offset, data, **options):
        await gate.wait()
        return await real(file, offset, data, **options)

    cluster.chunks.write = write
    inode_id, fh = await kernel.make(b"f")
    data = random.Random(size).randbytes(4 * size)
    for offset in range(0, 4 * size, size):
        head = p.WRITE_IN.pack(fh, offset, size, 0, 0, 0, 0)
        error, reply = await kernel.ask(Opcode.WRITE, head + data[offset : offset + size], inode_id)
        assert (error, reply) == (0, p.WRITE_OUT.pack(size, 0))
    gate.set()
    assert await kernel.ask(Opcode.FLUSH, p.FLUSH_IN.pack(fh, 0, 0, 0), inode_id) == (0, b"")
    for offset in range(0, 4 * size, size):
        found = await kernel.ask(*a_read(fh, offset, size))
        assert found == (0, data[offset : offset + size])


# ---- reads that arrive together ------------------------------------------------------------------


def a_read(fh, offset, size, pid=1):
    return Opcode.READ, p.READ_IN.pack(fh, offset, size, 0, 0, 0, 0), 1, pid


@pytest.fixture(params=["begun", "by a task"])
def store_reads(cluster, monkeypatch, request):
    """The calls of the storage side: of each, the offsets it reads at;
    `faults` is asked before each.
    """
    real, calls = cluster.chunks.read, Calls()
    cluster.chunks.can_begin = request.param == "begun"

    async def read(reads, *, is_relaxed=False):
        calls.append([one.offset for one in reads])
        await calls.fault(calls[-1])
        await real(reads, is_relaxed=is_relaxed)

    monkeypatch.setattr(cluster.chunks, "read", read)
    return calls


class Calls(list):
    async def fault(self, offsets):
        """To be replaced."""


async def several(kernel, sent):
    with trio.fail_after(30):
        answers = [await kernel.receive() for _ in sent]
    assert sorted(unique for unique, _, _ in answers) == sorted(sent)
    found = {unique: (error, data) for unique, error, data in answers}
    return [found[unique] for unique in sent]


DATA = random.Random(5).randbytes(30_000)
PLACES = (0, 1000, 2000, 3000, 4000)
"""Where each of five files is read, which hold the same."""


@pytest.fixture
async def handles(kernel):
    return [await kernel.write(b"f%d" % place, DATA) for place in PLACES]


def reads_of(handles, size=4096):
    """One read of each, by a process of its own."""
    return [a_read(*read, size, read[1]) for read in zip(handles, PLACES, strict=True)]


def content(place, size=4096):
    return 0, DATA[place : place + size]


async def test_reads_that_arrive_together_are_one_call_of_storage(kernel, handles, store_reads):
    found = await several(kernel, kernel.send_together(*reads_of(handles, 20_000)))
    assert found == [content(place, 20_000) for place in PLACES]
    assert store_reads == [list(PLACES)]


async def test_the_first_of_many_reads_leave_while_the_others_are_taken_in(kernel, store_reads):
    """So storage and mount work at the same time;
    while there is a call under way, all that wait go together.
    """
    gate = trio.Event()
    store_reads.fault = lambda _: gate.wait()
    places = range(together.FIRST_READ_COUNT + 9)
    handles = [await kernel.write(b"f%d" % place, DATA) for place in places]
    sent = kernel.send_together(
        *[a_read(fh, place, 4096) for fh, place in zip(handles, places, strict=True)]
    )
    await trio.testing.wait_all_tasks_blocked()
    first, rest = places[: together.FIRST_READ_COUNT], places[together.FIRST_READ_COUNT :]
    assert store_reads == [list(first), list(rest)]
    gate.set()
    assert await several(kernel, sent) == [content(place) for place in places]
    again = kernel.send_together(*[a_read(fh, 9000, 4096) for fh in handles[:9]])
    await several(kernel, again)
    asked = [len(call) for call in store_reads if 9000 in call]  # the others read ahead
    assert asked == [together.FIRST_READ_COUNT, 1]


async def test_a_read_by_itself_waits_for_nobody(kernel, handles, store_reads):
    fh = handles[0]
    assert await kernel.ask(*a_read(fh, 25_000, 4096)) == content(25_000)
    assert await kernel.ask(*a_read(fh, 30_000, 4096)) == (0, b"")
    assert (await kernel.ask(*a_read(fh + 99, 0, 4096)))[0] == errno.EBADF
    assert store_reads == [[25_000]]


async def test_what_arrives_between_reads_is_not_lost(kernel, handles, store_reads):
    reads = reads_of(handles)
    look_up = (Opcode.LOOKUP, b"missing\0")
    not_open = a_read(handles[-1] + 99, 0, 4096)
    sent = kernel.send_together(*reads[:2], look_up, reads[2], not_open, look_up)
    found = await several(kernel, sent)
    assert [error for error, _ in found] == [0, 0, errno.ENOENT, 0, errno.EBADF, errno.ENOENT]
    assert store_reads == [[0, 1000], [2000]]


async def test_reads_are_sent_although_other_requests_keep_coming(kernel, handles, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_COUNT_MAX", 3)
    # The server looks at it each time it begins to receive.
    await kernel.ask(Opcode.LOOKUP, b"missing\0")
    others = [(Opcode.FLUSH, p.FLUSH_IN.pack(handles[1], 0, 0, 0))] * 10
    read, *rest = kernel.send_together(a_read(handles[0], 0, 4096), *others)
    answers = [(await kernel.receive())[0] for _ in (read, *rest)]
    assert answers.index(read) == 3


async def test_a_read_that_fails_fails_nobody_else(kernel, handles, store_reads):
    async def damaged(offsets):
        if 2000 in offsets:
            raise FsError(Status.CHUNK_DAMAGED, "injected")

    store_reads.fault = damaged
    found = await several(kernel, kernel.send_together(*reads_of(handles)))
    for place, answer in zip(PLACES, found, strict=True):
        assert answer == ((errno.EIO, b"") if place == 2000 else content(place))


@pytest.mark.parametrize(
    "case",
    [
        (AssertionError("injected"), errno.EIO, "bug in read"),
        (MemoryError(), errno.ENOMEM, "lacks something: MemoryError"),
    ],
)
async def test_a_bug_or_lack_in_reading_is_told_to_everybody(
    kernel, handles, store_reads, caplog, case
):
    failure, number, told = case

    async def bug(offsets):
        if offsets[0] in PLACES:  # what is read ahead is not meant
            raise failure

    store_reads.fault = bug
    found = await several(kernel, kernel.send_together(*reads_of(handles)))
    assert found == [(number, b"")] * len(PLACES)
    assert told in caplog.text and ("bug in" in caplog.text) == (number == errno.EIO)
    store_reads.fault = Calls().fault
    assert await kernel.ask(*a_read(handles[0], 0, 4096)) == content(0)


async def test_a_read_that_hangs_holds_nobody_up_for_long(
    kernel, handles, store_reads, monkeypatch, killed
):
    monkeypatch.setattr(together, "ALONE_AFTER_S", 0.1)

    async def stuck(offsets):
        if 2000 in offsets:
            await trio.sleep_forever()

    store_reads.fault = stuck
    sent = kernel.send_together(*reads_of(handles))
    hanging = sent.pop(2)
    assert [error for error, _ in await several(kernel, sent)] == [0] * len(sent)
    killed.add(2000)
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(hanging))
    assert await several(kernel, [hanging]) == [(errno.EINTR, b"")]


async def test_a_read_that_is_given_up_does_not_end_the_others(
    kernel, handles, store_reads, killed
):
    gate = trio.Event()
    store_reads.fault = lambda _: gate.wait()
    killed.add(2000)
    sent = kernel.send_together(*reads_of(handles))
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(sent[2]))
    await trio.testing.wait_all_tasks_blocked()
    gate.set()
    found = await several(kernel, sent)
    assert found.pop(2) == (errno.EINTR, b"")
    assert found == [content(place) for place in PLACES if place != 2000]


async def test_a_read_that_is_alone_is_given_up_when_its_caller_is_killed(
    kernel, handles, cluster, killed, store_reads
):
    never = trio.Event()
    store_reads.fault = lambda _: never.wait()
    killed.add(2000)
    sent = await kernel.send(*a_read(handles[2], 2000, 4096, 2000))
    await trio.testing.wait_all_tasks_blocked()
    assert [one.has_ended for one in cluster.chunks.begun] == [False] * cluster.chunks.can_begin
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(sent))
    assert await several(kernel, [sent]) == [(errno.EINTR, b"")]
    assert all(one.has_ended for one in cluster.chunks.begun)


@pytest.mark.parametrize("takes_long", [False, True])
async def test_a_read_that_is_alone_and_gets_another_signal_is_asked_for_once(
    kernel, handles, store_reads, monkeypatch, takes_long
):
    """It was given up at once, and done again: asked of storage twice."""
    monkeypatch.setattr(interrupts, "INTERRUPT_AFTER_S", 0.05 if takes_long else 1e6)
    kernel.told_to_end.add(2000)
    gate = trio.Event()
    store_reads.fault, store_reads[:] = lambda _: gate.wait(), []
    sent = await kernel.send(*a_read(handles[2], 2000, 4096, 2000))
    await trio.testing.wait_all_tasks_blocked()
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(sent))
    await kernel.ask(Opcode.LOOKUP, b"missing\0")  # behind that
    if not takes_long:
        gate.set()
    wanted = (errno.EINTR, b"") if takes_long else content(2000)
    assert await several(kernel, [sent]) == [wanted]
    assert store_reads == [[2000]]
    assert not any(known.read_count or known.held for known in kernel.vfs._core.known.values())


async def test_begun_reads_that_fail_are_done_by_themselves(kernel, handles, cluster):
    cluster.chunks.has_begun_faults = True
    found = await several(kernel, kernel.send_together(*reads_of(handles)))
    assert found == [content(place) for place in PLACES]
    assert await kernel.ask(*a_read(handles[0], 25_000, 4096)) == content(25_000)


async def test_begun_reads_that_fail_are_waited_for_all_the_same(
    kernel, handles, cluster, monkeypatch
):
    """A shorter answer to what lies behind must not pass them between their failing and the task
    that repeats them.
    """
    cluster.chunks.has_begun_faults, seen, end = True, [], BegunRead.end

    def ended(begun, *, is_done):
        under_way = [known for known in kernel.vfs._core.known.values() if known.read_count]
        end(begun, is_done=is_done)
        seen.extend(bool(known.read_count or known.held) for known in under_way)

    monkeypatch.setattr(BegunRead, "end", ended)
    found = await several(kernel, kernel.send_together(*reads_of(handles)))
    assert found == [content(place) for place in PLACES]
    assert all(seen)
    assert bool(seen) == cluster.chunks.can_begin
    assert not any(known.read_count or known.held for known in kernel.vfs._core.known.values())


async def test_begun_reads_that_no_task_can_do_again_are_refused(
    kernel, handles, cluster, monkeypatch
):
    cluster.chunks.has_begun_faults = True
    server, nursery = kernel.server, kernel.server._nursery

    def start_soon(function, *args):
        if function == server._reads._serve_begun_again:
            raise MemoryError("injected")
        type(nursery).start_soon(nursery, function, *args)

    with monkeypatch.context() as patch:
        patch.setattr(server, "_nursery", SimpleNamespace(start_soon=start_soon))
        found = await several(kernel, kernel.send_together(*reads_of(handles)))
    wanted = [content(place) for place in PLACES]
    assert found == ([(errno.ENOMEM, b"")] * len(PLACES) if cluster.chunks.can_begin else wanted)
    cluster.chunks.has_begun_faults = False
    assert await kernel.ask(*a_read(handles[0], 25_000, 4096)) == content(25_000)
    assert not any(known.read_count or known.held for known in kernel.vfs._core.known.values())


async def test_a_large_write_for_which_there_is_no_memory_is_told_so(kernel, handles, monkeypatch):
    """It was received where no task waits, and all others wait for the mount."""
    device, lacks = kernel.server._device, [OSError(errno.ENOMEM, "injected")]
    real = device._memory.take

    def take(size):
        if lacks:
            raise lacks.pop()
        return real(size)

    monkeypatch.setattr(device._memory, "take", take)
    data = bytes(handshake.WRITE_BYTES_MAX)
    write = p.WRITE_IN.pack(handles[0], 0, len(data), 0, 0, 0, 0) + data
    assert await kernel.ask(Opcode.WRITE, write) == (errno.EIO, b"")
    assert not lacks
    assert (await kernel.ask(Opcode.WRITE, write))[0] != errno.EIO
    assert await kernel.ask(*a_read(handles[0], 25_000, 4096)) == content(25_000)


@pytest.mark.parametrize("count", [1, len(PLACES)])
async def test_reads_for_which_there_is_no_memory_are_told_so(kernel, handles, monkeypatch, count):
    """Neither where they are begun nor in the task that does them then,
    whose error ended the mount.
    """
    with monkeypatch.context() as patch:

        def take(_size):
            raise MemoryError("injected")

        patch.setattr(kernel.vfs.memory, "take", take)
        found = await several(kernel, kernel.send_together(*reads_of(handles)[:count]))
    assert found == [(errno.ENOMEM, b"")] * count
    assert await kernel.ask(*a_read(handles[0], 25_000, 4096)) == content(25_000)


async def test_reads_that_cannot_be_done_anew_hold_nobody_up(kernel, handles, cluster, monkeypatch):
    """Short answers wait for reads that are held before them:
    of those that are not done there is nobody who lets them go.
    """
    operations, held = kernel.server._operations, []
    hold_read = operations.hold_read

    def hold(request):
        if len(held) == 2:
            raise MemoryError("injected")
        held.append(request)
        return hold_read(request)

    async def fail(_):
        raise FsError(Status.IO_ERROR, "injected")

    cluster.chunks.has_begun_faults = True
    with monkeypatch.context() as patch:
        patch.setattr(operations, "hold_read", hold)
        patch.setattr(operations, "read_together", fail)
        found = await several(kernel, kernel.send_together(*reads_of(handles)))
    assert len(held) == 2
    assert found == [(errno.ENOMEM, b"")] * len(PLACES)
    assert not any(known.held for known in kernel.vfs._core.known.values())


@pytest.mark.parametrize("count", [1, len(PLACES)])
async def test_reads_that_cannot_be_begun_for_an_error_are_read(kernel, handles, cluster, count):
    """They are begun in no task: what that raises would end the mount."""
    reads, wanted = reads_of(handles)[:count], [content(place) for place in PLACES[:count]]
    cluster.chunks.begin_faults = [MemoryError("injected")]
    assert await several(kernel, kernel.send_together(*reads)) == wanted
    assert (cluster.chunks.begin_faults, cluster.chunks.begun) == ([], [])
    assert await kernel.ask(*a_read(handles[0], 25_000, 4096)) == content(25_000)
    assert len(cluster.chunks.begun) == 1
    assert all(known.read_count == 0 for known in kernel.vfs._core.known.values())


async def test_begun_reads_that_take_long_wait_for_each_other_no_more(
    kernel, handles, cluster, monkeypatch
):
    """Also where storage has answered, and something else is waited for."""
    monkeypatch.setattr(together, "ALONE_AFTER_S", 0.1)
    cluster.chunks.begun_gate = trio.Event()  # never
    monkeypatch.setattr(BegunRead, "fail", lambda _self, _error: None)
    found = await several(kernel, kernel.send_together(*reads_of(handles)))
    assert found == [content(place) for place in PLACES]
    for begun in cluster.chunks.begun:
        begun.end(is_done=True)  # too late: nobody is answered twice
    assert await kernel.ask(*a_read(handles[0], 30_000, 4096)) == (0, b"")


async def test_reads_too_large_to_be_begun_are_read(kernel):
    size = together.BEGUN_BYTES_MAX // 2 + 4096
    data = random.Random(6).randbytes(size)
    handles = [await kernel.write(b"f%d" % n, data) for n in range(2)]
    found = await several(kernel, kernel.send_together(*[a_read(fh, 0, size) for fh in handles]))
    assert found == [(0, data)] * 2


async def test_reads_under_way_end_with_the_mount(kernel, handles, store_reads):
    never = trio.Event()
    store_reads.fault = lambda _: never.wait()
    kernel.send_together(*reads_of(handles))
    await trio.testing.wait_all_tasks_blocked()
    kernel.unmount()
    with trio.fail_after(30):
        await kernel.served.wait()
