"""What is planned, from what was found: nothing twice, nothing that runs is touched,
nothing unsafe.
"""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from msgspec import structs

from fs.app.deploy import removal
from fs.app.deploy.agent import is_reached
from fs.app.deploy.code_archive import Release
from fs.app.deploy.installer import Options, on_hosts
from fs.app.deploy.inventory import read_inventory
from fs.app.deploy.layout import config_path
from fs.app.deploy.planning import (
    ClusterPlan,
    HostFacts,
    HostPlan,
    NodeView,
    ServiceFacts,
    TargetView,
    View,
    cluster_block_bytes,
    digest_of,
    host_troubles,
    plan_cluster,
    plan_host,
    planned_targets,
    same_machines,
    targets_for,
    wanted_files,
)
from fs.app.deploy.reach import certain_skew_s, facts_request
from fs.app.deploy.removal import plan_leaving, run_remove
from fs.app.deploy.upgrade import Step, misfits, overtaken, steps, unsafe
from fs.schema.status import FsError, Status

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "inventory.toml"
INVENTORY = read_inventory(EXAMPLE)
RELEASE = Release("0.2.0", "digest", b"")
SECRETS = {"key": b"a key"}
KEY_DIGEST = digest_of(b"a key")


def bare(host):
    """A machine that has nothing yet."""
    asked = facts_request(INVENTORY, host)
    return HostFacts(
        python=(3, 11),
        machine=host.name,
        wall_ns=0,
        has_venv=True,
        has_fuse=True,
        has_systemd=True,
        is_root=True,
        free_bytes=1 << 40,
        disks=dict.fromkeys(asked["disks"], "empty"),
        files=dict.fromkeys(asked["files"], ""),
        texts=dict.fromkeys(asked["texts"], ""),
        installed={},
        services={name: ServiceFacts("stopped", "") for name in asked["services"]},
        ports=dict.fromkeys(asked["ports"], ""),
        mounts=dict.fromkeys(asked["mounts"], ""),
    )


def installed(host, facts, *, version="0.2.0", state="serving", view=None, block_bytes=4096):
    """The same machine after a deploy."""
    targets = targets_for(host, facts, view, planned_targets(INVENTORY))
    files = wanted_files(
        INVENTORY, host, facts, RELEASE, secrets=SECRETS, targets=targets, block_bytes=block_bytes
    )
    program = f"/opt/emberfs/{version}/venv/bin/python" if state != "stopped" else ""
    return structs.replace(
        facts,
        disks=dict.fromkeys(facts.disks, "ours"),
        files=facts.files | {f.path: digest_of(f.content) for f in files},
        texts=dict.fromkeys(facts.texts, "")
        | {f.path: f.content.decode() for f in files if f.path in facts.texts},
        installed={version: {"digest": "digest"}},
        services=dict.fromkeys(facts.services, ServiceFacts(state, program)),
    )


def all_installed(**options):
    return {h.name: installed(h, bare(h), **options) for h in INVENTORY.hosts}


def view(**changes):
    """What the manager says of the example when all is well."""
    nodes = [
        NodeView(host.node_id(role), "connected", "0.2.0", host.tags)
        for host in INVENTORY.hosts
        for role in host.roles
        if host.node_id(role)
    ]
    targets = [
        TargetView(target, host.node_id("storage"), index)
        for host in INVENTORY.hosts
        for index, ids in enumerate(planned_targets(INVENTORY)[host.name].values())
        for target in ids
    ]
    return structs.replace(View(nodes, targets, 12, [], [], 0, is_rebalancing=False), **changes)


def planned(found, seen, inventory=INVENTORY):
    block_bytes = cluster_block_bytes(inventory, found, seen)
    return plan_cluster(inventory, RELEASE, found, SECRETS, seen, block_bytes=block_bytes)


