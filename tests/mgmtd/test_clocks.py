"""Clocks that step and drift: nothing is judged by wall time,
and leases end in time on the worst monotonic clocks allowed.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import itertools

import pytest
import trio

from fs.schema.config import CLOCK_DRIFT_MAX, MgmtdSection, certain_s
from tests.mgmtd.harness import JumpingClock, O, S, cluster_of

pytestmark = pytest.mark.thorough

HOUR_NS = 3600 * 10**9
STEPS_NS = [sign * step for step in (10**9, HOUR_NS, 365 * 24 * HOUR_NS) for sign in (1, -1)]


async def test_steps_of_the_wall_clock_change_nothing(autojump_clock):
    """20 steps on each of two managers and three storage nodes, of a second, an hour, a year,
    back and forth.
    """
    async with cluster_of(manager_count=2) as cluster:
        await cluster.up()
        await trio.sleep(20)
        before = await cluster.info()
        (primary,) = cluster.primaries
        processes = [*cluster.managers.values(), *cluster.storages.values()]
        step_count = 0
        for step_ns in itertools.islice(itertools.cycle(STEPS_NS), 20):
            for process in processes:
                process.clock.wall_offset_ns += step_ns
                step_count += 1
                await trio.sleep(0.3)
                assert cluster.primaries == [primary]
                assert all(s.member.lease.is_valid() for s in cluster.storages.values())
        assert step_count == 100
        assert (await cluster.info()).chains == before.chains
        await primary.kill()  # a successor takes over although its wall clock is years behind
        other = next(m for m in cluster.managers.values() if m is not primary)
        other.clock.wall_offset_ns -= 10 * 365 * 24 * HOUR_NS
        await cluster.wait_primary(other)
        assert (await cluster.info()).chains == before.chains


SPEEDS = [1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX]
LONG = MgmtdSection(node_failed_after_s=9.9, node_lease_s=certain_s(9.9), primary_lease_s=9.9)
"""The longer a lease, the more clocks differ at its end."""
PAIRS = list(itertools.product(SPEEDS, SPEEDS))


def speed_up(clock: JumpingClock, speed: float) -> None:
    """Let a clock run at another speed from now on."""
    began_s = trio.current_time()
    clock.monotonic_s = lambda: began_s + (trio.current_time() - began_s) * speed + clock.jump_s


@pytest.mark.parametrize(("node_speed", "manager_speed"), PAIRS)
async def test_a_lease_ends_before_the_judgement_on_drifting_clocks(
    autojump_clock, node_speed, manager_speed
):
    async with cluster_of(section=LONG) as cluster:
        await cluster.up()
        silent = cluster.storages[12]
        speed_up(silent.clock, node_speed)
        speed_up(cluster.managers[1].clock, manager_speed)
        await trio.sleep(20)
        assert silent.member.lease.is_valid()
        assert cluster.states(await cluster.info()) == [S, S, S]
        cluster.network.partition(["n12"], ["n1", "n11", "n13", "observer"])
        while silent.member.lease.is_valid():
            await trio.sleep(0.01)
            assert cluster.state_of(await cluster.info(), 12) is S
        await cluster.until(lambda i: cluster.state_of(i, 12) is O)


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_two_managers_never_act_at_once_on_drifting_clocks(autojump_clock, one, other):
    async with cluster_of(manager_count=2, section=LONG) as cluster:
        await cluster.up()
        (first,) = cluster.primaries
        second = next(m for m in cluster.managers.values() if m is not first)
        speed_up(first.clock, one)
        speed_up(second.clock, other)
        await trio.sleep(20)
        assert cluster.primaries == [first]

        async def nothing_more(*_arguments) -> None:
            await trio.sleep_forever()

        first.mgmtd._store._transact = nothing_more
        while not second.mgmtd.is_primary:
            await trio.sleep(0.01)
            assert len(cluster.primaries) <= 1
        assert not first.mgmtd.is_primary
