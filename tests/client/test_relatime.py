"""Which reads count, at the edges of the rule."""

import pytest

from fs.client.relatime import DAY_S, is_due

S = 10**9
NOW = 1_700_000_000 * S + 5


@pytest.mark.parametrize(
    ("atime", "mtime", "ctime", "now", "due"),
    [
        (NOW - 2, NOW - 3, NOW - 3, NOW, False),
        (NOW - 3, NOW - 3, NOW - 9, NOW, True),  # nobody knows which came first
        (NOW - 3, NOW - 9, NOW - 3, NOW, True),
        (NOW - 4, NOW - 3, NOW - 9, NOW, True),
        (NOW - 4, NOW - 9, NOW - 3, NOW, True),
        (NOW - DAY_S * S, 0, 0, NOW, True),
        (NOW - DAY_S * S + 5, 0, 0, NOW, True),  # whole seconds are compared
        (NOW - DAY_S * S + 6, 0, 0, NOW, True),
        (NOW - (DAY_S - 1) * S, 0, 0, NOW, False),
        (NOW, NOW - 1, NOW - 1, NOW, False),
        (NOW + 10 * S, NOW, NOW, NOW, False),  # set ahead, or the clock was set back
        (NOW + 10 * S, NOW + 11 * S, NOW, NOW, True),
        (NOW + 10 * DAY_S * S, NOW, NOW, NOW, False),
        (-DAY_S * S, -2 * DAY_S * S, -2 * DAY_S * S, 0, True),
        (-DAY_S * S, -2 * DAY_S * S, -2 * DAY_S * S, -1, False),
        (-1, -2, -2, 0, False),
        (0, -1, -1, DAY_S * S, True),
    ],
)
def test_what_counts(atime, mtime, ctime, now, due):
    assert is_due(atime, mtime, ctime, now) is due
