"""Who wants attributes with the names that a listing shows, by thread.

A name with attributes costs some ten times as much as a name alone, and much less than a look-up.
`find -name`, `glob` and `os.walk` want names; `ls -l`, `du` and whoever opens what it lists want
more, and the kernel does not say which.  So the first reply to a thread shows two names alone among
a few with attributes.  If it looks these two up it is shown attributes from there on, otherwise
names, until it looks up many of them.  Now and then it is tried again.

Most programs are short, and read the whole of a directory before they look at any of it: `du` and
`rm -r` do the same each time.  So threads of a program whose last ones wanted attributes are shown
them from the beginning, but for one in a few, which is tried.

It is a guess.  Where it is wrong a listing costs more, and shows the same.  Pure.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeVar

from ...schema.ids import InodeId

K = TypeVar("K")
V = TypeVar("V")

THREAD_COUNT_MAX: Final = 1024
"""Threads remembered; the oldest go first."""
LISTING_COUNT_MAX: Final = 1024
"""Directories remembered that were listed by names alone; the oldest go first."""
FIRST_COUNT: Final = 32
"""Entries of the first reply to a thread of which nothing is known: the kernel asks for the next
ones after the look-ups that it makes between two readings.
"""
TRIED_COUNT: Final = 2
"""Of them so many are names alone."""
NAMES_PER_LOOKUP: Final = 10
"""Of so many names the attributes cost as much as one look-up."""
LEFT_COUNT_MIN: Final = 16
"""Of so many files it is worth knowing the attributes before they are asked for."""
TRIED_AGAIN_COUNT: Final = 32
"""After so many directories with attributes a thread is tried again."""
PROGRAM_COUNT_MAX: Final = 256
"""Programs remembered; the oldest go first."""
ALIKE_COUNT: Final = 3
"""So many threads of a program in a row have to want attributes before the next ones get them:
an interpreter runs one script after the other.
"""
TRUSTED_COUNT: Final = 8
"""So many get them then, until one is tried again."""
COUNTED_S: Final = 1.0
"""Attributes that a listing shows may be used for so long: after that look-ups come anyway."""


class Shows(Enum):
    """What the reply to a reading shows of all but directories."""

    ATTRIBUTES = auto()
    NAMES = auto()
    FIRST = auto()
    """`FIRST_COUNT` entries at the most, of which `TRIED_COUNT` are names alone."""


class _Program:
    __slots__ = ("alike_count", "tried", "trusted_count")

    def __init__(self) -> None:
        self.tried: _Thread | None = None
        """The last one."""
        self.alike_count = 0
        """Tried threads in a row that wanted attributes."""
        self.trusted_count = 0
        """Threads until one is tried again."""


class _Thread:
    __slots__ = ("left_count", "program", "wants")

    def __init__(self, program: _Program | None) -> None:
        self.program = program
        self.wants: bool | None = None
        """None: it is to be tried."""
        self.left_count = 0
        """Directories until it is tried again."""

    def want(self) -> None:
        """Be shown attributes."""
        self.wants = True
        self.left_count = TRIED_AGAIN_COUNT


class _Listing:
    __slots__ = ("at_s", "found_count", "name_count", "thread")

    def __init__(self, thread: _Thread) -> None:
        self.thread = thread
        self.name_count = 0
        self.found_count = 0
        self.at_s = 0.0


def _try(thread: _Thread) -> None:
    """It is shown names alone from now on, unless it looks them up."""
    thread.wants = False
    program = thread.program
    if program is None:
        return
    before = program.tried
    if before is not None and before is not thread and not before.wants:
        program.alike_count = 0
    program.tried = thread


def _note_wanted(thread: _Thread) -> None:
    """It has looked names up."""
    program = thread.program
    if program is not None and program.tried is thread and not thread.wants:
        program.alike_count += 1
        program.trusted_count = TRUSTED_COUNT
    thread.want()


def _remember(among: dict[K, V], key: K, value: V, count_max: int) -> None:
    among[key] = value
    if len(among) > count_max:
        del among[next(iter(among))]


class Listers:
    """See module head; of one mount."""

    def __init__(self) -> None:
        self.program_of: Callable[[int], str] = lambda _thread_id: ""
        """Returns by what name the program of a thread goes; empty: nobody can say."""
        self._programs: dict[str, _Program] = {}
        self._threads: dict[int, _Thread] = {}
        self._listings: dict[InodeId, _Listing] = {}
        """The newest one of each directory."""

    def shows(self, thread_id: int, *, is_first: bool) -> Shows:
        """Return what to show to who reads on in a directory.

        Args:
            thread_id: 0: one of another process namespace, of which nothing can be learnt.
            is_first: it begins to read the directory.
        """
        if not thread_id:
            return Shows.ATTRIBUTES
        thread = self._threads.get(thread_id) or self._meet(thread_id)
        if thread.wants and is_first and not thread.left_count:
            thread.wants = None
        if thread.wants is None:
            return Shows.FIRST
        return Shows.ATTRIBUTES if thread.wants else Shows.NAMES

    def _meet(self, thread_id: int) -> _Thread:
        """Remember a thread, of which nothing is known but what others of its program wanted."""
        program = self._program(self.program_of(thread_id))
        thread = _Thread(program)
        if program is not None and program.alike_count >= ALIKE_COUNT and program.trusted_count:
            program.trusted_count -= 1
            thread.want()
        _remember(self._threads, thread_id, thread, THREAD_COUNT_MAX)
        return thread

    def _program(self, name: str) -> _Program | None:
        if not name:
            return None
        program = self._programs.get(name)
        if program is None:
            program = _Program()
            _remember(self._programs, name, program, PROGRAM_COUNT_MAX)
        return program

    def note_begun(self, thread_id: int) -> None:
        """A directory that is not empty is shown with attributes, from its beginning."""
        thread = self._threads.get(thread_id)
        if thread is not None and thread.left_count:
            thread.left_count -= 1

    def note_shown(self, thread_id: int, inode_id: InodeId, name_count: int, now_s: float) -> None:
        """Names alone, of what is no directory, were shown to a thread."""
        thread = self._threads.get(thread_id) or self._meet(thread_id)
        if thread.wants is None:
            _try(thread)
        listing = self._listings.get(inode_id)
        if listing is None or listing.thread is not thread or now_s - listing.at_s > COUNTED_S:
            self._listings.pop(inode_id, None)
            listing = _Listing(thread)
            _remember(self._listings, inode_id, listing, LISTING_COUNT_MAX)
        listing.name_count += name_count
        listing.at_s = now_s

    def note_found(self, parent: InodeId, now_s: float) -> None:
        """Something that is no directory was looked up in a directory, and found."""
        listing = self._listings.get(parent)
        if listing is None:
            return
        if now_s - listing.at_s > COUNTED_S:
            del self._listings[parent]
            return
        listing.found_count += 1
        found = listing.found_count
        least = min(TRIED_COUNT, listing.name_count)
        if found >= least and found * NAMES_PER_LOOKUP >= listing.name_count:
            _note_wanted(listing.thread)

    def is_looked_through(self, parent: InodeId, now_s: float) -> bool:
        """Return whether somebody looks at the files of a directory that was just listed by names
        alone, and many are left.
        """
        listing = self._listings.get(parent)
        return (
            listing is not None
            and now_s - listing.at_s <= COUNTED_S
            and listing.found_count > 0
            and listing.name_count - listing.found_count >= LEFT_COUNT_MIN
        )

    def is_looked_at(self, parent: InodeId) -> bool:
        """Return whether a directory was listed by names alone."""
        return parent in self._listings
