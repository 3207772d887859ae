"""Many seeds: what was run is not run again, and the summary counts only what was seen."""

import json
from dataclasses import asdict

from . import campaign
from .campaign import How, Outcome, known, run_many, summary


def outcome(seed, **given):
    fields = {"op_count": 300, "simulated_s": 90.0, "cpu_s": 3.0, "event_count": 1000}
    return Outcome(seed, **{**fields, "fault_counts": {"wipe": 12}, **given})


def test_a_resumed_run_leaves_out_what_it_knows(tmp_path):
    file = tmp_path / "outcomes"
    given = [outcome(1), outcome(2, error="checker: AssertionError: wrong", fault_counts={})]
    file.write_text("".join(json.dumps(asdict(o)) + "\n" for o in given))
    assert known(file) == {1: given[0], 2: given[1]}
    assert run_many([1, 2], How(), resume=file) == given
    assert len(file.read_text().splitlines()) == 2


def test_the_summary_counts_failures_and_thin_seeds():
    text = summary(
        [
            outcome(1, direct_write_count=30, inline_count=9, moved_count=4),
            outcome(2, error="x"),
            outcome(3, op_count=10, fault_counts={"wipe": 1}),
        ]
    )
    assert "2 passed, 1 failed [2]" in text
    assert "wipe: 13 in 2 seeds" in text
    assert "30 versions written past the page cache, in 1 seeds" in text
    assert "9 times bytes inline, in 1 seeds, 4 moved from there" in text
    assert "(200 operations, 10 faults): 1" in text


def test_how_says_its_own_options():
    assert How(30.0, ("wipe",), is_dense=True).options() == "--seconds 30 --only wipe --dense"


def test_an_error_is_named_by_the_checker_that_raised_it():
    def check_something():
        raise AssertionError("chunk 5 is wrong\nand more")

    try:
        check_something()
    except AssertionError as error:
        group = ExceptionGroup("outer", [ExceptionGroup("inner", [error])])
    assert campaign.where(group) == "check_something: AssertionError: chunk 5 is wrong"
