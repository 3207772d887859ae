"""What a mount daemon says of a place that it cannot mount at."""

import os

import pytest

from fs.client.fuse.mount_point import check_mount_point
from fs.schema.status import FsError, Status

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.F_OK), reason="needs /dev/fuse")


def test_what_was_written_while_nothing_was_mounted_is_named(tmp_path):
    check_mount_point(tmp_path)
    for name in "dacb":
        (tmp_path / name).touch()
    with pytest.raises(
        FsError, match=r"is not empty: a, b, c \.\.\.; .* move it elsewhere"
    ) as caught:
        check_mount_point(tmp_path)
    assert caught.value.status is Status.BAD_MOUNT_POINT
