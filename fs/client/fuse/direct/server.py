"""The loop between the kernel and the handlers of one mount.

Leader and followers: one worker, the leader, receives, and works on what it received by itself.
When that first has to wait it makes a follower the leader; what need not wait wakes nobody.  Small
reads that it receives together it does together (`together`).

Who waits may get a signal, and what he waits for is given up: `interrupts.py`.
"""

import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

import trio

from ....kernels.device import READ_REQUEST
from ....runtime import readiness, tracing
from ....runtime.followers import Followers
from ....runtime.ports import Runtime
from ....runtime.readiness import current_time
from ....runtime.until_wait import until_wait
from ....schema.status import FsError, Retry
from ...vfs.handles import TakesTaskError
from ...vfs.reading import TOGETHER_BYTES_MAX
from ...vfs.vfs import Vfs
from ..killed import is_killed, is_told_to_end
from . import handshake
from . import protocol as p
from .answering import Answering
from .begun import WITH_EFFECT, BegunRequest
from .device import Device, Request
from .interrupts import WITHOUT_EFFECT, Interrupts
from .late_releases import LateReleases
from .name_requests import NO_ENTRY, Begin, Reply
from .protocol import Opcode
from .read_answers import ReadAnswers
from .read_requests import ReadRequests
from .serving import Serving
from .times import OperationTimes, name_of
from .together import FIRST_READ_COUNT, REQUEST_COUNT_MAX, SIZE, ReadsTogether, request_of
from .tree_requests import operations_of

_log = logging.getLogger(__name__)

_RELEASE = int(Opcode.RELEASE)
_MOVERS = frozenset(map(int, (Opcode.READ, Opcode.WRITE)))
"""Whose bytes are counted."""

IDLE_COUNT_MAX = 32
"""More idle workers than this end."""


