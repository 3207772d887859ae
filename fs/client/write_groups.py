"""Writes of one chain that wait at the same time go to its head in one request.

A request, and all that a replica does for it, costs as much by itself as copying a MiB.  So while a
request with writes is under way to a chain, further ones wait: until it has ended, or until they
fill a request themselves.  Those that begin in the same moment, as pieces of one flush do, go
together from the start.  Each has its own tag, and its own result or failure: an update that was
sent together with others may be repeated by itself, or with others.

Where many writes are under way to a few chains, a chain with nothing under way waits as well, until
it has its share of them: with sixteen writers and six chains a request would else take hardly more
than one write, whoever has just been answered going on to a chain that is free (decisions 0132,
0143). Whoever has been answered just now counts as if he wrote again, where such ones usually do at
once: programs that write in batches, by several threads, so come to write together.

Invariants:
    - A chain waits for its share at most as many ends of requests as there were requests under way
      when it began to, then for those who were answered and are expected to write again, for a part
      of the time that a request takes, and never longer than twice the median of what requests
      took: so requests that a slow or silent node holds up hold nobody else up.
    - What waits with nothing under way to its chain looks by itself, time and again, whether it may
      go; all else the end of a request wakes.
    - A write is in one request at a time; when `send` has returned or raised,
      nobody reads its bytes any more.
    - A request of one write is sent as every release knows it.
    - The task of one of the writes of a request sends it; should it be cancelled, the others
      are told what may be repeated.

Concurrency: trio; any number of writes at once, first come, first served.
"""

import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import trio

from ..node.api import RoutingView
from ..rpc.frame import decode_error
from ..runtime.ports import Buffer
from ..runtime.readiness import current_time
from ..schema import services
from ..schema.ids import NodeId
from ..schema.proto import storage_pb2 as pb
from ..schema.status import FsError, Status
from .node_calls import NodeCalls
from .patience import same_error

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 2
"""Requests to one chain, all but one of them full:
while its replicas write the bytes of one they receive those of the others.
"""

GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
"""With more a replica would save little, and the memory
of its receive buffers would not be used again.
"""

GROUP_COUNT_MAX: Final = 64

ENOUGH_BYTES: Final = GROUP_BYTES_MAX // 2
"""So many are sent to a chain with nothing under way, whatever its share:
what more would save is a tenth of what sending them costs.
"""

SMALL_BYTES_MAX: Final = 64 * 1024
"""Writes that are no larger, on average, wait for no share:
a replica makes them on its event loop, but groups of them in a thread.
"""

WAITING_SHARE_MIN: Final = 1.5
"""Writes of each chain.

Where there are fewer, who waits for another write to its chain mostly waits in vain,
for as long as a request takes.
"""

SHARE_WAIT_S_MIN: Final = 0.02
"""So long a write waits for a share, or for as long as two requests usually take.

Some last longer; who waited for one of them has saved nothing, but lost no more.
"""

SHARE_WAIT_S_MAX: Final = 0.2
"""No write waits longer, however slow all nodes are."""

TOOK_COUNT: Final = 15
"""Requests that tell how long one usually takes."""

BACK_SHARE: Final = 0.35
"""Of the time that a request usually takes:
so long those who were answered just now are expected to write again.
"""

BACK_S_MAX: Final = 0.03

TRUST_STEP: Final = 1 / 16
TRUST_MIN: Final = 0.5
"""Nobody is waited for unless every second write that was expected lately has come in time."""

NAP_COUNT_MAX: Final = 8
"""So often who waits for a share looks whether it is time."""

_PAGE_BYTES: Final = 4096
_NO_PATIENCE: Final = -1

_Key = tuple[NodeId, int, int]
"""Head, chain, and the chain's version."""


class _Write:
    """One write that waits for its turn, or for the end of its request."""

    __slots__ = (
        "began_s",
        "data",
        "error",
        "group",
        "is_over",
        "is_taken",
        "reply",
        "request",
        "task",
    )

    def __init__(self, request: pb.UpdateReq, data: Buffer) -> None:
        self.request = request
        self.data = data
        self.began_s = 0.0
        """When its request was begun, in the first of a group."""
        self.task: trio.lowlevel.Task | None = None
        """That sleeps until it is woken."""
        self.is_over = False
        """Its request, which another one's task has sent, has ended."""
        self.is_taken = False
        """It is out of the line and in a request."""
        self.group: Sequence[_Write] = ()
        """Those of its request, in the first of them, which sends it, and until it has ended:
        a circle of references would hold their bytes.
        """
        self.reply: pb.UpdateRsp | None = None
        self.error: FsError | None = None
        """Neither: it is to be sent by itself."""


