"""From the inventory to each host: paths, node ids, configuration files, the systemd unit.  Pure.

    /opt/emberfs/VERSION/     code/ and venv/ of one version, never changed;
                              several stand side by side
    /opt/emberfs/current      link to the newest, for people; no service uses it
    /etc/emberfs/             ROLE.toml, cluster.key
    /var/lib/emberfs/         kv/, storage/ (which disk belongs where), run/ (keepers and
                              logs, without systemd)

All of it below the host's `root`.  A file is rewritten when its content is to change, and what runs
is restarted by an upgrade alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from placement.model import Disk, PlacementError, Site
from placement.quotas import quotas

from ...runtime.config_file import format_config
from ...schema.config import AuthSection, ProcessConfig, StorageSection
from ...schema.status import FsError, Status
from ..local.cluster_plan import CHAIN_COUNT_MAX, default_chain_count
from ..mounts.helper_script import DEEDS, helper_path, helper_text
from .inventory import ROLES, HostPart, Inventory

ETC: Final = "/etc/emberfs"
VAR: Final = "/var/lib/emberfs"
RUN: Final = f"{VAR}/run"
VERSIONS: Final = "/opt/emberfs"
CURRENT: Final = f"{VERSIONS}/current"
FOUNDATIONDB: Final = "/etc/foundationdb/fdb.cluster"
UNITS: Final = "/etc/systemd/system"
UNIT: Final = f"{UNITS}/ember@.service"
HELPERS: Final = tuple(map(helper_path, DEEDS))
"""Of hosts with systemd and the role mount."""
UNIT_OF_ROLE: Final = f"{UNITS}/ember@{{}}.service.d/code.conf"
"""Which version one role's unit runs: the others may run another one."""
COMMANDS: Final = {"mount": "mountd"}
"""Roles whose command, service and file are called otherwise."""
HEAD: Final = (
    "# Written by `ember cluster deploy`: what is changed here is lost; [settings] of the "
    "inventory is kept.\n\n"
)
NO_TARGETS: Final[Mapping[str, Sequence[int]]] = {}
BLOCK_BYTES_UNSAID: Final = StorageSection().checksum_block_bytes
"""What a configuration file means that does not name storage.checksum_block_bytes."""


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file that a host is to have."""

    path: str
    content: bytes
    mode: int = 0o644


def service_of(role: str) -> str:
    """Return the name of a role's service, command and configuration file."""
    return COMMANDS.get(role, role)


def config_path(host: HostPart, role: str) -> str:
    """Return where a role's configuration lies."""
    return host.path(f"{ETC}/{service_of(role)}.toml")


def program(host: HostPart, version: str) -> str:
    """Return the interpreter of a version on a host."""
    return host.path(f"{VERSIONS}/{version}/venv/bin/python")


def command(host: HostPart, version: str, role: str) -> list[str]:
    """Return how a role's process is started where no systemd runs."""
    name = service_of(role)
    return [program(host, version), "-P", "-m", f"fs.app.{name}", config_path(host, role)]


def version_of(host: HostPart, words: str) -> str:
    """Return which version a running program belongs to; empty when it is none of ours."""
    head = host.path(f"{VERSIONS}/")
    return words.removeprefix(head).split("/")[0] if words.startswith(head) else ""


# ---- chain table ---------------------------------------------------------------------------------


def chain_count(inventory: Inventory) -> int:
    """Return how many chains a new cluster gets.

    Raises:
        FsError: BAD_CONFIG when that is too many.
    """
    hosts, replicas = inventory.with_role("storage"), inventory.cluster.replicas
    usual = default_chain_count(len(hosts), replicas) * min(len(host.disks) for host in hosts)
    count = inventory.cluster.chains or usual
    if count > CHAIN_COUNT_MAX:
        raise FsError(Status.BAD_CONFIG, f"cluster.chains {count}: 1 to {CHAIN_COUNT_MAX}")
    return count


