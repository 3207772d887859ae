# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Deadlines that are set by one call are kept as any other."""

import math
import random

import pytest
import trio

from fs.runtime import readiness, time_limits
from fs.runtime.time_limits import set_deadline


def the_usual(scope, deadline_s):
    scope.deadline = deadline_s


@pytest.fixture(params=["by one call", "another trio"])
def is_known(request, monkeypatch):
    if request.param == "another trio":
        monkeypatch.setattr(time_limits, "PLAIN_CLOCK", None)


async def test_a_scope_ends_at_its_deadline(autojump_clock, is_known):
    began_s = trio.current_time()
    with trio.CancelScope() as scope:
        set_deadline(scope, began_s + 5)
        assert scope.deadline == began_s + 5
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == began_s + 5


async def test_one_that_was_taken_back_or_put_off_does_not_end_it(autojump_clock, is_known):
    now_s = trio.current_time()
    with trio.CancelScope() as scope:
        set_deadline(scope, now_s + 1)
        set_deadline(scope, math.inf)
        await trio.sleep(2)
        set_deadline(scope, now_s + 3)
        set_deadline(scope, now_s + 10)
        await trio.sleep(5)
    assert not scope.cancelled_caught


async def test_one_that_is_over_ends_it_at_the_next_checkpoint(autojump_clock, is_known):
    with trio.CancelScope() as scope:
        set_deadline(scope, trio.current_time() - 1)
        await trio.sleep(1)
        raise AssertionError("it goes on")
    assert scope.cancelled_caught


async def test_of_a_scope_that_is_not_entered_or_was_left_nothing_is_kept(autojump_clock, is_known):
    scope = trio.CancelScope()
    set_deadline(scope, trio.current_time() + 1)
    with scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught
    set_deadline(scope, trio.current_time() + 1)
    assert readiness.RUN_CONTEXT.runner.deadlines.next_deadline() == math.inf


async def test_one_relative_to_its_beginning_is_refused_as_ever(is_known):
    scope = trio.move_on_after(3)
    with pytest.raises(RuntimeError, match="relative"):
        set_deadline(scope, 1.0)


@pytest.mark.parametrize("way", [set_deadline, the_usual])
async def test_many_of_them_leave_what_trio_keeps_in_order(autojump_clock, way):
    """Its own count of what it keeps is compared with that whenever it cleans up,
    every thousand or so.
    """
    rng = random.Random(3)
    deadlines = readiness.RUN_CONTEXT.runner.deadlines
    with trio.CancelScope() as outer, trio.CancelScope() as inner:
        for _ in range(3000):
            later_s = rng.choice([math.inf, trio.current_time() + rng.randrange(10, 13)])
            way(rng.choice([outer, inner]), later_s)
            if rng.random() < 0.01:
                await trio.lowlevel.checkpoint()
        kept = [scope for scope in (outer, inner) if scope.deadline < math.inf]
        assert deadlines._active == len(kept)
        assert deadlines.next_deadline() == min([one.deadline for one in kept], default=math.inf)
