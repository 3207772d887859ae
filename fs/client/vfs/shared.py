"""What all parts of the vfs share: the ports, the open inodes, what the kernel holds."""

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import trio

from ...runtime.oldest import forget_oldest
from ...runtime.ports import Runtime
from ...runtime.quick_semaphore import QuickSemaphore
from ...runtime.recycled import RecycledMemory
from ...runtime.span_keeper import SpanKeeper
from ...schema import services
from ...schema.config import ClientSection
from ...schema.ids import ROOT_INODE_ID, InodeId, SessionId
from ...schema.inode import Inode, inode_from_pb
from ...schema.method import Method, ReqT, RspT
from ...schema.proto import common_pb2, meta_pb2
from ...schema.status import FsError, Status
from ...schema.values import value
from ..api import BeginsCalls, BeginsChanges, BeginsWrites, ChunkStore, MetaCaller
from ..ending import EndingSessions
from ..file_read import FileRead
from ..holes import CutMeanwhileError, may_be_inline
from ..inline_report import InlineReport
from ..noted_reads import NotedRead, NotedReads, ReadTimes
from ..retry import longest_s
from ..still_there import SEEN_THERE_S, require_still_there
from .budgets import DirtyBudget, SpaceWatch
from .changes import Changes
from .given import GivenAttributes
from .held import HeldFiles
from .inline_bytes import InlineBytes
from .known import Known, Rights, Shown
from .leased_names import LeasedNames
from .listed_file import ListedFile
from .listers import Listers
from .mounted_tree import MountedTree
from .moved_names import Listings
from .open_file import FetchedBlock, InodeState
from .ports import Caller, KernelCache
from .profile import Profile
from .readahead import Readahead
from .told import ToldDirectories
from .told_lengths import NotedKernel, ToldLengths

T = TypeVar("T")

_log = logging.getLogger(__name__)

SEEN_COUNT_MAX = 65_536
"""How many closed inodes are remembered as `Seen`."""

RIGHTS_COUNT_MAX = 1024
"""Different ones kept for many files."""

READ_SHOWN_S = 1.0
"""A read is shown for so much longer than attributes of before it may be kept:
some were on their way when meta took it.
"""

UNEXPECTED_HOLE_PAUSE_S = 1.0
"""Between two words in the log about holes where none should be."""

IDLE_BYTES_MAX = 64 * 1024 * 1024
"""Of memory kept for what will be read or written next."""

AHEAD_IDLE_BYTES_MAX = 40 * 1024 * 1024
"""Of memory kept for what will be read ahead:
what one stream has at a time, with the smaller blocks that it begins with.
"""

TOGETHER_ALL_BYTES_MAX = 8 * 1024 * 1024
"""Under way together, from which on reads of several pages
through the page cache take their turn among the large ones.
"""


@value(frozen=True, slots=True)
class Seen:
    """Content of a closed file that the kernel may have in its page cache;
    all of it is known to this mount.
    """

    data_ver: int
    length: int
    is_durable: bool
    """It would survive a power loss."""


def stopped() -> FsError:
    """Return the failure of what the end of the mount has interrupted."""
    return FsError(Status.IO_ERROR, "the mount stopped while it wrote")


