"""What storage's kernels for messages return, whichever serves."""

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fs.chunkengine.format import chunk_key
from fs.kernels import read_messages, read_messages_twin
from fs.schema.ids import ChunkId, InodeId, TargetId
from fs.schema.proto import storage_pb2
from tests.examples import many
from tests.kernels.growth import assert_nothing_stays

from .fuzz_messages import MessagesFuzzer, varint

COLUMNS = bytes(number << 3 | 2 for number in (5, 6, 7, 8, 9, 10))
REPLY_COLUMNS = bytes(number << 3 | 2 for number in (3, 4, 5))
FLAGS = bytes(number << 3 for number in (2, 3, 4))
ROW = [2**64 - 1, 7, 2**32 - 1, 300, 0, 4096]


def request_of(rows, **flags):
    names = "inode_ids", "chunk_indexes", "chain_ids", "chain_versions", "offsets", "lengths"
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return storage_pb2.BatchReadReq(**columns, **flags).SerializeToString()


def row_said(inode_id, index, *others):
    """What is said of one row: its chunk as a name of it ends, and the rest."""
    key = chunk_key(TargetId(1), ChunkId(InodeId(inode_id), index))
    return (key[8:], *others)


@pytest.mark.parametrize(
    ("flags", "bits"),
    [({}, 0), ({"is_relaxed": True}, 1), ({"want_checksums": True, "is_passed_on": True}, 6)],
)
def test_a_request_for_one_row_is_taken_apart(kernel, flags, bits):
    message = request_of([ROW], **flags)
    assert kernel.one_row(message, COLUMNS, FLAGS) == row_said(*ROW, bits)
    turned = bytes(reversed(COLUMNS))
    assert kernel.one_row(message, turned, FLAGS) == row_said(*reversed(ROW), bits)
    unset = message + bytes((FLAGS[0], 0))
    assert kernel.one_row(unset, COLUMNS, FLAGS) == row_said(*ROW, bits & ~1)


def test_other_requests_are_not_of_one_row(kernel):
    good = request_of([ROW], want_checksums=True)
    others = [b"", request_of([ROW, ROW]), good[2:] + good[2:], good + b"\x58\x01"]
    others.append(
        storage_pb2.BatchReadReq(ios=[storage_pb2.ReadIoPb(length=1)]).SerializeToString()
    )
    others += [good[:cut] for cut in range(len(good))]
    others += [good[: good.index(COLUMNS[0])] + bytes((COLUMNS[0], 11)) + b"\x80" * 10 + b"\x01"]
    others += [b"\x18" + b"\xff" * 9 + b"\x02" + good[2:], b"\x18" + b"\xff" * 11 + good[2:]]
    for other in others:
        assert kernel.one_row(other, COLUMNS, FLAGS) is None, other
    longest = b"\x18" + b"\xff" * 9 + b"\x01" + good[2:]
    assert kernel.one_row(longest, COLUMNS, FLAGS) == row_said(*ROW, 2)
    for index, is_one in ((2**32 - 1, True), (2**32, False)):
        of_chunk = bytes((COLUMNS[1], 5)) + varint(index)
        message = good.replace(bytes((COLUMNS[1], 1, ROW[1])), of_chunk)
        assert (kernel.one_row(message, COLUMNS, FLAGS) is not None) is is_one
    for columns, flags in ((COLUMNS[1:], FLAGS), (COLUMNS, bytes(range(16, 25)))):
        with pytest.raises(ValueError, match="not the columns of a row"):
            kernel.one_row(good, columns, flags)


@given(st.binary(max_size=80), st.data())
@settings(max_examples=many(300))
def test_both_take_the_same_apart(noise, data):
    message = request_of([[data.draw(st.integers(0, 2**32 - 1)) for _ in ROW]])
    at = data.draw(st.integers(0, len(message)))
    for one in (
        noise,
        message[:at] + noise + message[at:],
        message[:at] + noise[:1] + message[at + 1 :],
    ):
        assert read_messages.one_row(one, COLUMNS, FLAGS) == read_messages_twin.one_row(
            one, COLUMNS, FLAGS
        )