def test_bare_machines_get_everything():
    plan = planned({h.name: bare(h) for h in INVENTORY.hosts}, None)
    assert plan.makes_chains == 12 and plan.makes_key and not plan.rebalances
    first = next(iter(plan.hosts))
    assert list(first.starts) == ["kv", "mgmtd", "meta", "storage", "mount"] and first.installs
    lines = "\n".join(plan.lines())
    assert (
        "ember-1: install 0.2.0; write kv.toml, mgmtd.toml, meta.toml, storage.toml, mountd.toml, "
        "cluster.key, units, mount helper; start" in lines
    )
    assert "storage of ember-3" in lines


def test_a_second_run_has_nothing_to_do(tmp_path):
    inventory = structs.replace(INVENTORY, folder=str(tmp_path))
    inventory.key_path.write_text("a key")
    plan = planned(all_installed(), view(), inventory)
    assert plan.is_empty and not [*plan.lines()], [*plan.lines()]
    assert not any(p.restarts for p in plan.hosts)


def test_tags_that_were_given_by_hand_are_left_alone(tmp_path):
    inventory = structs.replace(INVENTORY, folder=str(tmp_path))
    inventory.key_path.write_text("a key")
    seen = view()
    nodes = [structs.replace(node, tags={**node.tags, "owner": "vision"}) for node in seen.nodes]
    assert planned(all_installed(), structs.replace(seen, nodes=nodes), inventory).is_empty


def test_what_has_stopped_is_started_and_nothing_else():
    found = all_installed()
    found["ember-2"] = structs.replace(
        found["ember-2"],
        services=found["ember-2"].services | {"storage": ServiceFacts("stopped", "")},
    )
    plan = planned(found, view())
    assert [(p.host.name, list(p.starts)) for p in plan.hosts if not p.is_empty] == [
        ("ember-2", ["storage"])
    ]


def test_what_runs_with_other_code_or_settings_is_for_an_upgrade():
    found = all_installed()
    found["ember-2"] = installed(INVENTORY.hosts[1], bare(INVENTORY.hosts[1]), version="0.1.0")
    path = config_path(INVENTORY.hosts[2], "storage")
    found["ember-3"] = structs.replace(
        found["ember-3"], files=found["ember-3"].files | {path: "other"}
    )
    plan = planned(found, view())
    assert {p.host.name: list(p.restarts) for p in plan.hosts} == {
        "ember-1": [], "ember-2": ["storage", "mount"], "ember-3": ["storage"],
    }  # fmt: skip
    assert not any(p.files or p.starts for p in plan.hosts)


def test_a_new_node_is_made_known_and_gets_its_share():
    seen = view()
    id_of_3 = INVENTORY.hosts[2].node_id("storage")
    small = structs.replace(
        seen,
        nodes=[n for n in seen.nodes if n.node_id != id_of_3],
        targets=[t for t in seen.targets if t.node_id != id_of_3],
    )
    found = all_installed()
    found["ember-3"] = bare(INVENTORY.hosts[2])
    plan = planned(found, small)
    assert [(h.name, role) for h, role in plan.new_nodes] == [("ember-3", "storage")]
    assert plan.rebalances and not plan.makes_chains
    assert "target_ids = []" in plan.hosts[2].configs["storage"]
    moving = structs.replace(small, is_rebalancing=True)
    assert not planned(found, moving).rebalances


def test_a_node_that_the_inventory_has_no_more_is_told():
    inventory = structs.replace(INVENTORY, hosts=INVENTORY.hosts[:2])
    found = all_installed()
    del found["ember-3"]
    plan = planned(
        found,
        view(),
        structs.replace(inventory, cluster=structs.replace(INVENTORY.cluster, replicas=2)),
    )
    assert plan.strangers == [10_003] and not any(p.host.name == "ember-3" for p in plan.hosts)


