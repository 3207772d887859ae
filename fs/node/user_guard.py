"""Whom a process of a closed cluster serves: who has the cluster's key, and users by their tokens.

What is known of a token comes from a manager, is kept for as long as a connection of it lives, and
is asked again every `auth.token_check_interval_s`.

Invariants:
    - A revoked or expired token ends within one interval, also on connections that exist.
    - Without news for three intervals, or one more when a manager hangs, nothing is known: calls
      are refused by a status that is retried.
    - A client of a token calls itself so (`client_prefix`): it cannot take another
      user's client id for its own.

Concurrency: at most QUESTIONS_MAX questions of those who come, and one about all
that are there; `run` must run.
"""

import logging
import random
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from ..rpc.api import Identity
from ..rpc.credentials import KEY_ID_BYTES, USER_TOKEN, Secret, Verifier, client_prefix
from ..rpc.guard import Challenge, Grant, KeyGuard, check_key_ids
from ..runtime.ports import Clock
from ..schema.method import Access
from ..schema.proto.mgmtd_pb2 import FindTokensReq, TokenPb, UserPb
from ..schema.services import MGMTD_FIND_TOKENS
from ..schema.status import FsError, Status
from ..schema.user import User
from .api import MgmtdCaller

log = logging.getLogger(__name__)

FindTokens = Callable[[Sequence[bytes]], Awaitable[list[UserPb]]]
"""Returns the user of each token with this token alone, an empty one where there is none;
raises FsError.
"""

INTERVALS_MAX: Final = 3
"""Without an answer: then nothing is known any more."""

FIND_TIMEOUT_S: Final = 4.0
"""Of a question in a handshake, which itself lasts 5 s at most."""

QUESTIONS_MAX: Final = 16
"""Of strangers, at once."""

UNKNOWN_MAX: Final = 4096
"""Remembered ids that are no token's; then they are forgotten."""

REVOKED: Final = "the token does not exist any more"
EXPIRED: Final = "the token has expired"


def ask_manager(mgmtd: MgmtdCaller) -> FindTokens:
    """Return a source of tokens for processes that hold no manager."""

    async def find(token_ids: Sequence[bytes]) -> list[UserPb]:
        request = FindTokensReq(token_ids=token_ids)
        reply = await mgmtd.call(MGMTD_FIND_TOKENS, request, timeout_s=FIND_TIMEOUT_S)
        return list(reply.users)

    return find


def user_from_pb(message: UserPb) -> User:
    """Return a user as the guard sees it."""
    return User(
        message.uid,
        message.name,
        message.gid,
        frozenset(message.groups),
        is_root=message.is_root,
        is_admin=message.is_admin,
    )


@dataclass(slots=True)
class _Known:
    """A token that was asked for, and the grant of its connections."""

    user: UserPb
    heard_s: float
    grant: "weakref.ref[Grant]"

    @property
    def token(self) -> TokenPb:
        return self.user.tokens[0]


