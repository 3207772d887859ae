"""`ember probe`: who is not there is named; a node serves when all its targets do."""

from dataclasses import replace

import pytest

from fs.app.monitoring.probe import check_serving, probe
from fs.schema.ids import ChainId, NodeId, TargetId
from fs.schema.routing import Chain, ChainTarget, PublicState, RoutingInfo, Target
from fs.schema.status import FsError, Status


def test_a_server_that_is_away_is_an_error(tmp_path):
    path = tmp_path / "p.toml"
    socket = f"unix:{tmp_path}/s.sock"
    path.write_text(f'[process]\nlisten = "{socket}"\nmgmtd_addresses = ["{socket}"]\n')
    with pytest.raises(FsError, match=r"s\.sock") as caught:
        probe(path, timeout_s=0.5)
    assert caught.value.status in {Status.RPC_CONNECT_FAILED, Status.RPC_TIMEOUT}


def test_a_folder_without_a_mount_is_an_error(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(f'[client]\nmount_point = "{tmp_path}"\n')
    with pytest.raises(FsError, match="no mount") as caught:
        probe(path, timeout_s=0.5)
    assert caught.value.status is Status.NOT_RUNNING


def test_every_target_of_a_node_has_to_serve():
    chain = Chain(
        ChainId(1), 1, tuple(ChainTarget(TargetId(t), PublicState.SERVING) for t in (1, 2))
    )
    targets = {TargetId(t): Target(TargetId(t), ChainId(1), NodeId(t + 10), 0) for t in (1, 2)}
    info = RoutingInfo(chains={ChainId(1): chain}, targets=targets)
    check_serving(info, 11)
    behind = replace(
        chain, targets=(chain.targets[0], ChainTarget(TargetId(2), PublicState.SYNCING))
    )
    info = replace(info, chains={ChainId(1): behind})
    check_serving(info, 11)
    for node_id, words in ((12, "target 2 of chain 1 is syncing"), (13, "no target in any chain")):
        with pytest.raises(FsError, match=words):
            check_serving(info, node_id)
