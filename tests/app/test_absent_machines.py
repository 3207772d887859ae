"""Clusters whose processes are started one by one:
without a machine that does not answer, and with a storage process that is too old.
"""

import json
import os
import socket
import sys
import time

import pytest

from tests.app.by_hand import SERVERS, TIMEOUT_S
from tests.commands import run_ember

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mount,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("key_on_mount"),
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse"),
]

OLD = """
from fs.app import storage
from fs.app.process.compose import main
storage.STORAGE_LEVEL = 0
main(storage.run)
"""
"""A storage process of a release that does not say what it knows."""


def start_all(by_hand):
    waiting = [by_hand.start(name) for name in SERVERS]
    by_hand.init()
    by_hand.wait_ready(*waiting)


def serving(by_hand):
    """Return how many targets serve, by their own word, too: a new chain begins as if all did;
    -1: no manager says.
    """
    words = ["admin", "target", "list", "--json", "--config", by_hand.file("mgmtd")]
    done = run_ember(*words, timeout=TIMEOUT_S)
    if done.returncode:
        return -1
    both = "serving", "uptodate"
    return sum((t["state"], t["local_state"]) == both for t in json.loads(done.stdout))


def until(is_met, by_hand):
    end_s = time.monotonic() + 120
    while not is_met():
        assert time.monotonic() < end_s, (serving(by_hand), by_hand.logs())
        time.sleep(0.2)


def test_a_machine_that_does_not_answer_after_an_orderly_stop_is_not_waited_for(by_hand):
    away = "storage-1"
    start_all(by_hand)
    by_hand.wait_ready(by_hand.start("mount"))
    content = os.urandom(3_000_000)
    (by_hand.mount / "file").write_bytes(content)
    run_ember("umount", by_hand.mount).check_returncode()
    by_hand.running.pop("mount").wait(60)
    for name in SERVERS:  # managers before storage
        by_hand.stop(name)
    there = [name for name in SERVERS if name != away]
    with socket.create_server(("127.0.0.1", by_hand.ports[away])):  # connects, and never answers
        by_hand.wait_ready(*[by_hand.start(name) for name in there])
        until(lambda: serving(by_hand) == 8, by_hand)
        by_hand.wait_ready(by_hand.start("mount"))
        assert (by_hand.mount / "file").read_bytes() == content
        (by_hand.mount / "other").write_bytes(content)
    by_hand.wait_ready(by_hand.start(away))
    until(lambda: serving(by_hand) == 12, by_hand)
    assert (by_hand.mount / "other").read_bytes() == content


def test_a_storage_process_that_is_too_old_is_kept_out_and_told_so(by_hand, monkeypatch):
    start_all(by_hand)
    until(lambda: serving(by_hand) == 12, by_hand)
    by_hand.stop("storage-2")
    ordinary = by_hand.command
    old = [sys.executable, "-c", OLD, by_hand.file("storage-2")]
    monkeypatch.setattr(by_hand, "command", lambda n: old if n == "storage-2" else ordinary(n))
    by_hand.start("storage-2")
    line = "is too old for the metadata of this cluster (it knows level 0, 1 is needed)"
    until(lambda: by_hand.logs().count(line) >= 2, by_hand)  # of the manager and its own
    assert serving(by_hand) == 8
    by_hand.stop("storage-2")
    monkeypatch.setattr(by_hand, "command", ordinary)
    by_hand.wait_ready(by_hand.start("storage-2"))
    until(lambda: serving(by_hand) == 12, by_hand)
