"""Changes of a chain that somebody asked for:
members added and removed, orders, a lost last server given up.

Pure.  The judgement of what nodes report is `chain_state.next_chain`; these functions never make a
target serve and never take one that serves from a chain.  They return the same object when what is
asked for holds already, else the chain with chain_version + 1.

Why none that serves: its node may go on serving reads for as long as its lease lasts.
So it is asked to stop first (`OfflineTarget`), reports that it has, is judged
offline, and only then may be removed.

Invariants (tests/mgmtd/test_chain_changes.py, over sequences of operations and failures):
    - The result is legal (`chain_state.is_legal`) and has the same serving targets as before.
    - A chain that waits for a lastsrv target still waits for the same one,
      unless data loss was accepted.
"""

from collections.abc import Container, Sequence
from dataclasses import replace

from ..schema.ids import TargetId
from ..schema.routing import REPLICA_COUNT_MAX, Chain, ChainTarget, PublicState
from ..schema.status import FsError, Status
from .chain_state import ORDER


def with_member(chain: Chain, target_id: TargetId, *, is_wanted: bool = True) -> Chain:
    """Add a target at the end, offline; it resyncs by the ordinary rules.

    Args:
        chain: not changed.
        target_id: in no chain, or in this one already.
        is_wanted: it becomes a further replica; False: it is to replace a member, and one more than
            REPLICA_COUNT_MAX is allowed for that long.

    Raises:
        FsError: UNSAFE_CHANGE when the chain has as many members as it may.
    """
    if chain.state_of(target_id) is not None:
        return chain
    limit = REPLICA_COUNT_MAX if is_wanted else REPLICA_COUNT_MAX + 1
    if len(chain.targets) >= limit:
        detail = f"chain {chain.chain_id} has {len(chain.targets)} members; remove one first"
        raise FsError(Status.UNSAFE_CHANGE, detail)
    members = (*chain.targets, ChainTarget(target_id, PublicState.OFFLINE))
    order = (*chain.preferred_order, target_id) if is_wanted else chain.preferred_order
    return _changed(chain, members, order)


def without_member(chain: Chain, target_id: TargetId) -> Chain:
    """Remove a target that does not serve.

    Raises:
        FsError: UNSAFE_CHANGE naming the remedy.
    """
    state = chain.state_of(target_id)
    if state is None:
        return chain
    check_may_leave(chain, target_id)
    if state is PublicState.SERVING:
        detail = f"chain {chain.chain_id}: target {target_id} serves; take it offline first"
        raise FsError(Status.UNSAFE_CHANGE, detail)
    members = tuple(m for m in chain.targets if m.target_id != target_id)
    return _changed(chain, members, tuple(t for t in chain.preferred_order if t != target_id))


def check_may_leave(chain: Chain, target_id: TargetId) -> None:
    """Check that the newest data is elsewhere too.

    Raises:
        FsError: UNSAFE_CHANGE naming the remedy.
    """
    name = f"chain {chain.chain_id}: target {target_id}"
    if chain.restored is not None:
        detail = (
            f"{name}: the chain was restored, and nobody knows yet who has its newest data; wait"
        )
        raise FsError(Status.UNSAFE_CHANGE, detail)
    if len(chain.targets) == 1:
        raise FsError(Status.UNSAFE_CHANGE, f"{name} is the only member; add another one first")
    if chain.state_of(target_id) is PublicState.LASTSRV or chain.serving == (target_id,):
        detail = f"{name} is the last that holds the newest data; bring another one up to date"
        raise FsError(Status.UNSAFE_CHANGE, detail)
    if target_id in chain.stand_ins:
        detail = f"{name} may serve in the stead of the last that did; wait until somebody serves"
        raise FsError(Status.UNSAFE_CHANGE, detail)


def exchanged(chain: Chain, leaving: TargetId, joining: TargetId) -> Chain:
    """Remove a member that another one has replaced, which takes its place in the preferred order.

    Both are members, `leaving` does not keep the newest data (`is_replaceable`).
    """
    assert is_replaceable(chain, leaving, joining), (chain, leaving, joining)
    members = tuple(m for m in chain.targets if m.target_id != leaving)
    order = tuple(joining if t == leaving else t for t in chain.preferred_order if t != joining)
    return _changed(chain, members, order if joining in order else (*order, joining))


def substituted(chain: Chain, leaving: TargetId, joining: TargetId) -> Chain:
    """Put a target that is not a member yet into the place of one that is offline, in one step.

    Raises:
        FsError: UNSAFE_CHANGE unless `leaving` is an offline member and another one serves.
    """
    is_off = chain.state_of(leaving) is PublicState.OFFLINE
    if not is_off or not chain.serving or chain.state_of(joining) is not None:
        detail = f"chain {chain.chain_id}: target {joining} cannot take the place of {leaving}"
        raise FsError(Status.UNSAFE_CHANGE, detail)
    members = tuple(m for m in chain.targets if m.target_id != leaving)
    order = tuple(joining if t == leaving else t for t in chain.preferred_order)
    order = order if joining in order else (*order, joining)
    return _changed(chain, (*members, ChainTarget(joining, PublicState.OFFLINE)), order)


