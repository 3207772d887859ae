"""A disk that was put back to an earlier state:
nobody serves it as the newest, and nothing is overwritten by it.
"""

import json
import shutil

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.slow]
NEWER = b"what was written since" * 1000


def refused(cluster, *arguments):
    done = cluster.tried(*arguments)
    assert done.returncode != 0, done.stdout
    return done.stderr


def put(directory, place):
    shutil.rmtree(place)
    shutil.copytree(directory, place, symlinks=True)


def test_a_chain_waits_for_the_right_disk_or_for_a_person(lone_cluster, tmp_path):
    path, disk = lone_cluster.mount / "f", lone_cluster.directory / "data" / "storage-1"
    path.write_bytes(b"x" * len(NEWER))
    lone_cluster.down()
    shutil.copytree(disk, tmp_path / "old", symlinks=True)
    lone_cluster.up()
    path.write_bytes(NEWER)
    lone_cluster.down()
    shutil.copytree(disk, tmp_path / "right", symlinks=True)
    put(tmp_path / "old", disk)
    assert "OLD_DISK_IMAGE" in refused(lone_cluster, "up")
    put(tmp_path / "right", disk)
    lone_cluster.up()
    assert path.read_bytes() == NEWER
    lone_cluster.down()
    put(tmp_path / "old", disk)
    lone_cluster.up("--no-mount")
    (chain,) = json.loads(
        lone_cluster.ember("admin", "chain", "list", "--json", "--dir", lone_cluster.directory)
    )
    (member,) = chain["targets"]
    assert member["state"] == "lastsrv"
    accept = ("admin", "chain", "accept-old", chain["chain_id"], member["target_id"])
    plan = lone_cluster.ember(*accept, "--dry-run", "--dir", lone_cluster.directory)
    assert "OLD_DISK_IMAGE" in plan
    lone_cluster.ember(*accept, "--yes", "--dir", lone_cluster.directory)
    lone_cluster.wait_healthy()
    assert "UNSAFE_CHANGE" in refused(lone_cluster, *accept, "--yes")
    lone_cluster.down()
    lone_cluster.up()
    assert len(path.read_bytes()) == len(NEWER)
    path.write_bytes(NEWER)
    assert path.read_bytes() == NEWER
