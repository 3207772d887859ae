"""The pure parts of the KV cache: bytes of a segment, the index against a model,
the choice of what goes.
"""

import random

import pytest
from emberfs.kvcache_format import (
    DELETED,
    ENTRY_BYTES,
    HEAD_BYTES,
    Entry,
    Geometry,
    Header,
    pack_entry,
    pack_header,
    parse_entries,
    parse_header,
)
from emberfs.kvcache_index import LEFTOVER_MS, Index, Limits, Place, SegmentFacts, choose
from hypothesis import given
from hypothesis import strategies as st

ID = bytes(range(16))
U64 = st.integers(0, 2**64 - 1)
ENTRIES = st.builds(Entry, st.binary(min_size=16, max_size=16), U64, U64)
GEOMETRY = Geometry(4096, 100)


def test_the_bytes_are_those_of_the_document():
    assert (HEAD_BYTES, ENTRY_BYTES) == (72, 40)
    assert (GEOMETRY.entry_offset(3), GEOMETRY.data_offset) == (4096 + 120, 1 << 20)
    assert GEOMETRY.block_offset(2) == (1 << 20) + 8192
    assert GEOMETRY.file_bytes == (1 << 20) + 409_600
    assert Geometry(512, 30_000).data_offset == 2 << 20
    header = pack_header(Header(ID, GEOMETRY, 1_700_000_000_000))
    assert header.hex() == (
        "454d4245524b5631000102030405060708090a0b0c0d0e0f00100000000000006400000000000000"
        "0068e5cf8b010000" + header[-8:].hex()
    )
    assert pack_entry(ID, 0, DELETED)[:32] == bytes(32)


@pytest.mark.thorough
@given(st.data(), ENTRIES, st.integers(0, 2**20 - 1))
def test_an_entry_that_was_changed_or_moved_is_none(data, entry, slot):
    packed = pack_entry(ID, slot, entry)
    assert list(parse_entries(ID, slot, packed)) == [(slot, entry)]
    assert not list(parse_entries(ID, slot + 1, packed))
    assert not list(parse_entries(bytes(16), slot, packed))
    at = data.draw(st.integers(0, ENTRY_BYTES - 1))
    damaged = bytearray(packed)
    damaged[at] ^= data.draw(st.integers(1, 255))
    assert not list(parse_entries(ID, slot, bytes(damaged)))


@pytest.mark.thorough
@given(st.lists(ENTRIES, max_size=6), st.integers(0, 6 * ENTRY_BYTES))
def test_of_a_cut_index_the_whole_entries_are_read(entries, length):
    packed = b"".join(pack_entry(ID, slot, entry) for slot, entry in enumerate(entries, 7))
    found = [entry for _, entry in parse_entries(ID, 7, packed[:length])]
    assert found == entries[: length // ENTRY_BYTES]


@pytest.mark.thorough
@given(st.data(), st.integers(1, 1 << 30), st.integers(1, 1 << 20), U64)
def test_a_header_that_was_changed_is_none(data, block_bytes, slots, made_ms):
    header = Header(ID, Geometry(block_bytes, slots), made_ms)
    packed = bytearray(pack_header(header))
    assert parse_header(bytes(packed)) == header
    assert parse_header(bytes(packed[:-1])) is None
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    assert parse_header(bytes(packed)) is None


def test_nothing_is_neither_header_nor_entry():
    assert parse_header(bytes(4096)) is None
    assert not list(parse_entries(ID, 0, bytes(4000)))


@pytest.mark.parametrize(
    ("size", "count"), [(0, 1), (1, 0), ((1 << 30) + 1, 1), (1, (1 << 20) + 1)]
)
def test_limits_of_geometry(size, count):
    with pytest.raises(ValueError, match="can be"):
        Geometry(size, count)


# ---- the index -----------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]
DIGESTS = [bytes([n]) * 16 for n in range(1, 5)]
SLOTS = 5
STEPS = st.one_of(
    st.tuples(
        st.just("add"),
        st.sampled_from(NAMES),
        st.integers(0, SLOTS - 1),
        st.sampled_from(DIGESTS),
        st.integers(1, 9),
    ),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("forget"), st.sampled_from(NAMES), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("doubt"), st.sampled_from(NAMES), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("trust"), st.sampled_from(NAMES), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("refresh"), st.sampled_from(NAMES)),
    st.tuples(st.just("clear"), st.sampled_from(NAMES)),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
)


