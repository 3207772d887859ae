"""Namespace check: reads every metadata record and reports what contradicts what.

For tests, simulation and an operator's offline check; it changes nothing.  The store must be
quiescent (records are read in pages, each of its own snapshot) and must fit into memory.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..kv.api import KvEngine, next_key, prefix_end
from ..kv.transact import snapshot_read
from ..schema.ids import FIRST_INODE_ID, GC_ROOT_INODE_ID, ROOT_INODE_ID
from ..schema.inode import NAME_BYTES_MAX
from ..schema.layout import MAX_FILE_LENGTH_BYTES
from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import DentryRecordPb, FileLocksRecordPb, GcRecordPb
from . import records
from .inode_ids import BLOCK_COUNT, SHARD_COUNT
from .usage import usage_of
from .usage_sum import NOTHING, Usage

PAGE_COUNT = 1000


@dataclass(slots=True)
class Contents:
    """All metadata records, decoded."""

    inodes: dict[int, pb.InodePb] = field(default_factory=dict)
    dentries: dict[tuple[int, bytes], DentryRecordPb] = field(default_factory=dict)
    subdirectory_counts: dict[int, int] = field(default_factory=dict)
    gc_files: dict[int, list[GcRecordPb]] = field(default_factory=dict)
    gc_directories: dict[int, list[GcRecordPb]] = field(default_factory=dict)
    truncations: set[int] = field(default_factory=set)
    owned: list[tuple[bytes, int]] = field(default_factory=list)
    """(prefix, inode) of records that may exist only with their inode."""
    locking_clients: set[tuple[str, int]] = field(default_factory=set)
    """(client, inode) by the tables of locks, and below by their index."""
    indexed_clients: set[tuple[str, int]] = field(default_factory=set)
    usages: dict[int, Usage] = field(default_factory=dict)
    links: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    inode_count: int = 0
    id_blocks: dict[int, int] = field(default_factory=dict)


async def read_all(engine: KvEngine, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Return all pairs under a prefix, page by page."""
    found: list[tuple[bytes, bytes]] = []
    begin, end = prefix, prefix_end(prefix)
    while True:
        page = await _page(engine, begin, end)
        found.extend(page)
        if len(page) < PAGE_COUNT:
            return found
        begin = next_key(page[-1][0])


