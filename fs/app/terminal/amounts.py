"""Amounts as people say them: durations, bytes, how many of something and which;
and as they say them on a command line.

Loads nothing that takes time, so that every command may say them so.
"""

import re
from collections.abc import Sequence
from typing import Final

from ...schema.status import FsError, Status

NAMED_MAX: Final = 12
"""Of many ids, so many are named."""
NUMBER_MAX: Final = 2**64 - 1
"""What a message can carry."""
_UNITS: Final[dict[str, int]] = {"": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGTP", 1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}


def age_text(seconds: float) -> str:
    """Return a duration as people say it: 4s, 3m12s, 5h03m, 2d04h."""
    whole = max(0, int(seconds))
    for unit, size, below, below_size in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // below_size:02d}{below}"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"  # noqa: PLR2004


def duration_text(seconds: float) -> str:
    """Return a duration of a request as people say it: 250us, 1.2ms, 3.40s."""
    if seconds < 0.001:  # noqa: PLR2004
        return f"{seconds * 1e6:.0f}us"
    return f"{seconds * 1e3:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def bytes_text(count: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":  # noqa: PLR2004
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError(count)


def count_text(count: int, one: str, many: str = "") -> str:
    """Return how many of something there are: 1 chunk, 3 chunks.

    Args:
        count: how many.
        one: what a single one is called.
        many: what several are called; empty: the same with an s.
    """
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def ids_text(ids: Sequence[int]) -> str:
    """Return ids in one line: 3, 7, 12; the first ones of many, and how many more there are."""
    named = ", ".join(map(str, ids[:NAMED_MAX]))
    return f"{named} and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else named


def parse_number(text: str) -> int:
    """Return a number such as 500, 10G (binary), 10GiB (binary), 10GB (decimal).

    Raises:
        FsError: INVALID_ARGUMENT.
    """
    match = re.fullmatch(r"(\d+)([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        raise FsError(Status.INVALID_ARGUMENT, f"{text!r}: say for example 500, 10G or 10GB")
    number = int(match[1]) * _UNITS[match[2]]
    if number > NUMBER_MAX:
        raise FsError(Status.INVALID_ARGUMENT, f"{text!r}: at most {NUMBER_MAX}")
    return number


def parse_time_s(text: str, option: str, *, days_max: int) -> int:
    """Return the seconds of 30m, 12h or 90d.

    Args:
        text: what was said.
        option: with which it was said, for people.
        days_max: more than this is refused.

    Raises:
        FsError: INVALID_ARGUMENT.
    """
    match = re.fullmatch(r"([1-9]\d{0,9})([mhd])", text)
    if match is None:
        raise FsError(Status.INVALID_ARGUMENT, f"{option} {text!r}: say for example 30m, 12h or 5d")
    seconds = int(match[1]) * _SECONDS[match[2]]
    if seconds > days_max * _SECONDS["d"]:
        raise FsError(Status.INVALID_ARGUMENT, f"{option} {text}: at most {days_max}d")
    return seconds
