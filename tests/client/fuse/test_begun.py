"""Look-ups, and opens for reading, that no task waits for:
answered by whoever receives, done again where that may help, given up.
"""

import errno
import os
import random

import pytest
import trio

from fs.client.fuse.direct import interrupts
from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.direct.server import Server
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status
from tests.client.fake_meta import FakeMeta
from tests.client.fakes import FakeClock, FakeCluster, run_inline
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    is_watched,
    kernel,
    killed,
)
from tests.sim.page_cache import ModelDevice


class Begun:
    """A call under way."""

    def __init__(self, meta, method, request, on_end):
        self.meta, self.method, self.request, self._on_end = meta, method, request, on_end

    def end(self, reply, error=None):
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(reply, error)

    def fail(self, error):
        self.end(None, error)

    async def serve(self):
        try:
            reply = await self.meta.call(self.method, self.request)
        except FsError as error:
            self.fail(error)
        else:
            self.end(reply)


class BeginningMeta(FakeMeta):
    def __init__(self, cluster):
        super().__init__(cluster, "client")
        self.begun = []
        self.is_connected = True

    def begin(self, method, request, on_end):
        if not self.is_connected:
            return None
        self.begun.append(Begun(self, method, request, on_end))
        return self.begun[-1]


class Cluster(FakeCluster):
    def __init__(self):
        super().__init__(FakeClock())
        self.only = BeginningMeta(self)

    def meta(self, client_id="client"):
        del client_id
        return self.only


@pytest.fixture
def cluster():
    return Cluster()


async def begun_at(cluster, count):
    with trio.fail_after(60):
        while len(cluster.only.begun) < count:  # noqa: ASYNC110 - the condition is somebody else's
            await trio.sleep(0.001)
    return cluster.only.begun[count - 1]


async def test_each_is_answered_when_its_reply_comes(kernel, cluster):  # noqa: F811
    inode_id, _ = await kernel.make(b"f")
    first = await kernel.send(Opcode.LOOKUP, b"f\0")
    second = await kernel.send(Opcode.LOOKUP, b"missing\0")
    await (await begun_at(cluster, 2)).serve()
    assert await kernel.receive() == (second, errno.ENOENT, b"")
    # Others are served meanwhile.
    assert (await kernel.ask(Opcode.MKDIR, p.MKDIR_IN.pack(0o755, 0) + b"d\0"))[0] == 0
    await cluster.only.begun[0].serve()
    unique, error, reply = await kernel.receive()
    assert (unique, error) == (first, 0)
    assert p.ENTRY_OUT.unpack_from(reply)[0] == inode_id
    assert kernel.vfs._core.known[inode_id].lookup_count == 2


async def test_what_another_try_may_cure_is_tried_again(kernel, cluster):  # noqa: F811
    asked = await kernel.send(Opcode.LOOKUP, b"missing\0")
    (await begun_at(cluster, 1)).fail(FsError(Status.RPC_CONNECTION_LOST, "gone"))
    assert await kernel.receive() == (asked, errno.ENOENT, b"")
    cluster.only.is_connected = False
    assert (await kernel.ask(Opcode.LOOKUP, b"missing\0"))[0] == errno.ENOENT
    assert len(cluster.only.begun) == 1


async def test_a_reply_that_is_no_inode_is_an_error_of_that_request_alone(kernel, cluster):  # noqa: F811
    asked = await kernel.send(Opcode.LOOKUP, b"f\0")
    one = await begun_at(cluster, 1)
    one.end(one.method.reply_type(inode={"inode_id": 7, "type": 99}))
    assert await kernel.receive() == (asked, errno.EIO, b"")
    assert (await kernel.ask(Opcode.MKDIR, p.MKDIR_IN.pack(0o755, 0) + b"d\0"))[0] == 0


