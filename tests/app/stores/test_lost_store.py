"""A cluster whose metadata store is gone does not begin anew."""

import pytest

from fs.app.machine.cluster_dir import CONTROL, ClusterDir
from fs.app.stores.lost_store import check_chains, check_files, note_made
from fs.kv.rocksdb_store import holds_nothing, open_store
from fs.runtime.config_file import write_config
from fs.schema.config import KvSection, ProcessConfig, ProcessSection
from fs.schema.status import FsError, Status


@pytest.fixture
def directory(tmp_path):
    """Of a cluster that was made, with an embedded store that has something."""
    made = ClusterDir(tmp_path / "c")
    store = made.data_path(CONTROL) / "kv"
    for folder in (made.path / "config", store.parent):
        folder.mkdir(parents=True)
    process = ProcessSection(node_id=1, cluster_id="c", listen="unix:/nowhere")
    config = ProcessConfig(process=process, kv=KvSection(path=str(store)))
    write_config(made.config_path(CONTROL), config)
    db = open_store(str(store))
    db.put(b"k", b"v")
    db.close()
    return made


def test_a_store_that_has_something_is_seen(directory):
    assert not holds_nothing(str(directory.data_path(CONTROL) / "kv"))
    note_made(directory)
    note_made(directory)
    check_files(directory)
    check_chains(directory, has_chains=True)


def test_a_folder_without_a_store_holds_nothing(tmp_path):
    assert holds_nothing(str(tmp_path / "none"))
    assert holds_nothing(str(tmp_path))
    (tmp_path / "LOG").write_text("words")
    (tmp_path / "000004.log").touch()
    assert holds_nothing(str(tmp_path))


def test_a_cluster_that_was_never_made_may_begin(directory):
    store = directory.data_path(CONTROL) / "kv"
    store.rename(store.with_name("elsewhere"))
    check_files(directory)
    check_chains(directory, has_chains=False)


@pytest.mark.parametrize("leaves_folder", [False, True])
def test_a_store_that_is_gone_is_missed(directory, leaves_folder):
    note_made(directory)
    store = directory.data_path(CONTROL) / "kv"
    store.rename(store.with_name("elsewhere"))
    if leaves_folder:  # as when its disk is not mounted
        store.mkdir()
    with pytest.raises(FsError, match=f"restore FILE --dir {directory.path}") as caught:
        check_files(directory)
    assert caught.value.status is Status.KV_EMPTY
    assert str(store) in str(caught.value)


def test_a_store_of_another_cluster_is_noticed(directory):
    note_made(directory)
    with pytest.raises(FsError, match="knows no chain") as caught:
        check_chains(directory, has_chains=False)
    assert caught.value.status is Status.KV_EMPTY
