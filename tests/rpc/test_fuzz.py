"""Row R1 in its short form; `python -m tests.rpc.fuzz --frames N` is the long one."""

import pytest

from .fuzz import (
    BLOCKS_MIN,
    DESCRIPTORS_MAX,
    GROWTH_BYTES_MAX,
    Growth,
    Report,
    Size,
    failures,
    fuzz_cluster,
)


@pytest.mark.slow
def test_processes_stand_broken_frames(tmp_path_factory):
    reports = fuzz_cluster(tmp_path_factory.mktemp("f"), frames=100, seed=1)
    assert {report.name.rstrip("-0123456789") for report in reports} == {
        "kv", "meta", "mgmtd", "storage",
    }  # fmt: skip
    assert all(report.frames >= 100 and report.honest for report in reports)
    assert all(len(report.methods) >= 5 for report in reports)
    assert not [text for report in reports for text in failures(report)]


def test_bugs_and_growth_count_as_failures():
    small = Size(0, 0, 0)
    assert not failures(grown(small, small, Size(GROWTH_BYTES_MAX, DESCRIPTORS_MAX, BLOCKS_MIN)))
    assert failures(grown(small, small, Size(GROWTH_BYTES_MAX + 1, 0, 0)))
    assert failures(grown(small, small, Size(0, DESCRIPTORS_MAX + 1, 0)))
    assert failures(Report("a", 1, problems=["Meta.stat: KeyError"]))


def test_what_stays_of_late_calls_counts_and_what_is_remembered_once_does_not():
    small, large = Size(0, 0, 0), Size(0, 0, 3 * BLOCKS_MIN)
    assert failures(grown(small, small, large))
    assert not failures(grown(small, large, large))
    assert not failures(grown(small, small, large, late_calls=6 * BLOCKS_MIN))


def grown(*sizes, late_calls=BLOCKS_MIN):
    return Report("a", 1, growth=Growth([*sizes], late_calls))
