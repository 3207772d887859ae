"""A metadata store that is gone: no empty namespace takes its place,
and what is brought back serves.
"""

import shutil

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.slow]


def _refused_up(cluster):
    done = cluster.tried("up", "--mount", cluster.mount)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_a_lost_store_is_brought_back_or_restored(lone_cluster, tmp_path):
    (lone_cluster.mount / "f").write_bytes(b"kept")
    lone_cluster.down()
    lone_cluster.ember("backup", tmp_path / "meta.bak", "--dir", lone_cluster.directory)
    store = lone_cluster.directory / "data" / "control" / "kv"
    store.rename(tmp_path / "aside")
    assert "KV_EMPTY" in _refused_up(lone_cluster)
    assert not store.exists()
    shutil.copytree(tmp_path / "aside", store)
    lone_cluster.up()
    assert (lone_cluster.mount / "f").read_bytes() == b"kept"
    lone_cluster.down()
    shutil.rmtree(store)
    lone_cluster.ember("restore", tmp_path / "meta.bak", "--dir", lone_cluster.directory)
    lone_cluster.up()
    assert (lone_cluster.mount / "f").read_bytes() == b"kept"
