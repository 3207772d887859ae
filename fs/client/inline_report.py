"""A report with all bytes of a file, and what is known of what has become of it;
see specs/decisions/0149-inline-files.md.  No I/O.

Its bytes are to take effect once: metadata keeps them, or they go to a chunk.  Metadata
remembers which, but not for ever: who asks OUTCOMES_KEPT_S after it was sent first is not to take
it for not taken because nothing is known of it.
"""

from ..schema.config import OUTCOMES_KEPT_S
from ..schema.proto import meta_pb2
from ..schema.status import FsError, Status


class InlineReport:
    """See module head."""

    __slots__ = ("_asked_s", "_outcome", "_request", "is_settled")

    def __init__(self, request: meta_pb2.SyncReq, asked_s: float) -> None:
        """Say that it is sent from now on, on the clock of all `now_s` below."""
        self._request = request
        self._asked_s = asked_s
        self._outcome: meta_pb2.InlineOutcomePb.ValueType = meta_pb2.INLINE_NOT_KNOWN
        self.is_settled = False
        """No try of it is taken any more that has not been."""

    @property
    def report_id(self) -> bytes:
        """Names it to metadata; empty before it has been sent."""
        return self._request.caller.request_id

    def note_reply(self, reply: meta_pb2.InodeRsp, *, is_repeat: bool) -> None:
        """Take in what metadata answered; the refusal of a repeat leaves
        in doubt what an earlier try did.
        """
        if not reply.is_inline_refused:
            self._settle(meta_pb2.INLINE_TAKEN)
        elif not is_repeat:
            self._settle(meta_pb2.INLINE_NOT_TAKEN)

    def forget_bytes(self) -> None:
        """Keep what it says of the file no longer:
        it is not sent again, and may be remembered for long.
        """
        asked = self._request
        self._request = meta_pb2.SyncReq(caller=asked.caller, inode_id=asked.inode_id)

    def note_told(self, outcome: meta_pb2.InlineOutcomePb.ValueType, now_s: float) -> None:
        """Take in what metadata told who asked it to end this report;
        nothing, if it is of an earlier release.
        """
        is_old = now_s - self._asked_s >= OUTCOMES_KEPT_S
        is_forgotten = is_old and outcome == meta_pb2.INLINE_NOT_TAKEN
        self._settle(meta_pb2.INLINE_NOT_KNOWN if is_forgotten else outcome)

    def _settle(self, outcome: meta_pb2.InlineOutcomePb.ValueType) -> None:
        self.is_settled = True
        self._outcome = self._outcome or outcome

    def was_taken(self) -> bool:
        """Return whether metadata has taken the bytes; False: they are to go to a chunk.

        Raises:
            FsError: IO_ERROR: nobody knows, and to write them could undo what
                others have written since.
        """
        if self._outcome == meta_pb2.INLINE_NOT_KNOWN:
            what = f"inode {self._request.inode_id:#x}: nobody knows whether its bytes were taken"
            raise FsError(Status.IO_ERROR, what)
        return self._outcome == meta_pb2.INLINE_TAKEN
