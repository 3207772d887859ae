"""`ember up`: from nothing, or from a stopped cluster, to a mounted file system.

Everything that can be refused is checked before the first process starts; a failure after that
stops what was started.  Repeating `up` on a stopped cluster brings back the same data.
"""

import os
import random
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import structs

from ...rpc.credential_files import write_new_key
from ...runtime.config_file import readable_config, write_config
from ...runtime.mount_table import is_same_place
from ...schema.config import NEW_CHECKSUM_BLOCK_BYTES
from ...schema.status import FsError, Status
from ..machine.cluster_dir import (
    KV,
    ClusterDir,
    ClusterRecord,
    auth_of,
    check_not_wiped,
    has_control,
    has_kv_process,
    load_record,
    meta_names,
    mgmtd_addresses,
    mgmtd_names,
    role_of,
    save_record,
)
from ..machine.process_id import ProcessId
from ..machine.running import left_running
from ..mounts.mount_point import check_fuse, check_mount_point
from ..reach.mgmtd_link import fetch_routing, initialise
from ..stores.foundationdb import StoreReport, ask_store
from ..stores.lost_store import check_chains, check_files, note_made
from ..supervision import supervisor_link
from ..supervision.one_start import check_stopped, note_start, only_start
from ..supervisor import take_over
from ..terminal.amounts import count_text
from ..terminal.progress import Progress
from .cluster_plan import (
    NODE_COUNT_MAX,
    USUAL_MOUNT,
    MountWishes,
    check_sizes,
    default_chain_count,
    mount_config,
    plan_chains,
    server_configs,
)
from .planned_nodes import local_plan, replace_nodes
from .waits import (
    REDUNDANCY_TIMEOUT_S,
    SERVICE_TIMEOUT_S,
    is_redundant,
    wait_chains,
    wait_running,
    wait_storage,
    why_unavailable,
)

