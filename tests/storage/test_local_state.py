from itertools import product

import pytest

from fs.schema.ids import ChainId, TargetId
from fs.schema.routing import Chain, ChainTarget, LocalState, PublicState, RoutingInfo
from fs.storage.local_state import Hold, Step, next_step, start_is_over


def step(local, public, hold=Hold.NONE, chain_version=5, done=0):
    return next_step(local, hold, public, chain_version=chain_version, sync_done_version=done)


@pytest.mark.parametrize(
    "public", [PublicState.OFFLINE, PublicState.LASTSRV, PublicState.WAITING, None]
)
def test_out_of_service_is_reloaded(public):
    assert step(LocalState.UPTODATE, public) is Step.RELOAD
    assert step(LocalState.OFFLINE, public, Hold.EVICTED) is Step.RELOAD


def test_serving_makes_uptodate():
    assert step(LocalState.ONLINE, PublicState.SERVING) is Step.PROMOTE
    assert step(LocalState.UPTODATE, PublicState.SERVING) is Step.STAY
    assert step(LocalState.ONLINE, PublicState.SYNCING) is Step.STAY


def test_a_finished_resync_counts_for_its_chain_version_only():
    assert step(LocalState.UPTODATE, PublicState.SYNCING, done=5) is Step.STAY
    assert step(LocalState.UPTODATE, PublicState.SYNCING, done=4) is Step.DEMOTE


def test_a_held_target_stays():
    for hold, public in product(Hold, [*PublicState, None]):
        if hold in {Hold.NONE, Hold.EVICTED}:
            continue
        assert step(LocalState.OFFLINE, public, hold) is Step.STAY
    assert step(LocalState.OFFLINE, PublicState.SERVING, Hold.EVICTED) is Step.STAY


def info(version, *states):
    members = tuple(ChainTarget(TargetId(n), s) for n, s in enumerate(states))
    return RoutingInfo(version, chains={ChainId(1): Chain(ChainId(1), 1, members)})


def test_start_waits_until_the_manager_has_seen_us_gone():
    own = [TargetId(1)]
    assert not start_is_over(RoutingInfo(), own)
    assert start_is_over(info(1, PublicState.SERVING), own)
    for state in PublicState:
        is_out = state in {PublicState.OFFLINE, PublicState.LASTSRV}
        assert start_is_over(info(1, PublicState.SERVING, state), own) is is_out
