"""Hostile metadata calls in their short form; `python -m tests.meta.fuzz --calls N` is the long one."""

import pytest

from .fuzz import METHODS, Report, failures, fuzz_meta, untried


@pytest.mark.slow
def test_strangers_change_nothing_and_break_nothing(tmp_path_factory):
    report = fuzz_meta(tmp_path_factory.mktemp("f"), calls=1500, root_calls=400, seed=1)
    assert report.calls >= 1900 and report.honest
    assert not failures(report)
    assert len(untried(report)) < len(METHODS) / 2


def test_changes_bugs_and_growth_count_as_failures():
    assert not failures(Report())
    assert failures(Report(problems=["inode 0x1 changed"]))
    assert failures(Report(growth={"meta-1": (1 << 30, 0)}))
    assert failures(Report(growth={"meta-1": (0, 1000)}))
