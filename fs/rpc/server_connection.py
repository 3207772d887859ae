"""One connection as its server sees it: handshake, then requests until it ends.

Part of fs/rpc/server.py, which states the invariants.
"""

import logging
import math
from contextlib import suppress
from types import CoroutineType
from typing import Final

import trio

from ..runtime import tracing
from ..runtime.followers import Followers
from ..runtime.ports import Buffer, Stream
from ..runtime.readiness import current_time
from ..runtime.time_limits import set_deadline
from ..runtime.until_wait import until_wait
from ..schema.status import FsError, Status
from .answers_at_once import AnswersAtOnce
from .api import Reply
from .begun_requests import BegunRequests
from .buffer_pool import Lease
from .connection_parts import NOBODYS, ConnectionParts
from .failed_answers import FailedAnswers
from .frame import (
    FLAG_BORROWS,
    FLAG_DIRECT,
    FLAG_LENT,
    FLAG_RANGES,
    FLAG_TRACED,
    Header,
    Kind,
    encode_header,
)
from .framed_stream import FramedStream
from .guard import OPEN_GRANT
from .lending import Borrower
from .lent_replies import ReplyLender
from .method_runs import MethodRuns
from .replies import BROKEN, Replies
from .server_parts import ServerParts
from .serving import Binding, Turn, Work
from .welcome import welcome

log = logging.getLogger(__name__)

BUFFER_WAIT_S_MAX: Final = 2.0
"""How long a request may hold up its connection while receive buffers are short.

Bounded, because storage nodes whose buffers are all held by requests that wait for each other
would otherwise wait for ever.
"""

SERVED_IN_A_ROW_MAX: Final = 16
"""Requests that did not wait, before other tasks get a turn."""

FOLLOWER_COUNT_MAX: Final = 4
"""Idle tasks of one connection; others end."""

_PLAIN_FLAGS: Final = FLAG_BORROWS | FLAG_RANGES | FLAG_DIRECT
"""Of requests that are served as if they had none."""


