"""Runs the faults a seed has drawn, and those that end processes:
deaths at any point, stops, lost power, clocks.

Three go on side by side, each one fault after the other: of machines (here and in faults_disk.py),
of the network (faults_network.py), and what operators do (faults_chain.py).  Each seed has its own
weather: much of some kinds, nothing of others.
"""

import random
from collections.abc import Sequence

import trio

from fs.kv.faulty import RandomFaults
from fs.rpc.transport_memory import DelayRange
from fs.schema.ids import ChainId

from . import faults_chain, faults_disk, faults_network, faults_restore, faults_settings
from .cluster import SimCluster
from .determinism import freeze, thaw
from .faults_disk import DEAD_S, tear
from .workload import Memory
from .world import (
    MACHINE_FAULTS,
    NAMED_FAULTS,
    NETWORK_FAULTS,
    OPERATOR_FAULTS,
    Fault,
    World,
    machine_fault,
    named_fault,
)

PAUSED_S = (1.0, 2.0, 4.0, 7.0, 12.0, 30.0, 60.0)
STEPPED_S = (1.0, 3600.0, 365 * 86400.0)
SLOW_S = 2.0
SWIZZLED_SHARE = 0.35
"""Of the seeds begin with a swizzle, whatever their weather."""
OPERATED_SHARE = 0.6
"""Of the seeds have operators at work."""
OPERATOR_PAUSE_S = 4.0
"""They take so many times as long between two changes as a fault is apart from the next."""

# They register their kinds.
assert faults_chain and faults_disk and faults_network and faults_restore and faults_settings


class Faults:
    """Injects faults until told to stop; then leaves everything whole."""

    def __init__(self, cluster: SimCluster, memory: Memory, only: Sequence[str] = ()) -> None:
        """With `only`, nothing but the named kinds happens."""
        self.only = only
        self.world = World(cluster, memory)
        self.counts = self.world.counts
        source = self.world.random
        cluster.kv.faults = source.choice([None, self._store_faults()])
        cluster.network.delay = DelayRange(0.0001, source.choice([0.001, 0.001, 0.01, 0.05, 0.1]))
        damaged_share, torn = source.uniform(0.8, 1.0), random.Random(source.getrandbits(64))
        cluster.tear = lambda data: tear(torn, damaged_share, data)
        if any(p.clock.rate != 1.0 for p in cluster.processes.values()):
            self.world.count("clock_drift")

    def _store_faults(self) -> RandomFaults:
        source = self.world.random
        return RandomFaults(
            random.Random(f"{self.world.cluster.seed}/store"),
            conflict=0.02,
            unknown_committed=0.04,
            unknown_lost=0.02,
            delay_before_s_max=source.choice([0.0, 0.003]),
            delay_after_s_max=source.choice([0.0, 0.02]),
        )

    async def run(self, until_s: float) -> None:
        """Break things until the virtual time `until_s`, then leave everything whole."""
        cluster = self.world.cluster
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._break_network, until_s)
            nursery.start_soon(self._operate, until_s)
            kinds = {**MACHINE_FAULTS, **(NAMED_FAULTS if self.only else {})}
            await self._run_kinds(until_s, self._weather(kinds), self.world.random)
        for reason, count in cluster.watch.move_counts.items():
            self.world.count(f"move_{reason.lower()}", count)
        self.world.count("back_in_order", cluster.watch.back_in_order_count)
        cluster.kv.faults = None
        cluster.network.heal()
        cluster.network.delay = DelayRange()
        if self.world.has_settings:
            await faults_settings.reset_settings(self.world)

    async def _break_network(self, until_s: float) -> None:
        source = self.world.network_random
        weights = self._weather(NETWORK_FAULTS)
        if not self.only and source.random() < SWIZZLED_SHARE:
            await self._one(faults_network.swizzle_clog)
        await self._run_kinds(until_s, weights, source)

    async def _operate(self, until_s: float) -> None:
        source = self.world.operator_random
        if self.only or source.random() < OPERATED_SHARE:
            await self._run_kinds(until_s, self._weather(OPERATOR_FAULTS), source)

    async def _run_kinds(
        self, until_s: float, weights: dict[Fault, int], source: random.Random
    ) -> None:
        if not any(weights.values()):
            return
        while trio.current_time() < until_s:
            pause_s = OPERATOR_PAUSE_S if source is self.world.operator_random else 1.0
            await trio.sleep(pause_s * source.choice([0.1, 1.0]) * source.uniform(0.3, 3.0))
            (kind,) = source.choices([*weights], weights=[*weights.values()])
            await self._one(kind)

    async def _one(self, kind: Fault) -> None:
        if kind.__name__ in MACHINE_FAULTS:
            self.world.backups.append(faults_restore.back_up(self.world.cluster))
        self.world.count(kind.__name__)
        if kind.__name__ not in NETWORK_FAULTS:
            await kind(self.world)
            return
        async with self.world.network_lock:
            await kind(self.world)
            self.world.cluster.network.heal()

    def _weather(self, kinds: dict[str, tuple[Fault, int]]) -> dict[Fault, int]:
        """Each seed has its own: much of some kinds, nothing of others."""
        if self.only:
            return {fault: int(name in self.only) for name, (fault, _) in kinds.items()}
        choose = self.world.random.choice
        drawn = [(fault, weight) for fault, weight in kinds.values() if weight]
        weights = {fault: weight * choose([0, 1, 1, 4]) for fault, weight in drawn}
        first = next(iter(weights))
        weights[first] += 1
        return weights


