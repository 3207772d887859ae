"""What goes wrong with disks: errors, no room, slowness, rot in one copy or in all,
writes that go nowhere or elsewhere, a wiped disk.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import trio
from msgspec import structs

from fs.chunkengine.format import FileId, chunk_key, place_of
from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.client.native import EmberFs
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId
from fs.schema.status import FsError, Status
from fs.storage.context import StorageContext
from fs.storage.disk import Disk
from fs.storage.scrub import Cursor, Scrub
from fs.storage.target import LocalTarget

from .cluster import CHUNK_BYTES, SimProcess
from .world import World, machine_fault, named_fault

DEAD_S = (0.02, 0.3, 2.0, 8.0)
REPAIRED_S_MAX = 100.0
FOUND_HUNG_S = 2.0
"""Who saw calls hang may fail the disk as they return."""
HUNG_S_MAX = 25.0
RETURNED_S_MAX = 75.0
"""A disk that failed is opened anew after a minute."""
HAPPENED_S_MAX = 8.0
SECTOR_BYTES = 512


def tear(source: random.Random, damaged_share: float, data: bytes) -> list[tuple[int, bytes]]:
    """Return what of a write under way at a crash reaches the disk:
    with `damaged_share`, sectors of it, or garbage.
    """
    if source.random() >= damaged_share:
        return [(0, data)]
    found = []
    for at in range(0, len(data), SECTOR_BYTES):
        sector = data[at : at + SECTOR_BYTES]
        fate = source.random()
        if fate < 0.45:
            found.append((at, sector))
        elif fate < 0.55:
            found.append((at, source.randbytes(len(sector))))
    return found


@machine_fault(2)
async def slow_disk(world: World) -> None:
    """One machine's disk takes its time; calls that run at once overtake each other."""
    name = world.random.choice(world.cluster.storages)
    threads = world.cluster.processes[name].threads
    assert threads is not None
    world.cluster.trace.add("slow disk", name)
    threads.pause_s_max = world.random.choice([0.05, 0.3, 1.0])
    await trio.sleep(world.random.uniform(0.5, 4.0))
    threads.pause_s_max = world.cluster.disk_pause_s_max


@named_fault
async def hang_disk(world: World) -> None:
    """A disk answers nothing for a while, sometimes for too long;
    its process writes in threads, as one with several disks does.
    """
    process = world.cluster.processes[world.random.choice(world.cluster.storages)]
    service, threads = process.services.get("Storage"), process.threads
    if service is None or threads is None or not process.is_running:
        return
    (disk,) = service._context.targets.disks
    disk.writes_on_loop = False
    threads.is_hung = True
    world.cluster.trace.add("hung disk", process.name)
    await trio.sleep(world.random.uniform(0.5, HUNG_S_MAX))
    threads.is_hung = False
    await trio.sleep(FOUND_HUNG_S)
    world.count("disk_found_hung", int(disk.is_failed))
    if not disk.is_failed:
        disk.writes_on_loop = True
    await _wait_returned(world, process, disk)


async def _wait_returned(world: World, process: SimProcess, disk: Disk) -> None:
    """Wait until a disk that failed is in use again, by itself or by a new start of its process."""
    threads = process.threads
    if disk.is_failed and world.random.random() < 0.5:
        with trio.move_on_after(RETURNED_S_MAX):
            while disk.is_failed and process.threads is threads:  # noqa: ASYNC110 - seen only by looking
                await trio.sleep(0.5)
    if disk.is_failed and process.threads is threads:
        await world.cluster.kill(process.name)
        await trio.sleep(world.random.choice(DEAD_S))
        world.cluster.start(process.name)


@named_fault
async def lack(world: World) -> None:
    """A storage process has no memory, thread or descriptor for some
    of what it does to its disk.
    """
    process = world.cluster.processes[world.random.choice(world.cluster.storages)]
    errors, threads = world.cluster.errors[process.node_id], process.threads
    service = process.services.get("Storage")
    if service is None or threads is None or not process.is_running:
        return
    (disk,) = service._context.targets.disks
    errors.lack_share = threads.lack_share = world.random.choice([0.03, 0.3, 0.9])
    world.cluster.trace.add("lack", f"{process.name} {errors.lack_share}")
    before = errors.fired_count
    await trio.sleep(world.random.uniform(0.5, 12.0))
    errors.lack_share = threads.lack_share = 0.0
    world.count("lacked", int(errors.fired_count > before))
    # Who was in the middle of a change learns that nobody believes it.
    await trio.sleep(FOUND_HUNG_S)
    world.count("disk_in_doubt", int(disk.is_failed))
    await _wait_returned(world, process, disk)


