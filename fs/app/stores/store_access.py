"""The key-value store of a cluster, opened by a command: with the cluster running or not.

--dir DIR                      the store that the cluster's processes are configured with;
                               while they run, through the process that holds it
--kv rocksdb:PATH              the embedded store at PATH, which no process uses
--kv remote:ADDRESS            the same through the process that serves it
--kv foundationdb:CLUSTERFILE  (or without CLUSTERFILE) FoundationDB
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ...kv.api import KvEngine
from ...rpc.channel import ChannelPool, open_channels
from ...rpc.credential_files import caller_secrets
from ...rpc.transport import SocketNetwork
from ...runtime.config_file import read_config
from ...runtime.ports import Runtime
from ...runtime.real import real_runtime
from ...schema.config import AuthSection, KvSection, ProcessConfig, ProcessSection
from ...schema.status import FsError, Status
from ..machine.cluster_dir import (
    KV,
    ClusterDir,
    ClusterRecord,
    auth_of,
    has_kv_process,
    mgmtd_names,
    need_record,
)
from ..process.compose import Process, new_identity
from ..supervision import supervisor_link
from ..terminal.command_trace import begin_command
from .foundationdb import FOUNDATIONDB, kv_section, parse_kv
from .store import open_local_reader, open_store


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Which store, and of which cluster."""

    section: KvSection
    cluster_id: str
    auth: AuthSection = field(default_factory=AuthSection)
    """What a command proves to the cluster's processes; default: as the environment says."""

    @property
    def text(self) -> str:
        """Return where it is, for people."""
        section = self.section
        place = {"rocksdb": section.path, "remote": section.address}
        return f"{section.engine}:{place.get(section.engine, section.cluster_file)}"


def parse_store(text: str) -> KvSection:
    """Return the store that --kv names; raises FsError(BAD_CONFIG)."""
    engine, _, place = text.partition(":")
    if engine == FOUNDATIONDB:
        return kv_section(parse_kv(text))
    if place and engine == "rocksdb":
        return KvSection(path=str(Path(place).absolute()))
    if place and engine == "remote":
        return KvSection(engine="remote", address=place)
    raise FsError(
        Status.BAD_CONFIG,
        f"--kv {text}: rocksdb:PATH, remote:ADDRESS or foundationdb:CLUSTERFILE",
    )


def is_running(directory: ClusterDir) -> bool:
    """True if processes of a local cluster run, with or without their supervisor."""
    return supervisor_link.is_answering(directory) or supervisor_link.has_orphans(directory)


def holder_name(record: ClusterRecord) -> str:
    """Return the process whose configuration says where the store is."""
    return KV if has_kv_process(record) else mgmtd_names(record)[0]


def store_of_cluster(directory: ClusterDir) -> StoreChoice:
    """Return the store of a local cluster; raises FsError(BAD_CLUSTER_DIR)."""
    record = need_record(directory)
    config = read_config(directory.config_path(holder_name(record)))
    section = config.kv
    if section.engine == "rocksdb" and is_running(directory):
        section = KvSection(engine="remote", address=config.process.listen)
    return StoreChoice(section, record.cluster_id, auth_of(directory, record))


def check_exists(choice: StoreChoice) -> None:
    """Raise FsError(BAD_CONFIG) if the embedded store is not there:
    opening would make an empty one.
    """
    path = Path(choice.section.path)
    if choice.section.engine == "rocksdb" and not (path / "CURRENT").exists():
        raise FsError(Status.BAD_CONFIG, f"{path} holds no key-value store")


@dataclass(frozen=True, slots=True)
class OpenStore:
    """An open store, and what else a command needs to talk to the cluster."""

    engine: KvEngine
    runtime: Runtime
    channels: ChannelPool


@asynccontextmanager
async def open_chosen(
    choice: StoreChoice, *, for_reading: bool = False
) -> AsyncIterator[OpenStore]:
    """Open a store for the length of the block; raises FsError as `open_store`.

    With `for_reading` nothing is changed in an embedded store, and its process may be serving it.
    """
    process_section = ProcessSection(cluster_id=choice.cluster_id)
    config = ProcessConfig(process=process_section, kv=choice.section, auth=choice.auth)
    runtime = real_runtime(SocketNetwork())
    secrets = caller_secrets(config.auth)
    identity = new_identity(config, runtime, secrets)
    async with open_channels(runtime, identity, config.rpc, secrets=secrets) as channels:
        process = Process(config, runtime, identity, channels, trio.Event())
        reads_only = for_reading and choice.section.engine == "rocksdb"
        opened = open_local_reader(process) if reads_only else open_store(process)
        async with opened as engine:
            with begin_command(runtime):
                yield OpenStore(engine, runtime, channels)
