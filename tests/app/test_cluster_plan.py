"""Plans of local clusters: every size that is accepted gives balanced chains on distinct nodes."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.app.cluster_dir import ClusterDir, ClusterRecord
from fs.app.cluster_plan import (
    check_sizes,
    control_config,
    plan_chains,
    storage_config,
    targets_of_node,
)
from fs.schema.config import check_relations
from fs.schema.routing import REPLICA_COUNT_MAX
from fs.schema.status import FsError, Status


@st.composite
def records(draw):
    nodes = draw(st.integers(1, 12))
    replicas = draw(st.integers(1, min(nodes, REPLICA_COUNT_MAX)))
    return ClusterRecord("c", nodes, replicas, draw(st.integers(1, 40)), "")


@settings(deadline=None, max_examples=40)
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
    ("nodes", "replicas", "chains"),
    [(2, 3, 6), (0, 1, 1), (3, 0, 1), (3, 3, 0), (65, 3, 1), (9, 6, 9)],
)
def test_impossible_sizes_are_refused(nodes, replicas, chains):
    with pytest.raises(FsError) as caught:
        check_sizes(ClusterRecord("c", nodes, replicas, chains, ""))
    assert caught.value.status is Status.BAD_CONFIG


def test_configurations_agree_with_each_other():
    record = ClusterRecord("c", 3, 2, 4, "")
    directory = ClusterDir(Path("/c"))
    control = control_config(directory, record)
    check_relations(control)
    assert control.meta.stripe_size == 4
    storage = storage_config(directory, record, "storage-2", plan_chains(record))
    check_relations(storage)
    assert storage.process.node_id == 12
    assert storage.process.mgmtd_addresses == [control.process.listen]
    assert storage.storage.disks[0].target_ids == targets_of_node(plan_chains(record), 12)
