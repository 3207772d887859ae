"""A mount in the place of one whose daemon has died:
at no moment is the directory beneath to be seen.
"""

import ctypes
import errno
import os

import pytest

from fs.client.fuse import mount_point
from fs.client.fuse.direct import device, replacing
from fs.runtime.mount_table import mount_at, read_mounts, real_place

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts by the system call"),
]
MNT_DETACH = 2
OPTIONS = ["default_permissions", "allow_other", "max_read=1048576"]


@pytest.fixture
def dead(tmp_path):
    """The place of a mount whose daemon has died."""
    os.close(device.mount_device(tmp_path, OPTIONS, "old"))
    yield tmp_path
    libc = ctypes.CDLL(None)
    while mount_at(tmp_path) is not None:
        assert libc.umount2(os.fsencode(tmp_path), MNT_DETACH) == 0


def sources(place):
    real = str(real_place(place))
    return [mounted.source for mounted in read_mounts() if mounted.place == real]


def test_the_new_mount_is_there_before_the_dead_one_goes(dead, monkeypatch):
    seen = []

    def detach(place):
        seen.append(sorted(sources(place)))
        with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
            os.listdir(place)
        return mount_point.detach(place)

    monkeypatch.setattr(replacing, "detach", detach)
    fd = device.replace_mount(dead, OPTIONS, "new, one", ["ro", "noatime"])
    if fd is None:  # Linux before 6.5
        assert sources(dead) == ["old"] and not seen
        return
    try:
        assert seen == [["new, one", "old"]] and sources(dead) == ["new, one"]
        found = mount_at(dead)
        assert found.kind == "fuse.ember"
        assert {"ro", "nosuid", "nodev", "noatime", *OPTIONS} <= set(found.options)
    finally:
        os.close(fd)


def test_where_the_kernel_refuses_all_is_as_it_was(dead, monkeypatch):
    monkeypatch.setattr(replacing, "_MOVE_MOUNT", 1 << 20)  # ENOSYS
    before = len(os.listdir("/proc/self/fd"))
    assert device.replace_mount(dead, OPTIONS, "new") is None
    assert sources(dead) == ["old"] and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "options", [[], ["ro", "sync", "dirsync", "lazytime"], ["suid", "noexec", "nodiratime"]]
)
def test_options_are_those_of_an_ordinary_mount(dead, tmp_path_factory, options):
    fd = device.replace_mount(dead, OPTIONS, "new", options)
    if fd is None:
        assert sources(dead) == ["old"]
        return
    os.close(fd)
    beside = tmp_path_factory.mktemp("beside")
    os.close(device.mount_device(beside, OPTIONS, "new", options))
    try:
        assert mount_at(dead).options == mount_at(beside).options
    finally:
        mount_point.detach(beside)


def test_a_dead_mount_is_told_from_others(dead, tmp_path_factory):
    assert mount_point.is_dead_mount(dead)
    assert not mount_point.is_dead_mount(tmp_path_factory.mktemp("bare"))
    assert mount_point.detach(dead) == ""
    assert not mount_point.is_dead_mount(dead)
    assert mount_point.detach(dead) == os.strerror(errno.EINVAL)
