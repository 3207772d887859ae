"""A machine falls silent with all that runs on it: the primary manager, a metadata service and a
storage process.  Clients pause for as long as leases take, and no longer.

Simulated time.  The next primary cannot know until when the silent one may have granted leases, so
it listens for `node_failed_after_s` before it judges who is silent
(specs/decisions/0234-two-kinds-at-once.md).
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from fs.client.native import EmberFs
from fs.schema.config import CLOCK_DRIFT_MAX, MgmtdSection
from fs.schema.routing import Role
from tests.examples import some_of

from .cluster import CHUNK_BYTES, SimCluster
from .determinism import run_deterministic
from .shape import Shape

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECTION = MgmtdSection()
LEASES_S = (
    SECTION.primary_lease_s  # until another manager rules
    + SECTION.primary_extend_interval_s  # between two looks at the lease
    + SECTION.node_failed_after_s
)
SILENCE_S_MAX = LEASES_S * (1 + CLOCK_DRIFT_MAX) + 0.5
"""By the slowest clock that a manager may have; then a scan, the changes, and who hears of them."""
KILL_S_MAX = 3.0
WORK_S = 16.0
CHUNK_COUNT = 8
ROLES = {f"mgmtd-{n}": frozenset({Role.MGMTD}) for n in (1, 2, 3)} | {
    f"meta-{n}": frozenset({Role.META}) for n in (1, 2, 3)
}


class Scene:
    """Two clients that write, make and read files; what is lost with one machine."""

    def __init__(self, seed: int, *, is_kill: bool) -> None:
        self.random = random.Random(f"{seed}/silent")
        shape = replace(Shape.draw(seed), inline_bytes_max=0, rotate_after_s=600.0)
        self.cluster = SimCluster(seed, replace(shape, replica_count=3, roles=ROLES))
        self.is_kill = is_kill
        self.has_ended = trio.Event()
        self.longest_s = 0.0

    def run(self) -> None:
        async def observe() -> None:
            """Nothing is looked at beside the clients."""

        async def scenario() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(2):
                    name = f"client-{number}"
                    nursery.start_soon(self.cluster.connect_client, name, self.work)
                await trio.sleep(self.random.uniform(3.0, 5.0))
                await self._strike()
                self.has_ended.set()

        async def main() -> None:
            await self.cluster.run(scenario, observe)

        run_deterministic(main, self.cluster.seed)
        assert not self.cluster.bugs

    async def _strike(self) -> None:
        cluster, source = self.cluster, self.random
        lost = [cluster.acting[0], source.choice(["meta-1", "meta-2", "meta-3"])]
        lost.append(source.choice(cluster.storages))
        if self.is_kill:
            await cluster.kill(*lost)
            await trio.sleep(WORK_S)
            for name in lost:
                cluster.start(name)
            return
        others = {*cluster.processes, "client-0", "client-1"} - {*lost}
        for one in lost:
            cluster.processes[one].life.is_store_cut = True
            for other in sorted(others):
                cluster.network.block(one, other)
                cluster.network.block(other, one)
        await trio.sleep(WORK_S)
        cluster.network.heal()
        for one in lost:
            cluster.processes[one].life.is_store_cut = False

    async def work(self, fs: EmberFs) -> None:
        """Do one thing after the other, several at a time, and note how long each takes."""
        own = fs._meta.client_id
        async with await fs.create(f"/{own}") as file:
            await file.write(0, bytes(CHUNK_COUNT * CHUNK_BYTES))
            await file.fsync()

            async def write(count: int) -> None:
                await file.write(count % CHUNK_COUNT * CHUNK_BYTES, b"%08d" % count)
                if count % 5 == 0:
                    await file.fsync()

            async def make(count: int) -> None:
                await fs.write_file(f"/{own}-{count}", bytes(3 * CHUNK_BYTES))
                await fs.unlink(f"/{own}-{count}")

            async def read(_count: int) -> None:
                assert len(await fs.read_file(f"/{own}")) == CHUNK_COUNT * CHUNK_BYTES

            async with trio.open_nursery() as nursery:
                for act in (write, make, read):
                    nursery.start_soon(self._repeat, act)

    async def _repeat(self, act: Callable[[int], Awaitable[None]]) -> None:
        count = 0
        while not self.has_ended.is_set():
            count += 1
            began_s = trio.current_time()
            await act(count)
            self.longest_s = max(self.longest_s, trio.current_time() - began_s)
            await trio.sleep(0.3)


@pytest.mark.parametrize("seed", some_of(range(40), 6))
def test_a_machine_that_falls_silent_costs_the_leases_and_no_more(seed):
    scene = Scene(seed, is_kill=False)
    scene.run()
    assert scene.longest_s < SILENCE_S_MAX


@pytest.mark.parametrize("seed", some_of(range(40), 6))
def test_three_kinds_killed_at_once_are_judged_at_once(seed):
    scene = Scene(seed, is_kill=True)
    scene.run()
    assert scene.longest_s < KILL_S_MAX
