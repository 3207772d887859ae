"""What goes wrong between processes.  Each fault ends by itself and leaves the network whole."""

import random
from collections.abc import Sequence

import trio

from fs.rpc.transport_memory import DelayRange
from fs.schema.routing import PublicState, Role

from .workload import REGISTER_CLIENT
from .world import World, network_fault

BLOCKED_S = (0.2, 1.0, 4.0, 9.0)


def _block(world: World, one: str, two: str, *, one_way: bool = False) -> None:
    world.cluster.network.block(one, two)
    if not one_way:
        world.cluster.network.block(two, one)


def _everybody(world: World) -> list[str]:
    return [*sorted(world.cluster.processes), *world.client_names()]


async def _partition(world: World, *, one_way: bool) -> tuple[str, list[str]]:
    source = world.network_random
    alone = source.choice(sorted(world.cluster.processes))
    others = [n for n in sorted(world.cluster.processes) if n != alone and source.random() < 0.7]
    others += [n for n in world.client_names() if source.random() < 0.3]
    world.cluster.trace.add("partition", f"{alone} from {others} one way {one_way}")
    for other in others:
        _block(world, alone, other, one_way=one_way)
    await trio.lowlevel.checkpoint()
    return alone, others


@network_fault(3)
async def partition(world: World) -> None:
    """Cut one process off from some others."""
    await _partition(world, one_way=False)
    await trio.sleep(world.network_random.choice(BLOCKED_S))


@network_fault(2)
async def one_way(world: World) -> None:
    """As `partition`, but in one direction only."""
    await _partition(world, one_way=True)
    await trio.sleep(world.network_random.choice(BLOCKED_S))


@network_fault(2)
async def flapping(world: World) -> None:
    """A partition that comes and goes."""
    alone, others = await _partition(world, one_way=False)
    for _ in range(world.network_random.randint(2, 6)):
        await trio.sleep(world.network_random.uniform(0.05, 1.5))
        world.cluster.network.heal()
        await trio.sleep(world.network_random.uniform(0.05, 1.0))
        for other in others:
            _block(world, alone, other)
    await trio.sleep(0.2)


@network_fault(2)
async def cut_link(world: World) -> None:
    """Cut a link between two neighbours of a chain, or a node from the managers only."""
    source, cluster = world.network_random, world.cluster
    alone = source.choice(cluster.storages)
    if source.random() < 0.5:
        others = cluster.managers
    else:
        others = [source.choice([n for n in cluster.storages if n != alone])]
    cluster.trace.add("cut link", f"{alone} {others}")
    for other in others:
        _block(world, alone, other)
    await trio.sleep(source.choice(BLOCKED_S))


@network_fault(0)
async def cut_clients(world: World) -> None:
    """Cut clients, or the metadata services, off from one or two storage nodes
    that all others reach; by name only.

    For longer than they take to find it out: what is for those nodes goes there by way of others.
    """
    source, cluster = world.network_random, world.cluster
    callers = world.client_names()
    if not callers or source.random() < 0.2:
        callers = [name for name, roles in cluster.shape.roles.items() if Role.META in roles]
    chosen = source.sample(callers, source.randint(1, len(callers)))
    nodes = source.sample(cluster.storages, source.choice([1, 1, 2]))
    way = source.choice(["both", "to", "from"])
    cluster.trace.add("cut clients", f"{chosen} {nodes} {way}")
    for caller in chosen:
        for node in nodes:
            if way != "from":
                cluster.network.block(caller, node)
            if way != "to":
                cluster.network.block(node, caller)
    await trio.sleep(source.choice([1.0, 5.0, 15.0, 25.0]))


@network_fault(2)
async def isolate(world: World) -> None:
    """Cut a storage node and the register client off from the managers, but not from each other.

    Both go on with a picture of the chains that grows old, while the others get a new one.
    """
    pair = [world.network_random.choice(world.cluster.storages), world.some_client(REGISTER_CLIENT)]
    world.cluster.trace.add("isolate", pair)
    for one in pair:
        for manager in world.cluster.managers:
            _block(world, one, manager)
    await trio.sleep(world.network_random.choice([3.0, 9.0, 14.0]))


@network_fault(3)
async def reset(world: World) -> None:
    """Break all connections between two."""
    one, two = world.network_random.sample(_everybody(world), 2)
    world.cluster.trace.add("reset", f"{one} {two}")
    world.cluster.network.reset(one, two)
    await trio.lowlevel.checkpoint()