class UserGuard:
    """See the module head.  A `Guard`."""

    def __init__(
        self,
        keys: Sequence[Secret],
        random_source: random.Random,
        clock: Clock,
        interval_s: float,
    ) -> None:
        """Know the keys; `find` is to be set before tokens count for anything."""
        self.find: FindTokens | None = None
        self._keys = KeyGuard(keys, random_source)
        self._clock = clock
        self._interval_s = interval_s
        self._known: dict[bytes, _Known] = {}
        self._unknown: dict[bytes, float] = {}
        self._questions = trio.CapacityLimiter(QUESTIONS_MAX)

    def replace_keys(self, keys: Sequence[Secret]) -> None:
        """Accept these keys of the cluster from now on; see `KeyGuard`."""
        self._keys.replace_keys(keys)

    def nonce(self) -> bytes:
        """Return fresh random bytes."""
        return self._keys.nonce()

    async def challenge(self, key_ids: Sequence[bytes], peer: Identity) -> Challenge:
        """Return the challenge for one of the cluster's keys, else for a user's token.

        Raises:
            FsError: RPC_UNAUTHENTICATED; RPC_UNCHECKED when no manager answers.
        """
        check_key_ids(key_ids)
        key_id = key_ids[0]
        is_token = key_id[:1] == USER_TOKEN and len(key_id) == KEY_ID_BYTES
        if not is_token:
            return await self._keys.challenge(key_ids, peer)
        if not peer.client_id.startswith(client_prefix(key_id)):
            detail = f"client {peer.client_id!r} has a token of others"
            raise FsError(Status.RPC_UNAUTHENTICATED, detail)
        known = await self._look_up(key_id[1:])
        grant = known.grant()
        if grant is None:
            grant = _new_grant(known.user)
            known.grant = weakref.ref(grant)
        self._judge(known, grant)
        if grant.refusal is not None:
            raise FsError(*grant.refusal)
        return Challenge(key_id, Verifier(known.token.stored_key, known.token.listener_key), grant)

    async def _look_up(self, token_id: bytes) -> _Known:
        """Return a token as known, or as a manager says now."""
        now_s = self._clock.monotonic_s()
        known = self._known.get(token_id)
        if known is not None and now_s - known.heard_s <= self._interval_s:
            return known
        if now_s - self._unknown.get(token_id, -self._interval_s) < self._interval_s:
            raise FsError(Status.RPC_UNAUTHENTICATED, f"no token {token_id.hex()}")
        async with self._questions:
            (user,) = await self._ask([token_id])
        if not user.tokens:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown[token_id] = now_s
            raise FsError(Status.RPC_UNAUTHENTICATED, f"no token {token_id.hex()}")
        return self._note(token_id, user, now_s)

    async def _ask(self, token_ids: Sequence[bytes]) -> list[UserPb]:
        if self.find is None:
            raise FsError(Status.RPC_UNCHECKED, "this process serves processes of the cluster only")
        with trio.move_on_after(FIND_TIMEOUT_S):
            try:
                users = await self.find(token_ids)
            except FsError as error:
                raise FsError(Status.RPC_UNCHECKED, str(error)) from error
            if len(users) != len(token_ids):
                raise FsError(Status.RPC_UNCHECKED, "a manager answered something else")
            return users
        raise FsError(Status.RPC_UNCHECKED, f"no manager answers within {FIND_TIMEOUT_S:g} s")

    def _note(self, token_id: bytes, user: UserPb, now_s: float) -> _Known:
        """Take in what a manager says; the grant of existing connections follows."""
        known = self._known.get(token_id)
        grant = known.grant() if known is not None else None
        if known is None:
            known = self._known[token_id] = _Known(user, now_s, weakref.ref(_new_grant(user)))
        known.user, known.heard_s = user, now_s
        if grant is not None:
            fresh = _new_grant(user)
            grant.access, grant.user = fresh.access, fresh.user
            self._judge(known, grant)
        return known

    def _judge(self, known: _Known, grant: Grant) -> None:
        """Let a grant hold or not, by what is known now."""
        before, grant.refusal = grant.refusal, None
        silent_s = self._clock.monotonic_s() - known.heard_s
        if not known.user.tokens:
            grant.refusal = Status.RPC_UNAUTHENTICATED, REVOKED
        elif known.token.expires_ns and self._clock.wall_ns() >= known.token.expires_ns:
            grant.refusal = Status.RPC_UNAUTHENTICATED, EXPIRED
        elif silent_s > self._interval_s * INTERVALS_MAX:
            grant.refusal = Status.RPC_UNCHECKED, f"no manager has answered for {silent_s:.0f} s"
        if grant.refusal is not None and grant.refusal != before:
            log.info("a token of %s: %s", grant.user.name if grant.user else "", grant.refusal[1])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask again about every token that has connections, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(self._interval_s)
            await self.refresh()

    async def refresh(self) -> None:
        """Ask about all tokens with connections in one question; forget the others."""
        grants = {token_id: known.grant() for token_id, known in self._known.items()}
        for token_id, grant in grants.items():
            if grant is None:
                del self._known[token_id]
        token_ids = [token_id for token_id, grant in grants.items() if grant is not None]
        if not token_ids:
            return
        self._judge_all(grants)  # at once: this process may have been stopped for long
        now_s = self._clock.monotonic_s()
        try:
            users = await self._ask(token_ids)
        except FsError as error:
            log.warning("%d tokens not checked: %s", len(token_ids), error)
        else:
            for token_id, user in zip(token_ids, users, strict=True):
                self._note(token_id, _revoked(self._known[token_id].user, user), now_s)
        self._judge_all(grants)

    def _judge_all(self, grants: Mapping[bytes, Grant | None]) -> None:
        for token_id, grant in grants.items():
            if grant is not None:
                self._judge(self._known[token_id], grant)


def _revoked(before: UserPb, after: UserPb) -> UserPb:
    """Return what to keep of a token: when it is gone, whose it was."""
    if after.tokens:
        return after
    kept = UserPb.FromString(before.SerializeToString())
    del kept.tokens[:]
    return kept


def _new_grant(message: UserPb) -> Grant:
    user = user_from_pb(message)
    return Grant(Access.ADMIN if user.is_admin else Access.USER, user)
