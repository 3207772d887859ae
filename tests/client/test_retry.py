# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""For how long an operation is tried."""

import itertools
import random

import pytest
import trio

from fs.client.patience import ASK_S, SlowPeerError
from fs.client.retry import WORKED_ON_S_MAX, RetryBudget
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


@pytest.mark.parametrize("is_in_a_pause", [False, True])
async def test_time_in_which_this_process_was_stopped_is_no_silence(autojump_clock, is_in_a_pause):
    """It could not hear whoever answered: the first try afterwards may be the first at all."""
    begun, silent = budget(), FsError(Status.RPC_TIMEOUT, "n")
    if is_in_a_pause:
        begun.check(silent)
        await begun.pause()
    await trio.sleep(130.0)
    begun.check(silent)
    took_s, _ = await tried_s(begun, silent)
    assert 80.0 < took_s < 100.0


async def test_after_a_long_stop_services_may_have_forgotten(autojump_clock):
    begun = budget()
    await trio.sleep(WORKED_ON_S_MAX)
    with pytest.raises(FsError):
        begun.check(FsError(Status.RPC_TIMEOUT, "n"))


async def test_a_try_that_takes_its_time_does_not_prolong_the_whole(autojump_clock):
    """A call, and asking whether its peer lives: as it goes with a peer that is silent."""
    begun = budget()

    async def repeat():
        while True:
            await trio.sleep(SECTION.call_timeout_s + ASK_S)
            begun.check(FsError(Status.RPC_TIMEOUT, "n"))
            await begun.pause()

    with pytest.raises(FsError):
        await repeat()
    assert trio.current_time() < 100.0 + 2 * (SECTION.call_timeout_s + ASK_S)
