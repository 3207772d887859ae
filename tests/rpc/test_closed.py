"""Closed clusters: what is needed to be served, by every method, over every network;
and what is refused.
"""

import hashlib
import logging
import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.credentials import KEY_ID_BYTES, PROOF_BYTES, Secret, transcript_of
from fs.rpc.frame import (
    HELLO_VERSION,
    FrameLimits,
    Kind,
    decode_error,
    encode_error,
)
from fs.rpc.guard import KeyGuard
from fs.rpc.handshake import decode_hello, decode_proof, encode_hello, encode_proof
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core
from fs.schema.services import CORE_ECHO
from fs.schema.status import FsError, Status
from tests.rpc.peer import request_frame

from .raw import Raw

OLD, NEW, OTHER = (Secret.of_key(bytes([n]) * 32) for n in (1, 2, 3))
CALLER = Identity("test-cluster", client_id="client-1")
LIMITS = FrameLimits(1 << 20, 0)


def guard(*keys):
    return KeyGuard(keys, random.Random(5))


async def echoes(p):
    received = await p.channel.call(CORE_ECHO, core.EchoReq(data=b"x"))
    return received.message.data == b"x"


async def refusal(p):
    with pytest.raises(FsError) as caught:
        await p.channel.call(CORE_ECHO, core.EchoReq(data=b"x"))
    return caught.value


# ---- the secrets themselves


@settings(max_examples=20, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(), st.binary())
def test_a_proof_holds_for_its_secret_and_transcript_only(value, hello, other_hello):
    secret, transcript = Secret.of_key(value), transcript_of(hello, b"l")
    verifier, proof = secret.verifier(), secret.caller_proof(transcript)
    assert verifier.accepts(transcript, proof)
    secret.check_listener(transcript, verifier.listener_proof(transcript))
    elsewhere = transcript_of(other_hello, b"ll")
    assert not verifier.accepts(elsewhere, proof)
    assert not Secret.of_key(hashlib.sha256(value).digest()).verifier().accepts(transcript, proof)
    mine = verifier.listener_proof(transcript)
    for wrong in (b"", proof[:-1], proof + b"\0", bytes(PROOF_BYTES), mine):
        assert not verifier.accepts(transcript, wrong)
    for wrong in (b"", mine[:-1], mine + b"\0", bytes(PROOF_BYTES), proof):
        with pytest.raises(FsError, match="UNAUTHENTICATED"):
            secret.check_listener(transcript, wrong)


def test_a_secret_shows_itself_nowhere():
    value = bytes(range(32))
    secret = Secret.of_key(value)
    seen = repr(secret) + repr(secret.verifier())
    assert repr(value) not in seen and value.hex() not in seen
    assert len(secret.key_id) == KEY_ID_BYTES and secret.key_id[1:] not in value


def test_where_one_hello_ends_matters():
    assert transcript_of(b"ab", b"c") != transcript_of(b"a", b"bc")


# ---- whole handshakes


async def test_who_knows_the_key_is_served(net, process):
    async with process(net, guard=guard(OLD), secrets=[OLD]) as p:
        assert await echoes(p)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [((OLD, NEW), (OLD,)), ((NEW, OLD), (OLD,)), ((OLD,), (OLD, NEW)), ((NEW,), (OLD, NEW))],
)
async def test_a_key_is_replaced_while_all_goes_on(net, process, ours, theirs):
    async with process(net, guard=guard(*ours), secrets=theirs) as p:
        assert await echoes(p)


@pytest.mark.parametrize(
    "case",
    [
        ([OLD], [], "gave no credentials"),
        ([OLD], [OTHER], "not known to this cluster"),
        ([], [OLD], "names none of our keys"),
    ],
)
async def test_who_does_not_is_refused(net, process, caplog, case, monkeypatch):
    monkeypatch.setattr("fs.rpc.refusal_log.QUIET_S", 1e6)  # this machine may be slow
    listening, secrets, word = case
    options = {"guard": guard(*listening)} if listening else {}
    async with process(net, secrets=secrets, **options) as p:
        for _ in range(3):
            error = await refusal(p)
            assert error.status is Status.RPC_UNAUTHENTICATED and word in error.detail
    if listening:
        told = [r for r in caplog.records if "refused or closed" in r.getMessage()]
        assert len(told) == 1 and word in told[0].getMessage()
        assert told[0].levelno == logging.WARNING


