"""The directory of a local cluster: what `ember up` writes down and every other command reads.

    made             stands here from when its chains are in its metadata store on (stores/)
    cluster.key      of a closed cluster: who can read it, its owner alone, is the cluster
    cluster.json     format version, cluster id, sizes, checksum blocks: never changed; how many
                     managers and metadata services, and where it was mounted, the last time
    config/          one TOML file per process
    data/            control/ (key-value store, whichever process holds it), storage-N/ (one disk
                     each); of its owner alone: names and modes in it are those of all users
    logs/            one file per process
    run/             sockets, lock and state of the supervisor; worthless after a reboot

Invariants:
    - Node ids are fixed for the life of the cluster: control is 1, storage-N is 10 + N,
      mgmtd-N 100 + N, meta-N 200 + N.
    - One manager and one metadata service share the control process and its store.  With more of
      either, each is a process of its own, and the kv process serves them the same store.  On
      FoundationDB there is no kv process.
    - A directory with an unknown format version is refused, never changed.

Does not start, stop or look at processes (supervisor.py, process_id.py).
"""

import hashlib
import json
import os
import shlex
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ...rpc.credential_files import TOKEN_FILE_VARIABLE
from ...runtime.durable_file import sync_directory, write_durable
from ...schema.config import AuthSection, StorageSection
from ...schema.status import FsError, Status

FORMAT_VERSION: Final = 1
RECORD_NAME: Final = "cluster.json"
KEY_NAME: Final = "cluster.key"
MADE_NAME: Final = "made"
CONTROL: Final = "control"
CONTROL_NODE_ID: Final = 1
KV: Final = "kv"
FIRST_NODE_IDS: Final = {"storage": 10, "mgmtd": 100, "meta": 200}
"""NAME-N has this id plus N."""

SOCKET_PATH_BYTES_MAX: Final = 100
"""Of any socket in a cluster: the kernel allows 107 with the longest name we append counted."""
_LONGEST_SOCKET_NAME: Final = "supervisor.sock"


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What a local cluster is made of; only what is said of its mount
    and the last two counts may change.
    """

    cluster_id: str
    node_count: int
    """Storage processes."""
    replica_count: int
    chain_count: int
    mount_point: str
    """Empty: the cluster runs without a mount."""
    mgmtd_count: int = 1
    meta_count: int = 1
    kv: str = ""
    """`foundationdb:/PATH` of the cluster file; empty: the embedded store."""
    is_closed: bool = False
    """Its processes serve who has its key, or a token."""
    checksum_block_bytes: int = StorageSection().checksum_block_bytes
    """Of all its disks, also of those to come;
    the default is that of clusters whose record does not say it.
    """
    has_hf3fs_tree: bool = False
    """Its mount offers `3fs-virt`."""
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class ClusterDir:
    """Paths of one cluster."""

    path: Path

    def command(self, words: str) -> str:
        """Return a command about this cluster as it can be pasted: called as this one was,
        and with `--dir` where it would mean another cluster.
        """
        option = "" if self.path == default_directory() else f" --dir {shlex.quote(str(self.path))}"
        return f"{os.environ.get('EMBER_COMMAND', 'ember')} {words}{option}"

    @property
    def record_path(self) -> Path:
        """The record; its presence makes the directory a cluster."""
        return self.path / RECORD_NAME

    @property
    def wiping_path(self) -> Path:
        """What the record becomes while the cluster is being removed."""
        return self.path / f"{RECORD_NAME}.removed"

    @property
    def key_path(self) -> Path:
        """The key of a closed cluster."""
        return self.path / KEY_NAME

    @property
    def made_path(self) -> Path:
        """Its presence says that the store of the cluster is not to be empty any more."""
        return self.path / MADE_NAME

    @property
    def run_path(self) -> Path:
        """Where sockets live: `run/`, or a private directory elsewhere when
        that path is too long.
        """
        usual = self.path / "run"
        if len(os.fsencode(usual / _LONGEST_SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX:
            return usual
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        base = Path("/run" if os.geteuid() == 0 else "/tmp")  # noqa: S108 - made private below
        return base / f"emberfs-{os.geteuid()}-{digest}"

    @property
    def supervisor_socket(self) -> Path:
        """Where the supervisor answers."""
        return self.run_path / _LONGEST_SOCKET_NAME

    @property
    def starting_path(self) -> Path:
        """Its presence says that `ember up` is at work, or has died at it."""
        return self.path / "run" / "starting"

    @property
    def state_path(self) -> Path:
        """What the supervisor last knew of its services."""
        return self.path / "run" / "supervisor.json"

    @property
    def lock_path(self) -> Path:
        """Locked by the supervisor as long as it lives."""
        return self.path / "run" / "supervisor.lock"

    def config_path(self, name: str) -> Path:
        """Configuration file of one process."""
        return self.path / "config" / f"{name}.toml"

    def log_path(self, name: str) -> Path:
        """Log file of one process."""
        return self.path / "logs" / f"{name}.log"

    def data_path(self, name: str) -> Path:
        """Data of one process."""
        return self.path / "data" / name

    def address(self, name: str) -> str:
        """Where one process listens."""
        return f"unix:{self.run_path / name}.sock"

    def make_folders(self) -> None:
        """Make every folder that is missing.

        Raises:
            FsError: BAD_CLUSTER_DIR when that is not possible, or somebody else owns the
                folder of sockets or data.
        """
        try:
            for name in ("config", "data", "logs", "run"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            self.run_path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise FsError(Status.BAD_CLUSTER_DIR, f"{self.path}: {error.strerror}") from error
        for private in (self.run_path, self.path / "data"):
            found = private.lstat()
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                detail = f"{private} belongs to somebody else: run this as its owner"
                raise FsError(Status.BAD_CLUSTER_DIR, detail)
            private.chmod(0o700)


def has_control(record: ClusterRecord) -> bool:
    """True if one process holds manager, metadata service and store."""
    return record.mgmtd_count == record.meta_count == 1


def has_kv_process(record: ClusterRecord) -> bool:
    """True if a process serves the embedded store to the others."""
    return not record.kv and not has_control(record)


def storage_names(record: ClusterRecord) -> list[str]:
    """Return the names of the storage processes, in node order."""
    return _numbered("storage", record.node_count)


def mgmtd_names(record: ClusterRecord) -> list[str]:
    """Return the names of the processes that hold a manager."""
    return [CONTROL] if has_control(record) else _numbered("mgmtd", record.mgmtd_count)


def meta_names(record: ClusterRecord) -> list[str]:
    """Return the names of the processes that hold a metadata service."""
    return [CONTROL] if has_control(record) else _numbered("meta", record.meta_count)


def _numbered(role: str, count: int) -> list[str]:
    return [f"{role}-{number}" for number in range(1, count + 1)]


def role_of(name: str) -> str:
    """Return the command that runs a process: `storage` for storage-2."""
    return name.partition("-")[0]


def node_id_of(name: str) -> int:
    """Return the node id of a server process; 0 for the kv process,
    which is no member of the cluster.
    """
    if name in {CONTROL, KV}:
        return CONTROL_NODE_ID if name == CONTROL else 0
    return FIRST_NODE_IDS[role_of(name)] + int(name.partition("-")[2])


def mgmtd_addresses(directory: ClusterDir, record: ClusterRecord) -> list[str]:
    """Return where the managers listen."""
    return [directory.address(name) for name in mgmtd_names(record)]


def auth_of(directory: ClusterDir, record: ClusterRecord) -> AuthSection:
    """Return what a local cluster's processes, and commands of its owner, prove and ask for."""
    return AuthSection(key_file=str(directory.key_path) if record.is_closed else "")


