"""Handshake: what both sides say first, and what they check before anything else.  Pure; no I/O.

The caller sends a hello frame; the listener answers with its own, or with a goodbye frame that carries
the status of its refusal.  Both sides pick the highest protocol version they have in common.

Invariants:
    - Nothing is served on a connection whose handshake has not been accepted.
    - The HelloPb message keeps its meaning in every protocol version, so any two releases can at
      least tell each other why they do not fit.
"""

from typing import Protocol

from google.protobuf.message import DecodeError

from ..runtime.ports import Buffer
from ..schema.proto.rpc_pb2 import HelloPb
from ..schema.status import FsError, Status
from .api import Identity
from .frame import HELLO_VERSION, VERSION_MAX, VERSION_MIN, Kind, encode_header


class Authenticator(Protocol):
    """Decides whether a peer is who it says it is."""

    def check(self, identity: Identity) -> None:
        """Return when `identity` is accepted; raise FsError(RPC_UNAUTHENTICATED) otherwise."""
        ...


class OpenAuthenticator:
    """Accepts everybody: for clusters without a key."""

    def check(self, identity: Identity) -> None:
        """Accept."""


def encode_hello(
    identity: Identity, *, version_min: int = VERSION_MIN, version_max: int = VERSION_MAX
) -> list[Buffer]:
    """Return the buffers of a hello frame."""
    message = HelloPb(
        version_min=version_min,
        version_max=version_max,
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        client_id=identity.client_id,
        release=identity.release,
        credentials=identity.credentials,
    ).SerializeToString()
    header = encode_header(Kind.HELLO, 0, message_bytes=len(message), version=HELLO_VERSION)
    return [header, message]


def decode_hello(message: Buffer) -> HelloPb:
    """Parse the message of a hello frame; raises FsError(RPC_BAD_FRAME)."""
    try:
        return HelloPb.FromString(bytes(message))
    except DecodeError as error:
        raise FsError(Status.RPC_BAD_FRAME, f"hello message: {error}") from error


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


def check_hello(
    hello: HelloPb, own: Identity, authenticator: Authenticator, *, expected_node_id: int = 0
) -> Identity:
    """Check what a peer said of itself and return it.

    Args:
        hello: the peer's hello.
        own: this side's identity.
        authenticator: judges the peer's credentials.
        expected_node_id: the node meant to be at the other end; 0: any.

    Raises:
        FsError: RPC_WRONG_CLUSTER, RPC_WRONG_NODE, RPC_UNAUTHENTICATED.
    """
    if hello.cluster_id != own.cluster_id:
        raise FsError(
            Status.RPC_WRONG_CLUSTER,
            f"one side belongs to cluster {own.cluster_id!r}, the other to {hello.cluster_id!r}",
        )
    if expected_node_id and hello.node_id != expected_node_id:
        raise FsError(
            Status.RPC_WRONG_NODE, f"expected node {expected_node_id}, found node {hello.node_id}"
        )
    peer = Identity(
        hello.cluster_id,
        hello.node_id,
        hello.incarnation,
        hello.client_id,
        hello.release,
        hello.credentials,
    )
    authenticator.check(peer)
    return peer