@pytest.mark.thorough
@given(st.lists(STEPS, max_size=30))
def test_the_index_finds_exactly_what_a_list_of_slots_has(steps):
    index, model, doubted, refresh_count = Index(), {}, {}, 0
    for kind, name, *rest in steps:
        if name not in model:
            index.add_segment(name, Geometry(1, SLOTS))
            model[name] = {}
        if kind == "add":
            slot, digest, put_ms = rest
            if model[name].get(slot, (None, 0))[0] != digest:
                model[name][slot] = (digest, put_ms)
                doubted.pop((name, slot), None)
            index.add(name, slot, Entry(digest, put_ms * 10, put_ms))
        elif kind == "delete":
            index.add(name, rest[0], DELETED)
            model[name].pop(rest[0], None)
        elif kind == "forget":
            index.forget(name, rest[0])
            model[name].pop(rest[0], None)
        elif kind == "doubt":
            index.doubt(name, rest[0])
            if rest[0] in model[name]:
                doubted[name, rest[0]] = refresh_count
        elif kind == "trust":
            index.trust([Place(name, rest[0], 0)])
            doubted.pop((name, rest[0]), None)
        elif kind == "refresh":
            index.note_refresh()
            refresh_count += 1
        elif kind == "clear":
            index.clear_segment(name)
            model[name] = {}
        else:
            index.drop_segment(name)
            del model[name]
        doubted = {(n, s): since for (n, s), since in doubted.items() if s in model.get(n, {})}
        due = {place for place, since in doubted.items() if since < refresh_count}
        check(index, model, set(doubted), due)


def check(index, model, doubted, due):
    held = [(d, n, s, ms) for n, slots in model.items() for s, (d, ms) in slots.items()]
    assert len(index) == len({digest for digest, *_ in held})
    for digest in DIGESTS:
        places = {(n, s) for d, n, s, _ in held if d == digest}
        assert set(index.all_of(digest)) == places
        for after_ms in (-1, 4):
            fresh = {(n, s): ms for d, n, s, ms in held if d == digest and ms > after_ms}
            sure = {Place(*place, ms * 10) for place, ms in fresh.items() if place not in doubted}
            again = {Place(*place, ms * 10) for place, ms in fresh.items() if place in due}
            for is_sure, wanted in ((True, sure), (False, sure or again)):
                found = index.find(digest, after_ms, is_sure=is_sure)
                assert found in wanted if wanted else found is None


def test_slots_are_known_up_to_the_first_gap():
    index = Index()
    index.add_segment("a", Geometry(1, 4))
    for slot, known in ((1, 0), (2, 0), (0, 3), (3, 4)):
        index.add("a", slot, Entry(bytes([slot + 1]) * 16, 1, 1))
        assert (index.segments["a"].known, len(index)) == (known, index.segments["a"].seen_count)


# ---- what goes -----------------------------------------------------------------------------------

FACTS = st.builds(
    SegmentFacts,
    name=st.uuids().map(str),
    byte_count=st.integers(0, 100),
    used_ms=st.integers(0, 2 * LEFTOVER_MS),
    newest_put_ms=st.integers(0, 2 * LEFTOVER_MS),
    is_empty=st.booleans(),
    is_own=st.booleans(),
    is_segment=st.booleans(),
)
LIMITS = st.builds(
    Limits,
    byte_count=st.integers(0, 500),
    segment_count=st.integers(1, 8),
    ttl_ms=st.none() | st.integers(1, LEFTOVER_MS),
)


@pytest.mark.thorough
@given(
    st.lists(FACTS, max_size=12, unique_by=lambda one: one.name),
    LIMITS,
    st.integers(0, 2 * LEFTOVER_MS),
    st.randoms(),
)
def test_what_is_chosen(facts, limits, now_ms, shuffler):
    gone = set(choose(facts, limits, now_ms))
    shuffled = list(facts)
    shuffler.shuffle(shuffled)
    assert set(choose(shuffled, limits, now_ms)) == gone
    left = [one for one in facts if one.name not in gone and one.is_segment]
    assert all(one.is_own or one.name in gone for one in facts if useless(one, limits, now_ms))
    assert not any(one.is_own for one in facts if one.name in gone)
    if any(not one.is_own for one in left):  # the limits are kept, or nothing else could go
        assert len(left) <= limits.segment_count
    if any(not one.is_own and one.byte_count for one in left):
        assert sum(one.byte_count for one in left) <= limits.byte_count
    assert all(one.is_segment or useless(one, limits, now_ms) for one in facts if one.name in gone)
    victims = [one for one in facts if one.name in gone and not useless(one, limits, now_ms)]
    for victim in victims:  # none was used later than one that stays
        assert all(
            min(victim.used_ms, now_ms) <= min(one.used_ms, now_ms)
            for one in left
            if not one.is_own
        )
    if victims:  # and the last of them had to go
        last = max(victims, key=lambda one: (min(one.used_ms, now_ms), one.name))
        with_it = [*left, last]
        assert (
            sum(one.byte_count for one in with_it) > limits.byte_count
            or len(with_it) > limits.segment_count
        )


def useless(one, limits, now_ms):
    if not one.is_segment:
        return now_ms - one.used_ms >= LEFTOVER_MS
    is_expired = limits.ttl_ms is not None and now_ms - one.newest_put_ms >= limits.ttl_ms
    return one.is_empty or is_expired


def test_a_cache_within_its_limits_loses_nothing():
    random.seed(1)
    facts = [SegmentFacts(f"{n}", 10, random.randrange(100), 0) for n in range(10)]
    assert choose(facts, Limits(100, 10, None), 1000) == []
    assert len(choose(facts, Limits(99, 10, None), 1000)) == 1
