# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Writes whose caller is cancelled: they are made before he goes on, as the same update, for a
few seconds.
"""

import math

import trio

from fs.client.storage_writes import FINISH_S
from fs.schema.proto import storage_pb2 as pb
from fs.schema.status import Status

from .test_begun_writes import Begun, Nodes
from .test_routing_math import ref


class Slow(Nodes):
    """Each call takes a second, or for good."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.hangs = hangs
        self.sent = []

    async def call(self, node_id, method, request, *, payload):
        self.sent.append(pb.UpdateReq.FromString(request.SerializeToString()))
        await trio.sleep(math.inf if self.hangs else 1)
        return await super().call(node_id, method, request, payload=payload)


async def cancelled(begun: Begun) -> float:
    """Write for half a second; return how long that took."""
    began_s = trio.current_time()
    with trio.move_on_after(0.5) as scope:
        await begun.store.write(ref(), 0, bytes(100), is_durable=True)
    assert scope.cancelled_caught
    assert begun.free_channels == 2
    return trio.current_time() - began_s


async def test_it_is_made_as_the_same_update(autojump_clock):
    begun = Begun()
    begun.nodes = begun.store._writes._nodes = Slow()
    assert await cancelled(begun) == 1.5
    first, second = begun.nodes.sent
    assert first.tag == second.tag
    assert first.payload_checksum == second.payload_checksum


async def test_it_is_not_waited_for_longer_than_a_few_seconds(autojump_clock, caplog):
    begun = Begun()
    begun.nodes = begun.store._writes._nodes = Slow(hangs=True)
    assert await cancelled(begun) == 0.5 + FINISH_S
    assert "cancelled, and not made within" in caplog.text


async def test_what_is_refused_meanwhile_is_not_tried_for_long(autojump_clock):
    begun = Begun()
    begun.nodes = begun.store._writes._nodes = Slow()
    begun.nodes.outcomes = [Status.NO_SPACE]
    assert await cancelled(begun) == 1.5