@machine_fault(3)
async def disk_errors(world: World) -> None:
    """Up to 10 % of a disk's reads or writes fail;
    then the disk is exchanged for a good one with the same content.

    Bytes that cannot be read, or flushed, are at risk as much as rotten ones.
    """
    name = world.random.choice(world.cluster.storages)
    async with world.network_lock:
        if world.is_covered(name):
            await _disk_errors(world, name, is_covered=True)
            return
    await _disk_errors(world, name, is_covered=False)


async def _disk_errors(world: World, name: str, *, is_covered: bool) -> None:
    errors = world.cluster.errors[world.cluster.processes[name].node_id]
    before = errors.fired_count
    are_reads_bad = is_covered and world.random.random() < 0.5
    errors.spares_flush = not is_covered
    share = world.random.choice([0.02, 0.1])
    errors.read_share, errors.write_share = (share, 0.0) if are_reads_bad else (0.0, share)
    world.cluster.trace.add("disk errors", f"{name} {errors.read_share} {errors.write_share}")
    await trio.sleep(world.random.uniform(0.5, 4.0))
    await _wait_for(lambda: errors.fired_count > before)
    if errors.fired_count > before:
        world.count("disk_read_error", int(errors.read_share > 0))
        world.count("disk_write_error", int(errors.write_share > 0))
    errors.read_share = errors.write_share = 0.0
    # A target with a failed disk is out until its process starts anew.
    await world.cluster.kill(name)
    await trio.sleep(world.random.choice(DEAD_S))
    world.cluster.start(name)
    if is_covered:
        await world.wait_heard(name)


@machine_fault(2)
async def full_disk(world: World) -> None:
    """A disk has next to no room for a while."""
    name = world.random.choice(world.cluster.storages)
    disk = world.cluster.disks[world.cluster.processes[name].node_id]
    capacity_bytes = disk.capacity_bytes
    disk.capacity_bytes = disk.reserved_bytes() + world.random.choice([0, 65536, 1 << 20])
    world.memory.is_space_short = True
    world.cluster.trace.add("full disk", name)
    await trio.sleep(world.random.uniform(0.5, 5.0))
    disk.capacity_bytes = capacity_bytes


@machine_fault(2)
async def wipe(world: World) -> None:
    """A machine comes back with an empty disk."""
    async with world.network_lock:
        name = world.random.choice(world.cluster.storages)
        if not world.is_covered(name):
            return
        world.count("wiped")
        world.cluster.trace.add("wipe", name)
        node_id = world.cluster.processes[name].node_id
        await world.cluster.kill(name)
        world.cluster.disks[node_id] = SimulatedDisk(capacity_bytes=1 << 34)
        world.cluster.watch.forget_versions(node_id)
        await trio.sleep(world.random.choice(DEAD_S))
        world.cluster.start(name)
        await world.cluster.wait_healthy()


@machine_fault(2)
async def bit_rot(world: World) -> None:
    """Bytes of one machine's chunks change; a scrub and the reads find and repair them."""
    async with world.network_lock:
        name = world.random.choice(world.cluster.storages)
        if not world.is_covered(name):
            return
        process = world.cluster.processes[name]
        disk = world.cluster.disks[process.node_id]
        places = [
            (file_id, index)
            for file_id in sorted(disk.files)
            for index in sorted(disk.files[file_id].live.extents)
        ]
        for _ in range(world.random.randint(1, 12) if places else 0):
            file_id, index = world.random.choice(places)
            disk.flip_bit(file_id, index * 65536 + world.random.randrange(65536))
        world.count("rotten")
        world.cluster.trace.add("rot", name)
        await trio.sleep(world.random.uniform(0.0, 2.0))
        await _wait_repaired(world, process)


@machine_fault(3)
async def bad_writes(world: World) -> None:
    """Up to 10 % of one machine's writes are lost or go elsewhere, silently;
    a scrub and the reads repair them.
    """
    async with world.network_lock:
        name = world.random.choice(world.cluster.storages)
        if not world.is_covered(name):
            return
        process = world.cluster.processes[name]
        disk = world.cluster.disks[process.node_id]
        share = world.random.choice([0.04, 0.1])
        astray_count = 0
        kinds = world.random.choice([("lost",), ("misdirected",), ("lost", "misdirected")])

        def where(file_id: FileId, offset: int, length: int) -> int | None:
            """Return where a write really goes."""
            nonlocal astray_count
            if world.random.random() >= share:
                return offset
            kind = world.random.choice(kinds)
            world.count(f"write_{kind}")
            astray_count += 1
            size = disk.files[file_id].live.size
            elsewhere = world.random.randrange(0, max(size - length, 0) + 1, SECTOR_BYTES)
            return None if kind == "lost" else elsewhere

        disk.place_write = where
        world.cluster.trace.add("bad writes", f"{name} {share:.3f} {kinds}")
        await trio.sleep(world.random.uniform(0.5, 4.0))
        await _wait_for(lambda: astray_count > 0)
        disk.place_write = None
        await _wait_repaired(world, process)


