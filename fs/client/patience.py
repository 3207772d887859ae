"""How long a call waits for a peer that lives and works, but is slow:
longer than for one that is silent.

A time limit cannot tell a dead peer from one that a saturated machine, or a disk with much to
flush, holds up.  Ending a call at its limit and asking again is right for the first, and never
comes to an end with the second where the work takes longer than the limit: each try begins it anew.

Invariants:
    - Whether a peer lives is known from itself: it answers on a connection of its own, which only a
      free way carries and only an event loop that turns serves, and it is the same process.  That
      it asks the manager for its lease says nothing of its way to us.
    - A call to a peer that turned out to live when the limit had passed has
      PATIENT_S the next time; every limit's length it is made sure that the peer
      still lives, and the call ends if not.
    - Who has kept a call for half of its limit is asked whether it lives meanwhile (`watch`), so
      that it is known when the limit has passed.
    - A read is never waited for longer than the limit: another replica has the same bytes, and the
      next try finds those that were read in the page cache.
    - Nobody is asked, and nothing more is done, while calls end within half of their limit.

Does not: repeat anything; retry.py says for how long.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from math import inf
from typing import Final

import trio

from ..rpc.api import Channel, Channels, Into, Lending, Received, UnderWay
from ..runtime.background import open_background
from ..runtime.ports import Buffer
from ..runtime.readiness import current_time
from ..schema import services
from ..schema.config import ClientSection
from ..schema.ids import NodeId
from ..schema.lacks import lack_among
from ..schema.method import Method, ReqT, RspT
from ..schema.proto.core_pb2 import GetInfoReq
from ..schema.routing import Node
from ..schema.status import FsError, Retry, Status

log = logging.getLogger(__name__)

PATIENT_S: Final = 300.0
"""The limit of a call to a peer that was slow.

Not without an end: what takes longer than that will most likely never come.
"""

SLOW_S: Final = 300.0
"""For so long after it was slow a peer is taken to be."""

ASK_S: Final = 5.0
"""A peer lives that says who it is within this.

