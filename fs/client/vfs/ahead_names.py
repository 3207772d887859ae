"""Look-ups of names that were listed alone, answered by what meta tells of many at a time.

Who lists a directory and looks at each file then (`du`, `tar`, `sorted(os.listdir())`) was shown
names alone, as nobody can know beforehand (`listers`).  From the second file on meta is asked for
those behind it as well, in the order of the listing, and the kernel's next look-ups find them here.

Invariants:
    - What is answered is no older than attributes and names of a listing that the kernel may use
      (`client.attr_timeout_s`, `client.listed_timeout_s`), and was changed by nobody here since
      meta was asked for it.
    - Once the kernel has been told that a name leads elsewhere by now (ESTALE), all that was asked
      before is forgotten: it looks the name up once more, and only once.
    - No answer is older than what an earlier look-up of the name was told.
    - Of whom the kernel holds, and what it may use, the same is noted as of a listing.

What it does not do: directories, links, and what is open here.
"""

import logging
from typing import Final

from ...schema import services
from ...schema.ids import InodeId
from ...schema.proto import meta_pb2
from ...schema.status import FsError
from .core import VfsCore
from .listed_file import ListedFile, listed_file
from .listed_names import ListedNames
from .listers import COUNTED_S, LEFT_COUNT_MIN
from .ports import Caller

log = logging.getLogger(__name__)

NAME_COUNT_MAX: Final = 256
"""Asked for at a time; fewer where many grow old before they are looked up."""
LEFT_COUNT: Final = 64
"""With so many left the next ones are asked for."""
MISS_COUNT_MAX: Final = 8
"""After so many that are not among those behind the last one, in a row, the order is another."""
DIRECTORY_COUNT_MAX: Final = 64
"""While so many are looked through, meta is asked about others name by name."""
USED_SHARE: Final = 0.75
"""Of the time for which attributes, and names of a listing, may be used:
what is older is not worth an answer.
"""


class _Told:
    """What meta has told of one directory."""

    __slots__ = (
        "at_s",
        "count",
        "files",
        "has_more",
        "is_coming",
        "last_name",
        "miss_count",
        "overtaken",
    )

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s
        """When a name of it was looked up last."""
        self.files: dict[bytes, tuple[ListedFile, float, int]] = {}
        """By name: what it leads to, when meta was asked for it, and `Changes.mark` then."""
        self.last_name = b""
        self.has_more = True
        self.is_coming = False
        self.overtaken: set[bytes] = set()
        """Names that meta was asked for while those behind were coming, which may be older."""
        self.miss_count = 0
        self.count = NAME_COUNT_MAX
        """To be asked for at a time."""

    def note_used(self) -> None:
        """What was asked for was looked up in time."""
        self.count = min(2 * self.count, NAME_COUNT_MAX)

    def drop_old(self) -> None:
        """What was asked for has grown old: fewer are worth it, or none."""
        self.files.clear()
        self.count //= 2
        self.has_more = self.has_more and self.count >= LEFT_COUNT_MIN


