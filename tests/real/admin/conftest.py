"""A cluster for all tests of one file, and a file in it."""

import os
import subprocess

import pytest

from fs.app.quota_commands import connected
from tests.real.conftest import EMBER, Cluster

from .commands import CONTENT, FILE


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    base = tmp_path_factory.mktemp("admin")
    made = Cluster(base / "data", base / "mnt")
    try:
        made.ember(
            "up",
            "--dir",
            made.directory,
            "--no-mount",
            "--until",
            os.getpid(),
            "--nodes",
            4,
            "--chains",
            4,
        )
        made.wait_healthy()
        yield made
    finally:
        subprocess.run([EMBER, "down", "--dir", made.directory, "--wipe"], check=False)


@pytest.fixture(scope="module")
def inode_id(cluster):
    """A file of three chunks."""
    with connected(cluster.directory) as fs:
        fs.write_file(FILE, CONTENT)
        return fs.stat(FILE).inode_id
