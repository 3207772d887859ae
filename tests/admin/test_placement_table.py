"""A running cluster's chains as a table."""

import pytest

from fs.admin.placement_table import table_of
from fs.schema.ids import ChainId, ChainTableId, NodeId, TargetId
from fs.schema.routing import (
    Chain,
    ChainTable,
    ChainTarget,
    Node,
    PublicState,
    Role,
    RoutingInfo,
    Target,
)
from fs.schema.status import FsError
from placement.model import Site
from placement.simulate import kinds


def info_of(tags):
    """Two targets on each of three nodes, in two chains;
    the first chain has turned since it was made.
    """
    nodes = {
        NodeId(n): Node(NodeId(n), frozenset({Role.STORAGE}), f"mem:{n}", "", tags=found)
        for n, found in tags.items()
    }
    targets = {
        TargetId(n * 10 + c): Target(TargetId(n * 10 + c), ChainId(c), NodeId(n), c - 1)
        for n in tags
        for c in (1, 2)
    }
    members = {c: [TargetId(n * 10 + c) for n in tags] for c in (1, 2)}
    chains = {
        ChainId(c): Chain(
            ChainId(c),
            1,
            tuple(ChainTarget(t, PublicState.SERVING) for t in reversed(found)),
            preferred_order=tuple(found) if c == 1 else (),
        )
        for c, found in members.items()
    }
    table = ChainTable(ChainTableId(1), 1, (ChainId(1), ChainId(2)))
    return RoutingInfo(nodes=nodes, targets=targets, chains=chains, chain_tables={(1, 1): table})


def test_chains_stand_in_their_preferred_order_on_their_disks():
    found = table_of(info_of({1: {}, 2: {}, 3: {}}), 1)
    assert found.table == [
        (Site(1, 0), Site(2, 0), Site(3, 0)),
        (Site(3, 1), Site(2, 1), Site(1, 1)),
    ]
    assert [disk.site for disk in found.disks] == [Site(n, d) for n in (1, 2, 3) for d in (0, 1)]
    assert kinds(found.disks) == ["disk", "node"]


def test_tags_are_failure_domains():
    found = table_of(info_of({1: {"rack": "a"}, 2: {"rack": "b"}, 3: {}}), 1)
    assert {disk.domains for disk in found.disks} == {("a",), ("b",), ("node 3",)}


def test_a_table_that_is_not_there_is_refused():
    with pytest.raises(FsError):
        table_of(info_of({1: {}}), 2)
