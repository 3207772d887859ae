"""`--kv foundationdb`: whole clusters of real processes, each with the fake client library,
on one fake server.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from fs.app.commands import develop
from fs.app.local.cluster_plan import server_configs
from fs.app.machine.cluster_dir import ClusterDir, ClusterRecord
from fs.app.stores.foundationdb import StoreReport, parse_kv, read_status
from fs.kv.foundationdb_client import key_prefix
from fs.schema.status import FsError
from tests.commands import run_ember
from tests.kv.fake_fdb import wire
from tests.kv.fake_fdb.session import FakeServer

ROOT = Path(__file__).resolve().parents[3]
SITE = ROOT / "tests/kv/fake_fdb/site"


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("rocksdb", ""),
        ("foundationdb", "foundationdb:/etc/foundationdb/fdb.cluster"),
        ("foundationdb:/a/b", "foundationdb:/a/b"),
        ("foundationdb:b:c", f"foundationdb:{os.getcwd()}/b:c"),
    ],
)
def test_what_kv_may_say(given, recorded):
    assert parse_kv(given) == recorded


@pytest.mark.parametrize("given", ["", "foundationdb:", "fdb:/a", "rocksdb:/a", "remote"])
def test_what_kv_may_not_say(given):
    with pytest.raises(FsError, match="--kv"):
        parse_kv(given)


def test_no_kv_process_serves_what_foundationdb_serves():
    record = ClusterRecord("c", 3, 3, 6, "", 3, 2, kv="foundationdb:/f")
    made = server_configs(ClusterDir(Path("/c")), record)
    assert [name for name in made if not name.startswith("storage")] == [
        "mgmtd-1", "mgmtd-2", "mgmtd-3", "meta-1", "meta-2",
    ]  # fmt: skip
    assert {(c.kv.engine, c.kv.cluster_file) for n, c in made.items() if n[0] == "m"} == {
        ("foundationdb", "/f")
    }


@pytest.mark.parametrize(
    ("given", "kind"),
    [("memory", "memory"), ("remote", "remote"), ("foundationdb-fake", "foundationdb")],
)
def test_the_suites_of_any_store_run_on_the_chosen_one(monkeypatch, given, kind):
    asked = []
    monkeypatch.setattr(os, "environ", dict(os.environ, FDB_CLUSTER_FILE="/not/this"))
    monkeypatch.setattr(
        develop, "run_tests", lambda *, fast, arguments: asked.append((fast, arguments)) or 0
    )
    assert develop.run_kv_tests(given, fast=True, arguments=["-x"]) == 0
    assert asked == [(True, ["-x", "tests/kv", "tests/meta", "tests/mgmtd"])]
    assert os.environ["EMBER_TEST_KV"] == kind
    assert "FDB_CLUSTER_FILE" not in os.environ
    with pytest.raises(FsError, match="--kv"):
        develop.run_kv_tests("nonsense", fast=True, arguments=[])


@pytest.mark.parametrize("text", [b"", b"nonsense", b"[]", b'{"cluster": 3}', b'{"cluster": {}}'])
def test_a_status_that_nobody_expected_is_no_error(text):
    versions, redundancy = read_status(text)
    report = StoreReport("here", versions, redundancy, 0.0012)
    assert report.text() == "FoundationDB (version not told) at here, answers in 1.2 ms"


class Ember:
    """One cluster, driven only by the command line, whose processes use the fake library."""

    def __init__(self, base: Path) -> None:
        self.directory = base / "cluster"
        self.mount = base / "mount"
        self.mount.mkdir()

    def run(self, *arguments, check=True):
        done = run_ember(*arguments, "--dir", self.directory, timeout=150, path=str(SITE))
        assert not check or done.returncode == 0, (done.stdout, done.stderr)
        return done

    def up(self, *arguments, check=True):
        fixed = ("--until", os.getpid(), "--mount", self.mount, "--nodes", 1)
        return self.run("up", *fixed, *arguments, check=check)


@pytest.fixture
def server(tmp_path):
    server = FakeServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def ember(tmp_path, server):  # noqa: ARG001 - it outlives the cluster
    cluster = Ember(tmp_path)
    yield cluster
    cluster.run("down", check=False)
    assert not os.path.ismount(cluster.mount)


def keys_of(server, cluster_id: str) -> int:
    prefix = key_prefix(cluster_id)
    version = wire.ask(str(server.cluster_file), "read_version")
    request = ("get_range", version, prefix, prefix + b"\xff", 0, False)
    return len(wire.ask(str(server.cluster_file), *request)[0])


def work(mount: Path, name: str) -> None:
    folder = mount / name
    folder.mkdir()
    for i in range(20):
        (folder / f"{i}").write_bytes(b"%d" % i * 1000)
    assert sorted(p.name for p in folder.iterdir()) == sorted(str(i) for i in range(20))


@pytest.mark.slow
@pytest.mark.mount
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
def test_a_cluster_with_several_of_each_service(ember, server):
    kv = f"foundationdb:{server.cluster_file}"
    said = ember.up("--kv", kv, "--mgmtds", 2, "--metas", 2).stdout
    assert f"FoundationDB 7.3.0-fake at {server.cluster_file}" in said
    status = json.loads(ember.run("status", "--json").stdout)
    assert status["kv"] == kv
    assert {s["name"] for s in status["services"]} == {
        "mgmtd-1", "mgmtd-2", "meta-1", "meta-2", "storage-1", "mount-1",
    }  # fmt: skip
    assert f"metadata in {kv}" in ember.run("status").stdout
    work(ember.mount, "before")
    server.kill()
    server.start()
    work(ember.mount, "after the server was killed")
    ember.run("down")
    refused = ember.up("--kv", "rocksdb", check=False)
    assert refused.returncode == 1
    assert "--kv rocksdb: this cluster was made with foundationdb:" in refused.stderr
    ember.up("--mgmtds", 1, "--metas", 1)
    assert (ember.mount / "before/7").read_bytes() == b"7" * 1000
    work(ember.mount, "one of each")
    assert keys_of(server, status["cluster_id"]) > 0
    ember.run("down", "--wipe")
    assert keys_of(server, status["cluster_id"]) == 0


@pytest.mark.slow
@pytest.mark.mount
@pytest.mark.timeout(500)
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
def test_a_cluster_moves_to_foundationdb_and_back(ember, server, tmp_path):
    """By backup and restore; each backup is made while the cluster works,
    or when it has stopped.
    """
    kv, file = f"foundationdb:{server.cluster_file}", tmp_path / "b"
    ember.up()
    work(ember.mount, "one")
    assert "records of remote:unix:" in ember.run("backup", file).stdout  # through its holder
    ember.run("down")
    told = json.loads(ember.run("backup", file, "--force", "--json").stdout)
    assert told["read_version"] > 0
    ember.run("restore", file, "--kv", kv)
    ember.up()
    assert json.loads((ember.directory / "cluster.json").read_text())["kv"] == kv
    assert (ember.mount / "one/7").read_bytes() == b"7" * 1000
    work(ember.mount, "two")
    ember.run("backup", file, "--pause", "--force")
    work(ember.mount, "after the pause")
    ember.run("down")
    ember.run("backup", file, "--force")
    shutil.rmtree(ember.directory / "data/control/kv")
    ember.run("restore", file, "--kv", "rocksdb")
    server.kill()
    ember.up()
    assert {p.name for p in ember.mount.iterdir()} >= {"one", "two", "after the pause"}
    assert (ember.mount / "two/7").read_bytes() == b"7" * 1000
    work(ember.mount, "three")
    ember.run("down")
    server.start()


@pytest.mark.slow
def test_a_foundationdb_that_is_away_is_told_before_anything_is_made(ember, tmp_path):
    path = tmp_path / "away.cluster"
    path.write_text("a:b@127.0.0.1:1\n")
    for arguments, says in (
        (("--kv", f"foundationdb:{path}.nowhere"), "No such file"),
        (("--kv", f"foundationdb:{path}"), "did not answer within"),
    ):
        done = ember.up(*arguments, "--no-mount", check=False)
        assert done.returncode == 1
        assert says in done.stderr
        assert "Traceback" not in done.stderr
        assert not (ember.directory / "cluster.json").exists()
