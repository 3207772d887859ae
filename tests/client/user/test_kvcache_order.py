"""Blocks and entries of a `put` reach the folder in any order, in any parts, and maybe not at all:
whoever looks meanwhile finds nothing wrong, and finds it all once it is there.
"""

import errno
import os
import random
import tempfile
from typing import ClassVar

import pytest
from emberfs.batch import Transfer
from emberfs.posix import PosixClient
from hypothesis import given
from hypothesis import strategies as st

from tests.client.user.kvcache_work import BLOCK, check, key, opened, put

NUMBERS = range(5)
MORE = range(10, 13)


class KilledError(BaseException):
    """The writer does nothing any more."""


class Clock:
    def __init__(self):
        self.now = 1e9

    def __call__(self):
        return self.now


class Scattered(PosixClient):
    """Writes each batch in parts, in a given order; tells between any two of them."""

    def __init__(self, choose=None):
        super().__init__(0)
        self.choose = choose

    def write(self, transfers):
        if self.choose is None:
            super().write(transfers)
            return
        parts = []
        for file, offset, buffer in transfers:
            middle = len(buffer) // 2
            parts += [
                Transfer(file, offset, buffer[:middle]),
                Transfer(file, offset + middle, buffer[middle:]),
            ]
        failed = None
        for index in self.choose(len(parts)):
            if index is None:
                failed = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), transfers[0].file.path)
            else:
                super().write([parts[index]])
        if failed is not None:
            raise failed


def orders(data, count):
    return data.draw(st.permutations(range(count)), label="order")


@pytest.mark.thorough
@given(st.data())
def test_who_looks_while_blocks_are_put_finds_them_when_that_has_returned(data):
    clock, client = Clock(), Scattered()
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(folder, clock=clock, connect=lambda: client) as writer,
        opened(folder, clock=clock) as reader,
    ):
        put(writer, MORE)
        assert check(reader, MORE) == []
        clock.now += 1
        assert check(reader, MORE) == list(MORE)

        def choose(count):
            for index in orders(data, count):
                yield index
                clock.now += data.draw(st.integers(0, 1), label="passes")
                check(reader, [*NUMBERS, *MORE])
                reader.contains([key(number) for number in NUMBERS])

        client.choose = choose
        assert put(writer, NUMBERS) == len(NUMBERS)
        clock.now += 1
        assert check(reader, [*NUMBERS, *MORE]) == [*NUMBERS, *MORE]
        assert put(reader, NUMBERS) == 0


@pytest.mark.thorough
@given(st.data())
def test_a_writer_that_is_killed_leaves_nothing_that_keeps_others_from_putting(data):
    clock, client = Clock(), Scattered()
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(folder, clock=clock) as reader,
    ):
        writer = opened(folder, clock=clock, connect=lambda: client)
        put(writer, MORE)
        is_seen_before = data.draw(st.booleans(), label="is seen before")

        def choose(count):
            order = orders(data, count)
            yield from order[: data.draw(st.integers(0, count - 1), label="done")]
            if is_seen_before:
                clock.now += 1
                check(reader, NUMBERS)
            raise KilledError

        client.choose = choose
        with pytest.raises(KilledError):
            put(writer, NUMBERS)
        with opened(folder, clock=clock) as later:
            found = check(later, [*NUMBERS, *MORE])
            assert set(MORE) <= set(found)
        clock.now += 1
        assert check(reader, [*NUMBERS, *MORE]) == found
        clock.now += 10  # so long it takes to compute what is missing
        assert put(reader, NUMBERS) == len(NUMBERS) + len(MORE) - len(found)
        assert check(reader, [*NUMBERS, *MORE]) == [*NUMBERS, *MORE]
        with opened(folder, clock=clock) as later:
            assert check(later, [*NUMBERS, *MORE]) == [*NUMBERS, *MORE]


