"""What the manager keeps about users and their tokens:
who they are, and what checks a token, never the token.  Pure.

Invariants:
    - A uid and a name belong to one user, a token id to one token.
    - A user has at most TOKENS_MAX tokens that have not expired; expired
      ones go when a new one comes.
    - Repeating a change that was made changes nothing and succeeds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ..schema.proto import record_pb2
from ..schema.proto.mgmtd_pb2 import TokenPb, UserPb
from ..schema.status import FsError, Status
from ..schema.user import ID_MAX

USERS_MAX: Final = 10_000
"""They fit into one read of a backup, and into one process's memory."""

TOKENS_MAX: Final = 8
GROUPS_MAX: Final = 1024
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""The number after it means "no user"."""

TOKEN_ID_BYTES: Final = 8
KEY_BYTES: Final = 32
USED_STEP_NS: Final = 3600 * 10**9
"""When a token was last used is known to within this."""

USER_PREFIX: Final = b"MGUS"
TOKEN_PREFIX: Final = b"MGTK"


def user_key(uid: int) -> bytes:
    """Return the key of a user's record."""
    return USER_PREFIX + uid.to_bytes(4, "big")


def token_key(token_id: bytes) -> bytes:
    """Return the key of the record that says whose a token is."""
    return TOKEN_PREFIX + token_id


def pack_user(user: UserPb) -> bytes:
    """Return the persisted form."""
    return record_pb2.UserRecordPb(user=user).SerializeToString(deterministic=True)


def unpack_user(value: bytes) -> UserPb:
    """Inverse of `pack_user`."""
    return record_pb2.UserRecordPb.FromString(value).user


def _bad(problem: str) -> FsError:
    return FsError(Status.RPC_BAD_REQUEST, problem)


def _copy(user: UserPb) -> UserPb:
    return UserPb.FromString(user.SerializeToString())


@dataclass(frozen=True)
class UserBook:
    """All users, by uid; neither the mapping nor what it holds is changed in place."""

    users: Mapping[int, UserPb] = field(default_factory=dict)

    @cached_property
    def by_token(self) -> dict[bytes, tuple[UserPb, TokenPb]]:
        """Every token with its user, by token id."""
        return {
            token.token_id: (user, token) for user in self.users.values() for token in user.tokens
        }

    def user(self, uid: int) -> UserPb:
        """Return a user; raises FsError(USER_UNKNOWN)."""
        found = self.users.get(uid)
        if found is None:
            raise FsError(Status.USER_UNKNOWN, f"uid {uid}")
        return found

    def facts(self, token_id: bytes) -> UserPb | None:
        """Return the user of a token with this token alone; None when there is no such token."""
        return only_token(*found) if (found := self.by_token.get(token_id)) else None

    def records(self, after: "UserBook") -> list[tuple[bytes, bytes | None]]:
        """Return what to write to have `after` in the store; None: the key is cleared."""
        users, tokens = self.users, self.by_token
        return [
            *((user_key(uid), None) for uid in users if uid not in after.users),
            *((token_key(t), None) for t in tokens if t not in after.by_token),
            *((user_key(u), pack_user(v)) for u, v in after.users.items() if users.get(u) != v),
            *(
                (token_key(t), user.uid.to_bytes(4, "big"))
                for t, (user, _) in after.by_token.items()
                if t not in tokens
            ),
        ]

    def replacing(self, user: UserPb) -> "UserBook":
        """Return the book with this user in the place of the one with its uid."""
        return UserBook({**self.users, user.uid: user})


def only_token(user: UserPb, token: TokenPb) -> UserPb:
    """Return a user with one of the tokens."""
    made = _copy(user)
    del made.tokens[:]
    made.tokens.append(token)
    return made


