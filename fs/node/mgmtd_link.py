"""The way to the primary manager, wherever it is.

Tries the manager that answered last, follows its hint when it is not the primary any more,
else goes round all known addresses.  Every method of the manager may be repeated, so an
unknown outcome is just another try.

Concurrency: any number of calls at once; what one finds out about the primary serves all.  Calls
that wait elsewhere when the primary has answered are made again, at it: a long poll could hang on a
manager that fell silent until long after others have judged who fell silent with it.
"""

import logging
from collections.abc import Iterable
from typing import Final

import trio

from ..rpc.api import Channels, UnderWay
from ..runtime.ports import Runtime
from ..schema.method import Method, ReqT, RspT
from ..schema.proto.mgmtd_pb2 import GetPrimaryReq
from ..schema.services import MGMTD_GET_PRIMARY
from ..schema.status import FsError, Retry, Status

logger = logging.getLogger(__name__)

TRY_TIMEOUT_S: Final = 2.0
"""Of one try, unless the caller says more; a silent manager costs this much."""

CALL_TIMEOUT_S: Final = 30.0
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.5


class MgmtdLink:
    """A `MgmtdCaller`."""

    def __init__(self, channels: Channels, addresses: Iterable[str], runtime: Runtime) -> None:
        self._channels = channels
        self._addresses = list(dict.fromkeys(addresses))
        assert self._addresses, "no manager's address is configured"
        self._runtime = runtime
        self._next_index = 0
        self._hint = ""
        self._under_way: dict[str, set[UnderWay]] = {}
        """Calls, by the address of the manager."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All known managers."""
        return tuple(self._addresses)

    def learn(self, addresses: Iterable[str]) -> None:
        """Add managers that routing info names."""
        self._addresses = list(dict.fromkeys([*self._addresses, *addresses]))

    async def call(
        self,
        method: Method[ReqT, RspT],
        request: ReqT,
        *,
        timeout_s: float | None = None,
        try_timeout_s: float = TRY_TIMEOUT_S,
    ) -> RspT:
        """Call, trying all known managers until the timeout (default 30 s).

        Raises:
            FsError: what the primary replied, or RPC_TIMEOUT when no primary answered in time.
        """
        timeout_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        deadline_s = self._runtime.clock.monotonic_s() + timeout_s
        attempt, last = 0, "nobody was asked"
        while True:
            left_s = deadline_s - self._runtime.clock.monotonic_s()
            if left_s <= 0:
                where = ", ".join(self._addresses)
                detail = (
                    f"{method}: no primary manager at {where} within {timeout_s:g} s; last: {last}"
                )
                raise FsError(Status.RPC_TIMEOUT, detail)
            try:
                return await self.call_once(
                    method, request, timeout_s=min(try_timeout_s, max(left_s, 0.001))
                )
            except FsError as error:
                if not is_transient(error):
                    raise
                logger.debug("%s: %s", method, error)
                last = str(error)
            attempt += 1
            if attempt % (len(self._addresses) + 1) == 0:  # a round, and one hint
                await trio.sleep(min(self._pause_s(attempt), max(left_s, 0.0)))

    async def call_once(
        self, method: Method[ReqT, RspT], request: ReqT, *, timeout_s: float
    ) -> RspT:
        """Call the most likely manager once; a failure makes another one the most likely.

        Raises:
            FsError: the reply's status, or any status of the transport;
                `is_transient` tells them apart.
        """
        address = self._likely
        under_way = self._under_way.setdefault(address, set())
        try:
            channel = self._channels.get(address)
            received = await channel.call(method, request, timeout_s=timeout_s, under_way=under_way)
        except FsError as error:
            if is_transient(error):
                await self._turn_away(address, error, timeout_s)
            raise
        if method is not MGMTD_GET_PRIMARY:  # which any manager answers
            self._note_primary(address)
        return received.message

    @property
    def _likely(self) -> str:
        """The address of the most likely manager."""
        return self._hint or self._addresses[self._next_index % len(self._addresses)]

    def _note_primary(self, address: str) -> None:
        """Turn to the manager that has answered as primary, also with what waits elsewhere."""
        if address != self._likely:
            self._hint = address
        for other, calls in self._under_way.items():
            if other != address:
                for call in list(calls):
                    detail = f"the primary manager is at {address} by now"
                    call.fail(FsError(Status.RPC_CONNECTION_LOST, detail))

    async def _turn_away(self, address: str, error: FsError, timeout_s: float) -> None:
        """Choose whom to ask next: the one this manager names, else the next in the round."""
        if address != self._likely:  # another call has found a better one meanwhile
            return
        if address == self._hint:
            self._hint = ""
        else:
            self._next_index += 1
        if error.status is not Status.NOT_PRIMARY:
            return
        try:
            channel = self._channels.get(address)
            received = await channel.call(
                MGMTD_GET_PRIMARY, GetPrimaryReq(), timeout_s=min(timeout_s, TRY_TIMEOUT_S)
            )
        except FsError as other:
            logger.debug("no hint from %s: %s", address, other)
            return
        if received.message.address not in {"", address}:
            self._hint = received.message.address

    def _pause_s(self, attempt: int) -> float:
        rounds = min(attempt // len(self._addresses), 8)
        ceiling_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0**rounds)
        return self._runtime.random.uniform(ceiling_s / 2, ceiling_s)


def is_transient(error: FsError) -> bool:
    """Tell whether another manager, or the same one later, may answer better."""
    is_elsewhere = error.retry in {Retry.OTHER, Retry.SAME} and error.status is not (
        Status.NODE_FAILED
    )
    return is_elsewhere or error.status is Status.RPC_WRONG_NODE
