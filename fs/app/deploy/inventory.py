"""The inventory: which machines a cluster consists of, what each does,
and where its code comes from.  TOML.

deploy/inventory.toml is an annotated example.  Refusals are one line: file,
what is wrong, what is allowed.

Invariants:
    - A host's `number` is what its node ids are made of; it is given once
      and never to another machine.
    - Nothing that is computed here depends on the order of the hosts, but the managers' addresses.

Does not look at any machine.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from ...schema.config import ProcessConfig
from ...schema.routing import REPLICA_COUNT_MAX
from ...schema.status import FsError, Status

ROLES: Final = ("kv", "mgmtd", "meta", "storage", "mount")
"""In the order in which they start."""
FIRST_NODE_IDS: Final = {"mgmtd": 1000, "meta": 2000, "storage": 10_000}
"""A host's node id in a role is this plus its number; the others are no members of the cluster."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.\-]{0,62})$")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
AbsolutePath = Annotated[str, Meta(pattern="^/.")]


class Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the inventory."""


class ClusterPart(Part, frozen=True):
    """The cluster as a whole."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    is_closed: bool = True
    """Its processes serve who has the key; an open one needs a network that nobody else is on."""
    key_file: str = ""
    """On the machine of the installer; made when missing.  Default: ID.key beside the inventory."""
    metadata: Annotated[str, Meta(pattern="^(kv|foundationdb)$")] = "kv"
    foundationdb_cluster_file: str = ""
    """On the machine of the installer; copied to managers and metadata services."""
    replicas: Annotated[int, Meta(ge=1, le=REPLICA_COUNT_MAX)] = 3
    chains: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Of a new cluster; 0: a number that suits nodes and disks."""
    is_open_metrics_allowed: bool = False
    """Metrics are shown beyond each machine, without a key."""
    status_page: Annotated[str, Meta(pattern="^(off|local|open)$")] = "local"
    """Whom managers show their status page, without a key: see process.status_page."""
    status_page_names: list[str] = []
    """Names, besides those of the hosts, under which browsers may ask for it."""


class CodePart(Part, frozen=True):
    """What is installed."""

    source: str
    """A wheel, or the folder of a checkout; beside the inventory unless absolute."""
    version: str = ""
    """Names the folder of this code on the hosts; default: what the code says of itself."""
    dependencies: str = "lock"
    """lock: from the registry of each host's pip; wheels:FOLDER: from wheels that are shipped;
    present:FOLDER: a folder of packages that every host has already."""
    lock: str = ""
    """Which packages; default: requirements.lock of the checkout, or beside the wheel."""
    python: str = "python3"


class SshPart(Part, frozen=True):
    """How the installer reaches hosts that say nothing else."""

    user: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    key: str = ""
    options: list[str] = []


class PortsPart(Part, frozen=True):
    """Where processes listen."""

    kv: Port = 7000
    mgmtd: Port = 7001
    meta: Port = 7002
    storage: Port = 7010
    metrics_kv: Port = 9700
    metrics_mgmtd: Port = 9701
    metrics_meta: Port = 9702
    metrics_storage: Port = 9710
    metrics_mount: Port = 9720


class DiskPart(Part, frozen=True):
    """A disk of a storage node: a mounted file system, or any directory."""

    path: AbsolutePath
    weight: Annotated[float, Meta(gt=0.0, le=1000.0)] = 1.0


class HostPart(Part, frozen=True):
    """A machine."""

    name: Name
    number: Annotated[int, Meta(ge=1, le=999)]
    address: Name
    """Where the others reach it."""
    roles: list[Annotated[str, Meta(pattern="^(kv|mgmtd|meta|storage|mount)$")]]
    disks: list[DiskPart] = []
    mount_point: AbsolutePath = "/mnt/ember"
    rack: str = ""
    zone: str = ""
    ssh: str = ""
    """Where the installer reaches it; default: its address."""
    ssh_user: str = ""
    ssh_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    ssh_key: str = ""
    namespace: str = ""
    """A network namespace of this machine in place of another machine: for tests."""
    root: str = ""
    """Goes before every path on the host: for hosts that share a file system."""

    @property
    def tags(self) -> dict[str, str]:
        """Its failure domains."""
        return {key: value for key, value in (("zone", self.zone), ("rack", self.rack)) if value}

    def node_id(self, role: str) -> int:
        """Return its node id in a role; 0 for one that is no member of the cluster."""
        return FIRST_NODE_IDS[role] + self.number if role in FIRST_NODE_IDS else 0

    def path(self, path: str) -> str:
        """Return where a path lies on this host."""
        return self.root + path


class Inventory(Part, frozen=True):
    """All of it."""

    cluster: ClusterPart
    code: CodePart
    hosts: list[HostPart]
    ssh: SshPart = SshPart()
    ports: PortsPart = PortsPart()
    settings: dict[str, dict[str, Any]] = {}
    """Further configuration, by section; every process gets it."""
    folder: str = ""
    """Where relative paths begin: beside the file, which does not say it."""

    def with_role(self, role: str) -> list[HostPart]:
        """Return the hosts that have a role."""
        return [host for host in self.hosts if role in host.roles]

    def address(self, host: HostPart, role: str) -> str:
        """Return where a role of a host listens."""
        return f"tcp:{host.address}:{getattr(self.ports, role)}"

    def local(self, path: str) -> Path:
        """Return a path on the installer's machine."""
        return Path(self.folder) / Path(path).expanduser()

    @property
    def key_path(self) -> Path:
        """The cluster's key on the installer's machine."""
        return self.local(self.cluster.key_file or f"{self.cluster.id}.key")

    @property
    def client_path(self) -> Path:
        """A configuration for commands on the installer's machine."""
        return self.local(f"{self.cluster.id}.toml")


