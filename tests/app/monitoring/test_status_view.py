"""What `ember status` says of a chain's member."""

import os

import pytest

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.monitoring import status_view
from fs.app.monitoring.status_view import (
    failure_texts,
    loss_texts,
    move_text,
    render,
    slow_texts,
    target_text,
)

FINE = {"target_id": 1001, "state": "serving", "resync": None, "is_slow": False, "trouble": ""}


def progress(**figures):
    usual = {"chunks_done": 0, "chunks_total": 0, "bytes_done": 0, "bytes_total": 0, "eta_s": 0.0}
    return {**FINE, "state": "syncing", "resync": {**usual, **figures}}


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (FINE, "1001 serving"),
        (progress(), "1001 syncing"),
        (progress(chunks_done=1, chunks_total=4), "1001 syncing (25%)"),
        (
            progress(bytes_done=999, bytes_total=1000, eta_s=125.4),
            "1001 syncing (99%, 2m05s left)",
        ),
        (FINE | {"is_slow": True, "trouble": "EIO"}, "1001 serving (slow, EIO)"),
    ],
)
def test_a_member_is_shown_with_what_is_to_be_known_of_it(target, text):
    assert target_text(target) == text


def test_a_slow_disk_is_told_once_for_its_node():
    def member(target_id, node_id, is_slow):
        return FINE | {"target_id": target_id, "node_id": node_id, "is_slow": is_slow}

    chains = [
        {"targets": [member(1002, 1, True), member(2001, 2, False)]},
        {"targets": [member(2002, 2, False), member(1001, 1, True)]},
    ]
    (line,) = slow_texts(chains)
    assert line.startswith("problem: node 1 has a slow disk, below targets 1001, 1002: ")
    assert not slow_texts([{"targets": [member(2001, 2, False)]}])


def test_a_move_is_shown_with_its_trouble():
    move = {
        "move_id": 7,
        "chain_id": 1,
        "leaving_target_id": 1001,
        "joining_target_id": 4001,
        "node_id": 14,
        "reason": "drain",
        "state": "joining",
        "trouble": "",
    }
    text = "move 7 (drain): joining: chain 1, target 1001 -> 4001 on node 14"
    assert move_text(move) == text
    assert move_text(move | {"trouble": "NO_SPACE"}) == f"{text} (NO_SPACE)"


def test_only_chains_that_lost_something_are_told():
    chains = [{"chain_id": 1, "loss_count": 0}, {"chain_id": 2, "loss_count": 3}]
    (line,) = loss_texts(chains)
    assert line.startswith("losses: chain 2: 3 so far")


@pytest.mark.parametrize(
    ("is_mounted", "pid", "state"),
    [
        (True, 7, "mounted"),
        (True, None, "dead"),
        (False, 7, "not mounted"),
        (False, None, "not mounted"),
    ],
)
def test_a_mount_is_judged_without_being_asked(monkeypatch, is_mounted, pid, state):
    """It answers nothing while metadata is away, which is when somebody looks."""

    def ask(*_args, **_more):
        pytest.fail("the mount was asked")

    monkeypatch.setattr(status_view, "is_mounted", lambda _path: is_mounted)
    for name in ("stat", "statvfs", "listdir"):
        monkeypatch.setattr(os, name, ask)
    service = {"mount_point": "/mnt/ember", "pid": pid}
    assert status_view._mount(service) == {"mount_point": "/mnt/ember", "state": state}


def test_a_process_that_does_not_start_is_told_with_what_its_log_says(tmp_path):
    """Only `exit code 1` was to be seen, and not where to look."""
    directory = ClusterDir(tmp_path)
    directory.make_folders()
    directory.log_path("storage-2").write_text("error: IO_ERROR: disk 0\n\n")
    services = [
        {"name": "control", "state": "running", "last_exit": "killed by SIGKILL"},
        {"name": "storage-1", "state": "starting", "last_exit": ""},
        {"name": "storage-2", "state": "restarting", "last_exit": "exit code 1"},
        {"name": "storage-3", "state": "stopped", "last_exit": "exit code 0"},
    ]
    (line,) = failure_texts(directory, services)
    assert line.startswith("problem: storage-2 has ended (exit code 1) and is started again; ")
    assert line.endswith(f"{directory.log_path('storage-2')}, ends with: error: IO_ERROR: disk 0")


def test_trouble_of_the_store_is_shown():
    status = {
        **dict.fromkeys(("cluster_id", "directory", "primary", "manager_problem"), ""),
        **{
            key: []
            for key in ("services", "failures", "chains", "moves", "move_problems", "mounts")
        },
        "kv": "rocksdb",
        "store_trouble": "the disk is full",
        "space": {"free_bytes": 1, "capacity_bytes": 2},
    }
    assert "problem: the disk is full" in render(status, 0.0).splitlines()
    assert "problem" not in render(status | {"store_trouble": ""}, 0.0)
