"""What `ember status` says of a cluster of many machines."""

import pytest

from fs.app.commands.deployed_status import gathered, render_deployed
from fs.schema.ids import ChainId, NodeId, TargetId
from fs.schema.proto import mgmtd_pb2
from fs.schema.routing import LocalState, NodeState, PublicState, Role, Target
from tests.admin.test_doctor import STORAGE_IDS, chain, node, routing, space

SPACES = {NodeId(n): space(0.5) for n in STORAGE_IDS}
SESSIONS = mgmtd_pb2.ListClientSessionsRsp(
    sessions=[
        mgmtd_pb2.ClientSessionPb(host_name="trainer-7", mount_point="/mnt/ember"),
        mgmtd_pb2.ClientSessionPb(host_name="trainer-8"),  # a program
    ]
)


def status(info):
    return gathered(info, mgmtd_pb2.ListMovesRsp(), SESSIONS, SPACES)


def test_nodes_chains_mounts_and_space_are_shown():
    spare = Target(TargetId(1399), ChainId(0), NodeId(13), 0, LocalState.ONLINE)  # in no chain
    told = status(routing(targets=[spare]))
    text = render_deployed(told)
    assert told["is_healthy"]
    assert "        13 storage      connected       2/2  h13" in text
    assert "         1 meta+mgmtd   connected         -  h1" in text
    assert "chains: 2 of 2 complete" in text and "chain 1 v5: 1101@11 serving" in text
    assert "mount: /mnt/ember on trainer-7" in text and "trainer-8" not in text
    assert "disks: 1.5 KiB of 2.9 KiB free" in text


@pytest.mark.parametrize(
    "sick",
    [
        {"chains": [chain(2, PublicState.SERVING, PublicState.SERVING, PublicState.SYNCING)]},
        {"nodes": [node(13, Role.STORAGE, state=NodeState.FAILED)]},
    ],
)
def test_what_is_not_whole_is_not_healthy(sick):
    assert not status(routing(**sick))["is_healthy"]
