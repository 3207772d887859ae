"""A metadata store that is gone: no empty namespace takes its place,
and what is brought back serves.
"""

import shutil
import subprocess

import pytest

from .conftest import EMBER

pytestmark = [pytest.mark.mount, pytest.mark.slow]


def _refused_up(cluster):
    done = subprocess.run(
        [EMBER, "up", "--dir", cluster.directory, "--mount", cluster.mount],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_a_lost_store_is_brought_back_or_restored(own_cluster, tmp_path):
    (own_cluster.mount / "f").write_bytes(b"kept")
    own_cluster.down()
    own_cluster.ember("backup", tmp_path / "meta.bak", "--dir", own_cluster.directory)
    store = own_cluster.directory / "data" / "control" / "kv"
    store.rename(tmp_path / "aside")
    assert "KV_EMPTY" in _refused_up(own_cluster)
    assert not store.exists()
    shutil.copytree(tmp_path / "aside", store)
    own_cluster.up()
    assert (own_cluster.mount / "f").read_bytes() == b"kept"
    own_cluster.down()
    shutil.rmtree(store)
    own_cluster.ember("restore", tmp_path / "meta.bak", "--dir", own_cluster.directory)
    own_cluster.up()
    assert (own_cluster.mount / "f").read_bytes() == b"kept"
