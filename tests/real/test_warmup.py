"""`ember warmup` and prefetching on a real cluster."""

import json
import os

import pytest

from fs.client.blocking import connect_blocking

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_replica_reads(cluster, place):
    (place / "d").mkdir()
    sizes = {"d/a": 3_000_000, "d/b": 70_000, "c": 0}
    for name, size in sizes.items():
        (place / name).write_bytes(os.urandom(size))
    # A replica that is still brought up to date is not read; a cluster may just have been started.
    cluster.wait_healthy()
    said = json.loads(cluster.ember("warmup", place, "--json", "--dir", cluster.directory))
    total = sum(sizes.values())
    assert (said["file_count"], said["byte_count"], said["read_bytes"]) == (3, total, 3 * total)
    assert (said["is_complete"], said["failures"]) == (True, [])
    assert said["last_path"] == f"/{place.name}/d/b"
    again = cluster.ember(
        "warmup", place, "--after", f"/{place.name}/c", "--dir", cluster.directory
    )
    assert again.startswith("2 files")


def test_a_range_is_prefetched(cluster, place):
    (place / "f").write_bytes(os.urandom(2_000_000))
    cluster.wait_healthy()
    address = f"unix:{cluster.directory}/run/control.sock"
    with (
        connect_blocking([address], cluster.status()["cluster_id"]) as ember,
        ember.open(f"/{place.name}/f") as file,
    ):
        assert file.prefetch(1_500_000, 10**9) == (3 * 500_000, [])
        assert file.prefetch(10**9) == (0, [])


def test_links_are_followed_and_the_cluster_is_found_by_its_mount(cluster, place, tmp_path):
    (place / "step-100").mkdir()
    (place / "step-100" / "f").write_bytes(os.urandom(100_000))
    (place / "latest").symlink_to(place / "step-100")  # absolute, as programs make them
    (tmp_path / "model").symlink_to(place / "latest")
    for path in (place / "latest", place / "latest" / "f", tmp_path / "model"):
        said = json.loads(cluster.ember("warmup", path, "--json"))
        assert (said["file_count"], said["byte_count"]) == (1, 100_000)
    assert cluster.ember("warmup", place / "latest", "--after", place / "latest" / "f")[0] == "0"
