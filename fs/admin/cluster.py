"""Making a new cluster out of configuration files: its nodes, chains and first chain table.

`plan` is pure; `initialise` tells the manager.  Each step may be repeated: a plan that the manager
knows already changes nothing, a different one is refused by the manager (CONFLICTING_CHANGE).

Does not choose target ids: the storage processes' files name them, since the disks carry them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placement.make import make
from placement.model import Disk, PlacementError, Site

from ..node.api import MgmtdCaller
from ..schema import services
from ..schema.config import ProcessConfig
from ..schema.proto.common_pb2 import NodePb, NodeRole
from ..schema.proto.mgmtd_pb2 import (
    NewChainPb,
    NewTargetPb,
    RegisterNodeReq,
    SetChainsReq,
    SetChainTableReq,
)
from ..schema.routing import DOMAIN_TAGS
from ..schema.status import FsError, Status

FIRST_TABLE_ID = 1
CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A process that others talk to."""

    name: str
    """For messages: the configuration file."""
    roles: tuple[NodeRole.ValueType, ...]
    config: ProcessConfig
    tags: Mapping[str, str] = field(default_factory=dict)
    """Its failure domains, DOMAIN_TAGS."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the manager is told."""

    nodes: Sequence[NodePb]
    chains: Sequence[NewChainPb]


def plan(servers: Sequence[Server], replica_count: int) -> Plan:
    """Return the nodes, and chains of `replica_count` targets that use every target once.

    Raises:
        FsError: BAD_CONFIG when the files contradict each other or the figures cannot be met.
    """
    _check_servers(servers)
    nodes = [
        NodePb(
            node_id=server.config.process.node_id,
            roles=server.roles,
            address=server.config.process.listen,
            tags=server.tags,
        )
        for server in servers
    ]
    return Plan(
        nodes,
        _chains(
            _targets(servers),
            replica_count,
            domains_of({server.config.process.node_id: server.tags for server in servers}),
        ),
    )


def _check_servers(servers: Sequence[Server]) -> None:
    """Every process has an id and an address of its own, in the same cluster."""
    known: dict[str, str] = {}
    cluster_ids = {server.config.process.cluster_id for server in servers}
    if len(cluster_ids) > 1:
        raise _bad(
            f"process.cluster_id differs between the files: {', '.join(sorted(cluster_ids))}"
        )
    for server in servers:
        process = server.config.process
        if not process.node_id:
            raise _bad(f"{server.name}: process.node_id 0: a service needs an id of its own")
        if not process.mgmtd_addresses:
            raise _bad(f"{server.name}: process.mgmtd_addresses: where is the manager?")
        for fact in (f"node_id {process.node_id}", f"listen {process.listen}"):
            if fact in known:
                raise _bad(f"{server.name} and {known[fact]} have the same process.{fact}")
            known[fact] = server.name


def _targets(servers: Sequence[Server]) -> Mapping[Site, Sequence[NewTargetPb]]:
    """Return the targets of each disk, in the order of its file."""
    owners: dict[int, str] = {}
    found: dict[Site, list[NewTargetPb]] = {}
    for server in servers:
        node_id = server.config.process.node_id
        for index, disk in enumerate(server.config.storage.disks):
            for target_id in disk.target_ids:
                if target_id in owners:
                    raise _bad(f"target {target_id} is in {owners[target_id]} and {server.name}")
                owners[target_id] = server.name
                target = NewTargetPb(target_id=target_id, node_id=node_id, disk_index=index)
                found.setdefault(Site(node_id, index), []).append(target)
    return found


def domains_of(tags: Mapping[int, Mapping[str, str]]) -> Mapping[int, tuple[str, ...]]:
    """Return the failure domains of each node by its tags, widest first,
    of the kinds that any node has.
    """
    kinds = [tag for tag in DOMAIN_TAGS if any(tag in found for found in tags.values())]
    return {
        node: tuple(found.get(tag, f"node {node}") for tag in kinds) for node, found in tags.items()
    }


def _chains(
    targets: Mapping[Site, Sequence[NewTargetPb]],
    replica_count: int,
    domains: Mapping[int, tuple[str, ...]],
) -> list[NewChainPb]:
    quotas = {site: len(found) for site, found in targets.items()}
    chain_count, rest = divmod(sum(quotas.values()), replica_count)
    if not quotas:
        raise _bad("no file names storage.disks with target_ids: there is nothing to store on")
    if rest:
        raise _bad(
            f"{sum(quotas.values())} target_ids do not divide into chains of {replica_count}:"
            f" leave {rest} out, or add {replica_count - rest}"
        )
    disks = [Disk(site, domains=domains[site.node_id]) for site in quotas]
    try:
        made = make(disks, chain_count, replica_count, quotas=quotas)
    except PlacementError as error:
        raise _bad(str(error)) from error
    left = {site: iter(found) for site, found in targets.items()}
    return [
        NewChainPb(chain_id=number, targets=[next(left[site]) for site in chain])
        for number, chain in enumerate(made.table, 1)
    ]


def _bad(detail: str) -> FsError:
    return FsError(Status.BAD_CONFIG, detail)


async def initialise(mgmtd: MgmtdCaller, made: Plan, timeout_s: float = CALL_TIMEOUT_S) -> None:
    """Tell a manager about nodes, chains and the chain table; repeating is harmless.

    Raises:
        FsError: CONFLICTING_CHANGE when the cluster has other chains; RPC_TIMEOUT.
    """
    for node in made.nodes:
        request = RegisterNodeReq(node=node)
        await mgmtd.call(services.MGMTD_REGISTER_NODE, request, timeout_s=timeout_s)
    chains = SetChainsReq(chains=made.chains)
    await mgmtd.call(services.MGMTD_SET_CHAINS, chains, timeout_s=timeout_s)
    chain_ids = [chain.chain_id for chain in made.chains]
    table = SetChainTableReq(table_id=FIRST_TABLE_ID, chain_ids=chain_ids)
    await mgmtd.call(services.MGMTD_SET_CHAIN_TABLE, table, timeout_s=timeout_s)
