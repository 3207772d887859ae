"""The checker accepts what some order explains and rejects damaged histories."""

import random
from dataclasses import replace

import pytest

from .linearizable import FOREVER, Op, is_linearizable


def w(value, begin, end=FOREVER):
    return Op("write", value, begin, end)


def r(value, begin, end):
    return Op("read", value, begin, end)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], True),
        ([r(0, 0, 1)], True),
        ([r(1, 0, 1)], False),
        ([w(1, 0, 1), r(1, 2, 3)], True),
        ([w(1, 0, 1), r(0, 2, 3)], False),
        ([w(1, 0, 5), r(0, 1, 2), r(1, 3, 4)], True),
        ([w(1, 0, 5), r(1, 1, 2), r(0, 3, 4)], False),
        ([w(1, 0), r(0, 1, 2), r(1, 3, 4), r(1, 5, 6)], True),
        ([w(1, 0), r(1, 1, 2), r(0, 3, 4)], False),
        ([w(1, 0, 1), w(2, 2, 3), r(1, 4, 5)], False),
        ([w(1, 0, 3), w(2, 0, 3), r(1, 4, 5), r(2, 6, 7)], False),
        ([w(1, 0, 3), w(2, 0, 3), r(1, 4, 5), r(1, 6, 7)], True),
    ],
)
def test_small_histories(history, expected):
    assert is_linearizable(history, 0) is expected


def make_history(generator: random.Random, op_count: int) -> list[Op]:
    """Return a history made from a real order: each operation takes effect somewhere within its span."""
    history, value = [], 0
    for number in range(1, op_count + 1):
        instant = number * 1.0
        begin, end = instant - generator.random() * 3, instant + generator.random() * 3
        if generator.random() < 0.4:
            value = number
            history.append(w(value, begin, FOREVER if generator.random() < 0.1 else end))
        else:
            history.append(r(value, begin, end))
    return history


def test_true_histories_are_accepted_and_damaged_ones_rejected():
    generator = random.Random(5)
    damaged_count = 0
    for _ in range(100):
        history = make_history(generator, 60)
        assert is_linearizable(history, 0)
        reads = [i for i, op in enumerate(history) if op.kind == "read"]
        index = generator.choice(reads)
        broken = list(history)
        broken[index] = replace(broken[index], value=-1)
        assert not is_linearizable(broken, 0)
        late = [i for i in reads if i > 40 and history[i].value != 0]
        if late:
            broken = list(history)
            broken[late[-1]] = replace(broken[late[-1]], value=0)
            damaged_count += not is_linearizable(broken, 0)
    assert damaged_count > 80
