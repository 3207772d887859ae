"""Times of access on real mounts of one cluster:
between mounts, of very many files, and where nothing may be written.
"""

import os
import time
from pathlib import Path

import pytest

from fs.client.noted_reads import PAUSE_S

from .conftest import scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]
SOON_S = PAUSE_S + 1.5
"""By then every mount sees what one has read, where no more than a call of reads waits."""


@pytest.fixture(scope="module")
def second_mount(cluster, tmp_path_factory):
    mount = tmp_path_factory.mktemp("second")
    cluster.ember("mount", mount, "--dir", cluster.directory)
    yield mount
    cluster.ember("umount", mount, "--dir", cluster.directory)


def seen(path):
    return os.lstat(path).st_atime_ns


def soon(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_whole_cluster_without(lone_cluster):
    """As specs/operating.md says: a setting for all mounts."""
    where = "--dir", lone_cluster.directory
    (lone_cluster.mount / "f").write_text("x")
    lone_cluster.ember("admin", "config", "change", "mount", 'client.atime="noatime"', *where)
    lone_cluster.kill("mount-1")
    soon(lambda: os.statvfs(lone_cluster.mount).f_flag & os.ST_NOATIME)
    before = seen(lone_cluster.mount / "f")
    (lone_cluster.mount / "f").read_text()
    time.sleep(SOON_S)
    assert seen(lone_cluster.mount / "f") == before


def test_what_one_mount_reads_the_other_sees(second_mount, place):
    other = second_mount / place.name
    (place / "f").write_bytes(b"x" * 100_000)
    (place / "d").mkdir()
    (place / "l").symlink_to("d")
    before = {name: os.lstat(place / name) for name in ("f", "d", "l")}
    (other / "f").read_bytes()
    os.listdir(other / "d")
    assert (other / "l").readlink() == Path("d")
    shown = {name: seen(other / name) for name in before}
    assert all(shown[name] > before[name].st_atime_ns for name in before)
    soon(lambda: all(seen(place / name) == shown[name] for name in before))
    for name, status in before.items():
        after = os.lstat(other / name)
        assert (after.st_mtime_ns, after.st_ctime_ns) == (status.st_mtime_ns, status.st_ctime_ns)
        assert after.st_atime_ns == shown[name]


def test_a_time_that_another_mount_sets_stays(second_mount, place):
    (place / "f").write_text("x")
    (second_mount / place.name / "f").read_text()
    os.utime(place / "f", ns=(5, 5))
    time.sleep(SOON_S)
    assert seen(place / "f") == 5 == seen(second_mount / place.name / "f")


def test_many_small_files(second_mount, place):
    count = scaled(1200, 10_000)
    for number in range(count):
        (place / f"{number}").write_bytes(b"sample")
    other = second_mount / place.name
    for number in range(count):
        assert (other / f"{number}").read_bytes() == b"sample"
    shown = {entry.name: entry.stat().st_atime_ns for entry in os.scandir(other)}
    time.sleep(1)
    soon(lambda: {e.name: e.stat().st_atime_ns for e in os.scandir(place)} == shown)
    assert all(e.stat().st_atime_ns > e.stat().st_mtime_ns for e in os.scandir(place))


def test_what_waits_is_told_when_a_mount_ends(cluster, place, tmp_path):
    (place / "f").write_text("x")
    before = seen(place / "f")
    cluster.ember("mount", tmp_path, "--dir", cluster.directory)
    (tmp_path / place.name / "f").read_text()
    cluster.ember("umount", tmp_path, "--dir", cluster.directory)
    soon(lambda: seen(place / "f") > before)


def test_below_a_quota_that_is_used_up(cluster, place):
    (place / "d").mkdir()
    (place / "d" / "f").write_bytes(bytes(100_000))
    where = "--dir", cluster.directory
    cluster.ember("quota", "set", place / "d", "--bytes", "1000", "--inodes", "1", *where)
    before = seen(place / "d" / "f")
    (place / "d" / "f").read_bytes()
    time.sleep(SOON_S)
    assert seen(place / "d" / "f") > before
