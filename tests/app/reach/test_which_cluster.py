"""A cluster is only assumed to be the one that is meant where there is just one."""

from pathlib import Path

import pytest

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.reach import which_cluster
from fs.app.reach.which_cluster import chosen_directory
from fs.schema.status import FsError, Status


def test_the_given_directory_is_never_second_guessed(monkeypatch, tmp_path):
    monkeypatch.setattr(which_cluster, "cluster_directories", lambda: [Path("/other")])
    assert chosen_directory(tmp_path) == ClusterDir(tmp_path)


@pytest.mark.parametrize("others", [[], ["/one"]])
def test_the_only_running_cluster_is_found(monkeypatch, tmp_path, others):
    monkeypatch.setattr(which_cluster, "default_directory", lambda: tmp_path)
    monkeypatch.setattr(which_cluster, "cluster_directories", lambda: [Path(o) for o in others])
    assert chosen_directory(None) == ClusterDir(Path(others[0]) if others else tmp_path)


def test_several_running_clusters_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(which_cluster, "default_directory", lambda: tmp_path)
    monkeypatch.setattr(which_cluster, "cluster_directories", lambda: [Path("/one"), Path("/two")])
    with pytest.raises(FsError) as caught:
        chosen_directory(None)
    assert caught.value.status is Status.BAD_CLUSTER_DIR
    assert "--dir: /one, /two" in caught.value.detail
