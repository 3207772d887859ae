"""Calls of clients whose requests come late, twice or never, at services that die before,
in the middle of, or after their work.
"""

import random

import trio

from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Retry
from tests.meta.harness import CALL, World

SERVICE_COUNT = 3
LATE_S_MAX = 3.0
"""A request may stand still for so long before it is executed,
at a service that its client has given up.
"""
PATIENCE_S = 0.5
DEATH_SHARE = 0.08
"""Of services before they begin, and of those that begin."""
SILENT_SHARE = 0.15
"""Of those that have done all: they die before they answer."""
SOON_S = 0.2
"""By then a service dies that dies in the middle."""


class LateCalls:
    """Those of any number of clients, in virtual time; `source` is the only source of chance."""

    def __init__(self, world: World, source: random.Random, nursery: trio.Nursery) -> None:
        self._world, self._random, self._nursery = world, source, nursery
        self._services = [world.new_meta().service for _ in range(SERVICE_COUNT)]
        self.repeat_count = 0

    async def call(self, client: str, name: str, request):
        """As a client does: the same request until somebody has answered it,
        or what nobody will change.
        """
        message = request.sync if isinstance(request, meta.CloseReq) else request
        message.caller.client_id = client
        message.caller.request_id = self._random.randbytes(16)
        while True:
            text = request.SerializeToString()
            send, receive = trio.open_memory_channel(1)
            self._nursery.start_soon(self._serve, name, type(request), text, send)
            with trio.move_on_after(PATIENCE_S):
                outcome = await receive.receive()
                if isinstance(outcome, FsError) and outcome.retry is Retry.NEVER:
                    raise outcome
                if not isinstance(outcome, FsError):
                    return outcome
            message.caller.is_repeat = True
            self.repeat_count += 1

    async def _serve(self, name, request_type, text, send):
        draw = self._random.random
        if draw() < DEATH_SHARE:
            return  # it died before
        await trio.sleep(draw() ** 2 * LATE_S_MAX)
        number = self._random.randrange(SERVICE_COUNT)
        method = getattr(self._services[number], name)
        life_s = draw() * SOON_S if draw() < DEATH_SHARE else float("inf")
        try:
            with trio.move_on_after(life_s) as life:
                outcome = await method(CALL, request_type.FromString(text))
        except FsError as error:
            outcome = error
        if life.cancelled_caught:  # it died in the middle: another one takes its place
            self._services[number] = self._world.new_meta().service
        elif draw() >= SILENT_SHARE:
            send.send_nowait(outcome)
