"""No descriptor is to be had: an error of the call alone;
the disk and its chunks are as good as before.

No memory in the middle of a change: what is known may not be what is stored, so the disk is opened
anew before anybody believes it.
"""

import errno
import os
import threading

import pytest

from fs.chunkengine import (
    allocator,
    data_files,
    lent_rows,
    open_files,
    space,
    updates,
    version_writer,
)
from fs.chunkengine import books as books_module
from fs.chunkengine import damage as damage_module
from fs.chunkengine import ledger as ledger_module
from fs.chunkengine.api import ChunkWrite
from fs.chunkengine.books import Books
from fs.chunkengine.factory import open_engine
from fs.chunkengine.format import BLOCKS_PER_GROUP, FileId, chunk_key
from fs.chunkengine.ledger import Ledger
from fs.chunkengine.open_files import OpenFiles
from fs.chunkengine.read_values import ReadIo, ReadRows
from fs.schema.config import StorageSection
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.status import FsError, Status

from .test_engine import put

pytestmark = pytest.mark.thorough

CHUNK = (TargetId(1), ChunkId(InodeId(7), 0))
OTHER = (TargetId(1), ChunkId(InodeId(7), 1))
CONTENT = bytes(range(256)) * 40


def opened(tmp_path):
    section = StorageSection(checksum_block_bytes=4096, reject_create_free_bytes_min=0)
    return open_engine(tmp_path / "disk", cluster_id="c", node_id=1, section=section)


@pytest.fixture
def engine(tmp_path):
    engine = opened(tmp_path)
    put(engine, CHUNK, 1, CONTENT)
    engine.close()
    engine = opened(tmp_path)
    engine._files._files.close()  # as if others had needed the descriptors
    yield engine
    engine.close()


@pytest.fixture
def lack(monkeypatch):
    """Return what makes every opening fail, or not any more."""

    def refuse(*_args, **_more):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    real = os.open
    return lambda is_there: monkeypatch.setattr(open_files.os, "open", refuse if is_there else real)


def read(engine):
    buffer = bytearray(len(CONTENT))
    (done,) = engine.read_batch([ReadIo(*CHUNK, 0, len(CONTENT), memoryview(buffer))])
    return done.status, bytes(buffer)


def test_a_read_says_so_and_the_next_one_is_served(engine, lack) -> None:
    lack(True)
    assert read(engine)[0] is Status.OUT_OF_RESOURCES
    lack(False)
    assert read(engine) == (Status.OK, CONTENT)


def test_a_write_leaves_nothing_and_is_done_when_it_is_tried_again(engine, lack) -> None:
    allocated = engine.space().used_bytes
    lack(True)
    with pytest.raises(FsError) as failed:
        put(engine, OTHER, 1, CONTENT)
    lack(False)
    assert failed.value.status is Status.OUT_OF_RESOURCES
    assert engine.space().used_bytes == allocated
    put(engine, OTHER, 1, CONTENT)
    assert read(engine) == (Status.OK, CONTENT)
    engine.sync()


def test_of_a_file_whose_name_could_not_be_made_durable_nothing_is_left(
    tmp_path, monkeypatch
) -> None:
    """Found later, it would be taken for durable:
    a power loss could take it with all that was synced in it.
    """
    synced, refused = [], []

    def sync(path) -> None:
        synced.append(path)
        if len(synced) == refused[-1]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(open_files, "sync_directory", sync)
    files, before = OpenFiles(tmp_path, is_read_only=False), len(os.listdir("/proc/self/fd"))
    for refused_at in (1, 2):  # the folder's name, the file's
        refused.append(refused_at)
        synced.clear()
        with pytest.raises(FsError) as failed:
            files.acquire(FileId(0), is_write=True)
        assert failed.value.status is Status.OUT_OF_RESOURCES
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(os.listdir("/proc/self/fd")) == before
    refused.append(0)
    synced.clear()
    file = files.acquire(FileId(0), is_write=True)
    assert file is not None
    assert len(synced) == 1, "the folder was there, the file was not"
    files.release(file)
    files.close()


def no_memory(*_args, **_more) -> None:
    raise MemoryError


