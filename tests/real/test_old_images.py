"""A disk that was put back to an earlier state:
nobody serves it as the newest, and nothing is overwritten by it.
"""

import json
import shutil
import subprocess

import pytest

from .conftest import EMBER, Cluster

pytestmark = [pytest.mark.mount, pytest.mark.slow]
NEWER = b"what was written since" * 1000


@pytest.fixture
def alone(tmp_path):
    """A cluster of one storage process."""
    made = Cluster(tmp_path / "data", tmp_path / "mnt")
    made.mount.mkdir()
    try:
        made.up("--nodes", 1, "--replicas", 1, "--chains", 1)
        yield made
    finally:
        subprocess.run([EMBER, "down", "--dir", made.directory, "--wipe"], check=False, timeout=120)


def refused(cluster, *arguments):
    done = subprocess.run(
        [EMBER, *map(str, arguments), "--dir", cluster.directory],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


def put(directory, place):
    shutil.rmtree(place)
    shutil.copytree(directory, place, symlinks=True)


def test_a_chain_waits_for_the_right_disk_or_for_a_person(alone, tmp_path):
    path, disk = alone.mount / "f", alone.directory / "data" / "storage-1"
    path.write_bytes(b"x" * len(NEWER))
    alone.down()
    shutil.copytree(disk, tmp_path / "old", symlinks=True)
    alone.up()
    path.write_bytes(NEWER)
    alone.down()
    shutil.copytree(disk, tmp_path / "right", symlinks=True)
    put(tmp_path / "old", disk)
    assert "OLD_DISK_IMAGE" in refused(alone, "up")
    put(tmp_path / "right", disk)
    alone.up()
    assert path.read_bytes() == NEWER
    alone.down()
    put(tmp_path / "old", disk)
    alone.up("--no-mount")
    (chain,) = json.loads(alone.ember("admin", "chain", "list", "--json", "--dir", alone.directory))
    (member,) = chain["targets"]
    assert member["state"] == "lastsrv"
    accept = ("admin", "chain", "accept-old", chain["chain_id"], member["target_id"])
    plan = alone.ember(*accept, "--dry-run", "--dir", alone.directory)
    assert "OLD_DISK_IMAGE" in plan
    alone.ember(*accept, "--yes", "--dir", alone.directory)
    alone.wait_healthy()
    assert "UNSAFE_CHANGE" in refused(alone, *accept, "--yes")
    alone.down()
    alone.up()
    assert len(path.read_bytes()) == len(NEWER)
    path.write_bytes(NEWER)
    assert path.read_bytes() == NEWER
