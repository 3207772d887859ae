"""Chain-state transition: the one function that moves targets between public states.

Pure: no clock, no randomness, no I/O.  The primary's chain scan calls it;
nothing else changes a public state.

Invariants (enumerated exhaustively by tests/mgmtd/test_chain_state.py):
    - The result holds the same target ids as the input.
    - Order is serving*, lastsrv?, syncing?, waiting*, offline*.  At most one target is syncing, at
      most one is lastsrv, and a lastsrv is only where nothing serves.
    - A waiting or offline target never becomes serving in one step: it has to be syncing in
      between.  The exception is a stand-in.  It ceased to serve in the same judgement as the last
      server, and nobody could acknowledge anything after that.
    - A chain that had a serving or lastsrv target still has one of either:
      the newest data has a keeper.
    - chain_version grows by exactly one when anything changed.  Else the same object is returned.

Source: deepseek-ai/3FS, the rules as coded for its chain update, not the table of its design notes.
The differences are listed in specs/chain-state.md.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..schema.ids import TargetId
from ..schema.routing import Chain, ChainTarget, LocalState, PublicState

ORDER: Final = (
    PublicState.SERVING,
    PublicState.LASTSRV,
    PublicState.SYNCING,
    PublicState.WAITING,
    PublicState.OFFLINE,
)
"""Of the states within a chain, and of judging."""


_AWAY: Final = {PublicState.WAITING, PublicState.OFFLINE}


def next_chain(chain: Chain, local_states: Mapping[TargetId, LocalState]) -> Chain:
    """Judge every member by what its node says of it; a member that nobody speaks of is OFFLINE.

    Returns:
        The same object when nothing changes, else the reordered chain with chain_version + 1.
    """
    assert is_legal(chain), chain
    groups: dict[PublicState, list[TargetId]] = {state: [] for state in ORDER}
    stand_in = _stand_in(chain, local_states)
    if stand_in is not None:
        groups[PublicState.SERVING].append(stand_in)
    for member in chain.targets:
        if member.target_id == stand_in:
            continue
        local = local_states.get(member.target_id, LocalState.OFFLINE)
        groups[_judge(member.public_state, local, groups)].append(member.target_id)
    if groups[PublicState.SERVING]:
        # Somebody holds the newest data, so nobody has to be waited for.
        groups[PublicState.OFFLINE] = groups[PublicState.LASTSRV] + groups[PublicState.OFFLINE]
        groups[PublicState.LASTSRV] = []
    targets = tuple(ChainTarget(target, state) for state in ORDER for target in groups[state])
    if targets == chain.targets:
        return chain
    return replace(
        chain,
        chain_version=chain.chain_version + 1,
        targets=targets,
        stand_ins=_stand_ins(chain, groups[PublicState.LASTSRV]),
    )


def with_loss(before: Chain, after: Chain, rebooted: Container[TargetId]) -> Chain:
    """Count a loss when the newest data is kept by a target
    that kept it before its machine was started anew.

    What an update writes survives the death of processes, but only a sync makes it survive the
    machine.  A target that may stand in for a last server counts as the last server does, also if
    it never has to stand in: later on nobody would know of the reboot.

    Args:
        before: the chain until now.
        after: what `next_chain` made of it.
        rebooted: targets whose machines were started anew since the targets were last heard of.

    Returns:
        `after` when nothing can have been lost.  Else `after` with one more loss, under
        the version after `before`'s.
    """
    if not any(t in rebooted and t in before.candidates for t in after.candidates):
        return after
    version = before.chain_version + 1
    return replace(after, chain_version=version, loss_count=before.loss_count + 1)


def is_legal(chain: Chain) -> bool:
    """Tell whether the chain's members stand in an order that `next_chain` can have produced."""
    states = [member.public_state for member in chain.targets]
    serving, lastsrv = states.count(PublicState.SERVING), states.count(PublicState.LASTSRV)
    return (
        states == sorted(states, key=ORDER.index)
        and states.count(PublicState.SYNCING) <= 1
        and lastsrv <= (0 if serving else 1)
        and (not chain.stand_ins or lastsrv == 1)
        and not set(chain.stand_ins)
        - {m.target_id for m in chain.targets if m.public_state in _AWAY}
        and len({member.target_id for member in chain.targets}) == len(states)
    )


def keeping_state(state: PublicState) -> LocalState:
    """Return the local state under which a member's public state stays as it is.

    A new primary presumes that state of targets whose nodes it has not heard yet.
    """
    if state in {PublicState.SERVING, PublicState.WAITING}:
        return LocalState.UPTODATE
    return LocalState.ONLINE if state is PublicState.SYNCING else LocalState.OFFLINE


def _stand_in(chain: Chain, local_states: Mapping[TargetId, LocalState]) -> TargetId | None:
    """Return who serves from now on in the stead of the last server, which is away;
    None: nobody can, or needs to.
    """
    if not chain.stand_ins or any(
        local_states.get(t, LocalState.OFFLINE) is not LocalState.OFFLINE for t in chain.keepers
    ):
        return None
    alive = (t for t in chain.stand_ins if local_states.get(t) is LocalState.ONLINE)
    return next(alive, None)


def _stand_ins(chain: Chain, lasts: Sequence[TargetId]) -> tuple[TargetId, ...]:
    """Return who may stand in for the last server of a judged chain:
    those that ceased to serve together with it.

    An update is acknowledged only when all that serve have it.  One that anybody was shown is at
    least pending with all of them (fs/storage/write_path.py).  So every target that serves under
    one chain version has everything.  Nobody serves under the next one, so from there on nothing is
    acknowledged.  A target that ceased to serve earlier may lack something.
    """
    if not lasts:
        return ()
    return tuple(t for t in chain.serving if t not in lasts) or chain.stand_ins


def _judge(
    state: PublicState, local: LocalState, judged: Mapping[PublicState, list[TargetId]]
) -> PublicState:
    """Return one member's next state; members are judged in chain order,
    so `judged` knows those ahead.
    """
    is_alive = local is not LocalState.OFFLINE
    has_serving = bool(judged[PublicState.SERVING])
    match state:
        case PublicState.SERVING if is_alive:
            return PublicState.SERVING
        case PublicState.SERVING:
            # The first to fail may turn out to be the last: _judge cannot know yet.
            return PublicState.OFFLINE if judged[PublicState.LASTSRV] else PublicState.LASTSRV
        case PublicState.LASTSRV if has_serving:
            return PublicState.OFFLINE
        case PublicState.LASTSRV:
            return PublicState.SERVING if is_alive else PublicState.LASTSRV
        case PublicState.SYNCING if local is LocalState.UPTODATE:
            return PublicState.SERVING
        case PublicState.SYNCING if is_alive:
            return PublicState.SYNCING if has_serving else PublicState.WAITING
        case PublicState.SYNCING:
            return PublicState.OFFLINE
        case PublicState.WAITING | PublicState.OFFLINE:
            can_sync = has_serving and not judged[PublicState.SYNCING]
            if local is LocalState.ONLINE and can_sync:
                return PublicState.SYNCING
            return PublicState.WAITING if is_alive else PublicState.OFFLINE
