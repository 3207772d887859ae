"""Forgetting what came first: never less than what is too much,
and in the order in which it came.
"""

from fs.runtime.oldest import SHARE, forget_oldest


def test_nothing_goes_while_there_is_room():
    kept = {number: str(number) for number in range(16)}
    assert forget_oldest(kept, 16) is None and len(kept) == 16


def test_the_oldest_go_some_at_once():
    kept: dict[int, int] = {}
    last_gone = -1
    for number in range(1000):
        kept[number] = number
        gone = forget_oldest(kept, 16)
        if gone is not None:
            assert len(kept) == 16 - 16 // SHARE
            last_gone = gone
        assert list(kept) == list(range(last_gone + 1, number + 1)) and len(kept) <= 16
    assert last_gone > 900


def test_all_that_is_too_much_goes_at_once():
    kept = {number: number for number in range(100)}
    assert forget_oldest(kept, 3) == 96 and list(kept) == [97, 98, 99]
    assert forget_oldest(kept, 0) == 99 and not kept
