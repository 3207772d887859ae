"""Descriptors that the event loop looks after itself:
nobody is woken in vain, no time limit is missed.
"""

import errno
import socket

import pytest
import trio
import trio.testing

from fs.rpc.transport import SocketStream
from fs.runtime import readiness
from fs.runtime.real import ThreadRunBlocking

LONG_S = 60.0


@pytest.fixture
def pair():
    """Two connected sockets that do not block."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


def test_the_trio_that_is_installed_is_known():
    async def main():
        return readiness.watch(0, lambda: None), readiness.install(), readiness.install()

    assert trio.run(main) == (None, True, True)


def test_what_is_readable_is_told_without_a_turn_of_the_loop(pair):
    turns, told = [], []

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, _timeout):
            turns.append(None)

    async def main():
        readiness.install()

        def on_ready():
            told.append(pair[0].recv(1))
            if len(told) < 10:
                pair[1].send(b"x")
            else:
                watch.stop()
                done.set()

        done = trio.Event()
        watch = readiness.watch(pair[0].fileno(), on_ready)
        watch.begin()
        pair[1].send(b"x")
        before = len(turns)
        await done.wait()
        watch.close(OSError())
        return len(turns) - before

    assert trio.run(main, instruments=[Turns()]) <= 2
    assert told == [b"x"] * 10


def test_a_loop_that_looks_before_it_sleeps_hears_of_events_threads_and_time_limits(pair):
    told = []

    async def main():
        readiness.install()
        readiness.look_before_sleep(0.005)
        watch = readiness.watch(pair[0].fileno(), lambda: told.append(pair[0].recv(1)))
        watch.begin()
        for _ in range(20):
            pair[1].send(b"x")
            with trio.move_on_after(0.0001):
                await trio.sleep_forever()
            await trio.to_thread.run_sync(lambda: None)
        readiness.look_before_sleep(0.0)
        with trio.move_on_after(0.0001):
            await trio.sleep_forever()
        watch.close(OSError())

    trio.run(main)
    assert told == [b"x"] * 20


def test_what_is_always_readable_holds_up_no_time_limit(pair):
    async def main():
        readiness.install()
        count = 0

        def on_ready():
            nonlocal count
            count += 1

        watch = readiness.watch(pair[0].fileno(), on_ready)
        watch.begin()
        pair[1].send(b"never taken")
        with trio.fail_after(LONG_S), trio.move_on_after(0.05):
            await trio.sleep_forever()
        watch.close(OSError())
        return count

    assert trio.run(main) > 1


def test_a_time_limit_that_was_set_by_what_was_told_is_kept(pair):
    async def main():
        readiness.install()
        scope = trio.CancelScope()

        def on_ready():
            pair[0].recv(1)
            scope.deadline = trio.current_time() + 0.01

        watch = readiness.watch(pair[0].fileno(), on_ready)
        watch.begin()
        with scope:
            pair[1].send(b"x")
            await trio.sleep_forever()
        watch.close(OSError())
        return True

    assert trio.run(main)


def test_a_bug_in_who_is_told_ends_the_run_and_every_task_in_order(pair):
    """Raised right where the loop waits it would leave trio's loop behind,
    and what tasks have to clean up.
    """
    ended = []

    async def other():
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            ended.append("other")

    async def main():
        readiness.install()

        def on_ready():
            raise MemoryError

        watch = readiness.watch(pair[0].fileno(), on_ready)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other)
                await trio.testing.wait_all_tasks_blocked()
                watch.begin()
                pair[1].send(b"x")
                await trio.sleep_forever()
        finally:
            watch.close(OSError())
            ended.append("main")

    with pytest.raises(trio.TrioInternalError) as caught:
        trio.run(main)
    assert isinstance(caught.value.__cause__, (MemoryError, BaseExceptionGroup))
    assert ended == ["other", "main"]
    trio.run(trio.lowlevel.checkpoint)  # nothing of it is left in this thread


def test_the_end_of_a_stream_that_nobody_reads_is_told_once(pair):
    async def main():
        readiness.install()
        told = []

        def on_ready():
            told.append(None)
            watch.stop()

        watch = readiness.watch(pair[0].fileno(), on_ready)
        watch.begin()
        pair[1].close()
        for _ in range(5):
            await trio.sleep(0.001)
        watch.begin()
        for _ in range(5):
            await trio.sleep(0.001)
        watch.close(OSError())
        return len(told)

    assert trio.run(main) == 2


def test_closing_wakes_who_receives_and_who_sends(pair):
    async def main():
        readiness.install()
        stream = SocketStream(pair[0], "peer")
        errors = []

        async def note(work):
            try:
                await work
            except trio.ClosedResourceError:
                errors.append(work.__name__)

        async def fill():
            while True:
                await stream.send_some([bytes(65536)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, stream.receive_into(memoryview(bytearray(8))))
            nursery.start_soon(note, fill())
            await trio.testing.wait_all_tasks_blocked()
            await stream.aclose()
        return sorted(errors)

    assert trio.run(main) == ["fill", "receive_into"]


def test_who_waits_to_send_goes_on_when_there_is_room_again(pair):
    async def main():
        readiness.install()
        stream = SocketStream(pair[0], "peer")
        taken = 0

        async def take():
            nonlocal taken
            while taken < 4 << 20:
                try:
                    taken += len(pair[1].recv(1 << 20))
                except BlockingIOError:
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await stream.send_all([bytes(4 << 20)])
        await stream.aclose()
        return taken

    assert trio.run(main) == 4 << 20


@pytest.mark.parametrize(
    "bug",
    [
        ValueError("a bug"),
        OSError(errno.EINVAL, "no error of the stream"),
        BlockingIOError("of something else"),
        MemoryError(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_what_is_raised_about_bytes_is_raised_where_they_are_waited_for(pair, bug):
    async def main():
        readiness.install()
        stream = SocketStream(pair[0], "peer")

        def on_bytes(_count):
            raise bug

        async def receive():
            with pytest.raises(type(bug)) as caught, trio.fail_after(LONG_S):
                await stream.receive_into(memoryview(bytearray(8)), on_bytes)
            assert caught.value is bug

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            pair[1].send(b"x")
        await stream.aclose()

    trio.run(main)


def test_a_cancelled_receive_takes_nothing_and_the_next_one_gets_it_all(pair):
    async def main():
        readiness.install()
        stream = SocketStream(pair[0], "peer")
        told = []

        def on_bytes(count):
            told.append(count)

        buffer = memoryview(bytearray(8))
        with trio.move_on_after(0.001):
            await stream.receive_into(buffer, on_bytes)
        pair[1].send(b"abc")
        await trio.sleep(0.001)
        assert told == []
        assert await stream.receive_into(buffer, on_bytes) == 3
        await stream.aclose()
        return told, bytes(buffer[:3])

    assert trio.run(main) == ([3], b"abc")


def test_a_connection_that_trio_has_waited_for_is_watched_all_the_same():
    """Trio leaves a descriptor in its epoll once somebody has waited for it,
    here to be connected.
    """

    async def main():
        readiness.install()
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as sock:
            sock.setblocking(False)
            trio_socket = trio.socket.from_stdlib_socket(sock)
            await trio_socket.connect(listener.getsockname())
            await trio.lowlevel.wait_writable(sock)  # as a connection that takes its time
            stream = SocketStream(sock, "peer")
            peer, _ = listener.accept()
            with peer, trio.fail_after(LONG_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive, stream)
                    await trio.testing.wait_all_tasks_blocked()
                    peer.send(b"x")
            await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()  # nobody is woken who has gone

    async def receive(stream):
        assert await stream.receive_into(memoryview(bytearray(10))) == 1

    trio.run(main)


def test_who_waits_for_a_thread_goes_on_in_the_next_turn():
    turns = []

    class Turns(trio.abc.Instrument):
        def before_io_wait(self, _timeout):
            turns.append(None)

    async def main():
        readiness.install()
        run_blocking = ThreadRunBlocking()
        assert await run_blocking(str, 7) == "7"
        before = len(turns)
        with pytest.raises(ZeroDivisionError):
            await run_blocking(divmod, 1, 0)
        return len(turns) - before

    assert trio.run(main, instruments=[Turns()]) == 1


def test_none_of_many_who_wait_for_threads_is_forgotten():
    async def main():
        readiness.install()
        run_blocking = ThreadRunBlocking(4)
        found = []

        async def work(number):
            found.append(await run_blocking(abs, -number))

        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(work, number)
        return sorted(found)

    assert trio.run(main) == list(range(500))


def test_what_threads_have_called_is_refused_once_the_loop_has_ended():
    async def main():
        readiness.install()
        return readiness.call_soon_here()

    call_soon = trio.run(main)
    with pytest.raises(trio.RunFinishedError):
        call_soon(print)


def test_a_bug_in_what_threads_have_called_ends_the_run():
    async def main():
        readiness.install()
        call_soon = readiness.call_soon_here()
        call_soon(divmod, 1, 0)
        await trio.sleep_forever()

    with pytest.raises(trio.TrioInternalError) as caught:
        trio.run(main)
    assert isinstance(caught.value.__cause__, (ZeroDivisionError, BaseExceptionGroup))
