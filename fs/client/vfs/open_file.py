"""What a mount remembers of an inode that it has open, and of each open file and directory.

No I/O.

Length, three views of it:
    - meta's, in `inode.file.length`: what was reported;
    - `acked_end`: end of the last byte that storage acknowledged and meta may not know yet; it goes
      to meta as a length hint, valid only under the truncate version it was written under;
    - `local_length()`: what applications on this mount see: the larger of both and of what is still
      buffered.

Sequence numbers instead of flags: `acked_seq` grows with every acknowledged flush;
reported and durable states are "up to which acked_seq", so that a flush that ends during
a report is never taken as reported.
"""

import math
from dataclasses import dataclass, field, replace

import trio

from ...runtime.quick_lock import QuickLock
from ...schema.ids import InodeId, SessionId
from ...schema.inode import FilePart, Inode
from ...schema.layout import FileRef
from ...schema.proto import meta_pb2
from ...schema.status import FsError
from ..holes import KnownHoles
from .inline_bytes import InlineBytes
from .ports import Caller
from .readahead import Readahead
from .set_owner import SetOwner
from .set_times import SetTimes
from .unsent import AppendBuffer, Flush
from .write_run import WriteRun, WriteStream

SET_ID_BITS = 0o6000
NOT_READ, READ_BEFORE = -1, -2
"""In place of a `content_seq`, which is none of these."""
INLINE_AGAIN = 8
"""Who syncs a file again and again sends all of it each time:
with so many of the longest inline files it costs more than a chunk.
"""


class _OwnLock:
    """A lock of each inode, made when it is first asked for:
    most files are opened and closed without any.
    """

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, state: "InodeState", _owner: type | None = None) -> QuickLock:
        lock = state.locks.get(self._name)
        if lock is None:
            lock = state.locks[self._name] = QuickLock()
        return lock


