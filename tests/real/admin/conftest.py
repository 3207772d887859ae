"""A cluster for all tests of one file, and a file in it."""

import os

import pytest

from fs.app.reach.meant_cluster import connected
from tests.real.conftest import Cluster

from .commands import CONTENT, FILE


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    base = tmp_path_factory.mktemp("admin")
    made = Cluster(base / "data", base / "mnt")
    try:
        sizes = ("--nodes", 4, "--chains", 4)
        made.ember("up", "--dir", made.directory, "--no-mount", "--until", os.getpid(), *sizes)
        made.wait_healthy()
        yield made
    finally:
        made.wipe()


@pytest.fixture(scope="module")
def inode_id(cluster):
    """A file of three chunks."""
    with connected(cluster.directory) as fs:
        fs.write_file(FILE, CONTENT)
        return fs.stat(FILE).inode_id