def planned_targets(inventory: Inventory) -> dict[str, dict[str, list[int]]]:
    """Return the targets of a new cluster by host and disk; as many as the weights say.

    Raises:
        FsError: BAD_CONFIG when the figures cannot be met.
    """
    hosts = inventory.with_role("storage")
    disks = [
        Disk(Site(host.number, index), disk.weight)
        for host in sorted(hosts, key=lambda h: h.number)
        for index, disk in enumerate(host.disks)
    ]
    try:
        counts = quotas(disks, chain_count(inventory), inventory.cluster.replicas)
    except PlacementError as error:
        raise FsError(Status.BAD_CONFIG, str(error)) from error
    made: dict[str, dict[str, list[int]]] = {}
    for host in hosts:
        last = host.node_id("storage") * 1000
        made[host.name] = {}
        for index, disk in enumerate(host.disks):
            count = counts.get(Site(host.number, index), 0)
            made[host.name][disk.path] = list(range(last + 1, last + count + 1))
            last += count
    return made


# ---- files ---------------------------------------------------------------------------------------


def client_config(inventory: Inventory) -> str:
    """Return the configuration of commands on the installer's machine."""
    key = str(inventory.key_path) if inventory.cluster.is_closed else ""
    return HEAD + _formatted({"process": _process(inventory), "auth": {"key_file": key}})


def config_text(
    inventory: Inventory,
    host: HostPart,
    role: str,
    targets: Mapping[str, Sequence[int]],
    *,
    block_bytes: int = BLOCK_BYTES_UNSAID,
) -> str:
    """Return the configuration file of one role of a host: what differs from the defaults.

    Args:
        inventory: of the cluster.
        host: one of its hosts.
        role: one of the host's.
        targets: what a storage process is to hold on each disk, by the
            disk's path in the inventory.
        block_bytes: storage.checksum_block_bytes, unless the inventory names it.

    Raises:
        FsError: BAD_CONFIG when `settings` contradicts itself.
    """
    sections: dict[str, Any] = {name: dict(keys) for name, keys in inventory.settings.items()}
    sections["process"] = _process(inventory) | _place(inventory, host, role)
    closed = inventory.cluster.is_closed
    sections["auth"] = (
        {"key_file": host.path(f"{ETC}/cluster.key")}
        if closed
        else {"is_open_network_allowed": True}
    )
    if role in {"kv", "mgmtd", "meta"}:
        sections["kv"] = sections.get("kv", {}) | _store(inventory, host, role)
    elif role == "mount":
        sections["client"] = sections.get("client", {}) | {
            "mount_point": host.path(host.mount_point)
        }
    else:
        sections["storage"] = (
            {"checksum_block_bytes": block_bytes}
            | sections.get("storage", {})
            | {
                "disks": [
                    {"path": host.path(disk.path), "target_ids": list(targets.get(disk.path, ()))}
                    for disk in host.disks
                ]
            }
        )
    return HEAD + _formatted(sections)


def _process(inventory: Inventory) -> dict[str, Any]:
    addresses = [inventory.address(host, "mgmtd") for host in inventory.with_role("mgmtd")]
    return {"cluster_id": inventory.cluster.id, "mgmtd_addresses": addresses}


def _place(inventory: Inventory, host: HostPart, role: str) -> dict[str, Any]:
    """Return [process] of one role: who it is and where."""
    is_open = inventory.cluster.is_open_metrics_allowed
    port = getattr(inventory.ports, f"metrics_{role}")
    found: dict[str, Any] = {
        "node_id": host.node_id(role),
        "metrics_address": f"tcp:{host.address if is_open else '127.0.0.1'}:{port}",
        "is_open_metrics_allowed": is_open,
    }
    if role == "mgmtd":
        found["status_page"] = inventory.cluster.status_page
        found["status_page_names"] = list(inventory.cluster.status_page_names)
    if role != "mount":
        found["listen"] = inventory.address(host, role)
    if role == "storage":
        found["directory"] = host.path(f"{VAR}/storage")
    return found


