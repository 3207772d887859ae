"""Starts of a cluster that has lost disks while nothing ran:
whatever the others have is served, and nothing old for new.
"""

import json
import os
import shutil

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.slow]

NODES = ("storage-1", "storage-2", "storage-3")


def _disk(cluster, node):
    return cluster.directory / "data" / node / "disk-0"


def _start(cluster, *options):
    return cluster.tried("up", "--until", os.getpid(), *options)


def _started(cluster):
    """Start it; return the notes."""
    started = _start(cluster, "--mount", cluster.mount)
    assert started.returncode == 0, started.stderr
    return [line for line in started.stdout.splitlines() if line.startswith("note:")]


def _forget_disk(cluster, node):
    """What the note says for a disk that is lost for good."""
    (cluster.directory / "data" / node / "disks.json").write_text("{}")


def _fill_spoilt(cluster, node):
    """Nothing of it can be read any more."""
    shutil.rmtree(_disk(cluster, node))
    _disk(cluster, node).write_bytes(b"no folder")


def test_any_disk_may_be_lost_while_nothing_runs(own_cluster):
    """The last one to stop had been waited for, with two of three equal copies at hand."""
    for number, node in enumerate(NODES):
        (own_cluster.mount / "f").write_bytes(b"kept %d" % number)
        own_cluster.wait_healthy()
        own_cluster.down()
        if node == "storage-1":
            shutil.rmtree(_disk(own_cluster, node))
        elif node == "storage-2":
            _fill_spoilt(own_cluster, node)
        else:  # with the list of disks: it starts with an empty one
            shutil.rmtree(_disk(own_cluster, node).parent)
        notes = _started(own_cluster)
        assert (own_cluster.mount / "f").read_bytes() == b"kept %d" % number
        (own_cluster.mount / "g").write_bytes(b"new %d" % number)
        if node != "storage-3":
            (note,) = notes
            assert f"{node} is missing: " in note
            assert str(_disk(own_cluster, node)) in note
            shutil.rmtree(_disk(own_cluster, node), ignore_errors=True)
            _disk(own_cluster, node).unlink(missing_ok=True)
            _forget_disk(own_cluster, node)
        own_cluster.wait_healthy()  # the supervisor starts it again by itself
        own_cluster.ember("admin", "chunks", "compare", "--dir", own_cluster.directory)
        assert (own_cluster.mount / "g").read_bytes() == b"new %d" % number


def test_what_is_older_is_not_served_for_what_is_lost(own_cluster, tmp_path):
    (own_cluster.mount / "f").write_bytes(b"old")
    own_cluster.wait_healthy()
    own_cluster.down()
    for node in NODES[1:]:
        _disk(own_cluster, node).rename(tmp_path / node)
    assert len(_started(own_cluster)) == 2  # the first has everything alone
    assert (own_cluster.mount / "f").read_bytes() == b"old"
    (own_cluster.mount / "f").write_bytes(b"new")
    own_cluster.down()
    (tmp_path / "storage-2").rename(_disk(own_cluster, "storage-2"))
    _disk(own_cluster, "storage-1").rename(tmp_path / "storage-1")
    refused = _start(own_cluster, "--mount", own_cluster.mount)
    assert refused.returncode == 1
    assert "CHAIN_UNAVAILABLE" in refused.stderr
    assert "storage-1" in refused.stderr
    _disk(own_cluster, "storage-2").rename(tmp_path / "storage-2")
    refused = _start(own_cluster, "--no-mount")  # now there is none at all
    assert refused.returncode == 1
    assert "START_FAILED" in refused.stderr
    assert "FOREIGN_DISK" in refused.stderr
    for node in NODES:
        (tmp_path / node).rename(_disk(own_cluster, node))
    assert _started(own_cluster) == []
    assert (own_cluster.mount / "f").read_bytes() == b"new"
    chains = json.loads(own_cluster.ember("status", "--dir", own_cluster.directory, "--json"))
    assert chains["chains"]
