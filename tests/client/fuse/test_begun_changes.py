"""Creations, and durable closes, that no task waits for:
they happen once, whatever becomes of the first try.
"""

import errno
import gc
import os
import stat
import weakref

import pytest
import trio
import trio.testing

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode, SetattrField
from fs.client.vfs.locks import LockWish
from fs.schema.services import META_CREATE, META_SET_ATTR, META_SYNC
from fs.schema.status import FsError, Status
from tests.client.fake_chunks import CHUNK
from tests.client.fakes import FakeClock, FakeCluster, FakeMeta
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    is_watched,
    kernel,
    killed,
)

LOST = FsError(Status.RPC_CONNECTION_LOST, "gone")


class ChangingMeta(FakeMeta):
    """Begins changes, which wait for the test where it has a gate."""

    def __init__(self, cluster):
        super().__init__(cluster, "client")
        self.begun = []
        self.again = []
        """What was asked again, and after which error."""
        self.outcomes = []
        """Of tries that were begun: FsErrors, which come after the change;
        None, and then always: the reply.
        """
        self.made = {}
        """Replies to what was begun, which meta remembers by request id;
        with the requests, so that no other one gets the same place.
        """
        self.gate = None
        self.is_connected = True

    def begin_change(self, method, request, on_end):
        if not self.is_connected:
            return False
        self.begun.append((method, type(request).FromString(request.SerializeToString())))
        trio.lowlevel.spawn_system_task(self._serve, method, request, on_end)
        return True

    async def _serve(self, method, request, on_end):
        if self.gate is not None:
            await self.gate.wait()
        lost = self.outcomes.pop(0) if self.outcomes else None
        try:
            reply = await self.call(method, request)
        except FsError as error:
            on_end(None, error)
        else:
            self.made[id(request)] = request, reply
            on_end(None if lost else reply, lost)

    async def call_again(self, method, request, error, began_s):
        assert began_s <= trio.current_time()
        self.again.append((method, error.status))
        if method is META_CREATE:  # as meta does, which knows the request
            inode = self.cluster.child(request.parent_inode_id, request.name)
            request.is_exclusive = False
            reply = await self.call(method, request)
            assert reply.inode.inode_id == inode.inode_id
            return reply
        if method is not META_SYNC and id(request) in self.made:
            return self.made[id(request)][1]
        return await self.call(method, request)


class Cluster(FakeCluster):
    def __init__(self):
        super().__init__(FakeClock())
        self.only = ChangingMeta(self)
        self.chunks.can_flush = True

    def meta(self, client_id="client"):
        del client_id
        return self.only


@pytest.fixture
def cluster():
    return Cluster()


def create_body(name, flags=os.O_CREAT | os.O_EXCL | os.O_WRONLY):
    return p.CREATE_IN.pack(flags, stat.S_IFREG | 0o644, 0, 0) + name + b"\0"


async def written(kernel, name, data=b"data"):  # noqa: F811
    """Make a file and write to it; return its inode id and its handle."""
    inode_id, fh = await kernel.make(name)
    body = p.WRITE_IN.pack(fh, 0, len(data), 0, 0, 0, 0) + data
    assert (await kernel.ask(Opcode.WRITE, body, inode_id))[0] == 0
    return inode_id, fh


def flush_of(fh, owner=0):
    return p.FLUSH_IN.pack(fh, 0, 0, owner)


def methods(asked):
    return [method for method, _ in asked]


@pytest.mark.parametrize("is_write_begun", [True, False])
async def test_a_close_is_answered_when_bytes_and_length_are_durable(
    kernel,  # noqa: F811
    cluster,
    is_write_begun,
):
    kernel.vfs._core.store.asked_to_begin = int(is_write_begun)
    inode_id, fh = await written(kernel, b"f")
    cluster.only.gate = trio.Event()
    asked = await kernel.send(Opcode.FLUSH, flush_of(fh), inode_id)
    assert (await kernel.ask(Opcode.GETATTR, p.GETATTR_IN.pack(0, 0, 0)))[0] == 0  # meanwhile
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert cluster.chunks.durable_writes == 1
    assert methods(cluster.only.begun) == [META_CREATE, META_SYNC]
    assert cluster.only.begun[-1][1].is_durable
    state = kernel.vfs._core.states[inode_id]
    assert state.report_lock.locked()
    cluster.only.gate.set()
    assert await kernel.receive() == (asked, 0, b"")
    assert not state.report_lock.locked()
    assert (cluster.get(inode_id).length, cluster.durable_calls) == (4, 1)
    assert not state.has_unreported
    # There is nothing left to do for a second one, nor for the end of the file.
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")
    assert await kernel.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0), inode_id) == (0, b"")
    assert (cluster.durable_calls, cluster.only.again) == (1, [])
    assert not kernel.vfs._core.states


