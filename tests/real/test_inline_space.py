"""Space and small files in the metadata store, on real mounts and with the native client:
what they may take there, quotas, `df`, checks, backups.
"""

import errno
import json
import os
import shutil
import time
from contextlib import suppress

import pytest

from .conftest import Cluster
from .test_inline import connect, inline_count

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]
KIB = 1024
LENGTH_MAX = 64 * KIB
ATTRIBUTES_S = 1.1
"""Longer than a mount keeps attributes."""


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory):
    """A small cluster that keeps small files in its metadata store; mounted twice."""
    base = tmp_path_factory.mktemp("space")
    made = Cluster(base / "data", base / "mnt")
    made.mount.mkdir()
    (base / "other").mkdir()
    try:
        made.up("--nodes", 2, "--replicas", 2, "--chains", 1)
        made.keep_small_files(LENGTH_MAX)
        made.ember("mount", "--dir", made.directory, base / "other")
        yield made
    finally:
        made.wipe()


@pytest.fixture
def other(small_cluster):
    return small_cluster.mount.parent / "other"


@pytest.fixture
def fs(small_cluster):
    with connect(small_cluster) as client:
        yield client


def fsck(cluster) -> list[dict]:
    """What `ember fsck` finds; notices are none."""
    done = cluster.tried("fsck", "--json")
    assert done.returncode in {0, 1}, done.stderr
    return [finding for finding in json.loads(done.stdout)["findings"] if not finding["is_notice"]]


def usage(path) -> tuple[int, ...]:
    return tuple(
        int(os.getxattr(path, f"ember.usage.{kind}")) for kind in ("bytes", "files", "directories")
    )


def refused(call, *arguments) -> None:
    with pytest.raises(OSError, match="quota") as caught:
        call(*arguments)
    assert caught.value.errno == errno.EDQUOT, caught.value


