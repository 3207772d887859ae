"""Hostile metadata calls in their short form;
`python -m tests.meta.fuzz --calls N` is the long one.
"""

import pytest

from tests.rpc.fuzz import Growth, Size

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
    small = Size(0, 0, 0)
    for large in (Size(1 << 30, 0, 0), Size(0, 1000, 0), Size(0, 0, 70_000)):
        grown = Growth([small, small, large], late_calls=100_000)
        assert failures(Report(growth={"meta-1": grown}))
        assert not failures(Report(growth={"meta-1": Growth([small, small, small], 10_000)}))
    assert not failures(Report(growth={"meta-1": Growth([small, Size(0, 0, 70_000)] * 2, 10**6)}))
