"""The handshake as the calling side sees it.

Part of fs/rpc/connection.py; welcome.py is the listener's, and handshake.py says what both check.
"""

from collections.abc import Sequence

import trio

from .api import Identity
from .credentials import Secret, chosen_secret, transcript_of
from .frame import Kind
from .framed_stream import FramedStream
from .handshake import (
    check_hello,
    check_kind,
    check_node,
    check_nonce,
    decode_hello,
    decode_proof,
    decode_refusal,
    encode_hello,
    encode_proof,
    negotiate,
)
from .lending import Lender
from .lent_replies import ReplyBorrower


async def greet(  # noqa: PLR0917 - what both sides may want to know
    framed: FramedStream,
    identity: Identity,
    expected_node_id: int,
    secrets: Sequence[Secret],
    nonce: bytes,
    lender: Lender,
    borrower: ReplyBorrower,
) -> tuple[Identity, bytes]:
    """Exchange hellos, and proofs if we hold secrets.

    Args:
        framed: freshly connected; learns the protocol version to be spoken.
        identity: our own.
        expected_node_id: the node meant to be at the other end; 0: any.
        secrets: what we can prove, preferred first; then the listener has to prove it, too.
        nonce: fresh random bytes, with secrets.
        lender: says whether we lend, and where we have what a listener wants to find.
        borrower: says what we want to find in the listener's memory, and
            learns whether it is there.

    Returns:
        What the listener said of itself, and the id of the secret that
        both sides proved; empty: none.

    Raises:
        FsError: the listener's refusal, or RPC_BAD_VERSION, RPC_WRONG_CLUSTER, RPC_WRONG_NODE,
            RPC_UNAUTHENTICATED, RPC_BAD_FRAME.
        trio.BrokenResourceError: the listener went away.
    """
    key_ids = [secret.key_id for secret in secrets]
    own, spoken = encode_hello(
        identity,
        key_ids=key_ids,
        nonce=nonce,
        lends=lender.offers,
        reply_nonce=borrower.nonce(),
    )
    await framed.send((own, spoken))
    heard = await _next(framed, Kind.HELLO)
    hello = decode_hello(heard)
    version = negotiate(hello)
    peer = check_hello(hello, identity)
    key_id = b""
    if secrets:
        secret = chosen_secret(secrets, hello.key_ids)
        check_nonce(hello)
        transcript = transcript_of(spoken, heard)
        secret.check_listener(transcript, decode_proof(await _next(framed, Kind.PROOF)))
        check_node(peer, expected_node_id)  # it proves a node gone: not on the word of a stranger
        await framed.send(encode_proof(secret.caller_proof(transcript)))
        await _next(framed, Kind.PROOF)
        key_id = secret.key_id
    check_node(peer, expected_node_id)
    framed.version = version
    borrower.hear(hello, framed.stream.peer_name)
    lend = lender.frame_for(hello.lend_nonce, version)
    if lend:
        await framed.send(lend)
    return peer, key_id


async def _next(framed: FramedStream, wanted: Kind) -> bytes:
    """Receive the message of the next frame of a handshake;
    raises what the listener's goodbye says.
    """
    header = await framed.receive_header()
    if header is None:
        raise trio.BrokenResourceError("the listener closed the connection")
    message = await framed.receive_message(header.message_bytes)
    if header.kind == Kind.GOODBYE:
        raise decode_refusal(header.status, message)
    check_kind(header, wanted)
    return bytes(message)
