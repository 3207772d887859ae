"""Every call on a disk that refuses: what fails, what the disk is worth afterwards,
and that nothing synced is lost.
"""

import os
import random
import subprocess
import time

import pytest

from fs.chunkengine.api import NOTE_VALUE_BYTES_MAX, Note
from fs.chunkengine.data_files import SPARE_NAME, LocalDataFiles
from fs.chunkengine.factory import memory_engine, open_engine
from fs.chunkengine.format import FileId
from fs.chunkengine.simulated_disk import SimulatedDisk
from fs.chunkengine.spare import NEARLY_FULL_FACTOR, should_set_aside, spare_size
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .workload import check_books, read

pytestmark = pytest.mark.thorough

MIB = 1 << 20
T = TargetId(1)
SECTION = StorageSection(
    checksum_block_bytes=4096, reject_create_free_bytes_min=0, space_at_hand_bytes_max=0
)
OLD = b"old" * 3000


def chunk(index: int) -> tuple[TargetId, ChunkId]:
    return T, ChunkId(InodeId(7), index)


def open_on(disk: SimulatedDisk, section: StorageSection = SECTION):
    return memory_engine(disk, cluster_id="c", node_id=1, section=section)


def put(engine, index: int, version: int, data: bytes, offset: int = 0) -> None:
    prepare(engine, index, version, data, offset)
    engine.commit(*chunk(index), version=version, chain_version=1)


def prepare(engine, index: int, version: int, data: bytes, offset: int = 0) -> None:
    engine.prepare_write(
        *chunk(index), version=version, chunk_size_bytes=MIB, offset=offset, data=data
    )


def truncate(engine, length: int) -> None:
    engine.prepare_truncate(*chunk(0), version=2, chunk_size_bytes=MIB, length=length)
    engine.commit(*chunk(0), version=2, chain_version=1)


def remove(engine, index: int, version: int = 2) -> None:
    engine.prepare_remove(*chunk(index), version=version)
    engine.commit(*chunk(index), version=version, chain_version=1)


CALLS = {
    # name: what is called, and what chunk 0 may hold afterwards if it had an effect
    "create": (lambda e: put(e, 9, 1, b"new"), OLD),
    "overwrite": (lambda e: put(e, 0, 2, b"new"), b"new" + OLD[3:]),
    "grow": (lambda e: put(e, 0, 2, b"new", 200_000), OLD.ljust(200_000, b"\0") + b"new"),
    "append": (lambda e: put(e, 0, 2, b"new", len(OLD)), OLD + b"new"),
    "cut": (lambda e: truncate(e, 100), OLD[:100]),
    "remove": (lambda e: remove(e, 0), None),
    "repair": (lambda e: e.repair(*chunk(0), version=1, data=OLD), OLD),
    "mark": (lambda e: e.mark_damaged(*chunk(1)), OLD),
    "end mark": (lambda e: (e.mark_damaged(*chunk(1)), e.end_damage(*chunk(1), version=1)), OLD),
    "drop": (lambda e: e.drop_pending(*chunk(2)), OLD),
    "sync": (lambda e: (put(e, 0, 2, b"new"), e.sync()), b"new" + OLD[3:]),
    "compact": (lambda e: e.compact(1 << 30), OLD),
    "add target": (lambda e: e.add_target(TargetId(5)), OLD),
    "remove target": (lambda e: e.remove_target(T), None),
    "close": (lambda e: (put(e, 0, 2, b"new"), e.close()), b"new" + OLD[3:]),
}


def prepared_disk() -> SimulatedDisk:
    """Chunks 0, 1, a pending one, and a sparse group (of four blocks) to be compacted."""
    disk = SimulatedDisk()
    engine = open_on(disk)
    for index in (0, 1, 20, 21, 22, 23, 24):
        put(engine, index, 1, OLD)
    for index in (21, 22):
        remove(engine, index)
    prepare(engine, 2, 1, b"pending")
    engine.close()
    return disk


def fail_the_nth(disk: SimulatedDisk, number: int, step: str, status: Status) -> list[str]:
    """Refuse one operation of that kind; the list returned is filled when it happens."""
    left, fired = [number], []

    def hook(name: str) -> None:
        if name == step:
            left[0] -= 1
            if not left[0]:
                fired.append(name)
                raise FsError(status, f"injected into {name}")

    disk.on_step = hook
    return fired


