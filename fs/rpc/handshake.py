"""Handshake: what both sides say first, and what they check before anything else.  Pure; no I/O.

The caller sends a hello frame; the listener answers with its own, or with a goodbye frame that
carries the status of its refusal.  Both sides pick the highest protocol version they have in
common.  In a closed cluster the caller's hello names the keys it holds, the listener's the one that
counts, and three proof frames follow:

    caller   -> hello (key ids, nonce)
    listener -> hello (key id, nonce), proof
    caller   -> proof
    listener -> empty proof: accepted

Invariants:
    - Nothing is served on a connection whose handshake has not been accepted.
    - Whoever holds a key accepts no peer that does not prove that it knows it, too:
      there is no way back to less.
    - What a listener says before it has proved anything is no answer to a call, and judges nobody.
    - The HelloPb message keeps its meaning in every protocol version, so any two releases can at
      least tell each other why they do not fit.
"""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from ..runtime.ports import Buffer
from ..schema.proto.rpc_pb2 import HelloPb, ProofPb
from ..schema.status import FsError, Status
from .api import Identity
from .credentials import NONCE_BYTES
from .frame import (
    HELLO_VERSION,
    VERSION_MAX,
    VERSION_MIN,
    Header,
    Kind,
    decode_error,
    encode_header,
)

REFUSALS: Final = frozenset(
    {
        Status.RPC_BAD_FRAME,
        Status.RPC_BAD_VERSION,
        Status.RPC_TIMEOUT,
        Status.RPC_TOO_LARGE,
        Status.RPC_OVERLOADED,
        Status.RPC_WRONG_CLUSTER,
        Status.RPC_UNAUTHENTICATED,
        Status.RPC_UNCHECKED,
    }
)
"""What a listener's goodbye may say in place of a handshake."""


def encode_hello(
    identity: Identity,
    *,
    key_ids: Sequence[bytes] = (),
    nonce: bytes = b"",
    lends: bool = False,
    lend_nonce: bytes = b"",
    reply_nonce: bytes = b"",
    reply_place: int = 0,
    lends_ranges: bool = False,
    lends_direct: bool = False,
    version_min: int = VERSION_MIN,
    version_max: int = VERSION_MAX,
) -> tuple[Buffer, bytes]:
    """Return a hello frame: its header, and its message, to which proofs are bound."""
    message = HelloPb(
        version_min=version_min,
        version_max=version_max,
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        client_id=identity.client_id,
        release=identity.release,
        key_ids=key_ids,
        nonce=nonce,
        lends=lends,
        lend_nonce=lend_nonce,
        reply_nonce=reply_nonce,
        reply_place=reply_place,
        lends_ranges=lends_ranges,
        lends_direct=lends_direct,
    ).SerializeToString()
    header = encode_header(Kind.HELLO, 0, message_bytes=len(message), version=HELLO_VERSION)
    return header, message


def encode_proof(proof: bytes = b"") -> tuple[Buffer, bytes]:
    """Return a proof frame: its header and its message."""
    message = ProofPb(proof=proof).SerializeToString()
    header = encode_header(Kind.PROOF, 0, message_bytes=len(message), version=HELLO_VERSION)
    return header, message


def decode_hello(message: Buffer) -> HelloPb:
    """Parse the message of a hello frame; raises FsError(RPC_BAD_FRAME)."""
    try:
        return HelloPb.FromString(bytes(message))
    except DecodeError as error:
        raise FsError(Status.RPC_BAD_FRAME, f"hello message: {error}") from error


def decode_proof(message: Buffer) -> bytes:
    """Parse the message of a proof frame; raises FsError(RPC_BAD_FRAME)."""
    try:
        return ProofPb.FromString(bytes(message)).proof
    except DecodeError as error:
        raise FsError(Status.RPC_BAD_FRAME, f"proof message: {error}") from error


def decode_refusal(status: int, detail: Buffer) -> FsError:
    """Return what a listener's goodbye says during a handshake.

    Anything but a refusal would pass for the answer to the call that waits for the
    connection ("no such chunk"), or for proof that a node is gone ("another node is here"):
    it is told as RPC_CONNECT_FAILED.
    """
    error = decode_error(status, detail)
    if error.status in REFUSALS:
        return error
    return FsError(Status.RPC_CONNECT_FAILED, f"the listener refused the connection: {error}")


def check_kind(header: Header, wanted: Kind) -> None:
    """Raise FsError(RPC_BAD_FRAME) for a frame that is not the next one of a handshake."""
    if header.kind != wanted or header.payload_bytes:
        detail = f"frame of kind {header.kind} where a {wanted.name.lower()} is due"
        raise FsError(Status.RPC_BAD_FRAME, detail)


def negotiate(
    hello: HelloPb, *, version_min: int = VERSION_MIN, version_max: int = VERSION_MAX
) -> int:
    """Return the highest protocol version both sides speak; raises FsError(RPC_BAD_VERSION)."""
    version = min(version_max, hello.version_max)
    if version < max(version_min, hello.version_min):
        raise FsError(
            Status.RPC_BAD_VERSION,
            f"this side speaks {version_min}..{version_max}, the peer (release"
            f" {hello.release or 'unknown'}) {hello.version_min}..{hello.version_max}",
        )
    return version


def check_hello(hello: HelloPb, own: Identity) -> Identity:
    """Return what a peer said of itself; nothing of it is proved yet.

    Raises FsError(RPC_WRONG_CLUSTER).
    """
    if hello.cluster_id != own.cluster_id:
        raise FsError(
            Status.RPC_WRONG_CLUSTER,
            f"one side belongs to cluster {own.cluster_id!r}, the other to {hello.cluster_id!r}",
        )
    return Identity(
        hello.cluster_id,
        hello.node_id,
        hello.incarnation,
        hello.client_id,
        hello.release,
    )


def check_node(peer: Identity, expected_node_id: int) -> None:
    """Raise FsError(RPC_WRONG_NODE) for another node than expected (0: any);
    in a closed cluster only after the proof.
    """
    if expected_node_id and peer.node_id != expected_node_id:
        raise FsError(
            Status.RPC_WRONG_NODE, f"expected node {expected_node_id}, found node {peer.node_id}"
        )


def check_nonce(hello: HelloPb) -> None:
    """Raise FsError(RPC_UNAUTHENTICATED) for a hello that names keys without a nonce
    of the right size.
    """
    if len(hello.nonce) != NONCE_BYTES:
        detail = f"a nonce of {len(hello.nonce)} bytes, {NONCE_BYTES} are wanted"
        raise FsError(Status.RPC_UNAUTHENTICATED, detail)
