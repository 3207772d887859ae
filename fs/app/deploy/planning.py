"""What has to be done, from the inventory and from what was found on the hosts.  Pure.

A plan holds what differs from the inventory and nothing else: a second run plans nothing.  What
runs is never restarted by a deploy: where its code or its configuration is not as wanted, the
plan says that an upgrade is due.
"""

import hashlib
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from ...admin.doctor import SKEW_S_MAX
from ...schema.config import NEW_CHECKSUM_BLOCK_BYTES
from ...schema.status import FsError, Status
from .code_archive import Release
from .inventory import FIRST_NODE_IDS, ROLES, HostPart, Inventory
from .layout import (
    BLOCK_BYTES_UNSAID,
    CURRENT,
    ETC,
    HELPERS,
    UNIT,
    UNITS,
    HostFile,
    config_path,
    files_of,
    helper_files,
    planned_targets,
    role_unit_path,
    role_unit_text,
    service_of,
    unit_text,
    version_of,
)

FREE_BYTES_MIN: Final = 512 * 1024 * 1024
STOPPED: Final = "stopped"
SERVING: Final = "serving"

Targets = dict[str, list[int]]
"""By disk, as the inventory names it."""


class ServiceFacts(Struct, frozen=True):
    """A service of a host."""

    state: str
    """stopped, starting, serving."""
    program: str
    """What runs it."""


class HostFacts(Struct, frozen=True):
    """What on_host.py found."""

    python: tuple[int, int]
    machine: str
    wall_ns: int
    has_venv: bool
    has_fuse: bool
    has_systemd: bool
    is_root: bool
    free_bytes: int
    disks: dict[str, str]
    files: dict[str, str]
    texts: dict[str, str]
    installed: dict[str, dict[str, Any]]
    services: dict[str, ServiceFacts]
    ports: dict[str, str]
    mounts: dict[str, str]
    skew_s: float = 0.0
    """Its wall clock minus ours, as far as that is certain."""


class NodeView(Struct, frozen=True):
    """A node as the manager knows it."""

    node_id: int
    state: str
    release: str
    tags: dict[str, str]


class TargetView(Struct, frozen=True):
    """A member of a chain."""

    target_id: int
    node_id: int
    disk_index: int


