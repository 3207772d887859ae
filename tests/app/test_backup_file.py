"""Where a backup goes: whole or not at all, whoever else writes there."""

import pytest

from fs.app.backup import _target
from fs.schema.status import FsError, Status


def test_two_at_a_time_into_one_file_are_whole_each(tmp_path):
    path = tmp_path / "meta.bak"
    with _target(str(path)) as first:
        first.write(b"first")
        with _target(str(path)) as second:
            second.write(b"second, longer")
        assert path.read_bytes() == b"second, longer"
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def fill(out):
    out.write(b"half")
    raise OSError(28, "No space left on device")


def test_what_was_not_finished_leaves_the_former_one(tmp_path):
    path = tmp_path / "meta.bak"
    path.write_bytes(b"former")
    with pytest.raises(FsError) as caught, _target(str(path)) as out:
        fill(out)
    assert caught.value.status is Status.IO_ERROR
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]