@pytest.mark.parametrize("error", [MemoryError("injected"), AssertionError("injected")], ids=repr)
@pytest.mark.parametrize("is_cured", [False, True])
async def test_what_fails_while_it_is_answered_is_an_error_of_that_request_alone(
    kernel,  # noqa: F811
    cluster,
    monkeypatch,
    error,
    is_cured,
):
    """It ends in no task; its caller waits for the answer, and all others for the mount."""
    errors = [error]
    number = errno.ENOMEM if isinstance(error, MemoryError) else errno.EIO

    def failing(real):
        def function(*args):
            if errors:
                raise errors.pop()
            return real(*args)

        return function

    asked = await kernel.send(Opcode.LOOKUP, b"missing\0")
    one = await begun_at(cluster, 1)
    with monkeypatch.context() as patch:
        if is_cured:  # there is no task to do it again
            nursery = kernel.server._nursery
            patch.setattr(nursery, "start_soon", failing(nursery.start_soon), raising=False)
            one.fail(FsError(Status.RPC_CONNECTION_LOST, "gone"))
        else:
            patch.setattr(kernel.server, "_refuse", failing(kernel.server._refuse))
            await one.serve()
    assert await kernel.receive() == (asked, number, b"")
    assert (await kernel.ask(Opcode.MKDIR, p.MKDIR_IN.pack(0o755, 0) + b"d\0"))[0] == 0


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_tried_again", [True, False])
async def test_a_signal_ends_it(  # noqa: PLR0917 - fixtures and cases
    kernel,  # noqa: F811
    cluster,
    killed,  # noqa: F811
    monkeypatch,
    is_killed,
    is_tried_again,
):
    monkeypatch.setattr(interrupts, "INTERRUPT_AFTER_S", 1e6 if is_killed else 0.2)
    asked = await kernel.send(Opcode.LOOKUP, b"missing\0", pid=7)
    one = await begun_at(cluster, 1)
    cluster.meta_gate = trio.Event()
    if is_tried_again:
        one.fail(FsError(Status.RPC_TIMEOUT, "silence"))
    (killed if is_killed else kernel.told_to_end).add(7)
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(asked))
    assert await kernel.receive() == (asked, errno.EINTR, b"")
    cluster.meta_gate.set()
    one.end(None, FsError(Status.NOT_FOUND, "too late"))
    other = await kernel.send(Opcode.LOOKUP, b"missing\0", pid=7)
    await (await begun_at(cluster, 2)).serve()
    assert await kernel.receive() == (other, errno.ENOENT, b"")


async def test_a_signal_that_ends_nothing_leaves_it_as_it_is(kernel, cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(interrupts, "INTERRUPT_AFTER_S", 1e6)
    asked = await kernel.send(Opcode.LOOKUP, b"missing\0")
    one = await begun_at(cluster, 1)
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(asked))
    assert (await kernel.ask(Opcode.GETATTR, p.GETATTR_IN.pack(0, 0, 0)))[0] == 0, "it is heard"
    await one.serve()
    assert await kernel.receive() == (asked, errno.ENOENT, b"")
    assert not kernel.server._interrupts._entries and not kernel.server._begun


async def test_the_end_of_the_mount_ends_them(kernel, cluster):  # noqa: F811
    await kernel.send(Opcode.LOOKUP, b"missing\0")
    one = await begun_at(cluster, 1)
    kernel.unmount()
    with trio.fail_after(60):
        await kernel.served.wait()
    one.end(None, FsError(Status.NOT_FOUND, "too late"))


async def written(kernel, name, data):  # noqa: F811
    inode_id, fh = await kernel.make(name)
    assert (await kernel.ask(Opcode.WRITE, p.WRITE_IN.pack(fh, 0, len(data), 0, 0, 0, 0) + data))[
        0
    ] == 0
    assert await kernel.ask(Opcode.FLUSH, p.FLUSH_IN.pack(fh, 0, 0, 0), inode_id) == (0, b"")
    assert await kernel.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0), inode_id) == (0, b"")
    return inode_id


async def opened(kernel, cluster, inode_id, count):  # noqa: F811
    asked = await kernel.send(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDONLY, 0), inode_id)
    await (await begun_at(cluster, count)).serve()
    unique, error, reply = await kernel.receive()
    assert (unique, error) == (asked, 0)
    return p.OPEN_OUT.unpack_from(reply)


async def test_an_open_for_reading_sees_what_was_closed_elsewhere(kernel, cluster):  # noqa: F811
    inode_id = await written(kernel, b"f", b"data")
    fh, *_ = await opened(kernel, cluster, inode_id, 1)
    assert fh in kernel.vfs.files._handles
    assert (await kernel.ask(Opcode.GETATTR, p.GETATTR_IN.pack(0, 0, 0), inode_id))[0] == 0
    # The next one meets another length than the kernel was told: it forgets first, in a task.
    forgotten = []

    async def forget(inode_id):
        forgotten.append(inode_id)

    kernel.vfs._core.kernel.invalidate_attributes = forget
    cluster.put_file(
        cluster.get(inode_id), length=7, data_ver=cluster.get(inode_id).file.data_ver + 1
    )
    again, *_ = await opened(kernel, cluster, inode_id, 2)
    assert forgotten == [inode_id]
    state = kernel.vfs._core.states[inode_id]
    assert (set(state.handles), state.local_length()) == ({fh, again}, 7)


