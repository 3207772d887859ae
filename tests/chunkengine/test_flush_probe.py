"""A disk that flushes too slowly is not opened beside others."""

import os
from types import SimpleNamespace

import pytest

from fs.chunkengine import flush_probe
from fs.chunkengine.flush_probe import FLUSH_COUNT, FLUSH_S_MAX, require_quick_flushes
from fs.schema.status import FsError, Status


@pytest.fixture
def flush(monkeypatch):
    """Have flushes take `took_s` by the probe's clock, however long they really take."""
    found, real = SimpleNamespace(now_s=1000.0, took_s=0.0), os.fdatasync

    def flushed(descriptor):
        found.now_s += found.took_s
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", flushed)
    monkeypatch.setattr(flush_probe, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


@pytest.mark.parametrize("took_s", [0.0, FLUSH_S_MAX * 0.9])
def test_a_quick_disk_passes_and_nothing_is_left(tmp_path, flush, took_s):
    flush.took_s = took_s
    require_quick_flushes(tmp_path)
    assert flush.now_s == pytest.approx(1000.0 + FLUSH_COUNT * took_s)
    assert not list(tmp_path.iterdir())


def test_a_slow_disk_does_not_pass(tmp_path, flush):
    descriptors = os.listdir("/proc/self/fd")
    flush.took_s = 0.3
    with pytest.raises(FsError, match=r"takes more than 0\.2 s") as caught:
        require_quick_flushes(tmp_path)
    assert caught.value.status is Status.BUSY
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_what_is_wrong_otherwise_is_for_the_opening_to_say(tmp_path):
    require_quick_flushes(tmp_path / "missing")
