"""Pieces tile the range, batches hold every piece once,
targets are chosen evenly and avoid failures.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fs.client.file_read import FileRead
from fs.client.routing_math import (
    TOGETHER_BYTES,
    choose_target,
    cut_batches,
    cut_file_range,
    cut_reads,
    file_chains,
    head_of,
    readable_targets,
)
from fs.schema.ids import ChainId, ChainTableId, InodeId, NodeId, TargetId
from fs.schema.layout import FileRef, Layout
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
from fs.schema.status import FsError, Status

CHUNK = 65536


def make_info(chain_count: int, states: tuple[PublicState, ...]) -> RoutingInfo:
    """Chain c has one target per state; target t of chain c is c * 10 + t on node t."""
    chains, targets = {}, {}
    for c in range(1, chain_count + 1):
        members = []
        for t, state in enumerate(states, start=1):
            target_id = TargetId(c * 10 + t)
            targets[target_id] = Target(target_id, ChainId(c), NodeId(t), 0)
            members.append(ChainTarget(target_id, state))
        chains[ChainId(c)] = Chain(ChainId(c), 1, tuple(members))
    nodes = {
        NodeId(t): Node(NodeId(t), frozenset({Role.STORAGE}), f"mem:{t}", "i")
        for t in range(1, len(states) + 1)
    }
    table = ChainTable(ChainTableId(1), 1, tuple(chains))
    return RoutingInfo(1, "c", False, nodes, targets, chains, {(ChainTableId(1), 1): table})


THREE = make_info(4, (PublicState.SERVING,) * 3)


def ref(dyn_stripe: int = 4) -> FileRef:
    return FileRef(InodeId(9), Layout(ChainTableId(1), 1, CHUNK, 4, 2, 77), dyn_stripe)


@given(st.integers(0, 10 * CHUNK), st.integers(0, 6 * CHUNK))
def test_pieces_share_the_buffer_and_tile_the_range(offset, length):
    buffer = bytearray(length)
    pieces = cut_file_range(THREE, ref(), offset, memoryview(buffer))
    for number, piece in enumerate(pieces, start=1):
        piece.buffer[:] = bytes([number]) * len(piece.buffer)
        assert piece.offset + len(piece.buffer) <= CHUNK
    assert 0 not in buffer
    assert sum(len(p.buffer) for p in pieces) == length


@given(st.lists(st.integers(1, CHUNK), max_size=30), st.integers(1, 5), st.integers(1, 4 * CHUNK))
def test_batches_hold_every_piece_once_within_limits(lengths, count_max, bytes_max):
    pieces = []
    for index, length in enumerate(lengths):
        pieces += cut_file_range(THREE, ref(), index * CHUNK, memoryview(bytearray(length)))
    for index, piece in enumerate(pieces):
        chain = THREE.chain(piece.chain_id)
        candidates = readable_targets(THREE, chain, ())
        piece.target_id, piece.node_id = choose_target(candidates, load={}, start=index)
    batches = cut_batches(pieces, count_max=count_max, bytes_max=bytes_max)
    assert sorted(id(p) for b in batches for p in b.pieces) == sorted(map(id, pieces))
    for batch in batches:
        assert len(batch.pieces) <= count_max
        sizes = [len(p.buffer) for p in batch.pieces]
        assert sum(sizes) <= bytes_max or len(sizes) == 1
        assert {THREE.target(p.target_id).node_id for p in batch.pieces} == {batch.node_id}


def choose(info, chain, load=(), avoid=(), start=0):
    return choose_target(readable_targets(info, chain, avoid), load=dict(load), start=start)[0]


def test_choice_prefers_idle_nodes_and_avoids_failed_targets():
    chain = THREE.chain(1)
    much = TOGETHER_BYTES
    load = {NodeId(1): 5 * much, NodeId(2): much, NodeId(3): 9 * much}
    assert choose(THREE, chain, load, ()) == 12
    assert choose(THREE, chain, load, {(TargetId(12), 1)}) == 11
    everything = {(t, 1) for t in chain.serving}
    assert choose(THREE, chain, load, everything) == 12
    old_version = {(TargetId(12), 0)}
    assert choose(THREE, chain, load, old_version) == 12
    spread = {choose(THREE, chain, start=s) for s in range(3)}
    assert spread == {11, 12, 13}


def test_small_pieces_stay_together_until_a_request_is_worth_its_price():
    chain = THREE.chain(1)
    load: dict[NodeId, int] = {}
    chosen = []
    for _ in range(4 * 64):
        target_id, node_id = choose_target(readable_targets(THREE, chain, ()), load=load, start=1)
        load[node_id] = load.get(node_id, 0) + TOGETHER_BYTES // 64
        chosen.append(target_id)
    assert chosen[:192] == [12] * 64 + [13] * 64 + [11] * 64
    assert max(load.values()) - min(load.values()) <= TOGETHER_BYTES // 64


@given(st.lists(st.tuples(st.integers(0, 10 * CHUNK), st.integers(0, 3 * CHUNK)), max_size=9))
def test_reads_are_cut_as_their_ranges_are(wanted):
    files = [ref(), ref(1)]
    reads = [
        FileRead(files[n % 2], offset, memoryview(bytearray(length)), 7)
        for n, (offset, length) in enumerate(wanted)
    ]
    expected = [
        replace(piece, owner=r)
        for r in reads
        for piece in cut_file_range(THREE, r.file, r.offset, r.buffer)
    ]
    assert cut_reads(THREE, reads) == expected
    assert not any(read.hole_bytes for read in reads)


def test_only_serving_targets_are_chosen():
    info = make_info(1, (PublicState.SERVING, PublicState.SYNCING, PublicState.OFFLINE))
    assert {choose(info, info.chain(1), avoid={(TargetId(11), 1)}, start=s) for s in range(5)} == {
        TargetId(11)
    }
    dead = make_info(1, (PublicState.LASTSRV, PublicState.OFFLINE))
    for ask in (head_of, lambda c: choose(dead, c)):
        with pytest.raises(FsError) as caught:
            ask(dead.chain(1))
        assert caught.value.status is Status.CHAIN_UNAVAILABLE


def test_file_chains_follow_the_dynamic_stripe():
    assert len(file_chains(THREE, ref(1))) == 1
    assert sorted(file_chains(THREE, ref(4))) == [1, 2, 3, 4]
