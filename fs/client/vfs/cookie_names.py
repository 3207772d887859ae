"""What the cookies of one open directory stand for, in little memory however long the directory is.

Pure.

A program may go back to any place it has been to (`seekdir`), so no name that was handed out may be
forgotten.  All but the names of the last page are kept compressed, a page together: names of one
directory in their order have much in common.
"""

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

_SEPARATOR: Final = b"/"
"""In no name."""

_FASTEST: Final = 1


class CookieNames:
    """Cookie n stands for the n-th name that was added."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._packed: list[bytes] = []
        self._last: list[bytes] = []
        self._last_first = 0

    def __len__(self) -> int:
        return self._last_first + len(self._last)

    @property
    def packed_bytes(self) -> int:
        """What is kept of all pages but the last."""
        return sum(map(len, self._packed))

    def place(self, cookie: int, names: list[bytes]) -> int:
        """Return the cookie before those of a page of names that follows `cookie`.

        What was handed out behind it before, and is the same, keeps its cookies. So a program that
        goes back and forth makes nothing grow. All else is added, in order.
        """
        known = self._between(cookie, cookie + len(names))
        if known != names[: len(known)]:
            cookie, known = len(self), []
        if len(known) < len(names):
            self._add_page(names[len(known) :])
        return cookie

    def _between(self, start: int, stop: int) -> list[bytes]:
        """Return the names of the cookies behind `start`, to `stop` or the last one."""
        names: list[bytes] = []
        while (at := start + len(names)) < min(stop, len(self)):
            first, page = self._page_at(at)
            names += page[at - first : stop - first]
        return names

    def _page_at(self, index: int) -> tuple[int, list[bytes]]:
        """Return the page of the name at an index, and how many come before it."""
        if index >= self._last_first:
            return self._last_first, self._last
        page = bisect_right(self._firsts, index) - 1
        return self._firsts[page], zlib.decompress(self._packed[page]).split(_SEPARATOR)

    def _add_page(self, names: Sequence[bytes]) -> None:
        if self._last:
            self._firsts.append(self._last_first)
            self._packed.append(zlib.compress(_SEPARATOR.join(self._last), _FASTEST))
        self._last_first += len(self._last)
        self._last = list(names)

    def name_of(self, cookie: int) -> bytes:
        """Return the name of a cookie, 1..len."""
        assert 0 < cookie <= len(self), (cookie, len(self))
        first, page = self._page_at(cookie - 1)
        return page[cookie - 1 - first]

    def clear(self) -> None:
        """Forget all cookies."""
        self._firsts.clear()
        self._packed.clear()
        self._last = []
        self._last_first = 0
