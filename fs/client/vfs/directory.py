"""Listing of directories, with a cursor that survives changes.

Cookies number the entries in the order in which they were handed out by one open directory.  A
cookie stands for a name, and a listing resumes strictly after that name, in byte order.  So entries
that stay are neither missed nor doubled while others come and go.  The same holds of what this
mount renames meanwhile (`moved_names`).

Cookie 0 is the beginning.  `rewind` forgets the entries that were read, not the cookies: POSIX lets
it, but a program may go back to them on every local file system.
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from ...rpc.api import UnderWay
from ...schema import services
from ...schema.ids import InodeId
from ...schema.inode import Inode, inode_from_pb
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from .asked_page import AskedPage, Moment
from .cookie_names import CookieNames
from .core import VfsCore
from .handles import TakesTaskError
from .listed_file import ListedFile, ListedName, listed_file, listed_name
from .looking_up import lacks_length
from .moved_names import MovedNames
from .ports import Caller
from .shown_names import ShownNames

log = logging.getLogger(__name__)

PAGE_ENTRY_COUNT = 512
NAMES_KEPT_MAX = 1 << 18
"""With more of them a rewind forgets the cookies, too: a directory that changes has new ones each
time that it is read.
"""
LOOK_AGAIN_TRIES = 8
"""What this mount changes all the time is shown as it was a moment ago then,
for the kernel to ask for it at once.
"""
_OF_MOUNT = Caller(0, 0)


class DirectoryEntry(NamedTuple):
    """One entry of a listing; `cookie` resumes the listing after it."""

    name: bytes
    told: Inode | ListedFile | ListedName
    cookie: int
    told_s: float
    """When meta told of it, by the monotonic clock; -inf: it may have changed since."""

    @property
    def inode(self) -> Inode:
        """All of its attributes; raises FsError(METADATA_DAMAGED): nobody can tell them."""
        told = self.told
        if isinstance(told, ListedName):
            raise FsError(Status.METADATA_DAMAGED, f"{self.name!r}: inode {told.inode_id:#x}")
        return told.inode if isinstance(told, ListedFile) else told


OnListed = Callable[[list[DirectoryEntry] | None, Exception | None], None]
"""Called once, with entries or with why there are none; neither waits nor raises."""


def _is_denied(error: FsError | None) -> bool:
    return error is not None and error.status is Status.ACCESS_DENIED


@dataclass(slots=True)
class _OpenDirectory:
    inode_id: InodeId
    caller: Caller
    moved: MovedNames
    opened_ns: int
    """When it was opened, by the wall clock."""
    keeps_atime: bool = False
    """As of a `FileHandle`."""
    names: CookieNames = field(default_factory=CookieNames)
    page: list[DirectoryEntry] = field(default_factory=list)
    mark: int = 0
    listed_s: float = -math.inf
    """Of the moment when `page` was asked for, and when that was; see `Changes`."""
    first_cookie: int = 0
    """How many names had been handed out before those of `page`, whose cookies follow."""
    after_cookie: int = 0
    """The cookie behind whose name `page` begins:
    an earlier one where the program has gone back.
    """
    asked_s: float = 0.0
    """When the kernel asked last."""
    shown: ShownNames | None = None
    """The names of the reply that the kernel may still be taking in;
    None: it has asked for none, or has done so.
    """
    is_bare: bool = False
    """`page` has names alone, of what is no directory."""
    has_more: bool = True
    parent_id: InodeId | None = None
    """As the last page told; it may have moved since, as anything that is listed."""
    ahead: AskedPage | None = None
    """What follows `page`, asked for while the program takes that in."""
    asks_ahead: bool = True
    """False once it was of no use."""


class Directories:
    """The directory half of `Vfs`."""

    def __init__(self, core: VfsCore) -> None:
        self._core = core
        self._open: dict[int, _OpenDirectory] = {}

    def opendir(self, inode_id: InodeId, caller: Caller, flags: int = 0) -> int:
        """Return the number of a new open directory; reading it checks permissions.

        Of the flags O_NOATIME counts.
        """
        handle_id, moved = self._core.new_handle_id(), self._core.listings.begin(inode_id)
        keeps_atime = bool(flags & os.O_NOATIME) or not self._core.reads.counts_listings
        opened_ns = self._core.runtime.clock.wall_ns()
        self._open[handle_id] = _OpenDirectory(inode_id, caller, moved, opened_ns, keeps_atime)
        return handle_id

    async def readdir(
        self,
        handle_id: int,
        cookie: int,
        count_max: int = PAGE_ENTRY_COUNT,
        *,
        is_short: bool = False,
        is_bare: bool = False,
        waited_s: float = 0.0,
    ) -> list[DirectoryEntry]:
        """Return the next entries after a cookie, `count_max` at the most, with attributes;
        empty at the end.

        "." and ".." are not listed.  `is_short`: more of them are hardly going to be asked for, so
        meta is asked for no more either.  `is_bare`: attributes are wanted of directories alone,
        and the others may come without.  What this mount has changed since the listing was asked
        for is as it is now.  The kernel has waited for `waited_s` already.

        Raises:
            FsError: BAD_FILE, INVALID_ARGUMENT for a cookie never handed out, and what meta says.
        """
        directory = self._turned_to(handle_id, cookie, waited_s)
        rest = self._rest_of_page(directory, cookie, count_max, is_bare=is_bare)
        if rest is not None:
            if not directory.is_bare:
                await self._settle([entry.told.inode_id for entry in rest])
            if not self._are_outdated(directory, rest):
                return self._newest(rest)
        ask_count = self._ask_count(directory, cookie, count_max, is_short=is_short)
        page = await self._load_page(directory, cookie, ask_count)
        return self._newest(page[:count_max])

    def readdir_now(
        self, handle_id: int, cookie: int, count_max: int, *, is_bare: bool = False
    ) -> list[DirectoryEntry] | None:
        """As `readdir`, where nothing has to be asked for;
        None: something has, and nothing is done.
        """
        directory = self._turned_to(handle_id, cookie)
        rest = self._rest_of_page(directory, cookie, count_max, is_bare=is_bare)
        if rest is None:
            return self._page_ahead(directory, cookie, count_max, is_bare=is_bare)
        states = self._core.states
        has_lengths = bool(states) and not directory.is_bare
        if has_lengths and any(lacks_length(states.get(entry.told.inode_id)) for entry in rest):
            return None
        return None if self._are_outdated(directory, rest) else self._newest(rest)

    def begin_readdir(
        self,
        handle_id: int,
        cookie: int,
        count_max: int,
        on_end: OnListed,
        *,
        is_short: bool,
        is_bare: bool = False,
    ) -> UnderWay | None:
        """Begin what `readdir` does where `readdir_now` has returned None just now;
        `on_end` gets the entries, or why there are none.

        None: not begun, so `readdir` has to do it. It is tried once: an error that another try may
        cure is no answer, nor is TakesTaskError, after which something has to be waited for.
        """
        begins, directory = self._core.begins, self._directory(handle_id)
        if begins is None:
            return None
        ahead = self._ahead_for(directory, cookie, is_bare=is_bare)
        if ahead is not None and not ahead.has_ended:
            asked = ahead
        else:
            ask_count = self._ask_count(directory, cookie, count_max, is_short=is_short)
            asked = self._asked_for(directory, cookie, ask_count, is_bare=is_bare)
            asked.begin(begins)

        def end() -> None:
            if asked.reply is None:
                on_end(None, TakesTaskError() if _is_denied(asked.error) else asked.error)
                return
            try:
                page = self._page_at_once(directory, asked, asked.reply)
            except Exception as failure:  # noqa: BLE001 - who answers the kernel judges it
                on_end(None, failure)
            else:
                on_end(page[:count_max], None)

        asked.tell(end)
        return asked.under_way

    def _page_ahead(
        self, directory: _OpenDirectory, cookie: int, count_max: int, *, is_bare: bool
    ) -> list[DirectoryEntry] | None:
        """Return what was asked for ahead, if it is there and may be shown;
        None: it has to be waited for, or asked for.
        """
        ahead = self._ahead_for(directory, cookie, is_bare=is_bare)
        if ahead is None or ahead.reply is None:
            directory.ahead = ahead
            return None
        try:
            return self._page_at_once(directory, ahead, ahead.reply)[:count_max]
        except TakesTaskError:  # what is open here, or has changed: by a fresh listing
            return None

    def _ahead_for(
        self, directory: _OpenDirectory, cookie: int, *, is_bare: bool
    ) -> AskedPage | None:
        """Take what was asked for ahead; return it if it follows the cookie, and a listing that is
        asked for now would show the same, as far as this mount knows.
        """
        ahead = directory.ahead
        if ahead is None:
            return None
        directory.ahead = None
        age_s = self._core.now_s() - ahead.moment.at_s
        is_late = age_s > self._core.section.attr_timeout_s
        if is_late or directory.moved.change_count != ahead.moment.change_count:
            directory.asks_ahead = False
        elif (ahead.cookie, ahead.is_bare) == (cookie, is_bare):
            return ahead
        return None

    def _ask_ahead(self, directory: _OpenDirectory, asked: AskedPage) -> None:
        """Ask for the page behind the one that was asked for and is there now.

        Not where attributes may not be used for any time: nor may what was asked for before.
        """
        core, is_whole = self._core, asked.request.entry_count_max == PAGE_ENTRY_COUNT
        if not (is_whole and directory.has_more and directory.asks_ahead and directory.page):
            return
        if core.begins is None or core.section.attr_timeout_s <= 0.0:
            return
        cookie = directory.page[-1].cookie
        ahead = self._asked_for(directory, cookie, PAGE_ENTRY_COUNT, is_bare=asked.is_bare)
        try:
            ahead.begin(core.begins)
        except FsError as error:  # whoever needs it meets it, too
            log.debug("inode %d: nothing asked for ahead: %s", directory.inode_id, error)
            return
        directory.ahead = ahead if ahead.under_way is not None else None

    def _turned_to(self, handle_id: int, cookie: int, waited_s: float = 0.0) -> _OpenDirectory:
        """Return an open directory of which the kernel wants what follows a cookie;
        it has waited for that long.
        """
        directory = self._directory(handle_id)
        directory.asked_s = self._core.now_s() - waited_s
        self._note_taken_in(directory)
        # The kernel counts it as read, and asks for its times.
        self._core.given.forget(directory.inode_id)
        if cookie > len(directory.names):
            raise FsError(Status.INVALID_ARGUMENT, f"cookie {cookie} of directory {handle_id}")
        if directory.moved.is_undecided:
            directory.moved.decide(directory.names.name_of(cookie) if cookie else b"")
        return directory

    @staticmethod
    def _ask_count(
        directory: _OpenDirectory, cookie: int, count_max: int, *, is_short: bool
    ) -> int:
        """Return how many entries to ask meta for: a page of them, but of a program that has gone
        to another place it is not known whether it will go on from there.
        """
        goes_on = cookie == directory.first_cookie + len(directory.page)
        return PAGE_ENTRY_COUNT if goes_on and not is_short else min(count_max, PAGE_ENTRY_COUNT)

    @staticmethod
    def _rest_of_page(
        directory: _OpenDirectory, cookie: int, count_max: int, *, is_bare: bool
    ) -> list[DirectoryEntry] | None:
        """Return what was listed behind a cookie, at the end of all nothing;
        None: that has not been listed, or without attributes.
        """
        position = cookie - directory.first_cookie
        if directory.is_bare and not is_bare and position < len(directory.page):
            return None
        if position == 0 and cookie != directory.after_cookie:
            return None  # the program went back, was told what follows there, and goes on from here
        if 0 <= position < len(directory.page):
            return directory.page[position : position + count_max]
        return [] if position == len(directory.page) and not directory.has_more else None

    def _are_outdated(self, directory: _OpenDirectory, entries: list[DirectoryEntry]) -> bool:
        # What reads slowly would else have the kernel use attributes, and this mount what
        # they say is absent, of any age.
        age_s_max = self._core.section.attr_timeout_s
        since_s = self._core.now_s() - age_s_max if age_s_max > 0.0 else -math.inf
        if any(entry.told_s < since_s for entry in entries):
            return True
        mark = directory.mark
        return mark != self._core.changes.mark() and any(
            self._is_changed(directory, entry.name, entry.told, mark) for entry in entries
        )

    def shown_by(self, handle_id: int) -> ShownNames:
        """Return what says when the kernel has taken in the names of the reply that is being made:
        with its next request for this open directory.
        """
        directory = self._directory(handle_id)
        if directory.shown is None:
            now_s, valid_s = self._core.now_s(), self._core.section.listed_timeout_s
            directory.shown = ShownNames(now_s, valid_s, directory.asked_s, directory.listed_s)
        return directory.shown

    def _note_taken_in(self, directory: _OpenDirectory) -> None:
        # The kernel lets one request after the other use the place where an open directory is read.
        shown, directory.shown = directory.shown, None
        if shown is not None:
            shown.note_taken_in(self._core.now_s())

    def now_s(self) -> float:
        """Return the time, by which entries say when they were told."""
        return self._core.now_s()

    def age_s(self, entry: DirectoryEntry) -> float:
        """Return how long ago meta told of an entry."""
        return self._core.now_s() - entry.told_s

    def _is_changed(
        self,
        directory: _OpenDirectory,
        name: bytes,
        told: Inode | ListedFile | ListedName | common_pb2.InodePb,
        mark: int,
    ) -> bool:
        """Return whether what meta told of an entry that was asked for at `mark` may be
        from before a change of this mount.
        """
        changes = self._core.changes
        if mark == changes.mark():
            return False
        if changes.is_name_since(mark, directory.inode_id, name):
            return True
        if type(told) is ListedName:
            return False
        # What is open is shown as this mount knows it.
        inode_id = InodeId(told.inode_id)
        return inode_id not in self._core.states and changes.is_since(mark, inode_id)

    async def _settle(self, inode_ids: Iterable[InodeId]) -> None:
        """Have the chains tell the lengths, if they have to,
        of files that are about to be shown.
        """
        states = self._core.states
        for inode_id in inode_ids:
            state = states.get(inode_id)
            if state is not None and state.is_length_unknown:
                await self._core.settle_length(state)

    def _newest(self, entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
        """Return entries with what was done meanwhile to what this mount has open."""
        states = self._core.states
        if not states:
            return entries
        return [
            entry._replace(told=state.present(state.inode))
            if (state := states.get(entry.told.inode_id)) is not None
            and type(entry.told) is not ListedName
            else entry
            for entry in entries
        ]

    def rewind(self, handle_id: int) -> None:
        """Forget what was read, as rewinddir(3) asks: the next listing shows what is there then."""
        directory = self._directory(handle_id)
        if len(directory.names) > NAMES_KEPT_MAX:
            directory.names.clear()
        directory.moved.clear()
        directory.page = []
        directory.first_cookie = directory.after_cookie = 0
        directory.has_more = True
        directory.parent_id = directory.ahead = None
        directory.asks_ahead = True

    def _asked_for(
        self, directory: _OpenDirectory, cookie: int, entry_count: int, *, is_bare: bool
    ) -> AskedPage:
        request = self._request(directory, cookie, entry_count, is_bare=is_bare)
        return AskedPage(cookie, request, self._moment(directory), self._core.now_s)

    def _request(
        self, directory: _OpenDirectory, cookie: int, count: int, *, is_bare: bool
    ) -> meta_pb2.ListReq:
        return meta_pb2.ListReq(
            caller=directory.caller.to_pb(),
            inode_id=directory.inode_id,
            after=directory.names.name_of(cookie) if cookie else b"",
            entry_count_max=count,
            with_inodes=not is_bare,
            with_directories=is_bare,
            wants_directory=not cookie,
        )

    def _moment(self, directory: _OpenDirectory) -> Moment:
        core, told = self._core, self._core.told
        marks = core.changes.mark(), directory.moved.change_count, told.mark(), told.given_mark()
        return Moment(core.now_s(), *marks)

    def _note_told(self, directory: _OpenDirectory, reply: meta_pb2.ListRsp, asked: Moment) -> None:
        """Take in what a reply tells of the directory itself,
        which is being read from its beginning.

        The kernel asks for that as soon as it has read some of it, since it counts it as accessed.
        What this mount has changed since, or given the kernel of any directory, may be newer.
        """
        core, told = self._core, reply.directory
        if not reply.HasField("directory") or not told.nlink:
            return
        core.leased.note_shown(told, asked.at_s)
        if not directory.keeps_atime:
            core.reads.note(directory.inode_id, told.atime_ns, told.mtime_ns, told.ctime_ns)
        if asked.mark == core.changes.mark() and asked.given_mark == core.told.given_mark():
            core.note_told((told,), asked.told_mark)

    async def _list(self, directory: _OpenDirectory, request: meta_pb2.ListReq) -> meta_pb2.ListRsp:
        """Ask meta for a page of names.

        Who has opened a directory may read it on, as in any local file system: the kernel has
        judged the opening.  Meta judges each request, by the mode of now.  So what it refuses of a
        directory that was changed since the opening is asked for in the mount's own name.
        """
        core = self._core
        try:
            return await core.call(services.META_LIST, request)
        except FsError as error:
            if not _is_denied(error) or not await self._is_changed_since_opened(directory):
                raise
            refusal = error
        request.caller.CopyFrom(_OF_MOUNT.to_pb())
        try:
            reply = await core.call(services.META_LIST, request)
        except FsError as error:  # a user's token speaks for that user alone
            raise refusal from error
        directory.caller = _OF_MOUNT
        return reply

    async def _is_changed_since_opened(self, directory: _OpenDirectory) -> bool:
        asked = meta_pb2.GetAttrReq(caller=directory.caller.to_pb(), inode_id=directory.inode_id)
        told = (await self._core.call(services.META_GET_ATTR, asked)).inode
        return told.ctime_ns > directory.opened_ns

    async def _load_page(
        self, directory: _OpenDirectory, cookie: int, count: int
    ) -> list[DirectoryEntry]:
        request = self._request(directory, cookie, count, is_bare=False)
        after = request.after
        while True:
            asked = self._moment(directory)
            reply = await self._list(directory, request)
            told_s = self._core.now_s()
            # Before anything is waited for: it grows older.
            self._note_told(directory, reply, asked)
            damaged = await self._fill_in(directory.caller, reply.entries)
            unsure = await self._look_again(directory, reply.entries, asked.mark)
            # From here on nothing is waited for.
            there = [e for e in reply.entries if e.HasField("inode") or e.name in damaged]
            found = [e for e in there if not directory.moved.is_listed(e.name, after)]
            if found or not reply.has_more:
                break
            request.after = reply.entries[-1].name
        base = len(directory.names)
        page = [
            DirectoryEntry(
                e.name,
                self._core.absorbed(e.inode) if e.HasField("inode") else listed_name(e),
                base + index,
                -math.inf if e.name in unsure else told_s,
            )
            for index, e in enumerate(found, start=1)
        ]
        directory.is_bare = False
        return self._keep_page(directory, cookie, page, reply, asked)

    def _page_at_once(
        self, directory: _OpenDirectory, asked: AskedPage, reply: meta_pb2.ListRsp
    ) -> list[DirectoryEntry]:
        """Return what a reply lists; raises TakesTaskError where more has to be asked
        for before it may be shown.
        """
        core, moved, moment, request = self._core, directory.moved, asked.moment, asked.request
        cookie_of, is_quiet = count(len(directory.names) + 1), moment.mark == core.changes.mark()
        page: list[DirectoryEntry] = []
        told: Inode | ListedFile | ListedName
        for entry in reply.entries:
            name = entry.name
            if entry.HasField("inode"):
                told = self._told(entry.inode)
            elif request.with_inodes:
                raise TakesTaskError
            else:
                told = listed_name(entry)
            if not is_quiet and self._is_changed(directory, name, told, moment.mark):
                raise TakesTaskError
            if moved.is_empty or not moved.is_listed(name, request.after):
                page.append(DirectoryEntry(name, told, next(cookie_of), asked.told_s))
        if (not page and reply.has_more) or not reply.parent_inode_id:
            raise TakesTaskError
        self._note_told(directory, reply, moment)
        directory.is_bare = asked.is_bare
        page = self._keep_page(directory, asked.cookie, page, reply, moment)
        self._ask_ahead(directory, asked)
        return page

    def _told(self, message: common_pb2.InodePb) -> Inode | ListedFile:
        """Return what a listing tells of an entry, merged with what this mount knows better;
        raises TakesTaskError where that is not certain.
        """
        core = self._core
        state = core.states.get(InodeId(message.inode_id))
        if state is None:
            return listed_file(message) or inode_from_pb(message)
        inode = core.absorbed(message)
        if lacks_length(state):
            raise TakesTaskError
        return inode

    @staticmethod
    def _keep_page(
        directory: _OpenDirectory,
        cookie: int,
        page: list[DirectoryEntry],
        reply: meta_pb2.ListRsp,
        asked: Moment,
    ) -> list[DirectoryEntry]:
        # A second reader of the same open directory may have added cookies meanwhile.
        added = len(directory.names)
        first = directory.names.place(cookie, [entry.name for entry in page])
        if first != added:  # the program went back
            page = [entry._replace(cookie=at) for at, entry in enumerate(page, first + 1)]
        directory.first_cookie, directory.after_cookie = first, cookie
        directory.page = page
        directory.mark, directory.listed_s = asked.mark, asked.at_s
        directory.has_more = reply.has_more
        directory.parent_id = InodeId(reply.parent_inode_id) or None
        return page

    async def _fill_in(
        self, caller: Caller, entries: Sequence[meta_pb2.DentryPb]
    ) -> AbstractSet[bytes]:
        """Ask for the attributes that a listing left out; what was removed meanwhile stays without.

        Who may read a directory but not search it gets its names, yet the kernel takes names with
        attributes only.  The kernel checks the right to search before it shows them to anybody.

        Returns:
            The names whose attributes nobody can tell, since their record is damaged.
        """
        bare = [entry for entry in entries if not entry.HasField("inode")]
        lost = {entry.name for entry in bare if not entry.inode_id}
        bare = [entry for entry in bare if entry.inode_id]
        if not bare:
            return lost
        request = meta_pb2.BatchGetAttrReq(
            caller=caller.to_pb(), inode_ids=[entry.inode_id for entry in bare]
        )
        try:
            reply = await self._core.call(services.META_BATCH_GET_ATTR, request)
        except FsError as error:
            if error.status is not Status.METADATA_DAMAGED:
                raise
            return lost | await self._fill_in_each(caller, bare)
        for entry, slot in zip(bare, reply.inodes, strict=True):
            if slot.HasField("inode"):
                entry.inode.CopyFrom(slot.inode)
        return lost

    async def _fill_in_each(
        self, caller: Caller, entries: Sequence[meta_pb2.DentryPb]
    ) -> AbstractSet[bytes]:
        """Do as `_fill_in`, one by one: some record among them is damaged."""
        damaged = set()
        for entry in entries:
            request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=entry.inode_id)
            try:
                reply = await self._core.call(services.META_GET_ATTR, request)
            except FsError as error:
                if error.status is Status.METADATA_DAMAGED:
                    damaged.add(entry.name)
                elif error.status is not Status.STALE:  # removed meanwhile
                    raise
            else:
                entry.inode.CopyFrom(reply.inode)
        return damaged

    async def _look_again(
        self, directory: _OpenDirectory, entries: Sequence[meta_pb2.DentryPb], mark: int
    ) -> set[bytes]:
        """Ask again for what this mount changed while a listing was under way that was asked
        for at `mark`; what is gone stays without.

        What was found unchanged may be changed while others are asked for: so until none is,
        once nothing more is waited for.

        Returns:
            The names of those that went on changing for as long as that was tried.
        """
        asked: dict[bytes, int] = {}
        changed: list[meta_pb2.DentryPb] = []
        for tries_left in reversed(range(LOOK_AGAIN_TRIES + 1)):
            there = [entry for entry in entries if entry.HasField("inode")]
            await self._settle(self._taken_in(there))
            changed = [
                entry
                for entry in there
                if self._is_changed(directory, entry.name, entry.inode, asked.get(entry.name, mark))
            ]
            if not changed or not tries_left:
                break
            for entry in changed:
                asked[entry.name] = self._core.changes.mark()
                await self._look_up(directory.inode_id, entry)
        return {entry.name for entry in changed}

    def _taken_in(self, entries: Iterable[meta_pb2.DentryPb]) -> list[InodeId]:
        """Take in what meta told of files that this mount has open; return which they are."""
        states = self._core.states
        told = [entry.inode for entry in entries if InodeId(entry.inode.inode_id) in states]
        return [self._core.absorbed(message).inode_id for message in told]

    async def _look_up(self, parent: InodeId, entry: meta_pb2.DentryPb) -> None:
        entry.ClearField("inode")
        # As for `_fill_in`: the right to search is checked by the kernel.
        request = meta_pb2.LookupReq(
            caller=_OF_MOUNT.to_pb(), parent_inode_id=parent, name=entry.name
        )
        try:
            reply = await self._core.call(services.META_LOOKUP, request)
        except FsError as error:
            if error.status is not Status.NOT_FOUND:
                raise
            return
        entry.inode.CopyFrom(reply.inode)
        entry.inode_id = reply.inode.inode_id

    def known_parent_of(self, handle_id: int) -> tuple[InodeId, InodeId] | None:
        """As `parent_of`; None: meta has to be asked."""
        directory = self._directory(handle_id)
        parent_id = directory.parent_id
        return None if parent_id is None else (directory.inode_id, parent_id)

    async def parent_of(self, handle_id: int) -> tuple[InodeId, InodeId]:
        """Return the inode ids of an open directory and of its parent (for "." and "..")."""
        found = self.known_parent_of(handle_id)
        if found is not None:
            return found
        directory = self._directory(handle_id)
        request = meta_pb2.LookupReq(
            caller=directory.caller.to_pb(), parent_inode_id=directory.inode_id, name=b".."
        )
        try:
            reply = await self._core.call(services.META_LOOKUP, request)
        except FsError as error:
            # Reading a directory needs no search permission; the number of ".." is a nicety then.
            if error.status not in (Status.ACCESS_DENIED, Status.NOT_FOUND):
                raise
            return directory.inode_id, directory.inode_id
        return directory.inode_id, InodeId(reply.inode.inode_id)

    def releasedir(self, handle_id: int) -> None:
        """Forget an open directory."""
        directory = self._directory(handle_id)
        self._note_taken_in(directory)
        self._core.listings.end(directory.inode_id, directory.moved)
        del self._open[handle_id]

    async def fsyncdir(self, handle_id: int) -> None:
        """Return when all changes of names made so far would survive power loss."""
        directory = self._directory(handle_id)
        request = meta_pb2.SyncMetaReq(caller=directory.caller.to_pb())
        await self._core.call(services.META_SYNC_META, request)

    def _directory(self, handle_id: int) -> _OpenDirectory:
        directory = self._open.get(handle_id)
        if directory is None:
            raise FsError(Status.BAD_FILE, f"no open directory {handle_id}")
        return directory
