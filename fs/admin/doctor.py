"""What is wrong with a cluster, why, and what to do about it.  Pure.

`diagnose` judges one snapshot, or two that were taken a moment apart: what should have moved and
did not, is stuck. A finding names the thing, says what it means for data and users, and the next
step as a command where there is one.

Does not look at anything by itself (fs/app/admin/doctor.py does), and repairs nothing.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from ..schema.ids import NodeId, TargetId
from ..schema.proto import core_pb2, mgmtd_pb2
from ..schema.routing import Chain, LocalState, Node, NodeState, PublicState, Role, RoutingInfo
from .facts import Spaces, unused_disks
from .settings import differences, newest_versions, state_text

SKEW_S_MAX: Final = 1.0
"""Of wall clocks: they stamp files, nothing else depends on them."""

LOW_SPACE_SHARE: Final = 0.10
FULL_SHARE: Final = 0.03
LEASE_SHARE_MIN: Final = 0.3
"""Of a lease that is left just before it is renewed, at least;
a process in health has four fifths.
"""
SHOWN_CHAINS: Final = 8
"""Of chains that a finding is about; a program that wants all asks for the chains."""
UNEVEN_SHARE: Final = 0.20
"""Between the fullest and the emptiest disk, in shares of their capacity."""


class Severity(IntEnum):
    """How soon somebody should act."""

    CRITICAL = 3
    """Data or service is missing, or one failure away from it."""
    WARNING = 2
    """Something works worse than it should, or will."""
    NOTICE = 1
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    severity: Severity
    subject: str
    """What it is about: chain 3, node 10002 disk 0."""
    text: str
    """What is the case, and what it means."""
    remedy: str
    """What to do; names the command where there is one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process said of itself, and when."""

    info: core_pb2.GetInfoRsp
    skew_s: float
    """Its wall clock minus ours; 0 when it does not tell the time."""
    skew_doubt_s: float
    """Half of the time that the call took."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment."""

    routing: RoutingInfo
    moves: mgmtd_pb2.ListMovesRsp
    spaces: Spaces
    answers: Mapping[NodeId, Answer]
    """Of the processes that answered."""
    silent: Mapping[NodeId, str] = field(default_factory=dict)
    """Why the others did not."""
    configs: Mapping[NodeId, str] = field(default_factory=dict)
    """JSON of the settings of the processes that tell them."""
    wall_ns: int = 0
    """When it was taken."""
    inline_bytes: int = 0
    """Of files whose bytes are in the metadata store; 0 also if no metadata service tells."""
    kept: mgmtd_pb2.ListSettingsRsp = field(default_factory=mgmtd_pb2.ListSettingsRsp)
    """Which settings are kept for roles, and how far nodes are with them."""
    clients: Mapping[str, str] = field(default_factory=dict)
    """For people: who those clients are that do not reach a node, by client id."""


def diagnose(now: Snapshot, before: Snapshot | None = None) -> list[Finding]:
    """Return what is wrong, the worst first.

    Args:
        now: the newest snapshot.
        before: one taken at least a second earlier; without it nothing is found to be stuck.
    """
    found = [finding for check in CHECKS for finding in check(now)]
    if before is not None:
        found += _stuck(before, now)
    return sorted(found, key=lambda f: (-f.severity, f.kind, f.subject))


def _nodes(now: Snapshot) -> Iterator[Finding]:
    for node in now.routing.nodes.values():
        subject = f"node {node.node_id} ({_roles(node)} on {node.host_name or node.address})"
        if node.state is NodeState.FAILED:
            yield Finding(
                "node-failed",
                Severity.WARNING,
                subject,
                "does not answer the manager; its targets are out of service",
                f"start its process; if the machine is lost: ember admin node drain {node.node_id}",
            )
        elif node.state is NodeState.DISABLED:
            yield Finding(
                "node-disabled", Severity.NOTICE, subject, "was taken out of service by hand",
                f"when its work is done: ember admin node enable {node.node_id}",
            )  # fmt: skip
        elif node.node_id in now.silent:
            yield Finding(
                "node-silent", Severity.WARNING, subject,
                f"the manager hears it, but we do not: {now.silent[node.node_id]}",
                f"look at the network between here and {node.address}, and at the load of the node",
            )  # fmt: skip


def _roles(node: Node) -> str:
    return "+".join(sorted(role.name.lower() for role in node.roles)) or "no role"


