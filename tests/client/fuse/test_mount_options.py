"""Options of any file system become the flags of the system call,
and flags become options again.
"""

import pytest

from fs.client.fuse.mount_options import (
    DEFAULT_FLAGS,
    FLAGS,
    counted_reads,
    flags_of,
    generic_options,
    options_of,
)
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ([], 2 | 4),
        (["rw"], 2 | 4),
        (["ro"], 1 | 2 | 4),
        (["ro", "rw"], 2 | 4),
        (["suid", "dev"], 0),
        (["suid", "nosuid"], 2 | 4),
        (["noexec", "sync", "dirsync"], 2 | 4 | 8 | 16 | 128),
        (["noatime", "relatime"], 2 | 4 | 1 << 21),
        (["strictatime", "noatime"], 2 | 4 | 1024),
        (["nodiratime", "nosymfollow", "lazytime"], 2 | 4 | 2048 | 256 | 1 << 25),
    ],
)
def test_options_change_the_flags_that_they_name(options, flags):
    assert flags_of(options) == flags


@pytest.mark.parametrize("name", FLAGS)
def test_flags_become_options_that_make_the_same_flags(name):
    for start in (0, DEFAULT_FLAGS, flags_of(["ro", "noexec", "noatime"])):
        flags = flags_of([name], start)
        assert flags_of(options_of(flags)) == flags


def test_an_option_that_means_nothing_is_named():
    with pytest.raises(FsError, match="zorro") as caught:
        flags_of(["ro", "zorro"])
    assert caught.value.status is Status.BAD_CONFIG


@pytest.mark.parametrize(
    ("atime", "options", "counted"),
    [
        ("relatime", [], (True, True)),
        ("relatime", ["strictatime"], (True, True)),
        ("relatime", ["noatime"], (False, False)),
        ("relatime", ["noatime", "relatime"], (True, True)),
        ("relatime", ["nodiratime"], (True, False)),
        ("relatime", ["ro"], (False, False)),
        ("noatime", [], (False, False)),
        ("noatime", ["relatime"], (False, False)),
    ],
)
def test_which_reads_count(atime, options, counted):
    section = ClientSection(atime=atime, mount_options=options)
    assert counted_reads(section) == counted
    is_off = bool(flags_of(generic_options(section)) & (1024 | 1))
    assert is_off is not counted[0]