def put_two(engine) -> None:
    writes = [
        ChunkWrite(one[1], 2, 1 << 20, 0, CONTENT, b"", is_full_replace=False)
        for one in (CHUNK, OTHER)
    ]
    engine.prepare_writes(TargetId(1), writes)


def put_ranges(engine) -> None:
    ranges = (0, 3000), (5000, 3000)
    write = ChunkWrite(
        OTHER[1], 2, 1 << 20, 0, CONTENT[:6000], b"", is_full_replace=False, ranges=ranges
    )
    engine.prepare_writes(TargetId(1), [write])


def put_large(engine) -> None:
    put(engine, OTHER, 2, CONTENT * 20)


def cut(engine) -> None:
    engine.prepare_truncate(*OTHER, version=2, chunk_size_bytes=1 << 20, length=5000)


def repair(engine) -> None:
    engine.repair(*OTHER, version=1, data=CONTENT)


@pytest.mark.parametrize(
    ("write", "step"),
    [
        (put_two, (data_files.LocalDataFiles, "write_at")),
        (put_large, (data_files.LocalDataFiles, "reserve")),
        (put_two, (updates, "known_state")),
        (put_two, (version_writer.VersionWriter, "_begin_write_back")),
        (put_ranges, (data_files.LocalDataFiles, "begin_write_back")),
        (cut, (data_files.LocalDataFiles, "write_at")),
        (cut, (updates, "PendingRecord")),
        (repair, (data_files.LocalDataFiles, "write_at")),
        (repair, (damage_module, "replace")),
    ],
)
def test_without_memory_to_write_or_record_a_version_its_block_is_free_again(
    engine, monkeypatch, write, step
) -> None:
    """It was used again only once the disk was opened anew."""
    put(engine, OTHER, 1, CONTENT)
    if write is repair:
        engine.mark_damaged(*OTHER)
    monkeypatch.setattr(version_writer, "WRITE_BEHIND_BYTES_MIN", 1)
    blocks = engine._books.ledger.allocator
    used = blocks.used_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(*step, no_memory)
        with pytest.raises(MemoryError):
            write(engine)
    assert blocks.used_bytes() == used
    assert not blocks.is_torn
    write(engine)
    assert read(engine)[0] == Status.OK


CHANGES = {
    "put": lambda engine: put(engine, CHUNK, 2, CONTENT[:5000]),
    "remove": lambda engine: engine.remove_target(CHUNK[0]),
}


@pytest.mark.parametrize("step", ["_stage_blocks", "put", "_install"])
@pytest.mark.parametrize("change", CHANGES)
def test_without_memory_in_the_middle_of_a_change_nothing_is_believed_any_more(
    engine, monkeypatch, tmp_path, step, change
) -> None:
    """Its old block may count as free already, or an older version be known than is stored."""
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._books.ledger), step, no_memory)
        with pytest.raises(FsError) as failed:
            CHANGES[change](engine)
    assert failed.value.status is Status.IO_ERROR
    with pytest.raises(FsError, match="may not be what is stored"):
        read(engine)
    engine.close()
    after = opened(tmp_path)
    try:
        if change == "put":
            assert read(after)[0] == Status.OK
    finally:
        after.close()


@pytest.mark.parametrize("step", ["_stage_blocks", "put", "_install"])
@pytest.mark.parametrize("change", CHANGES)
def test_nor_is_it_where_there_is_no_memory_to_say_so(engine, monkeypatch, step, change) -> None:
    """A second lack, of the error that was to be raised for the first."""
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._books.ledger), step, no_memory)
        patch.setattr(ledger_module, "in_doubt", no_memory)
        with pytest.raises(MemoryError):
            CHANGES[change](engine)
    with pytest.raises(FsError, match="may not be what is stored"):
        read(engine)


def test_a_disk_that_failed_is_used_no_more_though_nothing_can_be_said_of_it(
    engine, monkeypatch
) -> None:
    class UnspeakableError(FsError):
        def __str__(self) -> str:
            raise MemoryError

    def fail(*_args) -> None:
        raise UnspeakableError(Status.IO_ERROR, "a batch is not stored")

    with monkeypatch.context() as patch:
        patch.setattr(type(engine._books.ledger), "put", fail)
        with pytest.raises(MemoryError):
            put(engine, CHUNK, 2, CONTENT)
    with pytest.raises(FsError, match="it has failed"):
        read(engine)


