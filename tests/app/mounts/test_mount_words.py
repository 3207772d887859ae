"""The words with which mount(8) and umount(8) call their helpers."""

import pytest

from fs.app.mounts.mount_words import (
    UmountWords,
    UsageError,
    check_settings,
    read_mount_words,
    read_umount_words,
)
from fs.schema.status import FsError

FROM_FSTAB = (
    "rw,noexec,_netdev,nofail,noauto,user,user=alice,x-systemd.automount,x-systemd.requires=a.service"
    ",X-mount.mkdir,comment=ours,defaults,uhelper=x,nousers,noowner,nogroup"
)
FROM_THE_LIST = (
    "remount,ro,nosuid,nodev,relatime,user_id=0,group_id=0,"
    "default_permissions,allow_other,max_read=1048576,seclabel"
)


def test_what_is_for_others_is_passed_over():
    words = read_mount_words(["/c:/a", "/mnt", "-o", FROM_FSTAB, "-t", "fuse.ember"])
    assert (words.source, words.mount_point, words.options) == ("/c:/a", "/mnt", ["rw", "noexec"])
    assert not words.is_remount and not words.settings


def test_a_remount_brings_back_what_the_list_of_mounts_says():
    words = read_mount_words(["-n", "-v", "emberfs:x", "/mnt", "-o", FROM_THE_LIST])
    assert words.is_remount
    assert words.options == ["ro", "nosuid", "nodev", "relatime"]


def test_what_addresses_do_not_say_is_said_by_options():
    words = read_mount_words(
        ["n:1", "/mnt", "-o", "cluster_id=c,key_file=/k", "-o", "hf3fs_tree,ro"]
    )
    assert words.settings == {"cluster_id": "c", "key_file": "/k"}
    assert words.has_hf3fs_tree and words.options == ["ro"]
    check_settings(words, has_addresses=True)
    with pytest.raises(FsError, match="cluster_id, key_file"):
        check_settings(words, has_addresses=False)


@pytest.mark.parametrize("option", ["zorro", "cluster_id=", "key_file", "ro=1", "nonempty"])
def test_what_means_nothing_is_refused_unless_sloppy(option):
    with pytest.raises(UsageError, match=option):
        read_mount_words(["/c", "/mnt", "-o", f"ro,{option}"])
    assert read_mount_words(["-s", "/c", "/mnt", "-o", f"ro,{option}"]).options == ["ro"]


@pytest.mark.parametrize(
    "words", [[], ["/c"], ["/c", "/m", "/n"], ["-q", "/c", "/m"], ["-N", "1", "/c", "/m"]]
)
def test_a_wrong_command_line_is_told(words):
    with pytest.raises(UsageError):
        read_mount_words(words)


def test_what_umount_asks_for():
    assert read_umount_words(["/mnt", "-t", "fuse.ember"]) == UmountWords(
        "/mnt", is_lazy=False, is_forced=False
    )
    assert read_umount_words(["/mnt", "-lf", "-n"]) == UmountWords(
        "/mnt", is_lazy=True, is_forced=True
    )
    with pytest.raises(UsageError, match="usage"):
        read_umount_words([])
