"""Settings of processes, where processes that should have the same do not,
and how far they are with stored ones.  Pure.

Compared are processes that use a section for the same purpose: its role's own section among all
that have the role, what everybody uses among all.  What makes a process itself (its id, addresses,
directories, disks) is left out.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..schema.ids import NodeId
from ..schema.proto.common_pb2 import SettingsReportPb, SettingsStatePb
from ..schema.proto.mgmtd_pb2 import ClientSessionPb, ListSettingsRsp
from ..schema.routing import Role, RoutingInfo
from ..schema.stored_settings import DETECTION, LIVE, ROLE_NAMES

Settings = Mapping[str, Any]
"""By `section.key`."""

OWN: Final = frozenset(
    {
        "process.node_id",
        "process.listen",
        "process.metrics_address",
        "process.directory",
        "kv.engine",
        "kv.path",
        "kv.address",
        "kv.trace_directory",
        "storage.disks",
    }
)
"""What rightly differs from process to process."""

SECTION_ROLES: Final[Mapping[str, Collection[Role]]] = {
    "meta": (Role.META,),
    "storage": (Role.STORAGE,),
    "kv": (Role.MGMTD, Role.META),
    "client": (),
}
"""Who uses a section; others: everybody.  Mounts, which use `client`, are no nodes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that is not the same everywhere."""

    key: str
    values: Mapping[str, tuple[NodeId, ...]]
    """JSON of each value, and who has it, the most frequent one first."""


def flattened(text: str) -> Settings:
    """Return the settings in the JSON that a process answers."""
    return {
        f"{section}.{key}": value
        for section, values in json.loads(text).items()
        for key, value in values.items()
    }


def differences(info: RoutingInfo, configs: Mapping[NodeId, str]) -> list[Difference]:
    """Return the settings in which processes differ that should not, by key.

    Args:
        info: says which roles the processes have.
        configs: JSON of each process that answered.
    """
    found: dict[str, dict[str, list[NodeId]]] = defaultdict(lambda: defaultdict(list))
    for node_id, text in sorted(configs.items()):
        roles = info.node(node_id).roles
        for key, value in flattened(text).items():
            users = _users(key)
            if key not in OWN and (users is None or roles & set(users)):
                found[key][json.dumps(value)].append(node_id)
    return [
        Difference(key, {value: tuple(ids) for value, ids in _by_frequency(values)})
        for key, values in sorted(found.items())
        if len(values) > 1
    ]


def _users(key: str) -> Collection[Role] | None:
    """Return whose setting it is; None: everybody's."""
    # Of the rest of [mgmtd] the managers alone are told what is kept.
    if key.startswith("mgmtd.") and key not in DETECTION:
        return (Role.MGMTD,)
    return SECTION_ROLES.get(key.partition(".")[0])


def stored_differences(
    info: RoutingInfo,
    configs: Mapping[NodeId, str],
    stored: Mapping[Role, Mapping[str, Mapping[str, Any]]],
) -> list[Difference]:
    """Return the stored settings that running processes of the role do not have, by key,
    the stored value first.

    Args:
        info: says which roles the processes have.
        configs: JSON of each process that answered.
        stored: by role, section and key.
    """
    found: dict[str, dict[str, tuple[NodeId, ...]]] = {}
    for role, sections in stored.items():
        for section, keys in sections.items():
            for key, value in keys.items():
                others = _others(info, configs, role, f"{section}.{key}", value)
                if others:
                    name = f"{section}.{key} of {ROLE_NAMES[role]}"
                    found[name] = {json.dumps(value): (), **others}
    return [Difference(name, values) for name, values in sorted(found.items())]


def _others(
    info: RoutingInfo, configs: Mapping[NodeId, str], role: Role, key: str, value: object
) -> dict[str, tuple[NodeId, ...]]:
    others: dict[str, tuple[NodeId, ...]] = {}
    for node_id, text in sorted(configs.items()):
        if role in info.node(node_id).roles and (running := flattened(text).get(key)) != value:
            shown = json.dumps(running)
            others[shown] = (*others.get(shown, ()), node_id)
    return others


def newest_versions(listed: ListSettingsRsp) -> dict[int, int]:
    """Return the newest stored version of each role that has any."""
    newest: dict[int, int] = {}
    for one in listed.versions:
        newest[one.role] = max(newest.get(one.role, 0), one.version)
    return newest


def state_text(report: SettingsReportPb, newest: Mapping[int, int]) -> str:
    """Return NORMAL, DIRTY, FAILED or STALE as people read it;
    unknown for a process of an older release.

    STALE is also who has not taken over the newest version yet.
    """
    is_behind = any(
        newest.get(v.role, 0) != (v.refused_version or v.version) for v in report.versions
    )
    is_worse = report.state in {SettingsStatePb.SETTINGS_FAILED, SettingsStatePb.SETTINGS_DIRTY}
    state = SettingsStatePb.SETTINGS_STALE if is_behind and not is_worse else report.state
    return SettingsStatePb.Name(state).removeprefix("SETTINGS_").lower()


def status_rows(
    info: RoutingInfo, listed: ListSettingsRsp, sessions: Collection[ClientSessionPb]
) -> list[dict[str, Any]]:
    """Return how far every node, and every mount, is with the settings that are kept for it."""
    newest = newest_versions(listed)
    reports = {one.node_id: one.settings for one in listed.nodes}
    rows = [
        {"process": f"node {n}", "host": node.host_name}
        | _status(reports.get(n, SettingsReportPb()), newest)
        for n, node in sorted(info.nodes.items())
    ]
    return rows + [
        {"process": f"mount {one.mount_point}", "host": one.host_name}
        | _status(one.settings, newest)
        for one in sessions
        if one.mount_point
    ]


def _status(report: SettingsReportPb, newest: Mapping[int, int]) -> dict[str, Any]:
    last = report.last_change
    return {
        "state": state_text(report, newest),
        "versions": {_role_name(v.role): v.version for v in report.versions},
        "waiting": list(report.waiting_keys),
        "changed": list(report.changed_keys),
        "problem": report.problem,
        "last_change_ns": last.wall_ns,
        "last_change": last.what + (f": {last.problem}" if last.problem else ""),
    }


def _role_name(role: int) -> str:
    return ROLE_NAMES.get(Role(role), str(role)) if role in set(Role) else str(role)


def split_by_effect(keys: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which settings a running process takes over, and which wait for its restart."""
    return [k for k in keys if k in LIVE], [k for k in keys if k not in LIVE]


def _by_frequency(values: Mapping[str, list[NodeId]]) -> list[tuple[str, list[NodeId]]]:
    return sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))
