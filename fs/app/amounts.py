"""Amounts as people say them: durations, bytes, how many of something and which.

Loads nothing that takes time, so that every command may say them so.
"""

from collections.abc import Sequence
from typing import Final

NAMED_MAX: Final = 12
"""Of many ids, so many are named."""


def age_text(seconds: float) -> str:
    """Return a duration as people say it: 4s, 3m12s, 5h03m, 2d04h."""
    whole = max(0, int(seconds))
    for unit, size, below, below_size in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // below_size:02d}{below}"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"  # noqa: PLR2004


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
