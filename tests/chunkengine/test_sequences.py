"""Short forms of `sequences.py` (against a model) and `exhaustive.py` (cut everywhere),
and engines that they catch.
"""

from collections import Counter

import pytest

from fs.chunkengine.content import new_content
from fs.chunkengine.ledger import Ledger
from fs.chunkengine.listing import Listing
from fs.chunkengine.simulated_disk import SimulatedDataFiles, SimulatedMetaStore
from fs.schema.status import FsError

from . import exhaustive, sequences


@pytest.mark.slow
def test_the_engine_does_what_its_model_does() -> None:
    outcome = sum((sequences.run_seed(seed) for seed in range(30)), Counter())
    assert outcome["sequences"] == 30
    assert outcome["restarts"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("is_synced", [True, False])
def test_each_operation_may_be_cut_anywhere(is_synced) -> None:
    for name in exhaustive.NAMES:
        exhaustive.run_workload((name,), is_synced=is_synced)


@pytest.mark.slow
def test_sampled_pairs_and_triples_may_be_cut_anywhere() -> None:
    workloads = exhaustive.all_short()
    assert len(workloads) == 2 * (25 + 25 * 25)
    for names, is_synced in workloads[44::29] + exhaustive.sampled(10, 0):
        exhaustive.run_workload(names, is_synced=is_synced)


def lose_tail(plan, old_checksums, head, tail, data):
    """An overwrite in the middle that forgets what stood behind it."""
    return new_content(plan, old_checksums, head, tail[:0], data)


def keep_chunks(_registry, _target_id) -> bool:
    return False


WRONG = {
    "an overwrite cuts the chunk": ("fs.chunkengine.version_writer.new_content", lose_tail),
    "a removed target keeps its chunks": (
        "fs.chunkengine.registry.Registry._remove_lot",
        keep_chunks,
    ),
    "lists leave out the last chunk": (
        "fs.chunkengine.listing.Listing._list",
        lambda *a, real=Listing._list: real(*a)[:-1],
    ),
    "a restart forgets what is pending": (
        "fs.chunkengine.recovery._settle_pending",
        lambda ledger, _reader, key, _pending: ledger.change(key, ledger.record(key), None),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_engine_differs_from_the_model(monkeypatch, name) -> None:
    monkeypatch.setattr(*WRONG[name])
    with pytest.raises((AssertionError, FsError)):
        run_all(sequences.run_seed, range(40))


BROKEN = {
    "sync does not flush the data": (SimulatedDataFiles, "flush", lambda *_: None),
    "sync does not flush the metadata": (
        SimulatedMetaStore,
        "write_synced",
        SimulatedMetaStore.write,
    ),
    "no undo records": (Ledger, "_stage_undo", lambda *_: None),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_engine_does_not_survive_all_cuts(monkeypatch, name) -> None:
    monkeypatch.setattr(*BROKEN[name])
    with pytest.raises((AssertionError, FsError)):
        run_all(lambda w: exhaustive.run_workload(w[0], is_synced=w[1]), exhaustive.all_short())


def run_all(run, what) -> None:
    for one in what:
        run(one)