async def test_an_fsync_is_answered_when_all_is_durable_and_the_close_has_nothing_left(
    kernel,  # noqa: F811
    cluster,
):
    inode_id, fh = await written(kernel, b"f")
    body = p.FSYNC_IN.pack(fh, 0, 0)
    cluster.only.gate = trio.Event()
    asked = await kernel.send(Opcode.FSYNC, body, inode_id)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert cluster.chunks.durable_writes == 1
    assert methods(cluster.only.begun) == [META_CREATE, META_SYNC]
    assert cluster.only.begun[-1][1].is_durable
    cluster.only.gate.set()
    assert await kernel.receive() == (asked, 0, b"")
    assert (cluster.get(inode_id).length, cluster.durable_calls) == (4, 1)
    # Without anything new meta is still asked: others may have changed what has to be durable.
    assert await kernel.ask(Opcode.FSYNC, body, inode_id) == (0, b"")
    assert (cluster.durable_calls, cluster.chunks.durable_writes) == (2, 1)
    cluster.only.outcomes = [LOST]
    assert await kernel.ask(Opcode.FSYNC, body, inode_id) == (0, b"")
    assert cluster.only.again == [(META_SYNC, LOST.status)]
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")
    assert methods(cluster.only.begun).count(META_SYNC) == 3


@pytest.mark.parametrize("opcode", [Opcode.FSYNC, Opcode.FLUSH])
async def test_a_failed_write_before_is_told_to_whoever_asks_first(kernel, cluster, opcode):  # noqa: F811
    inode_id, fh = await written(kernel, b"f")
    cluster.chunks.write_faults = [FsError(Status.IO_ERROR, "as the test wants it")] * 2
    state = kernel.vfs._core.states[inode_id]
    await kernel.vfs._core.drain(state)
    body = p.FSYNC_IN.pack(fh, 0, 0) if opcode is Opcode.FSYNC else flush_of(fh)
    assert await kernel.ask(opcode, body, inode_id) == (errno.EIO, b"")
    assert await kernel.ask(opcode, body, inode_id) == (0, b"")


async def test_a_report_whose_reply_is_lost_is_asked_again_not_made_anew(kernel, cluster):  # noqa: F811
    inode_id, fh = await written(kernel, b"f")
    cluster.only.outcomes = [LOST]
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")
    assert cluster.only.again == [(META_SYNC, LOST.status)]
    assert methods(cluster.only.begun).count(META_SYNC) == 1
    assert not kernel.vfs._core.states[inode_id].report_lock.locked()


async def test_without_a_connection_a_task_does_it(kernel, cluster):  # noqa: F811
    cluster.only.is_connected = False
    inode_id, fh = await written(kernel, b"f")
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")
    assert (cluster.get(inode_id).length, cluster.durable_calls) == (4, 1)
    assert not cluster.only.begun


async def test_a_report_under_way_is_waited_for_by_a_task(kernel, cluster):  # noqa: F811
    inode_id, fh = await written(kernel, b"f")
    state = kernel.vfs._core.states[inode_id]
    assert state.report_lock.take_now()
    asked = await kernel.send(Opcode.FLUSH, flush_of(fh), inode_id)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert META_SYNC not in methods(cluster.only.begun)
    state.report_lock.give_back()
    assert await kernel.receive() == (asked, 0, b"")
    assert cluster.durable_calls == 1


@pytest.mark.parametrize("is_write_begun", [True, False])
async def test_a_failed_write_is_told_once_by_a_close(kernel, cluster, is_write_begun):  # noqa: F811
    kernel.vfs._core.store.asked_to_begin = int(is_write_begun)
    inode_id, fh = await written(kernel, b"f")
    failure = FsError(Status.IO_ERROR, "as the test wants it")
    cluster.chunks.write_faults = [failure, failure] if is_write_begun else [failure]
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (errno.EIO, b"")
    assert META_SYNC not in methods(cluster.only.begun)
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")


async def test_bytes_that_are_not_durable_yet_take_a_sync_of_storage(kernel, cluster):  # noqa: F811
    cluster.chunks.can_flush = False
    inode_id, fh = await written(kernel, b"f")
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")
    assert (cluster.chunks.sync_count, cluster.durable_calls) == (1, 1)


@pytest.mark.parametrize("status", [Status.QUOTA_EXCEEDED, Status.ACCESS_DENIED])
async def test_a_refused_report_is_the_error_of_the_close(kernel, cluster, status):  # noqa: F811
    inode_id, fh = await written(kernel, b"f")
    state = kernel.vfs._core.states[inode_id]
    cluster.meta_faults["Sync"] = [FsError(status, "no")] * 2  # also when it is asked again
    number = {Status.QUOTA_EXCEEDED: errno.EDQUOT, Status.ACCESS_DENIED: errno.EACCES}[status]
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (number, b"")
    assert not state.report_lock.locked()
    cluster.meta_faults.clear()
    if status is Status.QUOTA_EXCEEDED:  # and dropped
        assert state.local_length() == 0
        assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")


