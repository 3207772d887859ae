"""Extended attributes of files and directories, and those of a mount that tell of itself.

What is known to be absent is not asked for again for a while: the kernel asks
for some of them all the time.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from emberfs.protocol import SOCKET_ATTRIBUTE

from ...schema import services
from ...schema.ids import InodeId
from ...schema.proto import meta_pb2
from ...schema.status import FsError, Status
from . import chunk_sizes
from .change import Change, OnMade, begin, make
from .core import VfsCore
from .listed_names import ListedNames
from .mounted_tree import TREE_ATTRIBUTE, MountedTree
from .open_file import InodeState
from .ports import Caller
from .profile import PROFILE_ATTRIBUTE
from .watched import SETTINGS_ATTRIBUTE, TRACE_ATTRIBUTE, look_at_spans, require_own_user

_SECURITY: Final = b"security."
_CAPABILITY: Final = b"security.capability"
_KERNEL: Final = Caller(0, 0)
"""Who does what follows from an act of a caller, who could not do it himself."""
_BATCH_ATTRIBUTE: Final = SOCKET_ATTRIBUTE.encode()
_ACL_NAMES: Final = (b"system.posix_acl_access", b"system.posix_acl_default")


class ExtendedAttributes:
    """The part of `Namespace` that has them."""

    def __init__(self, core: VfsCore) -> None:
        self._core = core
        self.listed = ListedNames(core)

    async def setxattr(
        self,
        inode_id: InodeId,
        name: bytes,
        value: bytes,
        caller: Caller,
        *,
        must_be_new: bool = False,
        must_exist: bool = False,
    ) -> None:
        """Set an extended attribute, new or not unless said otherwise;
        with both conditions, nothing can ever be set.

        Raises:
            FsError: EXISTS with `must_be_new`, NO_ATTRIBUTE with
                `must_exist`, and whatever meta says.
        """
        await self._core.settle_owner_of(inode_id)
        if must_be_new and must_exist:
            await self.getxattr(inode_id, name, caller)
            raise FsError(Status.EXISTS, f"inode {inode_id}: {name!r}")
        if name == chunk_sizes.NAME:
            self._note_xattr_change(inode_id, name)
            await chunk_sizes.set_chunk_size(self._core, inode_id, value, caller)
            self._note_xattr_change(inode_id, name)
            return
        mode = meta_pb2.XATTR_CREATE if must_be_new else meta_pb2.XATTR_SET
        mode = meta_pb2.XATTR_REPLACE if must_exist else mode
        await make(self._core, self._setting(inode_id, name, value, caller, mode))

    def begin_setxattr(
        self, inode_id: InodeId, name: bytes, value: bytes, caller: Caller, on_end: OnMade[None]
    ) -> bool:
        """Begin what `setxattr` does without a condition;
        False: nothing is done, `setxattr` has to do it.
        """
        if name == chunk_sizes.NAME or inode_id in self._core.owned:
            return False
        change = self._setting(inode_id, name, value, caller, meta_pb2.XATTR_SET)
        return begin(self._core, change, on_end)

    def _setting(
        self,
        inode_id: InodeId,
        name: bytes,
        value: bytes,
        caller: Caller,
        mode: "meta_pb2.XattrMode.ValueType",
    ) -> Change[meta_pb2.SetXattrReq, meta_pb2.SetXattrRsp, None]:
        request = meta_pb2.SetXattrReq(
            caller=caller.to_pb(), inode_id=inode_id, name=name, value=value, mode=mode
        )
        self.listed.expect(request)
        note = partial(self._note_xattr_change, inode_id, name)
        note()
        return Change(services.META_SET_XATTR, request, lambda _: note(), note)

    async def getxattr(self, inode_id: InodeId, name: bytes, caller: Caller) -> bytes:
        """Return the value of an extended attribute.

        The kernel asks for security.capability before every single write; that it is absent
        is remembered for attr_timeout_s while the file is open. It asks for the access
        control list of whatever it checks or lists, and programs that list for labels;
        attributes say whether there are any.

        Raises:
            FsError: NO_ATTRIBUTE.
        """
        self.require_maybe_there(inode_id, name)
        core = self._core
        if name == _BATCH_ATTRIBUTE and core.batch_socket_name:
            return core.batch_socket_name
        if name == TREE_ATTRIBUTE and core.tree is not None:
            return await self._tree_words(core.tree)
        if name == PROFILE_ATTRIBUTE:
            return core.profile.look(caller)
        if name == SETTINGS_ATTRIBUTE and core.tell_settings is not None:
            require_own_user(caller, "settings")
            return core.tell_settings()
        if name.startswith(TRACE_ATTRIBUTE) and core.spans is not None:
            return look_at_spans(core.spans, name, caller)
        if name == chunk_sizes.NAME:
            return await chunk_sizes.get_chunk_size(core, inode_id, caller)
        if caller.uid and inode_id in core.owned:
            await core.try_settle_owner(core.owned[inode_id])
        state = core.states.get(inode_id) if name == _CAPABILITY else None
        request = meta_pb2.GetXattrReq(caller=caller.to_pb(), inode_id=inode_id, name=name)
        mark = core.changes.mark()
        try:
            return (await core.call(services.META_GET_XATTR, request)).value
        except FsError as error:
            is_late = core.changes.is_since(mark, inode_id)
            if state is not None and error.status is Status.NO_ATTRIBUTE and not is_late:
                state.no_capability_until_s = core.now_s() + core.section.attr_timeout_s
            raise

    async def _tree_words(self, tree: MountedTree) -> bytes:
        """Return which tree is mounted, by the path that its root has now: it may have been moved.

        Raises:
            FsError: NOT_FOUND: it was removed; and others of meta.
        """
        if tree.subdir:
            request = meta_pb2.GetRealPathReq(caller=_KERNEL.to_pb(), inode_id=self._core.tree_root)
            reply = await self._core.call(services.META_GET_REAL_PATH, request)
            tree = tree._replace(subdir=os.fsdecode(reply.path))
        return os.fsencode(tree.words)

    def require_maybe_there(self, inode_id: InodeId, name: bytes) -> None:
        """Raise FsError(NO_ATTRIBUTE) when it is remembered that an attribute is absent."""
        core, until_s = self._core, 0.0
        known = core.known.get(inode_id)
        if name.startswith(_SECURITY):
            until_s = 0.0 if known is None else known.bare_until_s
            state = core.states.get(inode_id) if name == _CAPABILITY else None
            if state is not None:
                until_s = max(until_s, state.no_capability_until_s)
        elif name in _ACL_NAMES and known is not None:
            until_s = known.no_acl_until_s
        if core.now_s() < until_s:
            raise FsError(Status.NO_ATTRIBUTE, f"inode {inode_id}: {name!r}")

    def has_none(self, inode_id: InodeId) -> bool:
        """Return whether attributes told just now that there are no extended attributes at all."""
        known = self._core.known.get(inode_id)
        if known is None:
            return False
        return self._core.now_s() < min(known.bare_until_s, known.no_acl_until_s)

    async def listxattr(self, inode_id: InodeId, caller: Caller) -> Sequence[bytes]:
        """Return the names of all extended attributes that the caller may see."""
        if self.has_none(inode_id):
            return []
        request = meta_pb2.ListXattrsReq(caller=caller.to_pb(), inode_id=inode_id)
        return (await self._core.call(services.META_LIST_XATTRS, request)).names

    async def removexattr(self, inode_id: InodeId, name: bytes, caller: Caller) -> None:
        """Remove an extended attribute; NO_ATTRIBUTE when there is none."""
        await self._core.settle_owner_of(inode_id)
        request = meta_pb2.RemoveXattrReq(caller=caller.to_pb(), inode_id=inode_id, name=name)
        self.listed.expect(request)
        self._note_xattr_change(inode_id, name)
        await self._core.call(services.META_REMOVE_XATTR, request)
        self._note_xattr_change(inode_id, name)

    async def drop_capability(self, state: InodeState, caller: Caller) -> None:
        """Remove what a file may do as a program beyond others, if it may;
        that there is nothing is remembered.
        """
        try:
            await self.getxattr(state.inode_id, _CAPABILITY, caller)
            await self.removexattr(state.inode_id, _CAPABILITY, _KERNEL)
        except FsError as error:
            # Also of the second one: who writes at the same time may have been quicker.
            if error.status is not Status.NO_ATTRIBUTE:
                raise

    def _note_xattr_change(self, inode_id: InodeId, name: bytes) -> None:
        core = self._core
        core.told.note_changed(inode_id)
        core.changes.note_inode(inode_id)
        state, known = core.states.get(inode_id), core.known.get(inode_id)
        if state is not None:
            state.no_capability_until_s = 0.0
            state.forget_told()
        if known is None:
            return
        unsure_until_s = core.now_s() + core.retry_time_s_longest
        if name in _ACL_NAMES:
            known.no_acl_until_s, known.acl_unsure_until_s = 0.0, unsure_until_s
        else:
            known.bare_until_s, known.bare_unsure_until_s = 0.0, unsure_until_s
