"""`until_wait`: the same as awaiting, and one call right before the first wait."""

import pytest
import trio
import trio.lowlevel

from fs.runtime.until_wait import until_wait


async def test_what_does_not_wait_calls_nobody():
    async def work():
        return 5

    assert await until_wait(work(), lambda: pytest.fail("it did not wait")) == 5


async def test_the_call_comes_once_and_before_the_wait():
    seen = []

    async def work():
        seen.append("begun")
        await trio.lowlevel.checkpoint()
        seen.append("went on")
        await trio.lowlevel.checkpoint()
        return seen

    assert await until_wait(work(), lambda: seen.append("waits")) == ["begun", "waits", "went on"]


async def test_work_is_done_by_the_task_that_awaits():
    async def work():
        before = trio.lowlevel.current_task()
        await trio.lowlevel.checkpoint()
        return before, trio.lowlevel.current_task()

    here = trio.lowlevel.current_task()
    assert await until_wait(work(), lambda: None) == (here, here)


@pytest.mark.parametrize("waits", [False, True])
async def test_errors_pass(waits):
    async def work():
        if waits:
            await trio.lowlevel.checkpoint()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await until_wait(work(), lambda: None)


async def test_cancellation_reaches_the_work_and_may_be_handled_there(autojump_clock):  # noqa: ARG001
    async def work():
        with trio.move_on_after(1):
            await trio.sleep_forever()
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    ended = []
    with trio.move_on_after(5) as scope:
        await until_wait(work(), lambda: None)
    assert scope.cancelled_caught
    assert ended == [True]
