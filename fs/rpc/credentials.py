"""What proves who a peer is: secrets, and what a listener keeps of them.  Pure; no I/O.

Caller and listener have said hello (fs/rpc/handshake.py), each with a fresh nonce.  Then each
proves that it knows the same secret, bound to every byte of both hellos, and nothing that was sent
is of use in another exchange:

    caller_key   = HMAC(secret, "caller"   + key id)       known to the holder of the secret
    stored_key   = SHA-256(caller_key)                     kept by listeners
    listener_key = HMAC(secret, "listener" + key id)       kept by listeners
    listener's proof = HMAC(listener_key, transcript)
    caller's proof   = caller_key XOR HMAC(stored_key, transcript)

A listener checks the caller's proof by taking the HMAC off and hashing what is left.  So a stolen
store of users lets nobody call as one of them; the key id is random and serves as the salt.

Invariants:
    - Neither a secret nor a caller_key is ever sent, logged, or part of a repr.
    - Comparisons take the same time whatever differs.

Does not do: encrypt, or protect frames after the handshake.

Source: the exchange of keys is that of SCRAM (RFC 5802), without its iterations:
our secrets are 256 random bits.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..schema.status import FsError, Status

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
KEY_ID_BYTES: Final = 9
KEY_IDS_MAX: Final = 8
"""In one hello."""

CLUSTER_KEY: Final = b"K"
USER_TOKEN: Final = b"T"
"""First letter of a key id: what it is the id of."""

CLIENT_ID_BYTES: Final = 16
TOKEN_ID_BYTES: Final = KEY_ID_BYTES - 1
TOKEN_MARK: Final = "ember1"  # noqa: S105 - a format
_TOKEN: Final = re.compile(r"ember1-(\d{1,10})-([0-9a-f]{16})-([0-9a-f]{64})")

_DOMAIN: Final = b"emberfs 1 "


def _hmac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def _xor(one: bytes, two: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, two, strict=True))


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a listener knows of a secret: enough to check a caller and to prove itself to it."""

    stored_key: bytes = field(repr=False)
    listener_key: bytes = field(repr=False)

    def listener_proof(self, transcript: bytes) -> bytes:
        """Return what proves to the caller that this listener knows the secret."""
        return _hmac(self.listener_key, transcript)

    def accepts(self, transcript: bytes, proof: bytes) -> bool:
        """Return whether a caller that knows the secret made this proof, for this transcript."""
        if len(proof) != PROOF_BYTES:
            return False
        caller_key = _xor(proof, _hmac(self.stored_key, transcript))
        return hmac.compare_digest(hashlib.sha256(caller_key).digest(), self.stored_key)


@dataclass(frozen=True, slots=True)
class Secret:
    """A key or token, as its holder has it."""

    key_id: bytes
    value: bytes = field(repr=False)
    """SECRET_BYTES random bytes."""

    @classmethod
    def of_key(cls, value: bytes) -> "Secret":
        """Return a cluster key as a secret; its id tells nothing of it."""
        digest = hashlib.sha256(_DOMAIN + b"key id " + value).digest()
        return cls(CLUSTER_KEY + digest[: KEY_ID_BYTES - 1], value)

    def _caller_key(self) -> bytes:
        return _hmac(self.value, _DOMAIN, b"caller ", self.key_id)

    def verifier(self) -> Verifier:
        """Return what listeners keep."""
        stored_key = hashlib.sha256(self._caller_key()).digest()
        return Verifier(stored_key, _hmac(self.value, _DOMAIN, b"listener ", self.key_id))

    def caller_proof(self, transcript: bytes) -> bytes:
        """Return what proves to the listener that this caller knows the secret."""
        return _xor(self._caller_key(), _hmac(self.verifier().stored_key, transcript))

    def check_listener(self, transcript: bytes, proof: bytes) -> None:
        """Raise FsError(RPC_UNAUTHENTICATED) unless a listener
        that knows the secret made this proof.
        """
        wanted = self.verifier().listener_proof(transcript)
        if not hmac.compare_digest(wanted, proof):
            detail = "the listener does not know the key that it names"
            raise FsError(Status.RPC_UNAUTHENTICATED, detail)


@dataclass(frozen=True, slots=True)
class Token:
    """A user's token, as its holder has it: `ember1-UID-ID-SECRET`,
    the last two in hexadecimal digits.
    """

    uid: int
    token_id: bytes
    value: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """What is shown once, and stands in token files."""
        return f"{TOKEN_MARK}-{self.uid}-{self.token_id.hex()}-{self.value.hex()}"

    @property
    def secret(self) -> Secret:
        """What proves it."""
        return Secret(USER_TOKEN + self.token_id, self.value)

    @classmethod
    def parse(cls, text: str) -> "Token | None":
        """Return the token that a text is; None: it is none."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        return cls(int(match[1]), bytes.fromhex(match[2]), bytes.fromhex(match[3]))


def client_prefix(key_id: bytes) -> str:
    """Return what the client ids of a token's clients begin with,
    so that nobody can take another user's for its own.
    """
    return f"{key_id[1:].hex()}-" if key_id[:1] == USER_TOKEN else ""


def new_client_id(random_bytes: Callable[[int], bytes], secrets: Sequence[Secret]) -> str:
    """Return a fresh client id for somebody who proves the first of these secrets."""
    prefix = client_prefix(secrets[0].key_id) if secrets else ""
    return prefix + random_bytes(CLIENT_ID_BYTES).hex()


def transcript_of(caller_hello: bytes, listener_hello: bytes) -> bytes:
    """Return the digest of both hello messages, as they were sent, that proofs are bound to."""
    length = len(caller_hello).to_bytes(8, "little")
    return hashlib.sha256(_DOMAIN + length + caller_hello + listener_hello).digest()


def chosen_secret(secrets: Sequence[Secret], key_ids: Sequence[bytes]) -> Secret:
    """Return the secret that a listener chose;
    raises FsError(RPC_UNAUTHENTICATED) when it chose none of ours.
    """
    for secret in secrets:
        if [secret.key_id] == list(key_ids):
            return secret
    detail = "the listener names none of our keys: it runs without one, or is not of this cluster"
    raise FsError(Status.RPC_UNAUTHENTICATED, detail)
