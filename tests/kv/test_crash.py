"""Short forms of `kills.py` and `power.py`, and stores that they catch."""

import pytest

# By their full names: the processes they start import them again.
from tests.chunkengine import images, kills, power
from tests.kv import spoils
from tests.kv.witness import StoreWitness

KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(bool(why), reason=f"{kind}: {why}"))
    for kind in ("ext4", "xfs")
    for why in [images.missing(kind)]
]
CAUGHT = r"were promised|count is of another|nothing is known"


@pytest.mark.slow
def test_a_kill_loses_nothing_acknowledged(tmp_path) -> None:
    outcome = kills.run_lot(1, tmp_path, kills=6, witness_type=StoreWitness)
    assert outcome["kills"] == 6
    assert outcome["commits"] > 0


@pytest.mark.slow
def test_a_kill_catches_a_store_that_keeps_commits_in_memory(tmp_path) -> None:
    with pytest.raises(AssertionError, match=CAUGHT):
        kills.run_lot(
            1, tmp_path, kills=10, spoil=spoils.commit_in_memory, witness_type=StoreWitness
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_leaves_a_prefix_with_all_that_was_synced(kind, tmp_path) -> None:
    outcome = power.run_lot(kind, 1, tmp_path, cuts=2, witness_type=StoreWitness)
    assert outcome["cuts"] == 2
    assert outcome["syncs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_catches_a_sync_that_does_not_flush(kind, tmp_path) -> None:
    with pytest.raises(AssertionError, match=CAUGHT):
        power.run_lot(
            kind, 1, tmp_path, cuts=10, spoil=spoils.sync_nothing, witness_type=StoreWitness
        )
