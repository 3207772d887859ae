"""The mount and a local file system under the same random calls."""

import os
from pathlib import Path

import pytest

from tests.posix import side_by_side
from tests.posix.side_by_side import Pair, fresh

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="becomes other users, which only root may"
)


@pytest.mark.slow
def test_a_file_system_is_equal_to_itself(tmp_path: Path):
    with fresh(tmp_path, tmp_path) as (here, there):
        Pair(here, there, seed=3).run(150)


@pytest.mark.slow
def test_a_difference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A chmod that loses a bit, on one of the sides."""
    sides = iter([os.chmod] * 3 + [lambda path, mode: os.chmod(path, mode & ~0o020)] * 3)
    actor = side_by_side.Actor

    def one(who, place, calls, **rest):
        return actor(who, place, calls | {"chmod": next(sides)}, **rest)

    monkeypatch.setattr(side_by_side, "Actor", one)
    with fresh(tmp_path, tmp_path) as (here, there), pytest.raises(AssertionError, match="local"):
        Pair(here, there, seed=3).run(400)


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_mount_is_equal_to_a_local_file_system(posix_mount: Path, tmp_path: Path):
    with fresh(tmp_path, posix_mount) as (here, there):
        Pair(here, there, seed=2).run(150)
