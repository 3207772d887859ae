"""What a cluster does whose processes run each by itself, from files; see by_hand.py."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
from emberfs.clusters import disconnect
from emberfs.fsspec import EmberFileSystem

from fs.client.blocking import connect_blocking
from fs.client.native import Identity
from fs.schema.config import AuthSection
from fs.schema.status import FsError
from placement.table_file import from_json
from tests.app.by_hand import EMBER, SERVERS
from tests.commands import run_ember

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mount,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse"),
]


def check_fsspec(by_hand, token_file):
    """`ember://` acts as the user of the token that it is given, from whatever user's process."""
    where = {"hosts": by_hand.manager.removeprefix("tcp:"), "cluster_id": "compose"}
    for given in ({"token_file": token_file}, {"token": token_file.read_text().split()[-1]}):
        fs = EmberFileSystem(**where, **given)
        fs.pipe_file("/for-all/by-url", b"alice's")
        assert fs.info("/for-all/by-url")["uid"] == 4711
        with pytest.raises(PermissionError):
            fs.mkdir("/mine")
    with pytest.raises(OSError, match="RPC_UNAUTHENTICATED"):
        EmberFileSystem(**where).ls("/")
    disconnect()


def check_a_plain_user(by_hand, monkeypatch):
    """A program with a token acts as its user, and as nobody else."""
    place = by_hand.mount / "for-all"
    place.mkdir()
    place.chmod(0o777)
    path = by_hand.base / "alice"
    by_hand.user("add", "4711", "alice", "--gid", "4712")
    by_hand.user("token", "new", "4711", "--file", path)
    monkeypatch.setenv("EMBERFS_TOKEN_FILE", str(path))
    where = [by_hand.manager], "compose"
    with connect_blocking(*where) as fs:
        with fs.create("/for-all/file") as file:
            file.write(0, b"alice's" * 100_000)
        with pytest.raises(FsError, match="ACCESS_DENIED"):
            fs.mkdir("/mine")
    with (
        connect_blocking(*where, identity=Identity(0, 0)) as fs,
        pytest.raises(FsError, match="RPC_NOT_ALLOWED"),
    ):
        fs.mkdir("/mine")
    monkeypatch.delenv("EMBERFS_TOKEN_FILE")
    check_fsspec(by_hand, path)
    found = (place / "file").stat()
    assert (found.st_uid, found.st_gid, found.st_size) == (4711, 4712, 700_000)
    assert not (by_hand.mount / "mine").exists()


def check_health(by_hand):
    """Health checks say who answers; the stricter one that all targets of a node serve."""
    code, said = by_hand.probe("meta")
    assert (code, said.split(",")[:2]) == (0, ["cluster compose", " node 2"])
    end_s = time.monotonic() + 180
    while (found := by_hand.probe("storage-3", "--serving"))[0] and time.monotonic() < end_s:
        time.sleep(0.2)
    assert found[0] == 0 and "node 13" in found[1], found
    assert by_hand.probe("mount")[0] == 1
    done = run_ember("placement", "export", "--config", by_hand.file("mgmtd"))
    done.check_returncode()
    found = from_json(done.stdout, "exported")
    assert (len(found.disks), len(found.table)) == (3, 4)


def replace_the_key(by_hand):
    """New and old one, then the new one alone;
    processes read it when they are told, and go on serving.
    """
    old = by_hand.key_file.read_text()
    other = by_hand.base / "new.key"
    run_ember("key", "new", other).check_returncode()
    for text in (other.read_text() + old, other.read_text()):
        by_hand.key_file.write_text(text)
        for name in SERVERS:
            by_hand.running[name].send_signal(signal.SIGHUP)
            (by_hand.mount / name).write_text(name)
    by_hand.key_file.write_text(old)
    done = run_ember("user", "ls", "--config", by_hand.file("mgmtd"))
    by_hand.key_file.write_text(other.read_text())
    assert "RPC_UNAUTHENTICATED" in done.stderr, done.stderr


def test_a_cluster_of_hand_written_files(by_hand, monkeypatch):
    waiting = [by_hand.start(name) for name in SERVERS]
    assert by_hand.init() == "cluster compose: 5 nodes, 4 chains of 3\n"
    assert by_hand.init() == "cluster compose: 5 nodes, 4 chains of 3\n"  # harmless
    by_hand.wait_ready(*waiting)
    check_health(by_hand)
    by_hand.user("add", "0", "daemon", "--root")
    by_hand.user("token", "new", "0", "--expire", "1d", "--file", by_hand.token_file)
    by_hand.wait_ready(by_hand.start("mount"))
    content = os.urandom(3_000_000)
    (by_hand.mount / "file").write_bytes(content)
    check_a_plain_user(by_hand, monkeypatch)
    replace_the_key(by_hand)
    for name in ("meta", "mgmtd", "storage-2", "mount"):
        by_hand.running[name].send_signal(signal.SIGKILL)
        by_hand.running[name].wait(10)
        by_hand.wait_ready(by_hand.start(name))
        (by_hand.mount / name).write_text(name)
    assert by_hand.probe("mount") == (0, f"mounted at {by_hand.mount}\n")
    assert (by_hand.mount / "file").read_bytes() == content
    user, alice = json.loads(by_hand.user("ls", "--json"))
    assert (alice["name"], alice["groups"]) == ("alice", [])
    assert (user["name"], user["is_root"], user["is_admin"]) == ("daemon", True, False)
    (token,) = user["tokens"]
    assert token["used"] and token["id"] in by_hand.token_file.read_text()
    run_ember("umount", by_hand.mount).check_returncode()
    assert not os.path.ismount(by_hand.mount)
    assert by_hand.running.pop("mount").wait(10) == 0
    by_hand.user("token", "revoke", token["id"])
    time.sleep(AuthSection().token_check_interval_s + 0.5)  # it counts for so long at most
    said = by_hand.refused("mount")  # by a process that has, or has not, served it lately
    assert re.search(r"no token [0-9a-f]+|the token does not exist any more", said)
    for name in reversed(SERVERS):
        by_hand.stop(name)


def test_what_has_no_key_is_refused(by_hand):
    """Neither served, nor started where strangers could reach it."""
    by_hand.wait_ready(by_hand.start("mgmtd"))
    stranger = by_hand.file("mount")
    stranger.write_text(stranger.read_text().replace("token_file", "# token_file"))
    assert "gave no credentials" in by_hand.refused("mount")
    assert "RPC_UNAUTHENTICATED" in by_hand.logs()
    open_one = by_hand.file("meta")
    text = open_one.read_text().replace("key_file", "# key_file").replace("127.0.0.1", "0.0.0.0")
    open_one.write_text(text)
    done = subprocess.run(
        [EMBER, "meta", "--config", open_one],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "reaches beyond this machine, so it needs auth.key_file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    by_hand.stop("mgmtd")


def test_a_broken_file_is_one_line(by_hand):
    by_hand.file("meta").write_text("[kv]\npaths = 1\n")
    done = subprocess.run(
        [EMBER, "meta", "--config", by_hand.file("meta")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"ember: BAD_CONFIG: the configuration is not valid ({by_hand.file('meta')}: "
    )
    assert "unknown key; is path meant? allowed: engine, path" in done.stderr
    assert len(done.stderr.splitlines()) == 1
