"""On a machine of a deployed cluster its files say which cluster is meant,
unless somebody says otherwise.
"""

from pathlib import Path

import pytest

from fs.app.reach import configured, where, which_cluster
from fs.app.reach.configured import CONFIG_VARIABLE, configured_file, file_in
from fs.app.reach.options import running_cluster, store_of
from fs.app.reach.where import Where, find
from fs.rpc.credential_files import KEY_FILE_VARIABLE
from fs.schema.status import FsError, Status

MANAGERS = 'mgmtd_addresses = ["tcp:10.0.0.1:7001"]'


def write(folder, name, *lines, cluster="training"):
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text("\n".join(["[process]", f'cluster_id = "{cluster}"', *lines, ""]))
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A server: nothing of `ember up`, files in a folder; returns that."""
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    monkeypatch.setattr(configured, "default_directory", lambda: tmp_path / "usual")
    monkeypatch.setattr(configured, "cluster_directories", list)
    monkeypatch.setattr(configured, "FOLDER", tmp_path / "etc")
    return tmp_path / "etc"


def test_the_file_that_proves_most_is_taken(machine):
    assert configured_file() is None
    mount = write(machine, "mountd", MANAGERS, "[auth]", 'token_file = "/t"')
    assert configured_file() == mount
    write(machine, "broken", "no = 1")
    write(machine, "unrelated")  # names no manager
    storage = write(machine, "storage", MANAGERS, "[auth]", 'key_file = "/k"')
    assert configured_file() == storage
    assert find(None, None) == Where(
        ("tcp:10.0.0.1:7001",), "training", where.auth_of_file(storage)
    )


def test_what_is_said_comes_first(machine, tmp_path, monkeypatch):
    write(machine, "mgmtd", MANAGERS)
    other = write(tmp_path / "else", "mgmtd", MANAGERS, cluster="other")
    monkeypatch.setenv(CONFIG_VARIABLE, str(other))
    assert find(None, None).cluster_id == "other"
    assert find(None, machine / "mgmtd.toml").cluster_id == "training"
    with pytest.raises(FsError, match="holds no cluster") as caught:
        find(tmp_path / "local", None)
    assert "--config FILE" in str(caught.value), "whoever has servers is told how they are reached"


@pytest.mark.parametrize("place", ["usual", "running"])
def test_a_local_cluster_comes_before_the_folder(machine, tmp_path, monkeypatch, place):
    write(machine, "mgmtd", MANAGERS)
    if place == "usual":
        (tmp_path / "usual").mkdir()
        (tmp_path / "usual/cluster.json").write_text("{}")
    else:
        monkeypatch.setattr(configured, "cluster_directories", lambda: [Path("/somewhere")])
    assert configured_file() is None


def test_files_of_several_clusters_are_not_chosen_from(machine):
    write(machine, "mgmtd", MANAGERS)
    write(machine, "mountd", MANAGERS, cluster="other")
    with pytest.raises(FsError, match=r"several clusters \(other, training\)") as caught:
        file_in(machine)
    assert caught.value.status is Status.BAD_CONFIG


def test_credentials_of_the_environment_come_before_those_of_a_file_that_nobody_named(
    machine, monkeypatch
):
    write(machine, "mgmtd", MANAGERS, "[auth]", 'key_file = "/k"')
    assert find(None, None).auth.key_file == "/k"
    monkeypatch.setenv(KEY_FILE_VARIABLE, "/mine")
    assert not find(None, None).auth.key_file, "caller_secrets takes that of the environment then"
    assert find(None, machine / "mgmtd.toml").auth.key_file == "/k"


REMOTE = ("[kv]", 'engine = "remote"', 'address = "tcp:10.0.0.1:7000"')


def test_backup_and_check_find_the_store_in_the_file(machine):
    path = write(machine, "mgmtd", MANAGERS, "[auth]", 'key_file = "/k"', *REMOTE)
    for choice in (store_of(None, None, ""), store_of(None, None, "", path)):
        assert (choice.text, choice.cluster_id) == ("remote:tcp:10.0.0.1:7000", "training")
        assert choice.auth.key_file == "/k"
    elsewhere = store_of(None, "remote:tcp:10.0.0.9:7000", "", path)
    assert (elsewhere.text, elsewhere.auth.key_file) == ("remote:tcp:10.0.0.9:7000", "/k")


def test_a_store_that_its_manager_serves_to_nobody_is_told_of(machine, monkeypatch):
    """Was: RPC_UNKNOWN_METHOD, the peer does not offer this method."""
    path = write(machine, "mgmtd", MANAGERS, "[kv]", 'path = "/var/kv"')
    answer = ("tcp:10.0.0.1:7001", where.KvSection(path="/var/kv"))
    monkeypatch.setattr(Where, "run", lambda *_: answer)
    with pytest.raises(FsError, match=r"--kv rocksdb:/var/kv; a kv process") as caught:
        store_of(None, None, "", path)
    assert caught.value.status is Status.NOT_SUPPORTED


def test_what_is_for_local_clusters_alone_says_so(machine, tmp_path, monkeypatch):
    """Was: no cluster runs; start it: ember up - on a server."""
    path = write(machine, "mgmtd", MANAGERS)
    with pytest.raises(FsError, match="ember admin doctor") as caught:
        running_cluster(None)
    assert caught.value.status is Status.NOT_SUPPORTED and str(path) in caught.value.detail
    assert running_cluster(tmp_path).path == tmp_path
    (tmp_path / "usual").mkdir()
    (tmp_path / "usual/cluster.json").write_text("{}")
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    monkeypatch.setattr(which_cluster, "default_directory", lambda: tmp_path / "usual")
    monkeypatch.setattr(which_cluster, "cluster_directories", list)
    assert running_cluster(None).path == tmp_path / "usual", "one that is here is meant"
