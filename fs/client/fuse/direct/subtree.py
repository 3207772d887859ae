"""The connection to the kernel of a mount whose root is a directory
of the file system, not its root.

The kernel calls the root of every mount 1, which is also how the file system calls its own.  Both
names of the directory are exchanged here, so that nothing above knows of it.

Invariants:
    - The kernel knows the directory as 1 only.  Nothing lies below itself, so of all replies
      only that to a LOOKUP of `..` names it as an entry: who opens something by its handle
      makes the kernel ask for that.
    - Of all requests only renames name a second directory in what follows their header.
"""

import errno
from collections.abc import Sequence
from struct import Struct
from typing import Final

from ....runtime.ports import Buffer
from ....runtime.recycled import RecycledMemory
from ....schema.ids import ROOT_INODE_ID, InodeId
from .device import Device, Request
from .protocol import Opcode

_NODE_ID: Final = Struct("=Q")
"""It comes first, in requests that have a second one, and in notices."""
_WITH_SECOND: Final = frozenset(map(int, (Opcode.RENAME, Opcode.RENAME2)))
_ABOVE: Final = b"..\0"
_ROOT: Final = _NODE_ID.pack(ROOT_INODE_ID)


class SubtreeDevice(Device):
    """See module head."""

    def __init__(
        self,
        fd: int,
        write_bytes_max: int,
        memory: RecycledMemory | None = None,
        *,
        root: InodeId,
    ) -> None:
        """As of Device; `root` is the directory that is mounted."""
        super().__init__(fd, write_bytes_max, memory)
        self._root = int(root)
        self._root_bytes = _NODE_ID.pack(root)
        self._asked_above: set[int] = set()
        """LOOKUPs of `..` that are under way."""

    def receive_now(self, count_max: int) -> tuple[bytes, Request | None]:
        """See Device; READs are of files."""
        rows, request = super().receive_now(count_max)
        if request is None:
            return rows, None
        if request.node_id == ROOT_INODE_ID:
            request = request._replace(node_id=self._root)
        if request.opcode in _WITH_SECOND and request.body.startswith(_ROOT):
            request = request._replace(body=self._root_bytes + request.body[_NODE_ID.size :])
        if request.opcode == Opcode.LOOKUP and request.body == _ABOVE:
            self._asked_above.add(request.unique)
        return rows, request

    def reply(self, unique: int, buffers: Sequence[Buffer]) -> None:
        """See Device."""
        if self._asked_above and unique in self._asked_above:
            self._asked_above.discard(unique)
            entry = b"".join(buffers)
            if entry.startswith(_ROOT):
                # The root of the file system lies outside, and the kernel would take it for ours.
                super().reply_error(unique, errno.ESTALE)
                return
            if entry.startswith(self._root_bytes):
                buffers = (_ROOT + entry[_NODE_ID.size :],)
        super().reply(unique, buffers)

    def reply_error(self, unique: int, error_number: int) -> None:
        """See Device."""
        self._asked_above.discard(unique)
        super().reply_error(unique, error_number)

    def notify(self, code: int, body: bytes) -> None:
        """See Device."""
        if body.startswith(self._root_bytes):
            body = _ROOT + body[_NODE_ID.size :]
        super().notify(code, body)
