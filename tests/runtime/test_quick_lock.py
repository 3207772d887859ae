"""A lock that is taken at once where it is free."""

import pytest
import trio
import trio.lowlevel

from fs.runtime.quick_lock import QuickLock


async def test_a_free_lock_gives_no_turn_away(nursery):
    lock, others = QuickLock(), []

    async def note():
        others.append(1)

    nursery.start_soon(note)
    async with lock:
        assert lock.locked()
        assert not others
    assert not lock.locked()
    assert not others


async def test_one_at_a_time_in_the_order_of_coming(nursery):
    lock, seen = QuickLock(), []

    async def use(name):
        async with lock:
            seen.append(f"{name} in")
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            seen.append(f"{name} out")

    async with lock:
        for name in "abc":
            nursery.start_soon(use, name)
            await trio.testing.wait_all_tasks_blocked()
        assert seen == []
    await trio.testing.wait_all_tasks_blocked()
    assert seen == [f"{name} {way}" for name in "abc" for way in ("in", "out")]


async def test_it_is_free_after_an_error_and_after_one_who_gave_up():
    lock = QuickLock()
    with pytest.raises(ZeroDivisionError):
        async with lock:
            raise ZeroDivisionError
    async with lock:
        with trio.move_on_after(0):
            async with trio.open_nursery() as waiting:
                waiting.start_soon(lock.__aenter__)
    assert not lock.locked()
    async with lock:
        with pytest.raises(RuntimeError):
            await lock.__aenter__()


async def test_what_has_no_task_takes_it_and_gives_it_back_anywhere(nursery):
    lock, inside = QuickLock(), []

    async def use():
        async with lock:
            inside.append(1)

    assert lock.take_now() and lock.locked() and not lock.take_now()
    nursery.start_soon(use)
    await trio.testing.wait_all_tasks_blocked()
    assert not inside
    lock.give_back()
    assert not lock.take_now()  # who waits has it from now on
    await trio.testing.wait_all_tasks_blocked()
    assert inside and not lock.locked()