@pytest.mark.parametrize("step", ["write_durable", "end_flush"])
def test_a_flush_without_memory_ends_and_so_do_those_that_wait_for_it(
    engine, monkeypatch, step
) -> None:
    put(engine, OTHER, 1, CONTENT)
    monkeypatch.setattr(type(engine._books.ledger), step, no_memory)
    for _ in range(2):  # the second would have waited for the end of the first
        with pytest.raises(FsError) as failed:
            engine.sync()
        assert failed.value.status is Status.IO_ERROR


@pytest.mark.parametrize("step", ["drop", "enter"])
def test_without_memory_in_the_middle_of_allocating_nothing_is_believed_any_more(
    engine, monkeypatch, tmp_path, step
) -> None:
    """A group could not be found, or one was looked for where none was,
    in each write from then on.
    """
    with monkeypatch.context() as patch:
        patch.setattr(allocator._Levels, step, no_memory)
        with pytest.raises(MemoryError):
            put(engine, OTHER, 1, CONTENT)
    with pytest.raises(FsError, match="may not be what is stored"):
        put(engine, OTHER, 1, CONTENT)
    engine.close()
    after = opened(tmp_path)
    try:
        put(after, OTHER, 1, CONTENT)
        assert read(after) == (Status.OK, CONTENT)
    finally:
        after.close()


@pytest.mark.parametrize("step", [(Ledger, "begin_flush"), (Books, "poison_on_failure")])
def test_after_a_flush_that_had_no_memory_to_begin_the_next_one_does_not_wait_for_it(
    engine, monkeypatch, step
) -> None:
    put(engine, OTHER, 1, CONTENT)
    with monkeypatch.context() as patch:
        patch.setattr(*step, no_memory)
        with pytest.raises(MemoryError):
            engine.sync()

    def sync() -> None:
        with pytest.raises(FsError, match="no memory for a flush"):
            engine.sync()
        ended.set()

    ended = threading.Event()
    threading.Thread(target=sync, daemon=True).start()
    is_ended = ended.wait(3)
    engine._books.give_up("else closing it would wait too")
    assert is_ended


@pytest.mark.parametrize("step", ["write_durable", "end_flush"])
def test_a_flush_that_has_no_memory_to_say_so_fails_its_disk_all_the_same(
    engine, monkeypatch, step
) -> None:
    put(engine, OTHER, 1, CONTENT)
    with monkeypatch.context() as patch:
        patch.setattr(type(engine._books.ledger), step, no_memory)
        patch.setattr(books_module, "in_doubt", no_memory)
        with pytest.raises(MemoryError):
            engine.sync()
    with pytest.raises(FsError, match="may not be what is stored"):
        engine.sync()


@pytest.mark.parametrize("step", ["add", "pin"])
def test_without_memory_to_begin_updates_none_of_them_counts_as_begun(
    engine, monkeypatch, step
) -> None:
    """Else their chunks would never be moved or appended to again,
    nor would the old blocks ever be free.
    """
    put(engine, OTHER, 1, CONTENT)
    ledger = engine._books.ledger
    left = [1]  # the second one fails

    def fail_once(*_args) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError

    class Failing(set):
        def add(self, key) -> None:
            fail_once()
            super().add(key)

    writes = [
        ChunkWrite(one[1], 2, 1 << 20, 0, CONTENT, b"", is_full_replace=False)
        for one in (CHUNK, OTHER)
    ]
    with monkeypatch.context() as patch:
        if step == "add":
            patch.setattr(ledger, "_updating", Failing())
        else:
            real = ledger.readers.pin
            patch.setattr(ledger.readers, "pin", lambda record: (fail_once(), real(record)))
        with pytest.raises(MemoryError):
            engine.prepare_writes(TargetId(1), writes)
        assert not ledger._updating
    assert not ledger._updating
    assert not ledger.readers
    engine.prepare_writes(TargetId(1), writes)


