"""The folder of a KV cache whose file system is not mounted:
nothing is written beneath, on another disk.
"""

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from emberfs.protocol import MOUNT_POINT_ATTRIBUTE

from fs.client.fuse.mount_point import mark_mount_point
from tests.client.user.kvcache_work import check, opened, put
from tests.client.user.serving import NEEDS_MOUNT, Server


def refused(folder):
    with pytest.raises(OSError, match="is not mounted at") as caught:
        opened(folder)
    assert caught.value.errno == errno.ENOTCONN
    return True


@pytest.mark.parametrize("below", ["", "kv", "models/kv"])
def test_no_cache_is_made_where_nothing_is_mounted(disk_path, below):
    place = disk_path / "mnt"
    (place / "models").mkdir(parents=True)
    mark_mount_point(place, "any")
    if MOUNT_POINT_ATTRIBUTE not in os.listxattr(place):
        pytest.skip("no attributes here")
    assert refused(place / below)
    assert [path.name for path in place.rglob("*")] == ["models"]
    os.removexattr(place, MOUNT_POINT_ATTRIBUTE)
    with opened(place / below) as cache:
        assert put(cache, [1]) == 1


def test_a_folder_that_is_missing_while_nothing_is_mounted_is_no_missing_folder(disk_path):
    place, elsewhere = disk_path / "mnt", disk_path / "mounted"
    place.mkdir()
    with opened(place / "kv") as cache:
        assert put(cache, [1]) == 1
        place.rename(elsewhere)
        place.mkdir()
        mark_mount_point(place, "any")
        if MOUNT_POINT_ATTRIBUTE not in os.listxattr(place):
            pytest.skip("no attributes here")
        with pytest.raises(OSError, match="is not mounted at") as caught:
            cache.refresh()
        assert caught.value.errno == errno.ENOTCONN
        place.rmdir()
        with pytest.raises(FileNotFoundError):
            cache.refresh()
        elsewhere.rename(place)
        assert check(cache, [1]) == [1]


def test_a_cache_whose_file_system_has_left_makes_no_segment_beneath(disk_path):
    """The link stands for a mount point: first the file system is there, then what lies beneath."""
    link, beneath = disk_path / "link", disk_path / "beneath"
    beneath.mkdir()
    if Path("/dev/shm").stat().st_dev == beneath.stat().st_dev:
        pytest.skip("one file system only")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as there:
        link.symlink_to(there)
        with opened(link) as cache:
            link.unlink()
            link.symlink_to(beneath)
            with pytest.raises(OSError, match="another file system") as caught:
                put(cache, [1])
            assert caught.value.errno == errno.ENOTCONN
            assert not list(beneath.iterdir())
            link.unlink()
            link.symlink_to(there)
            assert put(cache, [1]) == 1
            assert check(cache, [1]) == [1]


@pytest.mark.mount
@pytest.mark.skipif(*NEEDS_MOUNT[1].args, **NEEDS_MOUNT[1].kwargs)
def test_a_mount_leaves_word_beneath_it(disk_path):
    place = disk_path / "mnt"
    server = Server(place)
    try:
        with suppress(OSError):  # to be seen beneath only
            assert MOUNT_POINT_ATTRIBUTE not in os.listxattr(place)
        with opened(place / "kv") as cache:
            assert put(cache, [1]) == 1
        server.stop()
    finally:
        server.close()
    if MOUNT_POINT_ATTRIBUTE not in os.listxattr(place):
        pytest.skip("no attributes here")
    assert refused(place / "kv")
    assert not list(place.iterdir())
