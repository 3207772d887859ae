"""The model of the load and the plan of faults: what they accept, what they refuse."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .content import BLOCK_BYTES, FileModel, block_bytes
from .plan import DISK_OF_LOOP, KINDS, OF_MOUNT, RANGES_S, draw

pytestmark = pytest.mark.thorough

RUNS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 8), st.sampled_from(["ok", "sync", "fail"])),
    min_size=1,
    max_size=20,
)


def apply(runs):
    """A model after some writes, and a file that held each of them."""
    model, content = FileModel(7, 1), bytearray()
    for first, count, then in runs:
        data = model.write(first, count)
        end = first * BLOCK_BYTES + len(data)
        content.extend(bytes(max(0, end - len(content))))
        content[first * BLOCK_BYTES : end] = data
        if then == "sync":
            model.synced()
    return model, bytes(content)


@given(RUNS)
def test_what_was_written_is_right_and_nothing_else(runs):
    model, content = apply(runs)
    assert model.check(0, content) is None
    assert model.check_length(len(content)) is None
    assert model.check_length(len(content) - 1)
    first, count, _ = runs[-1]
    at = (first + count - 1) * BLOCK_BYTES + 100
    for wrong in (content[at] ^ 1, content[at] ^ 128):
        damaged = content[:at] + bytes([wrong]) + content[at + 1 :]
        assert "wrong bytes" in model.check(0, damaged)


@given(RUNS)
def test_an_older_version_is_a_lost_write(runs):
    model, content = apply(runs)
    first, count, then = runs[-1]
    block = first + count - 1
    older = block_bytes(7, 1, block, 0)
    stale = content[: block * BLOCK_BYTES] + older + content[(block + 1) * BLOCK_BYTES :]
    word = "lost synced write" if then == "sync" else "lost"
    assert word in model.check(0, stale)


@given(RUNS)
def test_after_an_error_synced_or_later_is_right_and_then_settled(runs):
    model, content = apply(runs)
    model.synced()
    before = content
    data = model.write(0, 2)
    after = data + content[2 * BLOCK_BYTES :]
    model.failed()
    assert model.check_length(len(before)) is None
    mixed = data[:BLOCK_BYTES] + before[BLOCK_BYTES : 2 * BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0")
    assert model.check(0, mixed) is None
    assert model.check(0, after[: 2 * BLOCK_BYTES]), "what was seen before must stay"


def test_blocks_tell_where_they_belong():
    found = {block_bytes(1, f, i, v) for f in range(4) for i in range(4) for v in range(1, 4)}
    assert len(found) == 48
    assert all(len(block) == BLOCK_BYTES for block in found)
    assert block_bytes(1, 1, 1, 0) == bytes(BLOCK_BYTES)


@given(st.integers(0, 2**32), st.booleans(), st.lists(st.sampled_from(KINDS), min_size=1))
def test_faults_are_drawn_from_the_seed_within_their_ranges(seed, has_loop, only):
    shape = {
        "storages": ["storage-1", "storage-2"],
        "loop_node": "storage-1" if has_loop else "",
        "others": ["mgmtd", "meta"],
        "only": [*only, "kill"],
    }
    one, two = (draw(random.Random(seed), **shape) for _ in range(2))
    assert one == two
    assert one.kind in shape["only"]
    assert has_loop or one.kind not in DISK_OF_LOOP
    assert one.victim in {"storage-1", "storage-2", "mgmtd", "meta", "all"}
    assert one.peer != one.victim
    low, high = RANGES_S.get(one.kind, (0.0, 0.0))
    assert low <= one.duration_s <= high


def test_every_kind_comes():
    generator = random.Random(1)
    shape = {"storages": ["storage-1"], "loop_node": "storage-1", "others": ["mgmtd"]}
    assert {draw(generator, **shape).kind for _ in range(1000)} == set(KINDS) - set(OF_MOUNT)
    shape["mount"] = "mount-1"
    assert {draw(generator, **shape).kind for _ in range(1000)} == set(KINDS)
