"""A request of a program followed through the processes of a cluster that runs:
mount, metadata service, head, middle, tail.
"""

import json
import os
import signal
import subprocess

import pytest

from .conftest import EMBER

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]


def positions(rows):
    return {row["attributes"].get("position") for row in rows}


def processes(rows):
    return {row["where"].split()[0] for row in rows}


def test_a_mount_tells_its_settings(cluster):
    told = json.loads(cluster.ember("admin", "config", "get", cluster.mount, "--json"))
    values = {row["key"]: row["value"] for row in told}
    assert values["client.mount_point"] == str(cluster.mount)
    refused = subprocess.run(
        [EMBER, "admin", "config", "get", cluster.directory],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1 and "no mount that tells its settings" in refused.stderr


def test_a_write_and_a_read_are_followed_through_all_processes(cluster, place):
    command = [
        EMBER,
        "admin",
        "trace",
        cluster.mount,
        "--seconds",
        "500",
        "--count",
        "1000",
        "--json",
        "--dir",
        cluster.directory,
    ]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = watching.stderr.readline()
        assert line.startswith("tracing in "), line + watching.stderr.read()
        path = place / "followed"
        with path.open("wb") as file:
            file.write(os.urandom(300_000))
            file.flush()
            os.fsync(file.fileno())
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert len(file.read(300_000)) == 300_000
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=300)
    finally:
        watching.kill()
        watching.wait()
    assert watching.returncode == 0, err
    traces = {}
    for row in json.loads(out):
        traces.setdefault(row["trace_id"], []).append(row)
    written = [t for t in traces.values() if {"head", "middle", "tail"} <= positions(t)]
    assert written, traces
    assert any(processes(t) >= {"mount", "meta+mgmtd", "storage"} for t in written)
    for found in written:
        nodes = [r["where"] for r in found if r["attributes"].get("position")]
        assert len(nodes) == len(set(nodes))
        assert all(r["parent_id"] for r in found[1:])
    reads = [t for t in traces.values() if t[0]["name"] == "read" and "storage" in processes(t)]
    assert reads, {t[0]["name"] for t in traces.values()}
    before = cluster.ember(
        "admin", "trace", cluster.mount, "--seconds", 1, "--json", "--dir", cluster.directory
    )
    assert not {row["trace_id"] for row in json.loads(before)} & set(traces)