class InodeState:
    """A regular file that this mount has open, or whose data is still on its way."""

    __slots__ = (
        "acked_end",
        "acked_seq",
        "append",
        "cached_ver",
        "clears_suid",
        "content_seq",
        "cut_ended",
        "cuts_under_way",
        "durable_seq",
        "error_count",
        "flushes",
        "foreign_count",
        "handles",
        "held",
        "holes",
        "inline",
        "inline_bytes_max",
        "inline_count",
        "inline_sent_bytes",
        "inode",
        "inode_id",
        "is_length_unknown",
        "is_metered",
        "is_space_unsure",
        "keep_session",
        "last_error",
        "local_mtime_ns",
        "locks",
        "lost_length_count",
        "no_capability_until_s",
        "promised_length",
        "ref",
        "reported_seq",
        "run",
        "set_owner",
        "set_times",
        "shown_file",
        "space_counted_s",
        "stream",
        "told_until_s",
        "unsure_ctime_ns",
        "writer",
        "written_end",
    )

    lock = _OwnLock()
    append_lock = _OwnLock()
    extend_lock = _OwnLock()
    report_lock = _OwnLock()
    promise_lock = _OwnLock()

    def __init__(self, inode: Inode, caller: Caller) -> None:
        assert inode.file is not None, inode.inode_id
        self.inode_id: InodeId = inode.inode_id
        self.inode = inode
        self.shown_file = inode.file, inode.file
        """What meta told, and with which length it was shown last."""
        self.ref = FileRef(
            inode.inode_id,
            inode.file.layout,
            inode.file.dyn_stripe,
            inode.file.finished_cut,
            inode.file.truncate_ver,
        )
        """Goes with `local_length`: who reads takes both at once."""
        self.holes = KnownHoles()
        self.handles: dict[int, FileHandle] = {}
        self.inline: InlineBytes | None = None
        """All bytes of the file, where they are known;
        may be those of a content that is not the newest.  Set by `Shared.know_inline`.
        """
        self.inline_bytes_max = 0
        """How long the file may be to be sent inline; 0: it is not."""
        self.inline_count = 0
        """How often meta took the bytes of this file from this mount."""
        self.inline_sent_bytes = 0
        """How many they were, all times together."""
        self.keep_session: SessionId | None = None
        self.writer = caller
        self.locks: dict[str, QuickLock] = {}
        """Those that were asked for; see `_OwnLock`."""
        self.run: WriteRun | None = None
        self.stream = WriteStream()
        self.append = AppendBuffer()
        self.flushes: list[Flush] = []
        self.cuts_under_way = 0
        """Truncations that this mount has asked for:
        bytes within the length may be gone already.
        """
        self.cut_ended = trio.Event()
        """Set, and replaced, when none is under way any more."""
        self.held: list[Flush] = []
        """Those of `flushes` that are held back, so that others join them;
        each of another chunk.
        """
        self.written_end = 0
        self.acked_end = 0
        self.acked_seq = 0
        self.reported_seq = 0
        self.durable_seq = -1
        self.foreign_count = 0
        """How often others were found to have written."""
        self.is_length_unknown = False
        self.lost_length_count = 0
        """How often meta was found to have lost a length that it had told."""
        self.is_metered = False
        self.space_counted_s = -math.inf
        self.is_space_unsure = False
        """Bytes were left out or cleared, or written to a file with holes,
        since meta last counted its space.
        """
        self.promised_length = 0
        self.local_mtime_ns = 0
        self.set_times: SetTimes | None = None
        """Only where there is something to report, with which they go."""
        self.set_owner: SetOwner | None = None
        """Goes with what is to be reported, too, and if that fails, by itself."""
        self.clears_suid = False
        """Somebody who is not root wrote: meta has to take set-user-id and set-group-id bits with
        the next report. The kernel, if it is in between, takes those that it knows of, not what
        another mount has set since.
        """
        self.content_seq = 0
        self.error_count = 0
        self.last_error: FsError | None = None
        self.cached_ver: int | None = None
        self.no_capability_until_s = 0.0
        self.told_until_s = -math.inf
        """Until then the attributes of `inode` are no older than the kernel may keep any."""
        self.unsure_ctime_ns = -1
        """Attributes with a ctime up to this may be from before a change that this mount made
        and was not told the outcome of.
        """

    @property
    def file(self) -> FilePart:
        """The regular-file part of the newest known inode."""
        assert self.inode.file is not None
        return self.inode.file

    @property
    def is_kept(self) -> bool:
        """True while a session keeps the content, also without a name."""
        sessions = [handle.file_session for handle in self.handles.values()]
        return self.keep_session is not None or any(sessions)

    @property
    def is_read_directly(self) -> bool:
        """True while somebody may read past the page cache,
        who is promised more than who reads what the kernel keeps.
        """
        return any(handle.is_direct or handle.is_of_batch for handle in self.handles.values())

    @property
    def is_dirty(self) -> bool:
        """True while bytes are buffered or on their way."""
        return self.run is not None or bool(self.flushes) or self.append.length > 0

    @property
    def may_go_inline(self) -> bool:
        """Return whether what is buffered may go to meta,
        as far as is known before it is looked at.
        """
        is_short = 0 < self.written_end <= self.inline_bytes_max
        is_lasting = self.inline_sent_bytes > INLINE_AGAIN * self.inline_bytes_max
        return is_short and not is_lasting and self.inline is not None and self.inode.nlink > 0

    def forget_kept(self) -> None:
        """Know the bytes of the file no more: who reads asks meta again,
        and what is written goes to storage.
        """
        self.inline = None

    @property
    def has_unreported(self) -> bool:
        """True when storage holds bytes that meta was not told about."""
        return self.acked_seq > self.reported_seq

    def known_end(self) -> int:
        """End of the bytes whose place is known."""
        return max(self.file.length, self.acked_end, self.written_end)

    def note_changed(self, wall_ns: int) -> None:
        """Content was changed just now: that is its time of modification,
        whatever was set before.
        """
        self.local_mtime_ns = wall_ns
        self.content_seq += 1
        if self.set_times is not None:
            atime_ns = self.set_times.atime_ns
            self.set_times = None if atime_ns is None else replace(self.set_times, mtime_ns=None)

    @staticmethod
    def is_superseded(report: meta_pb2.SyncReq, inode: Inode) -> bool:
        """Return whether meta has kept other times than those that a report says were set."""
        is_mtime = report.HasField("mtime_seen_ns") and report.mtime_ns != inode.mtime_ns
        is_atime = report.HasField("atime_seen_ns") and report.atime_ns != inode.atime_ns
        return is_mtime or is_atime

    def look_at_reads_again(self) -> None:
        """The next read through each open file may count as an access: attributes have changed."""
        for handle in self.handles.values():
            if handle.noted_seq != NOT_READ:
                handle.noted_seq = READ_BEFORE

    def note_foreign_content(self) -> None:
        """Others may have written: what was read is old,
        and whether all of it would survive a power loss is not known.
        """
        self.content_seq += 1
        self.foreign_count += 1
        self.durable_seq = -1

    def reported_mtime_ns(self) -> int:
        """Return the time of modification that goes with the next report."""
        times = self.set_times
        return self.local_mtime_ns if times is None or times.mtime_ns is None else times.mtime_ns

    def local_length(self) -> int:
        """Bytes that applications on this mount see.

        Meta may already count the records whose reservation is under way, and may not.
        """
        append = self.append
        placed_end = max(self.known_end(), append.reserving_end)
        return placed_end + append.length - append.reserving_length

    def end_cut(self) -> None:
        """One truncation of `cuts_under_way` is over."""
        self.cuts_under_way -= 1
        self.content_seq += 1  # what was read ahead meanwhile is of no use
        if not self.cuts_under_way:
            ended, self.cut_ended = self.cut_ended, trio.Event()
            ended.set()

    def settled_length(self) -> int:
        """Return `local_length`, or -1 while `is_dirty`, `cuts_under_way`,
        or while the chains have to tell; what every begun read asks for, with one call.
        """
        if self.run is not None or self.flushes or self.append.length > 0 or self.is_length_unknown:
            return -1
        if self.cuts_under_way:
            return -1
        append, file = self.append, self.inode.file
        assert file is not None
        return (
            max(file.length, self.acked_end, self.written_end, append.reserving_end)
            - append.reserving_length
        )

    def absorb(self, inode: Inode) -> bool:
        """Take over attributes from meta; replies that arrive late change nothing,
        and return False.

        The number of chains in use, and of the last truncation that is over, are taken from late
        ones, too. Meta lets ctime grow with every change of attributes or length, and data_ver
        with what else concerns content.
        """
        assert inode.file is not None and inode.inode_id == self.inode_id, inode.inode_id
        old = self.file
        # A further truncation is none of before, whatever the clock of who counted it says.
        is_cut = inode.file.truncate_ver > old.truncate_ver
        told, known = (inode.ctime_ns, inode.file.data_ver), (self.inode.ctime_ns, old.data_ver)
        # That inline bytes leave for a chunk changes neither, and what was written there
        # since may not be reported yet.
        is_before_move = told == known and _move_order(inode.file) < _move_order(old)
        is_late = (told < known and not is_cut) or is_before_move
        stripe = self._dyn_stripe_after(inode.file, is_late=is_late)
        finished_cut = max(inode.file.finished_cut, self.ref.finished_cut)
        if (stripe, finished_cut) != (self.ref.dyn_stripe, self.ref.finished_cut):
            self.ref = replace(self.ref, dyn_stripe=stripe, finished_cut=finished_cut)
        if is_late:
            return False
        self.inode = inode
        if inode.file.truncate_ver != old.truncate_ver:
            self.ref = replace(self.ref, truncate_ver=inode.file.truncate_ver)
            self.forget_length()
        return inode.ctime_ns > self.unsure_ctime_ns

    def _dyn_stripe_after(self, told: FilePart, *, is_late: bool) -> int:
        """Return how many slots may hold chunks, after a reply.

        It only grows, so each reply counts: also one that seems to be late since a power loss has
        taken from meta what this mount was told before.  But that of an inline file is 0, whatever
        it was before, and that it is so no more is known by a further truncation.
        """
        old = self.file
        if is_late and (old.is_inline or told.is_inline or told.truncate_ver < old.truncate_ver):
            return self.ref.dyn_stripe
        is_begun_anew = told.is_inline or old.is_inline or told.truncate_ver > old.truncate_ver
        return told.dyn_stripe if is_begun_anew else max(told.dyn_stripe, self.ref.dyn_stripe)

    def absorb_extended(self, inode: Inode) -> None:
        """Take over the answer to who asked for more chains:
        they are there, whatever was told before a power loss.
        """
        assert inode.file is not None
        self.absorb(inode)
        if inode.file.dyn_stripe > self.ref.dyn_stripe:
            self.ref = replace(self.ref, dyn_stripe=inode.file.dyn_stripe)

    def note_moved(self, told: FilePart) -> None:
        """The bytes of a file that was inline, as `told`, are in a chunk by now,
        to which nothing of this mount was sent before.
        """
        if self.file.truncate_ver == told.truncate_ver + 1:
            for flush in self.flushes:
                if flush.truncate_ver == told.truncate_ver:
                    flush.truncate_ver = self.file.truncate_ver

    def forget_told(self) -> None:
        """Attributes change, or have, and nobody tells to what: only later ones count as known."""
        self.told_until_s = -math.inf
        self.unsure_ctime_ns = self.inode.ctime_ns

    def forget_length(self) -> None:
        """After a truncation: what was known of the length before it is void,
        and a sync has to cover what it has cut.

        What meta was not told of may have been written before it or after: the chains have to tell.
        """
        self.durable_seq = -1
        self.is_length_unknown = self.is_length_unknown or self.has_unreported
        self.acked_end = 0
        self.promised_length = 0
        self.recompute_written_end()
        self.content_seq += 1

    def note_lost_length(self, told: FilePart, inode: Inode) -> None:
        """Take in from the answer to a report that meta has lost, with its power,
        a length that it had `told` before: that is to be reported.

        Only a truncation makes a file shorter, and it has a number.  What the chains hold tells
        nothing of a hole at the end.
        """
        assert inode.file is not None
        is_cut = not told.truncate_ver == inode.file.truncate_ver == self.file.truncate_ver
        if is_cut or inode.file.length >= told.length:
            return
        if not self.has_unreported:
            self.local_mtime_ns = self.inode.mtime_ns
        self.acked_end = max(self.acked_end, told.length)
        self.acked_seq += 1
        self.is_space_unsure = True
        self.lost_length_count += 1

    def forget_refused(self, seq: int) -> None:
        """What was acknowledged up to `acked_seq` = seq and not reported was refused by meta,
        which cuts it: it is not there.

        Of what has come since only the chains can tell: some was there before the cut,
        some came after it, some failed.
        """
        self.acked_end = 0
        self.set_times = None
        self.is_length_unknown = self.acked_seq > seq
        self.recompute_written_end()
        self.content_seq += 1

    def give_back(self) -> bool:
        """Ask for every further byte again, where there is a promise that is not used;
        return whether there was.
        """
        needed = max(self.acked_end, self.file.length)
        if not self.is_metered or self.is_dirty or self.promised_length <= needed:
            return False
        self.promised_length = needed
        return True

    def recompute_written_end(self) -> None:
        """Derive the end of buffered bytes again, after some were dropped."""
        ends = [flush.ranges.end for flush in self.flushes]
        if self.run is not None:
            ends.append(self.run.end)
        self.written_end = max(ends, default=0)

    def note_metering(self, is_metered: bool, inode: Inode) -> None:
        """Take in whether a quota of bytes lies above, and what meta has promised."""
        assert inode.file is not None
        self.is_metered = is_metered
        if inode.file.truncate_ver == self.file.truncate_ver:
            self.promised_length = inode.file.promised_length

    def present(self, inode: Inode) -> Inode:
        """Return attributes that were absorbed, with what applications
        on this mount already did to the file.
        """
        length, file, owner = self.local_length(), inode.file, self.set_owner
        assert file is not None
        if length != file.length:
            file = self._of_length(file, length)
        is_waited_for = self.is_dirty or self.has_unreported
        if not is_waited_for and owner is None:
            return inode if file is inode.file else replace(inode, file=file)
        atime_ns, mtime_ns, ctime_ns = inode.atime_ns, inode.mtime_ns, inode.ctime_ns
        if is_waited_for:
            mtime_ns, ctime_ns = self.reported_mtime_ns(), max(ctime_ns, self.local_mtime_ns)
            times = self.set_times
            if times is not None:
                atime_ns = atime_ns if times.atime_ns is None else times.atime_ns
                ctime_ns = max(ctime_ns, times.set_ns)
        owned = inode.mode, inode.uid, inode.gid
        if owner is not None:
            owned, ctime_ns = owner.over(inode), max(ctime_ns, owner.set_ns)
        return inode.shown_as(file, owned, atime_ns, mtime_ns, ctime_ns)

    def _of_length(self, file: FilePart, length: int) -> FilePart:
        """Return what meta told with another length; asked for again and again, it is made once."""
        told, shown = self.shown_file
        if told is not file or shown.length != length:
            shown = replace(file, length=length)
            self.shown_file = file, shown
        return shown

    def length_hint(self) -> meta_pb2.LengthHintPb | None:
        """What to tell meta of the length; None: ask the chains."""
        if self.is_length_unknown:
            return None
        return meta_pb2.LengthHintPb(length=self.acked_end, truncate_ver=self.file.truncate_ver)


