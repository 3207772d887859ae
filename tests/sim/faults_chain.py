"""What operators do to live chains while everything else goes wrong: another order, a member taken out and put back."""

from typing import Any

import trio

from fs.schema import services
from fs.schema.proto import mgmtd_pb2

from .world import World, machine_fault

PUT_BACK_S_MAX = 100.0


@machine_fault(2)
async def reorder_chain(world: World) -> None:
    """Ask for another order of a chain, and for the steps that lead there."""
    chain_id = world.random.choice(sorted(world.cluster.chains))
    members = [target_id for target_id, _ in world.cluster.chains[chain_id]]
    world.random.shuffle(members)
    world.cluster.trace.add("reorder", f"{chain_id} {members}")
    request = mgmtd_pb2.SetPreferredOrderReq(chain_id=chain_id, target_ids=members)
    await world.cluster.ask_manager(services.MGMTD_SET_PREFERRED_ORDER, request)
    for _ in range(world.random.randint(1, 3)):
        step = mgmtd_pb2.RotateAsPreferredOrderReq(chain_id=chain_id)
        reply: Any = await world.cluster.ask_manager(services.MGMTD_ROTATE_AS_PREFERRED_ORDER, step)
        if reply is not None and reply.target_id:
            world.count("chain_rotated")
        await trio.sleep(world.random.uniform(0.1, 2.0))


@machine_fault(2)
async def change_members(world: World) -> None:
    """Take a member out of a chain that others serve, and put it back at the end."""
    chain_id = world.random.choice(sorted(world.cluster.chains))
    target_id, _ = world.random.choice(world.cluster.chains[chain_id])
    world.cluster.trace.add("change members", f"{chain_id} {target_id}")
    taken = mgmtd_pb2.UpdateChainReq(
        chain_id=chain_id,
        target_id=target_id,
        update=mgmtd_pb2.REMOVE_MEMBER,
        accept_fewer_replicas=True,
    )
    await world.cluster.ask_manager(services.MGMTD_UPDATE_CHAIN, taken)
    await trio.sleep(world.random.choice([0.0, 0.5, 4.0]))
    back = mgmtd_pb2.UpdateChainReq(
        chain_id=chain_id, target_id=target_id, update=mgmtd_pb2.ADD_MEMBER
    )
    with trio.move_on_after(PUT_BACK_S_MAX):
        while True:
            chain = world.cluster.watch.chains.get(chain_id)
            if chain is not None and any(m.target_id == target_id for m in chain.targets):
                return
            if await world.cluster.ask_manager(services.MGMTD_UPDATE_CHAIN, back) is not None:
                world.count("member_put_back")
            await trio.sleep(0.5)
    raise AssertionError(f"target {target_id} cannot be put back into chain {chain_id}")