Nodes say so to the manager as often (mgmtd.node_lease_s), or are judged failed.
"""

SLOW_FRACTION: Final = 0.9
"""Of the limit: a peer that answers so late, and wants to be asked again,
had to stop for want of time.
"""

_ELSEWHERE: Final = {services.STORAGE_BATCH_READ.name}
"""What others can do as well; it is tried for longer, but each try has its limit."""

_NOT_ASKED: Final = "node %d is not asked whether it lives"

_GONE: Final = {Status.RPC_CONNECT_FAILED, Status.RPC_CONNECTION_LOST}


class SlowPeerError(FsError):
    """A call that took too long, or was given up by its peer after so long, and the peer lives."""


def same_error(error: FsError) -> FsError:
    """Return a fresh exception for one of several who share the outcome of a call."""
    kind = SlowPeerError if isinstance(error, SlowPeerError) else FsError
    return kind(error.status, error.detail)


def let_lack_pass(error: Exception, text: str, *args: object) -> None:
    """Tell, by `text % args`, what could not be done for a lack; raises any other error."""
    if lack_among(error) is None:
        raise error
    with suppress(MemoryError):  # to tell it takes some, too
        log.warning("%s: %r", text % args, error)


class _Asked:
    """Whether a node lives, asked once for all who want to know."""

    __slots__ = ("asked_s", "done", "lives")

    def __init__(self) -> None:
        self.asked_s = current_time()
        self.done = trio.Event()
        self.lives = False


class Patience:
    """Which peers of one process are slow at what."""

    def __init__(
        self,
        channels: Channels,
        section: ClientSection,
        detour: Callable[[Node], Channel | None] = lambda _node: None,
    ) -> None:
        """Ask nodes by `channels`; `detour` returns the way to one that is cut off from here,
        which is asked on that way.
        """
        self._channels = channels
        self._section = section
        self._detour = detour
        self._slow_until_s: dict[tuple[NodeId, str, str], float] = {}
        """Of node, incarnation and method; trio time."""
        self._asked: dict[tuple[NodeId, str], _Asked] = {}
        """By node and incarnation, the last time."""

    def adopt(self, section: ClientSection) -> None:
        """Go on with other settings."""
        self._section = section

    async def call(
        self,
        node: Node,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        *,
        payload: Sequence[Buffer] = (),
        into: Into | None = None,
        under_way: set[UnderWay],
        on_slow: Callable[[], None] = lambda: None,
        may_be_lent: int = Lending.NOT,
        way: Channel | None = None,
    ) -> Received[RspT]:
        """Call a node; `on_slow` is told when a call has waited for its limit,
        and the node lives and goes on with it.

        `way`: another way to it than straight.

        Raises:
            FsError: what the channel raises; a `SlowPeerError` if the node
                lives and needed too long.
        """
        limit_s, began_s = self._section.call_timeout_s, current_time()
        channel = way or self._channels.get(node.address, node_id=node.node_id)
        key = node.node_id, node.incarnation, method.name
        try:
            if self._slow_until_s and self._slow_until_s.get(key, 0.0) > began_s:
                return await self._call_patiently(
                    node, method, request, payload, into, under_way, on_slow, channel=channel
                )
            return await channel.call(
                method,
                request,
                payload=payload,
                into=into,
                timeout_s=limit_s,
                under_way=under_way,
                may_be_lent=may_be_lent,
            )
        except FsError as error:
            failure = error
        try:
            took_s = current_time() - began_s
            if (
                failure.retry is Retry.NEVER
                or failure.status in _GONE
                or took_s < SLOW_FRACTION * limit_s
                or not await self._lives(node, began_s)
            ):
                raise failure
            if method.name not in _ELSEWHERE:
                self._note_slow(key, took_s)
            raise SlowPeerError(failure.status, failure.detail)
        finally:
            # it knows this call, which would know it: both, and the payload, until
            # the garbage collector comes
            del failure

    async def _call_patiently(  # noqa: PLR0917 - those of `call`
        self,
        node: Node,
        method: Method[ReqT, RspT],
        request: ReqT | bytes,
        payload: Sequence[Buffer],
        into: Into | None,
        under_way: set[UnderWay],
        on_slow: Callable[[], None],
        *,
        channel: Channel,
    ) -> Received[RspT]:
        """As `call`, of a node that is known to be slow."""
        began_s = current_time()
        async with open_background() as nursery:
            nursery.start_soon(self._watch, node, nursery.cancel_scope, on_slow)
            return await channel.call(
                method,
                request,
                payload=payload,
                into=into,
                timeout_s=max(PATIENT_S, self._section.call_timeout_s),
                under_way=under_way,
            )
        took_s = current_time() - began_s
        detail = f"{method} to {node.address}: it fell silent within {took_s:.0f} s"
        raise FsError(Status.RPC_TIMEOUT, detail)

    def _note_slow(self, key: tuple[NodeId, str, str], took_s: float) -> None:
        now_s = current_time()
        if self._slow_until_s.get(key, 0.0) <= now_s:
            log.warning("node %d lives, but needs more than %.0f s for %s", key[0], took_s, key[2])
        self._slow_until_s = {
            k: until_s for k, until_s in self._slow_until_s.items() if until_s > now_s
        }
        self._slow_until_s[key] = now_s + SLOW_S

    async def _watch(
        self, node: Node, scope: trio.CancelScope, on_slow: Callable[[], None]
    ) -> None:
        """Cancel when the node does not say that it lives; tell when it has."""
        while True:
            await trio.sleep(self._section.call_timeout_s)
            if await self._lives(node, current_time()):
                on_slow()
            else:
                scope.cancel()

    async def watch(
        self, under_way: Callable[[], Iterable[tuple[Node, AbstractSet[UnderWay]]]]
    ) -> None:
        """Ask nodes that have kept one of the calls under way for half
        of its limit whether they live, until cancelled.
        """
        async with trio.open_nursery() as nursery:
            while True:
                next_s = current_time() + self._section.call_timeout_s / 2
                try:
                    next_s = min(next_s, self._look(under_way(), nursery))
                except Exception as error:  # noqa: BLE001 - raised again if it is a bug
                    let_lack_pass(error, "nobody is asked now whether he lives")
                await trio.sleep_until(next_s)

    def _look(
        self, under_way: Iterable[tuple[Node, AbstractSet[UnderWay]]], nursery: trio.Nursery
    ) -> float:
        """Have those asked that are due; return when the next one may be."""
        half_s, now_s, next_s = self._section.call_timeout_s / 2, current_time(), inf
        for node, calls in under_way:
            asked = self._asked.get((node.node_id, node.incarnation))
            for call in calls:
                due_s = call.deadline_s - half_s
                if due_s > now_s:
                    next_s = min(next_s, due_s)
                elif asked is None or asked.asked_s < due_s:
                    asked = self._ask_ahead(node, nursery)
        return next_s

    async def _lives(self, node: Node, since_s: float) -> bool:
        """Return whether a node lives, asked not before `since_s` of trio time."""
        asked = self._asked.get((node.node_id, node.incarnation))
        if asked is None or asked.asked_s < since_s:
            asked = self._begin_asking(node)
            await self._ask(node, asked)
        await asked.done.wait()
        return asked.lives

    def _begin_asking(self, node: Node) -> _Asked:
        asked = self._asked[node.node_id, node.incarnation] = _Asked()
        return asked

    def _ask_ahead(self, node: Node, nursery: trio.Nursery) -> _Asked:
        """Have a task ask, which nobody waits for yet:
        for want of memory nothing is found out, and nothing else ends.
        """
        asked = self._begin_asking(node)
        try:
            nursery.start_soon(self._ask_alone, node, asked)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            asked.done.set()  # else who wants to know would wait for good
            let_lack_pass(error, _NOT_ASKED, node.node_id)
        return asked

    async def _ask_alone(self, node: Node, asked: _Asked) -> None:
        try:
            await self._ask(node, asked)
        except Exception as error:  # noqa: BLE001 - raised again if it is a bug
            let_lack_pass(error, _NOT_ASKED, node.node_id)

    async def _ask(self, node: Node, asked: _Asked) -> None:
        try:
            asked.lives = await self._is_there(node)
        finally:
            # who is cancelled has found nothing out: others take it for silent, and go elsewhere
            asked.done.set()

    async def _is_there(self, node: Node) -> bool:
        """Ask a node, on another connection than that of calls, who it is."""
        channel = self._detour(node) or self._channels.get(node.address, node_id=0)
        try:
            received = await channel.call(services.CORE_GET_INFO, GetInfoReq(), timeout_s=ASK_S)
        except FsError as error:
            log.info("node %d does not say that it lives: %s", node.node_id, error)
            return False
        return received.message.incarnation == node.incarnation
