"""What goes wrong, chosen by the seed: kills with restarts, partitions, broken connections, slow network."""

import random

import trio

from fs.rpc.transport_memory import DelayRange

from .cluster import SimCluster


class Faults:
    """Injects faults one after the other until told to stop; at most one process is dead at a time."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.random = random.Random(f"{cluster.seed}/faults")
        self.counts: dict[str, int] = {}

    async def run(self, until_s: float) -> None:
        """Break things until the virtual time `until_s`, then leave everything whole."""
        kinds = [self.kill_storage, self.kill_control, self.partition, self.reset, self.slow]
        while trio.current_time() < until_s:
            await trio.sleep(self.random.uniform(0.3, 3.0))
            kind = self.random.choices(kinds, weights=[4, 2, 3, 3, 1])[0]
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            await kind()

    async def _kill(self, name: str) -> None:
        await self.cluster.kill(name)
        await trio.sleep(self.random.choice([0.05, 0.5, 2.0, 8.0]))
        self.cluster.start(name)

    async def kill_storage(self) -> None:
        await self._kill(f"storage-{self.random.randint(1, self.cluster.storage_count)}")

    async def kill_control(self) -> None:
        await self._kill("control")

    async def partition(self) -> None:
        """Cut one process off from some others, both ways or one way, for a while."""
        names = sorted(self.cluster.processes)
        alone = self.random.choice(names)
        others = [n for n in names if n != alone and self.random.random() < 0.7]
        one_way = self.random.random() < 0.3
        self.cluster.trace.add("partition", f"{alone} from {others} one way {one_way}")
        for other in others:
            self.cluster.network.block(alone, other)
            if not one_way:
                self.cluster.network.block(other, alone)
        await trio.sleep(self.random.choice([0.2, 1.0, 4.0, 9.0]))
        self.cluster.network.heal()

    async def reset(self) -> None:
        names = [*sorted(self.cluster.processes), "client-0", "client-1", "client-2"]
        one, two = self.random.sample(names, 2)
        self.cluster.trace.add("reset", f"{one} {two}")
        self.cluster.network.reset(one, two)

    async def slow(self) -> None:
        usual = self.cluster.network.delay
        self.cluster.network.delay = DelayRange(0.001, self.random.choice([0.02, 0.2]))
        self.cluster.trace.add("slow", self.cluster.network.delay)
        await trio.sleep(self.random.uniform(0.5, 3.0))
        self.cluster.network.delay = usual
