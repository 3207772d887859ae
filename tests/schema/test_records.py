"""Inodes and routing info survive their wire form; chain views follow the states."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.schema.ids import ChainId, ChainTableId, InodeId, NodeId, TargetId
from fs.schema.inode import DirectoryPart, FilePart, Inode, InodeType, inode_from_pb, inode_to_pb
from fs.schema.layout import Layout
from fs.schema.routing import (
    Chain,
    ChainTable,
    ChainTarget,
    LocalState,
    Node,
    NodeState,
    PublicState,
    Role,
    RoutingInfo,
    RoutingReader,
    Target,
    routing_info_from_pb,
    routing_info_to_pb,
)
from fs.schema.status import FsError, Status

LAYOUT = Layout(ChainTableId(1), 2, 65536, 3, 4, 5)


def base(type_: InodeType) -> Inode:
    return Inode(InodeId(77), type_, 0o644, 1, 2, 1, -5, 6, 7, 2**62)


@pytest.mark.parametrize(
    "inode",
    [
        replace(
            base(InodeType.FILE),
            file=FilePart(2**45, 3, LAYOUT, 2, 9, truncate_pending=True, has_holes=True),
        ),
        replace(base(InodeType.DIRECTORY), directory=DirectoryPart(InodeId(1), b"\xff\xfe")),
        replace(base(InodeType.DIRECTORY), directory=DirectoryPart(InodeId(1), b"d", LAYOUT)),
        replace(base(InodeType.SYMLINK), symlink_target=b"/a/b"),
        replace(base(InodeType.CHAR_DEVICE), rdev=259),
        replace(base(InodeType.FIFO), has_acl=True),
    ],
)
def test_inode_round_trip(inode):
    assert inode_from_pb(inode_to_pb(inode)) == inode


states = st.lists(st.sampled_from(list(PublicState)), min_size=1, max_size=5)


@given(states)
def test_routing_info_round_trip_and_views(members):
    members = sorted(members)
    targets = tuple(ChainTarget(TargetId(i + 1), state) for i, state in enumerate(members))
    info = RoutingInfo(
        9,
        "c",
        False,
        {NodeId(1): Node(NodeId(1), frozenset({Role.META}), "unix:/x", "i", NodeState.CONNECTED)},
        {
            TargetId(1): Target(
                TargetId(1), ChainId(5), NodeId(1), 0, LocalState.UPTODATE, 12, low_space=True
            )
        },
        {ChainId(5): Chain(ChainId(5), 3, targets, (TargetId(1),))},
        {(ChainTableId(1), 1): ChainTable(ChainTableId(1), 1, (ChainId(5),))},
    )
    assert routing_info_from_pb(routing_info_to_pb(info)) == info
    chain = info.chain(5)
    assert len(chain.serving) == members.count(PublicState.SERVING)
    following = [chain.successor_of(t) for t in chain.writable]
    assert [f.target_id for f in following if f] == list(chain.writable[1:])
    assert not following or following[-1] is None


def test_lookups_name_what_is_missing():
    with pytest.raises(FsError, match="chain 4") as caught:
        RoutingInfo(3).chain(4)
    assert caught.value.status is Status.CHAIN_UNKNOWN


@pytest.mark.thorough
@given(st.lists(st.lists(st.tuples(st.sampled_from([1, 2, 3]), states), max_size=3), max_size=5))
def test_a_reader_of_one_version_after_the_other_reads_what_each_one_says(versions):
    reader, before = RoutingReader(), RoutingInfo()
    for version, chains in enumerate(versions, 1):
        made = {
            ChainId(chain_id): Chain(
                ChainId(chain_id),
                1,
                tuple(ChainTarget(TargetId(i + 1), state) for i, state in enumerate(members)),
            )
            for chain_id, members in chains
        }
        nodes = {
            NodeId(i): Node(NodeId(i), frozenset({Role.META}), str(len(m)), "i") for i, m in chains
        }
        info = RoutingInfo(version, "c", False, nodes, {}, made)
        found = reader.read(routing_info_to_pb(info))
        assert found == info
        for chain_id, chain in before.chains.items():
            if info.chains.get(chain_id) == chain:
                assert found.chains[chain_id] is chain
        before = found


def test_attributes_that_are_shown_differ_in_what_was_said_alone():
    values = {field.name: f"any {field.name}" for field in fields(Inode)}
    told, file = Inode(**values), FilePart(1, 0, LAYOUT, 1, 0)
    owned = {"mode": 1, "uid": 2, "gid": 3}
    times = {"atime_ns": 4, "mtime_ns": 5, "ctime_ns": 6}
    shown = told.shown_as(file, (1, 2, 3), 4, 5, 6)
    assert shown == replace(told, file=file, **owned, **times)
