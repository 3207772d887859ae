"""What there is in a cluster, as rows for tables and programs.  Pure.

Each function takes a snapshot and returns dictionaries with the same keys in every row, ready for
JSON; who prints them chooses the columns.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..schema.ids import NodeId
from ..schema.proto import mgmtd_pb2, storage_pb2
from ..schema.routing import Chain, Role, RoutingInfo, Target

Row = dict[str, Any]
Spaces = Mapping[NodeId, storage_pb2.SpaceInfoRsp]
"""What each storage node that answered says of its disks."""
NO_CONFIGS: Mapping[NodeId, str] = {}


def node_rows(info: RoutingInfo) -> list[Row]:
    """Return the processes, by id, with how many targets each has and how many of them serve."""
    targets = Counter(t.node_id for t in info.targets.values())
    serving = Counter(
        info.target(t).node_id for chain in info.chains.values() for t in chain.serving
    )
    return [
        {
            "node_id": node.node_id,
            "roles": sorted(role.name.lower() for role in node.roles),
            "state": node.state.name.lower(),
            "host": node.host_name,
            "address": node.address,
            "release": node.release,
            "tags": dict(node.tags),
            "maintenance_until_ns": node.maintenance_until_ns,
            "targets": targets[node.node_id],
            "serving": serving[node.node_id],
        }
        for node in sorted(info.nodes.values(), key=lambda n: n.node_id)
    ]


def disk_rows(
    info: RoutingInfo, spaces: Spaces, configs: Mapping[NodeId, str] = NO_CONFIGS
) -> list[Row]:
    """Return the disks of the storage nodes that answered, also those out of service.

    Args:
        info: says what their targets are like.
        spaces: what nodes say of the disks that they use.
        configs: JSON of their settings, which say what disks there are to be.
    """
    rows = [
        {
            "node_id": node_id,
            "disk_index": disk.disk_index,
            "path": disk.path,
            "capacity_bytes": disk.capacity_bytes,
            "free_bytes": disk.free_bytes,
            "used_bytes": disk.used_bytes,
            "targets": len(disk.target_ids),
            "is_slow": any(found.is_slow for t in disk.target_ids for found in _known(info, t)),
            "trouble": "",
        }
        for node_id, space in sorted(spaces.items())
        for disk in space.disks
    ]
    rows += unused_disks(info, spaces, configs)
    return sorted(rows, key=lambda row: (row["node_id"], row["disk_index"]))


def unused_disks(info: RoutingInfo, spaces: Spaces, configs: Mapping[NodeId, str]) -> list[Row]:
    """Return the disks that nodes have in their files and do not use;
    their targets tell why, if they have any.
    """
    return [
        {
            "node_id": node_id,
            "disk_index": index,
            "path": disk["path"],
            "capacity_bytes": 0,
            "free_bytes": 0,
            "used_bytes": 0,
            "targets": 0,
            "is_slow": False,
            "trouble": _trouble_at(info, node_id, index),
        }
        for node_id, space in sorted(spaces.items())
        for index, disk in enumerate(_configured_disks(configs.get(node_id, "{}")))
        if index not in {used.disk_index for used in space.disks}
    ]


def _configured_disks(settings: str) -> list[dict[str, Any]]:
    """Return the disks in the settings of a storage process, in the order of their numbers."""
    disks: list[dict[str, Any]] = json.loads(settings).get("storage", {}).get("disks", [])
    return disks


def _trouble_at(info: RoutingInfo, node_id: NodeId, disk_index: int) -> str:
    troubles = [
        target.trouble
        for target in info.targets.values()
        if (target.node_id, target.disk_index) == (node_id, disk_index) and target.trouble
    ]
    return troubles[0] if troubles else "out of service: the log of its node says why"


def _known(info: RoutingInfo, target_id: int) -> Iterable[Target]:
    """A target that the manager has not heard of yet is on the disk alone."""
    return [t for t in (info.targets.get(target_id),) if t is not None]  # type: ignore[call-overload]


def chain_row(info: RoutingInfo, chain: Chain) -> Row:
    """Return one chain."""
    return {
        "chain_id": chain.chain_id,
        "chain_version": chain.chain_version,
        "replicas": chain.replica_count,
        "serving": len(chain.serving),
        "is_in_order": chain.serving == chain.preferred_order,
        "loss_count": chain.losses,
        "targets": [
            {
                "target_id": member.target_id,
                "node_id": info.target(member.target_id).node_id,
                "state": member.public_state.name.lower(),
            }
            for member in chain.targets
        ],
    }


def chain_rows(info: RoutingInfo) -> list[Row]:
    """Return all chains, by id."""
    return [chain_row(info, info.chains[chain_id]) for chain_id in sorted(info.chains)]


def target_rows(info: RoutingInfo) -> list[Row]:
    """Return all targets, by id, those in no chain too."""
    rows = []
    for target in sorted(info.targets.values(), key=lambda t: t.target_id):
        chain = info.chains.get(target.chain_id)
        state = chain.state_of(target.target_id) if chain else None
        rows.append(
            {
                "target_id": target.target_id,
                "chain_id": target.chain_id,
                "node_id": target.node_id,
                "disk_index": target.disk_index,
                "state": state.name.lower() if state else "in no chain",
                "local_state": target.local_state.name.lower(),
                "used_bytes": target.used_bytes,
                "is_slow": target.is_slow,
                "trouble": target.trouble,
                "resync": asdict(target.resync) if target.resync else None,
            }
        )
    return rows


def table_rows(info: RoutingInfo) -> list[Row]:
    """Return every version of every chain table that is still in use."""
    return [
        {"table_id": key[0], "table_version": key[1], "chain_ids": list(table.chain_ids)}
        for key, table in sorted(info.chain_tables.items())
    ]


def drain_rows(moves: mgmtd_pb2.ListMovesRsp) -> list[Row]:
    """Return what is being emptied, or is kept empty."""
    return [
        {
            "node_id": status.drain.node_id,
            "disk_index": status.drain.disk_index if status.drain.is_one_disk else None,
            "left": status.target_count,
        }
        for status in moves.drains
    ]


def cluster_facts(info: RoutingInfo, *, primary: int) -> Row:
    """Return the cluster as a whole; `primary`:
    node id of the acting manager, 0 if nobody knows.
    """
    nodes = info.nodes.values()
    releases: Counter[str] = Counter(node.release or "unknown" for node in nodes)
    return {
        "cluster_id": info.cluster_id,
        "primary": primary,
        "routing_version": info.routing_version,
        "is_bootstrapping": info.is_bootstrapping,
        "nodes": {role.name.lower(): sum(role in n.roles for n in nodes) for role in Role},
        "node_states": dict(Counter(node.state.name.lower() for node in nodes)),
        "releases": dict(sorted(releases.items())),
        "chains": len(info.chains),
        "chains_complete": sum(len(c.serving) >= c.replica_count for c in info.chains.values()),
        "chains_unavailable": sum(not c.serving for c in info.chains.values()),
        "chain_tables": sorted({table_id for table_id, _ in info.chain_tables}),
        "targets": len(info.targets),
        "used_bytes": sum(target.used_bytes for target in info.targets.values()),
    }


def event_rows(events: Iterable[mgmtd_pb2.RoutingEventPb]) -> list[Row]:
    """Return one row for each change of each event, in the order of the events."""
    return [
        {
            "event_id": event.event_id,
            "wall_ns": event.wall_ns,
            "routing_version": event.routing_version,
            "chain_id": change.chain_id or None,
            "chain_version": change.chain_version or None,
            "node_id": change.node_id or None,
            "text": change.text,
            "why": event.why,
        }
        for event in events
        for change in event.changes
    ]
