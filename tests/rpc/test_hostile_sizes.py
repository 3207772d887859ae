"""Row R3: sizes that are claimed but never sent,
idle connections and slow senders cost next to nothing.

`EMBER_IDLE_CONNECTIONS=1000` runs the long form.
"""

import os
import tracemalloc

import pytest
import trio

from fs.rpc.api import Identity
from fs.rpc.frame import (
    HEADER_BYTES,
    HELLO_VERSION,
    VERSION_MAX,
    FrameLimits,
    Kind,
    decode_error,
    decode_header,
    encode_header,
)
from fs.rpc.framed_stream import RECEIVE_BUFFER_BYTES
from fs.rpc.handshake import encode_hello
from fs.schema import services
from fs.schema.proto import core_pb2 as core
from fs.schema.status import Status

MIB = 1024 * 1024
CLAIM_COUNT = 20
IDLE_COUNT = int(os.environ.get("EMBER_IDLE_CONNECTIONS", "50"))
CONNECTION_BYTES_MAX = RECEIVE_BUFFER_BYTES + 32 * 1024
"""Of an idle connection on both sides of one process: its receive buffer, tasks and streams."""
ME = Identity("test-cluster", client_id="raw")


async def status_of_goodbye(stream):
    """Return the status with which a server ends a connection, skipping what it said before."""
    while True:
        data = bytearray()
        while len(data) < HEADER_BYTES:
            piece = bytearray(HEADER_BYTES - len(data))
            count = await stream.receive_into(memoryview(piece))
            assert count, "closed without a goodbye"
            data += piece[:count]
        header = decode_header(bytes(data), FrameLimits(1 << 30, 1 << 40), data[4])
        message = bytearray(header.message_bytes)
        if message:
            assert await stream.receive_into(memoryview(message)) == len(message)
        if header.kind == Kind.GOODBYE:
            return decode_error(header.status, message).status


async def still_serves(p):
    reply = await p.channel.call(services.CORE_ECHO, core.EchoReq(data=b"a"))
    assert reply.message.data == b"a"


async def measure(action):
    """Return how many bytes more are allocated at the worst moment of an action."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("is_greeted", "claim"), [(False, 1 << 31), (False, 16 * MIB), (True, 1 << 31)]
)
async def test_a_claimed_length_is_refused_before_memory_is_taken(net, process, is_greeted, claim):
    async with process(net) as p:
        await still_serves(p)

        async def action():
            for _ in range(CLAIM_COUNT):
                stream = await p.connect()
                if is_greeted:
                    await stream.send_all(encode_hello(ME))
                kind = Kind.REQUEST if is_greeted else Kind.HELLO
                version = VERSION_MAX if is_greeted else HELLO_VERSION
                await stream.send_all(
                    [encode_header(kind, 1, message_bytes=claim, version=version)]
                )
                with trio.fail_after(60):
                    assert await status_of_goodbye(stream) is Status.RPC_TOO_LARGE
                await still_serves(p)
                await stream.aclose()

        assert await measure(action) <= MIB


async def test_idle_connections_and_slow_senders_cost_little(net, process):
    async with process(net) as p:
        await still_serves(p)
        slow = encode_header(
            Kind.REQUEST,
            1,
            service=services.CORE_ECHO.service_number,
            method=services.CORE_ECHO.number,
            message_bytes=8 * MIB,
        )

        async def action():
            for number in range(IDLE_COUNT):
                stream = await p.connect()
                await stream.send_all(encode_hello(ME))
                if number % 10 == 0:
                    await stream.send_all([slow + b"s"])
            await trio.sleep(0.05)
            await still_serves(p)

        slow_count = (IDLE_COUNT + 9) // 10
        allowed = MIB + IDLE_COUNT * CONNECTION_BYTES_MAX + slow_count * 2 * 64 * 1024
        assert await measure(action) <= allowed
