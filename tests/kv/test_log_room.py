"""A store whose disk is full: what managers keep is changed all the same, nothing else."""

# ruff: noqa: ARG001 - a test that sleeps names the clock it wants
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from fs.kv import log_room, rocksdb_store
from fs.kv import rocksdb as engine_module
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.rocksdb_store import NO_ROOM, logs
from fs.kv.transact import snapshot_read
from fs.mgmtd.store import KEY_BEGINNINGS
from fs.schema.config import KvSection
from fs.schema.status import FsError, Status
from tests.kv.harness import CLUSTER_ID, inline_runtime, mounted_tmpfs


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    if not mounted_tmpfs(place, 50):
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def open_at(disk: Path) -> RocksDbEngine:
    runtime = inline_runtime()
    path = str(disk / "kv")
    return await RocksDbEngine.open(
        path, KvSection(), runtime, cluster_id=CLUSTER_ID, spared=KEY_BEGINNINGS
    )


async def put(engine: RocksDbEngine, value: bytes, *keys: bytes) -> None:
    tr = engine.transaction()
    for key in keys:
        tr.set(key, value)
    await tr.commit()


async def refuse(engine: RocksDbEngine, value: bytes, *keys: bytes) -> None:
    with pytest.raises(FsError) as caught:
        await put(engine, value, *keys)
    assert caught.value.status is Status.NO_SPACE
    assert caught.value.definite