async def _revive(world: World, names: Sequence[str]) -> None:
    for name in names:
        await trio.sleep(world.random.choice(DEAD_S))
        world.cluster.start(name)


# ---- deaths and stops ----------------------------------------------------------------------------


@machine_fault(4)
async def kill_storage(world: World) -> None:
    """A storage process dies."""
    name = world.random.choice(world.cluster.storages)
    await world.cluster.kill(name)
    await _revive(world, [name])


@machine_fault(4)
async def kill_storage_in_disk_step(world: World) -> None:
    """Die in the middle of what the chunk engine does; the write at that point is damaged."""
    name = world.random.choice(world.cluster.storages)
    process = world.cluster.processes[name]
    process.life.steps_left = world.random.randint(1, 40)
    with trio.move_on_after(2.0):
        await process.ended.wait()
        world.count("died_in_disk_step")
    await world.cluster.kill(name)
    await _revive(world, [name])


@machine_fault(0)
async def rejoin_slowly(world: World) -> None:
    """A machine comes back while the disks of the others are slow:
    updates that began without it end when it is back.
    """
    cluster = world.cluster
    name = world.random.choice(cluster.storages)
    await cluster.kill(name)
    slow = [t for n in cluster.storages if n != name and (t := cluster.processes[n].threads)]
    for threads in slow:
        threads.pause_s_max = SLOW_S
    await trio.sleep(world.random.uniform(0.3, 1.0))
    cluster.start(name)
    await trio.sleep(world.random.uniform(1.5, 3.0))
    for threads in slow:
        threads.pause_s_max = cluster.disk_pause_s_max


@machine_fault(2)
async def kill_control(world: World) -> None:
    """A manager, often the primary, or a metadata service dies."""
    name = world.random.choice(world.cluster.acting or world.cluster.controls)
    if world.random.random() < 0.5:
        name = world.random.choice(world.cluster.controls)
    await world.cluster.kill(name)
    await _revive(world, [name])


@machine_fault(2)
async def kill_control_at_commit(world: World) -> None:
    """Die just before a commit, or after it and before anybody hears of it."""
    name = world.random.choice(world.cluster.controls)
    process = world.cluster.processes[name]
    process.life.dies_before_commit = world.random.random() < 0.5
    process.life.commits_left = world.random.randint(1, 20)
    with trio.move_on_after(2.0):
        await process.ended.wait()
    await world.cluster.kill(name)
    await _revive(world, [name])


@machine_fault(2)
async def kill_two(world: World) -> None:
    """Two processes at once."""
    names = world.random.sample(sorted(world.cluster.processes), 2)
    await world.cluster.kill(*names)
    await _revive(world, names)


@machine_fault(2)
async def kill_client(world: World) -> None:
    """A client dies in the middle of whatever it does; it comes back as a new one."""
    names = world.client_names()
    if names:
        world.cluster.clients[world.random.choice(names)].end()
    await trio.sleep(0.1)


@machine_fault(2)
async def kill_head_and_clients(world: World) -> None:
    """A head dies in the middle of an update, and so do clients that would repeat it."""
    cluster = world.cluster
    chain_id = world.random.choice(sorted(cluster.watch.chains))
    head = cluster.watch.chains[ChainId(chain_id)].targets[0].target_id
    name = cluster.node_name(cluster.watch.node_of[head])
    process, clients = cluster.processes[name], world.client_names()
    if not process.is_running:
        return
    process.life.steps_left = world.random.randint(1, 8)
    with trio.move_on_after(2.0):
        await process.ended.wait()
    for client in world.random.sample(clients, world.random.randint(0, len(clients))):
        if client in cluster.clients:
            cluster.clients[client].end()
    await cluster.kill(name)
    await _revive(world, [name])


@machine_fault(3)
async def pause(world: World) -> None:
    """A process is stopped for 1 to 60 s, and goes on as if nothing had been."""
    everybody = [*sorted(world.cluster.processes), *world.client_names()]
    often = {*world.cluster.storages, *world.cluster.acting}
    weights = [3 if name in often else 1 for name in everybody]
    (name,) = world.random.choices(everybody, weights=weights)
    paused_s = world.random.choices(PAUSED_S, weights=[4, 4, 4, 4, 2, 1, 1])[0]
    world.cluster.trace.add("pause", f"{name} {paused_s}")
    freeze(name)
    try:
        await trio.sleep(paused_s)
    finally:  # else a run that has failed meanwhile would wait for it for ever
        thaw(name)


