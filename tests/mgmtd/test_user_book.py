"""Users and tokens: the rules, and what a change of primaries leaves of them."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.mgmtd import user_book as book_module
from fs.mgmtd.user_book import (
    TOKENS_MAX,
    USED_STEP_NS,
    UserBook,
    has_expired,
    pack_user,
    token_key,
    unpack_user,
    user_key,
    with_token,
    with_use,
    with_user,
    without_token,
    without_user,
)
from fs.schema import services
from fs.schema.proto import mgmtd_pb2 as pb
from fs.schema.status import FsError, Status
from tests.mgmtd.harness import cluster_of

ALICE = pb.UserPb(uid=1000, name="alice", gid=100, groups=[10, 20])


def token(number, **fields):
    key = bytes([number]) * 32
    return pb.TokenPb(token_id=bytes([number]) * 8, stored_key=key, listener_key=key, **fields)


def refused(status, call, *args):
    with pytest.raises(FsError) as caught:
        call(*args)
    assert caught.value.status is status, caught.value


def test_keys():
    assert user_key(0x1020304) == b"MGUS\x01\x02\x03\x04"
    assert token_key(b"12345678") == b"MGTK12345678"
    assert unpack_user(pack_user(ALICE)) == ALICE


def test_users():
    book = with_user(UserBook(), ALICE, 5)
    assert book.user(1000).created_ns == 5
    book = with_token(book, 1000, token(1), 6)
    changed = pb.UserPb(uid=1000, name="alice2", gid=7, is_admin=True, created_ns=99)
    after = with_user(book, changed, 8)
    assert after.user(1000).created_ns == 5 and after.user(1000).name == "alice2"
    assert [t.token_id for t in after.user(1000).tokens] == [bytes([1]) * 8]
    assert book.user(1000).name == "alice"
    refused(Status.CONFLICTING_CHANGE, with_user, book, pb.UserPb(uid=1, name="alice"), 9)
    for bad in (
        pb.UserPb(uid=2**32 - 1, name="x"),
        pb.UserPb(uid=1, name=""),
        pb.UserPb(uid=1, name="a b"),
        pb.UserPb(uid=1, name="a\n"),
        pb.UserPb(uid=1, name="x" * 65),
        pb.UserPb(uid=1, name="x", gid=2**32 - 1),
        pb.UserPb(uid=1, name="x", groups=range(1025)),
    ):
        refused(Status.RPC_BAD_REQUEST, with_user, book, bad, 9)
    assert without_user(after, 1000) == UserBook() == without_user(UserBook(), 1)
    refused(Status.USER_UNKNOWN, UserBook().user, 1000)


def test_there_are_not_too_many_users(monkeypatch):
    monkeypatch.setattr(book_module, "USERS_MAX", 2)
    book = UserBook()
    for uid in (1, 2):
        book = with_user(book, pb.UserPb(uid=uid, name=f"u{uid}"), 1)
    refused(Status.CONFLICTING_CHANGE, with_user, book, ALICE, 1)
    with_user(book, pb.UserPb(uid=2, name="other"), 1)


def test_tokens():
    book = with_user(UserBook(), ALICE, 5)
    book = with_user(book, pb.UserPb(uid=1, name="bob"), 5)
    book = with_token(book, 1000, token(1, expires_ns=50), 6)
    assert with_token(book, 1000, token(1, expires_ns=50), 7) is book
    refused(Status.CONFLICTING_CHANGE, with_token, book, 1, token(1), 7)
    other = token(1)
    other.stored_key = b"y" * 32
    refused(Status.CONFLICTING_CHANGE, with_token, book, 1000, other, 7)
    refused(Status.USER_UNKNOWN, with_token, book, 3, token(2), 7)
    refused(Status.RPC_BAD_REQUEST, with_token, book, 1000, token(2, expires_ns=7), 7)
    for field in ("token_id", "stored_key", "listener_key"):
        short = token(2)
        setattr(short, field, b"short")
        refused(Status.RPC_BAD_REQUEST, with_token, book, 1000, short, 7)
    facts = book.facts(bytes([1]) * 8)
    assert (facts.name, len(facts.tokens)) == ("alice", 1)
    assert book.facts(bytes(8)) is None
    for number in range(2, TOKENS_MAX + 1):
        book = with_token(book, 1000, token(number), 7)
    refused(Status.CONFLICTING_CHANGE, with_token, book, 1000, token(99), 49)
    later = with_token(book, 1000, token(99), 50)  # the first has expired
    assert later.facts(bytes([1]) * 8) is None and later.facts(bytes([99]) * 8)
    assert without_token(later, bytes([99]) * 8).facts(bytes([99]) * 8) is None
    assert without_token(later, bytes(8)) is later


def test_use_is_noted_to_the_hour():
    book = with_token(with_user(UserBook(), ALICE, 5), 1000, token(1), 6)
    used = with_use(book, bytes([1]) * 8, USED_STEP_NS)
    assert used.user(1000).tokens[0].used_ns == USED_STEP_NS
    assert with_use(used, bytes([1]) * 8, 2 * USED_STEP_NS - 1) is used
    assert with_use(used, bytes([1]) * 8, 2 * USED_STEP_NS) != used
    assert with_use(book, bytes(8), USED_STEP_NS) is book


@pytest.mark.parametrize(
    ("expires", "now", "is_over"), [(0, 10**18, False), (5, 4, False), (5, 5, True)]
)
def test_when_a_token_expires(expires, now, is_over):
    assert has_expired(pb.TokenPb(expires_ns=expires), now) is is_over


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("utrx"), st.integers(1, 3), st.integers(1, 5)), max_size=12)
)
def test_what_is_written_is_what_is_known(deeds):
    """Records of each change, applied one after the other, are the book."""
    book, stored = UserBook(), {}
    for kind, uid, number in deeds:
        try:
            match kind:
                case "u":
                    after = with_user(book, pb.UserPb(uid=uid, name=f"u{uid}"), number)
                case "t":
                    after = with_token(book, uid, token(number), 1)
                case "r":
                    after = without_user(book, uid)
                case _:
                    after = without_token(book, bytes([number]) * 8)
        except FsError:
            continue
        for key, value in book.records(after):
            stored.pop(key, None) if value is None else stored.__setitem__(key, value)
        book = after
        users = {k: unpack_user(v) for k, v in stored.items() if k.startswith(b"MGUS")}
        assert {u.uid: u for u in users.values()} == dict(book.users)
        tokens = {
            k[4:]: int.from_bytes(v, "big") for k, v in stored.items() if k.startswith(b"MGTK")
        }
        assert tokens == {t: user.uid for t, (user, _) in book.by_token.items()}


async def test_users_outlive_a_primary(autojump_clock):
    async with cluster_of(manager_count=2) as cluster:
        first = await cluster.start_manager(1)
        await cluster.wait_primary(first)
        version = (await cluster.info()).routing_version
        await cluster.call(services.MGMTD_SET_USER, pb.SetUserReq(user=ALICE))
        for number in (1, 2):
            request = pb.AddTokenReq(uid=1000, token=token(number))
            await cluster.call(services.MGMTD_ADD_TOKEN, request)
        gone = pb.RevokeTokenReq(token_id=bytes([2]) * 8)
        await cluster.call(services.MGMTD_REVOKE_TOKEN, gone)
        with pytest.raises(FsError, match="USER_UNKNOWN"):
            await cluster.call(services.MGMTD_ADD_TOKEN, pb.AddTokenReq(uid=7, token=token(3)))
        assert (await cluster.info()).routing_version == version
        second = await cluster.start_manager(2)
        ids = [bytes([n]) * 8 for n in (1, 2)]
        known, unknown = await second.mgmtd.find_tokens(ids)  # it does not reign
        assert known.name == "alice" and not unknown.tokens
        await first.kill()
        await cluster.wait_primary(second)
        reply = await cluster.call(services.MGMTD_FIND_TOKENS, pb.FindTokensReq(token_ids=ids))
        assert [len(u.tokens) for u in reply.users] == [1, 0]
        assert reply.users[0].tokens[0].stored_key == bytes([1]) * 32
        listed = await cluster.call(services.MGMTD_LIST_USERS, pb.ListUsersReq())
        (shown,) = listed.users
        assert not shown.tokens[0].stored_key and not shown.tokens[0].listener_key
        await cluster.call(services.MGMTD_REMOVE_USER, pb.RemoveUserReq(uid=1000))
        listed = await cluster.call(services.MGMTD_LIST_USERS, pb.ListUsersReq())
        assert not listed.users and not listed.has_more
