"""One request, done in a task that may wait:
asked of its handler, answered once, timed, and traced if it is due.

What may be given up for a signal is told of to `interrupts` for as long as it waits.  Does not
choose what is done in a task, nor begin any.
"""

import errno
from collections.abc import Callable

import trio

from ....runtime import tracing
from ....runtime.readiness import current_time
from .answering import Answering
from .device import Request
from .interrupts import WITHOUT_EFFECT, Interrupts
from .name_requests import Handler
from .operations import Operations
from .times import OperationTimes, name_of


class Serving:
    """The requests of one mount that have a task each."""

    def __init__(
        self,
        operations: Operations,
        answering: Answering,
        interrupts: Interrupts,
        times: OperationTimes,
        tracer: tracing.Tracer,
        *,
        refuse: Callable[[Request, Exception], None],
    ) -> None:
        self._handlers = operations.handlers
        self._reply, self._refuse = answering.reply, refuse
        self._reply_error = answering.reply_error
        self._interrupts = interrupts
        self._times = times
        self._tracer = tracer

    async def serve_again(
        self, request: Request, scope: trio.CancelScope, handler: Handler | None = None
    ) -> None:
        """Do what was begun in vain, in a scope of its own that may be given up."""
        with scope:
            await trio.lowlevel.checkpoint_if_cancelled()  # given up already: nobody is asked
            await self.serve(request, scope, handler)
        if scope.cancelled_caught:
            self._reply_error(request, errno.EINTR)
        self._interrupts.take_given_up(scope)

    async def serve(
        self, request: Request, scope: trio.CancelScope, handler: Handler | None = None
    ) -> None:
        """Do a request by its handler, and answer it;
        `scope` is what a signal to its caller cancels.
        """
        handler = handler or self._handlers.get(request.opcode)
        if handler is None:
            self._reply_error(request, errno.ENOSYS)
            return
        span = self.span(request) if self._tracer.sample_rate else None
        began_s = current_time()
        try:
            if request.opcode in WITHOUT_EFFECT:
                self._interrupts.add(request, scope)
                try:
                    reply = await handler(request)
                finally:
                    self._interrupts.remove(request)
            else:
                reply = await handler(request)
            self._reply(request, reply)
        except Exception as error:  # noqa: BLE001 - an edge, see errno_of
            self._refuse(request, error)
            if span is not None:
                span.note_error(error)
        finally:
            self._times.note(request, began_s)
            if span is not None:
                span.end()

    def span(self, request: Request) -> tracing.Span | None:
        """Begin the span of a request if it is one of those that are traced;
        its ending is the caller's.
        """
        if not (self._tracer.sample_rate and self._tracer.is_due()):
            return None
        span = self._tracer.root(name_of(request.opcode))
        span.attributes.update(inode_id=request.node_id, uid=request.uid, pid=request.pid)
        return span
