"""`ember rm`, `ember trash` and `ember dirlock` on a real mount,
and the same through mv and setfattr.
"""

import errno
import json
import os
import shutil

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]


def listed(cluster, place):
    """Return what of this place is in the trash, by its old name."""
    found = json.loads(cluster.ember("trash", "ls", "--json", "--dir", cluster.directory))
    inside = f"/{place.name}/"
    return {e["path"].removeprefix(inside): e for e in found if e["path"].startswith(inside)}


def test_what_was_removed_comes_back(cluster, place):
    (place / "tree" / "below").mkdir(parents=True)
    (place / "tree" / "below" / "f").write_bytes(b"content")
    (place / "g").write_bytes(b"g")
    end = ("--dir", cluster.directory)
    with pytest.raises(AssertionError, match="say -r"):
        cluster.ember("rm", place / "tree", *end)
    with pytest.raises(AssertionError, match=rf"no such object \({place / 'missing'}\)"):
        cluster.ember("rm", place / "missing", *end)
    cluster.ember("rm", "-r", "--expire", "7d", place / "tree", place / "g", *end)
    assert list(place.iterdir()) == []
    found = listed(cluster, place)
    assert set(found) == {"tree", "g"}
    assert found["tree"]["due_ns"] - found["tree"]["removed_ns"] == 7 * 86_400 * 10**9
    cluster.ember("trash", "restore", found["tree"]["name"], *end)
    assert (place / "tree" / "below" / "f").read_bytes() == b"content"
    # By hand, too.
    os.rename(cluster.mount / ".trash" / "0" / found["g"]["name"], place / "again")
    assert (place / "again").read_bytes() == b"g"
    os.rename(place / "again", cluster.mount / ".trash" / "0" / f"again-{place.name}")
    (last,) = listed(cluster, place).values()
    cluster.ember("trash", "empty", "--yes", last["name"], *end)
    assert listed(cluster, place) == {}


def test_a_lock_stops_another_mount(cluster, place, tmp_path):
    (place / "d").mkdir()
    cluster.ember("dirlock", "lock", place / "d")
    second = tmp_path / "second"
    second.mkdir()
    cluster.ember("mount", second, "--dir", cluster.directory)
    try:
        other = second / place.name / "d"
        with pytest.raises(OSError, match="locks") as told:
            (other / "f").touch()
        assert told.value.errno == errno.ENOLCK
        (place / "d" / "f").touch()
        os.setxattr(other, "ember.lock", b"preempt")
        (other / "g").touch()
        with pytest.raises(OSError, match="locks"):
            (place / "d" / "h").touch()
    finally:
        cluster.ember("umount", second, "--dir", cluster.directory)
    # Its lock stays until it counts as dead; its owner need not wait for that.
    cluster.ember("dirlock", "unlock", "--clear", place / "d")
    (place / "d" / "h").touch()


def test_a_name_with_a_dot_is_not_the_one_without(cluster):
    """It removed the other one."""
    for name in ("cache", ".cache"):
        (cluster.mount / name).mkdir()
        (cluster.mount / name / "f").write_text(name)
    cluster.ember("rm", "-r", cluster.mount / ".cache")  # whose cluster that is the mount says
    assert ".cache" not in os.listdir(cluster.mount)  # the kernel may hold the name for a second
    assert (cluster.mount / "cache" / "f").read_text() == "cache"
    removed = json.loads(cluster.ember("trash", "ls", "--json", "--dir", cluster.directory))
    name = next(one["name"] for one in removed if one["path"] == "/.cache")
    cluster.ember("trash", "restore", name, "--dir", cluster.directory)
    assert (cluster.mount / ".cache" / "f").read_text() == ".cache"
    for name in ("cache", ".cache"):
        shutil.rmtree(cluster.mount / name)
