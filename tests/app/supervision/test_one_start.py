"""One `ember up` at a time; a supervisor that cannot be asked is not taken for none."""

import os
import subprocess
import sys
import time

import pytest

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.supervision import one_start
from fs.app.supervision.one_start import check_stopped, note_start, only_start
from fs.schema.status import FsError, Status

NOBODY = 65534


def test_another_start_is_refused_while_one_is_at_work(tmp_path):
    with only_start(tmp_path):
        with pytest.raises(FsError, match="another `ember up`") as caught, only_start(tmp_path):
            pass
        assert caught.value.status is Status.ALREADY_RUNNING
    with only_start(tmp_path):
        pass


def test_a_start_that_is_refused_leaves_no_directory(tmp_path):
    place = tmp_path / "a" / "b"
    with pytest.raises(FsError), only_start(place):
        raise FsError(Status.BAD_CONFIG)
    assert not any(tmp_path.iterdir())
    with only_start(place):
        (place / "kept").touch()
    assert (place / "kept").exists()


def test_a_place_that_cannot_even_be_looked_at_is_named(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    places = [locked / "cluster", tmp_path / ("x" * 300)]
    is_root = os.geteuid() == 0  # whom no folder keeps out
    try:
        if is_root:
            os.seteuid(NOBODY)
        for place in places:
            with pytest.raises(FsError, match=place.name) as caught, only_start(place):
                pass
            assert caught.value.status is Status.BAD_CLUSTER_DIR
    finally:
        if is_root:
            os.seteuid(0)


def test_a_supervisor_without_a_socket_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(one_start, "SILENT_S_MAX", 0.2)
    directory = ClusterDir(tmp_path)
    directory.make_folders()
    directory.record_path.write_text("{}")
    line = [sys.executable, "-c", "import time; time.sleep(100)", "fs.app.supervisor", tmp_path]
    check_stopped(directory)
    with subprocess.Popen(line) as supervisor:
        try:
            deadline_s = time.monotonic() + 30
            while one_start.supervisor_of(directory) is None:
                assert time.monotonic() < deadline_s
            with pytest.raises(FsError, match="ember down") as caught:
                check_stopped(directory)
            assert caught.value.status is Status.ALREADY_RUNNING
        finally:
            supervisor.kill()


def test_only_a_start_that_was_killed_is_gone_on_with(tmp_path, monkeypatch):
    directory = ClusterDir(tmp_path)
    directory.make_folders()
    monkeypatch.setattr(one_start.supervisor_link, "is_answering", lambda _directory: True)
    with pytest.raises(FsError) as caught:
        check_stopped(directory)
    assert caught.value.status is Status.ALREADY_RUNNING
    note_start(directory)
    check_stopped(directory)
