"""The sample configurations are valid, and say what the sample cluster's other files say."""

from pathlib import Path

import pytest
from msgspec import structs

from fs.admin.cluster import Server, plan
from fs.runtime.config_file import read_config
from fs.schema.proto import common_pb2

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
SAMPLES = sorted(DEPLOY.glob("*.toml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name)
def test_samples_are_valid(path):
    config = read_config(path)
    assert config.process.cluster_id == "training"
    assert config.process.mgmtd_addresses == ["tcp:10.0.0.1:7001"]


def test_node_ids_and_addresses_are_distinct():
    servers = [read_config(p).process for p in SAMPLES if p.name not in {"mountd.toml", "kv.toml"}]
    assert (
        len({s.node_id for s in servers}) == len({s.listen for s in servers}) == len(servers) == 3
    )


def test_the_unit_finds_a_sample_for_every_role():
    """`ember@NAME` runs `ember NAME --config /etc/emberfs/NAME.toml`."""
    unit = (DEPLOY / "ember@.service").read_text()
    assert "ember %i --config /etc/emberfs/%i.toml" in unit
    assert {p.stem for p in SAMPLES} == {"mgmtd", "meta", "storage", "mountd", "kv"}


def test_the_sample_cluster_can_be_planned():
    """Three storage nodes that differ from the sample as deploy/README.md says."""
    mgmtd, meta, sample = (read_config(DEPLOY / f"{n}.toml") for n in ("mgmtd", "meta", "storage"))
    storage = []
    for node_id in (11, 12, 13):
        listen = f"tcp:10.0.0.{node_id}:7010"
        process = structs.replace(sample.process, node_id=node_id, listen=listen)
        disks = [
            structs.replace(d, target_ids=[t % 1000 + node_id * 1000 for t in d.target_ids])
            for d in sample.storage.disks
        ]
        config = structs.replace(
            sample, process=process, storage=structs.replace(sample.storage, disks=disks)
        )
        storage.append(Server(f"{node_id}", (common_pb2.STORAGE,), config))
    servers = [
        Server("mgmtd", (common_pb2.MGMTD,), mgmtd),
        Server("meta", (common_pb2.META,), meta),
    ]
    made = plan([*servers, *storage], 3)
    assert (len(made.nodes), len(made.chains)) == (5, 4)
