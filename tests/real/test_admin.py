"""`ember admin`: every command against a running cluster, read by people and by programs."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from .conftest import EMBER, Cluster

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]

FOUND, DECLINED = 3, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    base = tmp_path_factory.mktemp("admin")
    made = Cluster(base / "data", base / "mnt")
    try:
        made.ember("up", "--dir", made.directory, "--no-mount", "--until", os.getpid(), "--nodes", 4, "--chains", 4)  # fmt: skip
        made.wait_healthy()
        yield made
    finally:
        subprocess.run([EMBER, "down", "--dir", made.directory, "--wipe"], check=False)


def try_admin(cluster, *words, code=0):
    """Run a command on the cluster and return what it prints; its exit code must be `code`."""
    return try_admin_anywhere(*words, "--dir", cluster.directory, code=code)


def try_admin_anywhere(*words, code):
    command = [EMBER, "admin", *words]
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def rows(cluster, *words, code=0):
    return json.loads(try_admin(cluster, *words, "--json", code=code))


def kinds(cluster, *severities):
    """Return what the doctor finds of these severities; its exit code says whether something is to be done."""
    command = [EMBER, "admin", "doctor", "--pause", "0", "--json", "--dir", cluster.directory]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == (FOUND if any(f["severity"] != "notice" for f in found) else 0)
    return {f["kind"] for f in found if f["severity"] in severities}


def wait_until(is_so, timeout_s=120):
    ends = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.3)


def test_what_there_is_can_be_listed(cluster):
    nodes = rows(cluster, "node", "list")
    assert sum("storage" in n["roles"] for n in nodes) == 4
    assert all(n["state"] == "connected" for n in nodes)
    chains = rows(cluster, "chain", "list")
    assert [c["serving"] for c in chains] == [3] * 4
    targets = rows(cluster, "target", "list")
    assert sum(t["state"] == "serving" for t in targets) == 12
    assert rows(cluster, "target", "list", "--orphans") == []
    disks = rows(cluster, "disk", "list")
    assert sum(d["targets"] for d in disks) == 12
    assert rows(cluster, "table", "list")[0]["chain_ids"] == [1, 2, 3, 4]
    assert rows(cluster, "session", "list") == []
    for words in (("node", "list"), ("chain", "list"), ("target", "list"), ("disk", "list"), ("table", "list"), ("session", "list"), ("move", "list")):  # fmt: skip
        assert try_admin(cluster, *words)
    shown = json.loads(try_admin(cluster, "chain", "show", "2"))
    assert shown["chain_id"] == 2 and len(shown["targets"]) == 3
    assert "CHAIN_UNKNOWN" in try_admin(cluster, "chain", "show", "77", code=1)


def test_methods_are_called_by_name(cluster):
    node_id = rows(cluster, "disk", "list")[0]["node_id"]
    reply = json.loads(try_admin(cluster, "rpc", "call", "Core.GetInfo", "--node", node_id))
    assert reply["node_id"] == node_id
    assert abs(int(reply["wall_ns"]) / 1e9 - time.time()) < 300
    moves = json.loads(try_admin(cluster, "rpc", "call", "Mgmtd.ListMoves"))
    assert moves["moves"] == []
    assert "no such method" in try_admin(cluster, "rpc", "call", "Core.Nothing", code=1)
    assert "INVALID_ARGUMENT" in try_admin(cluster, "rpc", "call", "Core.Echo", "{", code=1)
    assert "carries bytes" in try_admin(cluster, "rpc", "call", "Storage.Write", code=1)


def test_nothing_is_changed_without_a_yes(cluster):
    node_id = str(rows(cluster, "disk", "list")[-1]["node_id"])
    assert "chains lose a replica" in try_admin(cluster, "node", "disable", node_id, "--dry-run")
    assert "say --yes" in try_admin(cluster, "node", "disable", node_id, code=DECLINED)
    assert all(n["state"] == "connected" for n in rows(cluster, "node", "list"))


def test_a_node_is_disabled_found_ill_and_enabled(cluster):
    node_id = rows(cluster, "disk", "list")[-1]["node_id"]
    assert kinds(cluster, "notice") >= {"one-manager"}
    assert not kinds(cluster, "warning", "critical") - {"disk-full"}  # that is the machine's
    try_admin(cluster, "node", "disable", node_id, "--yes")
    wait_until(lambda: any(c["serving"] < 3 for c in rows(cluster, "chain", "list")))
    found = {f["kind"] for f in rows(cluster, "doctor", "--pause", "0.2", code=FOUND)}
    assert {"node-disabled", "chain-degraded"} <= found
    assert "-> " in try_admin(cluster, "doctor", "--pause", "0", code=FOUND)
    try_admin(cluster, "node", "enable", node_id)
    wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))
    assert "refused" in try_admin(cluster, "node", "remove", node_id, "--dry-run")
    assert "CONFLICTING_CHANGE" in try_admin(cluster, "node", "remove", node_id, "--yes", code=1)


def test_a_node_is_drained_and_used_again(cluster):
    node_id = rows(cluster, "disk", "list")[-1]["node_id"]
    try_admin(cluster, "node", "drain", node_id, "--yes", "--wait")
    left = [t for t in rows(cluster, "target", "list") if t["node_id"] == node_id and t["chain_id"]]
    assert left == []
    found = rows(cluster, "move", "list")
    assert found["drains"] == [{"node_id": node_id, "disk_index": None, "left": 0}]
    assert "drained" in kinds(cluster, "notice")
    try_admin(cluster, "node", "drain", node_id, "--cancel")
    assert rows(cluster, "move", "list")["drains"] == []
    try_admin(cluster, "rebalance", "start", "--yes")
    wait_until(lambda: not rows(cluster, "move", "list")["is_rebalancing"])
    assert [t for t in rows(cluster, "target", "list") if t["node_id"] == node_id and t["chain_id"]]


def test_a_node_is_added_and_removed(cluster, tmp_path):
    known = cluster.directory / "config" / "storage-1.toml"
    text = re.sub(r"node_id = \d+", "node_id = 10077", known.read_text())
    text = re.sub(r"(?m)^listen = .*$", 'listen = "127.0.0.1:47077"', text)
    file = tmp_path / "new.toml"
    file.write_text(text)
    assert "node 10077" in cluster.ember("admin", "node", "add", "--storage", file)
    assert 10077 in {n["node_id"] for n in rows(cluster, "node", "list")}
    try_admin(cluster, "node", "disable", 10077, "--yes")
    try_admin(cluster, "node", "remove", 10077, "--yes")
    assert 10077 not in {n["node_id"] for n in rows(cluster, "node", "list")}
    assert "name the configuration files" in try_admin_anywhere("node", "add", code=1)


def test_members_are_ordered_taken_out_and_put_back(cluster):
    wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))
    members = [t["target_id"] for t in rows(cluster, "chain", "list")[0]["targets"]]
    assert "UNSAFE_CHANGE" in try_admin(
        cluster, "chain", "remove-target", 1, members[2], "--yes", code=1
    )
    try_admin(cluster, "chain", "remove-target", 1, members[2], "--yes", "--accept-fewer")
    wait_until(lambda: members[2] in [t["target_id"] for t in rows(cluster, "target", "list", "--orphans")])  # fmt: skip
    try_admin(cluster, "chain", "add-target", 1, members[2])
    wait_until(lambda: rows(cluster, "chain", "list")[0]["serving"] == 3)
    try_admin(cluster, "chain", "order", 1, *reversed(members))
    assert "went to the end" in try_admin(cluster, "chain", "rotate", 1)
    plan = try_admin(cluster, "chain", "rotate-lost", 1, members[0], "--dry-run")
    assert "DATA LOSS" in plan
    wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))


def test_many_commands_come_from_a_file(cluster, tmp_path):
    script = tmp_path / "commands"
    script.write_text("# what there is\nchain list --json\n\nchain show 77\nnode list\n")
    told = try_admin(cluster, "shell", "--file", script, code=1)
    assert '"chain_id": 1' in told
    assert f"{script}:4: chain show 77: exit code 1" in told
    assert "connected" not in told


def test_a_manager_that_is_away_is_one_line(cluster):
    pid = cluster.pid_of("control")
    os.kill(pid, signal.SIGSTOP)
    try:
        told = try_admin(cluster, "chain", "list", code=1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "RPC_TIMEOUT" in told and told.count("\n") == 1
