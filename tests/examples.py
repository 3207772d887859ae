"""How many examples a property test tries that wants more than others,
and which cases of a table the fast part leaves to the whole.
"""

import os
from collections.abc import Iterable

import pytest
from hypothesis import settings

FEW_SHARE = 10
IS_FULL = os.environ.get("EMBER_TEST_SCALE", "short") == "full"
"""Whether all sizes and cases are run, which takes longer than a run of all tests may."""


def many(count: int) -> int:
    """Return `count`; in the fast part, as of all property tests, a few of them:
    the first tenth.
    """
    is_few = settings.get_current_profile_name() == "few"
    return count // FEW_SHARE if is_few else count


def first_quick(cases: Iterable, count: int = 1) -> list:
    """Return the parameters of a test, of which those after the first `count` are thorough."""
    return [
        pytest.param(case, marks=pytest.mark.thorough) if number >= count else case
        for number, case in enumerate(cases)
    ]


def some_of(cases: Iterable, count: int) -> list:
    """Return so many parameters of a test, spread over all that it has;
    with EMBER_TEST_SCALE=full all of them.

    For cases that say the same of other numbers: all of them take too long for each run.
    """
    found = list(cases)
    if IS_FULL or count >= len(found):
        return found
    return [found[number * len(found) // count] for number in range(count)]
