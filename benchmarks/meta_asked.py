"""Requests to a metadata service from a process of their own:
what they cost the service, and what the client.

Part of benchmarks/meta_scale.py.  The service runs in the process that asks for the figures, so its
share is the processor time that this process takes meanwhile.
"""

import os
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection

import trio

from fs.rpc.api import Identity
from fs.rpc.channel import RpcChannel, open_channels
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.ids import ROOT_INODE_ID
from fs.schema.proto import meta_pb2 as meta

from .meta_alone import CLUSTER_ID, Request

METHODS = {method.name: method for method in (services.META_LOOKUP, services.META_GET_ATTR)}
Packed = tuple[str, bytes]
"""The name of a method and the request's bytes."""


async def ask_apart(
    address: str, requests: Sequence[Request], caller_count: int
) -> tuple[float, float]:
    """Have another process make the requests, so many at a time;
    return the processor time of this process and of that one, in seconds.
    """
    packed = []
    for method, request in requests:
        request.caller.client_id = "c" * 32
        request.caller.request_id = os.urandom(16)
        packed.append((method.name, request.SerializeToString()))
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_ask, args=(address, caller_count, there), daemon=True)
    process.start()
    there.close()
    run_blocking = real_runtime(SocketNetwork()).run_blocking
    try:
        here.send(packed)
        await run_blocking(here.recv)
        began_s = time.process_time()
        here.send(None)
        client_s: float = await run_blocking(here.recv)
        return time.process_time() - began_s, client_s
    finally:
        process.kill()
        process.join()


def _ask(address: str, caller_count: int, there: Connection) -> None:
    """Process: make the requests when told to, and say what that took."""
    packed: list[Packed] = there.recv()
    there.send(trio.run(_asked, address, packed, caller_count, there))


async def _asked(
    address: str, packed: Sequence[Packed], caller_count: int, there: Connection
) -> float:
    waiting = [
        (METHODS[name], METHODS[name].request_type.FromString(data)) for name, data in packed
    ]
    runtime = real_runtime(SocketNetwork())
    async with open_channels(runtime, Identity(CLUSTER_ID, 2), RpcSection()) as channels:
        channel = channels.get(address)
        await channel.call(
            services.META_GET_ATTR,
            meta.GetAttrReq(caller=waiting[0][1].caller, inode_id=ROOT_INODE_ID),
        )
        there.send(None)
        there.recv()
        began_s = time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(caller_count):
                nursery.start_soon(_call_all, channel, waiting)
        return time.process_time() - began_s


async def _call_all(channel: RpcChannel, waiting: list[Request]) -> None:
    while waiting:
        await channel.call(*waiting.pop())
