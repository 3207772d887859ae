"""Every remote method against every kind of bad credentials:
refused, told in the log, and nothing happened.

The table is made from the schema, so a new method is in it; who may call it stands
below, and has to be said there too.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import random
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from fs.meta.service import MetaService
from fs.mgmtd.service import MgmtdService
from fs.node.user_guard import UserGuard
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.credentials import Secret, Token, client_prefix
from fs.rpc.handshake import encode_proof
from fs.rpc.refusal_log import QUIET_S
from fs.rpc.server import Server, methods_of, snake_name
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.method import Access, Method
from fs.schema.proto.common_pb2 import CallerPb, NodeRole
from fs.schema.proto.mgmtd_pb2 import TokenPb, UserPb
from fs.schema.proto.storage_pb2 import RelayReq
from fs.schema.status import FsError, Status
from fs.storage.service import StorageService
from tests.rpc.peer import request_frame
from tests.rpc.test_closed import Greeter

CLUSTER = "test-cluster"
METHODS = [m for m in vars(services).values() if isinstance(m, Method)]
SERVICES = sorted({m.service_name for m in METHODS})
ADMITS = {
    "Core": CoreService,
    "Meta": MetaService,
    "Mgmtd": MgmtdService,
    "Storage": StorageService,
}

FOR_USERS = {
    *(f"Meta.{m.name}" for m in methods_of("Meta")),
    "Core.Echo",
    "Core.EndClient",
    "Core.GetInfo",
    "Mgmtd.GetPrimary",
    "Mgmtd.GetRoutingInfo",
    "Mgmtd.ReportUnreachable",
    "Mgmtd.ExtendClientSession",
    "Mgmtd.CloseClientSession",
    "Mgmtd.GetSettings",
    "Storage.BatchRead",
    "Storage.Write",
    "Storage.WriteGroup",
    "Storage.WriteRanges",
    "Storage.QueryLastChunk",
    "Storage.SyncChains",
    "Storage.Relay",
}
FOR_SERVICES = {
    "Kv.Read",
    "Kv.Commit",
    "Kv.Sync",
    "Mgmtd.Heartbeat",
    "Mgmtd.FindTokens",
    "Storage.Update",
    "Storage.UpdateGroup",
    "Storage.ReplaceGroup",
    "Storage.UpdateRanges",
    "Storage.RemoveChunks",
    "Storage.QueryVersions",
    "Storage.SyncStart",
    "Storage.SyncDone",
    "Storage.FetchCopy",
}
"""All others are for admins."""

KEY, WRONG_KEY = (Secret.of_key(bytes([n]) * 32) for n in (1, 2))
ALICE, BOB, ADMIN, ROOT, EXPIRED = (
    Token(n, bytes([n]) * 8, bytes([n]) * 32) for n in range(10, 15)
)
CUT = Token(ALICE.uid, ALICE.token_id, ALICE.value[:-1] + b"\0")


@pytest.fixture
def autojump_clock():
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture(autouse=True)
def quiet_s(monkeypatch, request):
    """Let no second line come because time has passed, but where that is what is tested."""
    if "fill_the_log" not in request.node.name:
        monkeypatch.setattr("fs.rpc.refusal_log.QUIET_S", 1e6)


def test_every_method_says_whom_it_is_for():
    wanted = {
        str(m): Access.USER if str(m) in FOR_USERS
        else Access.SERVICE if str(m) in FOR_SERVICES
        else Access.ADMIN
        for m in METHODS
    }  # fmt: skip
    assert {str(m): m.access for m in METHODS} == wanted
    assert set(wanted) >= FOR_USERS | FOR_SERVICES


class Recorder:
    """Plays every service: notes what was called, and in whose name."""

    def __init__(self, service_name, calls):
        for method in methods_of(service_name):
            setattr(self, snake_name(method.name), self._playing(method, calls))
        owner = ADMITS.get(service_name)
        if owner is not None:
            self.admit = lambda user, peer, request: owner.admit(self, user, peer, request)

    @staticmethod
    def _playing(method, calls):
        async def play(_call, request):
            calls.append((str(method), request))
            return method.reply_type()

        return play


def record(token, **fields):
    verifier = token.secret.verifier()
    kept = TokenPb(
        token_id=token.token_id,
        stored_key=verifier.stored_key,
        listener_key=verifier.listener_key,
        expires_ns=fields.pop("expires_ns", 0),
    )
    return UserPb(uid=token.uid, name=f"user-{token.uid}", gid=token.uid, tokens=[kept], **fields)


USERS = {
    t.token_id: record(t, **fields)
    for t, fields in (
        (ALICE, {}),
        (BOB, {}),
        (ADMIN, {"is_admin": True}),
        (ROOT, {"is_root": True}),
        (EXPIRED, {"expires_ns": 1}),
    )
}


async def find(token_ids):
    return [USERS.get(token_id, UserPb()) for token_id in token_ids]


@asynccontextmanager
async def closed_server():
    """A server with a key that plays every service; `calls` is what was carried out."""
    network = MemoryNetwork(seed=1)
    runtime = simulated_runtime(network.endpoint("b"), 2)
    limits = RpcSection(inflight_per_connection_max=100_000)
    guard = UserGuard([KEY], random.Random(1), runtime.clock, 5.0)
    guard.find = find
    server, calls = Server(Identity(CLUSTER, 7), limits, guard=guard), []
    for name in SERVICES:
        server.add_service(name, Recorder(name, calls))

    def channels(*secrets, client_id=None):
        prefix = client_prefix(secrets[0].key_id) if secrets else ""
        own = Identity(CLUSTER, client_id=client_id or f"{prefix}1")
        return open_channels(runtime, own, limits, secrets=secrets)

    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.run, network.endpoint("a"), "mem:a")

        async def connect():
            return Greeter(await network.endpoint("b").connect(address))

        yield SimpleNamespace(calls=calls, channels=channels, address=address, connect=connect)
        nursery.cancel_scope.cancel()


def request_of(method, *, uid=0, client_id=""):
    """Return a request as far as it says who asks."""
    request = method.request_type()
    holder = request.sync if str(method) == "Meta.Close" else request
    fields = holder.DESCRIPTOR.fields_by_name
    if method.service_name == "Meta":
        holder.caller.CopyFrom(CallerPb(uid=uid, gid=uid, client_id=client_id))
        if "client_id" in fields:
            holder.client_id = client_id
    elif str(method) == "Mgmtd.GetSettings":
        request.role = NodeRole.CLIENT  # those of servers are for administrators
    elif "tag" in fields:
        holder.tag.client_id = client_id
    elif "client_id" in fields:
        holder.client_id = client_id
    return request


async def status_of(channel, method, request):
    return await _status(channel.call(method, request))


async def _status(call):
    try:
        await call
    except FsError as error:
        return error.status
    return Status.OK


async def outcomes(cluster, methods, *secrets, hello_id=None, **who):
    """Call each method; return the set of statuses.  Every refused connection is a new one."""
    found = set()
    async with cluster.channels(*secrets, client_id=hello_id) as channels:
        for method in methods:
            channel = channels.get(cluster.address)
            found.add(await status_of(channel, method, request_of(method, **who)))
    return found


def told(caplog, word):
    return [r.getMessage() for r in caplog.records if word in r.getMessage()]


@pytest.mark.parametrize(
    ("secrets", "client_id", "word"),
    [
        ([], None, "gave no credentials"),
        ([WRONG_KEY], None, "not known to this cluster"),
        ([EXPIRED.secret], None, "the token has expired"),
        ([ALICE.secret], f"{client_prefix(BOB.secret.key_id)}1", "has a token of others"),
        ([Token(1, b"nobodys!", bytes(32)).secret], None, "no token"),
    ],
    ids=["no token", "wrong key", "expired", "another user's", "unknown"],
)
async def test_no_method_answers_bad_credentials(autojump_clock, caplog, secrets, client_id, word):
    async with closed_server() as cluster:
        found = await outcomes(cluster, METHODS, *secrets, hello_id=client_id)
        assert found == {Status.RPC_UNAUTHENTICATED}
        assert not cluster.calls
    lines = told(caplog, word)
    assert len(lines) == 1 and "mem:" in lines[0], lines


async def sent(cluster, proof, method):
    """Say hello as ALICE, prove by `proof(transcript)`, ask at once; return the raw connection."""
    raw = await cluster.connect()
    own = Identity(CLUSTER, client_id=f"{client_prefix(ALICE.secret.key_id)}1")
    transcript, _ = await raw.greet(ALICE.secret, own=own)
    request = request_of(method, uid=ALICE.uid, client_id=own.client_id).SerializeToString()
    await raw.send(encode_proof(proof(transcript)), (request_frame(method, 1, request),))
    return raw


@pytest.mark.parametrize("kind", ["replayed", "truncated", "of a truncated token"])
async def test_no_method_answers_bad_proofs(autojump_clock, caplog, kind):
    recorded = ALICE.secret.caller_proof(b"of an earlier connection")
    proofs = {
        "replayed": lambda _: recorded,
        "truncated": lambda transcript: ALICE.secret.caller_proof(transcript)[:-1],
        "of a truncated token": CUT.secret.caller_proof,
    }
    async with closed_server() as cluster:
        for method in METHODS:
            raw = await sent(cluster, proofs[kind], method)
            assert (await raw.goodbye()).status is Status.RPC_UNAUTHENTICATED, method
        assert not cluster.calls
    assert len(told(caplog, "does not hold")) == 1
    async with closed_server() as cluster:  # the same bytes with a good proof are served
        raw = await sent(cluster, ALICE.secret.caller_proof, services.CORE_GET_INFO)
        await raw.hear()
        await raw.hear()
        assert [name for name, _ in cluster.calls] == ["Core.GetInfo"]


@pytest.mark.parametrize(
    ("token", "allowed"),
    [(ALICE, {Access.USER}), (ADMIN, {Access.USER, Access.ADMIN}), (ROOT, {Access.USER})],
    ids=["user", "admin", "root"],
)
async def test_a_token_opens_what_it_is_for(autojump_clock, caplog, token, allowed):
    own = f"{client_prefix(token.secret.key_id)}1"
    fine = [m for m in METHODS if m.access in allowed]
    others = [m for m in METHODS if m.access not in allowed]
    async with closed_server() as cluster:
        who = {"uid": token.uid, "client_id": own}
        assert await outcomes(cluster, others, token.secret, **who) == {Status.RPC_NOT_ALLOWED}
        assert not cluster.calls
        assert await outcomes(cluster, fine, token.secret, **who) == {Status.OK}
        assert [name for name, _ in cluster.calls] == [str(m) for m in fine]
    for method in others:
        assert len(told(caplog, f": {method}: RPC_NOT_ALLOWED")) == 1


async def test_no_token_speaks_for_another(autojump_clock, caplog):
    """Neither for another user nor for another client; the root flag allows the first only."""
    own = f"{client_prefix(ALICE.secret.key_id)}1"
    named = [
        m for m in METHODS
        if m.access is Access.USER and request_of(m, client_id="x") != request_of(m)
    ]  # fmt: skip
    meta = [m for m in named if m.service_name == "Meta"]
    assert len(meta) == len(methods_of("Meta")) and len(named) > len(meta)
    async with closed_server() as cluster:
        for secret, who, methods in (
            (ALICE.secret, {"uid": BOB.uid, "client_id": own}, meta),
            (ALICE.secret, {"uid": 0, "client_id": own}, meta),
            (ALICE.secret, {"uid": ALICE.uid, "client_id": "another"}, named),
            (ROOT.secret, {"uid": BOB.uid, "client_id": own}, named),
        ):
            assert await outcomes(cluster, methods, secret, **who) == {Status.RPC_NOT_ALLOWED}
        assert not cluster.calls
        daemon = f"{client_prefix(ROOT.secret.key_id)}1"
        found = await outcomes(cluster, meta, ROOT.secret, uid=BOB.uid, client_id=daemon)
        assert found == {Status.OK}
    for method in named:
        assert told(caplog, f": {method}: RPC_NOT_ALLOWED")


async def test_a_client_frees_what_others_of_its_token_held_and_nobody_else(autojump_clock, caplog):
    prefix, other = (client_prefix(one.secret.key_id) for one in (ALICE, BOB))
    ends = [
        services.CORE_END_CLIENT, services.MGMTD_CLOSE_CLIENT_SESSION, services.META_FREE_CLIENT
    ]  # fmt: skip
    async with closed_server() as cluster, cluster.channels(ALICE.secret) as channels:
        channel = channels.get(cluster.address)

        async def found(method, named):
            request = request_of(method, uid=ALICE.uid, client_id=f"{prefix}1")
            request.client_id = named
            return await status_of(channel, method, request)

        for method in ends:
            assert await found(method, f"{prefix}2") is Status.OK
            for named in ("2", "", f"{other}2", f"{prefix}x-2", prefix):
                wanted = Status.OK if named == prefix else Status.RPC_NOT_ALLOWED
                assert await found(method, named) is wanted, (method, named)
        extend = services.MGMTD_EXTEND_CLIENT_SESSION
        assert await found(extend, f"{prefix}2") is Status.RPC_NOT_ALLOWED


async def test_no_token_gets_further_by_having_its_requests_passed_on(autojump_clock, caplog):
    """Neither to what is for others, nor in another's name."""
    own = f"{client_prefix(ADMIN.secret.key_id)}1"

    def passed(method, client_id):
        return RelayReq(
            node_id=9,
            service_number=method.service_number,
            method_number=method.number,
            message=request_of(method, client_id=client_id).SerializeToString(),
        )

    async with closed_server() as cluster, cluster.channels(ADMIN.secret) as channels:
        channel = channels.get(cluster.address)
        for method, client_id, status in (
            (services.STORAGE_REMOVE_CHUNKS, own, Status.RPC_NOT_ALLOWED),
            (services.STORAGE_WRITE, "another", Status.RPC_NOT_ALLOWED),
            (services.STORAGE_WRITE_RANGES, "another", Status.RPC_NOT_ALLOWED),
            (services.STORAGE_WRITE, own, Status.OK),
            (services.STORAGE_SPACE_INFO, own, Status.OK),
        ):
            request = passed(method, client_id)
            found = await _status(channel.call(services.STORAGE_RELAY, request))
            assert found is status, method
        assert [name for name, _ in cluster.calls] == ["Storage.Relay"] * 2
    async with closed_server() as cluster, cluster.channels(ALICE.secret) as channels:
        request = passed(services.STORAGE_SPACE_INFO, own)
        call = channels.get(cluster.address).call(services.STORAGE_RELAY, request)
        assert await _status(call) is Status.RPC_NOT_ALLOWED
        assert not cluster.calls
    assert told(caplog, "Storage.Relay: RPC_NOT_ALLOWED")


async def test_refusals_do_not_fill_the_log(autojump_clock, caplog):
    async with closed_server() as cluster, cluster.channels() as channels:
        for _ in range(100):
            await status_of(
                channels.get(cluster.address), services.CORE_ECHO, request_of(services.CORE_ECHO)
            )
        assert len(told(caplog, "gave no credentials")) == 1
        await trio.sleep(QUIET_S)
        await status_of(
            channels.get(cluster.address), services.CORE_ECHO, request_of(services.CORE_ECHO)
        )
    lines = told(caplog, "gave no credentials")
    assert len(lines) == 2 and "99 more times" in lines[1]