def _managers(now: Snapshot) -> Iterator[Finding]:
    if now.routing.is_bootstrapping:
        yield Finding(
            "bootstrapping", Severity.NOTICE, "manager",
            "has just started, and judges nobody until all have had time to report",
            "wait for some seconds and look again",
        )  # fmt: skip
    for role, name in ((Role.MGMTD, "manager"), (Role.META, "metadata service")):
        alive = [n for n in now.routing.nodes.values() if role in n.roles and _is_alive(n)]
        if len(alive) == 1:
            yield Finding(
                f"one-{name.split()[0]}", Severity.NOTICE, f"node {alive[0].node_id}",
                f"is the only {name}: while it is away, so is the cluster",
                f"run another {name} on another machine",
            )  # fmt: skip


def _is_alive(node: Node) -> bool:
    return node.state in {NodeState.CONNECTED, NodeState.STARTING}


def _chains(now: Snapshot) -> Iterator[Finding]:
    for chain in now.routing.chains.values():
        yield from _chain(now.routing, chain)


def _old_image(info: RoutingInfo, chain: Chain, last: TargetId) -> Finding:
    """Another member may have all that was written, if it stopped together with this one:
    it comes first.
    """
    accept = f"ember admin chain accept-old {chain.chain_id} {last}"
    if len(chain.targets) > 1:
        accept = (
            f"ember admin chain rotate-lost {chain.chain_id} {last}, to go on from another member "
            f"as it was when it left; or, if that is longer ago than this image, {accept}"
        )
    return Finding(
        "chain-unavailable",
        Severity.CRITICAL,
        f"chain {chain.chain_id}",
        f"nobody serves it; its newest data was on target {last} on node "
        f"{info.target(last).node_id}: {info.target(last).trouble}",
        f"bring back the disk as it was when that node served last.  Only if it is gone: {accept}",
    )


def _stand_ins(info: RoutingInfo, chain: Chain) -> str:
    """Return whose start would do as well, for people."""
    nodes = sorted({info.target(t).node_id for t in chain.stand_ins})
    return f", or node {' or '.join(map(str, nodes))}, which has the same" if nodes else ""


def _last_server(chain: Chain) -> TargetId | None:
    return next((m.target_id for m in chain.targets if m.public_state is PublicState.LASTSRV), None)


def _chain(info: RoutingInfo, chain: Chain) -> Iterator[Finding]:
    if chain.restored is not None:
        yield _restored(info, chain)
    elif not chain.serving:
        last = _last_server(chain)
        if last is not None and info.target(last).has_old_image:
            yield _old_image(info, chain, last)
            return  # what else could be said of it follows from that
        yield _unavailable(info, chain, last)
    if len({info.target(t).node_id for t in chain.serving}) < len(chain.serving):
        yield Finding(
            "replicas-together", Severity.WARNING, f"chain {chain.chain_id}",
            "two of its replicas are on one node: its failure takes both",
            "ember admin rebalance start, or make a better table: ember placement make",
        )  # fmt: skip


def _restored(info: RoutingInfo, chain: Chain) -> Finding:
    members = [info.target(member.target_id) for member in chain.targets]
    away = [t.target_id for t in members if t.local_state is LocalState.OFFLINE]
    return Finding(
        "chain-restored",
        Severity.CRITICAL,
        f"chain {chain.chain_id}",
        "nobody serves it yet: it was restored, and those who may have newer data than the backup "
        f"knows have not all been heard; targets away: {', '.join(map(str, away)) or 'none'}",
        "start their nodes.  Only if one is lost for good: ember admin chain rotate-lost "
        f"{chain.chain_id} {away[0] if away else 'TARGET'}",
    )


def _unavailable(info: RoutingInfo, chain: Chain, last: TargetId | None) -> Finding:
    where = f"target {last} on node {info.target(last).node_id}" if last else "no target"
    return Finding(
        "chain-unavailable",
        Severity.CRITICAL,
        f"chain {chain.chain_id}",
        f"nobody serves it; the newest data is on {where}: its files can neither be read nor "
        "written",
        f"start that node{_stand_ins(info, chain)}.  Only if its disk is lost for good, and with "
        f"it what was written last: ember admin chain rotate-lost {chain.chain_id} "
        f"{last or 'TARGET'}",
    )


