"""The sample configurations are valid, and say what the sample cluster's other files say."""

from pathlib import Path

import pytest

from fs.runtime.config_file import read_config

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
SAMPLES = sorted(DEPLOY.glob("*.toml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name)
def test_samples_are_valid(path):
    config = read_config(path)
    assert config.process.cluster_id == "training"
    assert config.process.mgmtd_addresses == ["tcp:10.0.0.1:7001"]


def test_node_ids_and_addresses_are_distinct():
    servers = [read_config(p).process for p in SAMPLES if p.name != "mount.toml"]
    assert (
        len({s.node_id for s in servers}) == len({s.listen for s in servers}) == len(servers) == 3
    )