def _store(inventory: Inventory, host: HostPart, role: str) -> dict[str, Any]:
    """Return [kv] of one role."""
    if inventory.cluster.metadata == "foundationdb":
        return {"engine": "foundationdb", "cluster_file": host.path(FOUNDATIONDB)}
    if role == "kv":
        return {"path": host.path(f"{VAR}/kv")}
    (holder,) = inventory.with_role("kv")
    return {"engine": "remote", "address": inventory.address(holder, "kv")}


def _formatted(sections: Mapping[str, Any]) -> str:
    try:
        config = msgspec.convert(sections, ProcessConfig)
    except msgspec.ValidationError as error:
        raise FsError(Status.BAD_CONFIG, f"settings: {error}") from error
    return format_config(config, only_changed=True)


def auth_of(inventory: Inventory, host: HostPart) -> AuthSection:
    """Return what proves on a host that one belongs to the cluster."""
    closed = inventory.cluster.is_closed
    return AuthSection(key_file=host.path(f"{ETC}/cluster.key") if closed else "")


def files_of(
    inventory: Inventory,
    host: HostPart,
    secrets: Mapping[str, bytes],
    targets: Mapping[str, Sequence[int]] = NO_TARGETS,
    *,
    block_bytes: int = BLOCK_BYTES_UNSAID,
) -> list[HostFile]:
    """Return the files of a host, its unit apart.

    Args:
        inventory: of the cluster.
        host: one of its hosts.
        secrets: content of `key` and `foundationdb`, as far as the cluster has them.
        targets: as of `config_text`.
        block_bytes: the same.
    """
    files = [
        HostFile(
            config_path(host, role),
            config_text(inventory, host, role, targets, block_bytes=block_bytes).encode(),
        )
        for role in ROLES
        if role in host.roles
    ]
    if "key" in secrets:
        files.append(HostFile(host.path(f"{ETC}/cluster.key"), secrets["key"], 0o600))
    if "foundationdb" in secrets and {"mgmtd", "meta"} & set(host.roles):
        files.append(HostFile(host.path(FOUNDATIONDB), secrets["foundationdb"]))
    return files


def role_unit_path(role: str) -> str:
    """Return what of a host's unit is a role's own."""
    return UNIT_OF_ROLE.format(service_of(role))


def role_unit_text(version: str) -> str:
    """Return which version a role's unit runs."""
    words = EXEC_START.replace("PROGRAM", f"{VERSIONS}/{version}/venv/bin/ember")
    return f"{HEAD}[Service]\nExecStart=\n{words}\n"


def unit_text(program: str) -> str:
    """Return the unit that runs every role by the command `ember` that is named."""
    return UNIT_TEXT.replace("PROGRAM", program)


def helper_files() -> list[HostFile]:
    """Return what lets the system itself mount the cluster,
    with the code that is the newest then.
    """
    interpreter = f"{CURRENT}/venv/bin/python"
    return [
        HostFile(helper_path(deed), helper_text(deed, interpreter).encode(), 0o755)
        for deed in DEEDS
    ]


EXEC_START: Final = "ExecStart=PROGRAM %i --config /etc/emberfs/%i.toml"
UNIT_TEXT: Final = f"""\
[Unit]
Description=EmberFS %i
After=network-online.target local-fs.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
# ready when it serves; a storage process that the manager does not know yet waits, however long
Type=notify
NotifyAccess=main
TimeoutStartSec=infinity
# told at half of this time, by the loop that serves: one that hangs is ended and started again
WatchdogSec=60
{EXEC_START}
# reads auth.key_file again
ExecReload=/bin/kill -HUP $MAINPID
# exit code 0 is a mount that somebody ended, or an orderly stop
Restart=on-failure
RestartSec=100ms
TimeoutStopSec=90
RuntimeDirectory=emberfs
RuntimeDirectoryPreserve=yes
StateDirectory=emberfs
LimitNOFILE=1048576
# the last to be ended when memory is short: others wait for it
OOMScoreAdjust=-500
# What follows must not give the process a mount namespace: mounts of ember@mountd are for all.
LockPersonality=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictSUIDSGID=yes
NoNewPrivileges=yes
SystemCallArchitectures=native
SystemCallFilter=~@clock @cpu-emulation @debug @module @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