@network_fault(2)
async def half_open(world: World) -> None:
    """One end of the connections between two is gone, the other does not know."""
    one, two = world.network_random.sample(_everybody(world), 2)
    world.cluster.trace.add("half open", f"{one} {two}")
    world.cluster.network.half_open(one, two)
    await trio.lowlevel.checkpoint()


@network_fault(3)
async def clog(world: World) -> None:
    """Hold up some single connections for up to 5 s:
    what is sent later over others overtakes them.
    """
    source, now_s = world.network_random, trio.current_time()
    streams = [s for s in world.cluster.network.streams() if source.random() < 0.2]
    for stream in streams:
        stream.clog(now_s + source.uniform(0.0, 5.0))
    world.cluster.trace.add("clog", len(streams))
    await trio.sleep(source.uniform(0.0, 2.0))


@network_fault(1)
async def swizzle_clog(world: World) -> None:
    """Stop the connections of a random subset one by one, let them go on in another order."""
    source = world.network_random
    everybody = _everybody(world)
    chosen = source.sample(everybody, source.randint(2, max(2, len(everybody) // 2)))
    world.cluster.trace.add("swizzle", chosen)
    pauses_s = source.choice([0.1, 0.5])
    for name in chosen:
        for other in everybody:
            if other != name:
                _block(world, name, other)
        await trio.sleep(source.uniform(0.0, pauses_s))
    source.shuffle(chosen)
    for index, name in enumerate(chosen):
        for other in everybody:
            if other not in chosen[index + 1 :]:
                world.cluster.network.unblock(name, other)
                world.cluster.network.unblock(other, name)
        await trio.sleep(source.uniform(0.0, pauses_s))


@network_fault(1)
async def slow_network(world: World) -> None:
    """Every piece of bytes takes up to 0.2 s."""
    usual = world.cluster.network.delay
    world.cluster.network.delay = DelayRange(0.001, world.network_random.choice([0.02, 0.1, 0.2]))
    world.cluster.trace.add("slow", world.cluster.network.delay)
    await trio.sleep(world.network_random.uniform(0.5, 3.0))
    world.cluster.network.delay = usual


@network_fault(2)
async def loss(world: World) -> None:
    """Up to 30 % of the pieces of bytes are lost, and sent again after a pause."""
    world.cluster.network.loss = world.network_random.uniform(0.01, 0.3)
    world.cluster.trace.add("loss", f"{world.cluster.network.loss:.3f}")
    await trio.sleep(world.network_random.uniform(0.5, 5.0))
    world.cluster.network.loss = 0.0


@network_fault(3)
async def replay(world: World) -> None:
    """For a while senders give connections up,
    and repeat over new ones what still arrives over the old.
    """
    network, source = world.cluster.network, world.network_random
    names = _some_ways(world, source)
    network.may_give_up = lambda owner, peer: owner in names or peer in names
    network.replay = source.uniform(0.02, 0.5)
    world.cluster.trace.add("replay", f"{names} {network.replay:.3f}")
    await trio.sleep(source.uniform(0.3, 3.0))
    network.replay = 0.0


def _some_ways(world: World, source: random.Random) -> Sequence[str]:
    everybody = _everybody(world)
    return source.sample(everybody, source.randint(1, max(1, len(everybody) // 3)))


def _syncing(world: World) -> list[str]:
    """Return the storage processes that are being brought up to date;
    a late copy harms them most easily.
    """
    watch = world.cluster.watch
    return [
        world.cluster.node_name(watch.node_of[member.target_id])
        for chain in watch.chains.values()
        for member in chain.targets
        if member.public_state is PublicState.SYNCING
    ]


@network_fault(4)
async def lose_reply(world: World) -> None:
    """The next bytes from one to another arrive, but the sender never hears what came of them;
    more than once.
    """
    network, source = world.cluster.network, world.network_random
    for _ in range(source.randint(1, 6)):
        streams = [
            s
            for s in network.streams()
            if s.peer in world.cluster.storages and s.owner not in world.cluster.controls
        ]
        if not streams:
            break
        syncing = _syncing(world) if source.random() < 0.5 else []
        chosen = source.choice([s for s in streams if s.peer in syncing] or streams)
        left = [source.randint(1, 3)]

        def may_give_up(owner: str, peer: str, way=(chosen.owner, chosen.peer), left=left) -> bool:
            if (owner, peer) != way:
                return False
            left[0] -= 1
            return left[0] == 0

        network.may_give_up, network.replay = may_give_up, 1.0
        world.cluster.trace.add("lose reply", f"{chosen.owner} {chosen.peer}")
        await trio.sleep(source.uniform(0.02, 1.0))
    network.replay = 0.0
