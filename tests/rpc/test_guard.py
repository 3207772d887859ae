"""What a grant covers, and which keys a guard asks for; whole connections are in test_closed.py."""

import random

import pytest

from fs.rpc.api import Identity
from fs.rpc.credentials import KEY_IDS_MAX, Secret
from fs.rpc.guard import Grant, KeyGuard
from fs.schema.method import Access
from fs.schema.services import META_LOOKUP, MGMTD_HEARTBEAT
from fs.schema.status import FsError, Status
from fs.schema.user import User

OLD, NEW = Secret.of_key(bytes(32)), Secret.of_key(bytes([1]) * 32)
PEER = Identity("cluster", client_id="somebody")


def test_a_grant_covers_what_is_at_or_below_its_access_while_it_holds():
    grant = Grant(Access.USER, User(7, "ann", 7, frozenset({7}), is_root=False, is_admin=False))
    grant.check(META_LOOKUP)
    with pytest.raises(FsError) as caught:
        grant.check(MGMTD_HEARTBEAT)
    assert caught.value.status is Status.RPC_NOT_ALLOWED
    assert "ann" in caught.value.detail
    grant.refusal = Status.RPC_UNCHECKED, "nobody answers"
    with pytest.raises(FsError) as caught:
        grant.check(META_LOOKUP)
    assert caught.value.status is Status.RPC_UNCHECKED


async def test_a_replaced_key_ends_what_it_granted():
    guard = KeyGuard([OLD], random.Random(1))
    granted = (await guard.challenge([OLD.key_id], PEER)).grant
    guard.replace_keys([NEW, OLD])
    assert (await guard.challenge([OLD.key_id], PEER)).grant is granted
    assert (await guard.challenge([OLD.key_id, NEW.key_id], PEER)).key_id == OLD.key_id
    assert granted.refusal is None
    assert not granted.is_over
    guard.replace_keys([NEW])
    assert granted.is_over
    with pytest.raises(FsError) as caught:
        granted.check(META_LOOKUP)
    assert caught.value.status is Status.RPC_UNAUTHENTICATED


@pytest.mark.parametrize(
    ("key_ids", "word"),
    [
        ([], "credentials"),
        ([OLD.key_id] * (KEY_IDS_MAX + 1), "allowed"),
        ([OLD.key_id], "the key of somebody"),
        ([b"T" + bytes(8)], "the token of somebody"),
    ],
)
async def test_callers_without_a_known_key_are_refused(key_ids, word):
    guard = KeyGuard([NEW], random.Random(1))
    with pytest.raises(FsError) as caught:
        await guard.challenge(key_ids, PEER)
    assert caught.value.status is Status.RPC_UNAUTHENTICATED
    assert word in caught.value.detail


async def test_as_many_keys_as_allowed_may_be_named():
    guard = KeyGuard([NEW], random.Random(1))
    named = [OLD.key_id] * (KEY_IDS_MAX - 1) + [NEW.key_id]
    assert (await guard.challenge(named, PEER)).key_id == NEW.key_id
