"""FoundationDB's client library in this process:
loading it, telling it its options, and what its errors say.

Invariants:
    - The network thread is started once per process, by whoever opens first,
      and never inherited by a fork.
    - What is wrong on this machine (package, library, cluster file, options) is told before
      anything is asked of a server.

Does not open databases or run transactions (fs/kv/foundationdb.py).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ..runtime.extras import install_command
from ..schema.config import KvSection
from ..schema.status import FsError, Status
from .api import PREFIX_BYTES_MAX

API_VERSION: Final = 730
RELEASE: Final = f"{API_VERSION // 100}.{API_VERSION % 100 // 10}"
"""A server of another one is not refused by the client library, but waited for without end."""
CLUSTER_FILE_LINE: Final = re.compile(r"\w+:\w+@[^\s,@]+(,[^\s,@]+)*")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What FoundationDB's client library is told once per process."""

    trace_directory: str
    tls_certificate_path: str
    tls_key_path: str
    tls_ca_path: str
    tls_verify_peers: str


@dataclass(slots=True)
class Client:
    """The loaded client library of this process."""

    fdb: Any
    options: ClientOptions
    process_id: int


_clients: Final[list[Client]] = []
"""At most one: the network thread cannot be stopped and started again."""


def key_prefix(cluster_id: str) -> bytes:
    """Return what the keys of a cluster begin with:
    `emberfs/CLUSTER_ID/`, special characters as %XX.

    Raises:
        FsError: BAD_CONFIG when it would leave too little of FoundationDB's longest key.
    """
    prefix = f"emberfs/{quote(cluster_id, safe='')}/".encode()
    if len(prefix) > PREFIX_BYTES_MAX:
        raise FsError(
            Status.BAD_CONFIG,
            f"process.cluster_id {cluster_id!r} is too long for FoundationDB: {len(prefix)} bytes "
            f"as {prefix.decode()}, at most {PREFIX_BYTES_MAX}",
        )
    return prefix


def read_cluster_file(path: str) -> str:
    """Return the line of a cluster file that says where FoundationDB is.

    Raises:
        FsError: BAD_CONFIG naming the file and what is wrong with it.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise FsError(
            Status.BAD_CONFIG,
            f"FoundationDB's cluster file {path}: {reason}; copy it from a machine of that cluster"
            " (usually /etc/foundationdb/fdb.cluster)",
        ) from error
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if len(lines) != 1 or not CLUSTER_FILE_LINE.fullmatch(lines[0]):
        raise FsError(
            Status.BAD_CONFIG,
            f"{path} is no cluster file of FoundationDB: it holds one line, "
            "description:id@host:port,...",
        )
    return lines[0]


def _loaded() -> Any:
    """Return the binding with its API version chosen and the client library loaded.

    Raises:
        FsError: BAD_CONFIG saying what to install.
    """
    try:
        import fdb  # noqa: PLC0415 - optional: only clusters on FoundationDB need it
    except ImportError as error:
        raise FsError(
            Status.BAD_CONFIG,
            'kv.engine "foundationdb" needs the Python package foundationdb: '
            f"{install_command('foundationdb')}",
        ) from error
    try:
        fdb.api_version(API_VERSION)
    except Exception as error:  # the binding raises nothing more special
        raise FsError(
            Status.BAD_CONFIG,
            f"FoundationDB's client library (libfdb_c.so, {RELEASE} or newer): {error} Install the "
            "package foundationdb-clients, or name its folder in LD_LIBRARY_PATH",
        ) from error
    return fdb


def _set_options(fdb: Any, options: ClientOptions) -> None:
    """Tell the client library, before its network thread starts, what is not empty."""
    settings = fdb.options
    for value, tell in (
        (options.trace_directory, settings.set_trace_enable),
        (options.tls_certificate_path, settings.set_tls_cert_path),
        (options.tls_key_path, settings.set_tls_key_path),
        (options.tls_ca_path, settings.set_tls_ca_path),
        (options.tls_verify_peers.encode(), settings.set_tls_verify_peers),
    ):
        if value:
            tell(value)


def _check_files(options: ClientOptions) -> None:
    """Raise FsError(BAD_CONFIG) for a file or folder that is not there, or not for this process:
    the client library tells nobody of one, and no server is reached.
    """
    for knob, path in (
        ("trace_directory", options.trace_directory),
        ("tls_certificate_path", options.tls_certificate_path),
        ("tls_key_path", options.tls_key_path),
        ("tls_ca_path", options.tls_ca_path),
    ):
        if not path:
            continue
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise FsError(Status.BAD_CONFIG, f"kv.{knob} {path}: {error.strerror}") from error


def client_of(section: KvSection) -> Client:
    """Return the client library of this process,
    loading it and starting its network thread the first time.
    """
    options = ClientOptions(
        section.trace_directory,
        section.tls_certificate_path,
        section.tls_key_path,
        section.tls_ca_path,
        section.tls_verify_peers,
    )
    if not _clients:
        _check_files(options)
        fdb = _loaded()
        try:
            _set_options(fdb, options)
        except fdb.FDBError as error:
            raise engine_error(Status.BAD_CONFIG, error, "client options (kv.tls_*)") from error
        _clients.append(Client(fdb, options, os.getpid()))
    client = _clients[0]
    assert client.process_id == os.getpid(), "FoundationDB was opened before this process forked"
    if client.options != options:
        raise FsError(
            Status.BAD_CONFIG,
            "kv.tls_* and kv.trace_directory are those of the whole process, which uses others "
            "already",
        )
    return client


def engine_error(status: Status, error: Any, what: str) -> FsError:
    """Return FoundationDB's error as ours; its description may be bytes."""
    text = error.description
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return FsError(status, f"FoundationDB {what}: {text} ({error.code})")
