"""What `ember up` leaves behind when it refuses."""

import pytest

from fs.app.bring_up import UpOptions, prepare
from fs.app.progress import Progress
from fs.schema.status import FsError, Status


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"node_count": 0}, Status.BAD_CONFIG),
        ({"node_count": 2, "replica_count": 3}, Status.BAD_CONFIG),
        ({"has_mount": True}, Status.BAD_MOUNT_POINT),
    ],
)
def test_a_refused_cluster_leaves_no_directory(tmp_path, monkeypatch, options, status):
    monkeypatch.setattr("fs.app.bring_up.check_fuse", lambda: None)
    directory, mount_point = tmp_path / "new", tmp_path / "full"
    (mount_point / "a").mkdir(parents=True)
    asked = UpOptions(directory, mount_point, **({"has_mount": False} | options))
    with pytest.raises(FsError) as caught:
        prepare(asked, mount_point, Progress())
    assert caught.value.status is status
    assert not directory.exists()


def test_a_place_where_nothing_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / "new"
    with pytest.raises(FsError, match=str(directory)) as caught:
        prepare(UpOptions(directory, has_mount=False), tmp_path, Progress())
    assert caught.value.status is Status.BAD_CLUSTER_DIR