async def use_what_is_for_all(engine: RocksDbEngine) -> None:
    """Commit until a commit is refused: some of what is set aside is for everybody."""
    with suppress(FsError):
        for _ in range(2 * log_room.STEP_BYTES // 50_000):
            await put(engine, bytes(50_000), b"INOD")


def fill(disk: Path) -> Path:
    """Take all that is left of a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    assert not shutil.disk_usage(disk).free
    return ballast


async def all_keys(engine: RocksDbEngine) -> list[bytes]:
    rows = await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff"))
    return [key for key, _ in rows]


async def test_managers_go_on_when_the_disk_is_full(disk, autojump_clock):
    engine = await open_at(disk)
    await put(engine, b"before", b"INOD")
    ballast = fill(disk)
    for index in range(100):  # 5 MB
        await put(engine, os.urandom(50_000), b"MG%03d" % index)
    await put(engine, b"", b"RTEV")
    await use_what_is_for_all(engine)
    await trio.sleep(2)
    await refuse(engine, b"", b"INOD")
    await refuse(engine, b"", b"MG000", b"INOD")
    tr = engine.transaction()
    tr.clear_range(b"A", b"Z")
    with pytest.raises(FsError, match="bytes are free, changes go on with"):
        await tr.commit()
    for _ in range(100):
        await put(engine, b"now", b"MG000")
    await engine.sync()

    ballast.unlink()
    await trio.sleep(2)
    await put(engine, b"after", b"INOD")
    await engine.aclose()
    taken = sum(path.stat().st_blocks * 512 for path in logs(str(disk / "kv")))
    assert taken < 1 << 20  # nothing is set aside in a store that is closed
    engine = await open_at(disk)
    assert await all_keys(engine) == [b"INOD", *(b"MG%03d" % i for i in range(100)), b"RTEV"]
    assert engine.current(b"INOD") == b"after"
    await engine.aclose()


async def free(engine: RocksDbEngine, value: bytes, *keys: bytes) -> None:
    tr = engine.transaction()
    tr.mark_freeing()
    for key in keys:
        tr.set(key, value)
    await tr.commit()


async def test_what_frees_space_goes_on_for_longer_than_other_changes(disk, autojump_clock):
    """Whoever could make room was refused like all others; but managers keep the last of it."""
    engine = await open_at(disk)
    await put(engine, b"before", b"INOD")
    assert not engine.trouble
    ballast = fill(disk)
    await use_what_is_for_all(engine)
    await refuse(engine, b"", b"INOD")
    await free(engine, b"freed", b"INOD")
    assert "the disk is full: 0 bytes are free" in engine.trouble
    assert "names are removed, but not made" in engine.trouble
    for _ in range(log_room.FREEING_BYTES // 52_000):
        await free(engine, bytes(50_000), b"INOD")
    with suppress(FsError):
        for _ in range(9):
            await free(engine, bytes(50_000), b"INOD")
    with pytest.raises(FsError) as caught:
        await free(engine, bytes(50_000), b"INOD")
    assert caught.value.status is Status.NO_SPACE and caught.value.definite
    assert "no name is made or removed" in engine.trouble
    for _ in range(100):
        await put(engine, bytes(50_000), b"MG000")

    ballast.unlink()
    await trio.sleep(2)
    assert not engine.trouble, "also if nobody changes anything"
    await put(engine, b"after", b"INOD")
    await engine.aclose()


USER_COUNT, MANAGER_COUNT = 160, 20
FILLS = f"""
import os, signal, sys, trio
from pathlib import Path
from tests.kv.test_log_room import fill, open_at, put
async def main():
    disk = Path(sys.argv[1])
    engine = await open_at(disk)
    for index in range({USER_COUNT}):
        await put(engine, os.urandom(50_000), b"INOD%03d" % index)
    fill(disk)
    for index in range({MANAGER_COUNT}):
        await put(engine, os.urandom(500), b"MG%03d" % index)
    os.kill(os.getpid(), signal.SIGKILL)
trio.run(main)
"""


@pytest.mark.thorough
async def test_a_process_that_was_killed_on_a_full_disk_begins_again(disk):
    """What it had set aside lay behind its log for nobody,
    and opening found no room for the tables.
    """
    command = [sys.executable, "-c", FILLS, str(disk)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)  # noqa: ASYNC221
    assert done.returncode == -signal.SIGKILL
    assert not shutil.disk_usage(disk).free
    engine = await open_at(disk)
    assert len(await all_keys(engine)) == USER_COUNT + MANAGER_COUNT
    await put(engine, b"again", b"MG000")
    await refuse(engine, b"", b"INOD")
    assert "names are removed, but not made" in engine.trouble
    await free(engine, b"freed", b"INOD")
    await engine.aclose()


async def test_a_new_store_on_a_full_disk_is_told_as_that(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise Exception(f"IO error: {NO_ROOM}: While open a file")  # noqa: TRY002 - as the binding does

    monkeypatch.setattr(rocksdb_store, "Rdict", refuse)
    with pytest.raises(FsError, match=NO_ROOM) as caught:
        await open_at(tmp_path)
    assert caught.value.status is Status.IO_ERROR


@pytest.mark.thorough
async def test_nothing_is_given_back_of_a_store_that_is_open(disk):
    """Its process takes for there what it has set aside."""
    engine = await open_at(disk)
    await put(engine, b"x", b"INOD")
    (path,) = logs(str(disk / "kv"))
    ahead = path.stat().st_blocks
    code = "from pathlib import Path; from fs.kv.rocksdb_store import _give_back; import sys"
    code += "; sys.exit(_give_back(Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(disk / "kv")]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)  # noqa: ASYNC221
    assert path.stat().st_blocks == ahead > log_room.AHEAD_BYTES_MIN // 512
    await engine.aclose()


async def test_the_log_is_changed_once_its_tables_have_room(disk, monkeypatch, autojump_clock):
    monkeypatch.setattr(engine_module, "ROTATE_COST_BYTES", 4 << 20)
    engine = await open_at(disk)
    for _ in range(60):
        await put(engine, bytes(50_000), b"INOD")
    first = logs(str(disk / "kv"))
    ballast = fill(disk)
    for index in range(40):
        await put(engine, os.urandom(50_000), b"MG%03d" % index)
    assert logs(str(disk / "kv")) == first
    await refuse(engine, b"", b"INOD")
    ballast.write_bytes(b"")
    await trio.sleep(2)
    await put(engine, b"after", b"INOD")
    assert first[0] not in logs(str(disk / "kv"))[-1:]
    await put(engine, b"later", b"INOD")
    await engine.aclose()
    engine = await open_at(disk)
    assert len(await all_keys(engine)) == 41
    await engine.aclose()


async def test_a_signal_does_not_end_what_is_set_aside(tmp_path, monkeypatch):
    """The call that it met was taken for one of a file system that cannot,
    and nothing was set aside any more.
    """
    interrupted = []

    class Interrupted:
        @staticmethod
        def fallocate(*_: int) -> int:
            if len(interrupted) < 3:
                interrupted.append(log_room.ctypes.set_errno(errno.EINTR))
                return -1
            return 0

    monkeypatch.setattr(log_room, "_libc", Interrupted)
    engine = await open_at(tmp_path)
    await put(engine, b"x", b"INOD")
    assert len(interrupted) == 3 and engine._room._is_offered
    await engine.aclose()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EIO])
async def test_a_file_system_that_allocates_nothing_is_taken_as_it_is(
    tmp_path, monkeypatch, number
):
    class Refusing:
        @staticmethod
        def fallocate(*_: int) -> int:
            log_room.ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(log_room, "_libc", Refusing)
    engine = await open_at(tmp_path)
    for index in range(10):
        await put(engine, b"x", b"INOD%d" % index)
    assert len(await all_keys(engine)) == 10
    await engine.aclose()
