"""What becomes of a request whose answer could not be made or sent for an error of ours:
no memory, or a bug, behind the method.

Part of fs/rpc/server_connection.py.  The method's own errors are answered as ever (`MethodRuns`).

Invariants:
    - The caller is told a status, if nothing of its reply was sent; else, and where even that
      cannot be had, this one connection ends: its caller learns that the outcome is unknown.
    - Nothing is raised: answers are given outside of any task, too, where
      an error would end the process.
    - Each error is told once, in the log or as a bug.

It sends nothing by itself: a task does, as for any reply that has to wait.  Half a frame is the
matter of fs/rpc/frame_sender.py.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from types import CoroutineType
from typing import Final

from ..schema.lacks import lack_among
from .api import Reply
from .serving import Work

log = logging.getLogger(__name__)

_WHILE: Final = "while that was to be answered"


class FailedAnswers:
    """Those of one connection."""

    def __init__(
        self,
        name: str,
        failed: Callable[[Work, Exception], object],
        on_bug: Callable[[str, BaseException], None],
        end: Callable[[], None],
    ) -> None:
        """Make it for the connection from `name`.

        Args:
            name: of the peer.
            failed: makes an FsError of an error, and tells of it.
            on_bug: told of what nobody is answered.
            end: ends the connection, and raises nothing.
        """
        self._name = name
        self._failed = failed
        self._on_bug = on_bug
        self._end = end

    def replace(self, work: Work, error: Exception) -> bool:
        """Have an error in the place of a result of which nothing has been sent;
        False: the connection ends instead.
        """
        try:
            result = work.result
            if work.is_over or work.is_told or work.lent_bytes:
                # It has been answered, or the caller may not be told anything
                # else of what is lent to it.
                self.end(f"{work} from {self._name}", error)
                return False
            work.result = self._failed(work, error)
            if isinstance(result, CoroutineType):
                result.close()
            elif isinstance(result, Reply) and result.release is not None:
                result.release()
        except Exception as again:  # noqa: BLE001 - see module head
            self.end(_WHILE, again)
            return False
        return True

    def end(self, where: str, error: BaseException) -> None:
        """End the connection for an error, and tell of it."""
        try:
            with suppress(MemoryError):  # to tell it takes some, too
                if lack_among(error) is None:
                    self._on_bug(where, error)
                else:
                    log.warning("connection from %s ends: %s: %r", self._name, where, error)
        finally:
            self._end()
