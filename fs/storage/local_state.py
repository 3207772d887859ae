"""What a storage node says of its own target, and why.  Pure.

Start-up: everything is OFFLINE until the manager has taken all of this node's targets
out of service, so that each one comes back through resync (or as the last serving
one, whose copy is the truth).

Source: deepseek-ai/3FS design notes, "Data recovery", and src/storage/service/TargetMap.
"""

from collections.abc import Iterable
from enum import Enum

from ..schema.ids import TargetId
from ..schema.routing import LocalState, PublicState, RoutingInfo


class Hold(Enum):
    """Why a target is kept OFFLINE."""

    NONE = "none"
    STARTING = "starting"  # the manager has not yet taken this node's targets out of service
    EVICTED = "evicted"  # it must leave its chain and come back through resync
    FULL = "full"  # it could not take what resync gave it; waits for space
    BROKEN = "broken"  # its disk failed; until it is opened anew
    REQUESTED = "requested"  # an operator asked; until he releases it, also over restarts
    CUT_OFF = "cut off"  # it does not reach its neighbour in the chain; until it reaches the tail
    # its disk was formatted otherwise than those of its chain; until its process starts anew
    UNFIT = "unfit"
    REMOVED = "removed"  # the manager has no use for it any more


class Step(Enum):
    """What the node does with a target now."""

    STAY = "stay"
    RELOAD = "reload"  # forget channels, wait for updates inside to end, then ONLINE
    DEMOTE = "demote"  # back to ONLINE: what was resynced may be outdated
    PROMOTE = "promote"  # commit leftover pending versions, then UPTODATE


_OUT = {PublicState.OFFLINE, PublicState.LASTSRV, PublicState.WAITING}
_IN_SERVICE = {PublicState.SERVING, PublicState.SYNCING, PublicState.WAITING}


def start_is_over(info: RoutingInfo, target_ids: Iterable[TargetId]) -> bool:
    """True when the manager has taken every one of these targets out of service."""
    if info.routing_version == 0:
        return False
    own = set(target_ids)
    return not any(
        member.target_id in own and member.public_state in _IN_SERVICE
        for chain in info.chains.values()
        for member in chain.targets
    )


def next_step(
    local: LocalState,
    hold: Hold,
    public: PublicState | None,
    *,
    chain_version: int,
    sync_done_version: int,
) -> Step:
    """Decide what to do with a target.

    Args:
        local: what the node says of it now.
        hold: why it is OFFLINE; NONE unless it is.
        public: its public state in the newest routing info; None if it is in no chain.
        chain_version: of its chain there; 0 if none.
        sync_done_version: chain version under which its last resync was completed; 0 if none.
    """
    if local is LocalState.OFFLINE:
        # WAITING counts as out of service: a target that was evicted there has nothing to leave.
        return (
            Step.RELOAD
            if hold is Hold.EVICTED and (public is None or public in _OUT)
            else Step.STAY
        )
    if local is LocalState.ONLINE:
        return Step.PROMOTE if public is PublicState.SERVING else Step.STAY
    if public is None or public in _OUT:
        return Step.RELOAD
    if public is PublicState.SYNCING and chain_version != sync_done_version:
        # The chain may have gone through versions in which this target was out and missed updates.
        return Step.DEMOTE
    return Step.STAY