def test_usage_space_and_free_space(small_cluster, other, fs):
    """`st_blocks`, usage of trees and `df` say of inline files what they say of others;
    a move to a chunk changes none of it but `df`.
    """
    tree = small_cluster.mount / "tree"
    (tree / "below").mkdir(parents=True)
    lengths = [1, 511, 513, 4096, 65_536, 65_537, 100_000]
    for length in lengths:
        (tree / "below" / f"mount-{length}").write_bytes(os.urandom(length))
        fs.write_file(f"/tree/native-{length}", os.urandom(length))
    paths = [f"/tree/native-{length}" for length in lengths]
    paths += [f"/tree/below/mount-{length}" for length in lengths]
    small = [path for path in paths if fs.stat(path).file.length <= LENGTH_MAX]
    assert inline_count(fs, paths) == inline_count(fs, small) == len(small)
    expected = (2 * sum(lengths), 2 * len(lengths), 1)
    assert usage(tree) == usage(other / "tree") == expected
    for path in paths:
        for mount in (small_cluster.mount, other):
            found = (mount / path[1:]).stat()
            assert found.st_blocks == -(-found.st_size // 512), path
    space = os.statvfs(small_cluster.mount)
    assert 0 < space.f_bavail <= space.f_blocks
    # A second mount writes while the first has them open: they go to chunks.
    for path in small:
        with (small_cluster.mount / path[1:]).open("r+b"), (other / path[1:]).open("r+b") as file:
            file.write(b"x")
    assert inline_count(fs, small) == 0
    assert usage(tree) == usage(other / "tree") == expected
    assert fsck(small_cluster) == []
    time.sleep(ATTRIBUTES_S)
    for path in paths:
        found = (small_cluster.mount / path[1:]).stat()
        assert found.st_blocks == -(-found.st_size // 512), path
    shutil.rmtree(tree / "below")
    assert usage(tree) == (sum(lengths), len(lengths), 0)
    assert fsck(small_cluster) == []


def test_a_limit_on_bytes_counts_inline_files(small_cluster, other, fs):
    """What is there when the limit is set counts, and is read, rewritten and removed as ever;
    nothing grows beyond the limit.
    """
    tree = small_cluster.mount / "limited"
    tree.mkdir()
    contents = {f"/limited/{n}": os.urandom(10_000) for n in range(8)}
    assert not fs.write_files(contents)
    assert inline_count(fs, list(contents)) == 8
    small_cluster.ember("quota", "set", tree, "--bytes", "100000", "--dir", small_cluster.directory)
    assert usage(tree) == (80_000, 8, 0)
    space = os.statvfs(tree)
    assert (space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize) == (98_304, 16_384)
    # Others: growth of what is inline, a file that becomes longer than what is
    # left, and one that is moved here.
    refused(os.truncate, tree / "0", 31_000)
    fd = os.open(tree / "0", os.O_WRONLY)
    assert os.pwrite(fd, bytes(40_000), 0) == 30_000
    refused(os.pwrite, fd, b"x", 30_000)
    os.close(fd)
    assert usage(tree) == usage(other / "limited") == (100_000, 8, 0)
    fd = os.open(other / "limited" / "new", os.O_CREAT | os.O_WRONLY)
    refused(os.write, fd, b"x")
    os.close(fd)
    (small_cluster.mount / "outside").write_bytes(bytes(5000))
    assert inline_count(fs, ["/outside"]) == 1
    refused(os.rename, small_cluster.mount / "outside", tree / "outside")
    (other / "limited" / "1").unlink()
    os.truncate(tree / "2", 0)
    os.rename(small_cluster.mount / "outside", tree / "outside")
    assert usage(tree) == usage(other / "limited") == (85_000, 9, 0)
    for path in ("/limited/3", "/limited/4"):
        assert (other / path[1:]).read_bytes() == fs.read_file(path) == contents[path]
    # The native client writes to chunks below a limit, and is told as well.
    fs.write_file("/limited/native", bytes(15_000))
    with pytest.raises(Exception, match="QUOTA_EXCEEDED"):
        fs.write_file("/limited/much", bytes(20_000))
    assert inline_count(fs, ["/limited/native"]) == 0
    assert usage(tree)[0] == 100_000
    small_cluster.ember("quota", "rm", tree, "--dir", small_cluster.directory)
    (tree / "3").write_bytes(bytes(30_000))
    assert inline_count(fs, ["/limited/3"]) == 1
    assert usage(tree)[0] == 120_000
    assert fsck(small_cluster) == []


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_limit_that_an_open_file_does_not_know_of(small_cluster, fs, is_synced):
    """Bytes of a small file that nobody was promised are refused by its close, once,
    and are not there afterwards.
    """
    for attempt in range(10):
        tree = small_cluster.mount / f"unaware-{is_synced}-{attempt}"
        tree.mkdir()
        fd = os.open(tree / "f", os.O_CREAT | os.O_WRONLY)
        os.write(fd, bytes(1000))
        if is_synced:
            os.fsync(fd)
        fs.set_quota(f"/{tree.name}", bytes_max=2000, inodes_max=0)
        try:
            if os.write(fd, bytes(4000)) == 4000:
                break
        except OSError as error:  # the mount has reported in between, and learnt of it
            assert error.errno == errno.EDQUOT, error  # noqa: PT017 - success is an outcome too
        with suppress(OSError):
            os.close(fd)
    else:
        raise AssertionError("the mount always knew of the limit")
    refused(os.close, fd)
    kept = (tree / "f").stat().st_size
    assert kept <= 2000
    assert (tree / "f").read_bytes() == fs.read_file(f"/{tree.name}/f") == bytes(kept)
    assert usage(tree) == (kept, 1, 0)
    with (tree / "f").open("ab") as file:
        file.write(bytes(2000 - kept))
    assert usage(tree) == (2000, 1, 0)
    fs.set_quota(f"/{tree.name}", bytes_max=0, inodes_max=0)
    (tree / "f").write_bytes(bytes(3000))
    assert usage(tree) == (3000, 1, 0)
    assert fsck(small_cluster) == []


def test_with_so_many_bytes_there_further_ones_go_to_chunks(small_cluster, other, fs):
    """Nobody is told anything; what is emptied or removed makes room."""
    change = "admin", "config", "change", "meta", "--dir", small_cluster.directory
    (small_cluster.mount / "many").mkdir()
    total = inline_bytes(small_cluster)
    small_cluster.ember(*change, f"meta.inline_total_bytes_max={total + 200_000}")
    small_cluster.kill("control")
    contents = {f"/many/{n:02}": os.urandom(10_000) for n in range(30)}
    for path, data in contents.items():
        (small_cluster.mount / path[1:]).write_bytes(data)
    inline = [path for path in contents if fs.stat(path).file.is_inline]
    assert inline == sorted(contents)[:20]
    natives = {f"/many/native-{n}": os.urandom(9000 + n) for n in range(5)}
    assert not fs.write_files(natives)
    contents |= natives
    assert inline_count(fs, list(natives)) == 0
    assert "inline-full" in doctor_finds(small_cluster)
    for n in range(5):  # written over where they are; what was inline may go to a chunk
        path = f"/many/{n:02}"
        contents[path] = bytes([n]) * 10_000
        with (other / path[1:]).open("r+b") as file:
            file.write(contents[path])
    for path, data in contents.items():
        assert fs.read_file(path) == data, path
        assert (small_cluster.mount / path[1:]).read_bytes() == data, path
        assert (other / path[1:]).read_bytes() == data, path
    left = [path for path in inline if fs.stat(path).file.is_inline]
    for path in left[:6]:
        os.truncate(small_cluster.mount / path[1:], 0)
        assert (other / path[1:]).read_bytes() == b""
    (small_cluster.mount / "many" / "again").write_bytes(bytes(60_000))
    fs.write_file("/many/natively", bytes(5000))
    kept = inline_bytes(small_cluster)
    assert fs.stat("/many/again").file.is_inline
    assert kept <= total + 200_000
    assert fsck(small_cluster) == []
    small_cluster.ember(*change, f"meta.inline_total_bytes_max={1 << 30}")
    small_cluster.kill("control")


def inline_bytes(cluster) -> int:
    """How many bytes of inline files there are."""
    call = "admin", "rpc", "call", "Meta.StatFs", '{"caller": {}}', "--dir", cluster.directory
    return int(json.loads(cluster.ember(*call)).get("inline_bytes", 0))


def doctor_finds(cluster) -> set[str]:
    """The kinds of what `ember admin doctor` finds."""
    done = cluster.tried("admin", "doctor", "--json")
    return {finding["kind"] for finding in json.loads(done.stdout)}


def test_a_backup_has_the_bytes(small_cluster, fs, tmp_path):
    """The last test of its cluster.

    A backup brings back inline files whole, also over what was done
    since, and disks that know of it.
    """
    (small_cluster.mount / "kept").mkdir()
    contents = {f"/kept/{n}": os.urandom(n) for n in (1, 5000, LENGTH_MAX, LENGTH_MAX + 1, 300_000)}
    assert not fs.write_files(contents)
    fs.write_file("/kept/moved", b"inline in the backup")
    fs.write_file("/kept/emptied", b"inline in the backup, too")
    small_cluster.ember("backup", tmp_path / "meta.bak", "--dir", small_cluster.directory)
    with (small_cluster.mount / "kept" / "moved").open("ab") as file:
        file.write(b", and in a chunk since")
    assert not fs.stat("/kept/moved").file.is_inline
    os.truncate(small_cluster.mount / "kept" / "emptied", 0)
    fs.write_file("/kept/later", b"after the backup")
    fs.close()
    small_cluster.ember("umount", small_cluster.mount.parent / "other")
    small_cluster.down()
    shutil.rmtree(small_cluster.directory / "data" / "control" / "kv")
    small_cluster.ember("restore", tmp_path / "meta.bak", "--dir", small_cluster.directory)
    small_cluster.up()
    with connect(small_cluster) as again:
        assert not again.exists("/kept/later")
        contents["/kept/moved"] = b"inline in the backup"
        contents["/kept/emptied"] = b"inline in the backup, too"
        for path, data in contents.items():
            assert again.read_file(path) == data, path
            assert (small_cluster.mount / path[1:]).read_bytes() == data, path
        assert inline_count(again, list(contents)) == 5
        # It goes on from there; what went to the chunk meanwhile is behind no hole.
        with (small_cluster.mount / "kept" / "moved").open("r+b") as file:
            file.seek(30)
            file.write(b"again")
        assert not again.stat("/kept/moved").file.is_inline
        assert again.read_file("/kept/moved") == b"inline in the backup" + bytes(10) + b"again"
        again.write_file("/kept/moved", b"x" * (LENGTH_MAX + 1))
        assert (small_cluster.mount / "kept" / "moved").read_bytes() == b"x" * (LENGTH_MAX + 1)
        again.write_file("/kept/emptied", b"anew")
        assert (small_cluster.mount / "kept" / "emptied").read_bytes() == b"anew"
