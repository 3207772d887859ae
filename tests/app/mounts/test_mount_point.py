"""What stands in the way of a mount is named with its remedy."""

import os

import pytest

from fs.app.local import bring_down
from fs.app.machine.cluster_dir import ClusterDir
from fs.app.mounts import mount_point
from fs.app.mounts.mount_point import check_fuse, check_mount_point, is_dead
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


def test_a_mount_that_is_served_is_refused_without_being_asked(monkeypatch, tmp_path):
    """While metadata is away it would not answer, nor would the command."""
    monkeypatch.setattr(mount_point, "is_mounted", lambda path: path == tmp_path)
    monkeypatch.setattr(mount_point, "mount_daemon_at", lambda path: (path, None))
    monkeypatch.setattr(mount_point, "is_dead", lambda _: pytest.fail("the mount was asked"))
    with pytest.raises(FsError, match="mounted there already"):
        check_mount_point(tmp_path)


@pytest.mark.parametrize("interrupted", ["begin_mount", "wait_running"])
def test_a_mount_that_is_given_up_is_taken_back(monkeypatch, tmp_path, interrupted):
    """Its daemon may still be waiting for a manager, and would mount when nobody expects it."""
    asked = []

    def ask(_directory, **request):
        asked.append(request)
        return {"services": []}

    def interrupt(*_args, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr(bring_down, "need_record", lambda _: None)
    monkeypatch.setattr(bring_down, "check_fuse", lambda: None)
    monkeypatch.setattr(bring_down, "begin_mount", lambda *_args, **_named: None)
    monkeypatch.setattr(bring_down, interrupted, interrupt)
    monkeypatch.setattr(bring_down.supervisor_link, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        bring_down.mount(ClusterDir(tmp_path), tmp_path)
    assert asked[-1] == {"command": "remove", "name": "mount-1"}


def test_a_dead_mount_is_left_to_the_daemon_that_takes_its_place(monkeypatch, tmp_path):
    """Detached by the command it would leave the bare directory, for as long as a start takes."""
    monkeypatch.setattr(mount_point, "is_mounted", lambda path: path == tmp_path)
    monkeypatch.setattr(mount_point, "is_dead", lambda path: path == tmp_path)
    monkeypatch.setattr(mount_point, "mount_daemon_at", lambda _: None)
    monkeypatch.setattr(mount_point, "detach", lambda _: pytest.fail("it was detached"))
    check_mount_point(tmp_path)
