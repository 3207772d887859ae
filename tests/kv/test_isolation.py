"""A few runs of tests/kv/isolation.py on each engine, and that it finds what is broken."""

import random
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from fs.kv.memory import MemoryEngine
from fs.runtime.simulated import SimulatedClock
from tests.kv import isolation
from tests.kv.harness import CHOSEN_KIND

KINDS = [pytest.param(k, marks=pytest.mark.slow) for k in isolation.ENGINES if k != "memory"]


@pytest.mark.parametrize("kind", [CHOSEN_KIND] if CHOSEN_KIND else ["memory", *KINDS])
@pytest.mark.parametrize("workload", isolation.WORKLOADS)
def test_transactions_are_what_they_promise(kind, workload):
    assert isolation.run_many(kind, workload, range(1, 4)) == []


@pytest.mark.parametrize("workload", ["cycle", "bank", "serializable", "unknown"])
def test_an_engine_that_forgets_reads_is_found(workload):
    """The negative control; one run may be lucky."""
    assert isolation.run_many("memory", workload, range(1, 6), control="forgets reads")


@pytest.mark.parametrize("workload", ["bank", "unknown"])
def test_requests_that_are_repeated_blindly_are_found(workload):
    assert isolation.run_many("memory", workload, range(1, 6), control="forgets requests")


def test_what_outlives_its_snapshot_has_no_effect():
    """On a machine that has much else to do no run may fail for that."""

    async def done_count(pause_s_max):
        engine, source = MemoryEngine(SimulatedClock()), random.Random(1)
        names = [b"stamp/%d" % number for number in range(40)]
        run_script = partial(isolation.run_script, engine, source, pause_s_max=pause_s_max)
        return sum([await run_script(name) is not None for name in names])

    async def main():
        assert 0 < await done_count(20.0) < await done_count(0.0)

    trio.run(main, clock=MockClock(autojump_threshold=0))