@pytest.mark.parametrize("want_checksum", [False, True])
def test_the_reply_of_one_row_is_what_protobuf_makes(kernel, want_checksum):
    columns = bytes(number << 3 | 2 for number in (3, 4, 5))
    for length, version, checksum in [(1, 1, 0), (4096, 300, 2**64 - 1), (127, 2**64 - 1, 1 << 63)]:
        checksums = [checksum] if want_checksum else []
        expected = storage_pb2.BatchReadRsp(
            lengths=[length], commit_vers=[version], checksums=checksums
        )
        message = kernel.one_reply(columns, length, version, checksum, want_checksum)
        assert message == expected.SerializeToString()
    with pytest.raises(ValueError, match="not the columns of a reply"):
        kernel.one_reply(columns[1:], 1, 1, 1, True)


ROWS = [
    [7, 0, 1, 1, 0, 4096],
    [2**64 - 1, 2**32 - 1, 2, 1, 8192, 1],
    [7, 0, 1, 1, 4096, 300],
    [7, 0, 1, 2, 0, 5],
    [8, 0, 2, 1, 0, 5],
]


def test_a_request_for_many_rows_is_taken_apart(kernel):
    message = request_of(ROWS, want_checksums=True)
    taken = kernel.take_rows(message, COLUMNS, FLAGS, 5, 8193)
    pairs, chains, chunks, numbers, offsets, lengths, ends, flags = taken
    assert pairs == [(1, 1, 4396), (2, 1, 6), (1, 2, 5)]
    assert chains == [0, 1, 0, 2, 1]
    assert [offsets, lengths] == [[row[n] for row in ROWS] for n in (4, 5)]
    assert ends == list(accumulate(lengths))
    assert flags == 2
    owners = [11, 2**64 - 1, 12]
    keys = kernel.chunk_keys(chunks, owners)
    wanted = [
        chunk_key(TargetId(owners[chain]), ChunkId(InodeId(row[0]), row[1]))
        for chain, row in zip(chains, ROWS, strict=True)
    ]
    assert keys == list(dict.fromkeys(wanted))
    assert [keys[number] for number in numbers] == wanted


def test_many_rows_of_few_chunks(kernel):
    generator = random.Random(3)
    rows = [
        [generator.randrange(3), generator.randrange(4), generator.randrange(2), 1, n, 1]
        for n in range(300)
    ]
    _, chains, chunks, numbers, *_ = kernel.take_rows(request_of(rows), COLUMNS, FLAGS, 300, 300)
    keys = kernel.chunk_keys(chunks, [5, 6])
    assert len(keys) == len(set(keys)) == 24
    chain_ids = list(dict.fromkeys(row[2] for row in rows))
    assert [chain_ids[chain] for chain in chains] == [row[2] for row in rows]
    for row, chain, number in zip(rows, chains, numbers, strict=True):
        target = TargetId([5, 6][chain])
        assert keys[number] == chunk_key(target, ChunkId(InodeId(row[0]), row[1]))


def test_requests_that_are_not_right_are_not_taken(kernel):
    good = request_of(ROWS, want_checksums=True)

    def is_taken(message, count_max=5, reach_max=8193):
        return kernel.take_rows(message, COLUMNS, FLAGS, count_max, reach_max) is not None

    assert is_taken(good)
    assert is_taken(good + bytes((FLAGS[0], 0)))
    assert not is_taken(good, count_max=4)
    assert not is_taken(good, reach_max=8192)
    others = [b"", good[2:] + good[2:], good + b"\x58\x01"]
    ios = [storage_pb2.ReadIoPb(length=1)]
    others.append(storage_pb2.BatchReadReq(ios=ios).SerializeToString())
    others += [good[:cut] for cut in range(len(good))]
    for column in range(6):
        rows = [list(row) for row in ROWS]
        rows[3][column] = 0
        is_right = column != 5
        assert is_taken(request_of(rows)) == is_right, column
        message = storage_pb2.BatchReadReq.FromString(good)
        del getattr(message, message.ListFields()[column + 1][0].name)[-1]
        others.append(message.SerializeToString())
        number = bytes((COLUMNS[column], 5)) + b"\xff" * 4 + b"\x7f"  # 2**35 - 1
        large = request_of([[1, 1, 1, 1, 1, 1]]).replace(bytes((COLUMNS[column], 1, 1)), number)
        assert is_taken(large, reach_max=2**40) == (column == 0), column
    for other in others:
        assert not is_taken(other), other
    for columns, flags in ((COLUMNS[1:], FLAGS), (COLUMNS, bytes(range(16, 25)))):
        with pytest.raises(ValueError, match="not the columns of rows"):
            kernel.take_rows(good, columns, flags, 5, 8193)