async def test_a_lock_that_another_thread_takes_meanwhile_is_freed(kernel, cluster):  # noqa: F811
    inode_id, fh = await written(kernel, b"f")
    cluster.only.gate = trio.Event()
    asked = await kernel.send(Opcode.FLUSH, flush_of(fh, owner=9), inode_id)
    await trio.testing.wait_all_tasks_blocked(0.01)
    await kernel.vfs.locks.lock(inode_id, LockWish(9, is_flock=False, is_write=True), wait=False)
    cluster.only.gate.set()
    assert await kernel.receive() == (asked, 0, b"")
    assert not kernel.vfs.locks.may_hold(inode_id, 9, is_flock=False)


@pytest.mark.parametrize("takes_task", [True, False])
async def test_the_end_of_the_mount_waits_for_what_is_being_closed(kernel, cluster, takes_task):  # noqa: F811
    inode_id, fh = await written(kernel, b"f")
    cluster.chunks.gate = trio.Event()
    cluster.chunks.can_flush = not takes_task
    await kernel.send(Opcode.FLUSH, flush_of(fh), inode_id)
    await trio.testing.wait_all_tasks_blocked(0.01)
    kernel.unmount()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not kernel.served.is_set()
    cluster.chunks.gate.set()
    with trio.fail_after(60):
        await kernel.served.wait()
    assert cluster.durable_calls == 1


async def test_a_creation_whose_reply_is_lost_is_asked_again(kernel, cluster):  # noqa: F811
    cluster.only.outcomes = [LOST]
    error, reply = await kernel.ask(Opcode.CREATE, create_body(b"f"))
    assert error == 0
    inode_id = p.ENTRY_OUT.unpack_from(reply)[0]
    assert cluster.names[1] == {b"f": inode_id}
    assert cluster.only.again == [(META_CREATE, LOST.status)]
    assert len(cluster.only.begun) == 1
    assert len(cluster.sessions[inode_id]) == 1
    assert kernel.vfs._core.known[inode_id].lookup_count == 1


async def test_a_refused_creation_is_not_tried_again(kernel, cluster):  # noqa: F811
    await kernel.make(b"f")
    assert await kernel.ask(Opcode.CREATE, create_body(b"f")) == (errno.EEXIST, b"")
    # Nor is one that could not be had for so long that it was given up.
    spent = FsError(Status.RPC_TIMEOUT, "silence")

    async def give_up(*_):
        raise spent

    cluster.only.call_again = give_up
    cluster.only.outcomes = [spent]
    assert (await kernel.ask(Opcode.CREATE, create_body(b"g")))[0] == errno.ETIMEDOUT
    assert len(cluster.only.begun) == 3


async def test_a_creation_may_have_the_kernel_forget_what_others_changed(kernel, cluster):  # noqa: F811
    inode_id, _ = await kernel.make(b"f")
    forgotten = []

    async def forget(inode_id):
        forgotten.append(inode_id)

    kernel.vfs._core.kernel.invalidate_attributes = forget
    file = cluster.get(inode_id)
    cluster.put_file(file, length=7, data_ver=file.file.data_ver + 1)
    error, reply = await kernel.ask(Opcode.CREATE, create_body(b"f", os.O_CREAT | os.O_RDWR))
    assert (error, p.ENTRY_OUT.unpack_from(reply)[0], forgotten) == (0, inode_id, [inode_id])
    assert kernel.vfs._core.states[inode_id].local_length() == 7


@pytest.mark.parametrize("opcode", [Opcode.FSYNC, Opcode.FLUSH])
async def test_what_is_written_during_a_report_is_left_to_the_next_close(kernel, cluster, opcode):  # noqa: F811
    inode_id, fh = await written(kernel, b"f")
    cluster.only.gate = trio.Event()
    body = p.FSYNC_IN.pack(fh, 0, 0) if opcode is Opcode.FSYNC else flush_of(fh)
    asked = await kernel.send(opcode, body, inode_id)
    await trio.testing.wait_all_tasks_blocked(0.01)
    # Stored, by another thread.
    assert await kernel.vfs.files.write_unbuffered(fh, 4, b" and more") == 9
    cluster.only.gate.set()
    assert await kernel.receive() == (asked, 0, b"")
    assert await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id) == (0, b"")
    assert (cluster.get(inode_id).length, cluster.durable_calls) == (13, 2)