def test_an_empty_machine_in_place_of_a_lost_one_gets_the_targets_that_it_has_in_chains():
    host = INVENTORY.hosts[2]
    seen = view(targets=[TargetView(77, host.node_id("storage"), 1), TargetView(78, 10_001, 0)])
    assert targets_for(host, bare(host), seen, {}) == {"/disks/0": [], "/disks/1": [77]}


def test_targets_that_were_moved_do_not_change_files():
    host = INVENTORY.hosts[2]
    facts = installed(host, bare(host))
    before = targets_for(host, facts, view(), {})
    assert targets_for(host, facts, view(targets=[]), {}) == before
    assert targets_for(host, facts, None, {}) == before  # all of it is stopped


def blocks_of(plan):
    """The checksum blocks that the files of a plan give storage processes, by host."""
    return {
        p.host.name: tomllib.loads(p.configs["storage"])["storage"].get(
            "checksum_block_bytes", 16384
        )
        for p in plan.hosts
    }


@pytest.mark.parametrize("seen", [None, view(), view(chain_count=0, targets=[])])
@pytest.mark.parametrize("size", [4096, 16384])
def test_a_cluster_stays_with_the_checksum_blocks_that_it_was_made_with(size, seen):
    """Also for machines that join, or take the place of lost ones; 16384 was never written down."""
    found = all_installed(block_bytes=size)
    assert ("checksum_block_bytes" in str(found["ember-1"].texts)) is (size != 16384)
    every = dict.fromkeys(found, size)
    assert blocks_of(planned(found, seen)) == every
    found["ember-3"] = bare(INVENTORY.hosts[2])
    assert blocks_of(planned(found, seen)) == every


def test_a_new_cluster_has_small_checksum_blocks_on_all_its_disks():
    found = {h.name: bare(h) for h in INVENTORY.hosts}
    for seen in (None, view(chain_count=0, targets=[])):
        assert blocks_of(planned(found, seen)) == dict.fromkeys(found, 4096)


def test_each_storage_host_keeps_what_its_own_file_says():
    found = all_installed()
    found["ember-2"] = installed(INVENTORY.hosts[1], bare(INVENTORY.hosts[1]), block_bytes=65536)
    assert list(blocks_of(planned(found, view())).values()) == [4096, 65536, 4096]


def test_which_checksum_blocks_a_cluster_has_is_never_guessed():
    alone = {"ember-3": bare(INVENTORY.hosts[2])}
    for seen in (None, view()):  # None: its managers do not run, who knows since when
        with pytest.raises(FsError, match="name checksum_block_bytes") as caught:
            planned(alone, seen)
        assert caught.value.status is Status.BAD_CONFIG
    named = structs.replace(INVENTORY, settings={"storage": {"checksum_block_bytes": 8192}})
    assert blocks_of(planned(alone, view(), named)) == {"ember-3": 8192}
    lost = {h.name: bare(h) for h in INVENTORY.hosts}
    with pytest.raises(FsError, match="name checksum_block_bytes"):
        planned(lost, view())  # it has chains, and no host knows anything any more


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"is_root": False}, "needs root"),
        ({"has_venv": False}, "python3-venv"),
        ({"free_bytes": 1 << 20}, "1 MiB free"),
        ({"skew_s": -2.5}, "its clock is -2.5 s off"),
        ({"has_fuse": False}, "cannot mount"),
        ({"disks": {"/disks/0": "missing"}}, "disk /disks/0 does not exist"),
        ({"disks": {"/disks/0": "strange: photos"}}, "(photos)"),
        ({"ports": {"storage": "Address already in use"}}, "storage cannot listen at 10.0.0.2"),
        ({"mounts": {"/mnt/ember": "is not empty: x"}}, "mount point /mnt/ember is not empty: x"),
        ({"installed": {"0.2.0": {"digest": "another"}}}, "code.version"),
        ({"files": {"/etc/emberfs/cluster.key": "another"}}, "has another key"),
    ],
)  # fmt: skip
def test_troubles_of_a_host(changes, said):
    host = INVENTORY.hosts[1]
    assert not [*host_troubles(INVENTORY, host, bare(host), RELEASE, KEY_DIGEST)]
    facts = structs.replace(bare(host), **changes)
    (found,) = host_troubles(INVENTORY, host, facts, RELEASE, KEY_DIGEST)
    assert said in found


