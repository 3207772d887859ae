"""What a power loss may leave: accepted where it may, refused where it may not."""

import pytest

from .linearizable import FOREVER, Op
from .recovered import TreeOp, allowed_trees, is_linearizable_across, survivors


def w(value, begin, end=FOREVER):
    return Op("write", value, begin, end)


def r(value, begin, end):
    return Op("read", value, begin, end)


@pytest.mark.parametrize(
    ("history", "cuts", "expected"),
    [
        # Unsynced and lost; synced and lost; synced and there.
        ([w(1, 0, 1), r(0, 11, 12)], [(10, 0)], True),
        ([w(1, 0, 1), r(0, 11, 12)], [(10, 5)], False),
        ([w(1, 0, 1), r(1, 11, 12)], [(10, 5)], True),
        # Of two writes the newer was not synced.
        ([w(1, 0, 1), w(2, 6, 7), r(1, 11, 12)], [(10, 5)], True),
        ([w(1, 0, 1), w(2, 6, 7), r(0, 11, 12)], [(10, 5)], False),
        # After the cut there is one value, and it does not change by itself.
        ([w(1, 0, 1), r(0, 11, 12), r(1, 13, 14)], [(10, 0)], False),
        # Under way at the cut: done before, overwritten, and done again.
        ([w(1, 9, 30), r(1, 11, 12), w(2, 13, 14), r(1, 20, 21)], [(10, 0)], True),
        ([w(1, 9, 15), r(1, 11, 12), w(2, 16, 17), r(1, 20, 21)], [(10, 0)], False),
        # Acknowledged in the moment of the cut, it may be gone; one that is read after it is there.
        ([w(1, 9, 10), r(0, 11, 12)], [(10, 0)], True),
        ([w(1, 9, 10), r(1, 11, 12)], [(10, 0)], True),
        ([w(1, 9, 10), r(1, 11, 12), r(0, 13, 14)], [(10, 0)], False),
        # Without a cut nothing is forgiven.
        ([w(1, 0, 1), r(0, 11, 12)], [], False),
        # A read on both sides says nothing.
        ([w(1, 0, 1), r(7, 9, 11)], [(10, 0)], True),
        # What the first cut took does not come back at the second.
        ([w(1, 0, 1), r(0, 11, 12), r(1, 21, 22)], [(10, 0), (20, 20)], False),
        ([w(1, 0, 1), r(0, 11, 12), r(0, 21, 22)], [(10, 0), (20, 20)], True),
    ],
)
def test_registers_across_cuts(history, cuts, expected):
    assert is_linearizable_across(history, 0, cuts) is expected


@pytest.mark.parametrize(
    ("history", "kept", "expected"),
    [
        ([w(1, 0, 1), r(0, 11, 12)], {1}, False),
        ([w(1, 0, 1), r(1, 11, 12)], {1}, True),
        ([w(1, 0, 1), w(2, 3, 4), r(2, 11, 12)], {1}, True),
        ([w(1, 0, 1), w(2, 3, 4), r(1, 11, 12)], {1}, True),
        # It was acknowledged after the cut, by a repeat.
        ([w(1, 9, 13), r(0, 11, 12)], {1}, True),
    ],
)
def test_what_a_later_sync_vouches_for_was_not_lost(history, kept, expected):
    assert is_linearizable_across(history, 0, [(10, 0)], kept) is expected


def test_survivors_are_what_nobody_overwrote_before_the_sync():
    writes = [w(1, 0, 1), w(2, 2, 3), w(3, 2, 9), w(4, 10)]
    assert survivors(writes, 5) == {2, 3, 4}
    assert survivors(writes, 2) == {1, 2, 3, 4}
    assert survivors(writes, 0, {2, 4}) == {2, 3, 4}


def test_trees_after_a_power_loss():
    recent = [{"a": b"1"}, {"b": b"1"}]
    found = allowed_trees(recent, TreeOp("unlink", "b"))
    assert {"a": b"1"} in found and {"b": b"1"} in found and {} in found
    found = allowed_trees(recent, TreeOp("write", "b", content=b"22"))
    assert {"a": b"1", "b": b"22"} in found and {"b": b""} in found
    assert {"b": b"12"} not in found and {} not in found


def test_a_repeat_after_a_cut_may_have_been_done_before_it():
    slow, fast = Op("write", 1, 1, 12), Op("write", 2, 3, 4)
    seen = [Op("read", 1, 2, 3), Op("read", 2, 5, 6)]
    later = [Op("read", 2, 13, 14)]
    assert is_linearizable_across([slow, fast, *seen, *later], 0, [(10, 0)])
    # Nobody has overwritten it, so its client was told of a success that did not last.
    assert not is_linearizable_across([slow, Op("read", 0, 13, 14)], 0, [(10, 0)])
    early = Op("write", 2, 0.2, 0.5)
    assert not is_linearizable_across([early, slow, *later], 0, [(10, 0)])