def _degraded(now: Snapshot) -> Iterator[Finding]:
    """Chains that lack the same for the same reason are told of together:
    a machine that is away is in many of them.
    """
    info, alike = now.routing, defaultdict[tuple[int, int, str], list[Chain]](list)
    for chain in info.chains.values():
        count = len(chain.serving)
        if chain.restored is None and 0 < count < chain.replica_count:
            alike[count, chain.replica_count, _rest(info, chain, has_targets=False)].append(chain)
    for (count, wanted, rest), chains in alike.items():
        is_last = count == 1 and wanted > 1
        yield Finding(
            "chain-degraded",
            Severity.CRITICAL if is_last else Severity.WARNING,
            _subject(chains),
            f"{count} of {wanted} replicas serve{', the next failure stops it' if is_last else ''};"
            f" {rest if len(chains) > 1 else _rest(info, chains[0], has_targets=True)}",
            "wait, if one is syncing (ember status tells how long); else start the nodes of the "
            "others, mend their disks, or let them be replaced: ember admin node drain, ember "
            "admin disk replace",
        )


def _losses(now: Snapshot) -> Iterator[Finding]:
    alike = defaultdict[int, list[Chain]](list)
    for chain in now.routing.chains.values():
        last = _last_server(chain)
        is_told = last is not None and now.routing.target(last).has_old_image
        if chain.losses and not is_told:
            alike[chain.losses].append(chain)
    for count, chains in alike.items():
        yield Finding(
            "chain-losses", Severity.WARNING, _subject(chains),
            f"{count} times machines lost power or their last server was given up:"
            " what was written just before, and not synced, may be gone",
            "check what was being written then; synced data is not concerned",
        )  # fmt: skip


def _subject(chains: Sequence[Chain]) -> str:
    """Return which chains, for people: the first ones of many."""
    ids = [chain.chain_id for chain in chains]
    if len(ids) == 1:
        return f"chain {ids[0]}"
    more = f" and {len(ids) - SHOWN_CHAINS} more" if len(ids) > SHOWN_CHAINS else ""
    return f"chains {', '.join(map(str, ids[:SHOWN_CHAINS]))}{more}"


def _rest(info: RoutingInfo, chain: Chain, *, has_targets: bool) -> str:
    """Say what the members do that do not serve, with or without their numbers."""
    parts = []
    for member in chain.targets:
        if member.public_state is not PublicState.SERVING:
            target = info.target(member.target_id)
            who = f"{member.target_id} on node" if has_targets else "that on node"
            why = f": {target.trouble}" if target.trouble else ""
            parts.append(f"{who} {target.node_id} is {member.public_state.name.lower()}{why}")
    return ", ".join(sorted(parts)) or "members are missing"


def _disks(now: Snapshot) -> Iterator[Finding]:
    unused = {
        (d["node_id"], d["disk_index"]): d
        for d in unused_disks(now.routing, now.spaces, now.configs)
    }
    for (node_id, index), disk in unused.items():
        yield Finding(
            "disk-out",
            Severity.WARNING,
            f"node {node_id} disk {index}",
            f"{disk['path']} is not in use: {disk['trouble']}",
            "mount it, or mend what is wrong with it: it is taken into use by itself.  If it is "
            "lost, move what it held to others and exchange it: ember admin disk replace "
            f"{node_id} {index}",
        )
    for target in now.routing.targets.values():
        if target.is_slow:
            yield Finding(
                "disk-slow",
                Severity.WARNING,
                f"node {target.node_id} disk {target.disk_index}",
                "answers far more slowly than it used to, or than others: every write to its "
                "chains waits for it",
                "look at it (smartctl, dmesg); to replace it: ember admin disk drain "
                f"{target.node_id} {target.disk_index}",
            )
        is_told = (target.node_id, target.disk_index) in unused
        if target.trouble and target.chain_id and not is_told:
            yield Finding(
                "target-trouble",
                Severity.WARNING,
                f"target {target.target_id} on node {target.node_id}",
                target.trouble,
                "the log of its node says more; a disk that is to be replaced:"
                f" ember admin disk drain {target.node_id} {target.disk_index}",
            )