def test_one_machine_is_not_two_hosts():
    found = {h.name: structs.replace(bare(h), machine="one") for h in INVENTORY.hosts}
    assert [*same_machines(found)] == [
        ("ember-2", "is the same machine as ember-1"),
        ("ember-3", "is the same machine as ember-1"),
    ]


def test_a_clock_is_off_by_what_the_round_trip_does_not_explain():
    assert certain_skew_s(0, 5, 10) == 0
    assert certain_skew_s(10**9, 0, 2 * 10**9) == -1
    assert certain_skew_s(0, 5 * 10**9, 2 * 10**9) == 3


def test_an_upgrade_is_refused_when_a_process_more_away_could_hurt():
    assert not unsafe(view())
    assert "chains 4 have fewer" in unsafe(view(incomplete=[4]))[0]
    assert "2 targets are being moved" in unsafe(view(move_count=2))[0]
    away = [structs.replace(n, state="failed") if n.node_id == 10_002 else n for n in view().nodes]
    assert "nodes [10002] are not connected" in unsafe(view(nodes=away))[0]


def test_an_upgrade_restarts_who_is_asked_before_who_asks():
    hosts = [structs.replace(h, roles=[*{*h.roles, "mgmtd"}]) for h in INVENTORY.hosts]
    plans = [
        HostPlan(h, installs=True, files=(), starts=(), restarts=h.roles, configs={}) for h in hosts
    ]
    told = [
        (s.role, s.host.number)
        for s in steps(ClusterPlan("2", plans), Options(with_mounts=True), 1001)
    ]
    assert told == [
        ("kv", 1),
        ("mgmtd", 2), ("mgmtd", 3), ("mgmtd", 1),
        ("storage", 1), ("storage", 2), ("storage", 3),
        ("meta", 1),
        ("mount", 1), ("mount", 2), ("mount", 3),
    ]  # fmt: skip
    assert "mount" not in {s.role for s in steps(ClusterPlan("2", plans), Options(), 0)}


def test_nobody_is_made_newer_than_who_is_asked():
    old = [structs.replace(node, release="0.1.0") for node in view().nodes]
    first, second = INVENTORY.hosts[0], INVENTORY.hosts[1]
    (said, *_) = overtaken(INVENTORY, view(nodes=old), [Step(second, "mount")], "0.2.0")
    assert said.startswith("mount of ember-2 would ask mgmtd of ember-1, which runs 0.1.0")
    everything = [Step(h, role) for h in INVENTORY.hosts for role in h.roles]
    assert not [*overtaken(INVENTORY, view(nodes=old), everything, "0.2.0")]
    assert not [*overtaken(INVENTORY, view(nodes=old), [Step(first, "mgmtd")], "0.2.0")]
    assert not [*overtaken(INVENTORY, view(), [Step(second, "mount")], "0.2.0")]


def test_a_role_that_is_restarted_gets_its_unit_and_the_others_keep_theirs():
    host = INVENTORY.hosts[0]
    facts = installed(host, bare(host), version="0.1.0")
    facts = structs.replace(facts, files=dict.fromkeys(facts.files, "old"))
    stopped = structs.replace(facts, services=facts.services | {"kv": ServiceFacts("stopped", "")})
    files = wanted_files(
        INVENTORY, host, stopped, RELEASE, secrets=SECRETS, targets={}, block_bytes=0
    )
    plan = plan_host(host, stopped, RELEASE, files, with_unit=True)
    units = {f.path: f.content.decode() for f in plan.files if ".service" in f.path}
    own = "/etc/systemd/system/ember@{}.service.d/code.conf".format
    assert set(units) == {"/etc/systemd/system/ember@.service", own("kv")}
    assert "ExecStart=\nExecStart=/opt/emberfs/0.2.0/venv/bin/ember %i" in units[own("kv")]