@machine_fault(2)
async def rot_everywhere(world: World) -> None:
    """All copies of a file's chunks rot: reads are an error until it is written anew,
    never other bytes.
    """
    async with world.network_lock:
        cluster, path = world.cluster, f"/rotten-{world.counts['rot_everywhere']}"
        contents = [world.random.randbytes(CHUNK_BYTES + 5000) for _ in range(2)]

        async def look(fs: EmberFs) -> None:
            await fs.write_file(path, contents[0])
            inode_id = (await fs.stat(path)).inode_id
            _flip_all_copies(world, inode_id)
            cluster.trace.add("rot everywhere", inode_id)
            try:
                found = await fs.read_file(path)
            except FsError as error:
                if error.status is not Status.CHUNK_DAMAGED:
                    raise
                world.count("damage_told")
            else:
                raise AssertionError(f"{path}: all copies are damaged, and {len(found)} bytes read")
            await fs.write_file(path, contents[1])
            assert await fs.read_file(path) == contents[1], f"{path} has other content"
            await fs.unlink(path)

        async def look_with_room(fs: EmberFs) -> None:
            try:
                await look(fs)
            except FsError as error:
                world.memory.take_error(error)

        await cluster.connect_client(f"rotter-{world.counts['rot_everywhere']}", look_with_room)


def _flip_all_copies(world: World, inode_id: int) -> None:
    """Change a byte of each copy of each chunk of a file, on all disks, whether it counts or not.

    A version may be pending only, on a target that went out of service in the middle:
    repair would find its bytes, too.
    """
    for name in world.cluster.storages:
        process = world.cluster.processes[name]
        targets = process.services["Storage"]._context.targets.targets
        for target_id, target in sorted(targets.items()):
            engine = target.disk.engine
            for state in engine.list_file(target_id, inode_id):
                key = chunk_key(target_id, state.chunk_id)
                with engine._books as ledger:
                    pending = ledger.pendings.get(key)
                    records = [ledger.record(key)]
                if pending is not None and not pending.is_remove:
                    records.append(pending.record)
                for record in records:
                    if record is not None and record.length:
                        file_id, start = place_of(record.position)
                        offset = start + world.random.randrange(record.length)
                        world.cluster.disks[process.node_id].flip_bit(file_id, offset)


async def _wait_for(has_happened: Callable[[], bool]) -> None:
    """Give what happens by chance some more time."""
    with trio.move_on_after(HAPPENED_S_MAX):
        while not has_happened():  # noqa: ASYNC110 - seen only by looking
            await trio.sleep(0.2)


async def _wait_repaired(world: World, process: SimProcess) -> None:
    """Scrub one machine until each of its copies is whole; it must be within a bounded time.

    A version that was not committed yet when the harm ended is none of the scrub's business
    until it is.  In the end the disk is flushed, as it does by itself every few seconds: until
    the newer versions are durable, a power loss of everything may bring back a bad older one,
    which counts as harm that goes on.
    """
    harmed = _pending(_members(world, process))
    with trio.move_on_after(REPAIRED_S_MAX):
        while True:
            service, targets = process.services.get("Storage"), _members(world, process)
            is_here = service is not None and process.is_running
            if is_here and not harmed & _pending(targets):
                scrub = Scrub(_with_scrub(service._context))
                are_whole = [await scrub.scrub_from(target, Cursor()) for target in targets]
                if all(are_whole) and not any(target.damaged for target in targets):
                    for disk in dict.fromkeys(target.disk for target in targets):
                        await disk.sync()
                    await world.cluster.wait_healthy()
                    return
            await trio.sleep(1.0)
    raise AssertionError(f"{process.name}: damaged copies are not repaired")


def _with_scrub(context: StorageContext) -> StorageContext:
    """Return the context with the usual pace of the scrub:
    whoever runs the cluster may have stopped it.
    """
    pace = StorageSection().scrub_bytes_per_s_max
    return replace(context, section=structs.replace(context.section, scrub_bytes_per_s_max=pace))


def _members(world: World, process: SimProcess) -> list[LocalTarget]:
    """Return the targets of a machine that are in a chain; what the others hold is nobody's."""
    service = process.services.get("Storage")
    members = world.cluster.members_of(process.node_id)
    found = service._context.targets.targets if service is not None else {}
    return [target for target_id, target in found.items() if target_id in members]


def _pending(targets: list[LocalTarget]) -> set[tuple[int, ChunkId, int]]:
    """Return the versions under way: (target, chunk, version)."""
    return {
        (target.target_id, state.chunk_id, state.pending_ver)
        for target in targets
        for state in target.disk.engine.list_chunks(target.target_id)
        if state.pending_ver
    }
