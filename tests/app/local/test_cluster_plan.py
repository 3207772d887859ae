"""Plans of local clusters: every size that is accepted gives balanced chains on distinct nodes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.app.local.cluster_plan import (
    check_sizes,
    default_chain_count,
    mount_config,
    node_rows,
    plan_chains,
    server_configs,
    targets_of_node,
)
from fs.app.machine.cluster_dir import ClusterDir, ClusterRecord, usual_key_file
from fs.rpc.credential_files import TOKEN_FILE_VARIABLE
from fs.schema.config import check_relations
from fs.schema.routing import REPLICA_COUNT_MAX
from fs.schema.status import FsError, Status
from placement.check import check
from placement.model import Disk, Site


@st.composite
def records(draw):
    nodes = draw(st.integers(1, 12))
    replicas = draw(st.integers(1, min(nodes, REPLICA_COUNT_MAX)))
    return ClusterRecord("c", nodes, replicas, draw(st.integers(1, 40)), "")


@pytest.mark.thorough
@settings(deadline=None, max_examples=20)
@given(records())
def test_chains_use_distinct_nodes_evenly(record):
    check_sizes(record)
    chains = plan_chains(record)
    assert len(chains) == record.chain_count
    for chain in chains:
        assert len({node for _, node in chain.targets}) == record.replica_count
    targets = [target for chain in chains for target, _ in chain.targets]
    assert len(set(targets)) == len(targets)
    load = Counter(node for chain in chains for _, node in chain.targets)
    load.update(dict.fromkeys(range(11, 11 + record.node_count), 0))
    assert max(load.values()) - min(load.values()) <= record.replica_count
    assert sum(len(targets_of_node(chains, n)) for n in load) == len(targets)


@pytest.mark.parametrize(
    ("nodes", "replicas"), [(2, 2), (3, 2), (3, 3), (4, 3), (5, 2), (5, 3), (6, 3), (7, 3), (9, 3)]
)
def test_by_default_all_others_feed_a_lost_node_equally(nodes, replicas):
    """The survivors' load when any node of a usual local cluster is brought up to date:
    largest over mean 1.0.
    """
    chains = default_chain_count(nodes, replicas)
    assert 2 * nodes <= chains <= 4 * nodes
    rows = node_rows(ClusterRecord("c", nodes, replicas, chains, ""), list(range(11, 11 + nodes)))
    table = [tuple(Site(node, 0) for node in row) for row in rows]
    figures = check(table, [Disk(Site(node, 0)) for node in range(11, 11 + nodes)])
    assert figures.node_lost.worst == 1.0
    assert figures.node_heads.largest - figures.node_heads.smallest <= 1


@pytest.mark.parametrize(
    ("nodes", "replicas", "chains"),
    [(2, 3, 6), (0, 1, 1), (3, 0, 1), (3, 3, 0), (65, 3, 1), (9, 6, 9)],
)
def test_impossible_sizes_are_refused(nodes, replicas, chains):
    with pytest.raises(FsError) as caught:
        check_sizes(ClusterRecord("c", nodes, replicas, chains, ""))
    assert caught.value.status is Status.BAD_CONFIG


def test_the_remedy_for_a_wrong_number_of_copies_is_right():
    """Of --replicas 0 it was said: give --nodes 1."""
    with pytest.raises(FsError, match=r"; give --replicas 3\)"):
        check_sizes(ClusterRecord("c", 3, 0, 6, ""))
    with pytest.raises(FsError, match=r"; give --nodes 4 or --replicas 3\)"):
        check_sizes(ClusterRecord("c", 3, 4, 6, ""))


def test_configurations_agree_with_each_other():
    record = ClusterRecord("c", 3, 2, 4, "")
    made = server_configs(ClusterDir(Path("/c")), record)
    assert list(made) == ["control", "storage-1", "storage-2", "storage-3"]
    for config in made.values():
        check_relations(config)
    control, storage = made["control"], made["storage-2"]
    assert control.meta.stripe_size == 4
    assert storage.process.node_id == 12
    assert storage.process.mgmtd_addresses == [control.process.listen]
    assert storage.storage.disks[0].target_ids == targets_of_node(plan_chains(record), 12)
    mgmtd = control.mgmtd  # a silent primary is replaced before nodes would have to stop serving
    unheard_s = mgmtd.primary_lease_s + mgmtd.primary_extend_interval_s + mgmtd.heartbeat_interval_s
    assert unheard_s < mgmtd.node_lease_s


@pytest.mark.parametrize(("mgmtds", "metas"), [(3, 3), (1, 2), (2, 1), (9, 9)])
def test_several_services_share_one_store(mgmtds, metas):
    directory = ClusterDir(Path("/c"))
    record = ClusterRecord("c", 3, 3, 6, "", mgmtd_count=mgmtds, meta_count=metas)
    check_sizes(record)
    made = server_configs(directory, record)
    for config in made.values():
        check_relations(config)
    names = [f"mgmtd-{i + 1}" for i in range(mgmtds)] + [f"meta-{i + 1}" for i in range(metas)]
    assert list(made)[: 1 + len(names)] == ["kv", *names]
    alone = server_configs(directory, ClusterRecord("c", 3, 3, 6, ""))["control"]
    assert made["kv"].kv == alone.kv  # the same store, whoever holds it
    for name in names:
        assert made[name].kv.engine == "remote"
        assert made[name].kv.address == made["kv"].process.listen
    managers = [made[f"mgmtd-{i + 1}"].process.listen for i in range(mgmtds)]
    assert all(config.process.mgmtd_addresses == managers for config in made.values())
    ids = [config.process.node_id for name, config in made.items() if name != "kv"]
    assert len(set(ids)) == len(ids)
    assert 0 not in ids


@pytest.mark.parametrize(("mgmtds", "metas"), [(0, 1), (1, 0), (10, 1), (1, 10)])
def test_impossible_service_counts_are_refused(mgmtds, metas):
    with pytest.raises(FsError) as caught:
        check_sizes(ClusterRecord("c", 3, 3, 6, "", mgmtd_count=mgmtds, meta_count=metas))
    assert caught.value.status is Status.BAD_CONFIG


def test_each_storage_process_keeps_its_list_of_disks_beside_them():
    record = ClusterRecord("c", 3, 3, 6, "")
    configs = server_configs(ClusterDir(Path("/d")), record)
    for name, config in configs.items():
        for disk in config.storage.disks:
            assert Path(disk.path).parent == Path(config.process.directory)
            assert name in disk.path


def test_every_process_of_a_closed_cluster_has_its_key():
    directory = ClusterDir(Path("/c"))
    record = ClusterRecord("c", 2, 2, 2, "", mgmtd_count=2, is_closed=True)
    made = server_configs(directory, record)
    mount = mount_config(directory, record, Path("/m"))
    for config in (*made.values(), mount):
        check_relations(config)
        assert config.auth.key_file == "/c/cluster.key"
    assert server_configs(directory, replace(record, is_closed=False))["kv"].auth.key_file == ""


def test_who_names_a_token_is_its_user(monkeypatch):
    directory, record = ClusterDir(Path("/c")), ClusterRecord("c", 1, 1, 1, "", is_closed=True)
    monkeypatch.delenv(TOKEN_FILE_VARIABLE, raising=False)
    assert usual_key_file(directory, record) == "/c/cluster.key"
    assert not usual_key_file(directory, replace(record, is_closed=False))
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, "/token")
    assert not usual_key_file(directory, record)