def _space(now: Snapshot) -> Iterator[Finding]:
    shares: dict[str, float] = {}
    for node_id, space in now.spaces.items():
        for disk in space.disks:
            if not disk.capacity_bytes:
                continue
            free = disk.free_bytes / disk.capacity_bytes
            subject = f"node {node_id} disk {disk.disk_index}"
            shares[subject] = 1 - free
            if free < LOW_SPACE_SHARE:
                yield Finding(
                    "disk-full",
                    Severity.CRITICAL if free < FULL_SHARE else Severity.WARNING,
                    subject,
                    f"{free:.1%} of {disk.path} are free; when nothing is left, writes to its "
                    "chains fail (ENOSPC)",
                    "remove files (ember trash empty), add disks or nodes, then: ember admin "
                    "rebalance start",
                )
    if shares and max(shares.values()) - min(shares.values()) > UNEVEN_SHARE:
        fullest, emptiest = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
        yield Finding(
            "space-uneven", Severity.NOTICE, fullest,
            f"is {shares[fullest]:.0%} full, {emptiest} {shares[emptiest]:.0%}",
            "ember admin rebalance start",
        )  # fmt: skip


def _clocks(now: Snapshot) -> Iterator[Finding]:
    for node_id, answer in now.answers.items():
        if abs(answer.skew_s) > SKEW_S_MAX + answer.skew_doubt_s:
            yield Finding(
                "clock-skew",
                Severity.WARNING,
                f"node {node_id}",
                f"its clock is {answer.skew_s:+.1f} s off this machine's: files get wrong times "
                "(leases do not depend on it)",
                "run a time service (chrony, systemd-timesyncd) on every machine",
            )


def _leases(now: Snapshot) -> Iterator[Finding]:
    for node_id, answer in now.answers.items():
        left_s, lease_s = answer.info.lease_margin_s, answer.info.lease_s
        if left_s < lease_s * LEASE_SHARE_MIN:
            yield Finding(
                "lease-short",
                Severity.WARNING,
                f"node {node_id}",
                f"{max(0.0, left_s):.1f} s of its lease of {lease_s:g} s are left: its heartbeats "
                "are answered late, and when it runs out the node stops serving",
                "look at the load of the node and of the manager's, and at the network between "
                "them; ember_node_lease_margin_seconds shows the course",
            )


def _releases(now: Snapshot) -> Iterator[Finding]:
    nodes: dict[str, list[int]] = defaultdict(list)
    for node_id, answer in now.answers.items():
        nodes[answer.info.release].append(node_id)
    if len(nodes) > 1:
        listed = "; ".join(f"{release}: {sorted(ids)}" for release, ids in sorted(nodes.items()))
        yield Finding(
            "release-mix", Severity.NOTICE, "cluster",
            f"processes of several releases: {listed}",
            "fine during an upgrade; else restart those of the old one",
        )  # fmt: skip


def _settings(now: Snapshot) -> Iterator[Finding]:
    for one in differences(now.routing, now.configs):
        listed = "; ".join(f"{value}: {list(ids)}" for value, ids in one.values.items())
        yield Finding(
            "config-drift", Severity.NOTICE, one.key,
            f"processes that should have the same setting do not: {listed}",
            "make their files, or what is kept for their role, the same: ember admin config diff",
        )  # fmt: skip


def _inline(now: Snapshot) -> Iterator[Finding]:
    """Small files go to chunks, which cost more,
    once so many bytes of them are in the metadata store.
    """
    for node_id, text in sorted(now.configs.items()):
        meta = json.loads(text).get("meta", {})
        longest, most = meta.get("inline_bytes_max", 0), meta.get("inline_total_bytes_max", 0)
        node = now.routing.nodes.get(node_id)
        if node is None or Role.META not in node.roles or not longest:
            continue
        if now.inline_bytes + longest > most:
            yield Finding(
                "inline-full",
                Severity.NOTICE,
                f"node {node_id}",
                f"{now.inline_bytes} bytes of small files are in the metadata store, of {most} "
                "that may be: new ones go to chunks, and take longer to be made",
                "raise meta.inline_total_bytes_max if the metadata store has the space",
            )


def _kept_settings(now: Snapshot) -> Iterator[Finding]:
    newest = newest_versions(now.kept)
    for one in now.kept.nodes:
        report, subject = one.settings, f"node {one.node_id}"
        if report.problem:
            yield Finding(
                "config-failed",
                Severity.WARNING,
                subject,
                "refused the newest settings that are kept for it, and goes on with those "
                f"before: {report.problem}",
                "mend them, or its own file: ember admin config verify",
            )
        elif state_text(report, newest) == "stale":
            keys = ", ".join(report.waiting_keys) or "it has not heard of the newest"
            yield Finding(
                "config-drift", Severity.NOTICE, subject,
                f"does not run with all settings that are kept for it: {keys}",
                "restart its process when it suits: ember admin config status",
            )  # fmt: skip


