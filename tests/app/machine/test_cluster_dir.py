"""The cluster directory: record, format version, socket paths."""

import errno
import json
import os
import shutil
import socket
import stat

import pytest

from fs.app.local.bring_up import UpOptions, new_record
from fs.app.local.cluster_plan import server_configs
from fs.app.machine.cluster_dir import (
    SOCKET_PATH_BYTES_MAX,
    ClusterDir,
    ClusterRecord,
    load_record,
    need_record,
    node_id_of,
    save_record,
    storage_names,
)
from fs.app.reach.meant_cluster import connected
from fs.app.stores.store_access import is_running
from fs.schema.status import FsError, Status

RECORD = ClusterRecord("ember-1", 3, 3, 6, "/mnt/ember")


def test_a_record_is_read_as_written(tmp_path):
    directory = ClusterDir(tmp_path)
    assert load_record(directory) is None
    save_record(directory, RECORD)
    assert load_record(directory) == RECORD


def test_a_cluster_stays_with_its_checksum_blocks_and_old_records_say_nothing_of_them(tmp_path):
    directory = ClusterDir(tmp_path)
    save_record(directory, RECORD)  # of a cluster of before: the release that made it reads it yet
    assert "checksum_block_bytes" not in directory.record_path.read_text()
    assert need_record(directory).checksum_block_bytes == 16384
    new = new_record(UpOptions(tmp_path), "/mnt/ember")
    save_record(directory, new)
    assert need_record(directory) == new
    assert new.checksum_block_bytes == 4096
    for record in (RECORD, new):
        configs = server_configs(directory, record)
        sizes = {configs[name].storage.checksum_block_bytes for name in storage_names(record)}
        assert sizes == {record.checksum_block_bytes}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format_version": 1, "what": 2}'])
def test_a_damaged_record_is_refused(tmp_path, text):
    directory = ClusterDir(tmp_path)
    directory.record_path.write_text(text)
    with pytest.raises(FsError) as caught:
        load_record(directory)
    assert caught.value.status is Status.BAD_CLUSTER_DIR


def test_another_format_version_is_refused_and_left_alone(tmp_path):
    directory = ClusterDir(tmp_path)
    save_record(directory, RECORD)
    fields = json.loads(directory.record_path.read_text()) | {"format_version": 99}
    directory.record_path.write_text(json.dumps(fields))
    with pytest.raises(FsError, match="format version 99"):
        load_record(directory)
    assert json.loads(directory.record_path.read_text()) == fields


def test_no_cluster_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(FsError, match="ember up"):
        need_record(ClusterDir(tmp_path))


def test_sockets_of_a_deep_directory_move_to_a_short_private_one(tmp_path):
    deep = ClusterDir(tmp_path / ("x" * 100) / ("y" * 100))
    deep.make_folders()
    try:
        assert len(str(deep.supervisor_socket)) <= SOCKET_PATH_BYTES_MAX
        assert deep.run_path.stat().st_mode & 0o777 == 0o700
        assert deep.run_path != ClusterDir(tmp_path / ("z" * 200)).run_path
    finally:
        shutil.rmtree(deep.run_path)


def test_an_unwritable_place_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FsError) as caught:
        ClusterDir(tmp_path / "file" / "below").make_folders()
    assert caught.value.status is Status.BAD_CLUSTER_DIR


def test_names_and_node_ids():
    assert storage_names(RECORD) == ["storage-1", "storage-2", "storage-3"]
    assert [node_id_of(n) for n in storage_names(RECORD)] == [11, 12, 13]


def test_what_users_stored_is_for_the_owner_of_the_cluster_alone(tmp_path):
    made = ClusterDir(tmp_path)
    (tmp_path / "data").mkdir(mode=0o755)  # as it was made before
    made.make_folders()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_a_cluster_of_somebody_else_is_not_taken_for_one_that_is_down(tmp_path, monkeypatch):
    made = ClusterDir(tmp_path)
    made.make_folders()

    def refuse(*_args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(FsError, match="somebody else: run this as its owner"):
        is_running(made)


def test_who_may_not_stop_a_cluster_is_told_who_may(tmp_path, monkeypatch):
    made = ClusterDir(tmp_path)
    made.make_folders()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(FsError, match="somebody else: run this as its owner"):
        made.make_folders()


def test_a_client_of_a_stopped_cluster_is_refused_at_once(tmp_path):
    """It waited two minutes for a manager that nobody had started."""
    save_record(ClusterDir(tmp_path), RECORD)
    with pytest.raises(FsError, match=f"start it: .*ember up --dir {tmp_path}") as caught:
        connected(tmp_path)
    assert caught.value.status is Status.NOT_RUNNING
