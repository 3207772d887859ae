"""What ends a call, when several things do at once."""

import pytest
import trio

from fs.rpc.call_under_way import CallUnderWay, TimeUpError
from fs.rpc.frame import Header
from fs.schema.status import FsError, Status


async def finished_at_the_deadline(call):
    """What a task sees whose work ends in the very moment in which its time is up: no cancellation."""
    with trio.CancelScope(shield=True):
        await trio.sleep_until(call.deadline_s)


async def test_work_that_ends_with_the_time_is_too_late(autojump_clock):  # noqa: ARG001
    call = CallUnderWay(trio.current_time() + 1)
    with pytest.raises(TimeUpError):
        await call.within(finished_at_the_deadline(call))


async def test_a_payload_that_ends_with_the_time_is_taken(autojump_clock):  # noqa: ARG001
    call = CallUnderWay(trio.current_time() + 1)
    call.replied(Header(1, 2, 3, 4, 5, 0, 0, 0, 7), b"")
    await call.wait()
    await call.within(finished_at_the_deadline(call))


async def test_the_first_end_counts(autojump_clock):  # noqa: ARG001
    call = CallUnderWay(trio.current_time() + 1)
    call.fail(FsError(Status.RPC_CONNECTION_LOST, "gone"))
    call.look_at_time(trio.current_time() + 5)
    call.fail(FsError(Status.RPC_TIMEOUT, "late"))
    with pytest.raises(FsError, match="gone"):
        await call.wait()
