"""`ember down --wipe` that is interrupted is told of, and gone on with."""

import shutil
from pathlib import Path

import pytest

from fs.app.local import bring_down as module
from fs.app.local.bring_down import bring_down
from fs.app.local.bring_up import UpOptions, prepare
from fs.app.machine.cluster_dir import ClusterDir, ClusterRecord, need_record, save_record
from fs.app.terminal.progress import Progress
from fs.schema.status import FsError, Status


@pytest.fixture
def directory(tmp_path):
    made = ClusterDir(tmp_path / "cluster")
    made.make_folders()
    save_record(made, ClusterRecord("c", 3, 3, 6, ""))
    (made.data_path("storage-1") / "disk-0").mkdir(parents=True)
    (made.path / "link").symlink_to(tmp_path)
    return made


def test_an_interrupted_removal_is_gone_on_with(directory, monkeypatch):
    remove, removed = shutil.rmtree, []

    def interrupted(path: Path) -> None:
        if len(removed) == 2:
            raise KeyboardInterrupt
        removed.append(path)
        remove(path)

    monkeypatch.setattr(module.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bring_down(directory, wipe=True)
    monkeypatch.setattr(module.shutil, "rmtree", remove)
    assert directory.path.exists()
    for refused in (
        lambda: need_record(directory),
        lambda: bring_down(directory, wipe=False),
        lambda: prepare(
            UpOptions(directory.path, has_mount=False), directory.path.parent, Progress()
        ),
    ):
        with pytest.raises(FsError, match="ember down --wipe") as caught:
            refused()
        assert caught.value.status is Status.BAD_CLUSTER_DIR
    bring_down(directory, wipe=True)
    assert not directory.path.exists()
    assert directory.path.parent.exists()


def test_a_whole_removal_leaves_nothing(directory):
    bring_down(directory, wipe=True)
    assert not directory.path.exists()
    assert directory.path.parent.exists()
