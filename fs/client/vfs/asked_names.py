"""What the mount notes of the names of one change:
when it is asked for, when its reply is taken in, and once its answer has been given.

The kernel is answered before the directories of a reply are looked at: the program goes on
meanwhile, and nothing else is done in between.
"""

from collections.abc import Iterable, Sequence

from ...schema.ids import InodeId
from ...schema.proto import common_pb2
from .ports import Caller
from .shared import Shared

Place = tuple[InodeId, bytes]
"""A directory and a name in it."""


class AskedNames:
    """Of one change that meta is about to be asked for."""

    __slots__ = ("_asked", "_core", "_is_current", "_mark", "_places")

    def __init__(self, core: Shared, caller: Caller, places: Sequence[Place]) -> None:
        self._core = core
        self._places = places
        self._mark = core.told.mark()
        self._asked = core.leased.ask(caller, places)
        self._is_current = False
        """What the reply tells of directories is not from before a change of their attributes,
        as far as that is known.
        """

    @property
    def asked_s(self) -> float:
        """When that was."""
        return self._asked.asked_s

    def note_reply(self) -> None:
        """The reply is about to be taken in."""
        core = self._core
        # What is changed by taking it in is later than the reply, and of none of these directories.
        self._is_current = self._mark == core.told.mark()
        for place in self._places:
            core.changes.note_name(*place)

    def note_answered(
        self, directories: Iterable[common_pb2.InodePb], leads_to: Sequence[InodeId | None]
    ) -> None:
        """Take in what the reply told of the directories; `leads_to` is as of `LeasedNames.end`."""
        core = self._core
        # One of another count is outdated: nothing of the reply is told then,
        # nor what was told before it.
        core.note_told(directories, core.told.mark() if self._is_current else self._mark)
        core.leased.note_told(directories, self._asked)
        core.leased.end(self._asked, *leads_to)

    def fail(self) -> None:
        """A try ended without a reply."""
        for place in self._places:
            self._core.changes.note_name(*place)
        self._core.leased.fail(self._asked)

    def refuse(self) -> None:
        """Meta has refused the only try, so nothing comes of it."""
        for place in self._places:
            self._core.changes.note_name(*place)
        self._core.leased.withdraw(self._asked)

    def withdraw(self) -> None:
        """Meta is not going to be asked."""
        self._core.leased.withdraw(self._asked)
