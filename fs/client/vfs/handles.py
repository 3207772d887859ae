"""The open files of a mount, by the number that the kernel or a program knows them by."""

from ...schema.inode import IMMUTABLE
from ...schema.status import FsError, Status
from .core import VfsCore
from .open_file import NOT_READ, FileHandle, InodeState


class TakesTaskError(Exception):
    """What was begun has to wait for something:
    the usual way is to be taken, which does what is left.
    """


class Handles:
    """What reading, writing and closing share."""

    def __init__(self, core: VfsCore) -> None:
        self._core = core
        self._handles: dict[int, FileHandle] = {}

    def _add_handle(self, handle: FileHandle) -> None:
        handle.state.handles[handle.handle_id] = handle
        self._handles[handle.handle_id] = handle

    def handle(self, handle_id: int) -> FileHandle:
        """Return what a handle stands for; raises FsError(BAD_FILE)."""
        handle = self._handles.get(handle_id)
        if handle is None:
            raise FsError(Status.BAD_FILE, f"no open file {handle_id}")
        return handle

    def open_state(self, handle_id: int) -> InodeState:
        """Return the state of the file that a handle is for; raises FsError(BAD_FILE)."""
        return self.handle(handle_id).state

    def readable(self, handle_id: int) -> FileHandle:
        """Return a handle that can read; raises FsError(BAD_FILE)."""
        handle = self._handles.get(handle_id) or self.handle(handle_id)  # mostly without a call
        if handle.noted_seq != handle.state.content_seq:
            self._note_read(handle)
        if not handle.can_read:
            inode_id = handle.state.inode_id
            raise FsError(Status.BAD_FILE, f"inode {inode_id} is open for writing only")
        return handle

    def _note_read(self, handle: FileHandle) -> None:
        """A read through a handle begins, the first one or the first since the file was written:
        it may count as an access.
        """
        handle.noted_seq = handle.state.content_seq
        if handle.can_read and not handle.keeps_atime:
            self._core.note_read(handle.state)

    def _note_unseen_read(self, handle: FileHandle) -> None:
        """A file is closed that was opened for reading,
        and the kernel has asked for none of its bytes, of which it had all: it counts as read.
        """
        if handle.noted_seq == NOT_READ and handle.state.file.length:
            self._note_read(handle)

    def writable(self, handle_id: int) -> FileHandle:
        """Return a handle that can write.

        Raises:
            FsError: as `opened_for_writing`; NOT_PERMITTED where the file has become immutable
                since it was opened.
        """
        handle = self.opened_for_writing(handle_id)
        if handle.state.inode.iflags & IMMUTABLE:
            raise FsError(Status.NOT_PERMITTED, f"inode {handle.state.inode_id:#x} is immutable")
        return handle

    def opened_for_writing(self, handle_id: int) -> FileHandle:
        """Return a handle that can write, of a file that may be immutable by now: for what was
        changed before, and comes only now.

        Raises:
            FsError: BAD_FILE, or the error of an earlier write, once per handle.
        """
        handle = self.handle(handle_id)
        state = handle.state
        if not handle.can_write:
            raise FsError(Status.BAD_FILE, f"inode {state.inode_id} is open for reading only")
        if state.error_count > handle.seen_error_count:
            self._raise_pending_error(handle)
        return handle

    def _raise_pending_error(self, handle: FileHandle) -> None:
        seen, handle.seen_error_count = handle.seen_error_count, handle.state.error_count
        self._core.raise_pending_error(handle.state, seen)
