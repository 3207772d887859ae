"""What is read in order comes part by part, whole and in order, while what lies behind it is read;
and no read is left behind.
"""

import random
import threading
from collections import deque
from contextlib import closing

import pytest
from emberfs import in_order
from emberfs.batch import Transfer
from emberfs.in_order import AT_ONCE, read_in_order
from emberfs.posix import PosixClient

BATCH = 4096


class Client(PosixClient):
    """Notes what is under way; fails, or holds others up, when a test says so."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.under_way = self.most = 0
        self.batches = []
        self.fails_from = 1 << 60
        self.meeting = None

    def read(self, transfers):
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.batches.append([(t.offset, len(t.buffer)) for t in transfers])
        try:
            if self.meeting is not None:
                self.meeting.wait(30)
            if any(transfer.offset >= self.fails_from for transfer in transfers):
                raise OSError(5, "as the test wants it", transfers[0].file.path)
            return super().read(transfers)
        finally:
            with self.lock:
                self.under_way -= 1


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(in_order, "BATCH_BYTES", BATCH)


@pytest.fixture
def client():
    with Client() as client:
        yield client


@pytest.fixture
def opened(client, tmp_path):
    """A file of 20 batches, and its content."""
    content = random.Random(1).randbytes(20 * BATCH)
    (tmp_path / "f").write_bytes(content)
    with client.open(str(tmp_path / "f")) as file:
        yield file, content


def test_all_comes_whole_and_in_order(client, opened, tmp_path):
    file, content = opened
    (tmp_path / "g").write_bytes(content[::-1])
    rng = random.Random(2)
    wanted = []
    with client.open(str(tmp_path / "g")) as other:
        transfers = []
        for _ in range(120):
            one, of = rng.choice([(file, content), (other, content[::-1])])
            begin, size = rng.randrange(len(content) + 50), rng.choice([0, 1, 70, 3000, 9 * BATCH])
            transfers.append(Transfer(one, begin, memoryview(bytearray(size))))
            wanted.append(of[begin : begin + size])
        came = [b""]
        for part in read_in_order(client, transfers):
            came[-1] += part.buffer
            if part.is_last:
                came.append(b"")
    assert came == [*wanted, b""]
    assert [bytes(t.buffer[: len(w)]) for t, w in zip(transfers, wanted, strict=True)] == wanted
    for batch in client.batches:
        assert sum(size for _, size in batch) < 2 * BATCH
        for offset, size in batch:
            assert not size or offset // BATCH == (offset + size - 1) // BATCH


def test_items_with_gaps_between_them_fill_no_batch_twice(client, opened):
    """As tensors lie in a checkpoint: what a gap leaves of a batch is no reason for one
    of twice the size.
    """
    file, _ = opened
    transfers = [
        Transfer(file, n * 3 * BATCH + 40, memoryview(bytearray(3 * BATCH - 40))) for n in range(6)
    ]
    assert len(list(read_in_order(client, transfers))) == 18
    assert max(sum(size for _, size in batch) for batch in client.batches) <= BATCH


def test_calls_are_under_way_together_and_the_next_one_while_a_part_is_looked_at(client, opened):
    file, content = opened
    client.meeting = threading.Barrier(AT_ONCE)
    buffer = memoryview(bytearray(2 * AT_ONCE * BATCH))
    assert (
        b"".join(p.buffer for p in read_in_order(client, [Transfer(file, 0, buffer)]))
        == (content[: len(buffer)])
    )
    client.meeting = None
    with closing(read_in_order(client, [Transfer(file, 0, buffer)])) as parts:
        client.batches.clear()
        next(parts)
        assert len(client.batches) > 1


def test_transfers_are_taken_when_they_are_read(client, opened):
    file, _ = opened
    taken = []

    def transfers():
        for number in range(20):
            taken.append(number)
            yield Transfer(file, number * BATCH, memoryview(bytearray(BATCH)))

    for count, _ in enumerate(read_in_order(client, transfers()), 1):
        assert len(taken) <= count + AT_ONCE
    assert len(taken) == 20
    assert client.most <= AT_ONCE + 1


def test_what_cannot_be_read_is_told_in_its_place_and_none_is_left_under_way(client, opened):
    file, content = opened
    client.fails_from = 5 * BATCH
    buffer = memoryview(bytearray(len(content)))
    came = []
    with pytest.raises(OSError, match="as the test wants it"):
        # one by one: a list of all would keep none
        deque(map(came.append, read_in_order(client, [Transfer(file, 0, buffer)])), maxlen=0)
    assert b"".join(part.buffer for part in came) == content[: client.fails_from]
    assert client.under_way == 0


def test_whoever_leaves_early_leaves_none_under_way(client, opened):
    file, content = opened
    buffer = memoryview(bytearray(len(content)))
    with closing(read_in_order(client, [Transfer(file, 0, buffer)])) as parts:
        next(parts)
    assert client.under_way == 0
    assert len(client.batches) <= AT_ONCE + 1


def test_an_iterator_that_fails_leaves_none_under_way(client, opened):
    file, _ = opened

    def transfers():
        yield Transfer(file, 0, memoryview(bytearray(BATCH)))
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(read_in_order(client, transfers()))
    assert client.under_way == 0


def test_without_another_thread_the_calling_one_reads(client, opened, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    file, content = opened
    monkeypatch.setattr(threading.Thread, "start", refuse)
    buffer = memoryview(bytearray(len(content)))
    assert sum(len(p.buffer) for p in read_in_order(client, [Transfer(file, 0, buffer)])) == (
        len(content)
    )
    assert buffer == content


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_thread_that_fails_to_come_is_not_waited_for(
    client, opened, monkeypatch, failure, has_begun
):
    """Else the end of the iteration would never come,
    where memory is short or at a Ctrl-C in the wrong moment.
    """
    file, content = opened
    start = threading.Thread.start

    def fail(thread):
        if thread.name == "emberfs-apart":
            if has_begun:
                start(thread)
            raise failure
        start(thread)

    def read():
        transfers = [Transfer(file, 0, memoryview(bytearray(len(content))))]
        with pytest.raises(failure):
            list(read_in_order(client, transfers))
        ended.set()

    ended = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", fail)
    threading.Thread(target=read, daemon=True).start()
    assert ended.wait(30)
    assert client.under_way == 0
    assert len(client.batches) <= has_begun