class View(Struct, frozen=True):
    """A cluster as its manager knows it: agent.py."""

    nodes: list[NodeView]
    targets: list[TargetView]
    chain_count: int
    incomplete: list[int]
    unserved: list[int]
    move_count: int
    is_rebalancing: bool
    acting: int = 0
    """Node id of the acting manager, if it is told."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What is to be done on one host."""

    host: HostPart
    installs: bool
    files: Sequence[HostFile]
    starts: Sequence[str]
    """Roles."""
    restarts: Sequence[str]
    """Roles that run with other code or another configuration: for an upgrade."""
    configs: Mapping[str, str]
    """Of all its roles, by role."""

    @property
    def is_empty(self) -> bool:
        """True if a deploy has nothing to do here."""
        return not (self.installs or self.files or self.starts)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What is to be done in all."""

    version: str
    hosts: Sequence[HostPlan]
    makes_key: bool = False
    makes_chains: int = 0
    """How many, if there are none."""
    new_nodes: Sequence[tuple[HostPart, str]] = field(default=())
    rebalances: bool = False
    strangers: Sequence[int] = ()
    """Nodes of the cluster that the inventory does not have: told, and left alone."""

    @property
    def is_empty(self) -> bool:
        """True if a deploy has nothing to do."""
        is_quiet = all(plan.is_empty for plan in self.hosts)
        return is_quiet and not (self.makes_key or self.new_nodes or self.rebalances)

    def lines(self) -> Iterator[str]:
        """Yield the plan for people."""
        if self.makes_key:
            yield "make the cluster's key"
        for plan in self.hosts:
            if plan.is_empty:
                continue
            parts = [f"install {self.version}"] * plan.installs
            written = dict.fromkeys(_short_name(file.path) for file in plan.files)
            parts += [f"write {', '.join(written)}"] * bool(written)
            parts += [f"start {', '.join(plan.starts)}"] * bool(plan.starts)
            yield f"{plan.host.name}: {'; '.join(parts)}"
        if self.new_nodes:
            names = [f"{role} of {host.name}" for host, role in self.new_nodes]
            yield f"make nodes known: {', '.join(names)}"
        if self.makes_chains:
            yield f"make {self.makes_chains} chains and the chain table, if there are none yet"
        if self.rebalances:
            yield "move targets to storage nodes that have none"


def _short_name(path: str) -> str:
    if path in HELPERS:
        return "mount helper"
    return "units" if path.startswith(UNITS) else path.rpartition("/")[2]


# ---- checks --------------------------------------------------------------------------------------


def host_troubles(
    inventory: Inventory, host: HostPart, facts: HostFacts, release: Release, key_digest: str
) -> Iterator[str]:
    """Yield why a host cannot be worked on."""
    if not facts.is_root:
        yield "needs root: ssh as root, or as somebody who may use sudo without a password"
    if not facts.has_venv:
        yield "Python has no venv: install python3-venv"
    if facts.free_bytes < FREE_BYTES_MIN:
        yield f"{facts.free_bytes >> 20} MiB free, {FREE_BYTES_MIN >> 20} MiB are needed"
    if abs(facts.skew_s) > SKEW_S_MAX:
        yield f"its clock is {facts.skew_s:+.1f} s off: run a time service"
    for path, state in facts.disks.items():
        if state == "missing":
            yield f"disk {path} does not exist: mount it there, or make the directory"
        elif state.startswith("strange"):
            yield f"disk {path} is neither empty nor a disk of EmberFS ({state.partition(': ')[2]})"
    if "mount" in host.roles:
        yield from _mount_troubles(facts)
    for role, trouble in facts.ports.items():
        if trouble:
            yield f"{role} cannot listen at {host.address}: {trouble}"
    found = facts.installed.get(release.version)
    if found is not None and found["digest"] != release.digest:
        yield (
            f"version {release.version} is installed with other content:"
            " give this one a name of its own by code.version"
        )
    there = facts.files.get(host.path(f"{ETC}/cluster.key"), "")
    if there and there != key_digest:
        yield (
            f"has another key than {inventory.key_path}: `ember cluster rotate-key` ends what it "
            'began; specs/deploying.md, "A key that got away"'
        )


def _mount_troubles(facts: HostFacts) -> Iterator[str]:
    if not facts.has_fuse:
        yield "cannot mount: needs /dev/fuse and fusermount3 (package fuse3)"
    if facts.services["mountd"].state == STOPPED:
        for path, trouble in facts.mounts.items():
            if trouble:
                yield f"mount point {path} {trouble}"


def same_machines(found: Mapping[str, HostFacts]) -> Iterator[tuple[str, str]]:
    """Yield (host, what is wrong) for hosts that are one machine."""
    names = defaultdict(list)
    for name, facts in found.items():
        names[facts.machine].append(name)
    for several in names.values():
        for name in several[1:]:
            yield name, f"is the same machine as {several[0]}"


# ---- plan ----------------------------------------------------------------------------------------


def targets_for(
    host: HostPart, facts: HostFacts, view: View | None, planned: Mapping[str, Targets]
) -> Targets:
    """Return which targets the file of a storage process names, by disk.

    Of a new cluster those that are planned.  Later they are what they were: the manager moves
    targets without telling the file.  A disk that is empty, although chains have members there,
    gets those back: its machine was replaced.
    """
    text = facts.texts.get(config_path(host, "storage"), "")
    named = _named_targets(text) if text else None
    has_chains = view is not None and bool(view.chain_count)
    made: Targets = {}
    for index, disk in enumerate(host.disks):
        path = host.path(disk.path)
        if view is not None and has_chains and facts.disks[path] == "empty":
            node_id = host.node_id("storage")
            made[disk.path] = sorted(
                t.target_id for t in view.targets if (t.node_id, t.disk_index) == (node_id, index)
            )
        elif named is not None and (has_chains or view is None):
            made[disk.path] = named.get(path, [])
        else:
            made[disk.path] = [] if has_chains else planned[host.name][disk.path]
    return made


def _named_targets(text: str) -> dict[str, list[int]]:
    """Return the targets of each disk by a configuration file that the installer wrote."""
    try:
        disks = tomllib.loads(text).get("storage", {}).get("disks", [])
    except tomllib.TOMLDecodeError:  # somebody's change: it is replaced as a whole
        return {}
    return {disk["path"]: disk.get("target_ids", []) for disk in disks}


def named_block_bytes(inventory: Inventory) -> int:
    """Return the size of checksum blocks that the inventory names; 0 for none."""
    named: int = inventory.settings.get("storage", {}).get("checksum_block_bytes", 0)
    return named


def told_block_bytes(host: HostPart, facts: HostFacts) -> int:
    """Return what the disks of a host were, or are to be, formatted with by its file;
    0 if it has none that can be read.
    """
    text = facts.texts.get(config_path(host, "storage"), "")
    try:
        section = tomllib.loads(text).get("storage", {})
    except tomllib.TOMLDecodeError:  # somebody's change, and no word of the others
        return 0
    told: int = section.get("checksum_block_bytes", BLOCK_BYTES_UNSAID) if section else 0
    return told


def cluster_block_bytes(
    inventory: Inventory, found: Mapping[str, HostFacts], view: View | None
) -> int:
    """Return the size of checksum blocks for storage hosts that join:
    a cluster stays with what it was made with.

    Args:
        inventory: of the cluster.
        found: all hosts that were looked at, by name.
        view: what the manager says; None when none runs.

    Returns:
        What the files of most of its storage hosts say; of a new cluster
        NEW_CHECKSUM_BLOCK_BYTES; 0: not known.
    """
    hosts = inventory.with_role("storage")
    told = [told_block_bytes(h, found[h.name]) for h in hosts if h.name in found]
    if any(told):
        return Counter(size for size in told if size).most_common(1)[0][0]
    is_new = len(told) == len(hosts) and (view is None or not view.chain_count)
    return NEW_CHECKSUM_BLOCK_BYTES if is_new else 0


def plan_host(
    host: HostPart,
    facts: HostFacts,
    release: Release,
    files: Sequence[HostFile],
    *,
    with_unit: bool = False,
) -> HostPlan:
    """Return what is to be done on a host that has no trouble.

    Args:
        host: one of the inventory.
        facts: what was found there.
        release: what is to be installed.
        files: what the host is to have.
        with_unit: also change the unit of what runs, which counts from its next start.
    """
    configs = {config_path(host, role): role for role in ROLES if role in host.roles}
    owned = configs | {role_unit_path(role): role for role in configs.values()}
    differing = [f for f in files if facts.files.get(f.path) != digest_of(f.content)]
    running = {role: facts.services[service_of(role)] for role in configs.values()}
    late = {
        role
        for role, found in running.items()
        if found.state != STOPPED
        and (
            version_of(host, found.program) != release.version
            or any(configs.get(file.path) == role for file in differing)
        )
    }
    return HostPlan(
        host,
        installs=release.version not in facts.installed,
        files=[
            f
            for f in differing
            if owned.get(f.path) not in late and (with_unit or not late or f.path != UNIT)
        ],
        starts=[role for role, found in running.items() if found.state == STOPPED],
        restarts=[role for role in running if role in late],
        configs={configs[f.path]: f.content.decode() for f in files if f.path in configs},
    )  # fmt: skip


def wanted_files(
    inventory: Inventory,
    host: HostPart,
    facts: HostFacts,
    release: Release,
    *,
    secrets: Mapping[str, bytes],
    targets: Targets,
    block_bytes: int,
) -> list[HostFile]:
    """Return the files that a host is to have;
    arguments as of `files_of`, `block_bytes` as of `plan_cluster`.

    Raises:
        FsError: BAD_CONFIG when the size of the cluster's checksum blocks is wanted, and not known.
    """
    size = told_block_bytes(host, facts) or block_bytes
    if not size and "storage" in host.roles and not named_block_bytes(inventory):
        raise FsError(
            Status.BAD_CONFIG,
            f"{host.name}: which checksum blocks this cluster has is not known, since no other "
            "storage host says it: name checksum_block_bytes in [settings.storage], as in the file "
            f"of another one ({BLOCK_BYTES_UNSAID} if that does not name it)",
        )
    files = files_of(inventory, host, secrets, targets, block_bytes=size or BLOCK_BYTES_UNSAID)
    if facts.has_systemd:
        files.append(HostFile(UNIT, unit_text(f"{CURRENT}/venv/bin/ember").encode()))
        own = role_unit_text(release.version).encode()
        files += [HostFile(role_unit_path(role), own) for role in ROLES if role in host.roles]
        if "mount" in host.roles:
            files += helper_files()
    return files


def digest_of(content: bytes) -> str:
    """Return the digest of a file's content, as on_host.py says it."""
    return hashlib.sha256(content).hexdigest()


