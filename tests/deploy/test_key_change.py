"""Another key for a cluster: who is needed, what is shown;
the whole with real processes: test_life.py.
"""

import base64
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from msgspec import structs

from fs.app.deploy import agent
from fs.app.deploy.installer import Options, on_hosts
from fs.app.deploy.key_change import (
    _change_key,
    _give,
    manager_of,
    plan_lines,
    run_key_change,
    running_roles,
)
from fs.app.deploy.layout import ETC, service_of
from fs.app.deploy.planning import ServiceFacts, digest_of
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.credential_files import key_text
from fs.rpc.credentials import Secret
from fs.rpc.guard import KeyGuard
from fs.rpc.server import Server
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.runtime.secret_file import read_secret_lines, write_secret_file
from fs.schema.config import RpcSection
from fs.schema.status import FsError, Status

from .test_planning import INVENTORY, bare

KEY_PATH = f"{ETC}/cluster.key"


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


@asynccontextmanager
async def listening(keys):
    """A process that knows some keys; yields itself and its address."""
    runtime = real_runtime(SocketNetwork())
    secrets = [Secret.of_key(bytes.fromhex(key)) for key in keys]
    server = Server(Identity("training", 1), RpcSection(), guard=KeyGuard(secrets, runtime.random))
    server.add_service("Core", CoreService(Identity("training", 1), runtime.clock, []))
    async with trio.open_nursery() as nursery:
        yield server, await nursery.start(server.run, runtime.network, "tcp:127.0.0.1:0")
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def channels_with(key):
    secrets = [Secret.of_key(bytes.fromhex(key))]
    runtime = real_runtime(SocketNetwork())
    identity = Identity("training", client_id="c")
    async with open_channels(runtime, identity, RpcSection(), secrets=secrets) as channels:
        yield channels


NEW, OLD = "11" * 32, "22" * 32


async def test_who_still_takes_the_old_key_is_found(monkeypatch):
    monkeypatch.setattr(agent, "POLL_S", 0.01)
    async with (
        channels_with(NEW) as channels,
        listening([NEW]) as one,
        listening([NEW, OLD]) as two,
    ):
        addresses = [one[1], two[1]]
        told = await agent._refused(channels, addresses, OLD, 0.5)
        assert told == {"late": {two[1]: "is opened by it"}}
        assert await agent._greet(channels, addresses, 5.0) == {"late": {}}
        two[0].guard.replace_keys([Secret.of_key(bytes.fromhex(NEW))])
        assert await agent._refused(channels, addresses, OLD, 5.0) == {"late": {}}


async def test_who_cannot_be_asked_has_not_refused():
    async with channels_with(NEW) as channels:
        told = await agent._refused(channels, ["tcp:127.0.0.1:1"], OLD, 0.2)
        assert "RPC_CONNECT_FAILED" in told["late"]["tcp:127.0.0.1:1"]


class Cluster:
    """A Reach of hosts that take what they are given;
    what their processes say to the old key is `late`.
    """

    def __init__(self, inventory):
        self.inventory, self.failed, self.late, self.ops = inventory, {}, {}, []
        self.progress = SimpleNamespace(step=lambda _: None, close=lambda *_: None)
        self.files = dict.fromkeys([host.name for host in inventory.hosts], "")
        self.rival = None
        """What somebody else writes after us."""
        self.is_old = False
        """What runs there is of a release that does not ask whether a key is refused."""

    async def facts(self, hosts):
        found = all_running()
        for host in hosts:
            files = found[host.name].files | {host.path(KEY_PATH): self.files[host.name]}
            services = {
                name: structs.replace(service, program="/opt/emberfs/0.2.0/venv/bin/python")
                for name, service in found[host.name].services.items()
            }
            found[host.name] = structs.replace(found[host.name], files=files, services=services)
        return found

    async def each(self, hosts, use):
        for host in hosts:
            await use(host)

    async def on(self, host, op, **fields):
        self.ops.append(op)
        if op == "write":
            content = self.rival or base64.b64decode(fields["files"][0][2])
            self.files[host.name] = digest_of(content)

    async def ask(self, _host, _version, op, **fields):
        if op == "refused":
            assert fields["key"] == OLD
            if self.is_old:
                raise FsError(Status.START_FAILED, "AssertionError: refused")
            if not fields["addresses"]:
                return {"late": {}}
        self.ops.append(op)
        return {"late": self.late if op == "refused" else {}}