class _Load:
    """What a client has to write just now, on all chains."""

    __slots__ = (
        "_back_until_s",
        "_expected",
        "_took_s",
        "_trust",
        "back_s",
        "began_s",
        "ended",
        "lines",
        "patience_s",
        "writes",
    )

    def __init__(self) -> None:
        self.lines: dict[_Key, _Line] = {}
        """The chains that anything is written to."""
        self.writes = 0
        """That wait or are under way."""
        self.began_s: list[float] = []
        """Of each request under way."""
        self.ended = 0
        """Requests, ever."""
        self.patience_s = SHARE_WAIT_S_MIN
        """So long a write waits for a share at most."""
        self.back_s = 0.0
        """So long those who were answered are expected to write again."""
        self._took_s: deque[float] = deque([0.0] * TOOK_COUNT, TOOK_COUNT)
        """Of the last requests; the median, so that those of a slow node count for nothing
        while most are quick.
        """
        self._expected = 0
        """Writes that were answered just now, in whose place no other has come yet."""
        self._back_until_s = 0.0
        """When these are forgotten."""
        self._trust = 0.0
        """The share of expected writes that came in time, the last ones counting most."""

    @property
    def share(self) -> int:
        """Writes of each chain, on average, rounded up;
        1 if there are hardly more writes than chains.
        """
        chains, writes = max(1, len(self.lines)), self.writes + self.expected
        return -(-writes // chains) if writes >= WAITING_SHARE_MIN * chains else 1

    @property
    def expected(self) -> int:
        """Writes that are likely to come at once, from those who were answered just now."""
        self._forget_late(current_time())
        return self._expected if self._trust >= TRUST_MIN else 0

    def _forget_late(self, now_s: float) -> None:
        if self._expected and now_s >= self._back_until_s:
            self._trust *= (1 - TRUST_STEP) ** self._expected
            self._expected = 0

    def begin(self) -> None:
        """A write has come: if it is the last of those that were expected,
        nobody is waited for any more.
        """
        self.writes += 1
        was_waited_for = self.expected > 0
        if not self._expected:
            return
        self._expected -= 1
        self._trust += TRUST_STEP * (1 - self._trust)
        if was_waited_for and not self.expected:
            self._start_all()

    def _start_all(self) -> None:
        share = self.share
        for line in list(self.lines.values()):
            line.start(share)

    @property
    def soon_ended(self) -> int:
        """Requests under way that may end soon, since they have not taken long yet."""
        since_s = current_time() - self.patience_s
        return sum(began_s > since_s for began_s in self.began_s)

    def end(self, key: "_Key", line: "_Line", group: Sequence[_Write]) -> None:
        """The request of a group has ended: have others made for which it is time."""
        now_s, began_s = current_time(), group[0].began_s
        self.began_s.remove(began_s)
        self._took_s.append(now_s - began_s)
        usual_s = sorted(self._took_s)[TOOK_COUNT // 2]
        self.patience_s = min(max(SHARE_WAIT_S_MIN, 2 * usual_s), SHARE_WAIT_S_MAX)
        self.back_s = min(BACK_SHARE * usual_s, BACK_S_MAX)
        self.ended += 1
        self.writes -= len(group)
        self._forget_late(now_s)
        self._expected += len(group)
        self._back_until_s = now_s + self.back_s
        line.under_way -= 1
        self._start_all()
        # It may have been forgotten as idle while a write of it was about to go.
        line.start(self.share)
        line.count_time()
        self.drop_idle(key, line)

    def drop_idle(self, key: "_Key", line: "_Line") -> None:
        """Forget a chain that nothing is written to."""
        is_idle = not (line.under_way or line.waiting or line.is_opening)
        if is_idle and self.lines.get(key) is line:
            del self.lines[key]


class _Line:
    """The writes to one chain at one version of it."""

    __slots__ = ("_load", "_patient_until", "is_opening", "under_way", "waiting", "waiting_bytes")

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._patient_until = 0
        """It waits for its share until so many requests have ended, and for what is expected then;
        _NO_PATIENCE: it does not.
        """
        self.is_opening = True
        """Nothing is sent yet: the first of those that wait gives others
        of the same moment a turn to join it.
        """
        self.under_way = 0
        """Requests."""
        self.waiting: deque[_Write] = deque()
        self.waiting_bytes = 0

    def add(self, write: _Write) -> None:
        """Have a write wait, unless it makes up a request with those that do,
        or needs not wait for others.
        """
        load = self._load
        if not self.waiting:
            self._patient_until = load.ended + load.soon_ended
        self.waiting.append(write)
        self.waiting_bytes += len(write.data)
        load.begin()
        self.start(load.share)

    @property
    def patience_s(self) -> float:
        """So long a write waits for its share from now on, at most."""
        return self._load.patience_s

    @property
    def nap_s(self) -> float:
        """So long a write that waits for its share sleeps, before it looks whether it is time."""
        return max(self._load.back_s, self._load.patience_s / NAP_COUNT_MAX)

    def _is_patient(self) -> bool:
        load, until = self._load, self._patient_until
        return until != _NO_PATIENCE and (load.ended < until or load.expected > 0)

    def count_time(self) -> None:
        """Have what has waited for a request of this chain see to it that it does not wait
        for long for its share.
        """
        if self.under_way:
            return
        for write in self.waiting:
            if write.task is not None:
                trio.lowlevel.reschedule(write.task)
                write.task = None

    def look(self, write: _Write, *, is_over: bool) -> None:
        """Have one wait on that was taken out, unless it is time;
        or `is_over`: send it, since it has waited for long enough.
        """
        if is_over:
            self._patient_until = _NO_PATIENCE
        write.task = None  # it does not sleep
        self.waiting.appendleft(write)
        self.waiting_bytes += len(write.data)
        self._load.writes += 1
        self.start(self._load.share)

    def drop(self, write: _Write) -> None:
        """Forget one that waits."""
        self.waiting.remove(write)
        self.waiting_bytes -= len(write.data)
        self._load.writes -= 1

    def start(self, share: int) -> None:
        """Have requests made of those that wait, as far as it is time for them.

        Args:
            share: so many writes need wait for no others.
        """
        while self.waiting and not self.is_opening and self._is_time(share):
            group = _take_group(self.waiting)
            self.under_way += 1
            group[0].began_s = current_time()
            self._load.began_s.append(group[0].began_s)
            group[0].group = group
            for one in group:
                one.is_taken = True
                self.waiting_bytes -= len(one.data)
            if group[0].task is not None:  # else it does not sleep
                trio.lowlevel.reschedule(group[0].task)

    def _is_time(self, share: int) -> bool:
        count = len(self.waiting)
        if self.waiting_bytes >= GROUP_BYTES_MAX or count >= GROUP_COUNT_MAX:
            return self.under_way < AT_ONCE_MAX
        if self.under_way:
            return False
        is_enough = count >= share or self.waiting_bytes >= ENOUGH_BYTES
        are_small = self.waiting_bytes <= count * SMALL_BYTES_MAX
        return is_enough or are_small or not self._is_patient()


class WriteGroups:
    """The writes of one client, by chain."""

    def __init__(self, nodes: NodeCalls, routing: RoutingView) -> None:
        self._nodes = nodes
        self._routing = routing
        self._load = _Load()
        self._without: set[tuple[NodeId, str]] = set()
        """Processes, by node and incarnation, of a release that takes writes one by one only."""

    async def send(self, node_id: NodeId, request: pb.UpdateReq, data: Buffer) -> pb.UpdateRsp:
        """Send a write to the head of its chain, maybe with others; return what it answers.

        Args:
            node_id: of the head.
            request: a WRITE that is not to be durable at once, with chain version and tag.
            data: its bytes.

        Raises:
            FsError: as `NodeCalls.call`; RPC_CONNECTION_LOST also when
                whoever sent it was cancelled.
        """
        if self._without and self._process(node_id) in self._without:
            return await self._alone(node_id, request, data)
        key = node_id, request.chain_id, request.chain_version
        load, write = self._load, _Write(request, data)
        line = load.lines.get(key)
        if line is None:
            line = load.lines[key] = _Line(load)
            line.add(write)
            await trio.lowlevel.cancel_shielded_checkpoint()
            line.is_opening = False
            line.start(load.share)
        else:
            line.add(write)
        if not write.group:
            try:
                await _wait_in(line, write)
            except trio.Cancelled:
                load.drop_idle(key, line)
                raise
        group, write.group = write.group, ()
        if group:
            try:
                if len(group) == 1:
                    return await self._alone(node_id, request, data)
                await self._send_group(node_id, group)
            finally:
                load.end(key, line, group)
        if write.error is not None:
            raise same_error(write.error)
        if write.reply is not None:
            return write.reply
        return await self._alone(node_id, request, data)

    def _process(self, node_id: NodeId) -> tuple[NodeId, str]:
        node = self._routing.info.nodes.get(node_id)
        return node_id, node.incarnation if node is not None else ""

    async def _alone(self, node_id: NodeId, request: pb.UpdateReq, data: Buffer) -> pb.UpdateRsp:
        received = await self._nodes.call(node_id, services.STORAGE_WRITE, request, payload=[data])
        return received.message

    async def _send_group(self, node_id: NodeId, group: Sequence[_Write]) -> None:
        """Send the request of a group, and tell its members how it went."""
        failure = FsError(
            Status.RPC_CONNECTION_LOST, "who sent this write with others was cancelled"
        )
        try:
            received = await self._nodes.call(
                node_id,
                services.STORAGE_WRITE_GROUP,
                pb.UpdateGroupReq(updates=[one.request for one in group]),
                payload=[one.data for one in group],
            )
            _hand_out(group, received.message)
        except FsError as error:
            failure = same_error(error)
            if error.status is Status.RPC_UNKNOWN_METHOD:
                log.info("node %d takes writes one by one only", node_id)
                self._without.add(self._process(node_id))
        finally:
            is_refused = failure.status is Status.RPC_UNKNOWN_METHOD
            for one in group:
                if one.reply is None and one.error is None and not is_refused:
                    one.error = failure
                one.is_over = True
                if one.task is not None and one is not group[0]:
                    trio.lowlevel.reschedule(one.task)


async def _wait_in(line: _Line, write: _Write) -> None:
    """Wait until `write` is the first of a group, or its request has ended."""
    end_s = math.inf
    while not (write.is_over or write.group):
        if line.under_way:  # its end wakes whatever waits then
            await _sleep_in(line, write)
            continue
        now_s, patience_s = current_time(), line.patience_s
        end_s = min(end_s, now_s + patience_s)
        with trio.move_on_at(min(end_s, now_s + line.nap_s)) as nap:
            await _sleep_in(line, write)
        if nap.cancelled_caught:
            line.look(write, is_over=current_time() >= end_s)


async def _sleep_in(line: _Line, write: _Write) -> None:
    """Sleep until woken, however long; a write whose wait is cancelled is out of the line."""

    def abort(_: object) -> trio.lowlevel.Abort:
        if write.is_taken:  # its bytes are being sent
            return trio.lowlevel.Abort.FAILED
        line.drop(write)
        return trio.lowlevel.Abort.SUCCEEDED

    write.task = trio.lowlevel.current_task()
    await trio.lowlevel.wait_task_rescheduled(abort)


def _take_group(waiting: deque[_Write]) -> Sequence[_Write]:
    """Take out of a line what goes together; whole pages first,
    since the others would shift them off the pages of the receiver.
    """
    group = [waiting.popleft()]
    size = len(group[0].data)
    while (
        waiting and len(group) < GROUP_COUNT_MAX and size + len(waiting[0].data) <= GROUP_BYTES_MAX
    ):
        size += len(waiting[0].data)
        group.append(waiting.popleft())
    return sorted(group, key=lambda write: len(write.data) % _PAGE_BYTES != 0)


def _hand_out(group: Sequence[_Write], reply: pb.UpdateGroupRsp) -> None:
    """Tell each write of a group how it went; raises FsError(RPC_BAD_FRAME)."""
    if len(reply.outcomes) != len(group):
        detail = f"{len(reply.outcomes)} outcomes of {len(group)} writes"
        raise FsError(Status.RPC_BAD_FRAME, detail)
    for write, outcome in zip(group, reply.outcomes, strict=True):
        if outcome.status:
            write.error = decode_error(outcome.status, outcome.detail.encode())
        else:
            write.reply = outcome.reply
