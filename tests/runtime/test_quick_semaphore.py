"""A bound whose free places cost nothing."""

import trio

from fs.runtime.quick_semaphore import QuickSemaphore


def test_there_are_as_many_places_as_said():
    semaphore = QuickSemaphore(2)
    assert [semaphore.take_now() for _ in range(3)] == [True, True, False]
    semaphore.give_back()
    assert [semaphore.take_now() for _ in range(2)] == [True, False]


async def test_a_free_place_takes_no_turn():
    """Also for `async with`, and whoever comes too many waits."""
    semaphore, turns = QuickSemaphore(1), []

    async def other():
        turns.append(semaphore.waiting_count)
        async with semaphore:
            turns.append("inside")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async with semaphore:
            assert (turns, semaphore.value) == ([], 0)
            await trio.testing.wait_all_tasks_blocked()
            assert (turns, semaphore.waiting_count) == ([0], 1)
    assert (turns, semaphore.value) == ([0, "inside"], 1)


async def test_who_waits_first_is_first():
    semaphore, order = QuickSemaphore(1), []

    async def work(number):
        await semaphore.take()
        order.append(number)
        assert not semaphore.take_now()
        await trio.lowlevel.checkpoint()
        semaphore.give_back()

    assert semaphore.take_now()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(work, number)
            await trio.testing.wait_all_tasks_blocked()
        semaphore.give_back()
        assert not semaphore.take_now()  # it is of who has waited, who has not run yet
    assert order == list(range(5))
    assert [semaphore.take_now() for _ in range(2)] == [True, False]


async def test_who_is_cancelled_takes_no_place():
    semaphore = QuickSemaphore(1)
    await semaphore.take()
    with trio.move_on_after(0) as scope:
        await semaphore.take()
    assert scope.cancelled_caught
    semaphore.give_back()
    assert semaphore.take_now()
    semaphore.give_back()

    # Cancelled in the moment in which the place is given: it has it, and gives it back.
    assert semaphore.take_now()
    async with trio.open_nursery() as nursery:

        async def work():
            await semaphore.take()
            semaphore.give_back()

        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        semaphore.give_back()
        nursery.cancel_scope.cancel()
    assert semaphore.take_now()