def one_case(call_name: str, step: str, status: Status, number: int) -> bool:
    """Run one call with its n-th operation of a kind refused; False if there were fewer."""
    call, expected = CALLS[call_name]
    disk = prepared_disk()
    engine = open_on(disk)
    put(engine, 30, 1, b"makes the epoch dirty")
    engine.sync()
    fired = fail_the_nth(disk, number, step, status)
    raised = None
    try:
        call(engine)
    except FsError as error:
        raised = error.status
    disk.on_step = None
    if not fired:
        return False
    is_in_doubt = bool(engine._books.failure) and call_name != "close"
    where = (call_name, step, status.name, number)
    if step in ("flush", "meta_write", "meta_sync"):
        assert raised is Status.IO_ERROR, where
        assert is_in_doubt or call_name == "close", where
    elif step in ("punch", "spare"):
        assert raised is None, where
    else:
        assert raised in (None, status, Status.IO_ERROR), where
        assert not is_in_doubt, where
    if is_in_doubt:
        for again in (engine.sync, lambda: engine.get(*chunk(0)), lambda: put(engine, 8, 1, b"")):
            with pytest.raises(FsError, match="IO_ERROR"):
                again()
    elif raised is not None and call_name not in ("close", "sync"):
        assert read(engine, chunk(0)) == OLD, where
        put(engine, 40, 1, b"goes on")
        engine.sync()
    lose = random.Random(number)
    _ = disk.crash() if number % 2 else disk.power_loss(lose)
    after = open_on(disk)
    check_books(after._meta)
    assert read(after, chunk(0)) in (OLD, expected), where
    return True


@pytest.mark.parametrize("status", [Status.NO_SPACE, Status.IO_ERROR])
@pytest.mark.parametrize(
    "step", ["reserve", "write", "read", "flush", "meta_write", "meta_sync", "punch"]
)
def test_a_refused_operation_is_definite_or_ends_the_use_of_the_disk(
    monkeypatch, step, status
) -> None:
    monkeypatch.setattr("fs.chunkengine.allocator.BLOCKS_PER_GROUP", 4)
    monkeypatch.setattr("fs.chunkengine.space.EACH_KEPT_BYTES", 0)
    count = 0
    for call_name in CALLS:
        number = 1
        while one_case(call_name, step, status, number):
            number += 1
            count += 1
    assert count


def test_a_failed_flush_is_followed_by_no_acknowledgement() -> None:
    disk = prepared_disk()
    engine = open_on(disk)
    put(engine, 0, 2, b"new")
    fail_the_nth(disk, 1, "flush", Status.IO_ERROR)
    for _ in range(3):
        with pytest.raises(FsError, match="IO_ERROR"):
            engine.sync()


def test_the_spare_file_appears_before_the_disk_is_full_and_not_on_a_roomy_one() -> None:
    size = spare_size(64 * MIB, 1 << 40)
    assert size == 64 * MIB
    assert spare_size(64 * MIB, 256 * MIB) == 32 * MIB
    assert spare_size(0, 1 << 40) == 0
    assert not should_set_aside(size, 0, NEARLY_FULL_FACTOR * size, 64 * MIB)
    assert should_set_aside(size, 0, NEARLY_FULL_FACTOR * size - 1, 64 * MIB)
    assert should_set_aside(size, 0, 128 * MIB, 64 * MIB)
    assert not should_set_aside(size, 0, 128 * MIB - 1, 64 * MIB)
    assert not should_set_aside(size, size, 1 << 30, 64 * MIB)
    assert not should_set_aside(0, 0, 1 << 30, 0)


def test_a_disk_that_cannot_tell_its_space_before_a_flush_ends_and_holds_nobody_up(
    monkeypatch,
) -> None:
    section = StorageSection(checksum_block_bytes=4096, reject_create_free_bytes_min=16 * MIB)
    engine = open_on(SimulatedDisk(capacity_bytes=1024 * MIB), section)
    put(engine, 0, 1, b"bytes")

    def fail() -> int:
        raise FsError(Status.IO_ERROR, "statfs")

    monkeypatch.setattr(engine._files, "free_bytes", fail)
    with pytest.raises(FsError, match="statfs"):
        engine.sync()
    assert engine._books.failure, "else who comes next waits for that flush for ever"
    with pytest.raises(FsError, match="statfs"):
        engine.sync()
    engine.close()


def test_spare_space_lets_removals_go_on_and_comes_back() -> None:
    section = StorageSection(checksum_block_bytes=4096, reject_create_free_bytes_min=16 * MIB)
    disk = SimulatedDisk(capacity_bytes=1024 * MIB)
    engine = open_on(disk, section)
    assert disk.spare_bytes == 16 * MIB
    for index in range(40):
        put(engine, index, 1, bytes(MIB))
    engine.sync()
    disk.capacity_bytes = disk.reserved_bytes()
    with pytest.raises(FsError, match="NO_SPACE"):
        put(engine, 0, 2, b"new")
    fail_the_nth(disk, 1, "spare", Status.IO_ERROR)
    with pytest.raises(FsError, match="NO_SPACE"):
        remove(engine, 1)
    remove(engine, 1)
    assert disk.spare_bytes == 0
    for index in range(2, 40):
        remove(engine, index)
    engine.sync()
    disk.capacity_bytes = 1024 * MIB
    put(engine, 0, 2, b"new")
    engine.sync()
    assert disk.spare_bytes == 16 * MIB
    engine.close()
    disk.capacity_bytes = disk.reserved_bytes() + MIB
    again = open_on(disk, section)
    again.remove_target(T)
    assert again.target_ids() == []


