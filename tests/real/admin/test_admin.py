"""`ember admin`: every command against a running cluster, read by people and by programs.

One cluster for all tests, which run in the order of this file; the last ones stop its services.
Commands run in this process, but where a process of its own is what is tested.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer

from fs.app.admin.shell import statements
from fs.app.commands.admin_commands import ALSO, admin
from fs.app.documents.command_page import examples_of, leaves
from fs.app.machine.cluster_dir import ClusterDir
from fs.app.monitoring.metrics_commands import shown
from fs.app.monitoring.status_page import PAGE_PATH
from fs.app.stores.store_access import store_of_cluster
from tests.real.conftest import EMBER

from .commands import (
    CONTENT,
    DECLINED,
    FILE,
    FOUND,
    kinds,
    rows,
    try_admin,
    try_admin_anywhere,
    wait_until,
)

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]


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
    for words in (
        ("node", "list"),
        ("chain", "list"),
        ("target", "list"),
        ("disk", "list"),
        ("table", "list"),
        ("session", "list"),
        ("move", "list"),
    ):
        assert try_admin(cluster, *words)
    shown = json.loads(try_admin(cluster, "chain", "show", "2", "--json"))
    assert shown["chain_id"] == 2 and len(shown["targets"]) == 3
    told = try_admin(cluster, "chain", "show", "2")
    assert all(str(member["target_id"]) in told for member in shown["targets"])
    assert "CHAIN_UNKNOWN" in try_admin(cluster, "chain", "show", "77", code=1)


def test_the_manager_shows_a_page(cluster):
    address = shown(ClusterDir(cluster.directory))["control"]

    def get(path):
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as reply:
            return reply.read()

    told = json.loads(get("/status.json"))
    assert told["is_primary"] and told["cluster"]["chains_complete"] == 4
    assert [n["node_id"] for n in told["nodes"]] == [
        n["node_id"] for n in rows(cluster, "node", "list")
    ]
    assert get("/") == PAGE_PATH.read_bytes()
    assert b"ember_mgmtd_is_primary" in get("/metrics")


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
    # Those are the machine's.
    assert not kinds(cluster, "warning", "critical") - {"disk-full", "lease-short"}
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
    assert any("drain of the node begins" in e["text"] for e in rows(cluster, "history"))
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
    try_admin(cluster, "node", "remove", 10077, "--drain", "--yes")
    assert 10077 not in {n["node_id"] for n in rows(cluster, "node", "list")}
    assert "name the configuration files" in try_admin_anywhere("node", "add", code=1)


def test_members_are_ordered_taken_out_and_put_back(cluster):
    wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))
    members = [t["target_id"] for t in rows(cluster, "chain", "list")[0]["targets"]]
    assert "UNSAFE_CHANGE" in try_admin(
        cluster, "chain", "remove-target", 1, members[2], "--yes", code=1
    )
    try_admin(cluster, "chain", "remove-target", 1, members[2], "--yes", "--accept-fewer")
    wait_until(
        lambda: members[2] in [t["target_id"] for t in rows(cluster, "target", "list", "--orphans")]
    )
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


LESS_PATIENT = """
from fs.app.reach import where
where.TIMEOUT_S = 3.0
from fs.app.main import main
main()
"""
"""The command `ember`, but for how long it asks a manager."""


def test_a_manager_that_is_away_is_one_line(cluster):
    pid = cluster.pid_of("control")
    os.kill(pid, signal.SIGSTOP)
    words = ["admin", "chain", "list", "--dir", str(cluster.directory)]
    command = [sys.executable, "-P", "-c", LESS_PATIENT, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    told = done.stdout + done.stderr
    assert "RPC_TIMEOUT" in told and told.count("\n") == 1


def test_a_process_of_its_own_tells_a_program(cluster):
    told = cluster.ember("admin", "cluster", "show", "--json", "--dir", cluster.directory)
    facts = json.loads(told)
    assert facts["nodes"] == {"mgmtd": 1, "meta": 1, "storage": 4, "client": 0}
    assert (facts["chains"], facts["chains_unavailable"], facts["primary"]) == (4, 0, 1)


def test_any_process_leads_to_the_cluster(cluster):
    cluster_id = rows(cluster, "cluster", "show")["cluster_id"]
    for node in rows(cluster, "node", "list"):
        words = ("--at", node["address"], "--cluster-id", cluster_id, "chain", "list", "--json")
        assert len(json.loads(try_admin_anywhere(*words, code=0))) == 4
    words = ("--at", node["address"], "--cluster-id", cluster_id, "quota", "ls", "--json")
    assert json.loads(try_admin_anywhere(*words, code=0)) == []
    words = ("--at", node["address"], "--cluster-id", "another", "chain", "list")
    assert "RPC_WRONG_CLUSTER" in try_admin_anywhere(*words, code=1)


def test_settings_are_shown_and_compared(cluster):
    storage_id = rows(cluster, "disk", "list")[0]["node_id"]
    shown = rows(cluster, "config", "get", storage_id, "--key", "process.node_id")
    assert shown == [{"key": "process.node_id", "value": storage_id}]
    assert {r["key"].partition(".")[0] for r in rows(cluster, "config", "get", 1)} >= {"meta", "kv"}
    assert rows(cluster, "config", "diff") == []


def test_settings_are_kept_taken_over_and_changed_live(cluster, tmp_path):
    node_id = rows(cluster, "disk", "list")[0]["node_id"]

    def running(key):
        return rows(cluster, "config", "get", node_id, "--key", key)[0]["value"]

    def state():
        found = {row["process"]: row for row in rows(cluster, "config", "status")}
        return found[f"node {node_id}"]["state"], found[f"node {node_id}"]["waiting"]

    text = tmp_path / "mine.toml"
    text.write_text(
        "[storage]\nlow_space_fraction = 0.07\nreject_create_free_bytes_min = 1000000\n"
    )
    for words in (("verify",), ("set", "--note", "more room")):
        shown = rows(cluster, "config", words[0], "storage", text, *words[1:])
        assert len(shown) >= 3
        for row in shown:
            assert row["live"] == ["storage.low_space_fraction"], row
            assert row["restart"] == ["storage.reject_create_free_bytes_min"], row
    wait_until(lambda: running("storage.low_space_fraction") == 0.07)
    wait_until(lambda: state() == ("stale", ["storage.reject_create_free_bytes_min"]))
    assert "does not run with all settings" in try_admin(cluster, "doctor", code={0, FOUND})
    (version,) = [r for r in rows(cluster, "config", "versions") if r["role"] == "storage"]
    assert (version["version"], version["note"]) == (1, "more room")
    text.write_text("[storage]\n\nlow_space_fraction = 7\n")
    for command in ("verify", "set"):
        assert f"{text}, line 3" in try_admin(cluster, "config", command, "storage", text, code=1)
    change = ("config", "change", node_id, "storage.low_space_fraction=0.08")
    try_admin(cluster, *change)
    wait_until(lambda: state()[0] == "dirty")
    assert running("storage.low_space_fraction") == 0.08
    for words in (("storage", "--reset"), (node_id,), (node_id, "low_space_fraction=1")):
        assert "SECTION.KEY=VALUE" in try_admin(cluster, "config", "change", *words, code=1)
    assert "cannot be reached" in try_admin(
        cluster, "config", "change", "mount", "client.verify_reads=true", "--live-only", code=1
    )
    (told,) = rows(cluster, "config", "change", "mount", "client.verify_reads=true")
    assert (told["role"], told["live"] + told["restart"]) == ("mount", ["client.verify_reads"])
    text.write_text("")
    (told,) = rows(cluster, "config", "verify", "mount", text)
    assert told["live"] + told["restart"] == ["client.verify_reads"]
    try_admin(cluster, "config", "change", node_id, "--reset")
    try_admin(cluster, "config", "set", "storage", text)
    wait_until(lambda: state() == ("normal", []))
    # The others take over what the managers keep as they hear of it, each by itself.
    wait_until(lambda: rows(cluster, "config", "diff", code={0, FOUND}) == [])


def test_lines_are_cut_at_semicolons_that_are_not_quoted():
    line = r"""a 'b;c' d; e \; "f;'" # g; h"""
    assert list(statements(line)) == ["a 'b;c' d", r""" e \; "f;'" # g; h"""]


