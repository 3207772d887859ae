"""Processes die under a copy: it pauses, ends without error, and every replica is equal afterwards."""

import os
import signal
import subprocess
import sys
import time

import pytest

from .conftest import run

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]

HEARTBEAT = """
import os, sys, time
path = sys.argv[1]
longest = 0.0
index = 0
while not os.path.exists(path + ".stop"):
    began = time.monotonic()
    with open(f"{path}.{index % 50}", "wb") as file:
        file.write(b"x" * 20000)
    longest = max(longest, time.monotonic() - began)
    index += 1
print(longest, index)
"""


@pytest.mark.parametrize(
    "victims", [("storage-1",), ("control",), ("storage-2", "control")], ids="+".join
)
def test_copy_survives_the_death_of(own_cluster, library_tree, victims, report_figure):
    probe = subprocess.Popen(
        [sys.executable, "-c", HEARTBEAT, own_cluster.mount / "probe"],
        stdout=subprocess.PIPE,
        text=True,
    )
    copy = subprocess.Popen(["cp", "-r", library_tree, own_cluster.mount / "lib"])
    for victim in victims:
        time.sleep(1.0)
        assert copy.poll() is None, "the copy ended before the kill"
        os.kill(own_cluster.pid_of(victim), signal.SIGKILL)
    assert copy.wait(300) == 0
    (own_cluster.mount / "probe.stop").touch()
    longest, written = probe.communicate(timeout=60)[0].split()
    assert probe.returncode == 0
    run("diff", "-r", library_tree, own_cluster.mount / "lib")
    healed_s = own_cluster.wait_healthy()
    comparison = own_cluster.ember("admin", "chunks", "compare", "--dir", own_cluster.directory)
    report_figure(
        f"{' and '.join(victims)} killed: longest pause of a writer {float(longest):.2f} s"
        f" over {written} writes, all replicas serving {healed_s:.1f} s after the copy;"
        f" {comparison.strip().splitlines()[-1]}"
    )
    restarts = {s["name"]: s["restart_count"] for s in own_cluster.status()["services"]}
    assert {name: count for name, count in restarts.items() if count} == dict.fromkeys(victims, 1)
    assert float(longest) < 15
