"""Files and folders that appear complete or not at all, and what is kept of a run."""

from pathlib import Path

import pytest
from emberfs.publish import CheckpointFolder, make_partial_folder, publish_folder, replaced


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replaced(path) as partial:  # noqa: PT012 - at the end
        Path(partial).write_bytes(b"half")
        assert path.read_bytes() == b"old"
        _ = 1 / 0
    assert (names(tmp_path), path.read_bytes()) == (["f"], b"old")
    with replaced(path) as partial:
        Path(partial).write_bytes(b"new")
    assert (names(tmp_path), path.read_bytes()) == (["f"], b"new")


def test_a_folder_is_published_and_what_was_cut_off_is_removed(tmp_path):
    target = tmp_path / "run" / "one"
    left = Path(make_partial_folder(target))
    (left / "half").write_bytes(b"x")
    partial = Path(make_partial_folder(target))
    assert not left.exists()
    (partial / "f").write_bytes(b"1")
    publish_folder(str(partial), target, overwrite=False)
    assert (names(target.parent), names(target)) == (["one"], ["f"])
    again = Path(make_partial_folder(target))
    (again / "g").write_bytes(b"2")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        publish_folder(str(again), target, overwrite=False)
    publish_folder(str(again), target, overwrite=True)
    assert (names(target.parent), names(target)) == (["one"], ["g"])


def test_the_newest_checkpoints_are_kept(tmp_path):
    run = CheckpointFolder(tmp_path / "run", keep=2)
    assert (run.steps(), run.latest(), run.prune()) == ([], None, [])
    for step in (5, 10, 15, 20):
        run.path(step).mkdir(parents=True)
        (run.path(step) / "f").write_bytes(b"x")
    for name in (
        "step-000000012.partial-1",
        "step-000000007.removed-2",
        "step-000000025.partial-3",
    ):
        (run.base / name).mkdir()
    (run.base / "notes").mkdir()
    assert run.latest() == 20
    assert run.prune() == [5, 10]
    assert run.steps() == [15, 20]
    assert names(run.base) == [
        "notes", "step-000000015", "step-000000020", "step-000000025.partial-3",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointFolder(tmp_path, keep=0)
