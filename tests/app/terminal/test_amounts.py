"""Amounts are said as people say them."""

import pytest

from fs.app.terminal.amounts import (
    age_text,
    bytes_text,
    count_text,
    duration_text,
    ids_text,
    parse_number,
)
from fs.schema.status import FsError, Status


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (4.9, "4s"), (192, "3m12s"), (5 * 3600 + 180, "5h03m"), (2 * 86_400, "2d00h")],
)
def test_durations(seconds, text):
    assert age_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 52, "4096.0 TiB")]
)
def test_bytes(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 chunks"), (1, "1 chunk"), (2, "2 chunks")])
def test_how_many(count, text):
    assert count_text(count, "chunk") == text


def test_how_many_of_what_takes_no_s():
    assert count_text(1, "process", "processes") == "1 process"
    assert count_text(3, "process", "processes") == "3 processes"


def test_of_many_ids_it_is_said_that_there_are_more():
    """Twelve were shown, as if these were all."""
    assert ids_text([3, 7]) == "3, 7"
    assert ids_text(range(1, 13)) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
    assert ids_text(range(1, 41)) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 28 more"


@pytest.mark.parametrize("text", ["16384P", "99999999T", "18446744073709551616"])
def test_a_limit_that_no_message_can_carry_is_refused(text):
    """It ended in a traceback."""
    assert parse_number("16383P") == 16383 << 50
    with pytest.raises(FsError) as caught:
        parse_number(text)
    assert caught.value.status is Status.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0us"), (0.00025, "250us"), (0.0012, "1.2ms"), (3.4, "3.40s")]
)
def test_durations_of_requests(seconds, text):
    assert duration_text(seconds) == text