def is_replaceable(chain: Chain, leaving: TargetId, joining: TargetId) -> bool:
    """Tell whether `leaving`, which does not serve, may be dropped:
    everybody else serves, `joining` among them.
    """
    others = [m.public_state for m in chain.targets if m.target_id != leaving]
    return (
        chain.state_of(leaving) is not None
        and leaving not in chain.keepers
        and chain.state_of(joining) is PublicState.SERVING
        and all(state is PublicState.SERVING for state in others)
    )


def with_preferred_order(chain: Chain, order: Sequence[TargetId]) -> Chain:
    """Note the order wanted; `next_rotation` brings the chain towards it.

    Raises:
        FsError: CONFLICTING_CHANGE when it does not name each member once.
    """
    members = [m.target_id for m in chain.targets]
    if sorted(order) != sorted(members):
        detail = f"chain {chain.chain_id} has members {members}, not {list(order)}"
        raise FsError(Status.CONFLICTING_CHANGE, detail)
    if tuple(order) == chain.preferred_order:
        return chain
    return _changed(chain, chain.targets, tuple(order))


def next_rotation(chain: Chain) -> TargetId | None:
    """Return the serving target to be sent to the end next, None when the order is as preferred.

    The longest beginning of the preferred order that the chain has in this order stays; the first
    one after it goes to the end.  So each step makes that beginning longer by one at least.

    Raises:
        FsError: UNSAFE_CHANGE while not every member serves, or the preferred
            order does not name them all.
    """
    serving = chain.serving
    if len(serving) < len(chain.targets):
        detail = f"chain {chain.chain_id}: wait until all of its {len(chain.targets)} members serve"
        raise FsError(Status.UNSAFE_CHANGE, detail)
    if sorted(chain.preferred_order) != sorted(serving):
        detail = f"chain {chain.chain_id}: preferred order {list(chain.preferred_order)}"
        raise FsError(Status.UNSAFE_CHANGE, f"{detail} does not name its members {list(serving)}")
    if serving == chain.preferred_order:
        return None
    rest = iter(serving)
    return next(target_id for target_id in chain.preferred_order if target_id not in rest)


def rotated_last_serving(
    chain: Chain, lost: TargetId, chosen: TargetId | None, alive: Container[TargetId]
) -> Chain:
    """Give up the last serving target, whose data is lost;
    another member's, perhaps older, becomes the truth.

    Counts as a loss, of which clients with updates not yet synced are told.

    Args:
        chain: not changed.
        lost: the member waited for; nothing changes when it has been given up already.
        chosen: who is to be believed; None: the first that is alive, else the first.
        alive: the members whose nodes say that they are there.

    Raises:
        FsError: UNSAFE_CHANGE when `lost` is not what the chain waits for, or is alive;
            CONFLICTING_CHANGE when `chosen` is no other member.
    """
    name = f"chain {chain.chain_id}"
    others = [m for m in chain.targets if m.target_id != lost]
    is_done = bool(chain.serving) or chosen in chain.keepers
    if chain.state_of(lost) is PublicState.OFFLINE and is_done:
        return chain
    if chain.state_of(lost) is not PublicState.LASTSRV:
        raise FsError(Status.UNSAFE_CHANGE, f"{name} does not wait for target {lost}")
    if lost in alive:
        raise FsError(Status.UNSAFE_CHANGE, f"{name}: target {lost} is alive and will serve")
    candidates = [m.target_id for m in others]
    if chosen is None:
        chosen = next((t for t in candidates if t in alive), next(iter(candidates), None))
    if chosen not in candidates:
        raise FsError(Status.CONFLICTING_CHANGE, f"{name}: target {chosen} is no other member")
    states = {m.target_id: m.public_state for m in others}
    states[chosen] = PublicState.LASTSRV
    states[lost] = PublicState.OFFLINE  # at the end, behind those that were offline before
    members = tuple(ChainTarget(t, s) for o in ORDER for t, s in states.items() if s is o)
    rotated = _changed(chain, members, chain.preferred_order)
    return replace(rotated, loss_count=chain.loss_count + 1, stand_ins=())


def _changed(chain: Chain, members: tuple[ChainTarget, ...], order: tuple[TargetId, ...]) -> Chain:
    created = chain.created_order or chain.preferred_order
    return replace(
        chain,
        chain_version=chain.chain_version + 1,
        targets=members,
        preferred_order=order,
        stand_ins=tuple(t for t in chain.stand_ins if any(t == m.target_id for m in members)),
        created_order=() if created == order else created,
    )
