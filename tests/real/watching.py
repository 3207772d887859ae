"""Watches the managers of a real cluster from outside:
what they write, and what each of them answers.

Checked all the time, by polling:
    - in the store: routing and chain versions never fall, one routing version names one content, a
      chain that changes gets a new version, and versions of chains grow no faster than the routing
      version; an epoch of the lease never falls and names one owner;
    - in every answer: no manager tells a routing version that is older than one which was known,
      from anybody, before it was asked; what is told under one version is one content.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import trio

from fs.kv.remote import RemoteEngine
from fs.kv.transact import snapshot_read
from fs.mgmtd import store as keys
from fs.mgmtd.lease import LeaseRecord
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.transport import SocketNetwork
from fs.runtime.ports import Runtime
from fs.runtime.real import real_runtime
from fs.schema.config import RpcSection
from fs.schema.proto import common_pb2, mgmtd_pb2, record_pb2
from fs.schema.services import MGMTD_GET_ROUTING_INFO
from fs.schema.status import FsError

POLL_S = 0.02
ASK_TIMEOUT_S = 1.0
PESTER_S = 0.25
PATIENCE_S = 30.0
"""Longer than anybody is stopped: the connection is not given up."""


@dataclass
class Watch:
    """What has been seen so far, and what was wrong with it."""

    violations: list[str] = field(default_factory=list)
    routing_version: int = 0
    chains: dict[bytes, bytes] = field(default_factory=dict)
    chain_versions: dict[bytes, int] = field(default_factory=dict)
    lease: LeaseRecord = field(default_factory=LeaseRecord)
    owners: dict[int, tuple[int, str]] = field(default_factory=dict)
    told_version: int = 0
    told: dict[int, bytes] = field(default_factory=dict)
    answer_count: int = 0
    answered_s: list[float] = field(default_factory=list)
    """When some manager last answered as primary."""

    def check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.violations.append(what)

    def see_store(self, version: int, lease: LeaseRecord, chains: dict[bytes, bytes]) -> None:
        """Take in one snapshot of what the managers have written."""
        self.check(version >= self.routing_version, f"routing {version} < {self.routing_version}")
        self.check(lease.epoch >= self.lease.epoch, f"lease {lease} after {self.lease}")
        if lease.node_id:
            owner = (lease.node_id, lease.incarnation)
            known = self.owners.setdefault(lease.epoch, owner)
            self.check(known == owner, f"epoch {lease.epoch} of {known} and of {owner}")
        steps = version - self.routing_version
        self.check(
            steps > 0 or not self.chains or chains == self.chains, f"two contents of {version}"
        )
        for key, value in chains.items():
            found = record_pb2.ChainRecordPb.FromString(value).chain.chain_version
            old = self.chain_versions.get(key, found)
            is_same = value == self.chains.get(key, value)
            self.check(
                found == old if is_same else old < found <= old + steps,
                f"chain {key!r}: version {old} to {found} in {steps} routing versions",
            )
            self.chain_versions[key] = found
        self.routing_version, self.lease, self.chains = version, lease, chains

    def see_answer(self, version_before: int, info: common_pb2.RoutingInfoPb, who: str) -> None:
        """Take in what a manager told as the primary."""
        version = info.routing_version
        self.check(version >= version_before, f"{who} told {version}, {version_before} was known")
        chains = b"".join(sorted(c.SerializeToString(deterministic=True) for c in info.chains))
        known = self.told.setdefault(version, chains)
        self.check(known == chains, f"{who} told another content of version {version}")
        self.told_version = max(self.told_version, version)
        self.answer_count += 1
        self.answered_s.append(trio.current_time())

    def longest_silence_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time between two answers of a primary."""
        times = [since_s, *(t for t in self.answered_s if since_s < t < until_s), until_s]
        return max(after - before for before, after in pairwise(times))


async def poll_store(watch: Watch, engine: RemoteEngine) -> None:
    """Read what the managers write, again and again."""

    async def read(tr):
        version = int.from_bytes(await tr.get(keys.ROUTING_VERSION_KEY) or b"", "big")
        lease = keys.unpack_lease(await tr.get(keys.LEASE_KEY))
        rows = await tr.get_range(keys.CHAIN_PREFIX, keys.CHAIN_PREFIX + b"\xff")
        return version, lease, dict(rows)

    while True:
        try:
            watch.see_store(*await snapshot_read(engine, read))
        except FsError:
            await trio.sleep(POLL_S)  # the store is away
        await trio.sleep(POLL_S)


async def ask(watch: Watch, channel, address: str, timeout_s: float) -> None:
    """Ask one manager once for the routing info."""
    before = watch.told_version
    try:
        received = await channel.call(
            MGMTD_GET_ROUTING_INFO, mgmtd_pb2.GetRoutingInfoReq(), timeout_s=timeout_s
        )
    except FsError:
        return  # not the primary, or away
    if received.message.HasField("routing_info"):
        watch.see_answer(before, received.message.routing_info, address)


async def poll_manager(watch: Watch, channel, address: str) -> None:
    """Ask one manager, again and again."""
    while True:
        await ask(watch, channel, address, ASK_TIMEOUT_S)
        await trio.sleep(POLL_S)


async def pester_manager(watch: Watch, channel, address: str) -> None:
    """Ask without waiting for answers, so that a stopped manager finds questions of all ages
    when it goes on.
    """
    async with trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(ask, watch, channel, address, PATIENCE_S)
            await trio.sleep(PESTER_S)


async def watch_managers(
    watch: Watch, cluster_id: str, store: str, managers: list[str], *, task_status
) -> None:
    """Watch until cancelled.

    Args:
        watch: where everything is noted.
        cluster_id: of the cluster.
        store: address of the kv process.
        managers: addresses of all managers.
        task_status: of the nursery that runs it.
    """
    runtime: Runtime = real_runtime(SocketNetwork())
    identity = Identity(cluster_id, client_id="watch")
    async with (
        open_channels(runtime, identity, RpcSection()) as channels,
        open_channels(runtime, identity, RpcSection()) as patient,
        trio.open_nursery() as nursery,
    ):
        engine = RemoteEngine(channels.get(store), store, runtime)
        nursery.start_soon(poll_store, watch, engine)
        for address in managers:
            nursery.start_soon(poll_manager, watch, channels.get(address), address)
            nursery.start_soon(pester_manager, watch, patient.get(address), address)
        task_status.started()