def _check_user(user: UserPb) -> None:
    if user.uid > ID_MAX or user.gid > ID_MAX or any(g > ID_MAX for g in user.groups):
        raise _bad(f"ids are 0 to {ID_MAX}")
    if not NAME.fullmatch(user.name):
        raise _bad(f"user name {user.name!r}: letters, digits, . _ -, at most 64")
    if len(user.groups) > GROUPS_MAX:
        raise _bad(f"{len(user.groups)} groups, at most {GROUPS_MAX}")


def with_user(book: UserBook, wanted: UserPb, now_ns: int) -> UserBook:
    """Return the book with a new user, or an old one's name, groups and flags changed; tokens stay.

    Raises:
        FsError: RPC_BAD_REQUEST, CONFLICTING_CHANGE (the name is another's, or there are too many).
    """
    _check_user(wanted)
    if any(u.name == wanted.name and u.uid != wanted.uid for u in book.users.values()):
        raise FsError(
            Status.CONFLICTING_CHANGE, f"the name {wanted.name!r} belongs to another user"
        )
    before = book.users.get(wanted.uid)
    if before is None and len(book.users) >= USERS_MAX:
        raise FsError(Status.CONFLICTING_CHANGE, f"there are {USERS_MAX} users already")
    user = _copy(wanted)
    del user.tokens[:]
    user.created_ns = before.created_ns if before else now_ns
    user.tokens.extend(before.tokens if before else ())
    return book.replacing(user)


def without_user(book: UserBook, uid: int) -> UserBook:
    """Return the book without a user and its tokens; one that does not exist is fine."""
    return UserBook({u: user for u, user in book.users.items() if u != uid})


def with_token(book: UserBook, uid: int, wanted: TokenPb, now_ns: int) -> UserBook:
    """Return the book with one more token of a user.

    Raises:
        FsError: USER_UNKNOWN, RPC_BAD_REQUEST, CONFLICTING_CHANGE (the id is
            taken, or there are too many).
    """
    user = _copy(book.user(uid))
    sizes = len(wanted.token_id), len(wanted.stored_key), len(wanted.listener_key)
    if sizes != (TOKEN_ID_BYTES, KEY_BYTES, KEY_BYTES):
        raise _bad(f"a token of sizes {sizes}")
    if wanted.expires_ns and wanted.expires_ns <= now_ns:
        raise _bad("the token would have expired already")
    if wanted.token_id in book.by_token:
        owner, known = book.by_token[wanted.token_id]
        if owner.uid == uid and known.stored_key == wanted.stored_key:
            return book
        raise FsError(Status.CONFLICTING_CHANGE, f"token {wanted.token_id.hex()} exists already")
    alive = [t for t in user.tokens if not has_expired(t, now_ns)]
    if len(alive) >= TOKENS_MAX:
        raise FsError(
            Status.CONFLICTING_CHANGE,
            f"user {user.name} has {TOKENS_MAX} tokens already; revoke one of them",
        )
    token = TokenPb.FromString(wanted.SerializeToString())
    token.created_ns, token.used_ns = now_ns, 0
    del user.tokens[:]
    user.tokens.extend([*alive, token])
    return book.replacing(user)


def without_token(book: UserBook, token_id: bytes) -> UserBook:
    """Return the book without a token; one that does not exist is fine."""
    found = book.by_token.get(token_id)
    if found is None:
        return book
    user = _copy(found[0])
    kept = [t for t in user.tokens if t.token_id != token_id]
    del user.tokens[:]
    user.tokens.extend(kept)
    return book.replacing(user)


def with_use(book: UserBook, token_id: bytes, now_ns: int) -> UserBook:
    """Return the book with a token noted as used now;
    the same one if that was known well enough.
    """
    found = book.by_token.get(token_id)
    if found is None or now_ns - found[1].used_ns < USED_STEP_NS:
        return book
    user = _copy(found[0])
    for token in user.tokens:
        if token.token_id == token_id:
            token.used_ns = now_ns
    return book.replacing(user)


def has_expired(token: TokenPb, now_ns: int) -> bool:
    """Return whether a token's time is over."""
    return bool(token.expires_ns) and now_ns >= token.expires_ns
