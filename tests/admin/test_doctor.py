"""What the doctor finds, and that it finds nothing else:
each check on a cluster that is sound but for one thing.
"""

import json
from dataclasses import replace

import pytest

from fs.admin.doctor import CHECKS, Answer, Severity, Snapshot, diagnose
from fs.admin.facts import disk_rows
from fs.mgmtd.restored import guarded
from fs.schema.ids import ChainId, NodeId, TargetId
from fs.schema.proto import common_pb2, core_pb2, mgmtd_pb2, storage_pb2
from fs.schema.resync_progress import ResyncProgress
from fs.schema.routing import (
    RESTORED_LOSSES,
    Chain,
    ChainTarget,
    LocalState,
    Node,
    NodeState,
    PublicState,
    Role,
    RoutingInfo,
    Target,
)

STORAGE_IDS = (11, 12, 13)


def node(node_id, *roles, **changes):
    made = Node(
        NodeId(node_id), frozenset(roles), f"10.0.0.{node_id}:4000", "i", NodeState.CONNECTED
    )
    return replace(made, host_name=f"h{node_id}", **changes)


def chain(chain_id, *states, **changes):
    ids = [TargetId(node_id * 100 + chain_id) for node_id in STORAGE_IDS]
    members = tuple(ChainTarget(t, s) for t, s in zip(ids, states, strict=True))
    return Chain(ChainId(chain_id), 5, members, tuple(ids), **changes)


SERVING = (PublicState.SERVING,) * 3


