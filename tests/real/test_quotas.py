"""Quotas on real mounts: EDQUOT from the system call itself, the same numbers on two mounts,
`df`, the commands.
"""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def second_mount(cluster, tmp_path_factory):
    mount = tmp_path_factory.mktemp("second")
    cluster.ember("mount", mount, "--dir", cluster.directory)
    yield mount
    cluster.ember("umount", mount, "--dir", cluster.directory)


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


def test_a_limit_on_bytes_is_met_by_write_itself(cluster, second_mount, place):
    (place / "d").mkdir()
    cluster.ember("quota", "set", place / "d", "--bytes", "8M", "--dir", cluster.directory)
    assert write_until_full(place / "d" / "big") == 8 * MIB
    assert usage(place / "d") == (8 * MIB, 1, 0)
    other = second_mount / place.name / "d"
    assert (other / "big").stat().st_size == 8 * MIB
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
        # The kernel makes several requests of it, cut at pages of the buffer,
        # which may begin anywhere in one.
        assert log.write(bytes(3 * MIB)) == 2 * MIB - 1000
        refused(log.write, bytes(MIB))
    assert usage(place / "d") == (8 * MIB, 3, 0)


def cluster_shows_df(cluster) -> bool:
    """The frontend over pyfuse3 is not told which object statfs means."""
    return "pyfuse3" not in json.dumps(cluster.status())


def write_unaware(cluster, place):
    """Write 1 MiB, set a limit of 2 MiB, write 4 MiB more; return (descriptor, path).

    The mount reports every few seconds: when that falls into the second write, it learns of the
    limit in time and the write itself is refused.  Then once more.
    """
    for i in range(10):
        directory = place / f"d{i}"
        directory.mkdir()
        fd = os.open(directory / "f", os.O_CREAT | os.O_WRONLY)
        os.write(fd, bytes(MIB))
        os.fsync(fd)
        cluster.ember("quota", "set", directory, "--bytes", "2M", "--dir", cluster.directory)
        try:
            if os.write(fd, bytes(4 * MIB)) == 4 * MIB:
                return fd, directory / "f"
        except OSError as error:
            assert error.errno == errno.EDQUOT, error  # noqa: PT017 - success is an outcome too
        with suppress(OSError):
            os.close(fd)
    raise AssertionError("the mount always knew of the limit")


def test_a_limit_set_while_a_file_is_open_reaches_its_writer(cluster, place):
    fd, path = write_unaware(cluster, place)
    refused(os.fsync, fd)
    assert os.fstat(fd).st_size <= 2 * MIB
    refused(os.write, fd, bytes(MIB))
    assert os.pwrite(fd, bytes(3 * MIB), MIB) == MIB
    os.fsync(fd)
    os.close(fd)
    assert path.stat().st_size == 2 * MIB == usage(path.parent)[0]


def test_what_close_refuses_is_not_there_after_it(cluster, place):
    fd, path = write_unaware(cluster, place)
    path.stat()  # so the kernel knows of bytes that it must forget
    refused(os.close, fd)
    kept = path.stat().st_size
    assert MIB <= kept <= 2 * MIB
    assert path.read_bytes() == bytes(kept)
    assert usage(path.parent) == (kept, 1, 0)


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
        "damage": "",
    }
    assert f"/{place.name}/d" in cluster.ember("quota", "ls", *at)
    assert "953.7 MiB" in cluster.ember("quota", "get", f"/{place.name}/d", *at)
    with pytest.raises(AssertionError, match=rf"no such object \({place / 'no'}\)"):
        cluster.ember("quota", "get", place / "no", *at)
    with pytest.raises(AssertionError, match=rf"no such object \({place / 'no'}\)"):
        cluster.ember("warmup", place / "no", *at)
    cluster.ember("quota", "rm", place / "d", *at)
    found = json.loads(cluster.ember("quota", "ls", "--json", *at))
    assert f"/{place.name}/d" not in [entry["path"] for entry in found]
