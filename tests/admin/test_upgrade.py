"""When an upgrade may go on, and in which order."""

from dataclasses import replace

from fs.admin.upgrade import obstacles, steps
from fs.schema.proto import mgmtd_pb2
from fs.schema.routing import PublicState, Role
from tests.admin.test_doctor import chain, node, routing, snapshot

S = PublicState


def kinds(now):
    return {one.kind for one in obstacles(now)}


def test_a_sound_cluster_is_ready():
    assert kinds(snapshot()) == set()
    losses = routing(chains=[chain(2, S.SERVING, S.SERVING, S.SERVING, loss_count=2)])
    assert kinds(snapshot(losses)) == set()  # bad, but nothing that a restart makes worse


def test_what_would_take_chains_away_is_in_the_way():
    weak = routing(chains=[chain(2, S.SERVING, S.SERVING, S.SYNCING)])
    assert kinds(snapshot(weak)) == {"chain-degraded"}
    one = chain(2, S.SERVING, S.OFFLINE, S.OFFLINE)
    one = replace(one, targets=one.targets[:1], preferred_order=one.preferred_order[:1])
    assert kinds(snapshot(routing(chains=[one]))) == {"chain-of-one"}


def test_moves_are_waited_for_and_finished_drains_are_not():
    place = mgmtd_pb2.DrainPb(node_id=12)
    for count, expected in ((0, set()), (3, {"moves-under-way"})):
        drains = [mgmtd_pb2.DrainStatusPb(drain=place, target_count=count)]
        assert kinds(snapshot(moves=mgmtd_pb2.ListMovesRsp(drains=drains))) == expected
    spreading = mgmtd_pb2.ListMovesRsp(is_rebalancing=True)
    assert kinds(snapshot(moves=spreading)) == {"moves-under-way"}


def test_who_is_asked_comes_before_who_asks_and_the_acting_manager_last_of_its_kind():
    info = routing(nodes=[node(5, Role.META)])
    assert [step.node_id for step in steps(info, primary=1)] == [2, 1, 11, 12, 13, 5]
    assert [step.node_id for step in steps(info, primary=2)][:2] == [1, 2]
