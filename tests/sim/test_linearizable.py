"""The checker accepts what some order explains and rejects damaged histories."""

import random
from dataclasses import replace
from itertools import combinations, permutations

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
    """Return a history made from a real order:
    each operation takes effect somewhere within its span.
    """
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


def brute_force(history: list[Op], initial: object) -> bool:
    """Try every order of every choice of the operations of unknown outcome."""
    certain = [op for op in history if op.end_s < FOREVER]
    unknown = [op for op in history if op.end_s == FOREVER and op.kind == "write"]
    for count in range(len(unknown) + 1):
        for chosen in combinations(unknown, count):
            for order in permutations([*certain, *chosen]):
                if explains(order, initial):
                    return True
    return False


def explains(order: tuple[Op, ...], value: object) -> bool:
    latest_begin = -FOREVER
    for op in order:
        if op.end_s < latest_begin:
            return False
        latest_begin = max(latest_begin, op.begin_s)
        if op.kind == "write":
            value = op.value
        elif op.value != value:
            return False
    return True


def test_as_every_order_tried():
    generator, verdicts = random.Random(3), []
    for _ in range(400):
        history = [
            Op(
                generator.choice(["read", "write"]),
                generator.randrange(3),
                begin := generator.uniform(0, 4),
                FOREVER if generator.random() < 0.3 else begin + generator.uniform(0, 3),
            )
            for _ in range(5)
        ]
        verdicts.append(is_linearizable(history, 0))
        assert verdicts[-1] == brute_force(history, 0), history
    assert 50 < sum(verdicts) < 350


def client_history(generator: random.Random, client_count: int, op_count: int) -> list[Op]:
    """Return a true history of clients that do one thing after the other,
    some of it with unknown outcome.
    """
    spans = []
    for client in range(client_count):
        end = generator.random()
        for _ in range(op_count):
            begin = end + generator.expovariate(2)
            end = begin + generator.expovariate(1)
            spans.append((generator.uniform(begin, end), begin, end, f"client-{client}"))
    history, value = [], 0
    for number, (_, begin, end, who) in enumerate(sorted(spans), 1):
        if generator.random() < 0.4:
            is_unknown = generator.random() < 0.02
            value = value if is_unknown and generator.random() < 0.5 else number
            history.append(Op("write", number, begin, FOREVER if is_unknown else end, who))
        else:
            history.append(Op("read", value, begin, end, who))
    return history


def damaged(generator: random.Random, history: list[Op]) -> tuple[str, list[Op]]:
    """Change one value, one order or one acknowledgement,
    so that no order can explain the history any more.
    """
    kind = generator.choice(["value", "order", "acknowledgement"])
    reads = [op for op in history if op.kind == "read"]
    writes = {op.value: op for op in history if op.kind == "write"}
    known = [op for op in writes.values() if op.end_s < FOREVER]
    while True:
        op = generator.choice(reads)
        write = writes.get(op.value)
        if kind == "value":  # what was overwritten before
            old, new = generator.sample(known, 2)
            if old.end_s < new.begin_s and new.end_s < op.begin_s:
                return kind, [replace(o, value=old.value) if o is op else o for o in history]
        elif write is not None and kind == "order":  # read before it was written
            return kind, [
                replace(o, begin_s=write.begin_s - 2, end_s=write.begin_s - 1) if o is op else o
                for o in history
            ]
        elif write is not None:  # an acknowledged write that never was
            return kind, [o for o in history if o is not write]


@pytest.mark.slow
def test_one_change_of_a_long_history_is_found():
    """5 clients, 1,000 operations each: true ones are accepted,
    100 of 100 damaged ones rejected.
    """
    generator, kinds = random.Random(11), []
    for number in range(100):
        if number % 20 == 0:
            history = client_history(generator, 5, 1000)
            assert is_linearizable(history, 0)
        kind, broken = damaged(generator, history)
        kinds.append(kind)
        assert not is_linearizable(broken, 0), kind
    assert set(kinds) == {"value", "order", "acknowledgement"}


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
