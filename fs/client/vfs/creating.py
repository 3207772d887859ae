"""Creating regular files, and the handles of what is opened or created."""

import math
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ...schema import services
from ...schema.ids import InodeId, SessionId
from ...schema.inode import APPEND_ONLY, Inode, inode_from_pb
from ...schema.proto import meta_pb2
from ...schema.values import value
from .asked_names import AskedNames
from .change import Change, begin, make
from .handles import Handles
from .open_file import FileHandle, FileSession
from .ports import Caller

FMODE_EXEC = 0x20
"""Set by the kernel in the flags of an open for execve(2), which needs no read permission."""

DROPS_LATER_S: Final = 1.0
"""A program drops pages, as it is told to at an open, once it goes on:
an open of another program must not keep them meanwhile.
"""


@value(frozen=True, slots=True)
class Opened:
    """What the kernel is told of an open file."""

    handle_id: int
    keep_cache: bool
    direct_io: bool


OnOpened = Callable[[Opened | None, Exception | None], None]
"""Called once, with what was opened or with why nothing was."""

OnCreated = Callable[[tuple[Opened, Inode] | None, Exception | None], None]
"""As `OnOpened`, with the attributes of the file."""


class Creating(Handles):
    """See module head."""

    async def create(
        self,
        parent: InodeId,
        name: bytes,
        mode: int,
        flags: int,
        caller: Caller,
        *,
        umask: int = 0,
        is_unnamed: bool = False,
    ) -> tuple[Opened, Inode]:
        """Create a regular file, or open the existing one unless O_EXCL is set.

        With `is_unnamed` the file has no name; O_EXCL then says that it never gets one, and `name`
        is ignored. A default access control list of the parent counts instead of `umask`.

        Raises:
            FsError: EXISTS with O_EXCL, and whatever meta says.
        """
        request = self._create_request(parent, name, mode, flags, caller, umask)
        if is_unnamed:
            request.name, request.is_unnamed = b"", True
        return await make(self._core, self._creation(request, flags, caller))

    def begin_create(  # noqa: PLR0917 - those of `create`
        self,
        parent: InodeId,
        name: bytes,
        mode: int,
        flags: int,
        caller: Caller,
        umask: int,
        on_end: OnCreated,
    ) -> bool:
        """Begin what `create` does, without a task; False: nothing is done, `create` has to do it.

        Meta is asked once; where that does not settle it a task goes on, under the same request id.
        """
        request = self._create_request(parent, name, mode, flags, caller, umask)
        return begin(self._core, self._creation(request, flags, caller), on_end)

    def _creation(
        self, request: meta_pb2.CreateReq, flags: int, caller: Caller
    ) -> Change[meta_pb2.CreateReq, meta_pb2.CreateRsp, tuple[Opened, Inode]]:
        core = self._core
        names = AskedNames(core, caller, ((InodeId(request.parent_inode_id), request.name),))

        # Quoted: it would be evaluated for every file.
        def take(
            reply: "meta_pb2.CreateRsp",
        ) -> "tuple[Opened, Inode] | Coroutine[Any, Any, tuple[Opened, Inode]]":
            names.note_reply()
            opened, inode, must_forget = self._take_created(request, flags, caller, reply)
            state = core.states[inode.inode_id]
            can_write = request.HasField("session")
            core.note_opened(state, inode, reply, names.asked_s, can_write=can_write)
            if must_forget:
                return self._created_anew(opened, inode)
            return opened, state.present(state.inode)

        # Quoted: it would be evaluated for every file.
        def note(reply: "meta_pb2.CreateRsp") -> None:
            names.note_answered(reply.directories, (InodeId(reply.inode.inode_id),))

        return Change(
            services.META_CREATE, request, take, names.fail, names.withdraw, note, names.refuse
        )

    def note_maker(self, handle_id: int, thread_id: int) -> None:
        """Note which thread has just created the file of a handle:
        what it sets of mode and owner may wait for its close.
        """
        handle = self._handles.get(handle_id)
        if handle is not None and handle.can_write:
            handle.maker_id = thread_id

    async def _created_anew(self, opened: Opened, inode: Inode) -> tuple[Opened, Inode]:
        """What a creation has found the kernel may show otherwise."""
        await self._have_forgotten(inode.inode_id)
        state = self._core.states[inode.inode_id]
        return opened, state.present(state.inode)

    def _create_request(  # noqa: PLR0917 - those of `create`
        self, parent: InodeId, name: bytes, mode: int, flags: int, caller: Caller, umask: int
    ) -> meta_pb2.CreateReq:
        wants_write = flags & os.O_ACCMODE != os.O_RDONLY
        request = meta_pb2.CreateReq()
        caller.put(request.caller)
        request.parent_inode_id = parent
        request.name = name
        request.mode = mode & 0o7777
        request.umask = umask
        request.is_exclusive = bool(flags & os.O_EXCL)
        request.is_truncate = bool(flags & os.O_TRUNC)
        if wants_write:
            session = request.session
            session.session_id = self._core.new_session_id()
            session.is_write = True
        request.wants_read = flags & os.O_ACCMODE != os.O_WRONLY
        request.wants_write = wants_write
        request.takes_inline = True
        request.is_append = bool(flags & os.O_APPEND)
        return request

    def _take_created(
        self,
        request: meta_pb2.CreateReq,
        flags: int,
        caller: Caller,
        reply: meta_pb2.CreateRsp,
    ) -> tuple[Opened, Inode, bool]:
        """Take in the reply to a creation; return also whether the kernel has to forget attributes
        before it is told.
        """
        core, inode = self._core, inode_from_pb(reply.inode)
        core.changes.note_inode(inode.inode_id)
        known = core.known.get(inode.inode_id)
        if request.is_truncate and known is not None:
            known.own_length = 0
        session = request.session if request.HasField("session") else None
        opened, must_forget = self._handed_out(inode, flags, session, caller)
        state = core.states[inode.inode_id]
        if reply.HasField("is_metered"):
            state.note_metering(reply.is_metered, inode)
        if reply.was_created:
            self.handle(opened.handle_id).drops_until_s = -math.inf  # of a new file it has no pages
            state.durable_seq = max(state.durable_seq, 0)  # there are no bytes yet to make durable
            # Nor extended attributes: saves a call before the first write to every new file.
            state.no_capability_until_s = core.now_s() + core.section.attr_timeout_s
        return opened, inode, must_forget

    def _new_session(self, *, wants_write: bool) -> meta_pb2.FileSessionPb | None:
        if not wants_write:
            return None
        return meta_pb2.FileSessionPb(session_id=self._core.new_session_id(), is_write=True)

    async def _have_forgotten(self, inode_id: InodeId) -> None:
        """Have the kernel forget the attributes of a known inode."""
        known = self._core.known[inode_id]
        given = known.given_count, known.unsure_until_s
        await self._core.kernel.invalidate_attributes(inode_id)
        # Not before: another open must not take it for forgotten.  What was
        # handed out meanwhile counts.
        if (known.given_count, known.unsure_until_s) == given:
            known.given_length, known.unsure_until_s = -1, 0.0

    def _handed_out(
        self,
        inode: Inode,
        flags: int,
        session: meta_pb2.FileSessionPb | None,
        caller: Caller,
    ) -> tuple[Opened, bool]:
        """Make a handle; return also whether the kernel has to forget attributes
        before it is told.
        """
        core = self._core
        state = core.state_of(inode, caller)
        can_write = flags & os.O_ACCMODE != os.O_RDONLY
        is_append = can_write and bool(flags & os.O_APPEND)
        # The kernel's own way for O_DIRECT waits for the answer deaf to all signals;
        # this one can be interrupted.
        is_direct = is_append or bool(flags & os.O_DIRECT)
        handle = FileHandle(
            handle_id=core.new_handle_id(),
            state=state,
            caller=caller,
            can_read=flags & os.O_ACCMODE != os.O_WRONLY,
            can_write=can_write,
            is_append=is_append,
            file_session=FileSession(SessionId(session.session_id)) if session else None,
            is_direct=is_direct,
            is_run=bool(flags & FMODE_EXEC),
            keeps_atime=bool(flags & os.O_NOATIME),
            is_bound=bool(inode.iflags & APPEND_ONLY),
            seen_error_count=state.error_count,
        )
        if can_write:
            state.writer = caller
        data_ver, now_s = state.file.data_ver, core.now_s()
        keep_cache = state.cached_ver == data_ver and not any(
            now_s < other.drops_until_s for other in state.handles.values()
        )
        self._add_handle(handle)
        if not keep_cache:
            handle.drops_until_s = now_s + DROPS_LATER_S
            # The kernel drops its pages now; what others had read ahead must not fill them again.
            state.note_foreign_content()
        state.cached_ver = data_ver
        handle.is_read_by_kernel = keep_cache and not (can_write or is_direct)
        if handle.is_run:
            self._note_read(handle)
        opened = Opened(handle.handle_id, keep_cache, direct_io=is_direct)
        known = core.known.get(inode.inode_id)
        if known is None:
            return opened, False
        shown = state.present(state.inode)
        return opened, known.may_show_other(shown.length, shown.mtime_ns, core.now_s())
