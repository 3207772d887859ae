# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""For how long an operation is tried."""

import itertools
import random

import pytest
import trio

from fs.client.patience import SlowPeerError
from fs.client.retry import RetryBudget
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status

from .fakes import FakeClock, run_inline

SECTION = ClientSection(retry_time_s_max=100.0, call_timeout_s=4.0)
SILENCE = [Status.RPC_CONNECT_FAILED, Status.RPC_CONNECTION_LOST, Status.RPC_TIMEOUT]


def budget(**options):
    return RetryBudget(SECTION, Runtime(FakeClock(), None, run_inline, random.Random(1)), **options)


async def tried_s(begun, *errors):
    """Return for how long errors that come in turn, one a second, are repeated,
    and what ends that.
    """

    async def repeat():
        for error in itertools.cycle(errors):
            await trio.sleep(1.0)
            begun.check(error)

    began_s = trio.current_time()
    with pytest.raises(FsError) as ended:
        await repeat()
    return trio.current_time() - began_s, ended.value


@pytest.mark.parametrize("status", SILENCE)
async def test_who_gives_way_does_so_after_the_time_of_one_call(status, autojump_clock):
    took_s, error = await tried_s(budget(gives_way=True), FsError(status, "n"))
    assert took_s == 4.0
    assert error.status is Status.RPC_TIMEOUT
    assert error.detail == f"not reached from here for 4 s: {status.name}: n"


@pytest.mark.parametrize("status", SILENCE)
async def test_whoever_is_alone_goes_on(status, autojump_clock):
    took_s, error = await tried_s(budget(), FsError(status, "n"))
    assert took_s == 100.0
    assert error.status is status


async def test_nobody_gives_way_while_somebody_answers(autojump_clock):
    silent = FsError(Status.RPC_TIMEOUT, "n")
    for answer in (FsError(Status.TARGET_OFFLINE, "n"), SlowPeerError(Status.RPC_TIMEOUT, "n")):
        took_s, _ = await tried_s(budget(gives_way=True), silent, silent, answer)
        assert took_s >= 100.0


async def test_the_time_counts_from_the_beginning_of_the_first_try(autojump_clock):
    await trio.sleep(10.0)
    begun = budget(began_s=trio.current_time() - 4.0, gives_way=True)
    with pytest.raises(FsError, match="not reached from here"):
        begun.check(FsError(Status.RPC_TIMEOUT, "n"))
