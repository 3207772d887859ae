"""What stands in the way of a mount is named with its remedy."""

import os

import pytest

from fs.app import mount_point
from fs.app.mount_point import check_fuse, check_mount_point, is_dead
from fs.schema.status import FsError, Status


def test_a_missing_device_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(mount_point, "FUSE_DEVICE", tmp_path / "fuse")
    with pytest.raises(FsError) as caught:
        check_fuse()
    assert caught.value.status is Status.FUSE_MISSING
    assert "modprobe fuse, or start with --no-mount" in caught.value.detail


def test_a_forbidden_device_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(mount_point, "FUSE_DEVICE", tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FsError) as caught:
        check_fuse()
    assert "may not open" in caught.value.detail


def test_an_ordinary_empty_directory_will_do(tmp_path):
    assert not is_dead(tmp_path)
    check_mount_point(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FsError, match="not empty"):
        check_mount_point(tmp_path)