def _move_order(file: FilePart) -> tuple[int, bool]:
    return file.truncate_ver, not file.is_inline


@dataclass(slots=True, eq=False)
class FileSession:
    """A file session of one open file description and of what shares it;
    ends with the last of them.
    """

    session_id: SessionId
    handle_count: int = 1


@dataclass(slots=True, eq=False)
class FileHandle:
    """One open file description, or a program's share of one for its batches."""

    handle_id: int
    state: InodeState
    caller: Caller
    can_read: bool
    can_write: bool
    is_append: bool
    file_session: FileSession | None
    maker_id: int = 0
    """Of the thread that has made the file to write it, as the kernel calls it;
    0: another open, or nobody knows.
    """
    is_direct: bool = False
    """The kernel passes its writes on as they are,
    and leaves it to this side to take privileges from a changed program.
    """
    is_of_batch: bool = False
    """A share, by which nothing is read that the kernel keeps."""
    is_new: bool = True
    """Nothing has been read through it past the page cache."""
    is_run: bool = False
    """The kernel opened it to run it, and keeps it until the program ends."""
    keeps_atime: bool = False
    """No read through it counts as an access: it was opened with O_NOATIME."""
    drops_until_s: float = -math.inf
    """Until then the kernel may not have dropped the pages yet, as it was told at the open."""
    is_read_by_kernel: bool = False
    """Reads may be answered by the kernel alone, which was let keep its pages at the open."""
    noted_seq: int = NOT_READ
    """`content_seq` of the file when a read through it was last looked at as an access,
    or READ_BEFORE where the next one is to be looked at, too.
    """
    readahead: Readahead["FetchedBlock"] = field(default_factory=Readahead)
    readahead_seq: int = 0
    seen_error_count: int = 0
    owner_error: FsError | None = None
    """Mode or owner, which were set by who has this one, could not be;
    its next close or fsync says so.
    """
    is_bound: bool = False
    """The file was append-only when it was opened: nothing but what is appended is taken."""
    is_dirty: bool = False
    """Something was changed through this handle since its last durable point."""
    is_left: bool = False
    """A close has left that to a power loss, since the file had no name;
    what is open yet may be only a copy that nobody has.
    """

    def note_write(self) -> None:
        """Content is about to be changed through this handle."""
        self.is_dirty, self.is_left = True, False
        if self.caller.uid != 0:  # whatever the mode was when it was last looked at
            self.state.clears_suid = True


class FetchedBlock:
    """The content of one readahead block; `error` is set when it could not be fetched."""

    __slots__ = ("done", "error", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.done = trio.Event()
        self.error: FsError | None = None

    @property
    def is_fetched(self) -> bool:
        """True when `view` holds the bytes."""
        return self.error is None and self.done.is_set()