def test_maintenance_is_announced_and_ends(cluster):
    node_id = rows(cluster, "disk", "list")[-1]["node_id"]
    assert "not replaced for 30m" in try_admin(
        cluster, "node", "maintenance", "on", node_id, "--for", "30m", "--dry-run"
    )
    try_admin(cluster, "node", "maintenance", "on", node_id, "--for", "30m", "--yes")
    assert "maintenance" in kinds(cluster, "notice")
    obstacles = rows(cluster, "upgrade", "check", code=FOUND)["obstacles"]
    assert "maintenance" in {one["kind"] for one in obstacles}
    try_admin(cluster, "node", "maintenance", "off", node_id)
    assert "maintenance" not in kinds(cluster, "notice")
    told = [e["text"] for e in rows(cluster, "history", "--node", node_id)]
    assert told[-2:] == ["maintenance begins", "maintenance ends"]
    assert "INVALID_ARGUMENT" in try_admin(
        cluster, "node", "maintenance", "on", node_id, "--for", "ever", code=1
    )


def test_an_upgrade_goes_from_the_managers_to_storage(cluster):
    wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))
    wait_until(
        lambda: (
            not print(now := rows(cluster, "upgrade", "check", code={0, FOUND})) and now["is_ready"]
        ),
        60,
    )
    found = rows(cluster, "upgrade", "check")
    assert [step["roles"] for step in found["order"]] == ["meta+mgmtd"] + ["storage"] * 4
    assert "order:" in try_admin(cluster, "upgrade", "check")


