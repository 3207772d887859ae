"""Files of secrets: who may read them, and what they may hold."""

import os
import stat

import pytest

from fs.rpc.credential_files import (
    caller_secrets,
    configured_secrets,
    configured_uid,
    read_keys,
    write_new_key,
)
from fs.rpc.credentials import Token
from fs.runtime.secret_file import read_secret_lines, replace_secret_file, write_secret_file
from fs.schema.config import AuthSection, ProcessConfig, ProcessSection, check_closed
from fs.schema.status import FsError, Status


def refused(word, call, *args):
    with pytest.raises(FsError, match=word) as caught:
        call(*args)
    assert caught.value.status is Status.BAD_CONFIG
    return caught.value


def test_what_is_written_is_read_and_private(tmp_path):
    path = tmp_path / "key"
    write_secret_file(path, "# comment\n\n one \ntwo\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret_lines(path) == ["one", "two"]
    refused("is there already", write_secret_file, path, "three\n")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o601])
def test_what_others_may_touch_is_refused(tmp_path, mode):
    path = tmp_path / "key"
    write_secret_file(path, "one\n")
    path.chmod(mode)
    refused("chmod 600", read_secret_lines, path)


def test_what_is_no_file_of_secrets_is_refused(tmp_path):
    refused("No such file", read_secret_lines, tmp_path / "none")
    refused("no regular file", read_secret_lines, tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    refused("no regular file", read_secret_lines, tmp_path / "pipe")
    write_secret_file(tmp_path / "empty", "# nothing\n")
    refused("holds no secret", read_secret_lines, tmp_path / "empty")
    write_secret_file(tmp_path / "long", "x" * 20_000)
    refused("longer than", read_secret_lines, tmp_path / "long")


class Numbers:
    """Random numbers that are none."""

    def __init__(self, byte):
        self.byte = byte

    def randbytes(self, count):
        return bytes([self.byte]) * count


def test_keys_of_a_cluster(tmp_path):
    for number in (1, 2, 3):
        write_new_key(tmp_path / f"k{number}", Numbers(number))
    one, two, three = ((tmp_path / f"k{n}").read_text() for n in (1, 2, 3))
    write_secret_file(tmp_path / "both", two + one)
    new, old = read_keys(tmp_path / "both")
    assert [old] == read_keys(tmp_path / "k1") and [new] == read_keys(tmp_path / "k2")
    write_secret_file(tmp_path / "three", one + two + three)
    refused("at most 2", read_keys, tmp_path / "three")
    write_secret_file(tmp_path / "short", "c0ffee\n")
    assert "c0ffee" not in str(refused("64 hexadecimal", read_keys, tmp_path / "short"))


def test_where_secrets_come_from(tmp_path):
    for number in (1, 2):
        write_new_key(tmp_path / f"k{number}", Numbers(number))
    (one,), (two,) = read_keys(tmp_path / "k1"), read_keys(tmp_path / "k2")
    named = AuthSection(key_file=str(tmp_path / "k1"))
    environment = {"EMBERFS_KEY_FILE": str(tmp_path / "k2")}
    assert configured_secrets(named) == [one]
    assert configured_secrets(AuthSection()) == []
    assert caller_secrets(named, environment) == [one]
    assert caller_secrets(AuthSection(), environment) == [two]
    assert caller_secrets(AuthSection(), {}) == []


def test_a_process_proves_one_thing():
    both = AuthSection(key_file="/key", token_file="/token")
    refused("one of them", check_closed, ProcessConfig(auth=both))


def test_tokens(tmp_path):
    token = Token(1000, b"12345678", bytes(range(32)))
    assert Token.parse(token.text) == token
    for changed in (token.text[:-1], token.text + "0", "x" + token.text, "", token.text.upper()):
        assert Token.parse(changed) is None
    assert token.value.hex() not in repr(token) and repr(token.value) not in repr(token)
    path = tmp_path / "token"
    write_secret_file(path, token.text + "\n")
    section = AuthSection(token_file=str(path))
    assert configured_secrets(section) == [token.secret]
    assert configured_uid(section) == 1000
    environment = {"EMBERFS_TOKEN_FILE": str(path), "EMBERFS_KEY_FILE": "/none"}
    assert caller_secrets(AuthSection(), environment) == [token.secret]
    assert configured_uid(AuthSection(), environment) == 1000
    assert configured_uid(AuthSection(), {}) is None
    assert configured_uid(AuthSection(key_file="/key"), environment) is None
    write_secret_file(tmp_path / "other", "hunter2\n")
    said = refused("no token", configured_secrets, AuthSection(token_file=str(tmp_path / "other")))
    assert "hunter2" not in str(said)


@pytest.mark.parametrize(
    ("listen", "is_fine"),
    [
        ("tcp:127.0.0.1:7000", True),
        ("tcp:127.9.9.9:7000", True),
        ("tcp:[::1]:7000", True),
        ("tcp:localhost:7000", True),
        ("unix:/run/emberfs/meta.sock", True),
        ("tcp:0.0.0.0:7000", False),
        ("tcp:[::]:7000", False),
        ("tcp:10.0.0.1:7000", False),
        ("tcp:localhost.example:7000", False),
        ("tcp:meta-1:7000", False),
    ],
)
def test_nobody_listens_to_strangers_without_a_key(listen, is_fine):
    process = ProcessSection(listen=listen)
    if is_fine:
        check_closed(ProcessConfig(process=process))
    else:
        refused("needs auth.key_file", check_closed, ProcessConfig(process=process))
    for auth in (AuthSection(key_file="/key"), AuthSection(is_open_network_allowed=True)):
        check_closed(ProcessConfig(process=process, auth=auth))


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "secret"
    write_secret_file(path, "one\n")
    (tmp_path / ".secret.new").write_text("what a killed run left")
    replace_secret_file(path, "two\none\n")
    assert read_secret_lines(path) == ["two", "one"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    refused("cannot be written", replace_secret_file, tmp_path / "none" / "secret", "three\n")
