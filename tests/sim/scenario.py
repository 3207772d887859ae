"""One simulated run from one seed: a cluster, clients at work, faults, then the checkers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from fs.client.native import EmberFs

from .checkers import (
    Observer,
    check_contests,
    check_given_up,
    check_metadata,
    check_mounts,
    check_registers,
    check_replicas,
    check_trees,
    touch_leftovers,
    wait_collected,
)
from .cluster import SimCluster
from .determinism import STEPS, run_deterministic
from .faults import Faults
from .shape import Shape
from .workload import Memory, SimClient, prepare

WORK_S = 38.0
"""Of work under faults; with all that comes before and after, a run takes over 60 s."""
LIVE_S_MAX = 60.0
"""After the last fault all chains serve and no operation is under way within this time,
if no limit of resync makes it longer.
"""
SETTLE_S = 12.0
"""Then: longer than a blocked stream takes to break."""
BACK_S = (0.01, 0.5, 3.0)
"""A killed client comes back after."""


@dataclass(frozen=True)
class Result:
    """What one run was like."""

    seed: int
    digest: str
    lines: list[str] = field(repr=False)
    simulated_s: float
    event_count: int
    op_count: int
    longest_op_s: float
    live_s: float
    """From the last fault to chains that serve and clients that wait for nothing."""
    chunk_count: int
    fault_counts: dict[str, int]
    shape: Shape
    register_op_count: int
    """Operations in the histories of registers."""
    name_op_count: int
    """Operations on names that all clients work on at once."""
    begun_count: int
    """Calls that no task waited for."""
    replaced_count: int
    """Files that were read after they had been emptied, written and synced."""
    direct_write_count: int
    """Versions written past the page cache of disks that were not wiped since."""
    inline_count: int
    """How often a file became inline, or got other bytes there."""
    moved_count: int
    """How often the bytes of one were moved to a chunk."""


class Run:
    """One run."""

    def __init__(self, seed: int, shape: Shape, work_s: float, only: Sequence[str]) -> None:
        self.cluster = SimCluster(seed, shape)
        self.memory = Memory.of(shape)
        self.faults = Faults(self.cluster, self.memory, only)
        self.work_s = work_s
        self.live_s = 0.0

    async def main(self) -> float:
        """Run it all; return the virtual seconds it took."""
        began_s = trio.current_time()
        observer = Observer(self.cluster, self.memory, self.faults.world.count)
        with trio.fail_after(3600):
            await self.cluster.run(self._scenario, observer.run)
        return trio.current_time() - began_s

    async def _client(self, number: int, until_s: float, calm: trio.Event) -> None:
        generation = 0
        while True:
            worker = SimClient(number, generation, self.cluster, self.memory)
            await self.cluster.connect_client(
                worker.name, lambda fs, worker=worker: worker.work(fs, until_s, calm)
            )
            if worker.is_done:
                return
            worker.abandon()
            generation += 1
            await trio.sleep(worker.random.choice(BACK_S))

    async def _wait_live(self) -> None:
        began_s = trio.current_time()
        for more_s in (lambda: LIVE_S_MAX, self._resync_s):
            with trio.move_on_after(more_s()):
                await self.cluster.wait_healthy(math.inf, is_still=True)
                while not all(w.is_idle for w in self.memory.workers.values()):  # noqa: ASYNC110
                    await trio.sleep(0.1)
                await self.cluster.wait_settings()
                self.live_s = trio.current_time() - began_s
                return
        waited_s = trio.current_time() - began_s
        waiting = [w.name for w in self.memory.workers.values() if not w.is_idle]
        info = (await self.cluster.routing()).chains
        raise AssertionError(f"not live {waited_s:g} s after the last fault: {waiting} {info}")

    def _resync_s(self) -> float:
        """Return how long the limit of resync makes it take to bring over all that is stored:
        one large chunk alone 42 s.
        """
        rate = self.cluster.shape.resync_bytes_per_s_max
        return self.cluster.stored_bytes / rate if rate else 0.0

    async def _scenario(self) -> None:
        cluster, memory = self.cluster, self.memory
        await cluster.connect_client("setup", lambda fs: prepare(fs, memory))
        memory.begin_s = trio.current_time()
        until_s = memory.begin_s + self.work_s
        calm = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(cluster.shape.client_count):
                nursery.start_soon(self._client, number, until_s, calm)
            await self.faults.run(until_s)
            await self._wait_live()
            await trio.sleep(SETTLE_S)
            cluster.trace.add("calm", "")
            calm.set()

        async def look(fs: EmberFs) -> None:
            await check_trees(fs, memory)
            await touch_leftovers(fs, memory)

        await cluster.connect_client("look", look)
        check_registers(memory)
        check_contests(memory)
        check_given_up(memory)
        check_mounts(memory)
        memory.names.check()
        await check_metadata(cluster)
        memory.inode_ids = await wait_collected(cluster)
        await cluster.kill(*cluster.processes)


def run_seed(
    seed: int,
    *,
    work_s: float = WORK_S,
    only: Sequence[str] = (),
    shape: Shape | None = None,
    is_dense: bool = False,
    is_history: bool = False,
) -> Result:
    """Run one seed; raises AssertionError (or an exception group of such)
    when a property is broken.

    Args:
        seed: decides everything.
        work_s: virtual seconds of work under faults.
        only: the kinds of fault that may happen, all if empty.
        shape: of the cluster; default: drawn.
        is_dense: clients hardly pause.
        is_history: five of them work on registers only.
    """
    drawn = shape or Shape.draw(seed, is_dense=is_dense, is_history=is_history)
    boxed: list[Run] = []

    async def main() -> float:
        run = Run(seed, drawn, work_s, only)
        boxed.append(run)
        return await run.main()

    simulated_s = run_deterministic(main, seed)
    (run,) = boxed
    memory = run.memory
    return Result(
        seed=seed,
        digest=run.cluster.trace.digest(),
        lines=run.cluster.trace.lines,
        simulated_s=simulated_s,
        event_count=STEPS[0],
        op_count=memory.op_count,
        longest_op_s=memory.longest_op_s,
        live_s=run.live_s,
        chunk_count=check_replicas(
            run.cluster, None if memory.power_cut_count else memory.inode_ids
        ),
        fault_counts=run.faults.counts,
        shape=run.cluster.shape,
        register_op_count=memory.register_op_count,
        name_op_count=memory.names.op_count,
        begun_count=memory.begun_count + memory.names.begun_count + memory.mounts.begun_count,
        replaced_count=memory.mounts.replaced_count,
        inline_count=run.cluster.kv.inline_count,
        moved_count=run.cluster.kv.moved_count,
        direct_write_count=sum(
            disk.step_counts["write_direct"] for disk in run.cluster.disks.values()
        ),
    )