@pytest.mark.parametrize("is_guessed", [True, False])
async def test_what_comes_from_a_map_is_reported_by_whoever_closes_first(
    kernel,  # noqa: F811
    cluster,
    is_guessed,
):
    """The kernel names any open file through which the inode is mapped,
    not the one that a program is about to close.
    """
    inode_id, mine = await kernel.make(b"f")
    opened = await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDWR, 0), inode_id)
    other = p.OPEN_OUT.unpack_from(opened[1])[0]
    flags = p.WRITE_CACHE if is_guessed else 0
    body = p.WRITE_IN.pack(other, 0, 4, flags, 0, 0, 0) + b"data"
    assert (await kernel.ask(Opcode.WRITE, body, inode_id))[0] == 0
    assert await kernel.ask(Opcode.FLUSH, flush_of(mine), inode_id) == (0, b"")
    assert cluster.durable_calls == is_guessed
    assert (cluster.get(inode_id).length == 4) is is_guessed
    assert await kernel.ask(Opcode.FLUSH, flush_of(other), inode_id) == (0, b"")
    assert (cluster.get(inode_id).length, cluster.durable_calls) == (4, 1 + is_guessed)


async def test_a_close_that_fails_is_answered_when_its_locks_are_free(kernel, cluster):  # noqa: F811
    """Who locks again after it must not lose that lock to it."""
    inode_id, fh = await written(kernel, b"f")
    locks, wish = kernel.vfs.locks, LockWish(9, is_flock=False, is_write=True)
    cluster.only.gate = trio.Event()
    asked = await kernel.send(Opcode.FLUSH, flush_of(fh, owner=9), inode_id)
    await trio.testing.wait_all_tasks_blocked(0.01)
    await locks.lock(inode_id, wish, wait=False)
    cluster.meta_faults["Sync"] = [FsError(Status.ACCESS_DENIED, "no")] * 3
    is_free = []
    unlock = locks.unlock

    async def unlock_late(*args):
        await trio.sleep(0.1)
        await unlock(*args)

    async def receive():
        assert await kernel.receive() == (asked, errno.EACCES, b"")
        is_free.append(not cluster.locks.get(inode_id))

    locks.unlock = unlock_late
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        cluster.only.gate.set()
    assert is_free == [True]
    assert not locks.may_hold(inode_id, 9, is_flock=False)


class Bytes(bytearray):
    """That can be referred to weakly."""


def write_chunk(kernel, fh, index):  # noqa: F811
    """Write a chunk without a copy; return a weak reference to its bytes."""
    data = Bytes(CHUNK)
    assert kernel.vfs.files.write_now(fh, index * CHUNK, data) == CHUNK
    return weakref.ref(data)


async def test_nobody_keeps_the_bytes_that_storage_has(kernel, cluster):  # noqa: F811
    """Without the garbage collector, which comes late:
    large writes are received in the memory of those before.
    """
    inode_id, fh = await kernel.make(b"f")
    gc.disable()
    try:
        cluster.chunks.gate = gate = trio.Event()
        several = [write_chunk(kernel, fh, index) for index in (0, 1, 2)]
        behind = write_chunk(kernel, fh, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert all(data() is not None for data in (*several, behind))
        cluster.chunks.gate = trio.Event()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [data() for data in several] == [None] * 3, "the one behind does not need them"
        cluster.chunks.gate.set()
        last = write_chunk(kernel, fh, 3)
        assert (await kernel.ask(Opcode.FSYNC, p.FSYNC_IN.pack(fh, 0, 0), inode_id))[0] == 0
        assert cluster.only.begun
        assert [behind(), last()] == [None] * 2
    finally:
        gc.enable()


async def test_a_mode_is_told_with_what_was_closed_meanwhile(kernel, cluster, monkeypatch):  # noqa: F811
    """Meta has answered before; the kernel takes that answer for the newest."""
    inode_id, fh = await written(kernel, b"f")
    usual, gate = cluster.only.call, trio.Event()

    async def call(method, request, **others):
        reply = await usual(method, request, **others)
        if method is META_SET_ATTR:
            await gate.wait()
        return reply

    monkeypatch.setattr(cluster.only, "call", call)
    values = [SetattrField.MODE, *[0] * 10, 0o600]
    unique = await kernel.send(Opcode.SETATTR, p.SETATTR_IN.pack(*values, 0, 0, 0, 0), inode_id)
    await trio.testing.wait_all_tasks_blocked()
    assert methods(cluster.only.begun)[-1] is META_SET_ATTR
    assert (await kernel.ask(Opcode.FLUSH, flush_of(fh), inode_id))[0] == 0
    assert (await kernel.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0), inode_id))[0] == 0
    gate.set()
    answered, error, reply = await kernel.receive()
    assert (answered, error) == (unique, 0)
    size = p.ATTR.unpack_from(reply, p.ATTR_OUT.size)[1]
    assert size == len(b"data")
