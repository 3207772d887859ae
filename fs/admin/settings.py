"""Settings of processes, and where processes that should have the same do not.  Pure.

Compared are processes that use a section for the same purpose: its role's own section among all that have the role,
what everybody uses among all.  What makes a process itself (its id, addresses, directories, disks) is left out.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..schema.ids import NodeId
from ..schema.routing import Role, RoutingInfo

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
            users = SECTION_ROLES.get(key.partition(".")[0])
            if key not in OWN and (users is None or roles & set(users)):
                found[key][json.dumps(value)].append(node_id)
    return [
        Difference(key, {value: tuple(ids) for value, ids in _by_frequency(values)})
        for key, values in sorted(found.items())
        if len(values) > 1
    ]


def _by_frequency(values: Mapping[str, list[NodeId]]) -> list[tuple[str, list[NodeId]]]:
    return sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))
