"""Losses: who feeds whom, who reads more, and how long it takes,
against cases worked out by hand.
"""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.fatal import fatal
from placement.make import Effort, make
from placement.model import Disk, Site
from placement.simulate import Simulation, Speeds, kinds, losses, named_loss, time_to_full_s

LITTLE = Effort(0.05)


def site(node, disk=0):
    return Site(node, disk)


def grid(nodes, disks=1, racks=0):
    return [
        Disk(site(n, d), 1.0, (f"r{n % racks}",) if racks else ())
        for n in range(1, nodes + 1)
        for d in range(disks)
    ]


def loss_of(disks, kind, name):
    return next(loss for loss in losses(disks, kind) if loss.name == name)


def test_a_lost_node_is_fed_by_the_tails():
    table = [(site(1), site(2), site(3)), (site(2), site(1), site(4)), (site(3), site(4), site(1))]
    disks = grid(4)
    found = Simulation(table, disks).aftermath(loss_of(disks, "node", "node 1"))
    assert found.feeds == {3: 1, 4: 2}
    assert (found.targets_lost, found.chains_lost, found.unplaced) == (3, 0, 0)
    assert {t.destination for t in found.transfers} == {site(1)}
    assert found.reads[4] == pytest.approx((1 / 2 + 1 / 2) / (2 / 3))


def test_two_lost_members_follow_each_other():
    table = [(site(1), site(2), site(3))]
    disks = [Disk(site(n), 1.0, ("a" if n < 3 else "b",)) for n in (1, 2, 3)]
    found = Simulation(table, disks).aftermath(loss_of(disks, "domain 1", "a"))
    assert [(t.source, t.destination) for t in found.transfers] == [
        (site(3), site(1)),
        (site(1), site(2)),
    ]
    assert found.feeds == {3: 1}
    speeds = Speeds(disk_mb_s=100.0, node_mb_s=1000.0)
    assert time_to_full_s(found.transfers, 500.0, speeds) == pytest.approx(10.0)


def test_a_chain_that_is_lost_altogether_is_counted():
    disks = grid(2)
    table = [(site(1),), (site(2),)]
    found = Simulation(table, disks).aftermath(loss_of(disks, "node", "node 1"))
    assert (found.chains_lost, found.transfers) == (1, [])


def test_replacing_spreads_over_the_others_and_keeps_racks_apart():
    disks = grid(9, 2, 3)
    table = make(disks, 36, 3, effort=LITTLE).table
    found = Simulation(table, disks).aftermath(loss_of(disks, "node", "node 1"), is_replaced=True)
    assert found.targets_lost == len(found.transfers) == 12
    for transfer in found.transfers:
        assert transfer.destination.node_id % 3 == 1  # the two others of the lost node's rack
        assert transfer.destination.node_id != 1


def test_without_another_node_nothing_can_be_replaced():
    disks = grid(3)
    table = [(site(1), site(2), site(3))]
    found = Simulation(table, disks).aftermath(loss_of(disks, "node", "node 2"), is_replaced=True)
    assert (found.unplaced, found.transfers) == (1, [])


def test_times_by_hand():
    disks = grid(5, 16)
    table = make(disks, 160, 3, effort=LITTLE).table
    disk = Simulation(table, disks).aftermath(losses(disks, "disk")[0])
    wide = Speeds(disk_mb_s=100.0, node_mb_s=1e9)
    # One disk takes all six targets in: its writing is what limits.
    assert time_to_full_s(disk.transfers, 100.0, wide) == pytest.approx(6.0)
    narrow = Speeds(disk_mb_s=1e9, node_mb_s=100.0)
    node = Simulation(table, disks).aftermath(losses(disks, "node")[0])
    assert time_to_full_s(node.transfers, 100.0, narrow) == pytest.approx(96.0)
    assert time_to_full_s([], 100.0, wide) == 0.0


@settings(deadline=None, max_examples=12)
@given(st.integers(3, 8), st.integers(1, 2), st.integers(1, 20), st.booleans(), st.data())
def test_every_loss_is_made_good_and_no_faster_than_the_tightest_resource(
    nodes, disk_count, chains, is_replaced, data
):
    disks = grid(nodes, disk_count)
    table = make(disks, chains, 3, effort=LITTLE).table
    kind = data.draw(st.sampled_from(kinds(disks)))
    loss = data.draw(st.sampled_from(losses(disks, kind)))
    found = Simulation(table, disks).aftermath(loss, is_replaced=is_replaced)
    assert len(found.transfers) + found.unplaced == found.targets_lost
    assert sum(found.feeds.values()) == sum(found.feeds_by_disk.values()) == len(found.transfers)
    for transfer in found.transfers:
        assert transfer.source not in loss.sites
        assert (transfer.destination in loss.sites) != is_replaced
    took = time_to_full_s(found.transfers, 10.0, Speeds(10.0, 10.0))
    busiest = max(found.feeds.values(), default=0)
    assert took >= busiest - 1e-6
    assert took <= len(found.transfers) + 1e-6


def test_a_lost_rack_falls_on_all_others_alike():
    """Turning also evens out differences modulo the number of racks:
    24 targets by 9 nodes, three or two each.
    """
    disks = grid(12, 1, 4)
    made = make(disks, 32, 3)
    assert made.is_optimal
    simulation = Simulation(made.table, disks)
    for found in simulation.all_of("domain 1"):
        assert found.targets_lost == 24
        assert max(found.feeds.values()) == 3


def test_what_cannot_be_lost_is_said():
    with pytest.raises(ValueError, match="'rack' cannot be lost here, only: disk, node"):
        losses(grid(3), "rack")


def test_fatal_sets_by_hand():
    disks = grid(5, 2)
    table = [(site(1), site(2), site(3)), (site(3), site(1), site(2)), (site(2), site(4), site(5))]
    by_node = fatal(table, disks, "node")
    assert (by_node.size, by_node.fatal, by_node.sets, by_node.chains_worst) == (3, 2, 10, 2)
    by_disk = fatal(table, disks, "disk")
    assert (by_disk.fatal, by_disk.sets) == (2, 120)


@settings(deadline=None, max_examples=20)
@given(st.integers(3, 6), st.integers(1, 2), st.integers(1, 12))
def test_fatal_sets_are_those_whose_loss_takes_a_chain(nodes, disk_count, chains):
    disks = grid(nodes, disk_count)
    table = make(disks, chains, 2, effort=LITTLE).table
    counted = fatal(table, disks, "node")
    simulation = Simulation(table, disks)
    names = [loss.name for loss in losses(disks, "node")]
    found = [
        simulation.aftermath(named_loss(disks, pair)).chains_lost
        for pair in combinations(names, counted.size)
    ]
    assert (counted.fatal, counted.sets) == (sum(map(bool, found)), len(found))
    assert counted.chains_worst == max(found)