@pytest.mark.thorough
@given(st.data())
def test_what_could_not_be_written_is_put_again(data):
    clock, client = Clock(), Scattered()
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(folder, clock=clock, connect=lambda: client) as cache,
    ):
        put(cache, MORE)

        def choose(count):
            order = list(orders(data, count))
            for at in data.draw(st.sets(st.sampled_from(range(count)), min_size=1), label="fail"):
                order[at] = None
            yield from order

        client.choose = choose
        with pytest.raises(OSError, match="No space left"):
            put(cache, NUMBERS)
        client.choose = None
        clock.now += data.draw(st.integers(0, 1), label="passes")
        assert put(cache, NUMBERS) == len(NUMBERS)
        assert check(cache, [*NUMBERS, *MORE]) == [*NUMBERS, *MORE]


def test_another_thread_that_looks_meanwhile_keeps_nobody_from_finding_it_at_once(tmp_path):
    clock, client = Clock(), Scattered()
    with opened(tmp_path, clock=clock, connect=lambda: client) as cache:
        put(cache, MORE)

        def choose(count):
            for index in reversed(range(count)):  # entries first
                yield index
                cache.refresh()
                assert check(cache, [*NUMBERS, *MORE]) == list(MORE)

        client.choose = choose
        put(cache, NUMBERS)
        assert check(cache, NUMBERS) == list(NUMBERS)
        assert cache.stats.damaged_count == 0


def test_a_block_that_was_bad_is_read_once_after_each_refresh_until_it_is_good(tmp_path):
    clock = Clock()
    with opened(tmp_path, clock=clock) as cache, opened(tmp_path, clock=clock) as other:
        put(cache, [1])
        (path,) = tmp_path.iterdir()
        place = path.stat().st_size - 64 * BLOCK
        good = os.pread(path_fd := os.open(path, os.O_RDWR), BLOCK, place)
        os.pwrite(path_fd, bytes(BLOCK), place)
        for damaged_count in (1, 2, 3):
            clock.now += 1
            for _ in range(3):
                assert check(other, [1]) == []
            assert other.stats.damaged_count == damaged_count
        os.pwrite(path_fd, good, place)
        os.close(path_fd)
        assert other.contains([key(1)]) == [False]
        clock.now += 1
        assert other.contains([key(1)]) == [True]
        assert check(other, [1]) == [1]
        assert put(other, [1]) == 0


def test_a_put_that_is_interrupted_hides_nothing_that_is_put_later(tmp_path):
    """Others read on from the first slot that they know nothing of, and not as far as they like."""
    client, settings = Scattered(), {"block_bytes": 16, "capacity_bytes": 1 << 16}

    def interrupt(_count):
        raise KeyboardInterrupt
        yield

    with opened(tmp_path, connect=lambda: client, **settings) as cache:
        items = [(key(number), memoryview(b"%16d" % number)) for number in range(600)]
        cache.put(items[:10])
        client.choose = interrupt
        with pytest.raises(KeyboardInterrupt):
            cache.put(items[10:100])
        client.choose = None
        for start in range(100, 600, 100):
            cache.put(items[start : start + 100])
        with opened(tmp_path, **settings) as other:
            there = other.contains([key(number) for number in range(600)])
            assert there == [True] * 10 + [False] * 90 + [True] * 500


@pytest.mark.parametrize("block_bytes", [5000, 100_000, 1_500_000])
def test_no_two_writes_of_a_put_are_for_one_chunk(tmp_path, block_bytes):
    """They would be made one after the other."""
    chunk_bytes = 1 << 20

    class Noting(PosixClient):
        chunks: ClassVar[list[range]] = []

        def write(self, transfers):
            ends = [offset + len(buffer) for _, offset, buffer in transfers]
            self.chunks[:] = [
                range(offset // chunk_bytes, -(-end // chunk_bytes))
                for (_, offset, _), end in zip(transfers, ends, strict=True)
            ]
            super().write(transfers)

    count = 12_000_000 // block_bytes
    noise = random.Random(1).randbytes(block_bytes + count)
    blocks = {key(number): memoryview(noise)[number:][:block_bytes] for number in range(count)}
    settings = {"block_bytes": block_bytes, "capacity_bytes": 64_000_000}
    with opened(tmp_path, connect=Noting, **settings) as cache:
        cache.put(blocks.items())
        chunks = [chunk for written in Noting.chunks for chunk in written]
        assert len(chunks) == len(set(chunks)) == 1 + -(-count * block_bytes // chunk_bytes)
        assert cache.get(list(blocks)) == list(blocks.values())
