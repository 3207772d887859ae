"""Answers that are sent where their requests are received:
nothing has to be waited for, so no task is needed.

Part of fs/rpc/server_connection.py, which says which requests may be served so, and goes
on with those that have to wait.

Invariants:
    - A request that is not answered here has had nothing sent for it: what
      is left of it is in its `Work`.
    - What a request holds is given back when its reply has been sent or copied: by a task of its
      own if a part of a large reply has to wait for room.
    - Nothing here awaits but that task; a connection that breaks meanwhile raises nothing.
    - What cannot be sent for an error of ours is a matter of
      fs/rpc/failed_answers.py: it reaches no event loop.

It receives nothing, does not choose the requests, and cancels none.

Concurrency: one event loop; also called outside of any task.
"""

import logging
from collections.abc import Sequence
from functools import partial
from types import CoroutineType
from typing import Final

import trio

from ..kernels.frames import make_header
from ..runtime.ports import Buffer
from ..runtime.readiness import current_time
from ..schema.lacks import lack_among
from ..schema.status import FsError
from .api import LATER, Reply
from .connection_parts import NOBODYS, WayOfAnswering
from .frame import Header, Kind, encode_error
from .replies import BROKEN
from .serving import Binding, Work

log = logging.getLogger(__name__)

SMALL_REPLY_BYTES_MAX: Final = 4 * 1024
"""Of payload: then a reply may be sent without a coroutine of its own."""


class AnswersAtOnce(WayOfAnswering):
    """Those of one connection."""

    def serve_quickly(self, header: Header, binding: Binding, message: bytes) -> Work | None:
        """Answer by the quick form of a method, if it has one and that can;
        return what is yet to be done, None: nothing.
        """
        began_s = current_time()
        found, would_block = None, False
        if binding.quick is not None:
            try:
                found = binding.quick(message)
            except BlockingIOError:
                would_block = True
            except Exception as error:  # noqa: BLE001 - the edge, as `MethodRuns.call`; the method itself is called
                if lack_among(error) is None:
                    where = f"quick {binding.method} from {self._framed.stream.peer_name}"
                    self._server.on_bug(where, error)
        if found is not None and self._is_sent(header, binding, began_s, *found):
            return None
        work = Work(binding, header, None, began_s)
        work.would_block = would_block
        return work

    def _is_sent(
        self, header: Header, binding: Binding, began_s: float, message: bytes, payload: Buffer
    ) -> bool:
        """Send a quick reply if nothing has to be waited for;
        False: nothing of it has been sent.
        """
        framed = self._framed
        sizes = len(message), len(payload)
        try:
            own = make_header(framed.version, Kind.REPLY, 0, header.request_id, 0, 0, 0, 0, *sizes)
            frame = (own, message, payload)
            is_held = framed.has_more and framed.hold(frame)
            if not (is_held or framed.send_at_once(frame, call_count=len(self._scopes) + 1)):
                return False
        except BROKEN as error:
            log.debug("%s: connection broke before the reply: %s", binding.method, error)
        except Exception as error:  # noqa: BLE001 - the method itself is called, and meets and tells it
            log.debug("%s: a quick reply that is not sent: %r", binding.method, error)
            return False
        if binding.observed is not None:
            binding.observed.in_flight += 1
            self._runs.note_end(binding.observed, header, began_s, sum(sizes), None)
        return True

    def ends_at_once(self, work: Work, message: Buffer) -> bool:
        """Call a plain method, and answer if it has ended with a small reply,
        or have it answer later: that needs no coroutine.
        """
        work.answer = partial(self._answer_later, work)
        self._runs.begin(work, message)
        if work.result is LATER:
            work.result = None
            self._scopes[work.header.request_id] = NOBODYS
            return True
        work.answer = None
        if work.binding.is_tried and isinstance(work.result, CoroutineType):
            work.result = self._runs.tried(work, work.result, message)
        if isinstance(work.result, CoroutineType) or not self._is_answered(work):
            return False
        if not work.has_waited:  # else the task that sends the rest does it
            self._give_back(work)
        return True

    def _answer_later(self, work: Work, result: object) -> None:
        """Answer what has been left for later, by a task if something has to be waited for;
        raises nothing.
        """
        try:
            self._answer_now(work, result)
        except Exception as error:  # noqa: BLE001 - no task would end with it, but the event loop
            self._answer_failed(work, error)

    def _answer_now(self, work: Work, result: object) -> None:
        work.answer = None
        if isinstance(result, Exception):  # a bug is told of also where nobody hears the answer
            result = self._runs.failed(work, result)
        if isinstance(result, CoroutineType):
            if self.has_ended:
                result.close()
                self._give_back(work)
                return
            work.result = result
            scope = self._scopes[work.header.request_id] = trio.CancelScope(
                deadline=work.deadline_s
            )
            self._spawn(self._go_on, work, scope)
            return
        work.result, work.is_run = result, True
        if self.has_ended:  # sending, too, may take a task
            self._give_back(work)
        elif not self._is_answered(work):
            self._spawn(self._finish, work)
        elif not work.has_waited:  # else the task that sends the rest does it
            self._give_back(work)

    def _is_answered(self, work: Work) -> bool:
        """Send a reply if nothing has to be waited for;
        False: a task is to send the result, which may be an error by then.
        """
        try:
            return self._is_reply_sent(work)
        except Exception as error:  # noqa: BLE001 - the edge: it must not end the process
            return not self._failed.replace(work, error)

    def _is_reply_sent(self, work: Work) -> bool:
        framed, result, request_id = self._framed, work.result, work.header.request_id
        frame: list[Buffer]
        if isinstance(result, FsError):
            frame, size = encode_error(Kind.REPLY, request_id, result, version=framed.version), 0
        elif isinstance(result, Reply):
            frame, size = self._replies.frame_for(work, result)
            if size > SMALL_REPLY_BYTES_MAX:
                return self._is_sending(work, frame, size)
        else:
            frame, size = self._replies.frame_of(request_id, result, ())
        try:
            if framed.hold(frame) or framed.send_at_once(frame, call_count=len(self._scopes) + 1):
                work.sent_bytes = size + work.lent_bytes
                return True
        except BROKEN as error:
            log.debug("%s: connection broke before the reply: %s", work, error)
            return True
        return False

    def _is_sending(self, work: Work, frame: Sequence[Buffer], size: int) -> bool:
        """Send a large reply, as much of it as nothing has to be waited for;
        the rest, if there is one, takes a task.
        """
        if not self._replies.fits(len(frame[1]), size):
            return False
        try:
            rest = self._framed.send_first(frame)
            if rest is None:
                return False
            if rest:
                self._leave_rest(work, rest)
        except BROKEN as error:
            log.debug("%s: connection broke before the end of the reply: %s", work, error)
            return True
        work.sent_bytes = size + work.lent_bytes
        return True

    def _leave_rest(self, work: Work, rest: Sequence[Buffer]) -> None:
        """Have a task send the rest of a reply; raises trio.BrokenResourceError if there is none
        to be had: the connection ends then.
        """
        try:
            self._spawn(self._send_rest, work, rest)
        except Exception as error:
            raise self._framed.cut(error) from error
        work.is_run = work.has_waited = True
        self._scopes[work.header.request_id] = NOBODYS

    async def _send_rest(self, work: Work, rest: Sequence[Buffer]) -> None:
        try:
            await self._framed.send_rest(rest)
        except BROKEN as error:
            log.debug("%s: connection broke within the reply: %s", work, error)
        finally:
            self._give_back(work)
