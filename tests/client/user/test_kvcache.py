"""The KV cache: what is found is what was put, whatever processes and bytes do meanwhile."""

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest
from emberfs.kvcache import KVCache
from emberfs.kvcache_format import DELETED, Geometry, Header, pack_entry, pack_header
from emberfs.kvcache_index import LEFTOVER_MS
from emberfs.posix import PosixClient, PosixFile

from tests.client.user.kvcache_work import (
    BLOCK,
    CAPACITY,
    check,
    check_in_child,
    churn,
    content,
    key,
    opened,
    put,
    put_and_wait,
)
from tests.client.user.serving import NEEDS_MOUNT

pytestmark = pytest.mark.timeout(600)  # processes start slowly on a busy machine


@pytest.fixture(params=["posix", pytest.param("ring", marks=NEEDS_MOUNT)])
def folder(request, tmp_path):
    if request.param == "posix":
        return tmp_path / "kv"
    return request.getfixturevalue("mount_point") / tmp_path.name


class Clock:
    def __init__(self):
        self.now = time.time()

    def __call__(self):
        return self.now


def segments(folder):
    return sorted(path for path in folder.iterdir() if path.name.startswith("segment-"))


@pytest.mark.parametrize("block_bytes", [BLOCK, 1 << 20], ids=["small", "large"])
def test_memory_of_any_type_and_shape_is_a_block_by_its_bytes(folder, block_bytes):
    """As attention has it: numbers of two bytes, in several dimensions."""
    made = random.Random(1).randbytes(block_bytes)
    halves = memoryview(bytearray(made)).cast("H")
    square = memoryview(bytearray(made)).cast("B", (2, block_bytes // 2))
    with opened(folder, block_bytes=block_bytes, capacity_bytes=64 << 20) as cache:
        assert cache.put([(b"halves", halves), (b"square", square)]) == 2
        found = memoryview(bytearray(block_bytes)).cast("H")
        shaped = memoryview(bytearray(block_bytes)).cast("B", (2, block_bytes // 2))
        assert cache.get_into([b"square", b"halves"], [found, shaped]) == [True, True]
        assert bytes(found) == bytes(shaped) == made
        with pytest.raises(ValueError, match=f"has 2 bytes, a block has {block_bytes}"):
            cache.put([(b"k", memoryview(b"ab"))])
        with pytest.raises(ValueError, match="has gaps"):
            cache.put([(b"k", memoryview(bytearray(2 * block_bytes))[::2])])


def test_keys_are_bytes(folder):
    with opened(folder) as cache:
        for keys in (["text"], b"bytes, whose items are numbers", [7]):
            with pytest.raises(TypeError, match=r"a key is (str|int), not bytes"):
                cache.contains(keys)
        assert repr(cache) == f"<KVCache '{folder}' of blocks of {BLOCK} bytes>"
    assert repr(cache) == f"<KVCache '{folder}' of blocks of {BLOCK} bytes, closed>"


def test_blocks_come_back_in_this_process_and_in_others(folder):
    clock = Clock()
    with opened(folder, clock=clock) as one, opened(folder, clock=clock) as other:
        assert put(one, range(100)) == 100
        assert put(one, [3, 3, 100]) == 1
        assert check(one, [*range(101), 200]) == list(range(101))
        clock.now += 1
        assert check(other, [*range(101), 200]) == list(range(101))
        assert put(other, range(50, 110)) == 9
        assert one.contains([key(105)]) == [True]
        assert (one.stats.hit_count, one.stats.miss_count, one.stats.put_count) == (101, 1, 101)
        iov = one.allocate(2)
        views = [iov.view[:BLOCK], iov.view[BLOCK:]]
        assert one.get_into([key(7), key(8)], views) == [True, True]
        assert (bytes(views[0]), bytes(views[1])) == (content(7), content(8))
        del views
        iov.close()
    with opened(folder) as later:
        assert check(later, range(110)) == list(range(110))


def test_a_get_is_one_batch(tmp_path):
    calls = []

    class Counting(PosixClient):
        def read(self, transfers):
            calls.append(len(transfers))
            return super().read(transfers)

    with opened(tmp_path, connect=Counting, clock=Clock()) as cache:
        put(cache, range(120))  # in two segments
        calls.clear()
        assert len(check(cache, range(120))) == 120
    assert calls == [120]


def test_what_is_deleted_is_gone_for_all_who_refresh(folder):
    clock = Clock()
    with opened(folder, clock=clock) as one, opened(folder, clock=clock) as other:
        put(one, range(10))
        other.refresh()
        assert other.delete([key(3), key(4), key(99)]) == 2
        assert check(other, range(10)) == [0, 1, 2, 5, 6, 7, 8, 9]
        one.refresh()
        assert check(one, range(10)) == [0, 1, 2, 5, 6, 7, 8, 9]
        assert put(one, [3]) == 1
        other.refresh()
        assert check(other, [3, 4]) == [3]
        assert one.delete([key(3)]) == 1  # in its own segment
        assert check(one, [3, 5]) == [5]
    with opened(folder) as later:
        assert check(later, range(10)) == [0, 1, 2, 5, 6, 7, 8, 9]


def test_a_full_cache_drops_what_was_used_least_recently(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock=clock, touch_s=0) as cache:
        for number in range(4):
            put(cache, range(number * 64, number * 64 + 64))
        names = segments(tmp_path)
        assert (len(names), cache.stats.collected.segment_count) == (4, 0)
        for path in names:
            os.utime(path, (1e9, 1e9))
        with opened(tmp_path, clock=clock, touch_s=0) as reader:
            assert check(reader, [70]) == [70]  # the second segment is in use
        clock.now += 100
        for number in range(4, 6):
            put(cache, range(number * 64, number * 64 + 64))
        found = check(cache, range(6 * 64))
        assert len(segments(tmp_path)) == 4
        assert cache.stats.collected.segment_count == 2
        assert set(range(64, 128)) <= set(found)
        assert set(range(256, 384)) <= set(found)
        assert len(found) == 256


def test_blocks_expire(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock=clock, ttl_s=60) as cache:
        put(cache, [1])
        clock.now += 40
        put(cache, [2])
        assert check(cache, [1, 2]) == [1, 2]
        clock.now += 30
        assert check(cache, [1, 2]) == [2]
        assert put(cache, [1]) == 1
        assert check(cache, [1, 2]) == [1, 2]
    clock.now += 61
    with opened(tmp_path, clock=clock, ttl_s=60) as cache:
        assert check(cache, [1, 2]) == []
        assert cache.collect().segment_count == 1
    assert not segments(tmp_path)


def test_a_segment_without_blocks_goes(tmp_path):
    with opened(tmp_path) as cache:
        put(cache, range(65))
        cache.delete([key(number) for number in range(64)])
        assert cache.collect().segment_count == 1
        assert check(cache, range(65)) == [64]


def test_another_collects_what_this_one_writes(folder):
    clock = Clock()
    with opened(folder, clock=clock) as one, opened(folder, clock=clock, ttl_s=10) as other:
        put(one, range(10))
        clock.now += 20
        assert other.collect().segment_count == 1
        one.refresh()
        assert check(one, range(10)) == []
        assert put(one, range(5)) == 5
        assert check(one, range(10)) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_damage_is_a_miss(tmp_path):
    with opened(tmp_path) as cache:
        put(cache, range(8))
    (path,) = segments(tmp_path)
    good = path.read_bytes()
    geometry = Geometry(BLOCK, 64)
    rng = random.Random(1)
    interesting = [0, 8, 24, 50, 64, 4096, geometry.data_offset]
    places = [*interesting, *(rng.randrange(4096 + 40 * 8) for _ in range(20))]
    places += [geometry.block_offset(rng.randrange(8)) + rng.randrange(BLOCK) for _ in range(20)]
    for at in places:
        damaged = bytearray(good)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with opened(tmp_path) as cache:
            found = check(cache, range(8))
            is_header = at < 56
            assert len(found) >= (0 if is_header else 7), at
            assert put(cache, set(range(8)) - set(found)) == 8 - len(found)
            assert check(cache, range(8)) == list(range(8))
        for left in segments(tmp_path):
            if left != path:
                left.unlink()
    for length in (0, 10, 60, 4096, 5000, geometry.data_offset, len(good) - 1):
        path.write_bytes(good[:length])
        with opened(tmp_path) as cache:
            assert check(cache, range(8)) == []
    path.write_bytes(good)
    with opened(tmp_path) as cache:
        path.write_bytes(good[: geometry.block_offset(2)])  # cut while it is open
        assert check(cache, range(8)) == [0, 1]
        assert cache.stats.damaged_count == 6


def test_entries_without_their_blocks_are_misses(tmp_path):
    """A power loss may leave any of what was not synced."""
    with opened(tmp_path) as cache:
        put(cache, range(8))
    (path,) = segments(tmp_path)
    geometry = Geometry(BLOCK, 64)
    with path.open("r+b") as file:
        file.seek(geometry.block_offset(3))
        file.write(bytes(BLOCK))
    with opened(tmp_path) as cache:
        assert check(cache, range(8)) == [0, 1, 2, 4, 5, 6, 7]


def test_a_copy_is_used_when_one_is_damaged(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock=clock) as one, opened(tmp_path, clock=clock) as other:
        put(one, [1])
        (first,) = segments(tmp_path)
        put(other, [1])  # does not know of the first yet
    assert len(segments(tmp_path)) == 2
    with first.open("r+b") as file:
        file.seek(Geometry(BLOCK, 64).data_offset)
        file.write(b"damage")
    with opened(tmp_path) as cache:
        assert check(cache, [1]) == [1]
        assert cache.delete([key(1)]) == 1
    with opened(tmp_path) as cache:
        assert check(cache, [1]) == []


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path):
    def name(digit):
        return tmp_path / f"segment-{digit * 32}"

    os.mkfifo(name("a"))
    name("b").mkdir()
    name("c").symlink_to("/etc/passwd")
    name("d").write_bytes(b"no segment")
    name("e").write_bytes(pack_header(Header(bytes(16), Geometry(BLOCK, 64), 0)))  # of another name
    name("f").write_bytes(bytes(1 << 21))
    (tmp_path / "segment-short").write_bytes(b"")
    (tmp_path / "notes").write_bytes(b"mine")
    huge = Header(b"\x99" * 16, Geometry(BLOCK, 1 << 20), 0)
    name("9").write_bytes(pack_header(huge) + pack_entry(huge.id, 0, DELETED))
    clock = Clock()
    with opened(tmp_path, clock=clock) as cache:
        put(cache, range(4))
        assert check(cache, range(5)) == [0, 1, 2, 3]
        assert cache.collect().segment_count == 0
        clock.now += LEFTOVER_MS / 1000 + 60
        assert cache.collect().segment_count == 4  # files that are no segments, and not about to be
    left = {path.name for path in tmp_path.iterdir()}
    assert {name("a").name, name("b").name, name("c").name, "segment-short", "notes"} <= left


def test_entries_that_lie_are_misses(tmp_path):
    """A whole segment copied under another name, and blocks exchanged below their entries."""
    with opened(tmp_path) as cache:
        put(cache, range(4))
    (path,) = segments(tmp_path)
    good = bytearray(path.read_bytes())
    (tmp_path / f"segment-{'0' * 32}").write_bytes(good)
    begin = Geometry(BLOCK, 64).data_offset
    swapped = good[begin + BLOCK : begin + 2 * BLOCK] + good[begin : begin + BLOCK]
    good[begin : begin + 2 * BLOCK] = swapped
    path.write_bytes(good)
    with opened(tmp_path) as cache:
        assert check(cache, range(4)) == [2, 3]
        assert cache.stats.segment_count == 1


def test_sizes_are_checked(tmp_path):
    with opened(tmp_path) as cache:
        put(cache, [1])
        for size in (0, BLOCK - 1, BLOCK + 1):
            with pytest.raises(ValueError, match="a block has 4096"):
                cache.put([(b"k", memoryview(bytes(size)))])
            with pytest.raises(ValueError, match="a block has 4096"):
                cache.get_into([b"k"], [memoryview(bytearray(size))])
        with pytest.raises(TypeError, match="bytearray, not a memoryview"):
            cache.get_into([b"k"], [bytearray(BLOCK)])
        with pytest.raises(TypeError, match="bytes, not a memoryview"):
            cache.put([(b"k", bytes(BLOCK))])
        with pytest.raises(ValueError, match="2 keys, 1 buffers"):
            cache.get_into([b"k", b"l"], [memoryview(bytearray(BLOCK))])
        with pytest.raises(ValueError, match="empty key"):
            cache.get([b""])
    with pytest.raises(ValueError, match="blocks of 4096 bytes, not 8192: use another folder"):
        KVCache(tmp_path, block_bytes=8192, capacity_bytes=CAPACITY)
    with pytest.raises(ValueError, match="0 bytes a block"):
        KVCache(tmp_path, block_bytes=0, capacity_bytes=CAPACITY)
    with pytest.raises(ValueError, match="two blocks are 8192"):
        KVCache(tmp_path, block_bytes=4096, capacity_bytes=8191)
    for name in ("block_bytes", "capacity_bytes"):  # of some sizes the first put failed
        with pytest.raises(TypeError, match=f"4096.0 as {name} of .* not an integer"):
            KVCache(tmp_path, **{"block_bytes": 4096, "capacity_bytes": CAPACITY, name: 4096.0})
    with pytest.raises(ValueError, match="ttl_s"):
        opened(tmp_path, ttl_s=0)
    with pytest.raises(OSError, match="the cache is closed") as failed:
        cache.get([b"k"])
    assert failed.value.filename == str(tmp_path)
    cache.close()


def test_small_blocks_are_written_together(tmp_path):
    class Counting(PosixClient):
        transfers: ClassVar[list[int]] = []

        def write(self, transfers):
            self.transfers.append(len(transfers))
            super().write(transfers)

    with opened(tmp_path, connect=Counting) as cache:
        put(cache, [0])  # makes a segment
        Counting.transfers.clear()
        assert put(cache, range(1, 33)) == 32
        assert Counting.transfers == [2]  # all blocks, and all entries
        assert check(cache, range(40)) == list(range(33))
    with opened(tmp_path / "2", block_bytes=1 << 20, capacity_bytes=1 << 23, connect=Counting) as c:
        blocks = [(key(n), memoryview(bytes([n]) * (1 << 20))) for n in range(2)]
        c.put(blocks[:1])
        Counting.transfers.clear()
        c.put(blocks[1:])
        assert Counting.transfers == [2]


def test_making_a_segment_waits_for_no_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(PosixFile, "fsync", lambda file: synced.append(Path(file.path).name))
    with opened(tmp_path) as cache:
        put(cache, range(60))
        assert synced == []
        put(cache, range(60, 70))  # the first segment is full
        assert len(synced) == 1
        sizes = {path.stat().st_size for path in tmp_path.iterdir()}
        assert sizes == {(1 << 20) + 64 * BLOCK}  # from the beginning


def test_a_write_that_fails_leaves_a_cache_that_works(tmp_path):
    class Full(PosixClient):
        is_full = False

        def write(self, transfers):
            if self.is_full and transfers[0].buffer.nbytes >= BLOCK:
                raise OSError(28, "No space left on device", transfers[0].file.path)
            super().write(transfers)

    client = Full()
    with opened(tmp_path, connect=lambda: client) as cache:
        put(cache, range(5))
        client.is_full = True
        with pytest.raises(OSError, match="No space"):
            put(cache, range(20))
        client.is_full = False
        assert check(cache, range(20)) == [0, 1, 2, 3, 4]
        assert put(cache, range(20)) == 15
        assert check(cache, range(20)) == list(range(20))


def test_a_segment_that_another_drops_at_once_is_made_again(tmp_path):
    dropped = []

    class Dropping(PosixClient):
        def open(self, path, mode="r"):
            if mode == "r" and len(dropped) < 2:
                os.unlink(path)
                dropped.append(path)
            return super().open(path, mode)

    with opened(tmp_path, connect=Dropping) as cache:
        assert put(cache, range(5)) == 5
        assert check(cache, range(6)) == [0, 1, 2, 3, 4]
    assert len(set(dropped)) == 2


@pytest.mark.slow
def test_many_threads_share_a_cache(folder):
    failures = []

    def work(cache, seed):
        rng = random.Random(seed)
        try:
            for _ in range(8):
                put(cache, [rng.randrange(300) for _ in range(15)])
                check(cache, [rng.randrange(300) for _ in range(30)])
                cache.delete([key(rng.randrange(300))])
                cache.collect()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            failures.append(error)

    with opened(folder, refresh_s=0.0) as cache:
        threads = [threading.Thread(target=work, args=(cache, seed)) for seed in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert cache.stats.hit_count > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_goes_on_with_a_segment_of_its_own(folder, method):
    context = multiprocessing.get_context(method)
    clock = None
    with opened(folder) as cache:
        put(cache, range(10))
        ours, theirs = context.Pipe()
        child = context.Process(target=check_in_child, args=(cache, range(12), theirs))
        child.start()
        assert ours.poll(300)
        assert ours.recv() == (list(range(10)), [1000])
        child.join(300)
        assert (child.exitcode, clock) == (0, None)
        put(cache, [10, 11])
        cache.refresh()
        assert check(cache, [*range(12), 1000]) == [*range(12), 1000]
    assert len(segments(folder)) == 2


@pytest.mark.slow
def test_what_a_killed_process_had_put_is_there(folder):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=put_and_wait, args=(folder, range(30), theirs))
    child.start()
    assert ours.poll(300)
    os.kill(child.pid, signal.SIGKILL)
    child.join(300)
    with opened(folder) as cache:
        assert check(cache, range(31)) == list(range(30))


@pytest.mark.slow
def test_processes_that_are_killed_at_any_moment(tmp_path):
    """Several put, read, delete and collect; each is killed and another begins;
    no one ever sees wrong bytes.
    """
    context = multiprocessing.get_context("fork")
    rng = random.Random(1)
    running = []
    for number in range(7):
        ours, theirs = context.Pipe()
        child = context.Process(target=churn, args=(tmp_path, number, None, theirs))
        child.start()
        assert ours.poll(300)
        running.append((child, ours))
        if len(running) == 4:
            child, pipe = running.pop(rng.randrange(4))
            for _ in range(rng.randrange(6)):
                assert pipe.poll(300)
                pipe.recv()
            os.kill(child.pid, signal.SIGKILL)
            child.join(300)
            assert child.exitcode == -signal.SIGKILL  # not one of its own assertions
    for child, _ in running:
        os.kill(child.pid, signal.SIGKILL)
        child.join(300)
        assert child.exitcode == -signal.SIGKILL
    assert churn(tmp_path, 99, 10) > 0
    total = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
    assert total < 4 * CAPACITY


def test_the_folder_is_made_but_none_above_it(tmp_path):
    """Blocks of a path that is misspelt would go to another disk."""
    with pytest.raises(FileNotFoundError, match="nope/kv"):
        opened(tmp_path / "nope" / "kv")
    assert list(tmp_path.iterdir()) == []
    with opened(tmp_path / "kv") as cache:
        assert check(cache, [1]) == []
    assert (tmp_path / "kv").is_dir()
