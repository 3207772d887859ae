"""What goes wrong, chosen by the seed: deaths at any point, lost power, partitions, a slow or lying world.

Faults come one after the other and each ends by itself; only deaths overlap.  What may be lost decides what is
allowed: unsynced data on a disk may go with the power of one machine only while another one still serves each of its
chains, otherwise the checkers would ask for bytes that nobody promised (`note_cut` tells them of a loss of all).
"""

import random
from collections.abc import Awaitable, Callable, Sequence

import trio

from fs.kv.faulty import RandomFaults
from fs.rpc.transport_memory import DelayRange
from fs.schema.routing import LocalState, PublicState

from .cluster import SimCluster
from .workload import REGISTER_CLIENT, Memory

DEAD_S = (0.02, 0.3, 2.0, 8.0)
BLOCKED_S = (0.2, 1.0, 4.0, 9.0)


class Faults:
    """Injects faults until told to stop; then leaves everything whole."""

    def __init__(
        self, cluster: SimCluster, memory: Memory, client_count: int, only: Sequence[str] = ()
    ) -> None:
        """With `only`, nothing but the named kinds happens."""
        self.only = only
        self.cluster = cluster
        self.memory = memory
        self.client_count = client_count
        self.random = random.Random(f"{cluster.seed}/faults")
        self.counts: dict[str, int] = {}
        cluster.on_death = self._note_death
        cluster.kv.faults = self.random.choice([None, self._store_faults()])

    def _store_faults(self) -> RandomFaults:
        return RandomFaults(
            random.Random(f"{self.cluster.seed}/store"),
            conflict=0.02,
            unknown_committed=0.04,
            unknown_lost=0.02,
            delay_before_s_max=self.random.choice([0.0, 0.003]),
            delay_after_s_max=self.random.choice([0.0, 0.02]),
        )

    async def run(self, until_s: float) -> None:
        """Break things until the virtual time `until_s`, then leave everything whole."""
        weights = self._weather()
        while trio.current_time() < until_s:
            await trio.sleep(self.random.choice([0.1, 1.0]) * self.random.uniform(0.3, 3.0))
            (kind,) = self.random.choices([*weights], weights=[*weights.values()])
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            await kind()
        self.cluster.kv.faults = None
        self.cluster.network.heal()

    def _weather(self) -> dict[Callable[[], Awaitable[None]], int]:
        """Each seed has its own: much of some kinds, nothing of others."""
        weights = {
            self.kill_storage: 5,
            self.kill_storage_in_disk_step: 4,
            self.kill_control: 2,
            self.kill_control_at_commit: 2,
            self.kill_two: 2,
            self.power_loss: 3,
            self.cut_all: 1,
            self.partition: 3,
            self.cut_link: 2,
            self.isolate: 3,
            self.cut_store: 2,
            self.reset: 3,
            self.slow_network: 1,
            self.slow_disk: 2,
        }
        if self.only:
            return {kind: int(kind.__name__ in self.only) for kind in weights}
        weights = {kind: w * self.random.choice([0, 1, 1, 4]) for kind, w in weights.items()}
        weights[self.kill_storage] += 1
        return weights

    # ---- deaths ------------------------------------------------------------------------------------

    async def _revive(self, names: Sequence[str]) -> None:
        for name in names:
            await trio.sleep(self.random.choice(DEAD_S))
            self.cluster.start(name)

    def _note_death(self, name: str) -> None:
        """Called at each death: with the last serving target of a chain its channel table is gone."""
        if name in self.cluster.storages and not self._is_covered(name):
            self.memory.note_cut(with_power=False)

    async def kill_storage(self) -> None:
        name = self.random.choice(self.cluster.storages)
        await self.cluster.kill(name)
        await self._revive([name])

    async def kill_storage_in_disk_step(self) -> None:
        """Die in the middle of what the chunk engine does; the write at that point is half done."""
        name = self.random.choice(self.cluster.storages)
        process = self.cluster.processes[name]
        process.life.steps_left = self.random.randint(1, 40)
        with trio.move_on_after(2.0):
            await process.ended.wait()
        await self.cluster.kill(name)
        await self._revive([name])

    async def kill_control(self) -> None:
        name = self.random.choice(self.cluster.controls)
        await self.cluster.kill(name)
        await self._revive([name])

    async def kill_control_at_commit(self) -> None:
        """Die just before a commit, or after it and before anybody hears of it."""
        name = self.random.choice(self.cluster.controls)
        process = self.cluster.processes[name]
        process.life.dies_before_commit = self.random.random() < 0.5
        process.life.commits_left = self.random.randint(1, 20)
        with trio.move_on_after(2.0):
            await process.ended.wait()
        await self.cluster.kill(name)
        await self._revive([name])

    async def kill_two(self) -> None:
        """Two processes at once."""
        names = self.random.sample(sorted(self.cluster.processes), 2)
        await self.cluster.kill(*names)
        await self._revive(names)

    # ---- power -------------------------------------------------------------------------------------

    async def power_loss(self) -> None:
        """One storage machine loses its power, and what its disk had not yet written."""
        name = self.random.choice(self.cluster.storages)
        process = self.cluster.processes[name]
        is_covered = self._is_covered(name)
        await self.cluster.kill(name)
        if is_covered:
            self.counts["power_lost"] = self.counts.get("power_lost", 0) + 1
            self.cluster.disks[process.node_id].power_loss(self.random)
        await self._revive([name])

    def _is_covered(self, name: str) -> bool:
        """Another target of each chain of this node serves at this moment, with everything acknowledged."""
        serving = set()
        for other in self.cluster.storages:
            process = self.cluster.processes[other]
            if other != name and process.is_running and "Storage" in process.services:
                targets = process.services["Storage"]._context.targets.targets
                serving |= {t for t, v in targets.items() if v.local_state is LocalState.UPTODATE}
        return all(
            any(m.target_id in serving and m.public_state is PublicState.SERVING for m in c.targets)
            for c in self.cluster.watch.chains.values()
        )

    async def cut_all(self) -> None:
        """Every process dies at one instant; mostly the power is lost as well."""
        cluster = self.cluster
        are_clients_ready = len(self.memory.trees) == self.client_count
        with_power = are_clients_ready and self.random.random() < 0.7
        names = sorted(cluster.processes)
        if self.random.random() < 0.5:
            await self._wait_routing_change()
        cluster.trace.add("cut", f"power {with_power}")
        self.counts["power_cut"] = self.counts.get("power_cut", 0) + with_power
        self.memory.note_cut(with_power=with_power)
        seen_version = cluster.seen_version
        await cluster.kill(*(name for name in names if cluster.processes[name].is_running))
        if with_power:
            for node_id in sorted(cluster.disks):
                cluster.disks[node_id].power_loss(self.random)
            cluster.kv.lose_power(self.random, seen_version)
        self.random.shuffle(names)
        for name in names:
            await trio.sleep(self.random.choice([0.0, 0.02, 1.0]))
            cluster.start(name)
        await cluster.wait_healthy()
        await trio.sleep(10.0)  # clients find out what is there before anything else is lost

    async def _wait_routing_change(self) -> None:
        """Kill a storage process; return just after the managers have published what follows from it."""
        version = self.cluster.watch.routing_version
        await self.cluster.kill(self.random.choice(self.cluster.storages))
        with trio.move_on_after(2.0):
            while self.cluster.watch.routing_version == version:  # noqa: ASYNC110 - to be seen early
                await trio.sleep(0.002)
        await trio.sleep(self.random.uniform(0.0, 0.03))

    # ---- network and disks -------------------------------------------------------------------------

    async def partition(self) -> None:
        """Cut one process off from some others, both ways or one way, for a while."""
        names = sorted(self.cluster.processes)
        alone = self.random.choice(names)
        others = [n for n in names if n != alone and self.random.random() < 0.7]
        others += [f"client-{n}" for n in range(self.client_count) if self.random.random() < 0.3]
        one_way = self.random.random() < 0.3
        self.cluster.trace.add("partition", f"{alone} from {others} one way {one_way}")
        for other in others:
            self.cluster.network.block(alone, other)
            if not one_way:
                self.cluster.network.block(other, alone)
        await trio.sleep(self.random.choice(BLOCKED_S))
        self.cluster.network.heal()

    async def cut_link(self) -> None:
        """Cut a link between two neighbours of a chain, or a node from the managers only."""
        alone = self.random.choice(self.cluster.storages)
        if self.random.random() < 0.5:
            others = self.cluster.controls
        else:
            others = [self.random.choice([n for n in self.cluster.storages if n != alone])]
        self.cluster.trace.add("cut link", f"{alone} {others}")
        for other in others:
            self.cluster.network.block(alone, other)
            self.cluster.network.block(other, alone)
        await trio.sleep(self.random.choice(BLOCKED_S))
        self.cluster.network.heal()

    async def isolate(self) -> None:
        """Cut a storage node and the register client off from the managers, but not from each other.

        Both go on with a picture of the chains that grows old, while the others get a new one.
        """
        pair = [
            self.random.choice(self.cluster.storages),
            f"client-{REGISTER_CLIENT}",
        ]
        self.cluster.trace.add("isolate", pair)
        for one in pair:
            for control in self.cluster.controls:
                self.cluster.network.block(one, control)
                self.cluster.network.block(control, one)
        await trio.sleep(self.random.choice([3.0, 9.0, 14.0]))
        self.cluster.network.heal()

    async def cut_store(self) -> None:
        """One control process cannot reach the store: long enough for another one to be elected."""
        name = self.random.choice(self.cluster.controls)
        life = self.cluster.processes[name].life
        self.cluster.trace.add("cut store", name)
        life.is_store_cut = True
        await trio.sleep(self.random.choice([0.5, 4.0, 9.0]))
        life.is_store_cut = False

    async def reset(self) -> None:
        clients = [f"client-{n}" for n in range(self.client_count)]
        one, two = self.random.sample([*sorted(self.cluster.processes), *clients], 2)
        self.cluster.trace.add("reset", f"{one} {two}")
        self.cluster.network.reset(one, two)

    async def slow_network(self) -> None:
        usual = self.cluster.network.delay
        self.cluster.network.delay = DelayRange(0.001, self.random.choice([0.02, 0.2]))
        self.cluster.trace.add("slow", self.cluster.network.delay)
        await trio.sleep(self.random.uniform(0.5, 3.0))
        self.cluster.network.delay = usual

    async def slow_disk(self) -> None:
        """One machine's disk takes its time; calls that run at once overtake each other."""
        name = self.random.choice(self.cluster.storages)
        threads = self.cluster.processes[name].threads
        assert threads is not None
        self.cluster.trace.add("slow disk", name)
        threads.pause_s_max = self.random.choice([0.05, 0.3, 1.0])
        await trio.sleep(self.random.uniform(0.5, 4.0))
        threads.pause_s_max = self.cluster.disk_pause_s_max
