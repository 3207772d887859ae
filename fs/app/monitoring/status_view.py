"""`ember status`: what runs, what the chains are doing, how much space is left.

Asks the supervisor (processes) and the manager (chains); a manager that does not answer within a
second is reported as such, so that status works best when things are worst.
"""

import json
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...schema.status import FsError
from ..machine.cluster_dir import ClusterDir, ClusterRecord, mgmtd_names, need_record, node_id_of
from ..mounts.mount_point import is_mounted
from ..supervision import supervisor_link
from ..terminal.amounts import age_text, bytes_text

if TYPE_CHECKING:  # loads protobuf, which a cluster that is down does not need
    from ...schema.proto.mgmtd_pb2 import ListMovesRsp, MovePb
    from ...schema.routing import PublicState, RoutingInfo, Target

MGMTD_TIMEOUT_S: Final = 1.0


def gather(directory: ClusterDir) -> dict[str, Any]:
    """Return everything that status shows.

    Raises:
        FsError: BAD_CLUSTER_DIR or NOT_RUNNING.
    """
    record = need_record(directory)
    services = supervisor_link.ask(directory, command="status")
    disk = os.statvfs(directory.path)
    known: dict[str, Any] = {
        "chains": [],
        "primary": "",
        "moves": [],
        "move_problems": [],
        "store_trouble": "",
    }
    problem = ""
    try:
        known = _what_the_manager_knows(directory, record)
    except FsError as error:
        problem = str(error)
    return {
        "directory": str(directory.path),
        "cluster_id": record.cluster_id,
        "replica_count": record.replica_count,
        "kv": record.kv or "rocksdb",
        **services,
        "mounts": [_mount(s) for s in services["services"] if s["role"] == "mountd"],
        **known,
        "failures": failure_texts(directory, services["services"]),
        "manager_problem": problem,
        "space": {
            "capacity_bytes": disk.f_blocks * disk.f_frsize,
            "free_bytes": disk.f_bavail * disk.f_frsize,
        },
        "is_healthy": _is_healthy(services["services"], known["chains"]),
    }


def _is_healthy(services: list[dict[str, Any]], chains: list[dict[str, Any]]) -> bool:
    """True if every process runs and every target serves."""
    runs = all(s["state"] == "running" for s in services)
    return runs and bool(chains) and all(c["is_complete"] for c in chains)


def failure_texts(directory: ClusterDir, services: list[dict[str, Any]]) -> list[str]:
    """Return a line for each process that has ended and does not run again yet:
    what its log said last.
    """
    return [
        f"problem: {s['name']} has ended ({s['last_exit']}) and is started again; its log, {path}, "
        f"ends with: {supervisor_link.last_line(path)}"
        for s in services
        if s["last_exit"] and s["state"] in {"restarting", "starting"}
        for path in [directory.log_path(s["name"])]
    ]


