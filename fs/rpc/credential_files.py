"""Where processes and commands have their secrets from: files and the environment.

A cluster key is 64 hexadecimal digits, a token what `ember user token new` shows.
Files: fs/runtime/secret_file.py.
"""

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..runtime.secret_file import read_secret_lines, write_secret_file
from ..schema.config import AuthSection
from ..schema.status import FsError, Status
from .credentials import SECRET_BYTES, Secret, Token

KEYS_MAX: Final = 2
"""One, and the one that it replaces."""

KEY_FILE_VARIABLE: Final = "EMBERFS_KEY_FILE"
TOKEN_FILE_VARIABLE: Final = "EMBERFS_TOKEN_FILE"  # noqa: S105 - a name


def parse_key(text: str, where: str) -> bytes:
    """Return a cluster key; raises FsError(BAD_CONFIG), which does not repeat it."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != SECRET_BYTES:
        raise FsError(Status.BAD_CONFIG, f"{where}: a key is {SECRET_BYTES * 2} hexadecimal digits")
    return value


def read_keys(path: Path) -> list[Secret]:
    """Return the cluster's keys, the preferred one first; raises FsError(BAD_CONFIG)."""
    lines = read_secret_lines(path)
    if len(lines) > KEYS_MAX:
        raise FsError(Status.BAD_CONFIG, f"{path}: {len(lines)} keys; at most {KEYS_MAX}")
    return [Secret.of_key(parse_key(line, str(path))) for line in lines]


def new_key(random_source: random.Random) -> str:
    """Return a new key as a line of a key file."""
    return random_source.randbytes(SECRET_BYTES).hex()


def key_text(keys: Sequence[str]) -> str:
    """Return a key file with these lines, the preferred one first."""
    lines = "".join(f"{key}\n" for key in keys)
    return f"# Key of an EmberFS cluster: who has it is the cluster.\n{lines}"


def write_new_key(path: Path, random_source: random.Random) -> None:
    """Make a key in a new file of mode 0600; raises FsError(BAD_CONFIG)."""
    write_secret_file(path, key_text([new_key(random_source)]))


def configured_secrets(section: AuthSection) -> list[Secret]:
    """Return what a process can prove by its configuration; nothing in an open cluster.

    Raises:
        FsError: BAD_CONFIG.
    """
    if section.token_file:
        return [read_token(Path(section.token_file)).secret]
    return read_keys(Path(section.key_file)) if section.key_file else []


def read_token(path: Path) -> Token:
    """Return a user's token; raises FsError(BAD_CONFIG)."""
    lines = read_secret_lines(path)
    token = Token.parse(lines[0]) if len(lines) == 1 else None
    if token is None:
        raise FsError(Status.BAD_CONFIG, f"{path}: is no token; `ember user token new` makes one")
    return token


def configured_uid(section: AuthSection, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return whom a client's token makes it; None: it has none.  Raises FsError(BAD_CONFIG)."""
    named = _token_file(section, environment)
    return read_token(Path(named)).uid if named else None


def _token_file(section: AuthSection, environment: Mapping[str, str]) -> str:
    if section.token_file or section.key_file:
        return section.token_file
    return environment.get(TOKEN_FILE_VARIABLE, "")


def caller_secrets(
    section: AuthSection, environment: Mapping[str, str] = os.environ
) -> list[Secret]:
    """Return what a client can prove: by its configuration, else by the environment;
    raises FsError(BAD_CONFIG).
    """
    if section.key_file or section.token_file:
        return configured_secrets(section)
    named = AuthSection(
        token_file=environment.get(TOKEN_FILE_VARIABLE, ""),
        key_file=environment.get(KEY_FILE_VARIABLE, ""),
    )
    return configured_secrets(named)
