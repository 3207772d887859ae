"""The native client on a real cluster: the documented example, and what it shares with a mount."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fs.client.blocking import connect_blocking
from fs.client.native import Identity
from fs.schema.status import FsError, Status

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

DOCUMENT = Path(__file__).parents[2] / "specs" / "native.md"


@pytest.fixture
def where(cluster):
    return [f"unix:{cluster.directory}/run/control.sock"], cluster.status()["cluster_id"]


def test_the_documented_example_runs(where):
    addresses, cluster_id = where
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    exec(example, {"addresses": addresses, "cluster_id": cluster_id})


def test_a_mount_and_a_client_see_the_same_files(where, place):
    data = os.urandom(5_000_001)
    with connect_blocking(*where) as ember:
        base = f"/{place.name}"
        ember.write_file(f"{base}/by-client", data)
        assert (place / "by-client").read_bytes() == data
        (place / "by-mount").write_bytes(data[::-1])
        assert ember.read_file(f"{base}/by-mount") == data[::-1]
        with (place / "by-mount").open("r+b") as file:
            file.write(b"overwritten in place")
        assert ember.read_file(f"{base}/by-mount")[:20] == b"overwritten in place"
        with ember.create(f"{base}/by-mount", truncate=False) as file:
            file.write(0, b"OVERWRITTEN")
        assert (place / "by-mount").read_bytes()[:20] == b"OVERWRITTEN in place"


def test_threads_share_a_client(where, place):
    with connect_blocking(*where) as ember, ThreadPoolExecutor(8) as pool:
        base = f"/{place.name}"

        def turn(i):
            data = os.urandom(1000 + i * 5000)
            ember.write_file(f"{base}/{i}", data)
            return ember.read_file(f"{base}/{i}") == data

        assert all(pool.map(turn, range(64)))
        assert len(ember.listdir(base)) == 64


def test_errors_and_rights(where, place):
    place.chmod(0o755)
    stranger = Identity(65_533, 65_533)
    with connect_blocking(*where, identity=stranger) as ember:
        with pytest.raises(FsError) as caught:
            ember.write_file(f"/{place.name}/f", b"x")
        assert caught.value.status is Status.ACCESS_DENIED
        with pytest.raises(FsError) as caught:
            ember.open(f"/{place.name}/missing")
        assert caught.value.status is Status.NOT_FOUND


def test_a_wrong_cluster_id_is_told_at_once(where):
    addresses, _ = where
    began = time.monotonic()
    with pytest.raises(FsError) as caught, connect_blocking(addresses, "another-cluster"):
        raise AssertionError("connected to a cluster of another name")
    assert caught.value.status is Status.RPC_WRONG_CLUSTER
    assert time.monotonic() - began < 60
