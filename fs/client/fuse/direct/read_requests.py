"""READs whose bytes come from storage: begun without a task, done together by one task,
or each by itself in its own.

Invariants:
    - Every READ is answered once, or let go where nobody waits for an answer any more.
    - What could not be done together is done again, each by itself.  READs of what lies behind wait
      for all of these, from before the first of them is answered (`_hold`).

Does not choose which reads go together, see `together`, nor receive any.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from ....runtime.ports import Buffer
from ...read_table import ReadTable
from ...vfs.vfs import Vfs
from .begun_reads import BegunReads
from .device import Request
from .interrupts import Interrupts
from .name_requests import Handler
from .operations import Operations
from .read_answers import ReadAnswers
from .serving import Serving
from .together import ReadsTogether, are_read, request_of

_log = logging.getLogger(__name__)

Held = tuple[Request, Callable[[], None]]
"""A read that is to be done by itself, and what lets others go on."""

Spawn = Callable[..., Any]
"""`nursery.start_soon` of the mount."""


class ReadRequests:
    """Those of one mount; see module head."""

    def __init__(  # noqa: PLR0917 - the parts of a mount
        self,
        vfs: Vfs,
        operations: Operations,
        answers: ReadAnswers,
        interrupts: Interrupts,
        serving: Serving,
        spawn: Spawn,
    ) -> None:
        self._memory = vfs.memory
        self._tracer = vfs.tracer
        self._operations = operations
        self._answers = answers
        self._interrupts = interrupts
        self._serving = serving
        self._spawn = spawn
        self._begun = BegunReads(
            operations.begin_together, self._end_begun, self._interrupts.is_killed
        )
        self._working_count = 0
        """Calls of storage under way that a task waits for."""
        self.is_gone = False
        """The mount is: nothing is done again by itself."""
        self.is_over = False
        """Nobody waits for answers any more, and no task may begin."""

    @property
    def are_under_way(self) -> bool:
        """Whether storage has any to do."""
        return bool(self._working_count or self._begun)

    async def watch(self) -> None:
        """Give up what was begun and takes too long, until cancelled."""
        await self._begun.watch()

    def hear_of_signals(self) -> None:
        """Look at what was begun and whose caller got a signal, as `interrupts` has heard."""
        self._begun.hear_of_signals()

    def abandon(self) -> None:
        """End all that were begun, without an answer."""
        self._begun.abandon()

    # -- begun without a task ----------------------------------------------------------------------

    def are_begun(self, reads: ReadsTogether) -> bool:
        """Begin reads for which no task has to wait; False: nothing is done."""
        if self._tracer.sample_rate:
            return False
        is_begun = False
        try:
            self._interrupts.hold(reads)
            is_begun = self._begun.begin(reads, self._memory)
        except Exception as error:  # noqa: BLE001 - the usual way, which comes next, meets and tells it
            _log.debug("%d reads that cannot be begun: %r", len(reads), error)
        if not is_begun:
            self._interrupts.let_go(reads)
        return is_begun

    def _end_begun(self, reads: ReadsTogether, table: ReadTable, is_read: bool) -> None:
        """Answer reads that were begun; if they cannot be had so, a task does each by itself."""
        if not is_read:
            if self.is_over:
                self._interrupts.let_go(reads)
            else:
                self._do_again(reads)
            return
        try:
            self._answers.reply(reads, table, self._interrupts.is_killed)
        except Exception as error:  # noqa: BLE001 - an edge, see errno_of
            self._answers.refuse(reads, error)
        finally:
            self._interrupts.let_go(reads)

    def _do_again(self, reads: ReadsTogether) -> None:
        """Have a task do by itself each of some reads that were begun in vain."""
        held: list[Held] = []
        try:
            # Held at once: they do not count as under way any more, and the task begins later.
            held += self._hold(reads)
            self._spawn(self._serve_begun_again, reads, held)
        except Exception as error:  # noqa: BLE001 - an edge, see errno_of
            for _, let_go in held:
                let_go()
            self._interrupts.let_go(reads)
            self._answers.refuse(reads, error)

    async def _serve_begun_again(self, reads: ReadsTogether, held: list[Held]) -> None:
        try:
            await self._serve_each(reads, held)
        except Exception as error:  # noqa: BLE001 - an edge, see errno_of
            self._answers.refuse(reads, error)
        finally:
            self._interrupts.let_go(reads)

    # -- done by a task ----------------------------------------------------------------------------

    async def serve(self, reads: ReadsTogether, scope: trio.CancelScope) -> None:
        """Do reads that arrived together; of one alone,
        `scope` is what a signal to its caller cancels.
        """
        self._working_count += 1
        try:
            if len(reads) == 1:
                await self._serve_one(reads, scope)
            else:
                await self._serve_together(reads)
        finally:
            self._working_count -= 1

    async def _serve_one(self, reads: ReadsTogether, scope: trio.CancelScope) -> None:
        """Do a read that nothing else arrived with."""

        async def handler(request: Request) -> Sequence[Buffer]:
            table = reads.table(self._memory)
            return await self._operations.read_begun(request, table, reads.mark)

        await self._serving.serve(request_of(reads.rows[0]), scope, handler)

    async def _serve_together(self, reads: ReadsTogether) -> None:
        """Do more than one; those that are given up meanwhile learn
        of it when the others are done.
        """
        span = None
        try:
            self._interrupts.hold(reads)
            table = reads.table(self._memory)
            span = self._serving.span(request_of(reads.rows[0]))
            if span is not None:
                span.attributes["together"] = len(reads)
            if await are_read(table, self._operations.read_together):
                self._answers.reply(reads, table, self._interrupts.is_killed)
            else:
                await self._serve_each(reads, self._hold(reads))
        except Exception as error:  # noqa: BLE001 - an edge, see errno_of
            self._answers.refuse(reads, error)
            if span is not None:
                span.note_error(error)
        finally:
            if span is not None:
                span.end()
            self._interrupts.let_go(reads)

    # -- each by itself ----------------------------------------------------------------------------

    def _hold(self, reads: ReadsTogether) -> list[Held]:
        """Have what lies behind these reads wait for each:
        all of them at once, before the first is answered.
        """
        requests = () if self.is_gone else reads.requests()
        held: list[Held] = []
        try:
            held.extend((request, self._operations.hold_read(request)) for request in requests)
        except BaseException:  # for want of memory: nobody does those that are held already
            for _, let_go in held:
                let_go()
            raise
        return held

    async def _serve_each(self, reads: ReadsTogether, held: list[Held]) -> None:
        """Do by itself each of the reads that were not done together."""
        handler = partial(self._operations.read_since, reads.mark)
        async with trio.open_nursery() as nursery:
            for request, let_go in held:
                scope = trio.CancelScope()
                self._interrupts.take_over(reads, request, scope)
                nursery.start_soon(self._serve_held, request, scope, handler, let_go)

    async def _serve_held(
        self,
        request: Request,
        scope: trio.CancelScope,
        handler: Handler,
        let_go: Callable[[], None],
    ) -> None:
        try:
            await self._serving.serve_again(request, scope, handler)
        finally:
            let_go()