class Server:
    """Serves one mount until it is gone; see module head."""

    def __init__(
        self,
        device: Device,
        vfs: Vfs,
        runtime: Runtime,
        is_killed: Callable[[int], bool] = is_killed,
        *,
        is_told_to_end: Callable[[int], bool] = is_told_to_end,
        times: OperationTimes | None = None,
    ) -> None:
        self._device = device
        self._max_background = vfs.section.max_background
        self._times = times or OperationTimes(vfs.profile)
        forget_ahead = vfs.namespace.ahead.clear
        self._answering = answering = Answering(device, self._times, forget_ahead)
        self._reply = answering.reply
        self._reply_error = answering.reply_error
        self._tracer = vfs.tracer
        self._operations = operations = operations_of(vfs, runtime)
        interrupts = Interrupts(runtime.clock.monotonic_s, is_killed, is_told_to_end)
        self._interrupts = interrupts
        self._serving = Serving(
            operations, answering, interrupts, self._times, vfs.tracer, refuse=self._refuse
        )
        self._read_answers = ReadAnswers(device, operations, answering, self._times)
        self._reads = ReadRequests(
            vfs, operations, self._read_answers, interrupts, self._serving, self._spawn
        )
        self._begun: dict[int, BegunRequest] = {}
        """By `unique`."""
        self._begun_ended = trio.Event()
        """One of these has, since that was last looked for."""
        self._left: deque[Request] = deque()
        """What was received and comes next."""
        self._late = LateReleases(self._release)
        self._operations.end_releases = self._late.do_all
        self._second_walks = operations.sent_back.walks.by_thread
        self._followers = Followers()
        self._nursery: trio.Nursery | None = None
        self._watching = trio.CancelScope()
        self._is_gone = False
        self._is_awaiting = False
        """The mount is gone, and a task waits for what was begun and has effects."""
        self._at_once: dict[int, Callable[[Request], None]] = {
            Opcode.INIT: self._init,
            Opcode.FORGET: self._operations.forget,
            Opcode.BATCH_FORGET: self._operations.batch_forget,
            Opcode.INTERRUPT: self._hear_of_signal,
            Opcode.DESTROY: lambda _: None,
        }
        self._quick = dict(self._operations.quick)
        self._begin = dict(self._operations.begin)
        self.initialised = trio.Event()

    async def run(self) -> None:
        """Serve until the mount is gone and what has effects is done;
        cancelled instead, it is cut off.

        Raises:
            FsError: FUSE_MISSING: the kernel is too old.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._late.leave = readiness.leave()
                nursery.start_soon(self._work)
                try:
                    with self._watching:
                        async with trio.open_nursery() as watches:
                            watches.start_soon(self._reads.watch)
                            await self._interrupts.watch()
                finally:
                    self._reads.is_over = True
        finally:
            self._late.abandon()
            self._operations.opens_ahead.close()
            for begun in list(self._begun.values()):
                begun.abandon()
            self._reads.abandon()

    # -- workers -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Lead, then follow and lead in turn, until there are enough others or the mount is gone.

        One cancel scope serves for many requests, because opening and closing one costs some 5 us
        of processor time. It is used up when the request that its worker waits for is given up.
        """
        if tracing.live.count:
            tracing.leave()  # of the request that had to wait
        is_leading = True
        while True:
            with trio.CancelScope() as scope:
                if not await self._work_within(scope, is_leading=is_leading):
                    return
            if scope.cancelled_caught:
                given_up = self._interrupts.take_given_up(scope)
                assert given_up is not None, "cancelled, but not given up"
                self._reply_error(given_up, errno.EINTR)
            if self._is_gone or len(self._followers) >= IDLE_COUNT_MAX:
                return
            is_leading = False

    async def _work_within(self, scope: trio.CancelScope, *, is_leading: bool) -> bool:
        """Work until this worker is to end; return True when it is to go on, as a follower,
        in another scope.
        """
        while True:
            if not is_leading:
                await self._followers.wait()
                if self._is_gone:
                    return False
            try:
                received: Request | ReadsTogether = await self._device.receive(self._look)
            except EOFError:
                self._end()
                return False
            is_leading = not await self._serve_leading(received, scope)
            if is_leading:
                # Programs may ask without an end for what is never waited for: everybody
                # else has a turn in between.
                await trio.lowlevel.cancel_shielded_checkpoint()
                continue
            if scope.cancel_called:  # too late: its request was answered in the same moment
                self._interrupts.take_given_up(scope)
                return True
            if self._is_gone or len(self._followers) >= IDLE_COUNT_MAX:
                return False

    async def _serve_leading(
        self, received: Request | ReadsTogether, scope: trio.CancelScope
    ) -> bool:
        """Serve what was received; return whether that had to wait,
        so that another worker leads now.
        """
        has_waited = False

        def hand_over() -> None:
            nonlocal has_waited
            has_waited = True
            self._appoint_leader()

        if isinstance(received, Request):
            work = self._serving.serve(received, scope)
        else:
            work = self._reads.serve(received, scope)
        await until_wait(work, hand_over)
        return has_waited

    def _end(self) -> None:
        self._late.do_all()
        # Whoever could wait for an answer is gone, but a file that is being closed must be.
        self._is_gone = self._reads.is_gone = True
        self._watching.cancel()
        for begun in self._begun.values():
            self._let_be_given_up(begun)
        self._interrupts.give_up_all()
        while self._followers:
            self._appoint_leader()
        self._is_awaiting = True
        self._spawn(self._await_effects)

    async def _await_effects(self) -> None:
        """Keep the server running for what has effects and no task."""
        try:
            while any(begun.has_effect for begun in self._begun.values()):
                self._begun_ended = trio.Event()
                await self._begun_ended.wait()
        finally:
            self._is_awaiting = False

    def _appoint_leader(self) -> None:
        if not self._followers.wake_one():
            self._spawn(self._work)

    def _spawn(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Begin a task that the mount waits for at its end."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *args)

    def _look(self) -> Request | ReadsTogether | None:
        """Take in what there is, do or begin what needs no task, and return the first that does;
        None: there is nothing more, for now.

        Raises:
            EOFError: the mount is gone.
        """
        found = self._look_once()
        while isinstance(found, ReadsTogether) and self._reads.are_begun(found):
            if not self._left:
                return None  # of what the kernel has, whoever looks after the device is told
            found = self._look_once()
        return found

    def _look_once(self) -> Request | ReadsTogether | None:
        """Do as `_look`, up to the first reads."""
        left_count, enough = REQUEST_COUNT_MAX, self._enough_reads()
        receive_now = self._device.receive_now
        while not self._left:  # so comes most of what is no read: alone
            rows, request = receive_now(enough)
            late = self._late
            if late.left and (rows or (request is not None and not late.lets_pass(request))):
                self._left.extend(late.take_back())
            if rows or self._left:
                reads = ReadsTogether()
                left_count -= self._sort(rows, request, reads)
                return self._look_on(reads, left_count)
            if request is None:
                return None
            if request.opcode == _RELEASE and self._may_be_left(request):
                self._late.take(request)
            elif not self._is_done_at_once(request):
                return request
            left_count -= 1
            if not left_count:
                return None  # there may be more, of which the device will tell
        return self._look_on(ReadsTogether(), left_count)

    def _may_be_left(self, request: Request) -> bool:
        """Return whether a RELEASE may be done later."""
        try:
            return not self._operations.frees_locks(request)
        except Exception:  # noqa: BLE001 - no memory to see: who does it now says so
            return False

    def _release(self, request: Request) -> None:
        """Do a RELEASE, by a task if something has to be waited for."""
        try:
            if not self._is_done_at_once(request):
                self._spawn(self._serving.serve_again, request, trio.CancelScope())
        except Exception as error:  # noqa: BLE001 - an edge, see errno_of
            try:
                self._refuse(request, error)
            except Exception:  # noqa: BLE001 - whoever calls this could not handle it
                _log.exception("a RELEASE that cannot be answered")

    def _look_on(self, reads: ReadsTogether, left_count: int) -> Request | ReadsTogether | None:
        """Go on with what was left, and with reads."""
        while not reads or (left_count > 0 and len(reads) < self._enough_reads()):
            # What is left must not wait for more to come: nobody would be told of it.
            if not self._left:
                answered = self._take_in(reads) if left_count > 0 else None
                if answered is None:
                    break
                left_count -= answered
                continue
            request = self._left.popleft()
            if reads and request.opcode == Opcode.INTERRUPT:
                self._left.appendleft(request)  # of one of these, maybe: let them begin
                break
            if not self._is_done_at_once(request, may_begin=not reads):
                if not reads:
                    return request
                self._left.appendleft(request)
                break
            left_count -= 1
        return reads or None

    def _take_in(self, reads: ReadsTogether) -> int | None:
        """Receive what there is, and return how many were answered; None: there was nothing.

        Large READs of what was read ahead are answered, small ones that storage alone can answer
        are added to `reads`, others left.
        """
        rows, request = self._device.receive_now(self._enough_reads() - len(reads))
        return self._sort(rows, request, reads) if rows or request is not None else None

    def _sort(self, rows: bytes, request: Request | None, reads: ReadsTogether) -> int:
        """Do with what was received what `_take_in` does; return how many were answered."""
        answered = 0
        for row in READ_REQUEST.iter_unpack(rows):
            if row[SIZE] > TOGETHER_BYTES_MAX and self._read_answers.is_ahead(row):
                answered += 1
            elif not self._read_answers.is_added(row, reads):
                self._left.append(request_of(row))
        if request is not None:
            self._left.append(request)
        return answered

    def _enough_reads(self) -> int:
        """Return how many reads do not wait for more: fewer while storage has none to do."""
        return REQUEST_COUNT_MAX if self._reads.are_under_way else FIRST_READ_COUNT

    def _is_done_at_once(self, request: Request, *, may_begin: bool = True) -> bool:
        """Do a request for which no task has to wait, or begin it so; False: it takes a task."""
        opcode = request.opcode
        if self._second_walks and request.pid in self._second_walks:
            self._operations.note_second_walk(request)
        answer = self._quick.get(opcode)
        if answer is not None:
            began_s = perf_counter()
            try:
                reply = answer(request)
            except Exception as error:  # noqa: BLE001 - an edge, see errno_of
                self._refuse(request, error)
                self._times.note_took(request, perf_counter() - began_s)
                return True
            if reply is not None:
                if reply is NO_ENTRY:
                    self._reply_error(request, errno.ENOENT)
                elif opcode in _MOVERS:
                    self._reply(request, reply)
                else:
                    self._device.reply(request.unique, reply)
                self._times.note_took(request, perf_counter() - began_s)
                return True
        else:
            note = self._at_once.get(opcode)
            if note is not None:
                note(request)
                return True
        begin = self._begin.get(opcode) if may_begin else None
        return begin is not None and self._is_begun(request, begin)

    def _is_begun(self, request: Request, begin: Begin) -> bool:
        """Begin a request for which no task has to wait; False: nothing is done."""
        if self._tracer.sample_rate:
            return False
        begun = BegunRequest(request, current_time())
        try:
            begun.call = begin(request, partial(self._end_begun, begun))
        except Exception as error:  # noqa: BLE001 - the usual way, which comes next, meets and tells it
            _log.debug("request %d: %s", request.unique, error)
        if begun.call is None:
            return False
        self._begun[request.unique] = begun
        return True

    def _refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error, or have a task do it again: for another caller, as it were."""
        operations = self._operations
        if operations.is_worth_another(request, error) and request.opcode in operations.handlers:
            self._spawn(self._serving.serve_again, request, trio.CancelScope())
        elif operations.may_be_sent_back(request, error):
            self._spawn(self._refuse_where_removed, request, error)
        else:
            if isinstance(error, FsError) and error.errno == errno.ESTALE:
                operations.sent_back.note_stale(request.pid)
            self._answering.refuse(request, error)

    async def _refuse_where_removed(self, request: Request, error: FsError) -> None:
        try:
            number = await self._operations.errno_where_removed(request, error)
        except Exception as failure:  # noqa: BLE001 - an edge, see errno_of
            self._answering.refuse(request, failure)
        else:
            _log.debug("%s: %s", name_of(request.opcode), error)
            self._reply_error(request, number)

    def _let_be_given_up(self, begun: BegunRequest) -> None:
        """Let what was begun be given up from now on, if it may be."""
        if begun.request.opcode in WITHOUT_EFFECT:
            begun.may_be_given_up = True
            self._interrupts.add(begun.request, begun, current_time() - begun.began_s)

    def _end_begun(self, begun: BegunRequest, reply: Reply, error: Exception | None) -> None:
        """Answer what was begun, or have a task do it;
        what fails in that is answered, too: the kernel waits.
        """
        try:
            self._answer_begun(begun, reply, error)
        except Exception as failure:  # noqa: BLE001 - an edge, see errno_of; of what is answered already the kernel takes no second one
            self._interrupts.remove(begun.request)
            self._refuse(begun.request, failure)

    def _answer_begun(self, begun: BegunRequest, reply: Reply, error: Exception | None) -> None:
        request = begun.request
        self._begun.pop(request.unique, None)
        is_final = request.opcode in WITH_EFFECT
        if begun.is_abandoned or (self._reads.is_over and not (is_final and self._is_awaiting)):
            return
        if self._is_awaiting:
            self._begun_ended.set()
        if error is None and not begun.may_be_given_up:
            self._reply(request, reply)
            self._times.note(request, begun.began_s)
            return
        is_given_up = self._interrupts.take_given_up(begun) is not None
        is_worth_another = isinstance(error, TakesTaskError) or (
            isinstance(error, FsError) and error.retry is not Retry.NEVER and not is_final
        )
        if is_worth_another and not is_given_up:
            scope = trio.CancelScope()
            waited_s = current_time() - begun.began_s
            if request.opcode in WITHOUT_EFFECT:
                self._interrupts.add(request, scope, waited_s)
                self._interrupts.move(request, scope)
            again = self._operations.again(request.opcode, waited_s)
            self._spawn(self._serving.serve_again, request, scope, again)
            return
        self._interrupts.remove(request)
        if is_given_up:
            self._reply_error(request, errno.EINTR)
        elif error is not None:
            self._refuse(request, error)
        else:
            self._reply(request, reply)
        self._times.note(request, begun.began_s)

    def _hear_of_signal(self, request: Request) -> None:
        (unique,) = p.INTERRUPT_IN.unpack_from(request.body)
        begun = self._begun.get(unique)
        if begun is not None:
            self._let_be_given_up(begun)
        self._interrupts.hear(request)
        self._reads.hear_of_signals()

    # -- what the loop itself answers --------------------------------------------------------------

    def _init(self, request: Request) -> None:
        try:
            agreed = handshake.agree(request.body, self._max_background)
        except FsError:
            self._device.reply_error(request.unique, errno.EPROTO)
            raise
        if agreed is None:
            self._device.reply(request.unique, (handshake.newer_major_reply(),))
            return
        if not agreed.has_setxattr_ext:
            self._operations.setxattr_head = p.GETXATTR_IN.size
        self._device.reply(request.unique, (agreed.reply,))
        _log.info("the kernel speaks FUSE 7.%d: %r", agreed.minor, agreed.flags)
        self.initialised.set()
