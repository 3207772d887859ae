"""SOURCE of mount(8) names a cluster, and maybe a directory of it."""

import pytest

from fs.app.mounts.mount_source import MountSource, parse_source, tidy_subdir
from fs.schema.status import FsError, Status

TWO = ("tcp:10.0.0.1:7001", "tcp:[::1]:7001")


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("/var/lib/emberfs", MountSource("/var/lib/emberfs")),
        ("/var/lib/emberfs:/", MountSource("/var/lib/emberfs")),
        ("/var/lib/emberfs:/a/b/", MountSource("/var/lib/emberfs", subdir="/a/b")),
        ("/etc/emberfs/mountd.toml:/a", MountSource("/etc/emberfs/mountd.toml", subdir="/a")),
        ("/with:colon", MountSource("/with:colon")),
        ("node1:7001", MountSource(addresses=("tcp:node1:7001",))),
        ("10.0.0.1:7001,[::1]:7001", MountSource(addresses=TWO)),
        ("10.0.0.1:7001,[::1]:7001:/a b", MountSource(addresses=TWO, subdir="/a b")),
    ],
)
def test_what_a_source_means(source, meant):
    assert parse_source(source) == meant


@pytest.mark.parametrize(
    "source", ["", "ember", "none", ":/a", "node1", "node1:/a", "node1:7001,", "a b:1", "x:y"]
)
def test_what_names_no_cluster_is_refused(source):
    with pytest.raises(FsError, match="HOST:PORT") as caught:
        parse_source(source)
    assert caught.value.status is Status.INVALID_ARGUMENT


def test_a_directory_of_the_file_system_begins_with_a_slash():
    assert [tidy_subdir(path) for path in ("", "/", "//", "/a//b/../c/")] == ["", "", "", "/a/c"]
    with pytest.raises(FsError, match="begins with /"):
        tidy_subdir("a")
