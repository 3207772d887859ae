"""Row R1 in its short form; `python -m tests.rpc.fuzz --frames N` is the long one."""

import pytest

from .fuzz import DESCRIPTORS_MAX, GROWTH_BYTES_MAX, Report, failures, fuzz_cluster


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
    assert not failures(Report("a", 1, growth_bytes=GROWTH_BYTES_MAX))
    assert failures(Report("a", 1, growth_bytes=GROWTH_BYTES_MAX + 1))
    assert failures(Report("a", 1, descriptors=DESCRIPTORS_MAX + 1))
    assert failures(Report("a", 1, problems=["Meta.stat: KeyError"]))