def test_chunks_that_cannot_be_are_refused(kernel):
    _, _, chunks, *_ = kernel.take_rows(request_of(ROWS), COLUMNS, FLAGS, 5, 8193)
    assert kernel.chunk_keys(b"", []) == []
    for cut, owners in ((chunks, [1, 2]), (chunks[:-1], [1, 2, 3])):
        with pytest.raises(ValueError, match=r"no owner|cut off"):
            kernel.chunk_keys(cut, owners)
    for owner in (2**64, -1):
        with pytest.raises(OverflowError):
            kernel.chunk_keys(chunks, [1, owner, 2])


@given(st.binary(max_size=80), st.data())
@settings(max_examples=many(300))
def test_both_take_the_same_rows(noise, data):
    numbers = st.integers(0, 3) | st.integers(0, 2**32 - 1)
    rows = data.draw(st.lists(st.lists(numbers, min_size=6, max_size=6), min_size=1, max_size=5))
    message = request_of(rows)
    at = data.draw(st.integers(0, len(message)))
    for one in (message, noise, message[:at] + noise, message[:at] + noise[:1] + message[at + 1 :]):
        said = [
            module.take_rows(one, COLUMNS, FLAGS, 5, 2**33)
            for module in (read_messages, read_messages_twin)
        ]
        assert said[0] == said[1]


@given(
    st.lists(st.tuples(*[st.integers(0, 2**64 - 1) | st.integers(0, 300)] * 3), max_size=40),
    st.booleans(),
)
def test_the_reply_of_many_rows_is_what_protobuf_makes(rows, want_checksums):
    lengths, versions, checksums = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    )
    lengths = [length % 2**32 for length in lengths]
    checksums = checksums if want_checksums else []
    expected = storage_pb2.BatchReadRsp(
        lengths=lengths, commit_vers=versions, checksums=checksums
    ).SerializeToString()
    for module in (read_messages, read_messages_twin):
        assert module.rows_reply(REPLY_COLUMNS, lengths, versions, checksums) == expected


def test_replies_that_cannot_be_are_refused(kernel):
    for columns, lengths, versions, checksums in (
        (REPLY_COLUMNS[1:], [1], [1], []),
        (REPLY_COLUMNS, [1], [], []),
        (REPLY_COLUMNS, [1], [1], [1, 2]),
    ):
        with pytest.raises(ValueError, match="not the columns of a reply"):
            kernel.rows_reply(columns, lengths, versions, checksums)
    for bad in (-1, 2**64):
        for n in range(3):
            columns = [[1], [1], [1]]
            columns[n] = [bad]
            with pytest.raises(OverflowError):
                kernel.rows_reply(REPLY_COLUMNS, *columns)


@pytest.mark.thorough
def test_nothing_is_kept(kernel):
    """Neither of what was returned nor of what was refused."""
    message = request_of(ROWS)

    def once():
        _, _, chunks, *_ = kernel.take_rows(message, COLUMNS, FLAGS, 5, 8193)
        assert kernel.take_rows(message, COLUMNS, FLAGS, 4, 8193) is None
        kernel.chunk_keys(chunks, [2**60, 2**61, 2**62])
        kernel.rows_reply(REPLY_COLUMNS, [1, 2], [3, 4], [5, 6])
        refused = 0
        for function, arguments in (
            (kernel.chunk_keys, (chunks, [1])),
            (kernel.rows_reply, (REPLY_COLUMNS, [1], [], [])),
            (kernel.take_rows, (message, COLUMNS[1:], FLAGS, 5, 8193)),
        ):
            try:
                function(*arguments)
            except ValueError:
                refused += 1
        assert refused == 3

    assert_nothing_stays(once)


def test_of_random_calls_both_say_the_same():
    if not read_messages.IS_COMPILED:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    fuzzer = MessagesFuzzer(read_messages, 1)
    for _ in range(1000):
        fuzzer.call_each()
    assert 50 < fuzzer.done < 500, "of messages that are not right there are some, too"