@machine_fault(2)
async def step_clock(world: World) -> None:
    """A machine's wall clock jumps by a second, an hour or a year, forward or back."""
    name = world.random.choice(sorted(world.cluster.processes))
    stepped_s = world.random.choice(STEPPED_S) * world.random.choice([-1, 1])
    world.cluster.trace.add("step clock", f"{name} {stepped_s}")
    world.cluster.processes[name].clock.wall_offset_ns += round(stepped_s * 1e9)
    if name in world.cluster.controls:
        world.memory.mounts.are_clocks_apart = True
    await trio.lowlevel.checkpoint()


@machine_fault(2)
async def cut_store(world: World) -> None:
    """One control process cannot reach the store: long enough for another one to be elected."""
    name = world.random.choice(world.cluster.controls)
    life = world.cluster.processes[name].life
    world.cluster.trace.add("cut store", name)
    life.is_store_cut = True
    await trio.sleep(world.random.choice([0.5, 4.0, 9.0]))
    life.is_store_cut = False


# ---- power ---------------------------------------------------------------------------------------


@machine_fault(3)
async def power_loss(world: World) -> None:
    """One storage machine loses its power, and what its disk had not yet written."""
    async with world.network_lock:
        name = world.random.choice(world.cluster.storages)
        is_covered = world.is_covered(name)
        await world.cluster.kill(name)
        if is_covered:
            world.count("power_lost")
            world.cluster.lose_power(name, world.random)
        await _revive(world, [name])
        await world.wait_heard(name)


@named_fault
async def stop_in_order(world: World) -> None:
    """Storage processes stop in order and their machines are started anew:
    nothing is lost, so nobody is told of a loss.
    """
    async with world.network_lock:
        cluster = world.cluster
        names = list(cluster.storages)
        if world.random.random() < 0.5:
            names = world.random.sample(names, 1)
        await cluster.stop(*names)
        for name in names:
            cluster.lose_power(name, world.random)
        await _revive(world, names)
        await cluster.wait_healthy()


@named_fault
async def cut_in_stop(world: World) -> None:
    """Storage processes stop in order, some die in the middle of it, and then the power is lost."""
    async with world.network_lock:
        cluster, memory = world.cluster, world.memory
        if not memory.are_workers_ready:
            return
        memory.note_cut()
        for name in cluster.storages:
            if world.random.random() < 0.7:
                cluster.processes[name].life.steps_left = world.random.randint(1, 30)
        await cluster.stop(*cluster.storages)
        died = [n for n in cluster.storages if cluster.processes[n].life.is_over]
        world.count("died_in_stop", len(died))
        for name in cluster.storages:
            cluster.lose_power(name, world.random)
        await _revive(world, cluster.storages)
        await cluster.wait_healthy()
        await trio.sleep(10.0)  # clients find out what is there before anything else is lost


@machine_fault(3)
async def cut_all(world: World) -> None:
    """Every process dies at one instant; mostly the power is lost as well."""
    async with world.network_lock:
        await _cut_all(world)


async def _cut_all(world: World) -> None:
    cluster = world.cluster
    names = sorted(cluster.processes)
    waits = [None, _wait_routing_change, _wait_truncation]
    (wait,) = world.random.choices(waits, weights=[1, 1, 3])
    if wait is not None:
        await wait(world)
    with_power = world.memory.are_workers_ready and world.random.random() < 0.7
    cluster.trace.add("cut", f"power {with_power}")
    world.count("power_cut", with_power)
    if with_power:
        world.memory.note_cut()
    seen_version = cluster.seen_version
    await cluster.kill(*(name for name in names if cluster.processes[name].is_running))
    if with_power:
        for name in names:
            cluster.lose_power(name, world.random)
        cluster.kv.lose_power(world.random, seen_version)
    world.random.shuffle(names)
    for name in names:
        await trio.sleep(world.random.choice([0.0, 0.02, 1.0]))
        cluster.start(name)
    await cluster.wait_healthy()
    await trio.sleep(10.0)  # clients find out what is there before anything else is lost


async def _wait_routing_change(world: World) -> None:
    """Kill a storage process; return just after the managers have published what
    follows from it.
    """
    version = world.cluster.watch.routing_version
    await world.cluster.kill(world.random.choice(world.cluster.storages))
    with trio.move_on_after(2.0):
        while world.cluster.watch.routing_version == version:  # noqa: ASYNC110 - to be seen early
            await trio.sleep(0.002)
    await trio.sleep(world.random.uniform(0.0, 0.03))


async def _wait_truncation(world: World) -> None:
    """Return just after a truncation has begun, so that the power goes between its steps."""
    began = trio.Event()
    world.cluster.kv.on_truncation = began.set
    with trio.move_on_after(20.0) as scope:
        await began.wait()
    world.cluster.kv.on_truncation = None
    if not scope.cancelled_caught:
        world.count("cut_in_truncation")
        await trio.sleep(world.random.uniform(0.0, world.random.choice([0.02, 0.1])))
