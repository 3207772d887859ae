"""Disks that are exchanged or emptied, and what an operator is told of it."""

from types import SimpleNamespace

import pytest

from fs.admin.facts import chain_rows
from fs.app.admin import moves
from fs.app.admin.chains import _members
from fs.app.admin.disks import check_used
from fs.app.admin.moves import spread_plan
from fs.schema.ids import NodeId
from fs.schema.proto import mgmtd_pb2
from fs.schema.routing import Role
from fs.schema.status import FsError, Status
from tests.admin.test_doctor import STORAGE_IDS, node, routing, settings, space

SPACES = {NodeId(n): space(0.5) for n in STORAGE_IDS}


def test_it_is_said_when_rebalancing_can_do_nothing():
    """Was: targets are moved, and then nothing moved:
    with as few nodes as copies a new disk stays empty.
    """
    _, why = spread_plan(routing())
    assert why.startswith("only 3 storage nodes are there for chains of 3: nothing can be moved")
    assert len(spread_plan(routing(nodes=[node(14, Role.STORAGE)]))) == 1


def test_only_a_disk_that_is_in_use_is_used_again():
    """Was: whatever stood there, a dead disk too, was said to be used again,
    and chains were spread over it.
    """
    configs = {NodeId(13): settings(storage__disks=[{"path": "/d0"}, {"path": "/d1"}])}
    where = SimpleNamespace(run=lambda _use: (routing(), SPACES, configs))
    check_used(where, 13, 0)
    for node_id, index in ((13, 1), (14, 0)):
        with pytest.raises(FsError, match="does not use its disk") as caught:
            check_used(where, node_id, index)
        assert caught.value.status is Status.CONFLICTING_CHANGE


def test_who_stops_waiting_is_told_that_the_drain_goes_on(monkeypatch, capsys):
    """Was: interrupted, and nobody knew what of."""

    def interrupt(_seconds):
        raise KeyboardInterrupt

    place = mgmtd_pb2.DrainPb(node_id=13)
    drains = [mgmtd_pb2.DrainStatusPb(drain=place, target_count=2)]
    where = SimpleNamespace(ask=lambda *_: mgmtd_pb2.ListMovesRsp(drains=drains))
    monkeypatch.setattr(moves, "time", SimpleNamespace(sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        moves.wait_drained(where, place, 2)
    assert "the drain goes on: ember admin move list" in capsys.readouterr().err


def test_a_list_of_chains_says_where_targets_are():
    """The number of a target that was made by a move does not tell: 13009 may be on node 14."""
    (row, _) = chain_rows(routing())
    assert _members(row["targets"]) == "1101@11 serving, 1201@12 serving, 1301@13 serving"
