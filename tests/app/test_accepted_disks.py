"""Managers whose store is lost, beside names that are not:
a person has their new chains take the disks.
"""

import os
import shutil
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

LENIENT = """
from fs.app import mgmtd
from fs.app.process.compose import main
from fs.mgmtd import adoption
adoption.NAMESPACE_AGE_S_MIN = {age_s}
main(mgmtd.run)
"""
"""A manager to which a namespace is old enough after so long."""


def _admin(by_hand, *words):
    return run_ember("admin", *words, "--config", by_hand.file("mgmtd"), timeout=TIMEOUT_S)


def _until(by_hand, is_met, *words):
    end_s = time.monotonic() + 120
    while not is_met(found := _admin(by_hand, *words)):
        assert time.monotonic() < end_s, (found.stdout, found.stderr, by_hand.logs())
        time.sleep(0.2)
    return found


def test_disks_are_accepted_under_the_names_of_before(by_hand, monkeypatch):
    waiting = [by_hand.start(name) for name in SERVERS]
    by_hand.init()
    by_hand.wait_ready(*waiting)
    by_hand.wait_ready(by_hand.start("mount"))
    content = os.urandom(3_000_000)
    (by_hand.mount / "file").write_bytes(content)
    run_ember("umount", by_hand.mount).check_returncode()
    by_hand.running.pop("mount").wait(60)
    for name in reversed(SERVERS):
        by_hand.stop(name)
    shutil.rmtree(by_hand.base / "mgmtd" / "state")
    by_hand.wait_ready(*[by_hand.start(name) for name in SERVERS[:1]])
    by_hand.init()
    by_hand.wait_ready(*[by_hand.start(name) for name in SERVERS[1:]])
    refused = _until(
        by_hand, lambda d: d.stdout.count("on node") == 12, "chain", "accept-disks", "--yes"
    )
    assert refused.returncode == 1
    assert "its names are not those of their chunks" in refused.stderr
    by_hand.stop("mgmtd")
    ordinary = by_hand.command
    lenient = [sys.executable, "-c", LENIENT.format(age_s=-TIMEOUT_S), by_hand.file("mgmtd")]
    monkeypatch.setattr(by_hand, "command", lambda n: lenient if n == "mgmtd" else ordinary(n))
    by_hand.wait_ready(by_hand.start("mgmtd"))
    shown = _until(  # nodes are heard one after the other
        by_hand,
        lambda d: not d.returncode and d.stdout.count("on node") == 12,
        "chain",
        "accept-disks",
        "--dry-run",
    )
    assert "files get the chunks that their numbers name" in shown.stdout
    done = _until(by_hand, lambda d: not d.returncode, "chain", "accept-disks", "--yes")
    assert "12 targets are accepted" in done.stdout
    _until(by_hand, lambda d: d.stdout.count("serving") >= 12, "chain", "list")
    by_hand.wait_ready(by_hand.start("mount"))
    assert (by_hand.mount / "file").read_bytes() == content
    (by_hand.mount / "other").write_bytes(content)
    assert "no disk of another store" in _admin(by_hand, "chain", "accept-disks").stderr