def _mount(service: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a mount, without touching it:
    that would wait for as long as metadata is away.
    """
    path = Path(service["mount_point"])
    served = "mounted" if service["pid"] else "dead"
    return {"mount_point": str(path), "state": served if is_mounted(path) else "not mounted"}


def _what_the_manager_knows(directory: ClusterDir, record: ClusterRecord) -> dict[str, Any]:
    """Return the chains and the moves as the manager knows them,
    and the service that holds the primary.
    """
    from ..reach.mgmtd_link import fetch_overview  # noqa: PLC0415 - trio and the schema load only when needed

    info, primary_id, moves = fetch_overview(directory, record, timeout_s=MGMTD_TIMEOUT_S)
    primary = next((name for name in mgmtd_names(record) if node_id_of(name) == primary_id), "")
    return {"primary": primary} | overview(info, moves)


def overview(info: "RoutingInfo", moves: "ListMovesRsp") -> dict[str, Any]:
    """Return the chains and the moves, as the manager knows them."""
    chains = [
        {
            "chain_id": chain.chain_id,
            "chain_version": chain.chain_version,
            "is_complete": len(chain.serving) >= chain.replica_count,
            "is_in_order": chain.serving == chain.preferred_order,
            "loss_count": chain.losses,
            "targets": [_target(info.target(m.target_id), m.public_state) for m in chain.targets],
        }
        for chain in sorted(info.chains.values(), key=lambda c: c.chain_id)
    ]
    return {
        "chains": chains,
        "moves": [move_row(m) for m in moves.moves],
        "move_problems": list(moves.problems),
        "store_trouble": moves.store_trouble,
    }


def move_row(move: "MovePb") -> dict[str, Any]:
    """Return what is shown of a move."""
    from ...schema.proto import mgmtd_pb2  # noqa: PLC0415 - as above

    return {
        "move_id": move.move_id,
        "chain_id": move.chain_id,
        "leaving_target_id": move.leaving_target_id,
        "joining_target_id": move.joining_target_id,
        "node_id": move.node_id,
        "reason": mgmtd_pb2.MoveReasonPb.Name(move.reason).removeprefix("MOVE_").lower(),
        "state": mgmtd_pb2.MoveStatePb.Name(move.state).removeprefix("MOVE_").lower(),
        "trouble": move.trouble,
    }


def move_text(move: dict[str, Any]) -> str:
    """Return a move as people say it."""
    text = (
        f"move {move['move_id']} ({move['reason']}): {move['state']}: chain {move['chain_id']},"
        f" target {move['leaving_target_id']} -> {move['joining_target_id']} on node "
        f"{move['node_id']}"
    )
    return f"{text} ({move['trouble']})" if move["trouble"] else text


def _target(target: "Target", state: "PublicState") -> dict[str, Any]:
    """Return what is shown of a chain's member."""
    return {
        "target_id": target.target_id,
        "node_id": target.node_id,
        "state": state.name.lower(),
        "resync": None if target.resync is None else asdict(target.resync),
        "is_slow": target.is_slow,
        "trouble": target.trouble,
    }


def target_text(target: dict[str, Any], *, has_node: bool = False) -> str:
    """Return a chain's member as people say it: 1001 syncing (40%, 2m05s left);
    with its node 1001@1.
    """
    notes = []
    if resync := target["resync"]:
        unit = "bytes" if resync["bytes_total"] else "chunks"
        total = resync[f"{unit}_total"]
        if total:
            notes.append(f"{100 * resync[f'{unit}_done'] // total}%")
        if resync["eta_s"]:
            notes.append(f"{age_text(resync['eta_s'])} left")
    if target["is_slow"]:
        notes.append("slow")
    if target["trouble"]:
        notes.append(target["trouble"])
    where = f"@{target['node_id']}" if has_node else ""
    text = f"{target['target_id']}{where} {target['state']}"
    return f"{text} ({', '.join(notes)})" if notes else text


def loss_texts(chains: list[dict[str, Any]]) -> list[str]:
    """Return a line for each chain that may have lost what no sync had covered."""
    return [
        f"losses: chain {c['chain_id']}: {c['loss_count']} so far: machines lost power, or their "
        "last server was given up; what was written just before and not synced may be gone"
        for c in chains
        if c["loss_count"]
    ]


def slow_texts(chains: list[dict[str, Any]]) -> list[str]:
    """Return one line per node whose disks answer slowly:
    what that means and what to do about it.
    """
    slow: dict[int, list[int]] = {}
    for target in (t for c in chains for t in c["targets"] if t["is_slow"]):
        slow.setdefault(target["node_id"], []).append(target["target_id"])
    return [
        f"problem: node {node_id} has a slow disk, below target{'s' if len(targets) > 1 else ''} "
        f"{', '.join(map(str, sorted(targets)))}: every write to their chains waits for it.  Its "
        "log tells since when and how slow; look at the disk (smartctl, dmesg), replace it if it "
        "stays so"
        for node_id, targets in sorted(slow.items())
    ]


def render(status: dict[str, Any], now_s: float) -> str:
    """Return status as text for people."""
    lines = [f"cluster {status['cluster_id']} in {status['directory']}"]
    if status["kv"] != "rocksdb":
        lines.append(f"metadata in {status['kv']}")
    lines.append("")
    lines.append(
        f"{'service':<12} {'state':<11} {'pid':>8} {'restarts':>8}  {'since':<8} last exit"
    )
    lines.extend(
        f"{s['name']:<12} {s['state']:<11} {s['pid'] or '-':>8} {s['restart_count']:>8}"
        f"  {age_text(now_s - s['since_s']):<8} {s['last_exit']}".rstrip()
        for s in status["services"]
    )
    lines.extend(status["failures"])
    if sum(s["role"] == "mgmtd" for s in status["services"]) > 1 and status["primary"]:
        lines.append(f"primary: {status['primary']}")
    lines.append("")
    lines.extend(chain_lines(status))
    lines.extend(f"mount: {m['mount_point']} ({m['state']})" for m in status["mounts"])
    space = status["space"]
    lines.append(
        f"disk: {bytes_text(space['free_bytes'])} of {bytes_text(space['capacity_bytes'])} free"
    )
    return "\n".join(lines)


def chain_lines(status: dict[str, Any], *, has_nodes: bool = False) -> list[str]:
    """Return the lines about chains and moves, as `overview` tells them;
    with the nodes that targets are on or without.
    """
    text_of = partial(target_text, has_node=has_nodes)
    complete = sum(c["is_complete"] for c in status["chains"])
    problem = status["manager_problem"]
    head = f"{complete} of {len(status['chains'])} complete"
    return [
        f"chains: {f'the manager does not answer: {problem}' if problem else head}",
        *(
            f"  chain {c['chain_id']} v{c['chain_version']}: "
            + ", ".join(map(text_of, c["targets"]))
            for c in status["chains"]
        ),
        *slow_texts(status["chains"]),
        *loss_texts(status["chains"]),
        *map(move_text, status["moves"]),
        *(f"problem: {problem}" for problem in status["move_problems"]),
        *([f"problem: {status['store_trouble']}"] if status["store_trouble"] else []),
    ]


def show(directory: ClusterDir, *, as_json: bool) -> None:
    """Print status."""
    status = gather(directory)
    print(json.dumps(status, indent=2) if as_json else render(status, time.time()))  # noqa: T201
