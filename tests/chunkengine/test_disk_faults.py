"""Short forms of `nth_call.py`, `rot.py` and `astray.py`, and engines that they catch."""

from contextlib import nullcontext
from unittest.mock import ANY

import pytest

from fs.chunkengine import verified
from fs.chunkengine.books import Books
from fs.runtime.log_mark import LogMark

from . import astray, nth_call, rot


@pytest.mark.slow
def test_any_call_to_a_simulated_disk_may_fail(tmp_path) -> None:
    outcome = nth_call.run_loop("simulated", 12, 0, tmp_path, stride=2)
    assert outcome["loops"] == 6
    assert outcome["failed calls"] > 60


@pytest.mark.thorough
def test_a_failed_flush_may_lose_what_was_not_durable() -> None:
    """As the kernel does: the process is killed,
    and what it could not write is gone without a power loss.
    """
    hits = [
        nth_call.simulated(0, number, "IO_ERROR", 40, is_power=False).hit for number in range(70)
    ]
    assert hits.count("flush") >= 3


@pytest.mark.slow
def test_any_call_of_the_file_layer_may_fail(tmp_path) -> None:
    outcome = nth_call.run_loop("real", 8, 1, tmp_path, stride=7)
    assert outcome["loops"] == 3


def test_going_on_after_a_failed_flush_is_noticed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(Books, "poison_on_failure", lambda *_, **__: nullcontext())
    with pytest.raises(AssertionError, match="goes on after a failed"):
        nth_call.run_loop("simulated", 40, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_rot_in_the_metadata_store_loses_nothing_silently(seed, tmp_path) -> None:
    outcome = rot.run_seed(1, seed, tmp_path)
    assert outcome["flip"] == outcome["remove"] == outcome["halve"] >= 8


@pytest.mark.slow
def test_without_the_mark_of_the_log_rot_loses_silently(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(LogMark, "raise_to", lambda *_: None)
    with pytest.raises(AssertionError, match="silently lost"):
        rot.run_seed(5, 1, tmp_path)


@pytest.mark.slow
def test_writes_gone_astray_are_found_at_the_next_read(tmp_path) -> None:
    for seed in range(4):
        astray.run_seed(seed, tmp_path / str(seed))


def test_without_checksums_wrong_bytes_are_served(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(verified, "packed_checksums", lambda *_: ANY)
    with pytest.raises(AssertionError, match="wrong bytes were served"):
        astray.run_seed(0, tmp_path)