class ServerConnection:
    """Serves one stream."""

    def __init__(self, server: ServerParts, stream: Stream) -> None:
        self._server = server
        self._bindings = server.bindings
        self._stream = stream
        self._scopes: dict[int, trio.CancelScope] = {}
        self._followers = Followers()
        self._runs = MethodRuns(server, stream.peer_name)
        memory, bytes_min = stream.peer_memory, server.limits.lend_bytes_min
        self._borrower = Borrower(memory, bytes_min)
        self._lender = ReplyLender(memory, bytes_min, server.frame_limits, server.lent_replies)
        self._is_accepted = False
        self._framed: FramedStream
        self._replies: Replies
        self._begun: BegunRequests
        self._at_once: AnswersAtOnce
        self._failed = FailedAnswers(
            stream.peer_name, self._runs.failed, server.on_bug, self._end_at_once
        )
        self._must_end = False
        """It cannot go on, and may have lacked the memory to end."""
        self._progress_seen = -1
        self._is_short = False
        """It waits for a receive buffer, and does not see what else has come."""
        self._was_short = False
        """So it was since the last look for who is stuck."""
        self._nursery: trio.Nursery
        self._served_in_a_row = 0
        self._has_ended = trio.Event()
        self._is_closed = trio.Event()
        self._failure: Exception | None = None

    async def run(self, *, is_full: bool) -> None:
        """Serve until the stream ends or cannot be trusted; closes it.

        Args:
            is_full: refuse, because the server has too many connections.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._framed = FramedStream(
                    self._stream, self._server.frame_limits, nursery.start_soon
                )
                self._framed.on_cut = self._end_at_once
                self._replies = Replies(
                    self._framed,
                    self._server.frame_limits,
                    nursery.start_soon,
                    self._scopes,
                    self._lender,
                )
                self._runs.replies = self._replies
                parts = ConnectionParts(
                    self._server,
                    self._framed,
                    self._runs,
                    self._replies,
                    self._scopes,
                    nursery.start_soon,
                    self._finish,
                    self._go_on,
                    self._give_back,
                    self._failed,
                )
                self._begun = BegunRequests(parts)
                self._at_once = AnswersAtOnce(parts)
                try:
                    await self._serve(is_full=is_full)
                finally:
                    # before the nursery takes no more tasks
                    self._begun.has_ended = self._at_once.has_ended = True
                nursery.cancel_scope.cancel()
        finally:
            self._lender.end()
            if self._is_accepted and self._server.on_disconnect is not None:
                self._server.on_disconnect(self._runs.peer)
            self._is_closed.set()
            await self._framed.aclose()

    async def end_if_stuck(self) -> None:
        """End the connection if a frame has not moved, or a lent reply has not come back,
        since the last call: the peer holds our buffers.
        """
        if self._must_end:
            self._end_at_once()
            return
        framed = self._framed
        has_stuck = self._lender.has_stuck() and not self._was_short  # else it may just be unseen
        self._was_short = self._is_short
        if has_stuck or (framed.is_inside_frame and framed.progress == self._progress_seen):
            what = "keeps lent replies" if has_stuck else "is stuck inside a frame"
            log.warning("connection from %s %s", self._stream.peer_name, what)
            await framed.aclose()
        self._progress_seen = framed.progress

    @property
    def client_id(self) -> str:
        """Of the peer, as soon as it has said who it is."""
        return self._runs.peer.client_id

    async def end(self) -> None:
        """End the connection, and what it asked for; return when all its tasks have ended."""
        self._end_at_once()
        await self._is_closed.wait()

    def _end_at_once(self) -> None:
        """End the connection, outside of any task, too;
        without memory for that whoever looks for stuck ones does.
        """
        self._must_end = True
        with suppress(MemoryError):
            self._nursery.cancel_scope.cancel()

    async def _serve(self, *, is_full: bool) -> None:
        try:
            if is_full:
                await self._replies.say_goodbye(self._too_many())
            elif await self._shake_hands():
                self._is_accepted = True
                await self._receive_requests()
        except FsError as error:
            name = self._stream.peer_name
            self._server.refusals.note(name, "connection refused or closed", error)
            await self._replies.say_goodbye(error)
        except BROKEN as error:
            log.debug("connection from %s broke: %s", self._stream.peer_name, error)

    def _too_many(self) -> FsError:
        limit = self._server.limits.connection_count_max
        return FsError(Status.RPC_OVERLOADED, f"{limit} connections are open already")

    async def _shake_hands(self) -> bool:
        """Exchange hellos; False when the peer left without a word."""
        server, framed = self._server, self._framed
        with trio.move_on_after(server.limits.handshake_timeout_s):
            welcomed = await welcome(
                framed, server.identity, server.guard, self._borrower, self._lender
            )
            if welcomed is None:
                return False
            self._runs.peer, self._runs.grant, framed.version = welcomed
            if self.client_id in server.ended_clients:
                detail = f"client {self.client_id}: its process is gone"
                raise FsError(Status.RPC_NOT_ALLOWED, detail)
            framed.serve_whole = self._serve_whole
            return True
        raise FsError(Status.RPC_TIMEOUT, "no hello, or no proof, in time")

    async def _receive_requests(self) -> None:
        """Have requests received and served until the stream ends; raises what ended it."""
        self._nursery.start_soon(self._lead)
        await self._has_ended.wait()
        if self._failure is not None:
            raise self._failure

    async def _lead(self) -> None:
        """Receive requests and serve each, until one has to wait:
        then another task goes on receiving, and this one follows.
        """
        turn = Turn()
        try:
            with turn.scope:
                while await self._serve_in_turn(turn):
                    await self._followers.wait()
        except BaseException as error:
            work = turn.work
            if work is None or work.is_over:
                if not isinstance(error, (FsError, *BROKEN)):
                    raise
                self._failure = error
                self._has_ended.set()
                return
            if not isinstance(error, Exception):
                self._give_back(work)
                raise
            # what is left of a group of which the scope took its part, or
            # the method was not reached
            self._failed.replace(work, error)
            if not work.has_waited:
                self._hand_over()
        if turn.work is not None:
            await self._finish(turn.work)

    async def _serve_in_turn(self, turn: Turn) -> bool:
        """Lead until a request has had to wait, and answer it;
        return whether to follow then, in the same scope.
        """
        if tracing.live.count:
            tracing.leave()  # of the request that had to wait
        while await self._receive_one(turn):
            self._served_in_a_row += 1
            if self._served_in_a_row >= SERVED_IN_A_ROW_MAX:
                self._served_in_a_row = 0
                await trio.lowlevel.checkpoint()
        work = turn.work
        if work is None or turn.scope.cancel_called:
            return False
        if not work.is_over:  # what is left is to answer: nobody ends the scope any more
            self._scopes[work.header.request_id] = NOBODYS
            set_deadline(turn.scope, math.inf)
            await self._finish(work)
        turn.work = None
        return len(self._followers) < FOLLOWER_COUNT_MAX

    def _hand_over(self) -> None:
        self._served_in_a_row = 0
        if not self._followers.wake_one():
            self._nursery.start_soon(self._lead)

    async def _receive_one(self, turn: Turn) -> bool:
        """Receive a frame and do what it asks for;
        return whether this task is to receive the next one.
        """
        header = await self._framed.receive_header()
        if header is None or header.kind == Kind.GOODBYE:
            self._has_ended.set()
            return False
        if header.kind == Kind.REQUEST:
            return await self._receive_request(header, turn)
        if header.kind == Kind.LEND:
            await self._hear_of_memory(header)
            return True
        if header.kind == Kind.RETURN:
            self._lender.take_back(await self._framed.receive_message(header.message_bytes))
            return True
        if header.kind != Kind.CANCEL:
            raise FsError(Status.RPC_BAD_FRAME, f"frame of kind {header.kind} from a caller")
        scope = self._scopes.get(header.request_id)
        if scope is not None:
            scope.cancel()
        return True

    async def _hear_of_memory(self, header: Header) -> None:
        """Take in a lend frame; answer it if payloads may be lent to us."""
        framed = self._framed
        message = await framed.receive_message(header.message_bytes)
        if self._borrower.hear(message, self._stream.peer_name):
            await framed.send([encode_header(Kind.LEND, 0, version=framed.version)])

    async def _receive_request(self, header: Header, turn: Turn) -> bool:
        """Receive one request entirely and serve it, or answer why not;
        returns as `_receive_one`.
        """
        framed = self._framed
        message = await framed.receive_message(header.message_bytes)
        pieces = b""
        if header.flags & FLAG_LENT:
            pieces, message = self._borrower.split(header, message)
        binding = self._server.bindings.get((header.service, header.method))
        lease = None
        refusal = self._runs.refusal_of(header, binding, self._scopes)
        if header.payload_bytes and refusal is None:
            lease, refusal = await self._receive_payload(header, pieces)
        if refusal is not None or binding is None:
            assert refusal is not None
            if binding is not None and binding.observed is not None:
                binding.observed.note_error(refusal)
            await framed.drain_payload()
            await self._replies.refuse(header.request_id, refusal)
            return True
        work = turn.work = Work(binding, header, lease, current_time())
        if lease is not None and self._begun.take(work, message, lease.view):
            turn.work = None
            return True
        if (
            binding.is_plain
            and lease is None
            and not header.flags & FLAG_TRACED
            and self._at_once.ends_at_once(work, message)
        ):
            turn.work = None
            return True

        def note_wait() -> None:
            work.has_waited = True
            # Once the method has ended nobody may cancel what is left, which is to answer.
            self._scopes[header.request_id] = NOBODYS if work.is_run else turn.scope
            if not work.is_run:
                set_deadline(turn.scope, work.deadline_s)
            self._hand_over()

        await until_wait(self._execute(work, message, turn), note_wait)
        return not work.has_waited

    def _serve_whole(self) -> None:
        """Serve plain methods whose requests have come entirely; see `FramedStream.serve_whole`."""
        framed, scopes = self._framed, self._scopes
        in_flight_max = self._server.limits.inflight_per_connection_max
        for _ in range(SERVED_IN_A_ROW_MAX):
            found = framed.take_whole()
            if found is None:
                return
            header, message = found
            if header.kind == Kind.RETURN:
                self._lender.take_back(message)
                if not framed.has_more:
                    return
                continue
            request_id = header.request_id
            binding = self._bindings.get((header.service, header.method))
            if (
                binding is None
                or header.kind != Kind.REQUEST
                or header.flags & ~_PLAIN_FLAGS
                or request_id in scopes
                or len(scopes) >= in_flight_max
                or (self._runs.grant is not OPEN_GRANT and self._runs.judge(binding) is not None)
                or (
                    (header.payload_bytes or binding.quick is None)
                    and not self._is_at_once(header, binding)
                )
            ):  # something is unusual about it, and the usual way says what
                framed.put_back(header)
                return
            if header.payload_bytes:
                begun = Work(binding, header, None, current_time())
                if not self._begun.take_whole(begun, message):
                    framed.put_back(header)
                    return
                if not framed.has_more:
                    return
                continue
            work = self._at_once.serve_quickly(header, binding, message)
            if work is not None and not self._at_once.ends_at_once(work, message):
                self._leave(work)
            if not framed.has_more:
                return

    def _leave(self, work: Work) -> None:
        """Have a task go on with a request."""
        scope = trio.CancelScope(deadline=work.deadline_s)
        self._scopes[work.header.request_id] = scope
        try:
            self._nursery.start_soon(self._go_on, work, scope)
        except Exception as error:  # noqa: BLE001 - there is none to be had, nor another one to say so
            self._failed.end(str(work), error)
            self._give_back(work)

    def _is_at_once(self, header: Header, binding: Binding) -> bool:
        """Tell whether a request may be served before any task has it."""
        if header.payload_bytes:
            return binding.begin is not None
        return binding.is_plain or self._is_tried(binding)

    @staticmethod
    def _is_tried(binding: Binding) -> bool:
        """Tell whether a coroutine is to be tried;
        a task that runs anyway loses nothing by simply awaiting it.
        """
        return binding.is_tried and not trio.lowlevel.in_trio_task()

    async def _go_on(self, work: Work, scope: trio.CancelScope) -> None:
        """Run what is left of a request that could not be answered at once."""
        try:
            with scope:
                begun = work.result
                if isinstance(begun, CoroutineType):
                    work.result = None
                    work.result = await self._runs.run(work, begun)
        except Exception as error:  # noqa: BLE001 - what is left of a group of which the scope took its part
            self._failed.replace(work, error)
        except BaseException:
            self._give_back(work)
            raise
        await self._finish(work)

    async def _receive_payload(
        self, header: Header, pieces: bytes
    ) -> tuple[Lease | None, FsError | None]:
        """Return a payload, sent or lent, in a buffer of ours, or why the request is not run;
        raises what ends the connection.
        """
        pool, size = self._server.pool, header.payload_bytes
        lease = pool.acquire_now(size)
        if lease is None:
            self._is_short = self._was_short = True
            await self._framed.stop_holding()
            with trio.move_on_after(BUFFER_WAIT_S_MAX):
                lease = await pool.acquire(size)
            self._is_short = False
        if lease is None:
            return None, FsError(Status.RPC_OVERLOADED, "no receive buffer became free in time")
        try:
            if not pieces:
                await self._framed.receive_payload([lease.view])
                return lease, None
            await self._borrower.read(pieces, lease.view)
            self._server.lent_bytes += size
        except FsError as error:
            pool.release(lease)
            return None, error
        except BaseException:
            pool.release(lease)
            raise
        return lease, None

    async def _execute(self, work: Work, message: Buffer, turn: Turn) -> None:
        """Run one request, or what is left of it; answer it unless it had to wait:
        then the end of the turn does.
        """
        if not work.is_begun:
            if work.header.flags & FLAG_TRACED:
                work.span, message = self._runs.join(work.binding, message)
            self._runs.begin(work, message)
        begun = work.result
        if isinstance(begun, CoroutineType):
            work.result = None
            work.result = await self._runs.run(work, begun)
        work.is_run = True
        if not work.has_waited:
            await self._finish(work)
            if not work.has_waited:
                turn.work = None

    async def _finish(self, work: Work) -> None:
        """Answer a request, and give back what was held for it."""
        if work.is_over:
            return
        try:
            if work.result is None:
                work.result = work.given_up()
            result = work.result
            if work.is_told:
                return
            if isinstance(result, FsError):
                await self._replies.send_error(work.header.request_id, result)
            elif result is not None:
                await self._replies.send(work, result)
        except BROKEN as error:
            log.debug("%s: connection broke before the reply: %s", work, error)
        except Exception as error:  # noqa: BLE001 - the edge: what cannot be answered must not end the process
            await self._finish_failed(work, error)
        finally:
            self._give_back(work)

    async def _finish_failed(self, work: Work, error: Exception) -> None:
        """Answer with the error that a reply met before anything of it was sent."""
        if not self._failed.replace(work, error):
            return
        try:
            await self._replies.send_error(work.header.request_id, work.result)
        except Exception as again:  # noqa: BLE001 - as in `_finish`
            self._failed.end(str(work), again)

    def _give_back(self, work: Work) -> None:
        if work.is_over:
            return
        work.is_over = True
        result, span = work.result, work.span
        self._scopes.pop(work.header.request_id, None)
        if isinstance(result, Reply) and result.release is not None:
            result.release()
        if work.lease is not None:
            self._server.pool.release(work.lease)
        if work.binding.observed is not None:
            self._runs.note(work.binding.observed, work)
        if span is not None:
            if isinstance(result, FsError):
                span.note_error(result)
                about = work.binding.method, work.header.request_id, self._stream.peer_name, result
                log.info("%s %d from %s: %s", *about)
            span.end()
