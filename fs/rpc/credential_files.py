"""Where processes and commands have their secrets from: files and the environment.

A cluster key is 64 hexadecimal digits.  Files: fs/runtime/secret_file.py.
"""

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..runtime.secret_file import read_secret_lines, write_secret_file
from ..schema.config import AuthSection
from ..schema.status import FsError, Status
from .credentials import SECRET_BYTES, Secret

KEYS_MAX: Final = 2
"""One, and the one that it replaces."""

KEY_FILE_VARIABLE: Final = "EMBERFS_KEY_FILE"


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


def write_new_key(path: Path, random_source: random.Random) -> None:
    """Make a key in a new file of mode 0600; raises FsError(BAD_CONFIG)."""
    key = random_source.randbytes(SECRET_BYTES).hex()
    write_secret_file(path, f"# Key of an EmberFS cluster: who has it is the cluster.\n{key}\n")


def configured_secrets(section: AuthSection) -> list[Secret]:
    """Return what a process can prove by its configuration; nothing in an open cluster.

    Raises:
        FsError: BAD_CONFIG.
    """
    return read_keys(Path(section.key_file)) if section.key_file else []


def caller_secrets(
    section: AuthSection, environment: Mapping[str, str] = os.environ
) -> list[Secret]:
    """Return what a client can prove: by its configuration, else by the environment; raises FsError(BAD_CONFIG)."""
    found = configured_secrets(section)
    named = environment.get(KEY_FILE_VARIABLE)
    if not found and named:
        found = read_keys(Path(named))
    return found
