"""One page of a listing that meta was asked for, perhaps before the program wants it.

A program that reads a large directory takes in one page while meta makes the next.  What it does
itself meanwhile it must find in that, so whoever uses a page looks at the moment when it was asked
for (`directory`).

Does not: judge whether a reply may still be shown.
"""

from collections.abc import Callable
from typing import NamedTuple

from ...rpc.api import UnderWay
from ...schema import services
from ...schema.proto import meta_pb2
from ...schema.status import FsError
from ..api import BeginsCalls


class Moment(NamedTuple):
    """When meta was asked for a listing."""

    at_s: float
    """By the monotonic clock."""
    mark: int
    """See `Changes`."""
    change_count: int
    """See `MovedNames`."""
    told_mark: int
    given_mark: int
    """See `ToldDirectories`."""


class AskedPage:
    """See module head."""

    def __init__(
        self, cookie: int, request: meta_pb2.ListReq, moment: Moment, now_s: Callable[[], float]
    ) -> None:
        """Hold what is to be asked; `cookie` is the one that the page follows."""
        self.cookie = cookie
        self.request = request
        self.moment = moment
        self.is_bare = not request.with_inodes
        self.under_way: UnderWay | None = None
        """None: not begun."""
        self.has_ended = False
        self.reply: meta_pb2.ListRsp | None = None
        self.error: FsError | None = None
        self.told_s = 0.0
        """When the reply came."""
        self._now_s = now_s
        self._on_end: Callable[[], None] | None = None

    def begin(self, begins: BeginsCalls) -> None:
        """Ask, once; raises FsError as `BeginsCalls.begin`."""
        self.under_way = begins.begin(services.META_LIST, self.request, self._end)

    def tell(self, on_end: Callable[[], None]) -> None:
        """Have a function called at the end, which is to come; it neither waits nor raises."""
        assert not self.has_ended
        self._on_end = on_end

    def _end(self, reply: meta_pb2.ListRsp | None, error: FsError | None) -> None:
        self.reply, self.error, self.told_s = reply, error, self._now_s()
        self.has_ended = True
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