def read_inventory(path: Path) -> Inventory:
    """Read and check an inventory.

    Raises:
        FsError: BAD_CONFIG, one line.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        if "folder" in found:
            raise _bad(path, "folder: no such key")
        inventory = msgspec.convert({**found, "folder": str(path.absolute().parent)}, Inventory)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(path, f"is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise _bad(path, str(error)) from error
    for problem in problems(inventory):
        raise _bad(path, problem)
    return inventory


def problems(inventory: Inventory) -> Iterator[str]:
    """Yield what contradicts itself."""
    for what, values in (
        ("name", [h.name for h in inventory.hosts]),
        ("number", [h.number for h in inventory.hosts]),
        ("address", [h.address for h in inventory.hosts]),
    ):
        for value, count in Counter(values).items():
            if count > 1:
                yield f"{count} hosts have the {what} {value}: each has its own"
    for host in inventory.hosts:
        yield from _host_problems(host)
    yield from _role_problems(inventory)
    try:
        msgspec.convert(inventory.settings, ProcessConfig)
    except msgspec.ValidationError as error:
        yield f"settings: {error}"
    if "process" in inventory.settings or "auth" in inventory.settings:
        yield "settings: process and auth are made from the rest of the inventory"


def _host_problems(host: HostPart) -> Iterator[str]:
    if not host.roles:
        yield f"host {host.name} has no role: one or more of {', '.join(ROLES)}"
    if ("storage" in host.roles) != bool(host.disks):
        yield f"host {host.name}: disks and the role storage belong together"
    for path, count in Counter(disk.path for disk in host.disks).items():
        if count > 1:
            yield f"host {host.name}: disk {path} is named twice"


def _role_problems(inventory: Inventory) -> Iterator[str]:
    for role in ("mgmtd", "meta", "storage"):
        if not inventory.with_role(role):
            yield f"no host has the role {role}"
    count, is_kv = len(inventory.with_role("kv")), inventory.cluster.metadata == "kv"
    if is_kv and count != 1:
        yield (
            f"{count} hosts have the role kv: metadata has one store; or metadata = 'foundationdb'"
        )
    if not is_kv and count:
        yield (
            "the role kv is of the embedded store; this cluster keeps its metadata in FoundationDB"
        )
    if not is_kv and not inventory.cluster.foundationdb_cluster_file:
        yield "cluster.foundationdb_cluster_file: where is FoundationDB?"
    storage_count = len(inventory.with_role("storage"))
    if storage_count < inventory.cluster.replicas:
        yield (
            f"{inventory.cluster.replicas} replicas need as many storage hosts, not "
            f"{storage_count}: one copy per host"
        )


def _bad(path: Path, problem: str) -> FsError:
    return FsError(Status.BAD_CONFIG, f"{path}: " + " ".join(problem.split()))
