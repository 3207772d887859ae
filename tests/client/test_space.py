"""How much space a cluster has, as storage nodes say."""

import random
from dataclasses import replace

from fs.client.storage_client import StorageClient
from fs.rpc.api import Received
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.ids import NodeId
from fs.schema.proto import storage_pb2 as pb
from fs.schema.routing import Node, NodeState, Role, RoutingInfo

from .fakes import FakeClock, run_inline
from .test_routing_math import THREE


def _node(node_id):
    return Node(NodeId(node_id), frozenset({Role.STORAGE}), "mem:x", "first", NodeState.CONNECTED)


class LateRouting:
    """Knows nothing until it has asked the manager."""

    def __init__(self):
        self.info = RoutingInfo()
        self.asked_count = 0

    async def refresh(self):
        self.asked_count += 1
        self.info = replace(THREE, nodes={node_id: _node(node_id) for node_id in (1, 2, 3)})
        return self.info


class Nodes:
    async def call(self, _node_id, method, _request, **_options):
        assert method is services.STORAGE_SPACE_INFO
        disk = pb.DiskSpacePb(capacity_bytes=3000, free_bytes=600)
        return Received(pb.SpaceInfoRsp(disks=[disk]))


async def test_who_knows_of_no_node_yet_asks_the_manager(autojump_clock):  # noqa: ARG001
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    routing = LateRouting()
    store = StorageClient(
        "c", channels=None, routing=routing, mgmtd=None, runtime=runtime, section=ClientSection()
    )
    store._nodes = Nodes()
    assert await store.space() == (3000, 600)  # of three replicas
    assert await store.space() == (3000, 600)
    assert routing.asked_count == 1
