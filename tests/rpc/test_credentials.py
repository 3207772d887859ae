"""The arithmetic of proofs, byte for byte:
a release that computes another one can no longer talk to this one.
"""

import pytest

from fs.rpc.credentials import (
    CLUSTER_KEY,
    PROOF_BYTES,
    USER_TOKEN,
    Secret,
    Token,
    chosen_secret,
    client_prefix,
    new_client_id,
    transcript_of,
)
from fs.schema.status import FsError, Status

KEY = Secret.of_key(bytes(range(32)))
TOKEN = Token(1000, bytes.fromhex("00112233445566ff"), bytes(range(32, 64)))
TRANSCRIPT = transcript_of(b"caller's hello", b"listener's hello")


def test_known_bytes():
    verifier = KEY.verifier()
    assert Secret.of_key(bytes(range(32))) == KEY
    assert transcript_of(b"caller's hello", b"listener's hello") == TRANSCRIPT
    assert KEY.key_id.hex() == "4ba1223cfbf9d74912"
    assert (
        verifier.stored_key.hex()
        == "e2b067326af23df46374c4fd6675b88349c722f1700b8b3f63fb0bee2ef6ee79"
    )
    assert (
        verifier.listener_key.hex()
        == "9526df8b4697f09c74ac25928e5a99db23fc755e637e89771a22ed2b4c74cc0c"
    )
    assert TRANSCRIPT.hex() == "358f080305a1e2f71f4bffb3f7f6ed8649bf38f9384c6fdb8f9304d9c5e4c68a"
    assert (
        verifier.listener_proof(TRANSCRIPT).hex()
        == "c0fdbe1603a24c3c7621a843955dafdfaa945b756b7d7627cec8fb12dff11c9f"
    )
    assert (
        KEY.caller_proof(TRANSCRIPT).hex()
        == "8a18fb732e357e50687b76af35dae0a05d0f6faf5a24c1b43821171e593de389"
    )


def test_where_one_hello_ends_counts():
    assert transcript_of(b"ab", b"c") != transcript_of(b"a", b"bc")


def test_only_the_holder_is_accepted_for_this_transcript_alone():
    verifier, other = KEY.verifier(), Secret(KEY.key_id, bytes(32))
    proof = KEY.caller_proof(TRANSCRIPT)
    assert verifier.accepts(TRANSCRIPT, proof)
    assert not verifier.accepts(transcript_of(b"", b""), proof)
    assert not verifier.accepts(TRANSCRIPT, other.caller_proof(TRANSCRIPT))
    for length in (0, PROOF_BYTES - 1, PROOF_BYTES + 1):
        assert not verifier.accepts(TRANSCRIPT, (proof + b"\0")[:length])


def test_a_listener_without_the_key_is_refused():
    KEY.check_listener(TRANSCRIPT, KEY.verifier().listener_proof(TRANSCRIPT))
    stranger = Secret(KEY.key_id, bytes(32)).verifier()
    for proof in (b"", stranger.listener_proof(TRANSCRIPT)):
        with pytest.raises(FsError) as caught:
            KEY.check_listener(TRANSCRIPT, proof)
        assert caught.value.status is Status.RPC_UNAUTHENTICATED


def test_a_token_is_its_text():
    assert TOKEN.text == f"ember1-1000-00112233445566ff-{bytes(range(32, 64)).hex()}"
    assert Token.parse(TOKEN.text) == TOKEN
    assert TOKEN.secret == Secret(USER_TOKEN + TOKEN.token_id, TOKEN.value)


@pytest.mark.parametrize(
    "text", ["", TOKEN.text + "0", TOKEN.text[:-1], TOKEN.text.replace("1000", "x"), "ember2-1-0-0"]
)
def test_what_is_no_token_is_none(text):
    assert Token.parse(text) is None


def test_secrets_are_not_shown():
    for text in (repr(KEY), repr(TOKEN), repr(KEY.verifier())):
        assert bytes(range(4)).hex() not in text
        assert "\\x00\\x01" not in text
        assert '!"#' not in text


def test_clients_of_a_token_are_called_after_it():
    assert client_prefix(TOKEN.secret.key_id) == "00112233445566ff-"
    assert client_prefix(KEY.key_id) == ""
    assert KEY.key_id[:1] == CLUSTER_KEY
    assert new_client_id(bytes, [TOKEN.secret, KEY]) == "00112233445566ff-" + 32 * "0"
    assert new_client_id(bytes, [KEY, TOKEN.secret]) == 32 * "0"
    assert new_client_id(bytes, []) == 32 * "0"


def test_the_listener_chooses_one_of_ours():
    secrets = [KEY, TOKEN.secret]
    assert chosen_secret(secrets, [TOKEN.secret.key_id]) is secrets[1]
    for key_ids in ([], [b"K" + bytes(8)], [KEY.key_id, TOKEN.secret.key_id]):
        with pytest.raises(FsError) as caught:
            chosen_secret(secrets, key_ids)
        assert caught.value.status is Status.RPC_UNAUTHENTICATED