class AheadNames:
    """See module head; of one mount."""

    def __init__(self, core: VfsCore, listed: ListedNames) -> None:
        self._core = core
        self._listed = listed
        self._told: dict[InodeId, _Told] = {}
        self.hit_count = 0
        self.miss_count = 0
        """Look-ups in directories that are looked through."""

    def clear(self) -> None:
        """Forget all that meta was asked for until now."""
        self._told.clear()

    def has(self, parent: InodeId) -> bool:
        """Return whether names of a directory may be here, or worth being asked for."""
        return parent in self._told or self._core.listers.is_looked_at(parent)

    def take(
        self, parent: InodeId, name: bytes, caller: Caller, now_s: float
    ) -> tuple[ListedFile, float] | None:
        """Return the file that a name leads to, and how old that is, for one answer;
        None: meta has to be asked, and perhaps is for the names behind this one.
        """
        self.miss_count += 1
        told = self._told.get(parent)
        if told is None or now_s - told.at_s > self._core.section.attr_timeout_s:
            self._begin(parent, name, caller, now_s)
            return None
        told.at_s = now_s
        found = told.files.pop(name, None)
        if found is None:
            self._miss(parent, told, name, caller)
            return None
        told.miss_count = 0
        file, asked_s, mark = found
        age_s = now_s - asked_s
        if age_s >= self._usable_s():
            told.drop_old()
            self._note_overtaken(told, name)
            return None
        if len(told.files) == LEFT_COUNT and told.has_more and not told.is_coming:
            told.note_used()
            self._ask(parent, told, told.last_name, caller)
        elif not told.files:
            told.note_used()
        if not self._is_usable(parent, name, file, asked_s, mark):
            self._note_overtaken(told, name)
            return None
        self.hit_count += 1
        self.miss_count -= 1
        return file, age_s

    def _usable_s(self) -> float:
        # Who has the kernel use no names of listings has no open say which name it means.
        section = self._core.section
        return min(section.attr_timeout_s, section.listed_timeout_s) * USED_SHARE

    def _begin(self, parent: InodeId, name: bytes, caller: Caller, now_s: float) -> None:
        self._told.pop(parent, None)
        if not self._core.listers.is_looked_through(parent, now_s) or not self._usable_s():
            return
        if len(self._told) >= DIRECTORY_COUNT_MAX:
            # Not in the place of one in use: its next look-up would have it asked for anew.
            unused = [key for key, told in self._told.items() if now_s - told.at_s > COUNTED_S]
            for key in unused:
                del self._told[key]
        if len(self._told) < DIRECTORY_COUNT_MAX:
            told = self._told[parent] = _Told(now_s)
            self._ask(parent, told, name, caller)

    @staticmethod
    def _note_overtaken(told: _Told, name: bytes) -> None:
        if told.is_coming:
            told.overtaken.add(name)

    def _is_usable(
        self, parent: InodeId, name: bytes, file: ListedFile, asked_s: float, mark: int
    ) -> bool:
        core, inode_id = self._core, file.inode_id
        if inode_id in core.states or inode_id in core.cuts or file.nlink != 1:
            return False
        changes = core.changes
        if mark != changes.mark() and (
            changes.is_name_since(mark, parent, name) or changes.is_since(mark, inode_id)
        ):
            return False
        known = core.known.get(inode_id)
        return known is None or self._listed.may_use_known((parent, name), known, asked_s)

    def _miss(self, parent: InodeId, told: _Told, name: bytes, caller: Caller) -> None:
        if told.is_coming:
            self._note_overtaken(told, name)
            return
        told.miss_count += 1
        if told.miss_count > MISS_COUNT_MAX:
            told.files.clear()
            if not self._core.listers.is_looked_at(parent):
                del self._told[parent]
        elif not told.files and told.has_more:
            self._ask(parent, told, name, caller)

    def _ask(self, parent: InodeId, told: _Told, after: bytes, caller: Caller) -> None:
        """Ask for the names behind one, if nothing has to be waited for."""
        core = self._core
        if core.begins is None:
            return
        request = meta_pb2.ListReq(
            inode_id=parent, after=after, entry_count_max=told.count, with_inodes=True
        )
        caller.put(request.caller)
        asked_s, mark = core.now_s(), core.changes.mark()

        def end(reply: meta_pb2.ListRsp | None, error: FsError | None) -> None:
            told.is_coming = False
            if reply is None:
                told.overtaken.clear()
                log.debug("names of %#x behind %r: %s", parent, after, error)
                told.has_more = False
                return
            self._take_in(told, reply, asked_s, mark)

        told.is_coming = core.begins.begin(services.META_LIST, request, end) is not None
        self._listed.note_asked_ahead(asked_s + self._usable_s())

    @staticmethod
    def _take_in(told: _Told, reply: meta_pb2.ListRsp, asked_s: float, mark: int) -> None:
        told.has_more = reply.has_more
        for entry in reply.entries:
            file = listed_file(entry.inode) if entry.HasField("inode") else None
            if file is not None and entry.name not in told.overtaken:
                told.files[entry.name] = (file, asked_s, mark)
        if reply.entries:
            told.last_name = reply.entries[-1].name
        told.overtaken.clear()
