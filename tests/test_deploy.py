"""The sample configurations are valid, and say what the sample cluster's other files say."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from fs.admin.cluster import Server, plan
from fs.runtime.config_file import read_config
from fs.schema.metric import Kind
from fs.schema.metrics import METRICS
from fs.schema.proto import common_pb2
from tests.programs import found

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
PROMTOOL = found("promtool")
SAMPLES = sorted(p for p in DEPLOY.glob("*.toml") if p.name != "inventory.toml")


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


SEEING = {
    "alerts": DEPLOY / "prometheus" / "alerts.yml",
    "dashboard": DEPLOY / "grafana" / "emberfs.json",
}


def names_of(metric):
    endings = ("_bucket", "_count", "_sum") if metric.kind is Kind.HISTOGRAM else ("",)
    return {metric.name + ending for ending in endings}


@pytest.mark.parametrize("path", SEEING.values(), ids=SEEING)
def test_dashboard_and_alerts_ask_for_metrics_that_exist(path):
    asked = set(re.findall(r"\bember_[a-z0-9_]+", path.read_text()))
    assert len(asked) > 10
    assert not asked - set().union(*map(names_of, METRICS))


def test_the_labels_of_the_dashboard_exist():
    labels = {label for metric in METRICS for label in metric.labels} | {
        "le",
        "instance",
        "job",
        "process",
    }
    for panel in json.loads(SEEING["dashboard"].read_text())["panels"]:
        for target in panel.get("targets", ()):
            used = re.findall(r"{{(\w+)}}", target["legendFormat"])
            used += re.findall(r"(\w+) *(?:=~|!=|=)[ \"]", target["expr"])
            for group in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", target["expr"]):
                used += group.split(", ")
            assert not set(used) - labels, target


def test_prometheus_asks_the_sample_cluster():
    listed = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for path in SAMPLES:
        address = read_config(path).process.metrics_address.removeprefix("tcp:")
        assert address
        if not address.startswith("127."):
            assert f'"{address}"' in listed


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool of Prometheus")
def test_prometheus_takes_configuration_and_rules():
    for command in (["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"]):
        done = subprocess.run(
            [PROMTOOL, *command],
            cwd=DEPLOY / "prometheus",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
