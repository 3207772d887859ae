"""Who is sent back: told to walk his path anew, as a directory on it was removed elsewhere.

Linux keeps names of directories for a moment (`client.dir_entry_timeout_s`).  Another mount may
remove such a directory meanwhile, and make one of the same name.  Until that moment is over a
path leads to the removed one.  On ESTALE most system calls walk their path once more, and ask for
each name on it.  So they come to the new directory, if there is one.

Who came by a descriptor of the removed directory, or works in it, comes to the same place again.
He is told ENOENT there, as on a local file system.

Invariants:
    - Nobody is sent back in his second walk (`second_walks`), nor who is not known to walk again.
      So no program hears of ESTALE, but for one that links a file to a name which is there.

Calls that make a name look it up first, and some of them do not walk again where that look-up
fails.  They go on where it finds nothing, and walk again where the change fails.  The kernel does
not say what a look-up is for.  But the thread waits for its answer, and /proc says in which call.
"""

import errno
import logging
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import trio

from ...runtime.oldest import forget_oldest
from ...schema.ids import InodeId
from ...schema.status import FsError, Status
from ..vfs.namespace import Namespace
from ..vfs.ports import Caller
from .second_walks import Place, SecondWalks

_log = logging.getLogger(__name__)

ASKED_ANEW_COUNT_MAX: Final = 1024
"""Names remembered for who asks twice; the oldest go first."""
FALL_ASLEEP_TRIES: Final = 100
FALL_ASLEEP_PAUSE_S: Final = 0.001
"""A thread that is not asleep yet will be soon: it waits for the very answer."""
RUNNING: Final = "running"
GONE: Final = frozenset({Status.NOT_FOUND, Status.STALE})
"""What a change of names in a removed directory may end with."""


class _Numbers(NamedTuple):
    """Of the system calls that are to be told apart."""

    makers: frozenset[int]
    """They fail where the look-up before a change fails."""
    links: frozenset[int]
    """So do these, but not where the first of their look-ups fails."""
    linkat: int
    """The one of them that takes descriptors of directories."""
    moves: frozenset[int]
    """The others with two paths."""


_NUMBERS: Final[Mapping[str, _Numbers]] = MappingProxyType(
    {
        # bind, mkdir, mkdirat, mknod, mknodat, symlink, symlinkat; link, linkat; rename, renameat,
        # renameat2.  Then those of programs with 32 bits: hardly one of 64 that looks names up.
        "x86_64": _Numbers(
            frozenset({49, 83, 258, 133, 259, 88, 266} | {361, 102, 39, 296, 14, 297, 83, 304}),
            frozenset({86, 265} | {9, 303}),
            265,
            frozenset({82, 264, 316} | {38, 302, 353}),
        ),
        "aarch64": _Numbers(
            frozenset({200, 34, 33, 36}), frozenset({37}), 37, frozenset({38, 276})
        ),
    }
)
"""By machine."""
_NEW_DIRECTORY: Final = 3
"""Where a call of linkat has the descriptor of the directory for the new name."""
_AT_CWD: Final = ("0xffffff9c", "0xffffffffffffff9c")
"""No descriptor: the path begins at the root or at the working directory."""


def call_of(thread_id: int) -> str:
    """Return what /proc says of the system call in which a thread waits: its number, arguments
    and place.  RUNNING: it does not wait yet; empty: it is out of sight, or works for a ring.
    """
    try:
        text = Path(f"/proc/{thread_id}/syscall").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        _log.debug("system call of thread %d: %s", thread_id, error)
        return ""
    return call_in(text)


def call_in(text: str) -> str:
    """Return the system call of which /proc has told so, as `call_of`."""
    # Threads of the kernel's own, which work for rings of programs, have no place in a program.
    return "" if text.startswith("-1") or text.endswith(" 0x0\n") else text.strip()


class SentBack:
    """See module head; of one mount."""

    def __init__(self, names: Namespace, machine: str = platform.machine()) -> None:
        self._names = names
        self._removed = names.removed
        self._numbers = _NUMBERS.get(machine)
        self.call_of: Callable[[int], str] = call_of
        self.walks = SecondWalks()
        self._asked_anew: dict[tuple[int, InodeId], bytes] = {}
        """Names that the kernel keeps, as far as one can tell, by thread and directory:
        it has been told that they are that no more, and asks next what they are.
        """

    async def errno_of_lookup(
        self, thread_id: int, parent: InodeId, name: bytes, caller: Caller
    ) -> int:
        """Return what to tell who has looked a name up in a directory that was removed."""
        call = await self._call_of_waiting(thread_id)
        is_kept, key = self._names.is_kept(parent, name), (thread_id, parent)
        place, may_keep = (parent, name), is_kept is not False
        if self.walks.searches(thread_id, call, place, may_keep=may_keep):
            return errno.ENOENT
        path_count = await self._paths_to_walk(call, place, caller)
        if not path_count:
            return errno.ENOENT
        if is_kept and self._asked_anew.get(key) != name:
            self._asked_anew[key] = name
            forget_oldest(self._asked_anew, ASKED_ANEW_COUNT_MAX)
            return errno.ENOENT
        self._asked_anew.pop(key, None)
        self.walks.begin(thread_id, call, path_count=path_count, keeps_all=path_count > 1)
        return errno.ESTALE

    async def errno_of_change(
        self, thread_id: int, parents: Iterable[InodeId], caller: Caller, error: FsError
    ) -> int:
        """Return what to tell who has been refused a change of names in directories,
        which may have been removed.
        """
        try:
            is_removed = any([await self._removed.is_removed(one, caller) for one in parents])
        except FsError as failure:
            _log.debug("what became of directories: %s", failure)
            is_removed = False
        if not is_removed:
            if error.errno == errno.ESTALE:
                self.note_stale(thread_id)
            return error.errno
        call = await self._call_of_waiting(thread_id)
        if self.walks.changes(thread_id, call):
            return errno.ENOENT
        self.walks.begin(thread_id, call, path_count=2, keeps_all=True)
        return errno.ESTALE

    def note_stale(self, thread_id: int) -> None:
        """A thread is told ESTALE by something else."""
        self.walks.begin(thread_id, "", path_count=2, keeps_all=True)

    async def _call_of_waiting(self, thread_id: int) -> str:
        call = self.call_of(thread_id)
        for _ in range(FALL_ASLEEP_TRIES):
            if call != RUNNING:
                return call
            await trio.sleep(FALL_ASLEEP_PAUSE_S)
            call = self.call_of(thread_id)
        return ""

    async def _paths_to_walk(self, call: str, place: Place, caller: Caller) -> int:
        """Return how many paths a call walks again where a look-up fails; 0: it does not."""
        if self._numbers is None or not call:
            return 0
        words, numbers = call.split(), self._numbers
        number = int(words[0])
        if number in numbers.makers:
            return 0
        if number in numbers.moves:
            return 2
        if number not in numbers.links:
            return 1
        if number == numbers.linkat and words[_NEW_DIRECTORY] not in _AT_CWD:
            return 0  # the name to be made may be one of the removed directory itself
        # A name that is to be linked is there; one that is to be made is not.
        try:
            is_there = await self._removed.is_there_again(*place, caller)
        except FsError as failure:
            _log.debug("what %r leads to by now: %s", place, failure)
            is_there = False
        return 2 if is_there else 0
