"""Makes chunk engines: over a directory of a real disk, or over a simulated one.

A disk belongs to one node of one cluster; a foreign or newer one is
refused before anything is written.
"""

import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..runtime.durable_file import sync_directory
from ..runtime.mount_table import awaited_mount
from ..schema.config import StorageSection
from ..schema.ids import TargetId
from ..schema.status import FsError, Status
from .data_files import LocalDataFiles
from .engine import DiskEngine
from .format import DATA_DIRECTORIES, FORMAT_KEY, FORMAT_VERSION, DiskFormat
from .known_disks import KnownDisks
from .meta_rocksdb import META_DIRECTORY, RocksMetaStore
from .ports import DataFiles, MetaStore
from .simulated_disk import SimulatedDataFiles, SimulatedDisk, SimulatedMetaStore
from .spare import make_room
from .upgrade import upgrade


def open_engine(
    path: Path | str,
    *,
    cluster_id: str,
    node_id: int,
    section: StorageSection,
    target_ids: Iterable[int] = (),
    known: KnownDisks | None = None,
) -> DiskEngine:
    """Open the disk below directory `path`; an empty or missing directory is formatted first.

    A disk of an older format is upgraded in place; `target_ids` are added if it does not hold them
    yet, unless they were removed from it.

    Args:
        path: where the disk is mounted, or any directory.
        cluster_id: whose disk it must be.
        node_id: the same.
        section: limits, and what a new disk is formatted with.
        target_ids: the targets that the configuration gives it.
        known: the disks this node has seen; without it an unmounted disk
            cannot be told from a new one.

    Raises:
        FsError: FOREIGN_DISK if it belongs to another cluster or node, or holds something else, if
            `known` expects another disk here, or if there is none and /etc/fstab wants a file
            system here that is not mounted; BAD_DISK_FORMAT if its format is newer than this
            release; ALREADY_RUNNING if a process has it open; NO_SPACE if the metadata store had no
            room, and nothing but that; IO_ERROR.
    """
    directory = Path(path).absolute()
    if known is not None:
        known.read()
    _check_directory(directory, known)
    files = LocalDataFiles(directory)
    make_room(files)
    meta = RocksMetaStore(directory / META_DIRECTORY, is_shared=len(section.disks) > 1)
    try:
        made = _new_format(cluster_id, node_id, section, secrets.token_hex(16))
        if meta.get(FORMAT_KEY) is None:
            _check_unformatted(directory, known)
        disk_format = _check_format(meta, made, str(directory), known)
        sync_directory(directory)
        if known is not None:
            known.add(directory, disk_format.disk_uuid)
    except BaseException:
        meta.close()
        raise
    return _engine(meta, files, disk_format, section, target_ids)


def _check_directory(directory: Path, known: KnownDisks | None) -> None:
    """Make sure that a disk may be opened or formatted there; makes a missing directory."""
    try:
        if not (directory / META_DIRECTORY).exists():
            if known is not None:
                known.check_missing(directory, "the directory is empty or missing")
            _check_mounted(directory)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in directory.iterdir()} - {"lost+found"}
    except OSError as error:
        raise FsError(Status.IO_ERROR, f"{directory}: {error.strerror}") from error
    if names and META_DIRECTORY not in names:
        raise FsError(Status.FOREIGN_DISK, f"{directory} is not empty and not a disk of EmberFS")


def _check_mounted(directory: Path) -> None:
    """Refuse to begin anew beneath a mount that is missing: no list knows the disk of a node that
    starts for the first time, or has lost its own directory.
    """
    place = awaited_mount(directory)
    if place is not None:
        raise FsError(
            Status.FOREIGN_DISK,
            f"{directory}: /etc/fstab wants a file system at {place}, and nothing is mounted there:"
            " mount it, or take that line out",
        )


def _check_unformatted(directory: Path, known: KnownDisks | None) -> None:
    """Refuse to format what was a disk before."""
    if known is not None:
        known.check_missing(directory, "its format record is missing")
    left = sorted({entry.name for entry in directory.iterdir()} & set(DATA_DIRECTORIES))
    if left:
        raise FsError(
            Status.BAD_DISK_FORMAT,
            f"{directory}: data files in {', '.join(left)}, but the metadata store is empty:"
            " restore its metadata, or empty the directory to begin anew",
        )


def memory_engine(
    disk: SimulatedDisk,
    *,
    cluster_id: str,
    node_id: int,
    section: StorageSection,
    target_ids: Iterable[int] = (),
) -> DiskEngine:
    """Open a simulated disk, formatting a new one; the same rules and errors as `open_engine`.

    The disk outlives the engine: after `disk.crash()` or `disk.power_loss(random)` open it again.
    """
    files = SimulatedDataFiles(disk)
    make_room(files)
    meta = SimulatedMetaStore(disk)
    made = _new_format(cluster_id, node_id, section, f"simulated-{cluster_id}-{node_id}")
    disk_format = _check_format(meta, made, "simulated disk")
    return _engine(meta, files, disk_format, section, target_ids)


def _engine(
    meta: MetaStore,
    files: DataFiles,
    disk_format: DiskFormat,
    section: StorageSection,
    target_ids: Iterable[int],
) -> DiskEngine:
    """Open the books; whatever fails, nothing stays open."""
    try:
        engine = DiskEngine(meta, files, disk_format, section)
        engine.hold_targets([TargetId(target_id) for target_id in target_ids])
    except BaseException:
        files.close()
        meta.close()
        raise
    return engine


def _new_format(
    cluster_id: str, node_id: int, section: StorageSection, disk_uuid: str
) -> DiskFormat:
    return DiskFormat(
        format_version=FORMAT_VERSION,
        cluster_id=cluster_id,
        node_id=node_id,
        disk_uuid=disk_uuid,
        checksum_block_bytes=section.checksum_block_bytes,
    )


def _check_format(
    meta: MetaStore, wanted: DiskFormat, where: str, known: KnownDisks | None = None
) -> DiskFormat:
    """Return the disk's format record, writing `wanted` to a new disk."""
    stored = meta.get(FORMAT_KEY)
    if stored is None:
        meta.write_synced([(FORMAT_KEY, wanted.pack())])
        return wanted
    try:
        found = DiskFormat.unpack(stored)
    except msgspec.MsgspecError as error:
        raise FsError(Status.BAD_DISK_FORMAT, f"{where}: {error}") from error
    if not 1 <= found.format_version <= FORMAT_VERSION:
        raise FsError(
            Status.BAD_DISK_FORMAT,
            f"{where}: format version {found.format_version}, this release knows 1 to"
            f" {FORMAT_VERSION}; run the release that wrote the disk, or a newer one",
        )
    if (found.cluster_id, found.node_id) != (wanted.cluster_id, wanted.node_id):
        raise FsError(
            Status.FOREIGN_DISK,
            f"{where}: belongs to cluster {found.cluster_id} node {found.node_id},"
            f" not to cluster {wanted.cluster_id} node {wanted.node_id}",
        )
    if known is not None:
        known.check_found(Path(where), found.disk_uuid)
    return upgrade(meta, found)