FREE_BYTES_MIN: Final = 512 * 1024 * 1024
NODE_COUNT_DEFAULT: Final = 3
REPLICA_COUNT_DEFAULT: Final = 3
MOUNT: Final = "mount-1"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the user asked for; None: what the cluster has, or the default of a new one."""

    directory: Path
    mount_point: Path | None = None
    node_count: int | None = None
    replica_count: int | None = None
    chain_count: int | None = None
    mgmtd_count: int | None = None
    meta_count: int | None = None
    kv: str | None = None
    """As --kv says, checked; "": the embedded store."""
    is_closed: bool = False
    """A new cluster serves who has its key, or a token; an existing one stays what it is."""
    has_mount: bool = True
    restarts: bool = True
    until: ProcessId | None = None
    """A process whose end stops the cluster."""
    has_hf3fs_tree: bool | None = None
    """The mount offers `3fs-virt`."""


def new_record(options: UpOptions, mount_point: str) -> ClusterRecord:
    """Return the record of a cluster that does not exist yet."""
    nodes = NODE_COUNT_DEFAULT if options.node_count is None else options.node_count
    replicas = options.replica_count
    if replicas is None:
        replicas = min(REPLICA_COUNT_DEFAULT, nodes)
    chains = options.chain_count
    if chains is None:
        # Too many are refused by `check_sizes`, and not counted for before.
        chains = default_chain_count(min(nodes, NODE_COUNT_MAX), replicas)
    cluster_id = f"ember-{secrets.token_hex(4)}"
    return ClusterRecord(
        cluster_id,
        nodes,
        replicas,
        chains,
        mount_point,
        mgmtd_count=1 if options.mgmtd_count is None else options.mgmtd_count,
        meta_count=1 if options.meta_count is None else options.meta_count,
        kv=options.kv or "",
        is_closed=options.is_closed,
        checksum_block_bytes=NEW_CHECKSUM_BLOCK_BYTES,
    )


def check_unchanged(options: UpOptions, record: ClusterRecord) -> None:
    """Refuse sizes that differ from what the cluster was made with.

    Raises:
        FsError: BAD_CONFIG naming the option.
    """
    asked = {
        "--nodes": (options.node_count, record.node_count),
        "--replicas": (options.replica_count, record.replica_count),
        "--chains": (options.chain_count, record.chain_count),
        "--kv": (options.kv, record.kv),
    }
    for name, (given, made) in asked.items():
        if given is not None and given != made:
            said, is_so = ("rocksdb" if value == "" else value for value in (given, made))
            raise FsError(
                Status.BAD_CONFIG,
                f"{name} {said}: this cluster was made with {is_so}; leave it out, use another "
                "--dir, or remove the cluster: "
                f"{ClusterDir(options.directory).command('down --wipe')}",
            )
    if options.is_closed and not record.is_closed:
        raise FsError(
            Status.BAD_CONFIG,
            "--closed: this cluster was made open; specs/authentication.md says how to close it",
        )


def with_services(
    directory: ClusterDir, options: UpOptions, record: ClusterRecord
) -> ClusterRecord:
    """Return the record with as many managers and metadata services as asked for.

    Raises:
        FsError: ALREADY_RUNNING when others of them still run, without a supervisor.
    """
    mgmtds, metas = options.mgmtd_count, options.meta_count
    changed = replace(
        record,
        mgmtd_count=record.mgmtd_count if mgmtds is None else mgmtds,
        meta_count=record.meta_count if metas is None else metas,
    )
    if changed != record and supervisor_link.has_orphans(directory):
        raise FsError(
            Status.ALREADY_RUNNING,
            f"services of {directory.path} run without their supervisor; before --mgmtds or --metas"
            f" can change, stop them: {directory.command('down')}",
        )
    return changed


def _check_new_directory(path: Path) -> None:
    """A new cluster needs an empty directory, or none yet:
    it is made when nothing else stands in the way.
    """
    try:
        names = [n for n in os.listdir(path) if n not in {"run", "logs"}]  # noqa: PTH208
    except FileNotFoundError:
        return
    except OSError as error:
        raise FsError(Status.BAD_CLUSTER_DIR, f"{path}: {error.strerror}") from error
    if names:
        raise FsError(
            Status.BAD_CLUSTER_DIR,
            f"{path} is not empty and holds no cluster; choose another with --dir",
        )


def _check_space(path: Path) -> None:
    """A new cluster needs space in its directory, which is made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FsError(Status.BAD_CLUSTER_DIR, f"{path}: {error.strerror}") from error
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    if free < FREE_BYTES_MIN:
        raise FsError(
            Status.NO_SPACE,
            f"{path}: {free >> 20} MiB free, a cluster needs {FREE_BYTES_MIN >> 20} MiB;"
            " free some or choose another --dir",
        )


def _check_mount(options: UpOptions, directory: ClusterDir, mount_point: Path) -> None:
    """Check the mount point, unless a mount of this very cluster outlived its supervisor there."""
    check_fuse()
    place = mount_point.parent.resolve() / mount_point.name  # itself not asked: its daemon may hang
    if directory.path.resolve().is_relative_to(place):
        detail = f"{mount_point}: a mount here would hide the cluster's directory, {directory.path}"
        raise FsError(Status.BAD_MOUNT_POINT, f"{detail}; choose an empty directory beside it")
    outlived = left_running(directory).get(MOUNT, {})
    if is_same_place(outlived.get("mount_point", ""), mount_point):
        return
    if options.mount_point is None:
        try:
            mount_point.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            pass  # a dead mount looks like this
        except OSError as error:
            raise FsError(Status.BAD_MOUNT_POINT, f"{mount_point}: {error.strerror}") from error
    check_mount_point(mount_point)