def routing(*, chains=(), nodes=(), targets=(), **changes):
    """A sound cluster of two managers, two metadata services, three storage nodes, two chains;
    then what is given.
    """
    known = [
        *(node(n, Role.MGMTD, Role.META) for n in (1, 2)),
        *(node(n, Role.STORAGE) for n in STORAGE_IDS),
        *nodes,
    ]
    all_chains = {c.chain_id: c for c in [chain(1, *SERVING), chain(2, *SERVING), *chains]}
    found = {
        m.target_id: Target(
            m.target_id, c.chain_id, NodeId(m.target_id // 100), 0, LocalState.UPTODATE
        )
        for c in all_chains.values()
        for m in c.targets
    } | {t.target_id: t for t in targets}
    return RoutingInfo(
        9, "c", nodes={n.node_id: n for n in known}, targets=found, chains=all_chains, **changes
    )


def space(*free_shares):
    disks = [
        storage_pb2.DiskSpacePb(
            disk_index=i, path=f"/d{i}", capacity_bytes=1000, free_bytes=int(1000 * free)
        )
        for i, free in enumerate(free_shares)
    ]
    return storage_pb2.SpaceInfoRsp(disks=disks)


def answer(release="1", skew_s=0.0, lease_margin_s=4.0, lease_s=4.8):
    told = core_pb2.GetInfoRsp(release=release, lease_margin_s=lease_margin_s, lease_s=lease_s)
    return Answer(told, skew_s, 0.001)


LINK = core_pb2.RelayedLinkPb(client_id="c1", node_id=12, since_s=20.0, request_count=7)


def passing(link):
    told = answer()
    told.info.relayed_links.append(link)
    return told


def snapshot(info=None, **changes):
    info = info or routing()
    sound = Snapshot(
        info,
        mgmtd_pb2.ListMovesRsp(),
        {NodeId(n): space(0.5) for n in STORAGE_IDS},
        {n: answer() for n in info.nodes},
    )
    return replace(sound, **changes)


def kept(node_id, **report):
    version = common_pb2.SettingsVersionPb(role=common_pb2.NodeRole.STORAGE, version=1)
    return mgmtd_pb2.ListSettingsRsp(
        versions=[common_pb2.StoredSettingsPb(role=common_pb2.NodeRole.STORAGE, version=2)],
        nodes=[
            mgmtd_pb2.NodeSettingsPb(
                node_id=node_id,
                settings=common_pb2.SettingsReportPb(versions=[version], **report),
            )
        ],
    )


def test_nothing_is_wrong_with_a_sound_cluster():
    assert diagnose(snapshot()) == []
    assert diagnose(snapshot(), snapshot()) == []


S = PublicState
MOVES = mgmtd_pb2.ListMovesRsp(
    problems=["no place for target 7"],
    moves=[mgmtd_pb2.MovePb(move_id=3, chain_id=1, trouble="node 12 is full")],
    drains=[mgmtd_pb2.DrainStatusPb(drain=mgmtd_pb2.DrainPb(node_id=12))],
)


def settings(**changes):
    """JSON of a process's settings, as it answers."""
    sections = {
        "process": {"node_id": 1, "log_level": "info"},
        "mgmtd": {"node_lease_s": 4.8},
        "meta": {"gc_delay_s": 60.0},
        "storage": {"disks": [{"path": "/d"}], "resync_bytes_per_s_max": 0},
        "kv": {"engine": "rocksdb", "retry_time_s_max": 10.0},
    }
    for name, value in changes.items():
        section, key = name.split("__")
        sections[section] = sections[section] | {key: value}
    return json.dumps(sections)


def drifting(**changes):
    """Settings of all, of which those of storage node 12 differ."""
    return {NodeId(n): settings(**changes) if n == 12 else settings() for n in (1, 2, *STORAGE_IDS)}


def inline(node_id=1, used=0, most=1000):
    """A service that keeps files of up to 100 bytes, of which so many bytes are there."""
    made = settings(meta__inline_bytes_max=100, meta__inline_total_bytes_max=most)
    return snapshot(configs={NodeId(node_id): made}, inline_bytes=used)


SICK = [
    (inline(used=901), {"inline-full"}),
    (inline(most=0), {"inline-full"}),
    (snapshot(configs=drifting(mgmtd__node_lease_s=2.0)), {"config-drift"}),
    (snapshot(configs=drifting(storage__resync_bytes_per_s_max=5)), {"config-drift"}),
    (
        snapshot(
            routing(nodes=[node(13, Role.STORAGE, maintenance_until_ns=7 * 10**9)]), wall_ns=10**9
        ),
        {"maintenance"},
    ),
    (snapshot(routing(nodes=[node(13, Role.STORAGE, state=NodeState.FAILED)])), {"node-failed"}),
    (
        snapshot(routing(nodes=[node(13, Role.STORAGE, state=NodeState.DISABLED)])),
        {"node-disabled"},
    ),
    (snapshot(silent={NodeId(12): "RPC_TIMEOUT"}), {"node-silent"}),
    (snapshot(routing(is_bootstrapping=True)), {"bootstrapping"}),
    (
        snapshot(routing(nodes=[node(2, Role.MGMTD, Role.META, state=NodeState.FAILED)])),
        {"node-failed", "one-manager", "one-metadata"},
    ),
    (snapshot(routing(chains=[chain(2, S.LASTSRV, S.WAITING, S.OFFLINE)])), {"chain-unavailable"}),
    (
        snapshot(routing(chains=[guarded(chain(2, S.SERVING, S.SERVING, S.OFFLINE), 9)])),
        {"chain-restored"},
    ),
    (snapshot(routing(chains=[chain(2, S.SERVING, S.SERVING, S.SYNCING)])), {"chain-degraded"}),
    (snapshot(routing(chains=[chain(2, *SERVING, loss_count=2)])), {"chain-losses"}),
    (snapshot(routing(chains=[chain(2, *SERVING, loss_count=RESTORED_LOSSES)])), set()),
    (
        snapshot(
            routing(
                targets=[Target(TargetId(1301), ChainId(1), NodeId(12), 0, LocalState.UPTODATE)]
            )
        ),
        {"replicas-together"},
    ),
    (
        snapshot(
            routing(targets=[Target(TargetId(1301), ChainId(1), NodeId(13), 0, is_slow=True)])
        ),
        {"disk-slow"},
    ),
    (
        snapshot(
            routing(
                targets=[Target(TargetId(1301), ChainId(1), NodeId(13), 0, trouble="broken: EIO")]
            )
        ),
        {"target-trouble"},
    ),
    (
        snapshot(  # its target is not told of once more
            routing(
                targets=[Target(TargetId(1301), ChainId(1), NodeId(13), 1, trouble="broken: EIO")]
            ),
            configs={NodeId(13): settings(storage__disks=[{"path": "/d0"}, {"path": "/d1"}])},
        ),
        {"disk-out"},
    ),
    # the manager's alone
    (snapshot(configs={NodeId(n): settings(mgmtd__replace_after_s=n) for n in (1, 11, 12)}), set()),
    (
        snapshot(configs={NodeId(n): settings(mgmtd__replace_after_s=n) for n in (1, 2)}),
        {"config-drift"},
    ),
    (snapshot(spaces={NodeId(11): space(0.05, 0.09)}), {"disk-full"}),
    (snapshot(spaces={NodeId(11): space(0.9, 0.3)}), {"space-uneven"}),
    (snapshot(answers={NodeId(11): answer(skew_s=-1.5)}), {"clock-skew"}),
    (snapshot(answers={NodeId(11): answer(lease_margin_s=1.4)}), {"lease-short"}),
    # an older release
    (snapshot(answers={NodeId(11): answer(lease_margin_s=0.0, lease_s=0.0)}), set()),
    (snapshot(answers={NodeId(11): passing(LINK)}), {"link-cut"}),
    (snapshot(answers={NodeId(11): answer(), NodeId(12): answer("2")}), {"release-mix"}),
    (snapshot(moves=MOVES), {"move-problem", "move-trouble", "drained"}),
    (snapshot(moves=mgmtd_pb2.ListMovesRsp(store_trouble="the disk is full")), {"store-full"}),
    (snapshot(kept=kept(12)), {"config-drift"}),  # it has not heard of the newest
    (snapshot(kept=kept(12, state="SETTINGS_FAILED", problem="line 3")), {"config-failed"}),
    (snapshot(kept=kept(12, state="SETTINGS_DIRTY")), set()),  # its values differ, if they do
]


@pytest.mark.parametrize(
    ("sick", "kinds"),
    SICK,
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else "",
)
def test_each_illness_is_found_and_nothing_else(sick, kinds):
    findings = diagnose(sick)
    assert {f.kind for f in findings} == kinds
    assert all(f.text and f.remedy and f.subject for f in findings)


def test_chains_that_lack_the_same_are_one_finding():
    """Was: a line for each of the thousands of chains that a machine has members of."""
    offline = [chain(n, S.SERVING, S.SERVING, S.OFFLINE) for n in range(1, 21)]
    other = chain(30, S.SERVING, S.OFFLINE, S.SERVING)
    one, many = diagnose(snapshot(routing(chains=[*offline, other])))
    assert many.subject == "chains 1, 2, 3, 4, 5, 6, 7, 8 and 12 more"
    assert many.text == "2 of 3 replicas serve; that on node 13 is offline"
    assert one.subject == "chain 30" and "1230 on node 12 is offline" in one.text
    losses = [chain(n, *SERVING, loss_count=1) for n in (1, 2)]
    (found,) = diagnose(snapshot(routing(chains=losses)))
    assert (found.kind, found.subject) == ("chain-losses", "chains 1, 2")


@pytest.mark.parametrize("chain_id", [1, 0])
def test_a_disk_out_of_use_is_found_also_when_nothing_is_missing_any_more(chain_id):
    """Was: nothing is wrong, once its targets had been replaced; and nobody listed it."""
    broken = Target(
        TargetId(1399), ChainId(chain_id), NodeId(13), 1, LocalState.OFFLINE, trouble="broken: EIO"
    )
    disks = [{"path": "/d0"}, {"path": "/d1"}, {"path": "/d2"}]
    sick = snapshot(routing(targets=[broken]), configs={NodeId(13): settings(storage__disks=disks)})
    first, second = diagnose(sick)
    assert (first.kind, first.subject) == ("disk-out", "node 13 disk 1")
    assert first.text == "/d1 is not in use: broken: EIO"
    assert "ember admin disk replace 13 1" in first.remedy
    assert "/d2 is not in use: out of service: the log" in second.text
    rows = disk_rows(sick.routing, sick.spaces, sick.configs)
    told = [(r["node_id"], r["disk_index"], r["trouble"]) for r in rows if r["node_id"] == 13]
    assert told[:2] == [(13, 0, ""), (13, 1, "broken: EIO")]


def test_a_cut_link_is_named_by_both_ends():
    answers = {NodeId(11): passing(LINK)}
    (found,) = diagnose(snapshot(answers=answers))
    assert found.subject == "client c1 and node 12"
    clients = {"c1": "mount /data on h7 (process 5)"}
    (found,) = diagnose(snapshot(answers=answers, clients=clients))
    assert found.subject == "mount /data on h7 (process 5) and node 12"
    assert "node 11 passes its requests on (7 in 20 s)" in found.text
    assert "10.0.0.12:4000" in found.remedy
    LINK.caller_node_id = 2
    try:
        (found,) = diagnose(snapshot(answers={NodeId(11): passing(LINK)}))
    finally:
        LINK.caller_node_id = 0
    assert found.subject == "node 2 and node 12"


def test_a_cut_link_is_one_finding_however_many_have_passed_requests_on():
    other = core_pb2.RelayedLinkPb(client_id="c1", node_id=12, since_s=50.0, request_count=3)
    (found,) = diagnose(snapshot(answers={NodeId(13): passing(other), NodeId(11): passing(LINK)}))
    assert "node 11 and node 13 pass its requests on (10 in 50 s)" in found.text


def test_the_last_replica_is_critical_and_comes_first():
    sick = snapshot(
        routing(chains=[chain(2, S.SERVING, S.WAITING, S.OFFLINE)], is_bootstrapping=True)
    )
    findings = diagnose(sick)
    assert [f.severity for f in findings] == [Severity.CRITICAL, Severity.NOTICE]
    assert "the next failure stops it" in findings[0].text


def resyncing(done, version=5):
    progress = ResyncProgress(TargetId(1302), version, chunks_done=done, bytes_done=done << 20)
    target = Target(TargetId(1302), ChainId(2), NodeId(13), 0, LocalState.ONLINE, resync=progress)
    return snapshot(routing(chains=[chain(2, S.SERVING, S.SERVING, S.SYNCING)], targets=[target]))


def test_a_resync_is_stuck_only_when_nothing_moved_in_one_attempt():
    def kinds(before, now):
        return {f.kind for f in diagnose(now, before)}

    assert "resync-stuck" in kinds(resyncing(3), resyncing(3))
    assert "resync-stuck" not in kinds(resyncing(3), resyncing(4))
    assert "resync-stuck" not in kinds(resyncing(3), resyncing(3, version=6))


def test_every_check_is_exercised():
    """A check that no case above makes speak would be one that nothing tests."""
    silent = [check for check in CHECKS if not any(list(check(sick)) for sick, _ in SICK)]
    assert silent == []


def test_what_makes_a_process_itself_is_no_drift():
    own = drifting(process__node_id=12, storage__disks=[{"path": "/other"}], kv__engine="remote")
    assert diagnose(snapshot(configs=own)) == []
    unused = drifting(meta__gc_delay_s=5.0, kv__retry_time_s_max=1.0)
    assert diagnose(snapshot(configs=unused)) == []
    assert diagnose(snapshot(configs={NodeId(12): settings(mgmtd__node_lease_s=2.0)})) == []


def test_maintenance_that_is_over_is_not_told():
    known = routing(nodes=[node(13, Role.STORAGE, maintenance_until_ns=10**9)])
    assert diagnose(snapshot(known, wall_ns=2 * 10**9)) == []


@pytest.mark.parametrize("states", [[S.LASTSRV, S.WAITING, S.OFFLINE], [S.LASTSRV]])
def test_of_an_older_image_another_member_is_named_before_it_is_accepted(states):
    """Who stopped together with the disk's node has all that was written;
    the image lacks it for certain.
    """
    waiting = Chain(
        ChainId(2),
        5,
        tuple(
            ChainTarget(TargetId(n * 100 + 2), s) for n, s in zip(STORAGE_IDS, states, strict=False)
        ),
        (),
    )
    last = Target(
        TargetId(1102), ChainId(2), NodeId(11), 0, trouble="it is old", has_old_image=True
    )
    found = diagnose(snapshot(routing(chains=[waiting], targets=[last])))
    (finding,) = [f for f in found if f.subject == "chain 2"]
    assert "it is old" in finding.text
    advice = finding.remedy
    assert "accept-old 2 1102" in advice
    assert ("rotate-lost 2 1102" in advice[: advice.index("accept-old")]) == (len(states) > 1)


def test_inline_files_are_told_only_where_there_is_no_room_for_more():
    assert diagnose(inline(used=900)) == []
    assert diagnose(inline(11, used=1000)) == []
    off = settings(meta__inline_bytes_max=0, meta__inline_total_bytes_max=1)
    assert diagnose(snapshot(configs={NodeId(1): off}, inline_bytes=5)) == []
