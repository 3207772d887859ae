"""The mount and a local file system under the same random calls.

The local one is on a disk.  In memory (tmpfs) a directory takes the time of what is removed from
it, by a clock of ticks: two removals within one tick move it once.
"""

import os
from pathlib import Path

import pytest

from tests.posix import side_by_side
from tests.posix.side_by_side import Pair, fresh

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="becomes other users, which only root may"
)


@pytest.mark.slow
def test_a_file_system_is_equal_to_itself(disk_path: Path):
    with fresh(disk_path, disk_path) as (here, there):
        Pair(here, there, seed=3).run(150)


@pytest.mark.slow
def test_a_difference_is_noticed(disk_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A chmod that loses a bit, on one of the sides."""
    sides = iter([os.chmod] * 3 + [lambda path, mode: os.chmod(path, mode & ~0o020)] * 3)
    actor = side_by_side.Actor

    def one(who, place, calls, **rest):
        return actor(who, place, calls | {"chmod": next(sides)}, **rest)

    monkeypatch.setattr(side_by_side, "Actor", one)
    with fresh(disk_path, disk_path) as (here, there), pytest.raises(AssertionError, match="local"):
        Pair(here, there, seed=3).run(400)


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_mount_is_equal_to_a_local_file_system(posix_mount: Path, disk_path: Path):
    with fresh(disk_path, posix_mount) as (here, there):
        Pair(here, there, seed=2).run(150)
