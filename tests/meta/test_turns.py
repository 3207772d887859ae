"""Turns at a file: one after the other, and nothing is left of who was cancelled."""

import trio
import trio.lowlevel

from fs.meta.turns import Turns


async def test_turns_come_in_order_and_leave_nothing():
    turns, order = Turns(), []

    async def one(number):
        await turns.take(7)
        order.append(number)
        await trio.lowlevel.checkpoint()
        turns.give(7)

    async with trio.open_nursery() as several:
        for number in range(3):
            several.start_soon(one, number)
    assert sorted(order) == [0, 1, 2] and turns._locks == {}


async def test_who_is_cancelled_leaves_nothing():
    turns = Turns()
    with trio.CancelScope() as scope:
        scope.cancel()
        await turns.take(7)
    assert scope.cancelled_caught and turns._locks == {}


async def test_who_is_cancelled_in_line_leaves_the_turn_to_its_owner():
    turns = Turns()
    await turns.take(7)

    async def be_late():
        with trio.move_on_after(0.01) as scope:
            await turns.take(7)
        assert scope.cancelled_caught and 7 in turns._locks

    async with trio.open_nursery() as nursery:
        nursery.start_soon(be_late)
    turns.give(7)
    assert turns._locks == {}