def test_a_host_that_leaves_is_drained_stopped_forgotten_and_keeps_no_key():
    host = INVENTORY.hosts[1]
    facts = installed(host, bare(host))
    plan = plan_leaving(host, facts, view())
    assert plan.nodes == {"storage": 10_002} and plan.stops == ["mount", "storage"]
    assert "/etc/emberfs/cluster.key" in plan.files and plan.files[-1].endswith("/ember@.service")
    lost = plan_leaving(host, None, view())
    assert lost.nodes and not lost.stops and "cannot be reached" in [*lost.lines()][-1]
    gone = view(nodes=[n for n in view().nodes if n.node_id != 10_002])
    assert plan_leaving(host, bare(host), gone).is_empty


async def test_hosts_that_leave_together_are_not_drained_onto_each_other():
    done = []

    async def command(_host, _version, words, *, timeout_s):
        assert timeout_s > 0
        done.append(" ".join(words[2:]))

    progress = SimpleNamespace(step=lambda _: None)
    reach = SimpleNamespace(command=command, progress=progress, inventory=INVENTORY)
    hosts = INVENTORY.hosts[1:3]
    plans = [plan_leaving(host, None, view()) for host in hosts]
    await removal._let_all_go(reach, plans, INVENTORY.hosts[0], "0.1.0")
    waits = [index for index, words in enumerate(done) if "--wait" in words]
    assert done[:2] == ["drain 10002 --yes", "drain 10003 --yes"] and waits[0] == 2, done
    (line,) = removal.key_lines(INVENTORY, plans)
    assert "ember-2, ember-3" in line and "rotate-key" in line
    facts = [installed(host, bare(host)) for host in hosts]
    reached = [plan_leaving(host, found, view()) for host, found in zip(hosts, facts, strict=True)]
    assert not [*removal.key_lines(INVENTORY, reached)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["ember-1"], "no host has the role mgmtd"),
        (["ember-2"], "3 replicas need as many"),
        (["x"], "the inventory has"),
    ],
)
def test_what_would_leave_no_cluster_is_refused(names, said):
    with pytest.raises(FsError, match=said):
        run_remove(INVENTORY, names, Options())


def test_code_that_cannot_stand_side_by_side_is_refused():
    old = {"release": "1", "wire": [1, 2], "disk": 3}
    assert not misfits(old, {"release": "2", "wire": [2, 3], "disk": 4})
    assert "by a release between" in misfits(old, {"release": "9", "wire": [3, 4], "disk": 4})[0]
    assert "no way back" in misfits(old, {"release": "0", "wire": [1, 2], "disk": 2})[0]
    assert (
        "cluster stop, then deploy" in misfits(old, {"release": "0", "wire": [1, 1], "disk": 3})[0]
    )


def test_goals():
    good = {"nodes": [{"node_id": 1, "state": "connected"}], "incomplete": [], "chain_count": 2,
            "is_rebalancing": False, "move_count": 0}  # fmt: skip
    assert is_reached("complete", good, [1]) and is_reached("balanced", good, [])
    assert not is_reached("complete", good, [1, 2])
    assert not is_reached("complete", good | {"incomplete": [3]}, [])
    assert not is_reached("balanced", good | {"move_count": 1}, [])
    assert is_reached("complete", good | {"move_count": 1}, [])
    assert not is_reached("complete", good | {"chain_count": 0}, [])


def test_what_interrupts_or_refuses_leaves_the_nurseries_as_it_is():
    for wanted in (KeyboardInterrupt(), FsError(Status.BAD_CONFIG, "x")):

        async def use(_reach, error=wanted):
            async with trio.open_nursery():
                raise error

        with pytest.raises(type(wanted)):
            on_hosts(INVENTORY, use)