def plan_cluster(
    inventory: Inventory,
    release: Release,
    found: Mapping[str, HostFacts],
    secrets: Mapping[str, bytes],
    view: View | None,
    *,
    block_bytes: int,
) -> ClusterPlan:
    """Return what is to be done on the hosts that were looked at.

    Args:
        inventory: of the cluster.
        release: what is to be installed.
        found: the hosts to work on, by name.
        secrets: as of `files_of`; `key` may be one that is only to be made.
        view: what the manager says; None when none runs.
        block_bytes: checksum blocks of storage hosts that have no file: see `cluster_block_bytes`.
    """
    planned = planned_targets(inventory)
    hosts = []
    for host in inventory.hosts:
        if host.name not in found:
            continue
        facts = found[host.name]
        targets = targets_for(host, facts, view, planned)
        files = wanted_files(
            inventory,
            host,
            facts,
            release,
            secrets=secrets,
            targets=targets,
            block_bytes=block_bytes,
        )
        hosts.append(plan_host(host, facts, release, files))
    new_nodes = _new_nodes(hosts, view)
    chain_count = sum(len(t) for disks in planned.values() for t in disks.values())
    return ClusterPlan(
        release.version,
        hosts,
        makes_key=inventory.cluster.is_closed and not inventory.key_path.exists(),
        makes_chains=0
        if view is not None and view.chain_count
        else chain_count // inventory.cluster.replicas,
        new_nodes=new_nodes,
        rebalances=_is_uneven(hosts, view),
        strangers=_strangers(inventory, view),
    )


def _strangers(inventory: Inventory, view: View | None) -> list[int]:
    own = {host.node_id(role) for host in inventory.hosts for role in host.roles}
    return [] if view is None else [n.node_id for n in view.nodes if n.node_id not in own]


def _new_nodes(hosts: Sequence[HostPlan], view: View | None) -> list[tuple[HostPart, str]]:
    known = {} if view is None else {node.node_id: node for node in view.nodes}
    return [
        (plan.host, role)
        for plan in hosts
        for role in FIRST_NODE_IDS
        if role in plan.host.roles
        and (
            (node := known.get(plan.host.node_id(role))) is None
            or not plan.host.tags.items() <= node.tags.items()
        )
    ]  # fmt: skip


def _is_uneven(hosts: Sequence[HostPlan], view: View | None) -> bool:
    """True if a storage node has nothing although there is something for everybody,
    and nothing moves.
    """
    if view is None or not view.chain_count or view.is_rebalancing or view.move_count:
        return False
    used = {target.node_id for target in view.targets}
    ids = {plan.host.node_id("storage") for plan in hosts if "storage" in plan.host.roles}
    return bool(ids - used) and len(view.targets) >= len(used | ids)