def prepare(
    options: UpOptions, default_mount_point: Path, progress: Progress
) -> tuple[ClusterDir, ClusterRecord, StoreReport | None]:
    """Check everything and write the cluster's files; nothing runs yet.

    Returns also what FoundationDB said, where metadata is kept there.

    Raises:
        FsError: whatever stands in the way.
    """
    directory = ClusterDir(options.directory)
    record = load_record(directory)
    check_stopped(directory)
    is_new = record is None
    if record is None:
        check_not_wiped(directory)
        mount_point = str(options.mount_point or default_mount_point)
        record = new_record(options, mount_point)
        _check_new_directory(directory.path)
    else:
        check_unchanged(options, record)
        check_files(directory)
        record = with_services(directory, options, record)
        mount_point = str(options.mount_point or record.mount_point)
    check_sizes(record)
    has_tree = options.has_hf3fs_tree
    has_tree = record.has_hf3fs_tree if has_tree is None else has_tree
    record = replace(record, mount_point=mount_point, has_hf3fs_tree=has_tree)
    if options.has_mount:
        _check_mount(options, directory, Path(mount_point))
    if is_new:  # one that has filled its disk has to start, so that files can be removed
        _check_space(directory.path)
    store = None
    if record.kv:
        progress.step(f"asking {record.kv}")
        store = ask_store(record.kv, record.cluster_id)
    directory.make_folders()
    if record.is_closed and not directory.key_path.exists():
        write_new_key(directory.key_path, random.SystemRandom())
    write_configs(directory, record)
    save_record(directory, record)
    return directory, record, store


def write_configs(directory: ClusterDir, record: ClusterRecord) -> None:
    """Write the configuration files that are missing; existing ones belong to the user.

    Only where the managers are is put right in an existing file, when their number has changed.
    """
    for name, config in server_configs(directory, record).items():
        path = directory.config_path(name)
        if not path.exists():
            write_config(path, config)
            continue
        found = readable_config(path)  # of a mistake its process will tell
        addresses = config.process.mgmtd_addresses
        if found is not None and found.process.mgmtd_addresses != addresses:
            process = structs.replace(found.process, mgmtd_addresses=addresses)
            write_config(path, structs.replace(found, process=process))


def add_service(directory: ClusterDir, name: str, role: str, mount_point: str = "") -> None:
    """Have the supervisor start a service, unless it took a running one over."""
    try:
        supervisor_link.ask(directory, command="add", name=name, role=role, mount_point=mount_point)
    except FsError as error:
        if error.status is not Status.ALREADY_RUNNING:
            raise


def begin_mount(
    directory: ClusterDir,
    record: ClusterRecord,
    name: str,
    mount_point: Path,
    wishes: MountWishes = USUAL_MOUNT,
) -> None:
    """Start a mount daemon."""
    config = mount_config(directory, record, mount_point, wishes)
    write_config(directory.config_path(name), config)
    add_service(directory, name, "mountd", str(mount_point))


def start_services(
    options: UpOptions, directory: ClusterDir, record: ClusterRecord, progress: Progress
) -> list[str]:
    """Start all processes; return what of the cluster is not as it should be,
    though it serves, a line each.

    A storage process that does not start is no obstacle while the others have what its disks hold.

    Raises:
        FsError: START_FAILED, CHAIN_UNAVAILABLE, KV_EMPTY.
    """
    _start_servers(directory, record, progress)
    progress.step(
        f"starting {count_text(record.node_count, 'storage process', 'storage processes')}"
    )
    is_new = _have_chains(directory, record)
    note_made(directory)
    for name in meta_names(record):
        wait_running(directory, name)
    missing = wait_storage(directory, record)
    if missing and is_new:
        raise missing[0]
    progress.step(f"waiting for {count_text(record.chain_count, 'chain')}")
    why = why_unavailable(directory, record, missing)
    if why is not None and (options.has_mount or is_new):
        raise why
    notes = [f"{error.name} is missing: {error.said}" for error in missing]
    if why is not None:  # who puts it right needs the services
        return [*notes, str(why)]
    if options.has_mount:
        progress.step(f"mounting {record.mount_point}")
        at, has_tree = Path(record.mount_point), record.has_hf3fs_tree
        begin_mount(directory, record, MOUNT, at, MountWishes(has_hf3fs_tree=has_tree))
        wait_running(directory, MOUNT)
    if missing:
        return notes
    if not wait_chains(directory, record, REDUNDANCY_TIMEOUT_S, is_redundant):
        return ["some targets are still being resynced (ember status)"]
    return []