async def test_an_open_is_refused_and_tried_again_as_by_a_task(kernel, cluster):  # noqa: F811
    inode_id = await written(kernel, b"f", b"data")
    body = p.OPEN_IN.pack(os.O_RDONLY, 0)
    asked = await kernel.send(Opcode.OPEN, body, inode_id)
    (await begun_at(cluster, 1)).fail(FsError(Status.ACCESS_DENIED, "no"))
    assert await kernel.receive() == (asked, errno.EACCES, b"")
    assert not kernel.vfs._core.states
    asked = await kernel.send(Opcode.OPEN, body, inode_id)
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(asked))
    (await begun_at(cluster, 2)).fail(FsError(Status.RPC_CONNECTION_LOST, "gone"))
    unique, error, reply = await kernel.receive()
    assert (unique, error) == (asked, 0)
    assert set(kernel.vfs._core.states[inode_id].handles) == {p.OPEN_OUT.unpack_from(reply)[0]}
    for flags in (os.O_WRONLY, os.O_RDONLY | os.O_TRUNC):
        assert (await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(flags, 0), inode_id))[0] == 0
    assert len(cluster.only.begun) == 2


async def test_an_open_whose_file_was_removed_before_its_reply_came_is_done_again(kernel, cluster):  # noqa: F811
    inode_id = await written(kernel, b"f", b"data")
    asked = await kernel.send(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDONLY, 0), inode_id)
    one = await begun_at(cluster, 1)
    reply = await cluster.only.call(one.method, one.request)
    assert await kernel.ask(Opcode.UNLINK, b"f\0") == (0, b"")
    one.end(reply)
    unique, error, _ = await kernel.receive()
    assert (unique, error) == (asked, 0)
    # A session keeps what has no name, also when that of its writer has ended.
    keep_session = kernel.vfs._core.states[inode_id].keep_session
    assert keep_session in cluster.sessions[inode_id]


@pytest.mark.parametrize("late_count", range(8))
async def test_what_fails_while_the_mount_ends_is_not_begun_again(cluster, late_count):
    """Nobody waits for it, and there is nowhere to do it:
    a connection may be lost in the very moment.
    """

    async def lose_connection():
        try:
            await trio.sleep_forever()
        finally:
            for _ in range(late_count):
                await trio.lowlevel.cancel_shielded_checkpoint()
            cluster.only.begun[-1].fail(FsError(Status.RPC_CONNECTION_LOST, "lost"))

    device, runtime = (
        ModelDevice(),
        Runtime(cluster.clock, None, run_inline, random.Random(late_count)),
    )
    vfs = Vfs(cluster.meta(), cluster.store(), runtime, ClientSection())
    async with trio.open_nursery() as nursery:
        await nursery.start(vfs.run)
        nursery.start_soon(lose_connection)
        nursery.start_soon(Server(device, vfs, runtime).run)
        device.send(Opcode.LOOKUP, 1, b"f\0", lambda *_: None)
        await begun_at(cluster, 1)
        nursery.cancel_scope.cancel()


async def test_an_entry_that_is_told_and_cannot_be_noted_counts_as_not_known(
    kernel,  # noqa: F811
    cluster,
    monkeypatch,
):
    """The kernel has it: the next open has what it shows forgotten."""
    inode_id, _ = await kernel.make(b"f")
    names = kernel.vfs.namespace

    def failing(*_, **__):
        raise MemoryError("injected")

    monkeypatch.setattr(names, "give", failing)
    asked = await kernel.send(Opcode.LOOKUP, b"f\0")
    with pytest.raises(MemoryError):
        await (await begun_at(cluster, 1)).serve()
    assert (await kernel.receive())[:2] == (asked, 0)
    known = kernel.vfs._core.known[inode_id]
    assert known.lookup_count == 2
    assert known.may_show_other(known.given_length, known.given_mtime_ns, 0.0)