@pytest.fixture
def closed(tmp_path):
    """A cluster of which the key file is here and everywhere."""
    write_secret_file(tmp_path / "training.key", key_text([OLD]))
    part = structs.replace(INVENTORY.cluster, is_closed=True, id="training", key_file="")
    made = Cluster(structs.replace(INVENTORY, cluster=part, folder=str(tmp_path)))
    made.files = dict.fromkeys(made.files, digest_of(key_text([OLD]).encode()))
    return made


async def change(reach):
    return await _change_key(reach, Options(is_yes=True))


async def test_the_old_key_has_to_be_refused_before_it_is_forgotten(closed):
    path = closed.inventory.key_path
    closed.late = {"tcp:10.0.0.1:1": "is opened by it"}
    with pytest.raises(FsError, match=r"the old key opens nothing: tcp:10.* is opened") as caught:
        await change(closed)
    assert caught.value.status is Status.RPC_UNAUTHENTICATED
    new, old = read_secret_lines(path)
    assert old == OLD
    closed.late = {}
    assert await change(closed) == 0  # it goes on with the same new key
    assert read_secret_lines(path) == [new]
    assert set(closed.files.values()) == {digest_of(path.read_bytes())}
    assert closed.ops[-1] == "refused"


async def test_hosts_that_cannot_tell_keep_their_key(closed):
    """They got the new one alone, which the file here could not become then:
    nothing but an edit of that file ended it.
    """
    closed.is_old = True
    with pytest.raises(FsError, match=r"cannot tell .*nothing was changed") as caught:
        await change(closed)
    assert caught.value.status is Status.BAD_CONFIG
    assert closed.ops == [] and read_secret_lines(closed.inventory.key_path) == [OLD]


async def test_keys_that_somebody_else_gave_are_not_replaced(closed):
    closed.files[INVENTORY.hosts[0].name] = digest_of(b"another")
    with pytest.raises(FsError, match=f"{INVENTORY.hosts[0].name}: other keys than in") as caught:
        await change(closed)
    assert caught.value.status is Status.BAD_CONFIG
    assert closed.ops == [] and read_secret_lines(closed.inventory.key_path) == [OLD]


async def test_keys_that_somebody_else_gives_meanwhile_are_found_out(closed):
    closed.rival = b"another"
    with pytest.raises(FsError, match="other keys than in"):
        await change(closed)
    assert set(closed.ops) == {"write"}
    assert read_secret_lines(closed.inventory.key_path)[1:] == [OLD]


def test_only_one_command_replaces_the_key(closed):
    inventory, options = closed.inventory, Options(is_yes=True)

    async def beside(_reach):
        await trio.lowlevel.checkpoint()
        with pytest.raises(FsError, match=f"changing hosts of {inventory.cluster.id}") as caught:
            await trio.to_thread.run_sync(run_key_change, inventory, options)
        assert caught.value.status is Status.ALREADY_RUNNING
        return await trio.to_thread.run_sync(on_hosts, inventory, nothing)

    async def nothing(_reach):
        await trio.lowlevel.checkpoint()
        return 7

    assert on_hosts(inventory, beside) == 7
    with pytest.raises(FsError, match="is changing hosts"):
        on_hosts(inventory, beside, is_alone=True)
    assert on_hosts(inventory, nothing, is_alone=True) == 7


class Hosts:
    """Hosts of whose processes some come back while files are written."""

    inventory = INVENTORY

    def __init__(self):
        self.failed = {}
        self.keys = dict.fromkeys([host.name for host in INVENTORY.hosts], "")
        self.asked = []
        self.running = all_running(without=("mgmtd",))

    async def each(self, hosts, use):
        for host in hosts:
            await use(host)

    async def on(self, host, op, **fields):
        self.asked.append((host.name, op, fields))
        self.running = all_running()
        if op == "write":
            self.keys[host.name] = digest_of(base64.b64decode(fields["files"][0][2]))

    async def facts(self, hosts):
        return {
            host.name: structs.replace(
                self.running[host.name], files={host.path(KEY_PATH): self.keys[host.name]}
            )
            for host in hosts
        }


async def test_who_comes_back_while_keys_are_given_reads_them_too():
    reach = Hosts()
    facts = await _give(reach, ["new", "old"])
    wanted = {host.name: running_roles(host, all_running()) for host in INVENTORY.hosts}
    assert {host.name: running_roles(host, facts) for host in INVENTORY.hosts} == wanted
    assert any("mgmtd" in roles for roles in wanted.values())
    told = {name: fields["services"] for name, op, fields in reach.asked if op == "reload"}
    assert told == {name: list(map(service_of, roles)) for name, roles in wanted.items()}
    assert [op for _, op, _ in reach.asked] == ["write"] * len(told) + ["reload"] * len(told)
