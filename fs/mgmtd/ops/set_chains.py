"""SetChains: new chains, every target serving; naming existing chains again changes nothing."""

from collections.abc import Iterable

from ...schema.ids import ChainId, NodeId, TargetId, is_target_id
from ...schema.proto.mgmtd_pb2 import NewChainPb, SetChainsReq, SetChainsRsp
from ...schema.routing import (
    REPLICA_COUNT_MAX,
    Chain,
    ChainTarget,
    PublicState,
    RoutingInfo,
    Target,
)
from ...schema.status import FsError, Status
from ..primary import Primary
from ..store import Change


async def set_chains(primary: Primary, request: SetChainsReq) -> SetChainsRsp:
    """Create the chains that do not exist, all or none.

    Raises:
        FsError: RPC_BAD_REQUEST, NODE_UNKNOWN, CONFLICTING_CHANGE (an existing chain with other
            targets, or a target of another chain), NOT_PRIMARY.
    """
    async with primary.lock:
        primary.check_acting()
        new = _plan(primary.info, request.chains, primary.wall_ns)
        await primary.settle(new, why="new chains were asked for")
    return SetChainsRsp(created_count=len(new.chains))


def _plan(info: RoutingInfo, asked: Iterable[NewChainPb], now_ns: int) -> Change:
    birth_ns = next((c.birth_ns for c in info.chains.values()), now_ns)
    chains: dict[ChainId, Chain] = {}
    targets: dict[TargetId, Target] = {}
    for one in asked:
        chain = _chain(one, birth_ns)
        existing = info.chains.get(chain.chain_id) or chains.get(chain.chain_id)
        if existing is not None:
            _check_same(existing, chain)
            continue
        chains[chain.chain_id] = chain
        for target in _targets(info, one):
            if target.target_id in targets:
                raise FsError(Status.CONFLICTING_CHANGE, f"target {target.target_id} named twice")
            targets[target.target_id] = target
    return Change(chains=chains, targets=targets)


def _chain(asked: NewChainPb, birth_ns: int) -> Chain:
    order = tuple(TargetId(t.target_id) for t in asked.targets)
    is_sound = all(map(is_target_id, order)) and len(set(order)) == len(order)
    if not asked.chain_id or not order or not is_sound:
        raise FsError(Status.RPC_BAD_REQUEST, f"chain {asked.chain_id} of targets {list(order)}")
    if len(order) > REPLICA_COUNT_MAX:
        detail = f"chain {asked.chain_id}: {len(order)} replicas, at most {REPLICA_COUNT_MAX}"
        raise FsError(Status.RPC_BAD_REQUEST, detail)
    members = tuple(ChainTarget(target_id, PublicState.SERVING) for target_id in order)
    return Chain(ChainId(asked.chain_id), 1, members, order, birth_ns=birth_ns)


def _check_same(existing: Chain, asked: Chain) -> None:
    created = existing.created_order or existing.preferred_order
    if created != asked.preferred_order:
        raise FsError(
            Status.CONFLICTING_CHANGE,
            f"chain {existing.chain_id} was made of targets {list(created)},"
            f" not {list(asked.preferred_order)}",
        )


def _targets(info: RoutingInfo, asked: NewChainPb) -> Iterable[Target]:
    chain_id = ChainId(asked.chain_id)
    for one in asked.targets:
        node_id = info.node(one.node_id).node_id
        target = Target(TargetId(one.target_id), chain_id, NodeId(node_id), one.disk_index)
        known = info.targets.get(target.target_id)
        if known is not None and known.chain_id:
            raise FsError(
                Status.CONFLICTING_CHANGE,
                f"target {target.target_id} is in chain {known.chain_id} already",
            )
        yield target
