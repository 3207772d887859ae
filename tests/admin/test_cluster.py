"""Plans of new clusters: every target used once, contradictions named."""

from collections import Counter

import pytest

from fs.admin.cluster import Server, initialise, plan
from fs.schema.config import DiskSection, ProcessConfig, ProcessSection, StorageSection
from fs.schema.proto import common_pb2, mgmtd_pb2
from fs.schema.status import FsError, Status

MANAGER = "tcp:10.0.0.1:7001"


def server(node_id, disks=(), *, name=None, port=None, cluster_id="training"):
    config = ProcessConfig(
        process=ProcessSection(
            cluster_id=cluster_id,
            node_id=node_id,
            listen=f"tcp:10.0.0.1:{port or 7000 + node_id}",
            mgmtd_addresses=[MANAGER],
        ),
        storage=StorageSection(
            disks=[DiskSection(path=f"/disks/{i}", target_ids=t) for i, t in enumerate(disks)]
        ),
    )
    role = common_pb2.STORAGE if disks else common_pb2.MGMTD
    return Server(name or f"{node_id}.toml", (role,), config)


def storage(node_id, **kwargs):
    base = node_id * 1000
    return server(node_id, [[base + 1, base + 2], [base + 3]], **kwargs)


def test_every_target_is_used_once_on_the_disk_that_has_it():
    made = plan([server(1), storage(11), storage(12), storage(13)], 3)
    assert [node.node_id for node in made.nodes] == [1, 11, 12, 13]
    assert [chain.chain_id for chain in made.chains] == [1, 2, 3]
    used = Counter(t.target_id for chain in made.chains for t in chain.targets)
    assert used == Counter(n * 1000 + i for n in (11, 12, 13) for i in (1, 2, 3))
    for chain in made.chains:
        assert len({t.node_id for t in chain.targets}) == 3
        for target in chain.targets:
            assert target.target_id // 1000 == target.node_id
            assert target.disk_index == (1 if target.target_id % 1000 == 3 else 0)


@pytest.mark.parametrize(
    ("servers", "replicas", "message"),
    [
        ([server(1)], 1, "nothing to store on"),
        ([], 1, "nothing to store on"),
        ([storage(11), storage(11)], 2, "same process.node_id 11"),
        ([storage(11, port=1), storage(12, port=1)], 2, "same process.listen tcp:10.0.0.1:1"),
        ([storage(11), server(12, [[11001]])], 1, "target 11001 is in 11.toml and 12.toml"),
        ([storage(11), server(12, [[12001]])], 2, "one node would have 2 members of a chain"),
        ([storage(11), storage(12)], 3, "3 replicas need as many nodes"),
        ([storage(11), storage(12), storage(13)], 2, "do not divide"),
        ([storage(11), storage(12, cluster_id="other")], 1, "cluster_id differs"),
        ([server(0, [[1]])], 1, "node_id 0"),
    ],
)
def test_contradictions_are_named(servers, replicas, message):
    with pytest.raises(FsError) as caught:
        plan(servers, replicas)
    assert caught.value.status is Status.BAD_CONFIG
    assert message in caught.value.detail


class Recorder:
    """Takes the place of a manager: notes what it is told."""

    def __init__(self):
        self.requests = []

    async def call(self, _method, request, *, timeout_s=None):
        assert timeout_s
        self.requests.append(request)


async def test_nodes_come_before_chains_and_chains_before_the_table():
    recorder = Recorder()
    await initialise(recorder, plan([server(1), storage(11)], 1))
    kinds = [type(request) for request in recorder.requests]
    register = mgmtd_pb2.RegisterNodeReq
    assert kinds == [register, register, mgmtd_pb2.SetChainsReq, mgmtd_pb2.SetChainTableReq]
    assert list(recorder.requests[-1].chain_ids) == [1, 2, 3]
