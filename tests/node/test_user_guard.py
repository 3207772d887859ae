"""Tokens as a process sees them: asked for, kept, refreshed, withdrawn."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import gc
import random

import pytest
import trio

from fs.node.user_guard import FIND_TIMEOUT_S, INTERVALS_MAX, UserGuard, ask_manager
from fs.rpc.api import Identity
from fs.rpc.credentials import NONCE_BYTES, Secret, Token, client_prefix
from fs.runtime.simulated import SimulatedClock
from fs.schema.method import Access
from fs.schema.proto.mgmtd_pb2 import FindTokensRsp, TokenPb, UserPb
from fs.schema.services import CORE_ECHO, KV_READ, MGMTD_FIND_TOKENS, MGMTD_SET_USER
from fs.schema.status import FsError, Status

KEY = Secret.of_key(b"k" * 32)
TOKEN = Token(1000, b"12345678", b"s" * 32)
KEY_ID = TOKEN.secret.key_id
PEER = Identity("c", client_id=client_prefix(KEY_ID) + "1")
INTERVAL_S = 5.0


@pytest.fixture
def autojump_clock():
    return trio.testing.MockClock(autojump_threshold=0)


class Manager:
    """Answers, or does not."""

    def __init__(self):
        self.asked = []
        self.is_silent = False
        verifier = TOKEN.secret.verifier()
        self.token = TokenPb(
            token_id=TOKEN.token_id,
            stored_key=verifier.stored_key,
            listener_key=verifier.listener_key,
        )
        self.users = {TOKEN.token_id: UserPb(uid=1000, name="alice", gid=1, tokens=[self.token])}

    async def find(self, token_ids):
        self.asked.append(list(token_ids))
        if self.is_silent:
            raise FsError(Status.RPC_TIMEOUT, "silent")
        return [
            UserPb.FromString(self.users.get(t, UserPb()).SerializeToString()) for t in token_ids
        ]


@pytest.fixture
def manager():
    return Manager()


@pytest.fixture
def guard(manager):
    made = UserGuard([KEY], random.Random(1), SimulatedClock(), INTERVAL_S)
    made.find = manager.find
    return made


async def refusal(guard, key_ids=(KEY_ID,), peer=PEER):
    with pytest.raises(FsError) as caught:
        await guard.challenge(list(key_ids), peer)
    return caught.value


async def test_keys_and_tokens(autojump_clock, guard, manager):
    assert (await guard.challenge([KEY.key_id], PEER)).grant.user is None
    assert not manager.asked
    challenge = await guard.challenge([KEY_ID], PEER)
    assert challenge.grant.access is Access.USER and challenge.grant.user.uid == 1000
    proof = TOKEN.secret.caller_proof(b"transcript")
    assert challenge.verifier.accepts(b"transcript", proof)
    challenge.grant.check(CORE_ECHO)
    for method in (MGMTD_SET_USER, KV_READ):
        with pytest.raises(FsError) as caught:
            challenge.grant.check(method)
        assert caught.value.status is Status.RPC_NOT_ALLOWED
    again = await guard.challenge([KEY_ID], PEER)
    assert again.grant is challenge.grant and len(manager.asked) == 1


async def test_other_keys_leave_tokens_alone(autojump_clock, guard):
    key, token = [await guard.challenge([k], PEER) for k in (KEY.key_id, KEY_ID)]
    other = Secret.of_key(b"o" * 32)
    guard.replace_keys([other])
    assert (await guard.challenge([other.key_id], PEER)).grant.user is None
    assert (await refusal(guard, [KEY.key_id])).status is Status.RPC_UNAUTHENTICATED
    assert key.grant.is_over and not token.grant.is_over
    token.grant.check(CORE_ECHO)
    with pytest.raises(FsError, match="UNAUTHENTICATED"):
        key.grant.check(CORE_ECHO)


@pytest.mark.parametrize("client_id", ["", "1", "3132333435363739-1", TOKEN.token_id.hex()])
async def test_a_client_of_another_token_is_refused(autojump_clock, guard, client_id):
    error = await refusal(guard, peer=Identity("c", client_id=client_id))
    assert error.status is Status.RPC_UNAUTHENTICATED


@pytest.mark.parametrize("key_id", [b"", b"T", b"T1234567", b"T123456789", b"X12345678"])
async def test_ids_of_nothing_are_refused(autojump_clock, guard, manager, key_id):
    assert (await refusal(guard, [key_id])).status is Status.RPC_UNAUTHENTICATED
    assert not manager.asked


async def test_strangers_are_asked_about_once_per_interval(autojump_clock, guard, manager):
    manager.users.clear()
    for _ in range(5):
        assert (await refusal(guard)).status is Status.RPC_UNAUTHENTICATED
    assert len(manager.asked) == 1
    await trio.sleep(INTERVAL_S)
    await refusal(guard)
    assert len(manager.asked) == 2


async def test_a_revoked_token_ends_on_living_connections(autojump_clock, guard, manager):
    async with trio.open_nursery() as nursery:
        await nursery.start(guard.run)
        grant = (await guard.challenge([KEY_ID], PEER)).grant
        del manager.users[TOKEN.token_id]
        grant.check(CORE_ECHO)
        await trio.sleep(INTERVAL_S + 0.1)
        with pytest.raises(FsError, match="does not exist any more") as caught:
            grant.check(CORE_ECHO)
        assert caught.value.status is Status.RPC_UNAUTHENTICATED
        assert (await refusal(guard)).status is Status.RPC_UNAUTHENTICATED
        nursery.cancel_scope.cancel()


async def test_flags_change_on_living_connections(autojump_clock, guard, manager):
    grant = (await guard.challenge([KEY_ID], PEER)).grant
    manager.users[TOKEN.token_id].is_admin = True
    await guard.refresh()
    grant.check(MGMTD_SET_USER)
    manager.users[TOKEN.token_id].is_admin = False
    await guard.refresh()
    with pytest.raises(FsError):
        grant.check(MGMTD_SET_USER)


async def test_a_token_expires_on_living_connections(autojump_clock, guard, manager):
    now_ns = SimulatedClock().wall_ns()
    manager.users[TOKEN.token_id].tokens[0].expires_ns = now_ns + 3 * 10**9
    grant = (await guard.challenge([KEY_ID], PEER)).grant
    await trio.sleep(3.5)
    assert "expired" in (await refusal(guard)).detail
    with pytest.raises(FsError, match="expired"):
        grant.check(CORE_ECHO)


async def test_a_token_does_not_outlive_its_last_moment(autojump_clock, guard, manager):
    end_ns = SimulatedClock().wall_ns() + 3 * 10**9
    manager.users[TOKEN.token_id].tokens[0].expires_ns = end_ns
    await trio.sleep(2.5)
    grant = (await guard.challenge([KEY_ID], PEER)).grant
    await trio.sleep(0.5)
    assert SimulatedClock().wall_ns() == end_ns
    assert "expired" in (await refusal(guard)).detail
    with pytest.raises(FsError, match="expired"):
        grant.check(CORE_ECHO)


async def test_a_process_without_a_manager_asks_one(manager):
    class Mgmtd:
        async def call(self, method, request, *, timeout_s=None):
            assert (method, timeout_s) == (MGMTD_FIND_TOKENS, FIND_TIMEOUT_S)
            return FindTokensRsp(users=await manager.find(request.token_ids))

    (found,) = await ask_manager(Mgmtd())([TOKEN.token_id])
    assert found == manager.users[TOKEN.token_id]
    assert manager.asked == [[TOKEN.token_id]]


def test_each_connection_gets_a_nonce_of_its_own(guard):
    nonces = [guard.nonce() for _ in range(3)]
    assert len(set(nonces)) == 3
    assert {len(nonce) for nonce in nonces} == {NONCE_BYTES}


async def test_silence_is_a_pause(autojump_clock, guard, manager):
    async with trio.open_nursery() as nursery:
        await nursery.start(guard.run)
        grant = (await guard.challenge([KEY_ID], PEER)).grant
        manager.is_silent = True
        await trio.sleep(INTERVAL_S * INTERVALS_MAX - 1)
        grant.check(CORE_ECHO)
        await trio.sleep(INTERVAL_S + 2)
        with pytest.raises(FsError) as caught:
            grant.check(CORE_ECHO)
        assert caught.value.status is Status.RPC_UNCHECKED
        assert (await refusal(guard)).status is Status.RPC_UNCHECKED
        manager.is_silent = False
        await trio.sleep(INTERVAL_S + 0.1)
        grant.check(CORE_ECHO)
        nursery.cancel_scope.cancel()


async def test_a_manager_that_hangs_costs_a_bounded_time(autojump_clock, guard):
    async def hang(_token_ids):
        await trio.sleep_forever()

    guard.find = hang
    began_s = trio.current_time()
    assert (await refusal(guard)).status is Status.RPC_UNCHECKED
    assert trio.current_time() - began_s < 5
    guard.find = None
    assert (await refusal(guard)).status is Status.RPC_UNCHECKED


@pytest.mark.thorough
async def test_what_has_no_connection_is_forgotten(autojump_clock, guard, manager):
    challenge = await guard.challenge([KEY_ID], PEER)
    await guard.refresh()
    assert len(manager.asked) == 2
    del challenge
    gc.collect()
    await guard.refresh()
    await guard.refresh()
    assert len(manager.asked) == 2 and not guard._known


async def test_who_was_stopped_for_long_knows_nothing_before_it_asks(autojump_clock, guard):
    grant = (await guard.challenge([KEY_ID], PEER)).grant
    autojump_clock.jump(INTERVAL_S * INTERVALS_MAX + 1)
    is_asked = trio.Event()

    async def hang(_token_ids):
        is_asked.set()
        await trio.sleep_forever()

    guard.find = hang
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.refresh)
        await is_asked.wait()
        with pytest.raises(FsError, match="UNCHECKED"):
            grant.check(CORE_ECHO)
        nursery.cancel_scope.cancel()
