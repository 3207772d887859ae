"""Which cluster is meant, whose credentials are used, and where they never stand."""

import errno
import json
import os
import pickle
from contextlib import contextmanager

import pytest
from emberfs import clusters
from emberfs.clusters import disconnect, find_place, split_short_url, split_url
from emberfs.fsspec import EmberFileSystem

from fs.app.machine.cluster_dir import ClusterDir, ClusterRecord, save_record
from fs.app.reach import which_cluster
from fs.client.entries import Identity
from fs.rpc.credentials import Token

HERE = {"hosts": "one:7000", "cluster_id": "c"}


def token(uid=4711):
    return Token(uid, bytes(range(8)), bytes(range(32)))


@pytest.mark.parametrize(
    "url",
    [
        f"ember://{token().text}@one:7000/data/f",
        f"ember://c:{token().text}@one:7000/data/f",
        f"hf3fs://c@one:7000/data/f?token={token().text}",
        "ember://c:geheim@one:7000/data/f",
        f"ember://{token().text}/data",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url):
    for call in (split_url, EmberFileSystem._strip_protocol, EmberFileSystem._get_kwargs_from_urls):
        with pytest.raises(ValueError, match="token_file=") as refused:
            call(url)
        assert "geheim" not in str(refused.value)
        assert token().value.hex() not in str(refused.value)


def test_what_only_looks_like_a_secret_is_a_path():
    assert split_url("ember://c@ember1-2:7000/a:b@c/ember1-5") == (
        "c",
        "ember1-2:7000",
        "/a:b@c/ember1-5",
    )
    assert split_url(f"/data/{token().text}")[2] == f"/data/{token().text}"


def test_a_token_says_on_whose_behalf(tmp_path, monkeypatch):
    monkeypatch.delenv("EMBERFS_TOKEN_FILE", raising=False)
    path = tmp_path / "token"
    path.write_text(f"{token().text}\n")
    path.chmod(0o600)
    own = find_place(**HERE)
    assert (own.identity, own.token, own.token_file) == (Identity.of_process(), None, "")
    by_text = find_place(**HERE, token=token().text)
    by_file = find_place(**HERE, token_file=str(path))
    monkeypatch.setenv("EMBERFS_TOKEN_FILE", str(path))
    by_environment = find_place(**HERE)
    assert [p.identity.uid for p in (by_text, by_file, by_environment)] == [4711] * 3
    assert by_file == by_environment
    assert find_place(**HERE, identity=Identity(5, 5)).identity == Identity(5, 5)
    assert find_place(**HERE, token=token(7).text).identity.uid == 7  # before the environment
    assert token().value.hex() not in repr([by_text, by_file])
    monkeypatch.setenv("EMBERFS_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(OSError, match="none"):
        find_place(**HERE)
    with pytest.raises(ValueError, match="is no token") as refused:
        find_place(**HERE, token="ember1-oops")
    assert "oops" not in str(refused.value)
    with pytest.raises(ValueError, match="not both"):
        find_place(**HERE, token=token().text, token_file=str(path))


def test_connections_are_made_with_the_token_and_not_shared_with_others(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text(f"{token(1).text}\n")
    path.chmod(0o600)
    made = []

    class Connected:
        is_usable = True

        def __enter__(self):
            return self

        def close(self):
            pass

    def connect_blocking(*_where, identity, token, key_file):  # noqa: ARG001 - an open cluster
        made.append((identity.uid, token and token.uid))
        return Connected()

    monkeypatch.setattr(clusters, "connect_blocking", connect_blocking)
    monkeypatch.setattr(clusters, "_process", clusters._Process())
    for options in (
        {"token_file": path},
        {"token": token(2).text},
        {"token_file": str(path)},
        {"uid": 3},
    ):
        _ = EmberFileSystem(**HERE, **options).connection
    assert made == [(1, 1), (2, 2), (3, None)]


def test_an_instance_tells_its_token_only_where_it_must():
    fs = EmberFileSystem(**HERE, token=token().text)
    said = fs.to_json(include_password=False)
    assert token().text not in said
    assert json.loads(said)["cluster_id"] == "c"
    assert token().text not in repr(fs)
    assert token().text not in fs.unstrip_protocol("/f")
    assert pickle.loads(pickle.dumps(fs))._token == token().text


def test_options_that_do_not_go_together():
    with pytest.raises(ValueError, match="uid="):
        EmberFileSystem(gid=5)
    fs = EmberFileSystem(hosts=["one:1", "two:2"], cluster_id="c")
    assert fs.unstrip_protocol("/a") == "ember://c@one:1,two:2/a"


def test_at_the_end_every_file_is_closed_also_behind_one_that_fails(monkeypatch):
    monkeypatch.setattr(clusters, "_process", clusters._Process())
    closed = []

    class File:
        def close(self):
            closed.append(self)
            raise OSError("no room")

    files = [File() for _ in range(3)]
    for file in files:
        clusters.close_at_exit(file)
    with pytest.raises(OSError, match="no room"):
        disconnect()
    assert len(closed) == 3


@pytest.fixture
def two_clusters(tmp_path, monkeypatch):
    """Two that run on this machine, neither of them at the usual place."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_record(ClusterDir(tmp_path / name), ClusterRecord(f"id-{name}", 3, 3, 6, ""))
    found = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.delenv("EMBERFS_TOKEN_FILE", raising=False)
    monkeypatch.setattr(which_cluster, "default_directory", lambda: tmp_path / "usual")
    monkeypatch.setattr(which_cluster, "cluster_directories", lambda: found)
    monkeypatch.setattr(
        which_cluster.supervisor_link, "is_answering", lambda directory: directory.path in found
    )
    return tmp_path


def test_of_several_clusters_one_is_chosen_by_its_id(two_clusters):
    assert split_url("ember://id-two@/data/f") == ("id-two", "", "/data/f")
    options = EmberFileSystem._get_kwargs_from_urls("ember://id-two@/data/f")
    place = find_place(**options)
    # Elsewhere where the path is too long for a socket.
    run_path = str(ClusterDir(two_clusters / "two").run_path)
    assert (place.cluster_id, run_path in place.addresses[0]) == ("id-two", True)
    url = EmberFileSystem(**options).unstrip_protocol("/data/f")
    assert url == "ember://id-two@/data/f"
    assert split_url(url) == ("id-two", "", "/data/f")
    with pytest.raises(
        OSError, match=r"several others; choose with cluster=.*CLUSTER_ID@/"
    ) as said:
        find_place()
    assert "--dir" not in str(said.value)
    assert said.value.filename == "ember:///"
    with pytest.raises(
        OSError, match=r"no cluster id-three runs on this machine.*HOST:PORT"
    ) as said:
        find_place(cluster_id="id-three")
    assert said.value.filename == "ember://id-three@/"


def test_a_folder_holds_the_cluster_that_is_expected(two_clusters):
    """The id was ignored."""
    assert find_place(cluster=two_clusters / "one", cluster_id="id-one").cluster_id == "id-one"
    with pytest.raises(OSError, match="holds the cluster id-one, not id-two"):
        find_place(cluster=two_clusters / "one", cluster_id="id-two")


@pytest.mark.parametrize(
    ("url", "name", "path"),
    [
        ("ember://data/a//f/", "data", "/data/a/f"),  # what pathlib leaves of ember:///data/a//f/
        ("hf3fs://data", "data", "/data"),
        ("ember:///data/f", "", "/data/f"),
        ("ember://", "", "/"),
        ("ember://one:7000/f", "", "/f"),
        ("ember://the-id@/f", "", "/f"),
        ("data/f", "", "/data/f"),
    ],
)
def test_a_third_slash_may_be_missing_where_the_cluster_is_known(url, name, path):
    assert split_short_url(url) == (name, path)


@pytest.mark.parametrize("url", ["ember://c@host/f", "ember://@/f", "ember://one:x/f"])
def test_what_may_be_meant_for_hosts_is_no_name(url):
    with pytest.raises(ValueError, match="is no HOST:PORT"):
        split_short_url(url)


@pytest.mark.parametrize("url", ["ember://data/f", "ember://c@host/f", "ember://@/f"])
def test_what_is_no_authority_is_refused(url):
    with pytest.raises(ValueError, match="is no HOST:PORT; a path begins with a third slash"):
        split_url(url)


@contextmanager
def somebody():
    """Be a user whom modes mean."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(own)


def test_sockets_of_somebody_else_are_refused_at_once(tmp_path):
    """A client would take them for managers that start, and try for minutes."""
    run = tmp_path / "run"
    run.mkdir(mode=0)
    address = f"unix:{run}/control.sock"
    with somebody(), pytest.raises(PermissionError, match="for the owner of the cluster") as denied:
        find_place(hosts=[address, address], cluster_id="c")
    assert denied.value.errno == errno.EACCES
    with somebody():  # one of them answers perhaps, or will once it has started
        for other in ("tcp:one:7000", "unix:/nowhere/control.sock"):
            assert find_place(hosts=[address, other], cluster_id="c").addresses[1] == other
    run.chmod(0o700)
