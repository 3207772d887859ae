"""Handshake rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.rpc.api import Identity
from fs.rpc.frame import HEADER_BYTES, HELLO_VERSION, FrameLimits, Kind, decode_header
from fs.rpc.handshake import (
    REFUSALS,
    check_hello,
    check_node,
    decode_hello,
    decode_refusal,
    encode_hello,
    negotiate,
)
from fs.schema.proto.rpc_pb2 import HelloPb
from fs.schema.status import FsError, Status

OWN = Identity("c", 3)
small = st.integers(1, 6)


@given(st.tuples(small, small).map(sorted), st.tuples(small, small).map(sorted))
def test_both_sides_pick_the_same_highest_version(one, two):
    common = set(range(one[0], one[1] + 1)) & set(range(two[0], two[1] + 1))
    results = []
    for own, peer in ((one, two), (two, one)):
        hello = HelloPb(version_min=peer[0], version_max=peer[1])
        try:
            results.append(negotiate(hello, version_min=own[0], version_max=own[1]))
        except FsError as error:
            results.append(error.status)
    wanted = max(common) if common else Status.RPC_BAD_VERSION
    assert results == [wanted, wanted]


def test_what_is_said_is_heard():
    identity = Identity("c", 9, "inc", "client", "1.0")
    header, message = encode_hello(identity)
    assert len(header) == HEADER_BYTES
    decoded = decode_header(header, FrameLimits(1000, 0), HELLO_VERSION)
    assert (decoded.kind, decoded.message_bytes) == (Kind.HELLO, len(message))
    assert check_hello(decode_hello(message), OWN) == identity


def test_refusals_name_both_sides():
    hello = HelloPb(cluster_id="d", node_id=4)
    with pytest.raises(FsError, match=r"'c'.*'d'") as caught:
        check_hello(hello, OWN)
    assert caught.value.status is Status.RPC_WRONG_CLUSTER
    hello.cluster_id = "c"
    peer = check_hello(hello, OWN)
    check_node(peer, 4)
    check_node(peer, 0)
    with pytest.raises(FsError, match="expected node 5, found node 4") as caught:
        check_node(peer, 5)
    assert caught.value.status is Status.RPC_WRONG_NODE
    with pytest.raises(FsError) as caught:
        decode_hello(b"\xff\xff\xff")
    assert caught.value.status is Status.RPC_BAD_FRAME


def test_a_goodbye_in_place_of_a_handshake_refuses_and_says_nothing_else():
    for status in Status:
        error = decode_refusal(status, b"because")
        assert error.status in REFUSALS | {Status.RPC_CONNECT_FAILED} and "because" in error.detail
    assert decode_refusal(Status.RPC_UNAUTHENTICATED, b"").status is Status.RPC_UNAUTHENTICATED