def usual_key_file(directory: ClusterDir, record: ClusterRecord) -> str:
    """Return the key that clients on the machine of a local cluster use;
    empty: what the environment says.

    A token that it names comes first: who names one wants to be its user.
    """
    return "" if os.environ.get(TOKEN_FILE_VARIABLE) else auth_of(directory, record).key_file


def save_record(directory: ClusterDir, record: ClusterRecord) -> None:
    """Write the record.

    A cluster of before stays readable for the releases that made it: what they do not know, and
    means the same unsaid, is left out.
    """
    fields = asdict(record)
    if record.checksum_block_bytes == StorageSection().checksum_block_bytes:
        del fields["checksum_block_bytes"]
    text = (json.dumps(fields, indent=2) + "\n").encode()
    with suppress(FileNotFoundError):
        if directory.record_path.read_bytes() == text:
            # Not written once more: a cluster starts also where there is no room for a copy.
            sync_directory(directory.path)
            return
    write_durable(directory.record_path, text)


def load_record(directory: ClusterDir) -> ClusterRecord | None:
    """Return the record, None when no cluster was made here.

    Raises:
        FsError: BAD_CLUSTER_DIR when the record is damaged or of another format version.
    """
    try:
        text = directory.record_path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FsError(Status.BAD_CLUSTER_DIR, f"{directory.path}: {error.strerror}") from error
    try:
        fields = json.loads(text)
        version = fields["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise FsError(
            Status.BAD_CLUSTER_DIR, f"{directory.record_path} is damaged; restore it from a backup"
        ) from error
    if version != FORMAT_VERSION:
        raise FsError(
            Status.BAD_CLUSTER_DIR,
            f"{directory.path} has format version {version}, this release knows {FORMAT_VERSION};"
            " use the release that wrote it",
        )
    try:
        return ClusterRecord(**fields)
    except TypeError as error:
        raise FsError(Status.BAD_CLUSTER_DIR, f"{directory.record_path}: {error}") from error


def need_record(directory: ClusterDir) -> ClusterRecord:
    """Return the record; raises FsError(BAD_CLUSTER_DIR) when no cluster was made here."""
    record = load_record(directory)
    if record is None:
        check_not_wiped(directory)
        raise FsError(
            Status.BAD_CLUSTER_DIR,
            f"{directory.path} holds no cluster; `ember up` makes one on this machine alone, and "
            "commands reach one of several machines by the file of any of its processes: --config "
            "FILE, or EMBERFS_CONFIG",
        )
    return record


def check_not_wiped(directory: ClusterDir) -> None:
    """Refuse what an interrupted `ember down --wipe` has left; raises FsError(BAD_CLUSTER_DIR)."""
    if directory.wiping_path.exists():
        detail = (
            f"{directory.path} was being removed; go on with it: {directory.command('down --wipe')}"
        )
        raise FsError(Status.BAD_CLUSTER_DIR, detail)


def default_directory() -> Path:
    """Return where a cluster lives when nobody says otherwise."""
    if os.geteuid() == 0:
        return Path("/var/lib/emberfs")
    return Path.home() / ".local/share/emberfs"


def default_mount_point() -> Path:
    """Return where it is mounted when nobody says otherwise."""
    return Path("/mnt/ember") if os.geteuid() == 0 else Path.home() / "ember"
