"""A path that a command is given means what stands there, on the cluster that is mounted there."""

import os

import pytest

from fs.app.machine.cluster_dir import ClusterDir, ClusterRecord, save_record
from fs.app.mounts import paths_on_mounts
from fs.app.mounts.mount_point import mounted_sources
from fs.app.mounts.paths_on_mounts import mount_of, on_mount, path_inside
from fs.app.reach import meant_cluster, which_cluster
from fs.app.reach.meant_cluster import meant_directory
from fs.app.reach.which_cluster import directory_of_cluster
from fs.runtime import mount_table
from fs.schema.config import ProcessConfig, ProcessSection
from fs.schema.status import FsError, Status


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Two directories that stand for mounts of two clusters."""
    found = {}
    for name in ("one", "two"):
        (tmp_path / name / "d").mkdir(parents=True)
        found[str(tmp_path / name)] = f"emberfs:ember-{name}"
    monkeypatch.setattr(paths_on_mounts, "mounted_sources", lambda: found)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        ("one", "/"),
        ("one/", "/"),
        ("one/.", "/"),
        ("one/d/..", "/"),
        ("one/d", "/d"),
        ("one/d/", "/d"),
        ("one/none/x", "/none/x"),
        ("one/.cache", "/.cache"),
        ("one/.cache/x", "/.cache/x"),
        ("one/..d", "/..d"),
        ("one/...", "/..."),
        ("one/d/../.d", "/.d"),
    ],
)
def test_what_the_file_system_calls_it(mounts, given, inside, monkeypatch):
    """`.cache` was taken for `cache`, and `ember rm` removed that."""
    assert path_inside(f"{mounts}/{given}") == inside
    assert on_mount(f"{mounts}/{given}").cluster_id == "ember-one"
    monkeypatch.chdir(mounts)
    assert path_inside(given) == inside


def test_a_mount_of_a_directory_shows_what_lies_below_it(mounts, monkeypatch):
    """By the path that it has now: `ember rm` removed what had come to stand at the one before."""
    found = {str(mounts / "one"): "emberfs:ember-one:/team/a", str(mounts / "two"): "mine"}
    told = {str(mounts / "one"): b"ember-one:/team/moved", str(mounts / "two"): b"ember-two:/b"}
    monkeypatch.setattr(paths_on_mounts, "mounted_sources", lambda: found)
    monkeypatch.setattr(os, "getxattr", lambda place, _: told[place])
    assert on_mount(f"{mounts}/one/d")[1:] == ("ember-one", "/team/moved/d")
    assert path_inside(f"{mounts}/one") == "/team/moved"
    assert on_mount(f"{mounts}/two/d")[1:] == ("ember-two", "/b/d")


@pytest.mark.parametrize("path", ["/data", "/.cache/x", "/none/.x"])
@pytest.mark.usefixtures("mounts")
def test_what_is_on_no_mount_is_a_path_of_the_file_system(path):
    assert path_inside(path) == path
    assert mount_of([path]) is None


def test_links(mounts):
    """Absolute ones mean something to this machine only;
    the last one is meant itself, unless it is to be followed.
    """
    (mounts / "outer").symlink_to(mounts / "one" / "d")
    (mounts / "one" / "up").symlink_to(mounts / "one" / "d")
    (mounts / "one" / "other").symlink_to(mounts / "two" / "d")
    (mounts / "one" / "off").symlink_to("/etc")
    assert path_inside(f"{mounts}/outer/f") == "/d/f"
    assert path_inside(f"{mounts}/one/up/f") == "/d/f"
    assert path_inside(f"{mounts}/one/up") == "/up"
    assert path_inside(f"{mounts}/one/up", follow=True) == "/d"
    assert path_inside(f"{mounts}/outer", follow=True) == "/d"
    assert mount_of([f"{mounts}/outer"], follow=True).cluster_id == "ember-one"
    assert on_mount(f"{mounts}/one/other/f").cluster_id == "ember-two"
    assert path_inside(f"{mounts}/one/off") == "/off"
    for given, follow in ((f"{mounts}/one/off", True), (f"{mounts}/one/off/x", False)):
        with pytest.raises(FsError, match=r"leads to /etc.*, which is on no mount") as caught:
            path_inside(given, follow=follow)
        assert caught.value.status is Status.NOT_FOUND


def test_paths_of_two_clusters_are_refused(mounts):
    both = [f"{mounts}/one/d", "/d", f"{mounts}/two/d"]
    assert mount_of(both[:2]).inside == "/d"
    with pytest.raises(FsError, match="two clusters") as caught:
        mount_of(both)
    assert caught.value.status is Status.INVALID_ARGUMENT


def recorded(path, cluster_id):
    path.mkdir()
    save_record(ClusterDir(path), ClusterRecord(cluster_id, 3, 3, 6, ""))
    return ClusterDir(path)


def test_the_cluster_is_the_one_that_is_mounted_there(mounts, monkeypatch):
    """However many run here; one that is named must be that one,
    or its files of the same names would be meant.
    """
    one, two = (recorded(mounts / f"c-{name}", f"ember-{name}") for name in ("one", "two"))
    monkeypatch.setattr(which_cluster, "default_directory", lambda: one.path)
    monkeypatch.setattr(which_cluster, "cluster_directories", lambda: [one.path, two.path])
    monkeypatch.setattr(which_cluster.supervisor_link, "is_answering", lambda _: True)
    on_two = on_mount(f"{mounts}/two/d")
    assert meant_directory(None, on_two) == two
    assert meant_directory(two.path, on_two) == two
    assert meant_directory(None, None) == one
    with pytest.raises(FsError, match="mount of ember-two, and the command is for ember-one"):
        meant_directory(one.path, on_two)
    monkeypatch.setattr(which_cluster.supervisor_link, "is_answering", lambda _: False)
    assert directory_of_cluster("ember-two") is None


def test_a_cluster_of_other_machines_is_reached_as_its_mount_daemon_does(mounts, monkeypatch):
    monkeypatch.setattr(meant_cluster, "mount_daemon_at", lambda _: None)
    with pytest.raises(FsError, match="no process runs here that you may ask"):
        meant_cluster.connected(None, [f"{mounts}/one/d"])
    process = ProcessSection(cluster_id="ember-one", mgmtd_addresses=("tcp:far:1", "tcp:far:2"))
    config = ProcessConfig(process=process)
    seen = []
    monkeypatch.setattr(meant_cluster, "mount_daemon_at", lambda place: (place, config))
    monkeypatch.setattr(
        meant_cluster, "connect_blocking", lambda *given, **more: seen.append((given, more))
    )
    monkeypatch.delenv("EMBERFS_TOKEN_FILE", raising=False)
    meant_cluster.connected(None, [f"{mounts}/one/d"])
    monkeypatch.setenv("EMBERFS_TOKEN_FILE", "/mine")
    meant_cluster.connected(None, [f"{mounts}/one/d"])
    there = (("tcp:far:1", "tcp:far:2"), "ember-one")
    assert seen == [(there, {"token": None, "key_file": ""}), (there, {})]


def test_the_table_of_mounts_says_the_cluster(tmp_path, monkeypatch):
    table = tmp_path / "mounts"
    table.write_text(
        "proc /proc proc rw 0 0\n"
        "emberfs:ember-1 /mnt/a\\040b fuse.ember rw 0 0\n"
        "emberfs:ember-1 /mnt/c fuse.ember rw 0 0\n"
        "emberfs:ember-2 /mnt/c fuse.ember rw 0 0\n"
        "/dev/vda / ext4 rw 0 0\n"
    )
    monkeypatch.setattr(mount_table, "TABLE", table)
    assert mounted_sources() == {"/mnt/a b": "emberfs:ember-1", "/mnt/c": "emberfs:ember-2"}
