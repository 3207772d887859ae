"""Which reads count as an access: the rule that Linux calls relatime.  Pure.

A read counts where the file was changed since the last one that counted, or that one is a day ago.
So programs find out whether what they wait for has been read since it came, and what nobody has
read for long, while most reads change nothing.
"""

from typing import Final

DAY_S: Final = 24 * 60 * 60
_S: Final = 1_000_000_000


def is_due(atime_ns: int, mtime_ns: int, ctime_ns: int, now_ns: int) -> bool:
    """Return whether a read at `now_ns` counts, of an inode with these times.

    A clock that was set back makes none due: only what was changed since counts then, as by Linux,
    which compares whole seconds of a day.
    """
    if atime_ns <= mtime_ns or atime_ns <= ctime_ns:
        return True
    return now_ns // _S - atime_ns // _S >= DAY_S