def rows_of_both() -> tuple[list[bytes], ReadRows]:
    size = len(CONTENT)
    return [chunk_key(*CHUNK), chunk_key(*OTHER)], ReadRows(
        [0, 1], [0, 0], [size, size], [size, 2 * size]
    )


READS = {
    "read_batch": lambda engine: engine.read_batch(
        [
            ReadIo(*chunk, 0, len(CONTENT), memoryview(bytearray(len(CONTENT))))
            for chunk in (CHUNK, OTHER)
        ]
    ),
    "read_rows": lambda engine: engine.read_rows(
        *rows_of_both(), memoryview(bytearray(2 * len(CONTENT))), want_checksums=True
    ),
    "lend_rows": lambda engine: engine.lend_rows(*rows_of_both()),
}


@pytest.mark.parametrize("read", READS)
def test_without_memory_to_begin_a_read_nothing_stays_pinned(engine, monkeypatch, read) -> None:
    """Else the blocks would never be used again until the disk is opened anew."""
    put(engine, OTHER, 1, CONTENT)
    engine.sync()
    ledger = engine._books.ledger
    pinned, real = [], ledger.readers.pin

    def pin(record) -> None:
        if pinned:
            raise MemoryError
        real(record)
        pinned.append(record)

    with monkeypatch.context() as patch:
        patch.setattr(ledger.readers, "pin", pin)
        patch.setattr(lent_rows, "is_cached", lambda *_: True)
        patch.setattr(engine._files, "_has_asked_cache", True)  # tmpfs cannot tell
        with pytest.raises(MemoryError):
            READS[read](engine)
    assert pinned and not ledger.readers


def test_without_memory_to_unpin_what_was_lent_the_books_are_let_go_of_and_the_rest_is_unpinned(
    engine, monkeypatch
) -> None:
    """Else nobody would ever have the books again,
    and the other blocks would stay pinned until the disk is opened anew.
    """
    put(engine, OTHER, 1, CONTENT)
    books, ledger = engine._books, engine._books.ledger
    real = ledger.readers.unpin
    with books:
        records = [ledger.record(chunk_key(*chunk)) for chunk in (CHUNK, OTHER)]
        for _ in range(2):
            ledger.readers.pin_all(records)
            books.unpin_soon(records)  # in line: somebody has the books
    failing = [records[0]]

    def unpin(record) -> None:
        real(record)
        if failing and record is failing[0]:
            failing.clear()
            raise MemoryError

    monkeypatch.setattr(ledger.readers, "unpin", unpin)
    with pytest.raises(MemoryError):
        read(engine)
    assert not books.lock.locked()
    assert read(engine) == (Status.OK, CONTENT)
    assert not ledger.readers


@pytest.mark.parametrize("way", ["read_batch", "read_rows"])
def test_without_memory_to_unpin_one_of_what_was_read_the_others_are_unpinned(
    engine, monkeypatch, way
) -> None:
    put(engine, OTHER, 1, CONTENT)
    ledger, left = engine._books.ledger, [1]
    real = ledger.readers.unpin

    def unpin(record) -> None:
        real(record)
        if left:
            left.clear()
            raise MemoryError

    monkeypatch.setattr(ledger.readers, "unpin", unpin)
    with pytest.raises(MemoryError):
        READS[way](engine)
    assert not ledger.readers and not engine._books.lock.locked()


def test_without_memory_to_give_space_back_the_groups_numbers_are_used_again(
    engine, monkeypatch
) -> None:
    blocks = engine._books.ledger.allocator.classes[0]
    with engine._books.lock:
        for _ in range(3):  # so many groups, all of them empty
            group = blocks._fullest()
            blocks._set(group, (1 << BLOCKS_PER_GROUP) - 1, (1 << BLOCKS_PER_GROUP) - 1)
        for group in list(blocks.groups.values()):
            blocks._set(group, 0, group.reserved)
    with monkeypatch.context() as patch:
        patch.setattr(space, "punch_group", no_memory)
        patch.setattr(engine._space, "_kept_bytes", lambda *_: 0)
        with pytest.raises(MemoryError):
            engine._space.give_back([0])
    assert len(blocks.groups) == 1 and not blocks._retiring