def test_a_disk_is_replaced_in_two_steps(cluster):
    node_id = rows(cluster, "disk", "list")[-1]["node_id"]
    plan = try_admin(cluster, "disk", "replace", node_id, 0, "--dry-run")
    assert f"ember admin disk replace {node_id} 0 --done" in plan
    assert "is empty" in try_admin(cluster, "disk", "replace", node_id, 0, "--yes")
    assert not [
        t for t in rows(cluster, "target", "list") if t["node_id"] == node_id and t["chain_id"]
    ]
    try_admin(cluster, "disk", "replace", node_id, 0, "--done", "--yes")
    wait_until(lambda: not rows(cluster, "move", "list")["is_rebalancing"])
    assert rows(cluster, "move", "list")["drains"] == []


def test_commands_come_through_a_pipe_until_one_fails(cluster):
    command = [EMBER, "admin", "shell", "--dir", str(cluster.directory)]
    done = subprocess.run(
        command, input="table list --json\nchain show 77\nnode list\n", capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert '"table_id": 1' in done.stdout and "connected" not in done.stdout
    assert "stdin:2: chain show 77: exit code 1" in done.stderr


def test_the_shell_completes_commands():
    def completed(*words):
        done = subprocess.run(
            [EMBER],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=os.environ
            | {
                "_EMBER_COMPLETE": "complete_bash",
                "COMP_WORDS": " ".join(words),
                "COMP_CWORD": str(len(words) - 1),
            },
        )
        return done.stdout.split()

    assert "maintenance" in completed("ember", "admin", "node", "m")
    assert "add" in completed("ember", "admin", "user", "a")


def own_commands():
    """Yield the words of every command of the tree but the aliases, with its examples."""
    tree = typer.main.get_command(admin)
    for name, found in tree.commands.items():
        if name not in ALSO:
            for path, leaf in leaves(name, found):
                yield path, examples_of(leaf)


ENDS = {
    "chain accept-disks": {1},  # no disk here is of another store
    "cluster init": {0, 1},  # the chains were made by another plan
    "config diff": {0, FOUND},
    "doctor": {0, FOUND},
    "move cancel": {1},  # there is none
    "upgrade check": {0, FOUND},
}
"""Exit codes of examples that are not 0."""


def adapted(cluster, example, inode_id):
    """Return an example with the ids and files that this cluster has."""
    words = shlex.split(example)[2:]
    members = [str(t["target_id"]) for t in rows(cluster, "chain", "list")[0]["targets"]]
    if words[:2] == ["chain", "order"]:
        words[3:] = reversed(members)
    elif words[:2] == ["chain", "add-target"]:
        try_admin(cluster, "chain", "remove-target", 1, members[2], "--yes", "--accept-fewer")
        wait_until(lambda: rows(cluster, "target", "list", "--orphans"))
        words[3] = members[2]
    elif words[:2] in (["chain", "remove-target"], ["chain", "rotate-lost"]):
        words[3] = members[2]
    folder = cluster.directory / "config"
    words = [str(folder / w) if (folder / w).exists() and w.endswith(".toml") else w for w in words]
    if words[0] == "chunks" and words[2:3] == ["4096"]:
        words[2] = str(inode_id)
    return words


def test_every_example_of_every_command_does_what_it_says(cluster, inode_id, tmp_path, monkeypatch):
    """The commands are enumerated: one without an example, or whose example fails,
    fails this test.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "commands.txt").write_text("table list\n")
    (tmp_path / "settings.toml").write_text("[storage]\nscrub_bytes_per_s_max = 4194304\n")
    chain_id = str(rows(cluster, "file", "chunks", FILE)[0]["chain_id"])
    commands = dict(own_commands())
    assert len(commands) > 50
    assert [path for path, examples in commands.items() if not examples] == []
    for path, examples in commands.items():
        for example in examples:
            words = adapted(cluster, example, inode_id)
            if "--chain" in words and words[0] == "chunks":
                words[words.index("--chain") + 1] = chain_id
            assert " ".join(words).startswith(path), example
            try_admin(cluster, *words, code=ENDS.get(path, {0}))
            if path.startswith("chain "):
                wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))


def test_the_store_is_read_when_services_are_down(cluster, inode_id, tmp_path):
    """Stops the services of the shared cluster."""
    wait_until(lambda: all(c["serving"] == 3 for c in rows(cluster, "chain", "list")))
    chains, tables = rows(cluster, "chain", "list"), rows(cluster, "table", "list")
    cluster.down()
    members = {c["chain_id"]: {t["target_id"] for t in c["targets"]} for c in chains}
    stored = rows(cluster, "chain", "list")  # their versions have gone on while processes stopped
    assert {c["chain_id"]: {t["target_id"] for t in c["targets"]} for c in stored} == members
    assert rows(cluster, "table", "list") == tables
    assert "read from the store" in try_admin(cluster, "node", "list")
    assert "services are down" in try_admin(cluster, "cluster", "show")
    assert len(rows(cluster, "target", "list")) >= 12
    assert rows(cluster, "file", "stat", FILE)["inode_id"] == inode_id
    assert rows(cluster, "file", "stat", "--inode", inode_id)["length"] == len(CONTENT)
    assert rows(cluster, "session", "files") == []
    assert rows(cluster, "gc", "status")["files"] >= 0
    assert rows(cluster, "history", "--chain", 1)[-1]["chain_version"] == stored[0]["chain_version"]
    try_admin(cluster, "dump", "inodes", tmp_path / "i.jsonl", "--format", "jsonl")
    for words in (("node", "enable", 12), ("doctor",), ("session", "list"), ("disk", "list")):
        assert "NOT_RUNNING" in try_admin(cluster, *words, code=1)
    store = store_of_cluster(ClusterDir(cluster.directory))
    before = {p.name: p.stat().st_mtime_ns for p in Path(store.section.path).iterdir()}
    words = ("--kv", store.text, "--cluster-id", store.cluster_id, "chain", "list", "--json")
    assert json.loads(try_admin_anywhere(*words, code=0)) == stored
    assert {p.name: p.stat().st_mtime_ns for p in Path(store.section.path).iterdir()} == before
    assert "say --cluster-id" in try_admin_anywhere(*words[:2], "chain", "list", code=1)