class Greeter(Raw):
    """Says hello, and proves what it likes."""

    async def send(self, *frames):
        for frame in frames:
            await self.stream.send_all(list(frame))

    async def hear(self):
        """Return (kind, message, status) of the next frame, None at the end."""
        try:
            heard = await self.frame()
        except EOFError:
            return None
        return heard.kind, heard.message, heard.status

    async def greet(self, secret=OLD, nonce=b"n" * 32, own=CALLER):
        """Say hello and return the transcript and the listener's proof."""
        header, said = encode_hello(own, key_ids=[secret.key_id], nonce=nonce)
        await self.send((header, said))
        kind, heard, _ = await self.hear()
        assert kind == Kind.HELLO and len(decode_hello(heard).nonce) == 32
        kind, proof, _ = await self.hear()
        assert kind == Kind.PROOF
        return transcript_of(said, heard), decode_proof(proof)

    async def goodbye(self):
        kind, message, status = await self.hear()
        assert kind == Kind.GOODBYE, kind
        return decode_error(status, message)


async def test_a_recorded_handshake_is_worth_nothing(net, process):
    async with process(net, guard=guard(OLD), secrets=[OLD]) as p:
        first = Greeter(await p.connect())
        transcript, listener_proof = await first.greet()
        recorded = OLD.caller_proof(transcript)
        await first.send(encode_proof(recorded))
        assert (await first.hear())[0] == Kind.PROOF
        for proof in (recorded, listener_proof, recorded[:-1], b"", bytes(32)):
            again = Greeter(await p.connect())
            fresh, _ = await again.greet()
            assert fresh != transcript
            await again.send(encode_proof(proof))
            assert (await again.goodbye()).status is Status.RPC_UNAUTHENTICATED
        assert await echoes(p)


@pytest.mark.parametrize("nonce", [b"", b"n", b"n" * 33])
async def test_a_nonce_that_is_none_is_refused(net, process, nonce):
    async with process(net, guard=guard(OLD)) as p:
        raw = Greeter(await p.connect())
        await raw.send(encode_hello(CALLER, key_ids=[OLD.key_id], nonce=nonce))
        assert (await raw.goodbye()).status is Status.RPC_UNAUTHENTICATED


async def test_requests_before_the_proof_are_refused(net, process):
    async with process(net, guard=guard(OLD)) as p:
        message = core.EchoReq(data=b"x").SerializeToString()
        request = request_frame(CORE_ECHO, 1, message, version=HELLO_VERSION)
        early = Greeter(await p.connect())
        await early.send((request,))
        assert (await early.goodbye()).status is Status.RPC_BAD_FRAME
        instead = Greeter(await p.connect())
        await instead.greet()
        await instead.send((request,))
        assert (await instead.goodbye()).status is Status.RPC_BAD_FRAME


async def test_a_listener_that_does_not_know_the_key_gets_no_proof(net, process):
    """It could pass one on to a listener that does."""
    heard, is_over = [], trio.Event()

    async def pretend(stream):
        raw = Greeter(stream)
        _, said, _ = await raw.hear()
        own = Identity("test-cluster", 7)
        key_ids = decode_hello(said).key_ids
        header, message = encode_hello(own, key_ids=key_ids, nonce=b"m" * 32)
        await raw.send((header, message), encode_proof(bytes(32)))
        try:
            heard.append(await raw.hear())
        except trio.BrokenResourceError:
            heard.append(None)
        is_over.set()

    async with process(net, secrets=[OLD]) as p:
        address = await p.nursery.start(net.a.serve, net.address(), pretend)
        with pytest.raises(FsError) as caught:
            await p.channels.get(address).call(CORE_ECHO, core.EchoReq())
        assert caught.value.status is Status.RPC_UNAUTHENTICATED
        with trio.fail_after(60):
            await is_over.wait()
    assert heard == [None]