def _start_servers(directory: ClusterDir, record: ClusterRecord, progress: Progress) -> None:
    """Start all servers, and wait for the managers: all others need them."""
    if has_control(record):
        progress.step("starting the control process")
    else:
        managers = count_text(record.mgmtd_count, "manager")
        metas = count_text(record.meta_count, "metadata service")
        progress.step(f"starting {managers} and {metas}")
    if has_kv_process(record):
        add_service(directory, KV, KV)
        wait_running(directory, KV)
    for name in server_configs(directory, record):
        add_service(directory, name, role_of(name))
    for name in mgmtd_names(record):
        wait_running(directory, name)


def _have_chains(directory: ClusterDir, record: ClusterRecord) -> bool:
    """Have the chains of a new cluster made, or tell a known one which managers
    and metadata services it has now; return whether it is new.
    """
    info = fetch_routing(directory, record, timeout_s=SERVICE_TIMEOUT_S)
    is_new = not info.chain_tables
    check_chains(directory, has_chains=not is_new)
    if is_new:
        initialise(
            mgmtd_addresses(directory, record),
            record.cluster_id,
            local_plan(directory, record, plan_chains(record)),
            timeout_s=SERVICE_TIMEOUT_S,
            auth=auth_of(directory, record),
        )
    else:
        replace_nodes(directory, record, info, timeout_s=SERVICE_TIMEOUT_S)
    return is_new


def summary(
    options: UpOptions, directory: ClusterDir, record: ClusterRecord, store: StoreReport | None
) -> str:
    """Return what a newcomer needs to know next."""
    lines = []
    if options.has_mount:
        lines.append(f"mounted:  {record.mount_point}")
    if store is not None:
        lines.append(f"metadata: {store.text()}")
    if record.is_closed:
        lines.append(f"closed:   {directory.key_path}")
    lines += [
        f"data:     {directory.path}",
        f"logs:     {directory.path / 'logs'}",
        f"look:     {directory.command('status')}",
        f"stop:     {directory.command('down')}",
    ]
    return "\n".join(lines)


def bring_up(options: UpOptions, default_mount_point: Path) -> ClusterDir:
    """Carry out `ember up`; returns when the cluster serves.

    What an earlier one began that was killed is gone on with.

    Raises:
        FsError: with nothing left running; ALREADY_RUNNING also when another
            `ember up` is at work here.
    """
    with only_start(options.directory):
        return _bring_up(options, default_mount_point)


def _bring_up(options: UpOptions, default_mount_point: Path) -> ClusterDir:
    progress = Progress()
    try:
        directory, record, store = prepare(options, default_mount_point, progress)
    except BaseException:
        progress.close()
        raise
    note_start(directory)
    if not supervisor_link.is_answering(directory):
        supervisor_link.start(directory, restarts=options.restarts, until=options.until)
    try:
        notes = start_services(options, directory, record, progress)
    except BaseException:
        progress.step("stopping what was started")
        with suppress(FsError):  # the first error is the one to tell
            supervisor_link.ask(directory, command="stop")
            os.close(take_over(directory))
        progress.close()
        raise
    directory.starting_path.unlink(missing_ok=True)
    progress.close("ready")
    sys.stdout.write(summary(options, directory, record, store) + "\n")
    sys.stdout.writelines(f"note:     {note}\n" for note in notes)
    sys.stdout.flush()
    return directory