def _maintenance(now: Snapshot) -> Iterator[Finding]:
    for node in now.routing.nodes.values():
        left_s = (node.maintenance_until_ns - now.wall_ns) / 1e9
        if left_s > 0:
            yield Finding(
                "maintenance", Severity.NOTICE, f"node {node.node_id}",
                f"is worked on: its targets are not replaced for another {left_s / 3600:.1f} h",
                f"when it is done: ember admin node maintenance off {node.node_id}",
            )  # fmt: skip


def _store(now: Snapshot) -> Iterator[Finding]:
    if now.moves.store_trouble:
        yield Finding(
            "store-full", Severity.CRITICAL, "metadata", now.moves.store_trouble,
            "free space on the disk of the metadata store, or enlarge it",
        )  # fmt: skip


def _moves(now: Snapshot) -> Iterator[Finding]:
    for problem in now.moves.problems:
        yield Finding(
            "move-problem", Severity.WARNING, "moves", problem, "ember admin move list tells more"
        )
    for move in now.moves.moves:
        if move.trouble:
            yield Finding(
                "move-trouble",
                Severity.WARNING,
                f"move {move.move_id} of chain {move.chain_id}",
                move.trouble,
                f"it is tried again; to give it up: ember admin move cancel {move.move_id}",
            )
    for status in now.moves.drains:
        drain = status.drain
        disk = f" disk {drain.disk_index}" if drain.is_one_disk else ""
        if not status.target_count:
            yield Finding(
                "drained", Severity.NOTICE, f"node {drain.node_id}{disk}",
                "is empty and may be taken away; nothing is placed there",
                f"ember admin {'disk' if disk else 'node'} drain --cancel to use it again",
            )  # fmt: skip


def _stuck(before: Snapshot, now: Snapshot) -> Iterator[Finding]:
    """Resyncs that neither moved nor ended between the two snapshots, in the same attempt."""
    for target_id, target in now.routing.targets.items():
        earlier = before.routing.targets.get(target_id)
        then, resync = earlier.resync if earlier else None, target.resync
        if then is None or resync is None or then.chain_version != resync.chain_version:
            continue
        if (then.chunks_done, then.bytes_done) == (resync.chunks_done, resync.bytes_done):
            yield Finding(
                "resync-stuck",
                Severity.WARNING,
                f"target {target_id} on node {target.node_id}",
                f"{resync.chunks_done} chunks are up to date, and no more were in the meantime",
                "look again; if it stays so, look at the logs of its node and of the target "
                "before it in the chain",
            )


def _links(now: Snapshot) -> Iterator[Finding]:
    """Links that somebody lacks, each once, however many nodes have passed requests on."""
    relays: dict[tuple[str, int], dict[NodeId, core_pb2.RelayedLinkPb]] = {}
    for relay_id, answer in sorted(now.answers.items()):
        for link in answer.info.relayed_links:
            caller = now.clients.get(link.client_id, f"client {link.client_id}")
            if link.caller_node_id:
                caller = f"node {link.caller_node_id}"
            relays.setdefault((caller, link.node_id), {})[relay_id] = link
    for (caller, node_id), links in relays.items():
        node = now.routing.nodes.get(NodeId(node_id))
        address = node.address if node is not None else "its address"
        passing = " and ".join(f"node {relay_id}" for relay_id in links)
        passing += " pass" if len(links) > 1 else " passes"
        count = sum(link.request_count for link in links.values())
        since_s = max(link.since_s for link in links.values())
        yield Finding(
            "link-cut",
            Severity.WARNING,
            f"{caller} and node {node_id}",
            f"it cannot connect to that node, which the manager hears: {passing} its requests on "
            f"({count} in {since_s:.0f} s), which costs everybody on the way more than straight "
            "ones",
            "look at the network between the two: routes, packet filters, switches on the "
            f"way to {address}",
        )


CHECKS: Final[tuple[Callable[[Snapshot], Iterator[Finding]], ...]] = (
    _nodes,
    _managers,
    _chains,
    _degraded,
    _losses,
    _disks,
    _space,
    _clocks,
    _leases,
    _links,
    _releases,
    _settings,
    _inline,
    _kept_settings,
    _maintenance,
    _moves,
    _store,
)
