import trio

from fs.storage.chunk_locks import ChunkLocks
from fs.storage.inflight import InFlight


async def test_one_at_a_time_in_order_and_nothing_left(autojump_clock):  # noqa: ARG001
    locks, order = ChunkLocks(), []

    async def work(number, key):
        async with locks.hold(key):
            order.append((number, key))
            await trio.sleep(1)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(work, number, "a")
            await trio.sleep(0.01)
        nursery.start_soon(work, 3, "b")
        await trio.sleep(0.01)
        assert len(locks) == 2
    assert order[:2] == [(0, "a"), (3, "b")]
    assert order[2:] == [(1, "a"), (2, "a")]
    assert trio.current_time() - start_s > 2.9
    assert len(locks) == 0


async def test_a_cancelled_waiter_leaves_no_trace():
    locks = ChunkLocks()
    async with locks.hold(1):
        with trio.move_on_after(0):
            async with locks.hold(1):
                raise AssertionError
        assert len(locks) == 1
    assert len(locks) == 0


async def test_whoever_is_handed_the_lock_and_cancelled_at_once_still_passes_it_on(autojump_clock):  # noqa: ARG001
    locks, order = ChunkLocks(), []

    async def work(number, scope):
        with scope:
            async with locks.hold(1):
                order.append(number)
                await trio.sleep(1)
                order.append(-number)

    scopes = [trio.CancelScope() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        async with locks.hold(1):
            for number, scope in enumerate(scopes, start=1):
                nursery.start_soon(work, number, scope)
                await trio.sleep(0.01)
        scopes[0].cancel()  # it holds the lock already, and has not run since
    assert order[:3] == [1, 2, -2]
    assert order[-1] == -3
    assert len(locks) == 0


async def test_the_barrier_waits_for_older_updates_only(autojump_clock):  # noqa: ARG001
    inflight = InFlight()
    inflight.enter(3)
    inflight.enter(3)
    inflight.enter(4)

    async def leave():
        await trio.sleep(1)
        inflight.leave(3)
        await trio.sleep(1)
        inflight.leave(3)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await inflight.wait_older_left(4)
        assert trio.current_time() - start_s == 2
    assert inflight.count == 1
    with trio.move_on_after(5) as scope:
        await inflight.wait_older_left(5)
    assert scope.cancelled_caught
