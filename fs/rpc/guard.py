"""Who may call what: what a listener asks of a peer before it serves it.

Invariants:
    - Without a proof a guarded listener serves nothing; what the proof
      gives is the connection's `Grant`.
    - A grant that does not hold any more covers nothing, also on connections that exist.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..schema.method import Access, Method
from ..schema.status import FsError, Status
from ..schema.user import User
from .api import Identity
from .credentials import CLUSTER_KEY, KEY_IDS_MAX, NONCE_BYTES, Secret, Verifier

NO_CREDENTIALS: Final = (
    "the caller gave no credentials, and this cluster is closed: it needs auth.key_file or "
    "auth.token_file, commands EMBERFS_KEY_FILE or EMBERFS_TOKEN_FILE"
)

KEY_REPLACED: Final = "the key of this connection was replaced by another one"


@dataclass(slots=True, weakref_slot=True)
class Grant:
    """On whose authority a connection calls, and how far that goes.

    Shared by all connections of one token.
    """

    access: Access
    user: User | None = None
    """None: a process of the cluster, or the cluster is open."""
    refusal: tuple[Status, str] | None = None
    """Why it does not hold, any more or just now; None: it holds."""
    is_over: bool = False
    """Another handshake may give a grant that holds: the next request ends the connection."""

    def check(self, method: Method[Any, Any]) -> None:
        """Raise FsError unless this grant covers a method:
        RPC_NOT_ALLOWED, or why it does not hold.
        """
        if self.refusal is not None:
            raise FsError(*self.refusal)
        if self.access < method.access:
            who = "nobody" if self.user is None else self.user.name
            detail = (
                f"{method} is for {method.access.name.lower()}s, {who} is "
                f"{self.access.name.lower()}"
            )
            raise FsError(Status.RPC_NOT_ALLOWED, detail)


OPEN_GRANT: Final = Grant(Access.SERVICE)
"""Of every peer of an open cluster."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """A caller is to prove that it knows one of the secrets it named."""

    key_id: bytes
    verifier: Verifier
    grant: Grant


class Guard(Protocol):
    """Decides whom the listener of a closed cluster serves."""

    def nonce(self) -> bytes:
        """Return NONCE_BYTES fresh random bytes."""
        ...

    async def challenge(self, key_ids: Sequence[bytes], peer: Identity) -> Challenge:
        """Return what a caller that names these keys has to prove.

        Raises:
            FsError: RPC_UNAUTHENTICATED when nothing that it could prove would do.
        """
        ...


def check_key_ids(key_ids: Sequence[bytes]) -> None:
    """Raise FsError(RPC_UNAUTHENTICATED) for a hello that names no key, or too many."""
    if not key_ids:
        raise FsError(Status.RPC_UNAUTHENTICATED, NO_CREDENTIALS)
    if len(key_ids) > KEY_IDS_MAX:
        raise FsError(
            Status.RPC_UNAUTHENTICATED, f"{len(key_ids)} keys named, {KEY_IDS_MAX} allowed"
        )


class KeyGuard:
    """Accepts who knows one of the cluster's keys."""

    def __init__(self, keys: Sequence[Secret], random_source: random.Random) -> None:
        """Accept these keys; several while one replaces another."""
        self._random = random_source
        self._known: dict[bytes, Challenge] = {}
        self.replace_keys(keys)

    def replace_keys(self, keys: Sequence[Secret]) -> None:
        """Accept these keys from now on; connections that proved another one end
        with their next request.
        """
        assert keys, "a guard without a key"
        before = self._known
        self._known = {
            key.key_id: before.get(key.key_id)
            or Challenge(key.key_id, key.verifier(), Grant(Access.SERVICE))
            for key in keys
        }
        for key_id in before.keys() - self._known.keys():
            before[key_id].grant.refusal = Status.RPC_UNAUTHENTICATED, KEY_REPLACED
            before[key_id].grant.is_over = True

    def nonce(self) -> bytes:
        """Return fresh random bytes."""
        return self._random.randbytes(NONCE_BYTES)

    async def challenge(self, key_ids: Sequence[bytes], peer: Identity) -> Challenge:
        """Return the challenge for the first of the caller's keys that is one of ours."""
        check_key_ids(key_ids)
        found = self.known(key_ids)
        if found is not None:
            return found
        kind = "key" if key_ids[0][:1] == CLUSTER_KEY else "token"
        detail = f"the {kind} of {peer.client_id or peer.node_id} is not known to this cluster"
        raise FsError(Status.RPC_UNAUTHENTICATED, detail)

    def known(self, key_ids: Sequence[bytes]) -> Challenge | None:
        """Return the challenge for the first of these that is one of our keys; None: none is."""
        return next((self._known[key_id] for key_id in key_ids if key_id in self._known), None)
