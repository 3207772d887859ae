"""What `ember up` leaves behind when it refuses."""

import os
from types import SimpleNamespace

import pytest

from fs.app.local.bring_up import UpOptions, check_unchanged, new_record, prepare
from fs.app.machine.cluster_dir import ClusterDir, load_record
from fs.app.terminal.progress import Progress
from fs.schema.status import FsError, Status


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"node_count": 0}, Status.BAD_CONFIG),
        ({"node_count": 2, "replica_count": 3}, Status.BAD_CONFIG),
        ({"has_mount": True}, Status.BAD_MOUNT_POINT),
    ],
)
def test_a_refused_cluster_leaves_no_directory(tmp_path, monkeypatch, options, status):
    monkeypatch.setattr("fs.app.local.bring_up.check_fuse", lambda: None)
    directory, mount_point = tmp_path / "new", tmp_path / "full"
    (mount_point / "a").mkdir(parents=True)
    asked = UpOptions(directory, mount_point, **({"has_mount": False} | options))
    with pytest.raises(FsError) as caught:
        prepare(asked, mount_point, Progress())
    assert caught.value.status is status
    assert not directory.exists()


def test_a_place_where_nothing_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / "new"
    with pytest.raises(FsError, match=str(directory)) as caught:
        prepare(UpOptions(directory, has_mount=False), tmp_path, Progress())
    assert caught.value.status is Status.BAD_CLUSTER_DIR


@pytest.mark.parametrize("below", ["", "new/data"])
def test_a_mount_that_would_hide_the_cluster_itself_is_refused_before_anything_starts(
    tmp_path, monkeypatch, below
):
    """All was started, and its mount daemon failed;
    the cluster stayed, and its record with a mount point that never works.
    """
    monkeypatch.setattr("fs.app.local.bring_up.check_fuse", lambda: None)
    directory = tmp_path / below
    directory.mkdir(parents=True, exist_ok=True)
    with pytest.raises(FsError, match=f"would hide .* {directory}; .* beside it") as caught:
        prepare(UpOptions(directory, tmp_path), tmp_path, Progress())
    assert caught.value.status is Status.BAD_MOUNT_POINT
    assert not list(directory.iterdir())


def test_what_the_mount_offers_stays_until_something_else_is_said(tmp_path):
    """It was written anew by each start, so a cluster for a KV cache came back without the tree
    that its programs use.
    """
    kept = []
    for asked in (None, True, None, False, None):
        options = UpOptions(tmp_path / "c", has_mount=False, has_hf3fs_tree=asked)
        prepare(options, tmp_path / "m", Progress())
        kept.append(load_record(ClusterDir(tmp_path / "c")).has_hf3fs_tree)
    assert kept == [False, True, True, False, False]


def test_a_cluster_that_has_filled_its_disk_starts_again(tmp_path, monkeypatch):
    """Nobody could remove its files any more, and was told to make another one."""
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    old, new = (UpOptions(tmp_path / name, has_mount=False) for name in ("old", "new"))
    prepare(old, tmp_path / "m", Progress())
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    monkeypatch.setattr(
        "fs.app.machine.cluster_dir.write_durable", lambda *_: pytest.fail("no room")
    )
    prepare(old, tmp_path / "m", Progress())
    with pytest.raises(FsError, match="0 MiB free") as caught:
        prepare(new, tmp_path / "m", Progress())
    assert caught.value.status is Status.NO_SPACE


def test_a_size_of_zero_is_told_as_it_was_given(tmp_path):
    """It was told as the name of the embedded store."""
    made = new_record(UpOptions(tmp_path), "")
    with pytest.raises(FsError, match="--nodes 0: this cluster was made with 3"):
        check_unchanged(UpOptions(tmp_path, node_count=0), made)
    with pytest.raises(FsError, match="--kv foundationdb:/a: this cluster was made with rocksdb"):
        check_unchanged(UpOptions(tmp_path, kv="foundationdb:/a"), made)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"node_count": 10**20}, "--nodes 100000000000000000000: 1 to"),  # it counted for ever
        ({"mgmtd_count": 0}, "--mgmtds 0: 1 to"),  # it was taken for one
        ({"meta_count": 0}, "--metas 0: 1 to"),
    ],
)
def test_numbers_that_cannot_be_are_told_at_once(tmp_path, options, says):
    asked = UpOptions(tmp_path / "c", has_mount=False, **options)
    with pytest.raises(FsError) as caught:
        prepare(asked, tmp_path, Progress())
    assert caught.value.status is Status.BAD_CONFIG
    assert says in str(caught.value)
