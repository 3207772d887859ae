"""What operators do to live chains while everything else goes wrong.

They change the order of a chain, take a member out and put it back, empty a node, spread targets
evenly.  Each ends by itself, with nothing asked for any more; moves that have begun may go on.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from fs.schema import services
from fs.schema.proto import mgmtd_pb2

from .cluster import STORAGE_ID_BASE
from .world import World, operator_fault

PUT_BACK_S_MAX = 100.0
ANSWERED_S_MAX = 100.0


@asynccontextmanager
async def _changing(world: World, chain_id: int) -> AsyncIterator[bool]:
    """Keep the disks from losing anything while a member of a chain may be told to stop;
    yield whether it may.
    """
    async with world.network_lock:
        may_change = world.may_change(chain_id)
        if may_change:
            world.changing.add(chain_id)
    try:
        yield may_change
    finally:
        world.changing.discard(chain_id)


async def _ask_until_done(world: World, method: Any, request: Any) -> Any:
    """Ask the managers again and again until one has answered."""
    with trio.move_on_after(ANSWERED_S_MAX):
        while True:
            reply = await world.cluster.ask_manager(method, request)
            if reply is not None:
                return reply
            await trio.sleep(0.5)
    raise AssertionError(f"{method} is not answered within {ANSWERED_S_MAX:g} s")


@operator_fault(2)
async def reorder_chain(world: World) -> None:
    """Ask for another order of a chain, and for the steps that lead there."""
    source, cluster = world.operator_random, world.cluster
    chain_id = source.choice(sorted(cluster.chains))
    async with _changing(world, chain_id) as may_change:
        if not may_change:
            return
        members = [m.target_id for m in cluster.watch.chains[chain_id].targets]
        source.shuffle(members)
        cluster.trace.add("reorder", f"{chain_id} {members}")
        request = mgmtd_pb2.SetPreferredOrderReq(chain_id=chain_id, target_ids=members)
        await cluster.ask_manager(services.MGMTD_SET_PREFERRED_ORDER, request)
        for _ in range(source.randint(1, 3)):
            step = mgmtd_pb2.RotateAsPreferredOrderReq(chain_id=chain_id)
            reply: Any = await cluster.ask_manager(services.MGMTD_ROTATE_AS_PREFERRED_ORDER, step)
            if reply is not None and reply.target_id:
                world.count("chain_rotated")
            await trio.sleep(source.uniform(0.1, 2.0))


@operator_fault(2)
async def change_members(world: World) -> None:
    """Take a member out of a chain that others serve, and put it back at the end."""
    source, cluster = world.operator_random, world.cluster
    chain_id = source.choice(sorted(cluster.chains))
    async with _changing(world, chain_id) as may_change:
        if not may_change:
            return
        target_id = source.choice(cluster.watch.chains[chain_id].targets).target_id
        cluster.trace.add("change members", f"{chain_id} {target_id}")
        taken = mgmtd_pb2.UpdateChainReq(
            chain_id=chain_id,
            target_id=target_id,
            update=mgmtd_pb2.REMOVE_MEMBER,
            accept_fewer_replicas=True,
        )
        await cluster.ask_manager(services.MGMTD_UPDATE_CHAIN, taken)
        await trio.sleep(source.choice([0.0, 0.5, 4.0]))
        await _put_back(world, chain_id, target_id)


async def _put_back(world: World, chain_id: int, target_id: int) -> None:
    """Ask until the target is a member again.

    A move may have found it another chain meanwhile, used its node, or ended it: one that left for
    good when it was to be taken out stays out.
    """
    back = mgmtd_pb2.UpdateChainReq(
        chain_id=chain_id, target_id=target_id, update=mgmtd_pb2.ADD_MEMBER
    )
    with trio.move_on_after(PUT_BACK_S_MAX):
        while True:
            watch = world.cluster.watch
            taken = {m.target_id for chain in watch.chains.values() for m in chain.targets}
            taken |= {t for move in watch.moves.values() for t in (move.joining, move.leaving)}
            members = {watch.node_of[m.target_id] for m in watch.chains[chain_id].targets}
            is_gone = target_id not in watch.targets
            if is_gone or target_id in taken or watch.node_of[target_id] in members:
                return
            if await world.cluster.ask_manager(services.MGMTD_UPDATE_CHAIN, back) is not None:
                world.count("member_put_back")
            await trio.sleep(0.5)
    raise AssertionError(f"target {target_id} cannot be put back into chain {chain_id}")


@operator_fault(3)
async def drain(world: World) -> None:
    """Empty a node, as far as there are places elsewhere and time."""
    source, cluster = world.operator_random, world.cluster
    node_id = STORAGE_ID_BASE + source.randint(1, len(cluster.storages))
    place = mgmtd_pb2.DrainPb(node_id=node_id)
    cluster.trace.add("drain", node_id)
    started = mgmtd_pb2.StartDrainReq(drain=place)
    if await cluster.ask_manager(services.MGMTD_START_DRAIN, started) is not None:
        with trio.move_on_after(source.choice([0.3, 3.0, 20.0])):
            while cluster.members_of(node_id):  # noqa: ASYNC110 - watched from outside
                await trio.sleep(0.2)
            world.count("drained")
    cancelled = mgmtd_pb2.CancelDrainReq(drain=place)
    await _ask_until_done(world, services.MGMTD_CANCEL_DRAIN, cancelled)


@operator_fault(2)
async def rebalance(world: World) -> None:
    """Spread the targets evenly over the disks."""
    source, cluster = world.operator_random, world.cluster
    cluster.trace.add("rebalance", "")
    await cluster.ask_manager(services.MGMTD_START_REBALANCE, mgmtd_pb2.StartRebalanceReq())
    await trio.sleep(source.choice([0.3, 3.0, 10.0]))
    request = mgmtd_pb2.CancelRebalanceReq()
    await _ask_until_done(world, services.MGMTD_CANCEL_REBALANCE, request)
