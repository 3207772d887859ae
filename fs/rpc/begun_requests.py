"""Requests that are begun where they are received, and answered when what they began has ended:
no task waits for that.

Part of fs/rpc/server_connection.py, which serves all others.

Invariants:
    - Each is answered once; what it holds (its place among the requests under way,
      its buffer) is given back then.
    - Nobody ends one before its method does: neither its time limit, which the
      method heeds, nor its caller.

Concurrency: one event loop; answers come from anywhere on it, also after the connection
has ended: they are dropped then.
"""

import logging
from functools import partial

from ..runtime.ports import Buffer
from ..schema.lacks import lack_among
from ..schema.status import FsError
from .api import Call
from .connection_parts import NOBODYS, ConnectionParts, WayOfAnswering
from .frame import Kind, encode_error
from .replies import BROKEN
from .serving import Work

log = logging.getLogger(__name__)


class BegunRequests(WayOfAnswering):
    """Those of one connection."""

    def __init__(self, parts: ConnectionParts) -> None:
        super().__init__(parts)
        self._left_id = -1
        """The last request that the method has left when all of it came at once."""

    def take_whole(self, work: Work, message: bytes) -> bool:
        """Begin a request of which `FramedStream.take_whole` has returned the message;
        False: its payload is not taken, either.
        """
        if not self._may_begin(work):
            return False
        framed = self._framed
        payload = framed.take_small_payload()
        if payload is None:
            return False
        if self._begin(work, message, payload):
            return True
        self._left_id = work.header.request_id
        framed.give_payload_back(len(payload))
        return False

    def take(self, work: Work, message: Buffer, payload: memoryview) -> bool:
        """Begin a request that has come otherwise; False: nothing is done."""
        if work.header.request_id == self._left_id or not self._may_begin(work):
            return False
        return self._begin(work, bytes(message), payload)

    def _may_begin(self, work: Work) -> bool:
        """Return whether the method of a request has such a form,
        and nobody has to be asked to admit it.
        """
        binding = work.binding
        if binding.begin is None or work.header.flags:
            return False
        return binding.admit is None or self._runs.grant.user is None

    def _begin(self, work: Work, message: bytes, payload: memoryview) -> bool:
        """Call the method; False: it has done nothing.  `payload` is its until it answers."""
        request_id, binding = work.header.request_id, work.binding
        assert binding.begin is not None, binding.method
        call = Call(self._runs.peer, request_id, work.deadline_s, payload)
        self._scopes[request_id] = NOBODYS
        if binding.observed is not None:
            binding.observed.in_flight += 1
        try:
            if binding.begin(call, message, partial(self._answer, work)):
                return True
        except Exception as error:  # noqa: BLE001 - the edge, as `MethodRuns.call`; the method itself is called
            if lack_among(error) is None:
                self._server.on_bug(f"begin {work}", error)
            if work.is_over:
                return True
        del self._scopes[request_id]
        if binding.observed is not None:
            binding.observed.in_flight -= 1
        return False

    def _answer(self, work: Work, result: bytes | Exception) -> None:
        """Send the reply, by a task if something has to be waited for;
        what the request held is free then.  Raises nothing.
        """
        try:
            self._answer_now(work, result)
        except Exception as error:  # noqa: BLE001 - no task would end with it, but the event loop
            self._answer_failed(work, error)

    def _answer_now(self, work: Work, result: bytes | Exception) -> None:
        if isinstance(result, Exception):  # a bug is told of also where nobody hears the answer
            result = self._runs.failed(work, result)
        if work.is_over:
            return
        framed, request_id = self._framed, work.header.request_id
        work.result = result
        if self.has_ended:  # sending, too, may take a task
            self._give_back(work)
            return
        frame: list[Buffer]
        if isinstance(result, FsError):
            frame, size = encode_error(Kind.REPLY, request_id, result, version=framed.version), 0
        else:
            frame, size = self._replies.frame_of(request_id, result, ())
        try:
            if framed.hold(frame) or framed.send_at_once(frame, call_count=len(self._scopes)):
                work.sent_bytes = size
            else:
                self._spawn(self._finish, work)
                return
        except BROKEN as error:
            log.debug("%s: connection broke before the reply: %s", work, error)
        self._give_back(work)
