"""A disk that flushes too slowly is not opened beside others."""

import os
import time

import pytest

from fs.chunkengine import flush_probe
from fs.chunkengine.flush_probe import require_quick_flushes
from fs.schema.status import FsError, Status


def test_a_quick_disk_passes_and_nothing_is_left(tmp_path):
    require_quick_flushes(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_slow_disk_does_not_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(flush_probe, "FLUSH_S_MAX", 0.05)
    descriptors = os.listdir("/proc/self/fd")
    real = os.fdatasync

    def slow(descriptor):
        time.sleep(0.1)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    with pytest.raises(FsError, match=r"a flush took 0\.1 s") as caught:
        require_quick_flushes(tmp_path)
    assert caught.value.status is Status.IO_ERROR
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_what_is_wrong_otherwise_is_for_the_opening_to_say(tmp_path):
    require_quick_flushes(tmp_path / "missing")
