"""One simulated run from one seed: a cluster, three clients at work, faults, then the checkers."""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from fs.client.native import EmberFs

from .checkers import (
    check_contests,
    check_metadata,
    check_registers,
    check_replicas,
    check_trees,
    observe,
    wait_collected,
)
from .cluster import SimCluster
from .determinism import run_deterministic
from .faults import Faults
from .workload import Memory, SimClient, prepare

CLIENT_COUNT = 3
SETTLE_S = 12.0
"""After the last fault: longer than a blocked stream takes to break."""
WORK_OVER_S_MAX = 200.0


@dataclass(frozen=True)
class Result:
    """What one run was like."""

    seed: int
    digest: str
    lines: list[str]
    simulated_s: float
    op_count: int
    longest_op_s: float
    chunk_count: int
    fault_counts: dict[str, int]


async def _scenario(cluster: SimCluster, memory: Memory, faults: Faults, work_s: float) -> None:
    await cluster.connect_client(90, lambda fs: prepare(fs, memory))
    until_s = trio.current_time() + work_s
    calm = trio.Event()

    async def client(number: int) -> None:
        worker = SimClient(number, cluster, memory)
        await cluster.connect_client(number, lambda fs: worker.work(fs, until_s, calm))

    with trio.move_on_after(work_s + WORK_OVER_S_MAX) as limit:
        async with trio.open_nursery() as nursery:
            for number in range(CLIENT_COUNT):
                nursery.start_soon(client, number)
            await faults.run(until_s)
            await cluster.wait_healthy()
            await trio.sleep(SETTLE_S)
            cluster.trace.add("calm", "")
            calm.set()
    assert not limit.cancelled_caught, "some operation never ends although all faults have"

    async def look(fs: EmberFs) -> None:
        await check_trees(fs, memory)

    await cluster.connect_client(91, look)
    check_registers(memory)
    check_contests(memory)
    await check_metadata(cluster)
    memory.inode_ids = await wait_collected(cluster)
    cluster.on_death = lambda _name: None
    await cluster.kill(*cluster.processes)


def run_seed(seed: int, *, work_s: float = 20.0, only: Sequence[str] = ()) -> Result:
    """Run one seed; raises AssertionError (or an exception group of such) when a property is broken.

    Args:
        seed: decides everything.
        work_s: virtual seconds of work under faults.
        only: the kinds of fault that may happen, all if empty.
    """
    cluster_box: list[tuple[SimCluster, Memory, Faults]] = []

    async def main() -> float:
        cluster = SimCluster(seed)
        memory = Memory()
        faults = Faults(cluster, memory, CLIENT_COUNT, only)
        cluster_box.append((cluster, memory, faults))
        began = trio.current_time()
        with trio.fail_after(3600):
            await cluster.run(
                lambda: _scenario(cluster, memory, faults, work_s), lambda: observe(cluster)
            )
        return trio.current_time() - began

    simulated_s = run_deterministic(main, seed)
    cluster, memory, faults = cluster_box[0]
    return Result(
        seed=seed,
        digest=cluster.trace.digest(),
        lines=cluster.trace.lines,
        simulated_s=simulated_s,
        op_count=memory.op_count,
        longest_op_s=memory.longest_op_s,
        chunk_count=check_replicas(cluster, None if memory.power_cut_count else memory.inode_ids),
        fault_counts=faults.counts,
    )
