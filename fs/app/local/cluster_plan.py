"""From a cluster's record to what each process is told: targets, chains, configuration.  Pure.

Invariants:
    - A plan is made once, for a new cluster; afterwards the manager and the
      configuration files say what is.
    - Target ids are node id * 1000 + slot, slot from 1 on each node.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

from msgspec import structs

from placement.make import Effort, make
from placement.model import Disk, Site

from ...schema.config import (
    ClientSection,
    DiskSection,
    KvSection,
    MetaSection,
    ProcessConfig,
    ProcessSection,
    StorageSection,
)
from ...schema.routing import REPLICA_COUNT_MAX
from ...schema.status import FsError, Status
from ..machine.cluster_dir import (
    CONTROL,
    KV,
    ClusterDir,
    ClusterRecord,
    auth_of,
    has_control,
    has_kv_process,
    meta_names,
    mgmtd_addresses,
    mgmtd_names,
    node_id_of,
    storage_names,
)
from ..stores.foundationdb import kv_section

NODE_COUNT_MAX = 64
CHAIN_COUNT_MAX = 4096
TARGETS_PER_NODE_MAX = 999
CHAINS_PER_NODE = 2
CHAINS_PER_NODE_MAX = 4
"""Of `default_chain_count`."""

PLAN_EFFORT = Effort(0.25)
"""A start is not to wait long for the last bit of evenness."""

SERVICE_COUNT_MAX = 9
"""Managers, or metadata services, of one local cluster."""

METRICS_ADDRESS = "tcp:127.0.0.1:0"
"""Of every process of a local cluster; `ember status --json` says the port."""


@dataclass(frozen=True, slots=True)
class PlannedChain:
    """One chain of a new cluster: (target id, node id) head first."""

    chain_id: int
    targets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MountWishes:
    """How one mount is to differ from others of its cluster."""

    has_hf3fs_tree: bool = False
    """It offers `3fs-virt`."""
    subdir: str = ""
    """A directory of the file system that is mounted alone; empty: all is."""
    source: str = ""
    """What lists of mounts call it; empty: as `ember mount` has it."""
    options: tuple[str, ...] = ()
    """What mount(8) knows of any file system."""


USUAL_MOUNT = MountWishes()


def check_sizes(record: ClusterRecord) -> None:
    """Check the numbers that a user gave.

    Raises:
        FsError: BAD_CONFIG naming the option and what it allows.
    """
    nodes, replicas, chains = record.node_count, record.replica_count, record.chain_count
    if not 1 <= nodes <= NODE_COUNT_MAX:
        raise FsError(Status.BAD_CONFIG, f"--nodes {nodes}: 1 to {NODE_COUNT_MAX}")
    if replicas > REPLICA_COUNT_MAX:
        raise FsError(Status.BAD_CONFIG, f"--replicas {replicas}: 1 to {REPLICA_COUNT_MAX}")
    if not 1 <= replicas <= nodes:
        raise FsError(
            Status.BAD_CONFIG,
            f"--replicas {replicas}: 1 to the number of nodes ({nodes}), one copy per node;"
            f" give {f'--nodes {replicas} or ' if replicas > nodes else ''}--replicas {nodes}",
        )
    if not 1 <= chains <= CHAIN_COUNT_MAX or chains * replicas > nodes * TARGETS_PER_NODE_MAX:
        raise FsError(Status.BAD_CONFIG, f"--chains {chains}: 1 to {CHAIN_COUNT_MAX}")
    for option, count in (("--mgmtds", record.mgmtd_count), ("--metas", record.meta_count)):
        if not 1 <= count <= SERVICE_COUNT_MAX:
            raise FsError(Status.BAD_CONFIG, f"{option} {count}: 1 to {SERVICE_COUNT_MAX}")


def default_chain_count(node_count: int, replica_count: int) -> int:
    """Return how many chains a cluster gets: enough that every node has work when one is gone.

    Rather a few more when then every node is brought up to date by all others in equal parts: that
    takes a multiple of `node_count - 1` targets on each node.
    """
    usual = CHAINS_PER_NODE * node_count
    for chains in range(usual, CHAINS_PER_NODE_MAX * node_count + 1):
        if node_count > 1 and chains * replica_count % (node_count * (node_count - 1)) == 0:
            return chains
    return usual


def plan_chains(record: ClusterRecord) -> list[PlannedChain]:
    """Return the chains of a cluster, ids from 1."""
    node_ids = [node_id_of(name) for name in storage_names(record)]
    slots: Counter[int] = Counter()
    chains = []
    for index, members in enumerate(node_rows(record, node_ids)):
        targets = []
        for node_id in members:
            slots[node_id] += 1
            targets.append((node_id * 1000 + slots[node_id], node_id))
        chains.append(PlannedChain(index + 1, tuple(targets)))
    return chains


def node_rows(record: ClusterRecord, node_ids: list[int]) -> list[list[int]]:
    """Return the nodes of each chain, head first."""
    disks = [Disk(Site(node_id, 0)) for node_id in node_ids]
    made = make(disks, record.chain_count, record.replica_count, effort=PLAN_EFFORT)
    return [[site.node_id for site in chain] for chain in made.table]


def targets_of_node(chains: list[PlannedChain], node_id: int) -> list[int]:
    """Return the targets that a node holds, by id."""
    return sorted(t for chain in chains for t, node in chain.targets if node == node_id)


def server_configs(directory: ClusterDir, record: ClusterRecord) -> dict[str, ProcessConfig]:
    """Return the configuration of every server process by name,
    in the order in which they start.
    """
    process = partial(_process, directory, record)
    config = partial(ProcessConfig, auth=auth_of(directory, record))
    usual = MetaSection()
    meta = MetaSection(stripe_size=min(usual.stripe_size, record.chain_count))
    store = KvSection(path=str(directory.data_path(CONTROL) / "kv"))
    shared = KvSection(engine="remote", address=directory.address(KV))
    if record.kv:
        store = shared = kv_section(record.kv)
    chains = plan_chains(record)
    made = {}
    if has_control(record):
        made[CONTROL] = config(process=process(CONTROL), kv=store, meta=meta)
    else:
        if has_kv_process(record):
            made[KV] = config(process=process(KV), kv=store)
        for name in mgmtd_names(record):
            made[name] = config(process=process(name), kv=shared)
        for name in meta_names(record):
            made[name] = config(process=process(name), kv=shared, meta=meta)
    for name in storage_names(record):
        disk = DiskSection(
            path=str(directory.data_path(name) / "disk-0"),
            target_ids=targets_of_node(chains, node_id_of(name)),
        )
        storage = StorageSection(disks=[disk], checksum_block_bytes=record.checksum_block_bytes)
        own = structs.replace(process(name), directory=str(directory.data_path(name)))
        made[name] = config(process=own, storage=storage)
    return made


def _process(directory: ClusterDir, record: ClusterRecord, name: str) -> ProcessSection:
    return ProcessSection(
        cluster_id=record.cluster_id,
        node_id=node_id_of(name),
        listen=directory.address(name),
        mgmtd_addresses=mgmtd_addresses(directory, record),
        metrics_address=METRICS_ADDRESS,
    )


def mount_config(
    directory: ClusterDir,
    record: ClusterRecord,
    mount_point: PurePath,
    wishes: MountWishes = USUAL_MOUNT,
) -> ProcessConfig:
    """Return the configuration of one mount daemon."""
    return ProcessConfig(
        process=ProcessSection(
            cluster_id=record.cluster_id,
            mgmtd_addresses=mgmtd_addresses(directory, record),
            metrics_address=METRICS_ADDRESS,
        ),
        auth=auth_of(directory, record),
        client=wished_client(ClientSection(), mount_point, wishes),
    )


def wished_client(
    section: ClientSection, mount_point: PurePath, wishes: MountWishes
) -> ClientSection:
    """Return the section of a mount."""
    return structs.replace(
        section,
        mount_point=str(mount_point),
        hf3fs_tree=wishes.has_hf3fs_tree,
        subdir=wishes.subdir,
        mount_source=wishes.source,
        mount_options=list(wishes.options),
    )
