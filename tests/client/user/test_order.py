"""The order of an epoch: every sample once, the same everywhere, in equal shares,
from any position.
"""

import pytest
from emberfs.order import EpochOrder, permutation, share
from hypothesis import example, given
from hypothesis import strategies as st

SIZES = st.integers(0, 60)
SMALL = st.integers(1, 12)


def test_permutations_never_change():
    """Resumed runs, other machines and later versions rely on these."""
    assert permutation(10, "0:0:blocks") == [2, 8, 5, 3, 4, 7, 9, 0, 1, 6]
    assert list(EpochOrder(10, 3, 2, seed=7, epoch=1).between(0, 10)) == [
        2,
        5,
        0,
        3,
        1,
        4,
        6,
        7,
        9,
        8,
    ]


@given(SIZES, SMALL, SMALL, st.one_of(st.none(), st.integers()), st.integers(0, 3))
@example(10, 3, 2, 0, 0)
def test_every_sample_comes_once_and_pieces_fit_together(count, block, window, seed, epoch):
    order = EpochOrder(count, block, window, seed, epoch)
    whole = list(order.between(0, count))
    assert sorted(whole) == list(range(count))
    assert whole == [i for at in range(count) for i in order.between(at, at + 1)]
    third = count // 3
    assert whole == list(order.between(0, third)) + list(order.between(third, count + 5))
    if seed is None:
        assert whole == list(range(count))


@given(SIZES, SMALL, SMALL, st.integers())
def test_samples_stay_within_the_window_of_their_blocks(count, block, window, seed):
    order = EpochOrder(count, block, window, seed, 0)
    whole = list(order.between(0, count))
    seen, at = [], 0
    while at < count:
        blocks = set()
        end = at
        while end < count and len(blocks | {whole[end] // block}) <= window:
            blocks.add(whole[end] // block)
            end += 1
        seen += blocks
        at = end
    assert sorted(seen) == list(range(-(-count // block)))  # no block comes back later


@given(st.integers(0, 1000), SMALL)
def test_shares_are_equal_and_apart(count, shares):
    ranges = [share(count, number, shares) for number in range(shares)]
    assert {end - begin for begin, end in ranges} == {count // shares}
    assert [begin for begin, _ in ranges] == [n * (count // shares) for n in range(shares)]
    assert ranges[-1][1] <= count


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(EpochOrder(50, 5, 3, seed, epoch).between(0, 50))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_wrong_sizes_are_refused():
    for block, window in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            EpochOrder(10, block, window, 0, 0)
