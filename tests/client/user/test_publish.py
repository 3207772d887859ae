"""Files and folders that appear complete or not at all, and what is kept of a run."""

import errno
import os
from functools import partial
from pathlib import Path

import pytest
from emberfs import publish
from emberfs.ffrecord import RecordWriter
from emberfs.protocol import MOUNT_POINT_ATTRIBUTE
from emberfs.publish import CheckpointFolder, make_partial_folder, publish_folder, replaced

from fs.client.fuse.mount_point import mark_mount_point


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


def test_a_file_that_is_replaced_is_read_by_those_who_could_read_it(tmp_path):
    path = tmp_path / "f"
    for mode in (0o600, 0o640, 0o755):
        path.touch()
        path.chmod(mode)
        with replaced(path) as partial:
            Path(partial).write_bytes(b"new")
        assert path.stat().st_mode & 0o7777 == mode
    (tmp_path / "link").symlink_to("f")
    with replaced(tmp_path / "link") as partial:
        Path(partial).write_bytes(b"beside")
        mode = Path(partial).stat().st_mode
    assert (tmp_path / "link").lstat().st_mode == mode
    assert path.read_bytes() == b"new"


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


def test_what_cannot_be_removed_does_not_hide_why_it_failed(tmp_path, monkeypatch):
    """On a file system that has become read-only both fail; the caller knows `path` only."""
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS), "what unlink was given")

    def unlink(*_, **__):
        raise refused

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(OSError, match="No space") as failed, replaced(tmp_path / "f") as partial:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), partial)
    assert failed.value.filename == f"{tmp_path}/f"


def test_a_step_is_a_number_that_has_a_name(tmp_path):
    run = CheckpointFolder(tmp_path / "run")
    with pytest.raises(TypeError, match=r"not None .latest.. is None before the first checkpoint"):
        run.path(run.latest())
    with pytest.raises(TypeError, match=r"not 1\.5"):
        run.path(1.5)
    with pytest.raises(ValueError, match="step -1 must be at least 0"):
        run.path(-1)
    assert run.path(7).name == "step-000000007"
    assert repr(run) == f"CheckpointFolder('{tmp_path}/run', keep=3)"


def test_checkpoints_do_not_lie_at_a_url():
    with pytest.raises(ValueError, match="ember:///run: is written under a path of a mount"):
        CheckpointFolder("ember:///run")


def test_nothing_is_published_where_no_file_system_is_mounted(disk_path):
    """A job that begins before the mount is there neither fills another disk nor begins
    anew at step 0.
    """
    place = disk_path / "mnt"
    (place / "run").mkdir(parents=True)
    mark_mount_point(place, "any")
    if MOUNT_POINT_ATTRIBUTE not in os.listxattr(place):
        pytest.skip("no attributes here")
    run = CheckpointFolder(place / "run")
    refused = partial(pytest.raises, OSError, match="is not mounted at")
    with refused() as failed:
        run.latest()
    assert failed.value.errno == errno.ENOTCONN
    with refused():
        CheckpointFolder(place / "other").steps()
    with refused():
        make_partial_folder(run.path(1))
    with refused(), replaced(place / "file"):
        raise AssertionError("the block is not to be run")
    with refused():
        RecordWriter(place / "data.ffr", 0)
    assert [path.name for path in place.rglob("*")] == ["run"]
    os.removexattr(place, MOUNT_POINT_ATTRIBUTE)
    assert run.latest() is None


def test_a_run_that_cannot_be_looked_at_is_not_one_without_checkpoints(tmp_path):
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        CheckpointFolder(tmp_path / "run").latest()


def test_a_saver_that_was_taken_for_dead_does_not_publish_what_is_left_of_its_folder(
    tmp_path, monkeypatch
):
    target = tmp_path / "one"
    first = make_partial_folder(target)
    Path(first, "rank-0").write_bytes(b"1")
    plain_rmtree = publish.shutil.rmtree

    def rmtree(path):
        """The first saver goes on just now."""
        with pytest.raises(FileNotFoundError):
            Path(first, ".metadata").write_bytes(b"m")
        with pytest.raises(FileNotFoundError):
            publish_folder(first, target, overwrite=False)
        plain_rmtree(path)

    monkeypatch.setattr(publish.shutil, "rmtree", rmtree)
    second = make_partial_folder(target)
    Path(second, "rank-0").write_bytes(b"2")
    publish_folder(second, target, overwrite=False)
    assert (names(tmp_path), (target / "rank-0").read_bytes()) == (["one"], b"2")


def test_what_another_has_removed_meanwhile_is_not_missed(tmp_path, monkeypatch):
    left = Path(make_partial_folder(tmp_path / "one"))
    monkeypatch.setattr(publish, "_names", lambda _: [left.name, left.name])
    make_partial_folder(tmp_path / "one")
    assert not left.exists()


def test_names_with_wildcards_are_names(tmp_path):
    other = Path(make_partial_folder(tmp_path / "step-1"))
    for name in ("step-[1]", "step-*", os.fsdecode(b"step-\xff")):
        left = Path(make_partial_folder(tmp_path / name))
        again = Path(make_partial_folder(tmp_path / name))
        assert not left.exists()
        publish_folder(str(again), tmp_path / name, overwrite=False)
    assert other.exists()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_name_never_lacks_a_whole_folder_while_it_is_replaced(
    tmp_path, monkeypatch, can_exchange
):
    """Killed at any system call that changes a name:
    old or new, but where names cannot be exchanged.
    """
    target = tmp_path / "one"
    for text in ("old", "new"):
        partial = Path(make_partial_folder(target))
        (partial / "f").write_text(text)
        if text == "old":
            publish_folder(str(partial), target, overwrite=False)
    seen = []

    def looking(function):
        def call(*arguments):
            seen.append((target / "f").read_text() if target.exists() else "none")
            done = function(*arguments)
            seen.append((target / "f").read_text() if target.exists() else "none")
            return done

        return call

    exchange = publish._exchange if can_exchange else lambda *_: False
    monkeypatch.setattr(publish, "_exchange", looking(exchange))
    monkeypatch.setattr(Path, "rename", looking(Path.rename))
    publish_folder(str(partial), target, overwrite=True)
    assert (seen[0], seen[-1]) == ("old", "new")
    assert ("none" in seen) is not can_exchange
    assert (names(tmp_path), names(target)) == (["one"], ["f"])


def test_only_a_folder_is_replaced_and_a_url_is_no_path(tmp_path):
    (tmp_path / "one").write_bytes(b"a file")
    partial = make_partial_folder(tmp_path / "one")
    with pytest.raises(FileExistsError, match="no folder"):
        publish_folder(partial, tmp_path / "one", overwrite=True)
    for call in (make_partial_folder, lambda url: replaced(url).__enter__()):
        with pytest.raises(ValueError, match="not by its URL"):
            call("ember:///run/one")


def test_names_that_are_no_step_are_left_alone(tmp_path):
    run = CheckpointFolder(tmp_path, keep=1)
    run.path(5).mkdir()
    run.path(6).mkdir()
    for name in ("step-0000000007", "step-00000000\u0668", "step-8", "step-000000009x"):
        (tmp_path / name).mkdir()
    run.path(10).write_bytes(b"a file")
    assert (run.steps(), run.prune(), run.latest()) == ([5, 6], [5], 6)
    assert len(names(tmp_path)) == 6
