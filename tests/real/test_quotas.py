"""Quotas on real mounts: EDQUOT from the system call itself, the same numbers on two mounts, `df`, the commands."""

import errno
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import EMBER

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def second_mount(cluster, tmp_path_factory):
    mount = tmp_path_factory.mktemp("second")
    cluster.ember("mount", mount, "--dir", cluster.directory)
    yield mount
    subprocess.run([EMBER, "umount", mount, "--dir", cluster.directory], check=True, timeout=60)


def usage(path):
    return tuple(
        int(os.getxattr(path, f"ember.usage.{kind}")) for kind in ("bytes", "files", "directories")
    )


def refused(call, *arguments):
    with pytest.raises(OSError, match="quota") as caught:
        call(*arguments)
    assert caught.value.errno == errno.EDQUOT, caught.value


def write_until_full(path):
    """Return the bytes that went in before EDQUOT, which must come from write itself."""
    written, piece = 0, bytes(100_000)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            written += os.write(fd, piece)
    except OSError as error:
        assert error.errno == errno.EDQUOT, error  # noqa: PT017 - success is an outcome too
    finally:
        os.close(fd)
    return written


def test_a_limit_on_inodes_is_exact_over_two_mounts(cluster, second_mount, place):
    (place / "d").mkdir()
    cluster.ember("quota", "set", place / "d", "--inodes", "60", "--dir", cluster.directory)

    def make(mount, tag):
        made = 0
        for i in range(50):
            try:
                (mount / "d" / f"{tag}{i}").touch()
                made += 1
            except OSError as error:
                assert error.errno == errno.EDQUOT, error  # noqa: PT017 - success is an outcome too
        return made

    other = second_mount / place.name
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(make, m, t) for m, t in ((place, "a"), (other, "b")) * 2]
        jobs = [job.result() for job in jobs]
    assert usage(place / "d") == usage(other / "d") == (0, 60, 0)
    refused((place / "d" / "sub").mkdir)
    (place / "outside").touch()
    refused(os.rename, place / "outside", place / "d" / "outside")


@pytest.mark.xfail(
    strict=False,
    reason="open: in one of two whole runs a write after a short one was not refused",
)
def test_a_limit_on_bytes_is_met_by_write_itself(cluster, second_mount, place):
    (place / "d").mkdir()
    cluster.ember("quota", "set", place / "d", "--bytes", "8M", "--dir", cluster.directory)
    written = write_until_full(place / "d" / "big")
    assert 8 * MIB - 100_000 < written <= 8 * MIB
    assert usage(place / "d") == (written, 1, 0)
    other = second_mount / place.name / "d"
    assert (other / "big").stat().st_size == written
    refused(os.truncate, other / "big", 9 * MIB)
    os.truncate(other / "big", 1 * MIB)
    assert usage(place / "d") == (1 * MIB, 1, 0)
    found = os.statvfs(place / "d")
    free_bytes = found.f_bavail * found.f_frsize
    if cluster_shows_df(cluster):
        assert (found.f_blocks * found.f_frsize, free_bytes) == (8 * MIB, 7 * MIB)
    (other / "small").write_bytes(bytes(1000))
    with (other / "log").open("ab", buffering=0) as log:
        assert log.write(bytes(5 * MIB)) == 5 * MIB
        # Several requests, of which the last ones do not fit.
        fitting = log.write(bytes(3 * MIB))
        assert 0 < fitting <= 2 * MIB - 1000
        refused(log.write, bytes(MIB))
    assert usage(place / "d") == (6 * MIB + 1000 + fitting, 3, 0)


def cluster_shows_df(cluster) -> bool:
    """The frontend over pyfuse3 is not told which object statfs means."""
    return "pyfuse3" not in json.dumps(cluster.status())


@pytest.mark.xfail(
    strict=False,
    reason="open: in one of two whole runs the file showed its refused length after EDQUOT",
)
def test_a_limit_set_while_a_file_is_open_reaches_its_writer(cluster, place):
    (place / "d").mkdir()
    fd = os.open(place / "d" / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, bytes(MIB))
    os.fsync(fd)
    cluster.ember("quota", "set", place / "d", "--bytes", "2M", "--dir", cluster.directory)
    os.write(fd, bytes(4 * MIB))
    refused(os.fsync, fd)
    refused(os.write, fd, bytes(MIB))
    refused(os.close, fd)
    assert (place / "d" / "f").stat().st_size <= 2 * MIB


def test_the_commands(cluster, place):
    (place / "d" / "e").mkdir(parents=True)
    (place / "d" / "f").write_bytes(bytes(500))
    at = ("--dir", cluster.directory)
    cluster.ember("quota", "set", place / "d", "--bytes", "1GB", "--inodes", "10", *at)
    cluster.ember("quota", "set", place / "d", "--inodes", "20", *at)
    (shown, *_) = json.loads(cluster.ember("quota", "get", place / "d", "--json", *at))
    assert shown == {
        "path": f"/{place.name}/d",
        "byte_count": 500,
        "file_count": 1,
        "directory_count": 1,
        "bytes_max": 10**9,
        "inodes_max": 20,
    }
    assert f"/{place.name}/d" in cluster.ember("quota", "ls", *at)
    assert "953.7 MiB" in cluster.ember("quota", "get", f"/{place.name}/d", *at)
    cluster.ember("quota", "rm", place / "d", *at)
    found = json.loads(cluster.ember("quota", "ls", "--json", *at))
    assert f"/{place.name}/d" not in [entry["path"] for entry in found]