def test_reading_makes_no_files(tmp_path) -> None:
    files = LocalDataFiles(tmp_path)
    assert files.read_at(FileId(3), 0, [memoryview(bytearray(8))]) == 0
    files.punch(FileId(3), 0, 65536)
    files.flush([FileId(3)])
    assert list(tmp_path.iterdir()) == []
    files.close()


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request, tmp_path):
    """A small file system of its own; ext4 claims space ahead of RocksDB's log,
    and frees it late.
    """
    where, image = tmp_path / "small", tmp_path / "image"
    where.mkdir()
    commands = [["mount", "-t", "tmpfs", "-o", "size=192m", "tmpfs", where]]
    if request.param == "ext4":
        commands = [
            ["truncate", "-s", "256M", image],
            ["mkfs.ext4", "-q", image],
            ["mount", "-o", "loop", image, where],
        ]
    if os.geteuid() or any(subprocess.run(c, check=False).returncode for c in commands):
        pytest.skip("needs root, to mount a small file system")
    yield where
    subprocess.run(["umount", "--lazy", where], check=True)
    image.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_really_full_disk_removes_reopens_and_recovers(small_disk) -> None:
    section = StorageSection(reject_create_free_bytes_min=32 * MIB)
    more = {"cluster_id": "c", "node_id": 1, "section": section}
    engine = open_engine(small_disk / "disk", **more)
    count = 0
    try:
        while True:
            put(engine, count, 1, bytes([count % 251]) * MIB)
            count += 1
    except FsError as error:
        assert error.status is Status.NO_SPACE  # noqa: PT017 - the count is wanted, too
    engine.sync()
    spare = small_disk / "disk" / SPARE_NAME
    assert spare.stat().st_blocks * 512 >= 24 * MIB
    for life in range(2):
        fill_up(small_disk / "filler")
        with pytest.raises(FsError, match="NO_SPACE"):
            put(engine, life, 2, b"new")
        assert engine.read_whole(*chunk(count - 1)) == bytes([(count - 1) % 251]) * MIB
        engine.sync()
        engine.close()
        assert os.statvfs(small_disk).f_bavail <= 8
        engine = open_engine(small_disk / "disk", **more)
        assert not spare.exists()
        for index in range(life * 50, life * 50 + 50):
            remove(engine, index)
        engine.sync()
        assert engine.read_whole(*chunk(count - 1)) == bytes([(count - 1) % 251]) * MIB
        engine.compact(1 << 30)
        (small_disk / "filler").unlink()
        put(engine, 1000 + life, 1, b"new")
        engine.sync()
        assert spare.exists()
    check_books(engine._meta)
    engine.close()


@pytest.mark.slow
def test_a_disk_filled_by_others_in_an_instant_is_opened_anew_with_room(small_disk) -> None:
    section = StorageSection(reject_create_free_bytes_min=32 * MIB)
    more = {"cluster_id": "c", "node_id": 1, "section": section}
    engine = open_engine(small_disk / "disk", **more)
    for life in range(3):
        put(engine, life, 1, bytes([life]) * MIB)
        engine.sync()
        put(engine, 100 + life, 1, bytes([life]) * MIB)
        assert engine.room_after_refusal() is None
        count = fill_and_write(small_disk / "filler", engine)
        for _ in range(2):
            with pytest.raises(FsError, match="IO_ERROR"):
                engine.sync()
        room = engine.room_after_refusal()
        assert room is not None
        assert room <= 33 * MIB  # of the spare file
        (small_disk / "filler").unlink()
        wait_for_room(engine, 64 * MIB)
        engine.close()
        with pytest.raises(FsError, match="NOT_SERVING"):
            engine.get(*chunk(0))
        engine = open_engine(small_disk / "disk", **more)
        for earlier in range(life + 1):
            for index in (earlier, 100 + earlier):
                assert engine.read_whole(*chunk(index)) == bytes([earlier]) * MIB
        assert {note.key for note in engine.notes(T)} >= {b"%d" % n for n in range(count)}
        engine.sync()
        check_books(engine._meta)
    engine.close()


def fill_and_write(filler, engine) -> int:
    """Take all space, and write metadata until some is refused;
    return how many notes were taken.
    """
    fill_up(filler)
    for count in range(0, 100_000, 16):
        notes = [
            Note(b"%d" % n, os.urandom(NOTE_VALUE_BYTES_MAX)) for n in range(count, count + 16)
        ]
        try:
            engine.put_notes(T, notes)
        except FsError as error:
            assert error.status is Status.IO_ERROR  # noqa: PT017 - the count is wanted, too
            return count
    raise AssertionError("never refused")


def wait_for_room(engine, wanted: int) -> None:
    """Some file systems free late."""
    for _ in range(100):
        if engine.room_after_refusal() > wanted:
            return
        time.sleep(0.1)
    raise AssertionError("no room")


def fill_up(path) -> None:
    """Take every free byte of a file system."""
    with path.open("ab", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
