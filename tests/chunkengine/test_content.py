from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fs.chunkengine.checksum import digest_of, packed_checksums
from fs.chunkengine.content import cut_content, new_content, plan_update
from tests.examples import many

BLOCK = 64


def content(length: int, seed: int) -> bytes:
    return bytes((seed + 7 * i) % 251 for i in range(length))


@settings(max_examples=many(300), deadline=None)
@given(st.integers(0, 500), st.integers(0, 700), st.integers(0, 400), st.booleans(), st.booleans())
def test_an_update_makes_the_same_content_and_checksums_as_a_whole_write(
    old_length: int, offset: int, data_length: int, may_append: bool, is_roomy: bool
) -> None:
    old, data = content(old_length, 1), content(data_length, 90)
    capacity = 2000 if is_roomy else old_length
    plan = plan_update(old_length, capacity, offset, data_length, BLOCK, may_append=may_append)
    expected = old.ljust(offset, b"\0")[:offset] + data + old[offset + data_length :]
    head = memoryview(old)[plan.head_from : plan.head_to] if plan.head_to > plan.head_from else None
    tail = memoryview(old)[plan.tail_from :]
    for start, end in ((plan.head_from, plan.head_to), (plan.tail_from, old_length)):
        assert start % BLOCK == 0 or start >= end
        assert end <= start or end % BLOCK == 0 or end == old_length
    parts, checksums = new_content(
        plan, packed_checksums([old], BLOCK), head or memoryview(b""), tail, data
    )
    written = b"".join(parts)
    made = old + written if plan.is_in_place else written
    assert made == expected
    assert plan.new_length == len(expected)
    assert checksums == packed_checksums([expected], BLOCK)
    assert not plan.is_in_place or (may_append and offset >= old_length)


@given(st.integers(0, 500), st.data())
def test_a_cut_keeps_the_front(old_length: int, draw) -> None:
    old = content(old_length, 3)
    length = draw.draw(st.integers(0, old_length))
    head = memoryview(old)[: min(-(-length // BLOCK) * BLOCK, old_length)]
    parts, checksums = cut_content(head, packed_checksums([old], BLOCK), length, BLOCK)
    assert b"".join(parts) == old[:length]
    assert checksums == packed_checksums([old[:length]], BLOCK)


@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=6))
def test_checksums_do_not_depend_on_how_content_is_cut(data: bytes, cuts: list[int]) -> None:
    points = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    parts = [data[a:b] for a, b in pairwise(points)]
    assert packed_checksums(parts, BLOCK) == packed_checksums([data], BLOCK)


def test_what_the_data_covers_is_not_read() -> None:
    plan = plan_update(1000, 4096, 0, 1000, BLOCK, may_append=True)
    assert (plan.head_to, plan.tail_from) == (0, 1000)
    plan = plan_update(1000, 1000, 64, 936, BLOCK, may_append=True)
    assert (plan.head_from, plan.head_to, plan.tail_from) == (0, 64, 1000)
    plan = plan_update(1000, 4096, 1000, 10, BLOCK, may_append=True)
    assert plan.is_in_place
    assert (plan.head_from, plan.head_to, plan.tail_from) == (960, 1000, 1000)


def test_the_digest_knows_the_length_and_is_pinned() -> None:
    sums = packed_checksums([b"emberfs"], BLOCK)
    assert sums.hex() == SUMS
    assert digest_of(sums, 7) != digest_of(sums, 8)
    assert digest_of(sums, 7) == DIGEST


SUMS = "b777fa83bcc9b391"
DIGEST = 10423168735997407106
