"""What ends a call, when several things do at once."""

import gc
import weakref
from contextlib import suppress

import pytest
import trio

from fs.rpc.call_under_way import CallUnderWay, TimeUpError
from fs.rpc.frame import Header
from fs.schema.status import FsError, Status


async def finished_at_the_deadline(call):
    """What a task sees whose work ends in the very moment in which its time is up:
    no cancellation.
    """
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


@pytest.mark.parametrize("way", ["before", "wait", "within", "late"])
async def test_what_a_failed_call_knew_goes_with_it(autojump_clock, way):  # noqa: ARG001
    """Without the garbage collector, which comes late: its payload may be large."""

    class Bytes(bytearray):
        """That can be referred to weakly."""

    async def fail(call):
        await trio.sleep(0.5)
        call.fail(FsError(Status.RPC_CONNECTION_LOST, "gone"))

    async def make(_data):
        call = CallUnderWay(trio.current_time() + 1)
        if way != "late":
            trio.lowlevel.spawn_system_task(fail, call)
        if way == "before":
            await trio.sleep(0.6)
        if way in {"before", "wait"}:
            await call.wait()
        await call.within(finished_at_the_deadline(call))

    async def fail_to_make():
        data = Bytes(10)
        with suppress(FsError, TimeUpError):
            await make(data)
            pytest.fail("it has not failed")
        return weakref.ref(data)

    gc.disable()
    try:
        found = await fail_to_make()
        await trio.sleep(1)
        assert found() is None
    finally:
        gc.enable()