@pytest.mark.parametrize("status", [None, Status.RPC_WRONG_NODE, Status.CHUNK_NOT_FOUND])
async def test_a_listener_without_the_key_judges_nobody(net, process, status):
    """A node is gone when another one answers at its address,
    if that one proves to be of the cluster.
    """

    async def pretend(stream):
        raw = Greeter(stream)
        _, said, _ = await raw.hear()
        if status is not None:
            await raw.send(
                encode_error(Kind.GOODBYE, 0, FsError(status, "so they say"), version=HELLO_VERSION)
            )
            return
        own, key_ids = Identity("test-cluster", 7), decode_hello(said).key_ids
        await raw.send(encode_hello(own, key_ids=key_ids, nonce=b"m" * 32), encode_proof(bytes(32)))
        await raw.hear()

    wanted = Status.RPC_UNAUTHENTICATED if status is None else Status.RPC_CONNECT_FAILED
    async with process(net, secrets=[OLD]) as p:
        address = await p.nursery.start(net.a.serve, net.address(), pretend)
        with pytest.raises(FsError) as caught:
            await p.channels.get(address, node_id=8).call(CORE_ECHO, core.EchoReq())
        assert caught.value.status is wanted and type(caught.value) is FsError


async def test_another_node_of_the_cluster_is_told_from_the_wanted_one(net, process):
    async with process(net, guard=guard(OLD), secrets=[OLD], node_id=8) as p:
        assert (await refusal(p)).status is Status.RPC_WRONG_NODE


# ---- other keys while connections live


async def test_a_replaced_key_ends_its_connections(net, process):
    """And nothing is called on them, nor is a connection lost that proved a key which stays."""
    listener = guard(OLD, NEW)
    runtime = simulated_runtime(net.b, 3)
    async with (
        process(net, guard=listener, secrets=[OLD]) as p,
        open_channels(runtime, CALLER, RpcSection(), secrets=[NEW]) as others,
    ):
        assert await echoes(p)
        other = others.get(p.address)
        await other.call(CORE_ECHO, core.EchoReq())
        used = other._connection
        listener.replace_keys([NEW])
        error = await refusal(p)
        assert error.status is Status.RPC_CONNECTION_LOST and "was replaced" in error.detail
        assert (await refusal(p)).status is Status.RPC_UNAUTHENTICATED
        await other.call(CORE_ECHO, core.EchoReq())
        assert other._connection is used
        p.channels.replace_secrets([NEW, OLD])
        assert await echoes(p)


async def test_a_key_that_is_replaced_in_a_handshake_lets_nobody_in(net, process):
    listener = guard(OLD, NEW)
    async with process(net, guard=listener) as p:
        raw = Greeter(await p.connect())
        transcript, _ = await raw.greet()
        listener.replace_keys([NEW])
        request = request_frame(CORE_ECHO, 1, core.EchoReq(data=b"x").SerializeToString())
        await raw.send(encode_proof(OLD.caller_proof(transcript)), (request,))
        assert (await raw.hear())[0] == Kind.PROOF
        assert (await raw.goodbye()).status is Status.RPC_UNAUTHENTICATED


async def test_who_has_another_first_key_connects_again(net, process):
    listener = guard(OLD)
    async with process(net, guard=listener, secrets=[OLD]) as p:
        assert await echoes(p)
        used = p.channel._connection
        listener.replace_keys([NEW, OLD])
        assert await echoes(p) and p.channel._connection is used
        p.channels.replace_secrets([NEW, OLD])
        assert await echoes(p) and p.channel._connection is not used
        assert p.channel._connection.key_id == NEW.key_id
        used = p.channel._connection
        p.channels.replace_secrets([NEW])
        listener.replace_keys([NEW])
        assert await echoes(p) and p.channel._connection is used
