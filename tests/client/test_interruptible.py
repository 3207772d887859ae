"""Calls of plain threads that end when the thread is interrupted."""

import random
import signal
import threading
from contextlib import asynccontextmanager

import pytest
import trio

from fs.client.blocking import BlockingFs
from fs.client.entries import Identity
from fs.client.interruptible import InterruptibleCall
from fs.client.native import EmberFs
from fs.client.native_file import EmberFile
from fs.runtime.ports import Runtime
from fs.schema.status import FsError, Status
from tests.client.fakes import FakeClock, FakeCluster, run_inline
from tests.client.test_native import PathMeta


class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt
    """What the handler of the signal raises."""


@pytest.fixture
def interrupt():
    """Interrupts the main thread, wherever it waits."""

    def raiser(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, raiser)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def fs():
    cluster = FakeCluster(FakeClock())

    @asynccontextmanager
    async def connected():
        runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))
        meta = PathMeta(cluster, "client")
        yield EmberFs(meta, cluster.store(), runtime=runtime, identity=Identity(0, 0))

    with BlockingFs(connected) as fs:
        yield fs


@pytest.mark.parametrize("is_there", [True, False])
def test_who_is_interrupted_while_it_connects_leaves_no_thread(interrupt, is_there):
    """It stayed connected for as long as the process lived, and nobody could end it."""
    given_up, ended = threading.Event(), threading.Event()

    @asynccontextmanager
    async def connected():
        interrupt()
        await trio.to_thread.run_sync(given_up.wait)
        if not is_there:
            raise FsError(Status.RPC_TIMEOUT, "no manager answers")
        try:
            yield None
        finally:
            ended.set()

    fs = BlockingFs(connected)
    with pytest.raises(Interrupted):
        fs.__enter__()
    given_up.set()
    fs._thread.join()
    assert ended.is_set() is is_there
    assert not fs.is_usable


def test_a_signal_in_the_moment_when_the_wait_begins_is_met():
    """It waited for the connection all the same, for ever."""

    class SignalledBeforeItWaits(threading.Event):
        has_waited = False

        def wait(self, timeout=None):
            assert timeout is not None, "it would wait for ever"
            if not self.has_waited:
                self.has_waited = True
                return False
            raise Interrupted

    @asynccontextmanager
    async def connected():
        yield None

    fs = BlockingFs(connected)
    fs._ready = SignalledBeforeItWaits()
    with pytest.raises(Interrupted):
        fs.__enter__()
    fs._thread.join()


WAYS = {
    "read_into": (EmberFile, lambda _, file, buffer: file.read_into(0, buffer)),
    "write": (EmberFile, lambda _, file, buffer: file.write(0, buffer)),
    "append": (EmberFile, lambda _, file, buffer: file.append(buffer)),
    "read_batch": (EmberFs, lambda fs, file, buffer: fs.read_batch([(file, 0, buffer)])),
    "read_each": (EmberFs, lambda fs, file, buffer: fs.read_each([(file, 0, buffer)])),
    "write_each": (EmberFs, lambda fs, file, buffer: fs.write_each([(file, 0, buffer)])),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_is_interrupted_has_his_memory_back(fs, interrupt, monkeypatch, way):
    """Bytes of the read before came into the buffer of the next one."""
    owner, act = WAYS[way]
    buffer, ends = memoryview(bytearray(7)), []
    is_read = way.startswith("read")
    given_up, give_up = trio.Event(), InterruptibleCall._give_up

    def watched(call):
        give_up(call)
        given_up.set()

    async def long(*_):
        interrupt()
        try:
            await given_up.wait()
            await trio.lowlevel.checkpoint()
            ends.append("finished")
        except trio.Cancelled:
            await trio.lowlevel.cancel_shielded_checkpoint()
            ends.append("cancelled")
            raise

    with fs.create("/f") as file:
        file.write(0, b"content")
        with monkeypatch.context() as patched:
            patched.setattr(owner, way, long)
            patched.setattr(InterruptibleCall, "_give_up", watched)
            with pytest.raises(Interrupted):
                act(fs, file, buffer)
        assert ends == ["cancelled" if is_read else "finished"]
        assert file.read_into(0, buffer) == 7
    assert buffer == b"content"


def test_what_uses_no_memory_of_the_caller_goes_on(fs, interrupt):
    told, go_on = threading.Event(), trio.Event()

    async def closing():
        interrupt()
        await go_on.wait()
        told.set()

    async def release():
        go_on.set()

    with pytest.raises(Interrupted):
        fs.run(closing)
    assert not told.is_set()
    fs.run(release)
    assert told.wait(60)


def test_a_call_that_had_not_begun_never_does(fs):
    begun = []

    async def begin():
        begun.append(True)

    call = InterruptibleCall(begin)
    call._give_up()
    with pytest.raises(InterruptedError):
        fs.run(call._run)
    assert not begun


async def test_a_call_that_has_ended_refers_to_nothing_any_more():
    """Memory that was closed right after a read was still in use, now and then."""

    def reading(buffer):
        async def read():
            return len(buffer)

        return read

    memory = bytearray(7)
    call = InterruptibleCall(reading(memoryview(memory)))
    assert await call._run() == 7
    memory.clear()  # a BufferError while there is a view of it


def test_a_call_whose_loop_has_ended_is_not_waited_for(fs, monkeypatch):
    ended = trio.RunFinishedError()

    def refuse(*_, **__):
        raise ended

    token, thread = fs._token, fs._thread
    fs.close()
    monkeypatch.setattr(trio.from_thread, "run", refuse)
    with pytest.raises(trio.RunFinishedError):
        InterruptibleCall(trio.sleep_forever).make(token, thread)
