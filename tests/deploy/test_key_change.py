"""Another key for a cluster: who is needed, what is shown; the whole with real processes: test_life.py."""

from types import SimpleNamespace

import pytest
import trio
from msgspec import structs

from fs.app.deploy import agent
from fs.app.deploy.installer import Options
from fs.app.deploy.key_change import _give, manager_of, plan_lines, run_key_change, running_roles
from fs.app.deploy.layout import service_of
from fs.app.deploy.planning import ServiceFacts
from fs.schema.status import FsError, Status

from .test_planning import INVENTORY, bare


def all_running(without=()):
    """Facts of hosts whose services serve, but for some roles."""
    found = {}
    for host in INVENTORY.hosts:
        facts = bare(host)
        services = {
            name: ServiceFacts("stopped" if name in without else "serving", "")
            for name in facts.services
        }
        found[host.name] = structs.replace(facts, services=services)
    return found


def test_every_host_is_needed_and_a_manager():
    asked = manager_of(INVENTORY, all_running(), {})
    assert "mgmtd" in asked.roles
    with pytest.raises(FsError, match="one would keep the old key") as caught:
        manager_of(INVENTORY, all_running(), {"one": "no route"})
    assert caught.value.status is Status.START_FAILED
    with pytest.raises(FsError, match="no manager runs") as caught:
        manager_of(INVENTORY, all_running(without=("mgmtd",)), {})
    assert caught.value.status is Status.NOT_RUNNING


def test_an_open_cluster_has_no_key_to_replace():
    cluster = structs.replace(INVENTORY.cluster, is_closed=False)
    with pytest.raises(FsError, match="is an open cluster") as caught:
        run_key_change(structs.replace(INVENTORY, cluster=cluster), Options(is_yes=True))
    assert caught.value.status is Status.BAD_CONFIG


def test_what_is_shown_names_every_host_and_what_runs_there():
    facts = all_running(without=("mgmtd",))
    lines = plan_lines(INVENTORY, facts, is_begun=False)
    assert len(lines) == len(INVENTORY.hosts) + 2
    assert lines[0].endswith("a new key above the old one")
    for host, line in zip(INVENTORY.hosts, lines[1:-1], strict=True):
        roles = running_roles(host, facts)
        assert line.startswith(f"{host.name}: ")
        assert line.endswith(", ".join(roles) or "nothing that runs")
        assert "mgmtd" not in roles
    assert "already" in plan_lines(INVENTORY, facts, is_begun=True)[0]


class Peers:
    """Channels to peers that know some keys after so many calls."""

    def __init__(self, knows_after):
        self.secrets = ("new", "old")
        self.left = dict(knows_after)
        self.calls = []

    def replace_secrets(self, secrets):
        self.secrets = secrets

    def get(self, address):
        async def call(*_args, **_kwargs):
            await trio.lowlevel.checkpoint()
            self.calls.append((address, self.secrets))
            self.left[address] -= 1
            if self.left[address] >= 0:
                raise FsError(Status.RPC_UNAUTHENTICATED, address)

        return SimpleNamespace(call=call)


async def test_processes_are_heard_by_the_first_key_alone(autojump_clock):  # noqa: ARG001
    peers = Peers({"a": 0, "b": 3})
    assert await agent._greet(peers, ["a", "b"], 60.0) == {"late": {}}
    assert peers.calls.count(("a", ("new",))) == 1
    assert peers.calls.count(("b", ("new",))) == 4
    never = await agent._greet(Peers({"a": 0, "b": 10**6}), ["a", "b"], 60.0)
    assert list(never["late"]) == ["b"]
    assert "RPC_UNAUTHENTICATED" in never["late"]["b"]


class Hosts:
    """Hosts of whose processes some come back while files are written."""

    inventory = INVENTORY

    def __init__(self):
        self.failed = {}
        self.asked = []
        self.running = all_running(without=("mgmtd",))

    async def each(self, hosts, use):
        for host in hosts:
            await use(host)

    async def on(self, host, op, **fields):
        self.asked.append((host.name, op, fields))
        self.running = all_running()

    async def facts(self, hosts):
        return {host.name: self.running[host.name] for host in hosts}


async def test_who_comes_back_while_keys_are_given_reads_them_too():
    reach = Hosts()
    facts = await _give(reach, ["new", "old"])
    wanted = {host.name: running_roles(host, all_running()) for host in INVENTORY.hosts}
    assert {host.name: running_roles(host, facts) for host in INVENTORY.hosts} == wanted
    assert any("mgmtd" in roles for roles in wanted.values())
    told = {name: fields["services"] for name, op, fields in reach.asked if op == "reload"}
    assert told == {name: list(map(service_of, roles)) for name, roles in wanted.items()}
    assert [op for _, op, _ in reach.asked] == ["write"] * len(told) + ["reload"] * len(told)
