"""Where a backup goes, whole or not at all; where a restore goes, and where not."""

import os

import pytest

from fs.admin.backup_format import BackupEncoder
from fs.app.commands import store_commands
from fs.app.local.bring_up import write_configs
from fs.app.machine.cluster_dir import ClusterDir, ClusterRecord, load_record, save_record
from fs.app.stores.store_access import StoreChoice, parse_store
from fs.app.upkeep import backup
from fs.app.upkeep.backup import _target, restore, use_store
from fs.runtime.config_file import read_config
from fs.schema.proto.backup_pb2 import BackupHeadPb
from fs.schema.status import FsError, Status


def test_two_at_a_time_into_one_file_are_whole_each(tmp_path):
    path = tmp_path / "meta.bak"
    with _target(str(path), may_replace=True) as first:
        first.write(b"first")
        with _target(str(path), may_replace=True) as second:
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
    with pytest.raises(OSError, match="No space left") as caught:  # noqa: SIM117
        with _target(str(path), may_replace=True) as out:
            fill(out)
    assert caught.value.filename == str(path), "not the temporary one"
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(tmp_path):
    path = tmp_path / "meta.bak"
    path.write_bytes(b"former")
    with (
        pytest.raises(FsError, match=r"meta\.bak is a file; --force replaces it") as caught,
        _target(str(path), may_replace=False) as out,
    ):
        out.write(b"new")
    assert caught.value.status is Status.EXISTS
    assert path.read_bytes() == b"former"
    with _target(str(path), may_replace=True) as out:
        out.write(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_came_meanwhile_stays(tmp_path):
    path = tmp_path / "meta.bak"

    def back_up():
        with _target(str(path), may_replace=False) as out:
            out.write(b"mine")
            path.write_bytes(b"another's")

    with pytest.raises(FsError, match="is a file"):
        back_up()
    assert path.read_bytes() == b"another's"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("may_replace", [True, False])
def test_what_is_no_file_is_never_replaced(tmp_path, may_replace):
    pipe, dangling = tmp_path / "pipe", tmp_path / "dangling"
    os.mkfifo(pipe)
    dangling.symlink_to("nowhere")
    for path in (pipe, dangling, tmp_path):
        with (
            pytest.raises(FsError, match=r"is no regular file\)$"),
            _target(str(path), may_replace=may_replace),
        ):
            pytest.fail("it was begun")
    assert dangling.is_symlink()
    assert pipe.is_fifo()


@pytest.fixture
def stopped(tmp_path):
    """The directory of a cluster that does not run, and a backup of it."""
    directory = ClusterDir(tmp_path / "cluster")
    directory.make_folders()
    record = ClusterRecord("c", 1, 1, 1, "")
    save_record(directory, record)
    write_configs(directory, record)
    return directory


def made_of(cluster_id: str, path) -> str:
    encoder = BackupEncoder()
    path.write_bytes(encoder.head(BackupHeadPb(cluster_id=cluster_id)) + encoder.end())
    return str(path)


def test_a_backup_of_another_cluster_is_refused(stopped, tmp_path):
    with pytest.raises(FsError, match="it is of cluster other") as caught:
        restore(made_of("other", tmp_path / "b"), stopped, None, is_check=False)
    assert caught.value.status is Status.BAD_BACKUP


def test_a_cluster_that_runs_is_not_restored(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr(backup, "is_running", lambda _directory: True)
    with pytest.raises(FsError, match="ember down") as caught:
        restore(made_of("c", tmp_path / "b"), stopped, None, is_check=False)
    assert caught.value.status is Status.ALREADY_RUNNING


def test_a_check_changes_nothing(stopped, tmp_path, capsys):
    restore(made_of("c", tmp_path / "b"), stopped, None, is_check=True)
    assert capsys.readouterr().out == f"{tmp_path / 'b'}: whole, 0 records\n"
    assert not (stopped.data_path("control") / "kv").exists()


def test_a_moved_cluster_finds_its_new_store_in_every_file(stopped):
    use_store(stopped, "foundationdb:/f")
    assert load_record(stopped).kv == "foundationdb:/f"
    section = read_config(stopped.config_path("control")).kv
    assert (section.engine, section.cluster_file) == ("foundationdb", "/f")
    use_store(stopped, "rocksdb")
    section = read_config(stopped.config_path("control")).kv
    assert (section.engine, section.path) == ("rocksdb", f"{stopped.path}/data/control/kv")


def test_nothing_is_made_where_no_store_is(tmp_path):
    choice = StoreChoice(parse_store(f"rocksdb:{tmp_path}/none"), "c")
    with pytest.raises(FsError, match="holds no key-value store"):
        backup.backup(
            str(tmp_path / "b"), choice, may_pause=False, may_replace=False, as_json=False
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["", "rocksdb", "rocksdb:", "remote", "nonsense:x"])
def test_what_a_store_may_not_be_called(given):
    with pytest.raises(FsError, match="--kv"):
        parse_store(given)


def test_a_restore_says_how_old_the_state_is():
    note = backup.age_note(10**18, 10**18 + 9 * 10**12)
    assert "2001-09-09 01:46 UTC, 2.5 h ago" in note
    assert "ember admin chunks compare" in note


def test_a_restore_on_a_server_asks_where_to(tmp_path, monkeypatch):
    """Was: `ember up` makes a cluster here, and --config FILE names one,
    which this command does not know.
    """
    monkeypatch.setattr(store_commands, "directory_of", lambda _: ClusterDir(tmp_path))
    with pytest.raises(FsError, match="--kv rocksdb:PATH") as caught:
        store_commands.restore("meta.bak")
    assert caught.value.status is Status.BAD_CONFIG
