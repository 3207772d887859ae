"""What the mount daemon's kernel returns: the compiled one and its twin say the same
of whatever they are given.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from fs.kernels import batches, batches_twin

from .fuzz import Differ, continued

if batches.IS_COMPILED:
    from fs.kernels import _batches as compiled
else:
    compiled = None

needs_compiler = pytest.mark.skipif(
    compiled is None, reason="not compiled: python setup.py build_ext --inplace"
)

KEYS = [struct.pack("<IIII", file_id, 1, 1, 0) for file_id in (1, 2, 3)]
OTHER_MEMORY = struct.pack("<IIII", 1, 2, 1, 0)
U64 = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 300)
NUMBER = st.one_of(SMALL, SMALL, SMALL, U64)
ENTRY = st.builds(
    batches.ENTRY.pack, U64, NUMBER, NUMBER, NUMBER, st.sampled_from([*KEYS, OTHER_MEMORY])
)
RAGGED = st.sampled_from([b"", b"", b"", b"", b"x"])


def joined(strategy, most=12):
    """Return records in a row; now and then not whole."""
    return st.builds(
        lambda some, rest: b"".join(some) + rest, st.lists(strategy, max_size=most), RAGGED
    )


def said(function, *arguments):
    """Return what a function returns, views as bytes, or that it refuses."""
    try:
        found = function(*arguments)
    except ValueError:
        return "refused"
    if isinstance(found, list):
        return [bytes(one) if isinstance(one, memoryview) else one for one in found]
    return found


def assert_alike(name, *arguments):
    assert said(getattr(compiled, name), *arguments) == said(
        getattr(batches_twin, name), *arguments
    )


@needs_compiler
@pytest.mark.slow
@given(
    st.tuples(
        joined(ENTRY),
        st.integers(1, 2),
        NUMBER,
        st.sampled_from([0, 0, 64, 100]),
        st.integers(0, 2**32),
        st.integers(0, 2**46),
        st.integers(0, 3),
    )
)
def test_both_find_the_same_kinds(arguments):
    assert_alike("kinds_of", *arguments)


@needs_compiler
@pytest.mark.slow
@given(joined(ENTRY), joined(st.builds(batches.FILE_END.pack, st.sampled_from(KEYS), NUMBER), 4))
def test_both_know_the_ends_of_files(entries, ends):
    assert_alike("are_within", entries, ends)
    assert_alike("completions_of", entries)


LAYOUT = st.builds(
    batches.FILE_LAYOUT.pack,
    st.sampled_from(KEYS),
    U64,
    st.one_of(st.integers(0, 100), st.integers(0, 2**33), U64),
    st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1)),
    st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1)),
)
SLOT = st.builds(batches.SLOT.pack, st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)))
NODE = st.one_of(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2**32 - 1))
CHAIN = st.builds(
    lambda chain, version, count, nodes: batches.CHAIN_NODES.pack(chain, version, count, *nodes),
    U64,
    U64,
    st.integers(0, 9),
    st.lists(NODE, min_size=7, max_size=7),
)


@needs_compiler
@pytest.mark.slow
@given(
    st.tuples(
        joined(ENTRY),
        joined(LAYOUT, 4),
        joined(SLOT, 9),
        joined(CHAIN, 5),
        st.integers(-1, 6),
        U64,
        NUMBER,
        NUMBER,
        st.integers(0, 5),
        NUMBER,
        st.sampled_from([bytes(range(6)), b"12345"]),
    )
)
def test_both_plan_the_same_for_anything(arguments):
    assert_alike("plan_reads", *arguments)


GOOD_ENTRY = st.builds(
    batches.ENTRY.pack,
    U64,
    st.integers(0, 2**40),
    NUMBER,
    st.integers(1, 1000),
    st.sampled_from(KEYS),
)


def in_a_row(entries_and_marks):
    """Return entries of which those that are marked begin where the one before ends."""
    found = []
    for entry, is_continued in entries_and_marks:
        packed = entry
        if found and is_continued:
            *numbers, key = batches.ENTRY.unpack(found[-1])
            numbers = continued(*numbers)
            if max(numbers) < 2**64:
                packed = batches.ENTRY.pack(*numbers, key)
        found.append(packed)
    return b"".join(found)


GOOD_CHAIN = st.builds(
    lambda chain, count, nodes: batches.CHAIN_NODES.pack(chain, 3, count, *nodes),
    U64,
    st.integers(1, 7),
    st.lists(st.integers(0, 4), min_size=7, max_size=7),
)


@needs_compiler
@pytest.mark.slow
@given(
    st.lists(st.tuples(GOOD_ENTRY, st.booleans()), max_size=30).map(in_a_row),
    st.lists(st.integers(0, 4), min_size=8, max_size=8),
    st.lists(GOOD_CHAIN, min_size=5, max_size=5),
    st.tuples(
        U64,
        st.sampled_from([1, 1000, 5000]),
        st.sampled_from([0, 1500, 2**40]),
        st.integers(1, 9),
        st.sampled_from([1, 3000, 10**6]),
    ),
)
def test_both_plan_the_same(entries, slots, chains, bounds):
    layouts = b"".join(
        batches.FILE_LAYOUT.pack(key, 7 + n, 2 ** (20 + n), 2 + n, n) for n, key in enumerate(KEYS)
    )
    packed_slots = b"".join(map(batches.SLOT.pack, slots))
    assert_alike(
        "plan_reads", entries, layouts, packed_slots, b"".join(chains), 5,
        *bounds, b"\x2a\x32\x3a\x42\x4a\x52",
    )  # fmt: skip


@needs_compiler
def test_random_calls():
    differ = Differ(compiled, 1)
    for _ in range(200):
        differ.call_each()
    assert differ.planned > 20


ROW = st.builds(
    batches.ROW.pack,
    st.one_of(st.integers(0, 120), U64),
    st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)),
    st.integers(0, 9),
)


@needs_compiler
@pytest.mark.slow
@given(joined(ROW, 6), st.booleans(), st.lists(st.integers(0, 2**32 - 1), max_size=3), st.data())
def test_both_know_where_replies_go_and_whether_they_are_good(rows, is_fitting, lengths, data):
    view = memoryview(bytes(range(128)))
    checksums = data.draw(st.one_of(st.none(), st.lists(U64, max_size=3)))
    total = data.draw(NUMBER)
    if is_fitting and not len(rows) % batches.ROW.size:
        found = list(batches.ROW.iter_unpack(rows))
        lengths = [length for _, length, _ in found]
        checksums = [xxh3_64_intdigest(view[place:][:length]) for place, length, _ in found]
        total = sum(lengths)
    assert_alike("windows_of", view, rows, lengths, total)
    assert_alike("have_come", view, rows, lengths, checksums)


TAGS = b"\x0a\x12\x1a"


def reply_with(lengths, checksums, *, rest=b""):
    """Return a message of two columns as protobuf would have it,
    the tag of the second being that of the third.
    """
    numbers = b"".join(map(varint, lengths))
    sums = b"".join(checksum.to_bytes(8, "little") for checksum in checksums)
    parts = (TAGS[:1], varint(len(numbers)), numbers, TAGS[2:], varint(len(sums)), sums, rest)
    return b"".join(parts)


def varint(value):
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@needs_compiler
@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 40)), max_size=5),
    st.sampled_from(["good", "length", "checksum", "payload", "cut", "rest", "any"]),
    st.booleans(),
    st.data(),
)
def test_both_put_the_same_in_the_same_places(places, fault, verifies, data):
    rows, sent = rows_of(*places), [bytes([n + 1]) * length for n, (_, length) in enumerate(places)]
    lengths, checksums = list(map(len, sent)), list(map(xxh3_64_intdigest, sent))
    if fault in {"length", "checksum"} and sent:
        column = lengths if fault == "length" else checksums
        column[data.draw(st.integers(0, len(sent) - 1))] ^= 1
    rest = data.draw(st.binary(max_size=6)) if fault == "rest" else b""
    message, payload = reply_with(lengths, checksums, rest=rest), b"".join(sent)
    if fault == "cut":
        message = message[: data.draw(st.integers(0, len(message)))]
    if fault == "any":
        message = data.draw(st.binary(max_size=40))
    payload = payload[1:] if fault == "payload" else payload
    views = [memoryview(bytearray(128)) for _ in range(2)]
    asked = rows, message, TAGS, payload, verifies
    found = [
        said(kernel.put_reply, view, *asked)
        for kernel, view in zip((compiled, batches_twin), views, strict=True)
    ]
    assert found[0] == found[1]
    assert views[0] == views[1]
    if fault == "good" and all(place + length <= 128 for place, length in places):
        assert found[0]


def test_a_reply_is_put_in_its_places_and_checked(kernel):
    view, rows = memoryview(bytearray(10)), rows_of((0, 3), (5, 4))
    checksums = [xxh3_64_intdigest(b"abc"), xxh3_64_intdigest(b"defg")]
    good = reply_with([3, 4], checksums)
    assert kernel.put_reply(view, rows, good, TAGS, b"abcdefg", True)
    assert bytes(view) == b"abc\0\0defg\0"
    for wrong in (b"abcdefG", b"abcdef", b"abcdefgh"):
        assert not kernel.put_reply(view, rows, good, TAGS, wrong, True)
    assert kernel.put_reply(view, rows, reply_with([3, 4], []), TAGS, b"ABCDEFG", False)
    assert bytes(view) == b"ABC\0\0DEFG\0"
    for strange in (
        reply_with([3, 4], []),
        reply_with([3, 4], checksums[:1]),
        reply_with([3, 3], checksums),
        reply_with([3, 4, 0], checksums),
        reply_with([3, 4], checksums, rest=b"\x22\x00"),
        good + good,
    ):
        assert not kernel.put_reply(view, rows, strange, TAGS, b"abcdefg", True)
    with pytest.raises(ValueError, match="beyond"):
        kernel.put_reply(view, rows_of((8, 3)), good, TAGS, b"abc", False)
    with pytest.raises(ValueError, match=r"tags|columns"):
        kernel.put_reply(view, rows, good, TAGS[:2], b"abcdefg", True)


def test_whichever_number_begins_every_node_is_looked_at(kernel):
    entries = [batches.ENTRY.pack(n, 65536 * n, 0, 10, KEYS[0]) for n in range(3)]
    layout = batches.FILE_LAYOUT.pack(KEYS[0], 1, 65536, 3, 0)
    slots = b"".join(map(batches.SLOT.pack, range(3)))
    ways = [(1, 0, 0, 0), (1, 1, 0, 0), (3, 0, 1, 2)]
    chains = b"".join(batches.CHAIN_NODES.pack(7, 1, *way, 0, 0, 0, 0) for way in ways)
    for start in (0, 1, 2, 2**64 - 1):
        found = kernel.plan_reads(
            b"".join(entries), layout, slots, chains, 3, start, 1, 0, 9, 99, bytes(6)
        )
        assert [node for node, *_ in found] == [0, 1, 2]


ENTRIES_IN_A_ROW = [(0, 0, 10), (10, 10, 20), (30, 30, 30), (60, 60, 60)]
"""Offsets in the file and in the memory, and lengths; the last one goes beyond a chunk of 100."""


@pytest.mark.parametrize(
    ("entries", "joined_max", "bytes_max", "wanted"),
    [
        (ENTRIES_IN_A_ROW, 1000, 1000, [(0, 100, 0), (100, 20, 3)]),
        (ENTRIES_IN_A_ROW, 60, 1000, [(0, 60, 0), (60, 40, 3), (100, 20, 3)]),
        (ENTRIES_IN_A_ROW, 1000, 59, [(0, 30, 0), (30, 30, 2), (60, 40, 3), (100, 20, 3)]),
        (
            ENTRIES_IN_A_ROW,
            0,
            1000,
            [(0, 10, 0), (10, 20, 1), (30, 30, 2), (60, 40, 3), (100, 20, 3)],
        ),
        ([(0, 0, 10), (10, 11, 10)], 1000, 1000, [(0, 10, 0), (11, 10, 1)]),
        ([(0, 0, 10), (11, 10, 10)], 1000, 1000, [(0, 10, 0), (10, 10, 1)]),
        ([(10, 10, 10), (0, 0, 10)], 1000, 1000, [(10, 10, 0), (0, 10, 1)]),
        ([(0, 2**64 - 10, 10), (10, 0, 10)], 1000, 1000, [(2**64 - 10, 10, 0), (0, 10, 1)]),
    ],
)
def test_what_continues_the_piece_before_is_joined_to_it(
    kernel, entries, joined_max, bytes_max, wanted
):
    packed = b"".join(
        batches.ENTRY.pack(n, offset, place, length, KEYS[0])
        for n, (offset, place, length) in enumerate(entries)
    )
    layout = batches.FILE_LAYOUT.pack(KEYS[0], 1, 100, 1, 0)
    chains = batches.CHAIN_NODES.pack(7, 1, 1, *[0] * 7)
    bounds = 1000, joined_max, 99, bytes_max
    found = kernel.plan_reads(packed, layout, bytes(4), chains, 1, 0, *bounds, bytes(6))
    rows = [row for _, _, rows, _ in found for row in batches.ROW.iter_unpack(rows)]
    assert rows == wanted
    assert sum(byte_count for *_, byte_count in found) == sum(length for *_, length in entries)


def test_pieces_of_other_files_are_not_joined(kernel):
    entries = [batches.ENTRY.pack(n, 10 * n, 10 * n, 10, KEYS[n]) for n in range(2)]
    layouts = [batches.FILE_LAYOUT.pack(KEYS[n], n, 100, 1, 0) for n in range(2)]
    chains = batches.CHAIN_NODES.pack(7, 1, 1, *[0] * 7)
    ((_, _, rows, _),) = kernel.plan_reads(
        b"".join(entries), b"".join(layouts), bytes(4), chains, 1, 0, 1, 1000, 9, 1000, bytes(6)
    )
    assert list(batches.ROW.iter_unpack(rows)) == [(0, 10, 0), (10, 10, 1)]


def rows_of(*places_and_lengths):
    return b"".join(batches.ROW.pack(*one, n) for n, one in enumerate(places_and_lengths))


def test_neighbours_are_one_window(kernel):
    view = memoryview(bytearray(range(100)))
    rows = rows_of((10, 5), (15, 5), (50, 2), (20, 1), (21, 1))
    windows = kernel.windows_of(view, rows, [5, 5, 2, 1, 1], 14)
    assert list(map(bytes, windows)) == [bytes(view[10:20]), bytes(view[50:52]), bytes(view[20:22])]
    windows[0][0] = 99
    assert view[10] == 99
    assert kernel.windows_of(view, rows, [5, 5, 2, 1, 0], 13) is None
    assert kernel.windows_of(view, rows, [5, 5, 2, 1, 1], 13) is None


def test_a_changed_byte_is_seen(kernel):
    memory = bytearray(range(100))
    rows = rows_of((0, 50), (50, 50))
    checksums = [xxh3_64_intdigest(memory[:50]), xxh3_64_intdigest(memory[50:])]
    assert kernel.have_come(memoryview(memory), rows, [50, 50], checksums)
    memory[99] ^= 1
    assert not kernel.have_come(memoryview(memory), rows, [50, 50], checksums)
    assert kernel.have_come(memoryview(memory), rows, [50, 50], None)
    assert not kernel.have_come(memoryview(memory), rows, [50, 49], None)
    assert not kernel.have_come(memoryview(memory), rows_of((60, 50)), [50], checksums[:1])


@pytest.mark.parametrize("count", [100, 70_000])
def test_nothing_is_kept_of_many_calls(kernel, count):
    """More entries than a ring can have are refused,
    and whatever happens no buffer stays in use.
    """
    memory = bytearray(batches.ENTRY.pack(7, 0, 0, 10, KEYS[0]) * count)
    layout = bytearray(batches.FILE_LAYOUT.pack(KEYS[0], 1, 65536, 1, 0))
    slots, tags = bytearray(4), bytearray(6)
    chains = bytearray(batches.CHAIN_NODES.pack(1, 1, 1, *[0] * 7))
    arguments = memory, layout, slots, chains, 1, 0, 1000, 0, 1000, 1 << 20, tags
    if count > 2**16:
        with pytest.raises(ValueError, match="entries"):
            kernel.plan_reads(*arguments)
    else:
        assert len(kernel.plan_reads(*arguments)) == 1
    assert kernel.kinds_of(memory, 1, 100, 0, 100, 100, 1) == [KEYS[0]]
    assert len(kernel.completions_of(memory)) == count * batches.COMPLETION.size
    for buffer in arguments:
        if isinstance(buffer, bytearray):
            buffer.extend(b"x")  # a BufferError if it were still lent
