"""`until_wait`: the same as awaiting, and one call right before the first wait."""

import pytest
import trio
import trio.lowlevel

from fs.runtime.until_wait import NoTaskError, begin_without_task, in_task, until_wait
from tests.meta.harness import outside_any_task


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


async def test_what_is_begun_without_a_task_may_end_so():
    async def work():
        assert not trio.lowlevel.in_trio_task()
        return 5

    with pytest.raises(StopIteration) as ended:
        outside_any_task(begin_without_task, work())
    assert ended.value.value == 5


async def test_what_is_begun_without_a_task_gets_one_where_it_asks_for_it():
    steps = []

    async def work():
        steps.append("begun")
        await in_task()
        steps.append(trio.lowlevel.current_task())
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        await in_task()  # it has one
        return 5

    rest = outside_any_task(begin_without_task, work())
    assert steps == ["begun"]
    assert await rest == 5
    assert steps == ["begun", trio.lowlevel.current_task()]


@pytest.mark.parametrize("waits", [False, True])
async def test_errors_of_what_goes_on_in_a_task_pass(waits):
    async def work():
        await in_task()
        if waits:
            await trio.lowlevel.checkpoint()
        raise ValueError("no")

    rest = outside_any_task(begin_without_task, work())
    with pytest.raises(ValueError, match="no"):
        await rest


@pytest.mark.parametrize(
    "wait", [trio.lowlevel.cancel_shielded_checkpoint, trio.lowlevel.checkpoint]
)
async def test_what_waits_without_a_word_has_ended(wait):
    ended = []

    async def work():
        try:
            await wait()
        finally:
            ended.append(True)

    with pytest.raises(NoTaskError):
        outside_any_task(begin_without_task, work())
    assert ended


@pytest.mark.parametrize(
    "ask",
    [trio.lowlevel.current_task, trio.current_effective_deadline, trio.CancelScope().__enter__],
)
async def test_what_asks_for_its_task_without_a_word_has_ended(ask):
    async def work():
        ask()

    with pytest.raises(NoTaskError):
        outside_any_task(begin_without_task, work())


async def test_other_errors_are_not_taken_for_the_want_of_a_task():
    async def work():
        raise RuntimeError("broken invariant")

    with pytest.raises(RuntimeError, match="broken invariant") as caught:
        outside_any_task(begin_without_task, work())
    assert not isinstance(caught.value, NoTaskError)
