"""The handshake as the listening side sees it.

Part of fs/rpc/server.py, which states the invariants.
"""

from typing import Final

from ..schema.proto.rpc_pb2 import HelloPb
from ..schema.status import FsError, Status
from .api import Identity
from .credentials import transcript_of
from .frame import Kind
from .framed_stream import FramedStream
from .guard import OPEN_GRANT, Grant, Guard
from .handshake import (
    check_hello,
    check_kind,
    check_nonce,
    decode_hello,
    decode_proof,
    encode_hello,
    encode_proof,
    negotiate,
)
from .lending import Borrower
from .lent_replies import ReplyLender

HELLO_BYTES_MAX: Final = 64 * 1024
"""Of a peer that has not said yet who it is."""


async def welcome(
    framed: FramedStream,
    identity: Identity,
    guard: Guard | None,
    borrower: Borrower,
    lender: ReplyLender,
) -> tuple[Identity, Grant, int] | None:
    """Exchange hellos; return what the peer said of itself, what it may,
    and the protocol version to be spoken.

    Args:
        framed: freshly connected.
        identity: our own.
        guard: judges peers; None: everybody may everything.
        borrower: learns whether payloads may be lent to us.
        lender: learns whether we may lend payloads of replies.

    Returns:
        None when the peer left without a word.

    Raises:
        FsError: why it is refused.
    """
    heard = await _next(framed, Kind.HELLO)
    if heard is None:
        return None
    hello = decode_hello(heard)
    version = negotiate(hello)
    peer = check_hello(hello, identity)
    lends = borrower.nonce_for(hello), lender.place_for(hello, version)
    if guard is not None:
        return peer, await _challenge(framed, identity, guard, heard, hello, peer, lends), version
    await framed.send(
        encode_hello(
            identity,
            lend_nonce=lends[0],
            reply_place=lends[1],
            lends_ranges=lends[1] != 0,
            lends_direct=lends[1] != 0,
        )
    )
    return peer, OPEN_GRANT, version


async def _next(framed: FramedStream, wanted: Kind) -> bytes | None:
    """Receive the message of the next frame of a handshake; None at the end of the stream."""
    header = await framed.receive_header()
    if header is None:
        return None
    check_kind(header, wanted)
    if header.message_bytes > HELLO_BYTES_MAX:
        detail = f"{wanted.name.lower()} of {header.message_bytes} bytes, at most {HELLO_BYTES_MAX}"
        raise FsError(Status.RPC_TOO_LARGE, detail)
    return bytes(await framed.receive_message(header.message_bytes))


async def _challenge(  # noqa: PLR0917 - what both sides have said
    framed: FramedStream,
    identity: Identity,
    guard: Guard,
    heard: bytes,
    hello: HelloPb,
    peer: Identity,
    lends: tuple[bytes, int],
) -> Grant:
    """Prove to a caller that we know its key, and have it prove it, too; say what concerns lending.

    Raises:
        FsError: RPC_UNAUTHENTICATED when it does not.
    """
    challenge = await guard.challenge(hello.key_ids, peer)
    check_nonce(hello)
    header, said = encode_hello(
        identity,
        key_ids=[challenge.key_id],
        nonce=guard.nonce(),
        lend_nonce=lends[0],
        reply_place=lends[1],
        lends_ranges=lends[1] != 0,
        lends_direct=lends[1] != 0,
    )
    transcript = transcript_of(heard, said)
    proof = challenge.verifier.listener_proof(transcript)
    await framed.send((header, said, *encode_proof(proof)))
    answer = await _next(framed, Kind.PROOF)
    if answer is None:
        raise FsError(Status.RPC_UNAUTHENTICATED, "the caller left without a proof")
    if not challenge.verifier.accepts(transcript, decode_proof(answer)):
        detail = f"the proof of {peer.client_id or peer.node_id} does not hold"
        raise FsError(Status.RPC_UNAUTHENTICATED, detail)
    await framed.send(encode_proof())
    return challenge.grant
