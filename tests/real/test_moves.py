"""Real processes and disks: a storage node is drained and filled again under load,
while manager and nodes are killed.

The writer makes, reads back and removes files all the time; in the end every
file is there, on equal replicas.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fs.app.machine.cluster_dir import ClusterDir, need_record
from fs.app.reach.mgmtd_link import mgmtd_addresses, run_with_mgmtd
from fs.schema import services
from fs.schema.proto import mgmtd_pb2 as pb

from .conftest import Cluster, scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

WRITER = """
import hashlib, os, sys, time
path, index, kept = sys.argv[1], 0, {}
while not os.path.exists(path + ".stop"):
    name, content = f"{path}.{index % 20}", os.urandom(150_000)
    with open(name, "wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    kept[name] = hashlib.sha1(content).digest()
    other = f"{path}.{index * 7 % 20}"
    if other in kept:
        with open(other, "rb") as file:
            assert hashlib.sha1(file.read()).digest() == kept[other], other
    index += 1
    time.sleep(0.05)  # at full speed it takes most of the machine
print(index)
"""


def call(cluster: Cluster, method, request):
    directory = ClusterDir(cluster.directory)
    record = need_record(directory)

    async def use(mgmtd, _channels):
        return await mgmtd.call(method, request, timeout_s=60)

    addresses = mgmtd_addresses(directory, record)
    return run_with_mgmtd(addresses, record.cluster_id, use, timeout_s=60)


def wait_moved(cluster: Cluster, is_over, timeout_s: float = 240) -> None:
    """Wait until nothing moves any more and the listing is as wanted."""
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        reply = call(cluster, services.MGMTD_LIST_MOVES, pb.ListMovesReq())
        if not reply.moves and is_over(reply):
            return
        time.sleep(0.3)
    raise AssertionError(reply)


def members_per_node(cluster: Cluster) -> Counter[int]:
    chains = cluster.status()["chains"]
    assert all(len(c["targets"]) == 3 for c in chains)
    return Counter(t["node_id"] for c in chains for t in c["targets"])


def test_a_node_is_drained_and_filled_again_under_load_and_kills(tmp_path):
    cluster = Cluster(tmp_path / "data", tmp_path / "mnt")
    cluster.mount.mkdir()
    try:
        cluster.up("--nodes", 4, "--replicas", 3, "--chains", 8)
        drain_and_fill(cluster, cluster.mount / "load", scaled(1, 10))
    finally:
        cluster.wipe()


def drain_and_fill(cluster: Cluster, load: Path, rounds: int) -> None:
    before = members_per_node(cluster)
    drain = pb.DrainPb(node_id=11)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(load)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(rounds):
        time.sleep(1)
        reply = call(cluster, services.MGMTD_START_DRAIN, pb.StartDrainReq(drain=drain))
        assert reply.target_count > 0
        time.sleep(1)
        os.kill(pid := cluster.pid_of("control"), signal.SIGKILL)
        wait_moved(cluster, lambda r: r.drains[0].target_count == 0)
        cluster.wait_successor("control", pid)
        cluster.wait_healthy(120)
        assert 11 not in members_per_node(cluster)
        call(cluster, services.MGMTD_CANCEL_DRAIN, pb.CancelDrainReq(drain=drain))
        call(cluster, services.MGMTD_START_REBALANCE, pb.StartRebalanceReq())
        time.sleep(1)
        os.kill(pid := cluster.pid_of("storage-2"), signal.SIGKILL)
        wait_moved(cluster, lambda r: not r.is_rebalancing)
        cluster.wait_successor("storage-2", pid)
        cluster.wait_healthy(120)
        assert members_per_node(cluster) == before
    Path(f"{load}.stop").touch()
    count, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0
    assert int(count) > 5 * rounds
    cluster.ember("admin", "chunks", "compare", "--dir", cluster.directory)