async def _page(engine: KvEngine, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    return await snapshot_read(
        engine, lambda tr: tr.get_range(begin, end, limit=PAGE_COUNT, snapshot=True)
    )


def _gc_records(pairs: list[tuple[bytes, bytes]]) -> dict[int, list[GcRecordPb]]:
    found: dict[int, list[GcRecordPb]] = {}
    for _, value in pairs:
        record = GcRecordPb.FromString(value)
        found.setdefault(record.inode_id, []).append(record)
    return found


def _usages(pairs: list[tuple[bytes, bytes]]) -> dict[int, Usage]:
    counts: dict[int, dict[bytes, int]] = {}
    for key, value in pairs:
        directory_id = int.from_bytes(key[4:12], "little")
        counts.setdefault(directory_id, {})[key[12:]] = records.unpack_count(value)
    kinds = (records.KIND_BYTES, records.KIND_FILES, records.KIND_DIRECTORIES)
    return {
        directory_id: Usage(*(found.get(kind, 0) for kind in kinds))
        for directory_id, found in counts.items()
    }


async def load(engine: KvEngine) -> Contents:
    """Read and decode everything."""
    contents = Contents()
    for key, value in await read_all(engine, records.INODE):
        contents.inodes[int.from_bytes(key[4:12], "little")] = pb.InodePb.FromString(value)
    for key, value in await read_all(engine, records.DENTRY):
        place = (int.from_bytes(key[4:12], "big"), records.dentry_name(key))
        contents.dentries[place] = DentryRecordPb.FromString(value)
    for key, value in await read_all(engine, records.SUBDIRECTORY_COUNT):
        directory_id = int.from_bytes(key[4:12], "little")
        contents.subdirectory_counts[directory_id] = records.unpack_count(value)
    contents.gc_files = _gc_records(await read_all(engine, records.GC_FILE))
    contents.gc_directories = _gc_records(await read_all(engine, records.GC_DIRECTORY))
    contents.truncations = {
        records.truncation_inode(key) for key, _ in await read_all(engine, records.TRUNCATION)
    }
    for prefix in (
        records.DIRECTORY_TIMES,
        records.SUBDIRECTORY_COUNT,
        records.FILE_SESSION,
        records.XATTR,
        records.USAGE,
        records.QUOTA_NEAR,
        records.USAGE_FENCE,
    ):
        for key, _ in await read_all(engine, prefix):
            contents.owned.append((prefix, int.from_bytes(key[4:12], "little")))
    for key, value in await read_all(engine, records.FILE_LOCKS):
        inode_id = int.from_bytes(key[4:12], "little")
        locks = FileLocksRecordPb.FromString(value).locks
        contents.locking_clients |= {(lock.client_id, inode_id) for lock in locks}
    contents.indexed_clients = {
        records.client_locks_parts(key) for key, _ in await read_all(engine, records.CLIENT_LOCKS)
    }
    for key, _ in await read_all(engine, records.QUOTA):
        contents.owned.append((records.QUOTA, records.quota_directory(key)))
    contents.usages = _usages(await read_all(engine, records.USAGE))
    for key, _ in await read_all(engine, records.LINK):
        places = contents.links.setdefault(records.link_inode(key), [])
        places.append(records.link_place(key))
    singletons = dict(await read_all(engine, records.SINGLETON))
    contents.inode_count = records.unpack_count(singletons.get(records.INODE_COUNT_KEY))
    for shard in range(SHARD_COUNT):
        value_or_none = singletons.get(records.inode_ids_key(shard))
        contents.id_blocks[shard] = records.unpack_u64(value_or_none)
    return contents


def _check_locks(contents: Contents) -> Iterator[str]:
    for client_id, inode_id in contents.locking_clients ^ contents.indexed_clients:
        yield f"locks of client {client_id} on inode {inode_id:#x}: table and index disagree"


def _check_dentries(contents: Contents) -> Iterator[str]:
    for (parent_id, name), dentry in contents.dentries.items():
        where = f"dentry {name!r} in {parent_id:#x}"
        parent = contents.inodes.get(parent_id)
        if parent is None or parent.type != pb.DIRECTORY:
            yield f"{where}: its parent is no directory"
        if not name or len(name) > NAME_BYTES_MAX or b"/" in name or name in (b".", b".."):
            yield f"{where}: bad name"
        inode = contents.inodes.get(dentry.inode_id)
        if inode is None:
            yield f"{where}: inode {dentry.inode_id:#x} does not exist"
            continue
        if inode.type != dentry.type:
            yield f"{where}: type {dentry.type}, inode {dentry.inode_id:#x} has {inode.type}"
        if inode.type == pb.DIRECTORY and (
            inode.directory.parent_inode_id != parent_id or inode.directory.name != name
        ):
            yield f"{where}: directory {inode.inode_id:#x} says it is elsewhere"


def _check_links(contents: Contents) -> Iterator[str]:
    names = Counter(dentry.inode_id for dentry in contents.dentries.values())
    for inode_id, inode in contents.inodes.items():
        what = f"inode {inode_id:#x}"
        if inode.inode_id != inode_id:
            yield f"{what}: its record says {inode.inode_id:#x}"
        if inode_id in (ROOT_INODE_ID, GC_ROOT_INODE_ID):
            continue
        expected = inode.nlink
        if inode.type == pb.DIRECTORY:
            expected = 1 if inode.nlink else 0
        if names[inode_id] != expected:
            yield f"{what}: nlink {inode.nlink}, {names[inode_id]} names"


def _check_subdirectory_counts(contents: Contents) -> Iterator[str]:
    counted = Counter(
        parent_id
        for (parent_id, _), dentry in contents.dentries.items()
        if dentry.type == pb.DIRECTORY
    )
    for inode_id, inode in contents.inodes.items():
        # A removed tree's counters do not matter: they go with their directory.
        if inode.type != pb.DIRECTORY or inode.nlink == 0:
            continue
        stored = contents.subdirectory_counts.get(inode_id, 0)
        if stored != counted[inode_id]:
            yield f"directory {inode_id:#x}: counter {stored}, {counted[inode_id]} subdirectories"


def _check_gc(contents: Contents) -> Iterator[str]:
    for inode_id, inode in contents.inodes.items():
        if inode_id == GC_ROOT_INODE_ID:
            continue
        found = contents.gc_files.get(inode_id, []) + contents.gc_directories.get(inode_id, [])
        if len(found) != (0 if inode.nlink else 1):
            yield f"inode {inode_id:#x}: nlink {inode.nlink}, {len(found)} GC records"
    for inode_id, found in contents.gc_files.items():
        for record in found:
            if (inode_id in contents.inodes) == record.HasField("file"):
                yield f"GC record of inode {inode_id:#x}: inode and file part, or neither"
    for inode_id in contents.gc_directories:
        if inode_id not in contents.inodes:
            yield f"GC record of directory {inode_id:#x}, which does not exist"


def _check_files(contents: Contents) -> Iterator[str]:
    for inode_id, inode in contents.inodes.items():
        has_mark = inode_id in contents.truncations
        if inode.file.truncate_pending != has_mark:
            yield f"file {inode_id:#x}: pending truncation, but mark {has_mark}"
        if inode.type != pb.FILE:
            continue
        part = inode.file
        if not 1 <= part.dyn_stripe <= part.layout.stripe_size:
            yield f"file {inode_id:#x}: dyn_stripe {part.dyn_stripe}"
        if part.length > MAX_FILE_LENGTH_BYTES:
            yield f"file {inode_id:#x}: length {part.length}"
    for inode_id in contents.truncations - contents.inodes.keys():
        yield f"truncation of inode {inode_id:#x}, which does not exist"


def _check_owned(contents: Contents) -> Iterator[str]:
    for prefix, inode_id in contents.owned:
        if inode_id not in contents.inodes:
            yield f"{prefix.decode()} of inode {inode_id:#x}, which does not exist"
    counted = len(contents.inodes) - (GC_ROOT_INODE_ID in contents.inodes)
    if counted != contents.inode_count:
        yield f"inode counter {contents.inode_count}, {counted} inodes"
    for inode_id in contents.inodes:
        if inode_id < FIRST_INODE_ID:
            continue
        block, shard = divmod((inode_id - FIRST_INODE_ID) // BLOCK_COUNT, SHARD_COUNT)
        if block >= contents.id_blocks[shard]:
            yield f"inode {inode_id:#x} was never allotted"


def _check_reachable(contents: Contents) -> Iterator[str]:
    """Every directory leads upward to the root, or to one that was removed."""
    settled = {int(ROOT_INODE_ID), int(GC_ROOT_INODE_ID)}
    for inode_id, inode in contents.inodes.items():
        path: list[int] = []
        here: pb.InodePb | None = inode if inode.type == pb.DIRECTORY else None
        while here is not None and here.inode_id not in settled and here.inode_id not in path:
            path.append(here.inode_id)
            here = contents.inodes.get(here.directory.parent_inode_id) if here.nlink else None
        if here is not None and here.inode_id in path:
            yield f"directory {inode_id:#x}: its ancestors form a loop"
            continue
        settled.update(path)


def _check_homes(contents: Contents) -> Iterator[str]:
    """Every name but one has a link record; that one is in the home."""
    names: dict[int, Counter[tuple[int, bytes]]] = {}
    for place, dentry in contents.dentries.items():
        names.setdefault(dentry.inode_id, Counter())[place] += 1
    for inode_id, inode in contents.inodes.items():
        if inode.type == pb.DIRECTORY:
            continue
        links = Counter(contents.links.get(inode_id, []))
        rest = names.get(inode_id, Counter[tuple[int, bytes]]()) - links
        homes = [parent_id for parent_id, _ in rest]
        missing = links - names.get(inode_id, Counter[tuple[int, bytes]]())
        if missing or homes != ([inode.home_inode_id] if inode.nlink else []):
            yield f"inode {inode_id:#x}: home {inode.home_inode_id:#x}, but {homes}; links {links}"
    for inode_id in contents.links.keys() - contents.inodes.keys():
        yield f"link records of inode {inode_id:#x}, which does not exist"


def counted_usage(contents: Contents) -> dict[int, Usage]:
    """Return what the usage of every directory that is not in a removed tree should be, by a walk."""
    own: dict[int, Usage] = {}
    for inode in contents.inodes.values():
        if inode.type == pb.DIRECTORY:
            is_counted = inode.nlink and inode.inode_id != ROOT_INODE_ID
            home_id = inode.directory.parent_inode_id if is_counted else 0
        else:
            home_id = inode.home_inode_id
        if home_id:
            own[home_id] = own.get(home_id, NOTHING) + usage_of(inode)
    totals: dict[int, Usage] = {}
    for home_id, usage in own.items():
        for above_id in _lineage(contents, home_id):
            totals[above_id] = totals.get(above_id, NOTHING) + usage
    return totals


def _lineage(contents: Contents, directory_id: int) -> list[int]:
    found: list[int] = []
    here = contents.inodes.get(directory_id)
    while here is not None and here.nlink and here.inode_id not in found:
        found.append(here.inode_id)
        if here.inode_id == ROOT_INODE_ID:
            return found
        here = contents.inodes.get(here.directory.parent_inode_id)
    return []


def _check_usage(contents: Contents) -> Iterator[str]:
    counted = counted_usage(contents)
    for inode_id, inode in contents.inodes.items():
        if inode.type != pb.DIRECTORY or not _lineage(contents, inode_id):
            continue
        stored, expected = contents.usages.get(inode_id, NOTHING), counted.get(inode_id, NOTHING)
        if stored != expected:
            yield f"directory {inode_id:#x}: counted as {stored}, holds {expected}"


async def check(engine: KvEngine) -> list[str]:
    """Return one line per contradiction; empty when the namespace is sound."""
    contents = await load(engine)
    if not {ROOT_INODE_ID, GC_ROOT_INODE_ID} <= contents.inodes.keys():
        return ["the root or the GC root is missing"]
    return [
        *_check_dentries(contents),
        *_check_links(contents),
        *_check_subdirectory_counts(contents),
        *_check_gc(contents),
        *_check_files(contents),
        *_check_owned(contents),
        *_check_reachable(contents),
        *_check_locks(contents),
        *_check_homes(contents),
        *_check_usage(contents),
    ]