class Shared:
    """See module head."""

    def __init__(
        self,
        meta: MetaCaller,
        store: ChunkStore,
        runtime: Runtime,
        section: ClientSection,
        kernel: KernelCache,
    ) -> None:
        self.meta = meta
        self.begins = meta if isinstance(meta, BeginsCalls) else None
        """Where calls can be begun without a task that waits; None: they cannot."""
        self.begins_changes = meta if isinstance(meta, BeginsChanges) else None
        """Where calls that change something can; None: they cannot."""
        self.store = store
        self.begins_writes = store if isinstance(store, BeginsWrites) else None
        """Where writes can be begun without a task that waits; None: they cannot."""
        self.runtime = runtime
        self.now_s: Callable[[], float] = runtime.clock.monotonic_s
        """Returns monotonic seconds."""
        self.section = section
        self.retry_time_s_longest = longest_s(section)
        """That any operation which is under way may go on for,
        also after a shorter time was set.
        """
        self.budget = DirtyBudget(section.dirty_bytes_max)
        self.space = SpaceWatch(section.dirty_bytes_max)
        self.states: dict[InodeId, InodeState] = {}
        self.cuts: dict[InodeId, int] = {}
        """Truncations that this mount has asked for and that are under way,
        also of what it had not open by then.
        """
        self.known: dict[InodeId, Known] = {}
        self.touch_count = 0
        """Changes of attributes that the kernel has, of any file; see `told_lengths`."""
        self._rights: dict[Rights, Rights] = {}
        self.connect_kernel(kernel)
        self.seen: dict[InodeId, Seen] = {}
        self.unsure_inline: dict[InodeId, InlineReport] = {}
        """By file, the report that asked meta to take all bytes, which may have done so,
        or do so yet, for all that is known.
        """
        self.ending = EndingSessions(meta, Caller(0, 0).to_pb)
        self.held = HeldFiles(meta, self.ending, self.known, self.new_session_id, self.spawn)
        self.reads = self._noted_reads(section)
        self.told = ToldDirectories(section.attr_timeout_s, self.now_s)
        self.given = GivenAttributes(self.now_s)
        self.opened_ahead_count = 0
        """Opens for reading that meta had answered with the look-up."""
        self.opened_alone_count = 0
        """Those that meta was asked for once more."""
        self.listings = Listings()
        self.changes = Changes(self._note_changed)
        self.leased = LeasedNames(meta.client_id, section.leased_names_max, self.now_s)
        self.listers = Listers()
        self.kept: deque[tuple[float, InodeState]] = deque()
        """Files with times, or mode and owner, that wait for a report, and until when they may."""
        self.owned: dict[InodeId, InodeState] = {}
        """Those with mode and owner that wait."""
        self.memory = RecycledMemory(IDLE_BYTES_MAX)
        """For what passes through."""
        self.ahead_memory = RecycledMemory(AHEAD_IDLE_BYTES_MAX)
        """For what is read ahead: its own, since what is written before would push its blocks,
        of other sizes, out.
        """
        self.large_reads = QuickSemaphore(section.max_background)
        """Through the page cache, of several pages,
        each with memory of its own while storage is asked.
        """
        self.together_bytes = 0
        """Under way together with others, where some are through the page cache."""
        self.readahead_bytes = 0
        """Read ahead and held now, or on its way, whether anybody still wants it or not:
        memory is taken all the same.
        """
        self.fetched_ahead_bytes = self.ahead_hit_count = self.ahead_miss_count = 0
        """Since the start; reads that found all their bytes read ahead, and others."""
        self.profile = Profile()
        self.spans: SpanKeeper | None = None
        """Keeps the spans of this mount for who watches;
        None: a mount of which nothing is traced.
        """
        self.tell_settings: Callable[[], bytes] | None = None
        """Returns the settings of this mount, as JSON; None: they are not told."""
        self.tree: MountedTree | None = None
        """Which tree is mounted; None: nobody has said it."""
        self.tree_root = ROOT_INODE_ID
        """The directory that is mounted."""
        self.batch_socket_name = b""
        """Where programs find the server of batches; empty: there is none."""
        self._nursery: trio.Nursery | None = None
        self._handle_id_last = 0
        self._hole_told_s = -UNEXPECTED_HOLE_PAUSE_S

    def _note_changed(self, inode_id: InodeId) -> None:
        self.given.forget(inode_id)
        if self.listings.are_open:
            self.listings.note_changed(inode_id)

    def _noted_reads(self, section: ClientSection) -> NotedReads:
        times = ReadTimes(
            self.runtime.clock.wall_ns,
            self.now_s,
            section.attr_timeout_s + READ_SHOWN_S,
            self._note_read_stored,
        )
        is_off = section.atime == "noatime"
        return NotedReads(self.meta, Caller(0, 0).to_pb, times, is_off=is_off)

    @property
    def has_room_together(self) -> bool:
        """Return whether reads of several pages through the page cache may join others:
        they take memory, and the kernel keeps none back.
        """
        return self.together_bytes < TOGETHER_ALL_BYTES_MAX

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings; the timeouts of attributes must be the same."""
        self.section = section
        self.retry_time_s_longest = max(self.retry_time_s_longest, longest_s(section))
        self.budget.adopt(section.dirty_bytes_max)
        self.space.adopt(section.dirty_bytes_max)
        self.leased.adopt(section.leased_names_max)

    def connect_kernel(self, kernel: KernelCache) -> None:
        """Say whose caches are to be kept honest."""
        self.kernel: KernelCache = NotedKernel(kernel, self.known, self.touch)

    def touch(self, known: ToldLengths) -> None:
        """Attributes that the kernel has of a file are changed, or have just been."""
        self._touch(known, self.now_s())

    def _touch(self, known: ToldLengths, now_s: float) -> None:
        self.touch_count += 1
        known.touched_at, known.touched_s = self.touch_count, now_s

    def attach(self, nursery: trio.Nursery | None) -> None:
        """Say where background work runs; None: nowhere any more."""
        self._nursery = nursery

    def spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run something in the background until the vfs is shut down."""
        assert self._nursery is not None, "the vfs is not running"
        self._nursery.start_soon(function, *args)

    def finish_in_task(
        self, work: Coroutine[Any, Any, T], on_end: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Do what is left of something begun in the background, and tell of its end."""

        async def finish() -> None:
            result: T | None = None
            failure: Exception | None = stopped()
            try:
                result, failure = await work, None
            except Exception as error:  # noqa: BLE001 - who answers the kernel judges it
                failure = error
            finally:
                on_end(result, failure)

        if self._nursery is None:
            work.close()
            on_end(None, stopped())
            return
        try:
            self._nursery.start_soon(finish)
        except Exception as error:  # noqa: BLE001 - no task to be had: who answers the kernel says so
            work.close()
            on_end(None, error)

    def forget_ahead(self, ahead: Readahead[FetchedBlock]) -> None:
        """Count no more what a reader has dropped; what is on its way counts until it has come."""
        if not ahead.has_dropped:
            return
        for block in ahead.take_dropped():
            if block.content.done.is_set():
                self.readahead_bytes -= block.end - block.offset

    def new_handle_id(self) -> int:
        """Return a number for an open file or directory, never reused."""
        self._handle_id_last += 1
        return self._handle_id_last

    def new_session_id(self) -> SessionId:
        """Return an id for a file session."""
        return SessionId(self.runtime.random.randbytes(16).hex())

    def call(self, method: Method[ReqT, RspT], request: ReqT) -> Coroutine[Any, Any, RspT]:
        """Call meta."""
        return self.meta.call(method, request)

    async def read_stored(self, reads: Sequence[FileRead], *, is_relaxed: bool = False) -> None:
        """Fill buffers from storage, as `ChunkStore.read`;
        what was removed or cut off is not shown as a hole.

        Raises:
            CutMeanwhileError: the read is to be done again, by the length that is known now.
            FsError: STALE also: a file is gone that no session of this mount
                kept; and as `ChunkStore.read`.
        """
        await self.store.read(reads, is_relaxed=is_relaxed)
        await self.require_holes(reads)

    async def require_holes(self, reads: Iterable[FileRead]) -> None:
        """Return if what storage has just called holes in these reads are holes of their files
        as their readers know them.

        Raises:
            CutMeanwhileError: not so, since a file was truncated: `InodeState` knows it by now.
            FsError: STALE: not so, since a file was removed; and others of meta.
        """
        doubted: dict[InodeId, list[FileRead]] = {}
        for read in reads:
            if read.hole_bytes and not self.is_known_hole(read):
                doubted.setdefault(read.file.inode_id, []).append(read)
        cut: InodeId | None = None
        for inode_id, of_file in doubted.items():
            if await self._is_cut(inode_id, of_file):
                cut = inode_id
        if cut is not None:
            raise CutMeanwhileError(cut)

    def is_known_hole(self, read: FileRead) -> bool:
        """Return whether a hole that was read is no reason to ask if it is one:
        that was done a moment ago.

        What an inline file could have there by now is asked for each time by
        whoever reads past the page cache.
        """
        state = self.states.get(read.file.inode_id)
        if state is None or not state.holes.have(read, self.now_s()):
            return False
        return not (may_be_inline(read) and state.is_read_directly)

    async def _is_cut(self, inode_id: InodeId, reads: Sequence[FileRead]) -> bool:
        """Ask meta whether a file has been truncated since the length was learnt
        that reads went by; raises FsError, also STALE.
        """
        until_s = self.now_s() + SEEN_THERE_S
        inode = await require_still_there(self.meta, Caller(0, 0).to_pb(), inode_id)
        assert inode.file is not None
        state = self.states.get(inode_id)
        if state is not None:
            self.note_inode(state, inode)
        # Of an inline file storage has nothing.
        is_elsewhere = inode.file.is_inline
        if is_elsewhere or any(inode.file.truncate_ver > read.file.truncate_ver for read in reads):
            return True
        for read in reads:
            self._look_at_hole(read)
            if state is not None:
                state.holes.note(read, until_s)
        return False

    def _look_at_hole(self, read: FileRead) -> None:
        """Say in the log what storage calls a hole in a file that should have none;
        it may be quite new, or a power loss may have made it.
        """
        state = self.states.get(read.file.inode_id)
        if state is None or state.file.has_holes or state.is_space_unsure or state.has_unreported:
            return
        end, now_s = read.offset + len(read.buffer), self.now_s()
        if end > state.file.length or now_s < self._hole_told_s + UNEXPECTED_HOLE_PAUSE_S:
            return
        self._hole_told_s = now_s
        _log.warning(
            "inode %d: storage has %d of the bytes %d to %d for never written, though none of the "
            "%d should be missing (content %d, truncation %d)",
            state.inode_id,
            read.hole_bytes,
            read.offset,
            end,
            state.file.length,
            state.file.data_ver,
            state.file.truncate_ver,
        )

    def note_told(self, directories: Iterable[common_pb2.InodePb], mark: int) -> None:
        """Take in the directories of a reply to a change of names,
        whose request was made at `mark`.
        """
        now_s, age_s_max = self.now_s(), self.section.attr_timeout_s
        for inode in self.told.note(directories, mark, now_s):
            self.given.forget(inode.inode_id)
            known = self.known.get(inode.inode_id)
            if known is not None:
                known.note_lacks(inode, now_s, age_s_max)

    def absorbed(self, message: common_pb2.InodePb) -> Inode:
        """Return an inode from meta, merged with what this mount knows better:
        of an open file maybe all of it, where the reply is late.
        """
        inode = inode_from_pb(message)
        state = self.states.get(inode.inode_id)
        if state is None or inode.file is None:
            return inode
        self.note_inode(state, inode)
        return state.present(state.inode)

    def note_read(self, state: InodeState) -> None:
        """Note that an open file is read, if that counts by its times as this mount shows them."""
        inode = state.inode
        if state.is_dirty or state.has_unreported:
            try:
                inode = state.present(inode)
            except MemoryError:
                self.reads.lack_count += 1
                return
        self.reads.note(state.inode_id, inode.atime_ns, inode.mtime_ns, inode.ctime_ns)

    def _note_read_stored(self, inode_id: InodeId, read: NotedRead, stored_ns: int) -> None:
        state = self.states.get(inode_id)
        if state is not None and state.inode.atime_ns == read.stored_ns:
            state.inode = replace(state.inode, atime_ns=stored_ns)
        known = self.known.get(inode_id)
        if known is not None and known.link is not None and known.link.atime_ns == read.stored_ns:
            known.link = replace(known.link, atime_ns=stored_ns)

    def forget_told(self, inode_id: InodeId) -> None:
        """Attributes may have been changed through this mount, and nobody tells to what."""
        state = self.states.get(inode_id)
        if state is not None:
            state.forget_told()

    def note_inode(self, state: InodeState, inode: Inode) -> None:
        """Take in the attributes that a reply of meta has just told."""
        if state.absorb(inode):
            state.told_until_s = self.now_s() + self.section.attr_timeout_s

    def note_given(
        self,
        known: Known,
        inode: Inode | ListedFile | Shown,
        valid_s: float,
        asked_s: float = math.inf,
        now_s: float | None = None,
    ) -> None:
        """Note that the kernel, which asked by `asked_s` at the latest,
        is handed attributes of a regular file that may be used for `valid_s`.

        `now_s` is the time, if it has just been looked at.  What tells of a change that the kernel
        asked for it takes in any case: `asked_s` is inf.
        """
        if now_s is None:
            now_s = self.now_s()
        if known.given_count:
            self._note_given_again(known, inode, valid_s, asked_s, now_s)
        else:
            known.note_first(inode, now_s, valid_s)
        known.given_rights = self._kept_rights(inode)
        known.given_mark = self.changes.mark()
        self._touch(known, now_s)

    def _note_given_again(
        self,
        known: Known,
        inode: Inode | ListedFile | Shown,
        valid_s: float,
        asked_s: float,
        now_s: float,
    ) -> None:
        state = self.states.get(inode.inode_id)
        is_own = state is not None and (state.is_dirty or state.has_unreported)
        if is_own and state is not None:
            # Another mount may have made it longer at the same time; where records have no
            # place yet, nobody can tell.
            own_end = -1 if state.append.length else max(state.acked_end, state.written_end)
            is_own = inode.length in (known.given_length, own_end)
        if inode.length == known.own_length:
            is_own = is_own or self.changes.is_since(known.given_mark, inode.inode_id)
        # Own truncations are told by their answers: what is shorter by itself another mount has
        # cut, whatever was reported here since.
        is_own = is_own and inode.length >= known.told_length
        # Nor does it help that this mount has reported something, where the kernel was told
        # of that after it had asked.
        is_own = is_own and asked_s >= known.touched_s
        may_be_overlooked = known.may_overlook(asked_s)
        known.note_told(inode.length, now_s, may_be_overlooked=may_be_overlooked)
        is_news = inode.length != known.own_length
        known.note_content(inode, now_s, valid_s, is_own=is_own)
        if may_be_overlooked and is_news:
            known.is_own_length_sure = False

    def _kept_rights(self, inode: Inode | ListedFile | Shown) -> Rights:
        # Most files have those of many others.
        if len(self._rights) > RIGHTS_COUNT_MAX:
            self._rights.clear()
        rights = Rights(inode.st_mode, inode.uid, inode.gid)
        return self._rights.setdefault(rights, rights)

    def note_changed(self, inode_id: InodeId, *, is_given: bool = False) -> None:
        """Note that this mount has changed attributes, or may have,
        and whether the kernel was just handed what they are now.

        If so, what is handed out later and differs is another mount's.
        """
        self.told.note_changed(inode_id)
        self.changes.note_inode(inode_id)
        state = self.states.get(inode_id)
        if state is not None:
            state.look_at_reads_again()
        known = self.known.get(inode_id)
        if is_given and known is not None:
            known.given_mark = self.changes.mark()

    async def asked_again(self, inode: Inode, mark: int, caller: Caller) -> Inode:
        """Return attributes from meta that were asked for at `mark`,
        newer ones if this mount has changed since what it has not open.

        Raises:
            FsError: as meta says.
        """
        changes, inode_id = self.changes, inode.inode_id
        while changes.is_since(mark, inode_id) and inode_id not in self.states:
            mark = changes.mark()
            request = meta_pb2.GetAttrReq(caller=caller.to_pb(), inode_id=inode_id)
            inode = inode_from_pb((await self.call(services.META_GET_ATTR, request)).inode)
        return inode

    async def newest_after(self, inode: Inode, mark: int) -> Inode:
        """Return what the reply to a change told, which was asked for at `mark`;
        what is there now if this mount has changed more meanwhile.

        The kernel takes it for the newest, whatever it was told while the change was under way.
        """
        try:
            inode = await self.asked_again(inode, mark, Caller(0, 0))
        except FsError as error:  # that is no reason to call the change itself a failure
            _log.info(
                "inode %d: what it is like after a change is not known: %s", inode.inode_id, error
            )
        state = self.states.get(inode.inode_id)
        return inode if state is None else state.present(state.inode)

    def state_of(self, inode: Inode, caller: Caller) -> InodeState:
        """Return the state of a regular file, made when it is not open yet."""
        state = self.states.get(inode.inode_id)
        if state is None:
            state = self.states[inode.inode_id] = InodeState(inode, caller)
            state.cuts_under_way = self.cuts.get(inode.inode_id, 0)
            self.given.forget(inode.inode_id)
            self._recall_cached(state, inode)
            if inode.ctime_ns > state.unsure_ctime_ns:  # as `note_inode`: it has them already
                state.told_until_s = self.now_s() + self.section.attr_timeout_s
        else:
            self.note_inode(state, inode)
        return state

    def _recall_cached(self, state: InodeState, inode: Inode) -> None:
        seen = self.seen.pop(inode.inode_id, None)
        assert inode.file is not None
        if seen is None or (seen.data_ver, seen.length) != (inode.file.data_ver, inode.length):
            return
        state.cached_ver = seen.data_ver
        if seen.is_durable:
            state.durable_seq = state.acked_seq

    def know_inline(self, state: InodeState, known: InlineBytes | None) -> None:
        """Keep all bytes of a file, if there is room for them beside what is buffered;
        None: they are not known any more.
        """
        if known is not None and known.data:
            is_open = self.states.get(state.inode_id) is state
            if not (is_open and self.budget.try_keep(state, len(known.data))):
                known = None
        if (known is None or not known.data) and state.inline is not None and state.inline.data:
            self.budget.give_up(state)
        state.inline = known

    def drop_state_if_unused(self, state: InodeState) -> None:
        """Forget an inode that nobody has open and whose data is all reported,
        but not while it is being truncated.
        """
        is_used = state.handles or state.is_dirty or state.has_unreported or state.cuts_under_way
        if is_used or self.states.get(state.inode_id) is not state:
            return
        del self.states[state.inode_id]
        self.owned.pop(state.inode_id, None)
        self.know_inline(state, None)
        if state.cached_ver is not None and state.cached_ver == state.file.data_ver:
            is_durable = state.durable_seq == state.acked_seq
            self.seen[state.inode_id] = Seen(state.cached_ver, state.file.length, is_durable)
            forget_oldest(self.seen, SEEN_COUNT_MAX)

    def begin_cut(self, inode_id: InodeId) -> None:
        """Have reads of a file wait, by whoever opens it meanwhile, too:
        a truncation is about to be asked for.
        """
        self.cuts[inode_id] = self.cuts.get(inode_id, 0) + 1
        state = self.states.get(inode_id)
        if state is not None:
            state.cuts_under_way += 1

    def end_cut(self, inode_id: InodeId) -> None:
        """Inverse of `begin_cut`, once its outcome is taken in."""
        self.cuts[inode_id] -= 1
        if not self.cuts[inode_id]:
            del self.cuts[inode_id]
        state = self.states.get(inode_id)
        if state is not None:
            state.end_cut()
            self.drop_state_if_unused(state)
