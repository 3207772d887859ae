"""Remote calls: latency of small ones and throughput of large payloads, next to a bare socket.

`python -m benchmarks.rpc [--full]`.  The server is a separate process; the bare loops send the same
numbers of bytes over the same kind of socket, with blocking calls and no framing.
"""

import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import trio

from fs.app.terminal.progress import Progress
from fs.rpc.api import Identity
from fs.rpc.channel import RpcChannel, open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.server import Server
from fs.rpc.transport import SocketNetwork, split_tcp
from fs.runtime.real import real_runtime
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core

from .command import bench_command
from .table import Row

QUICK_SECONDS = 1.0
FULL_SECONDS = 10.0
"""For each figure."""

SMALL_BYTES = 100
LARGE_BYTES = 1 << 20
IN_FLIGHT = 32
LARGE_IN_FLIGHT = 4
IDENTITY = Identity("benchmark", 1)


def serve_calls(address: str, bound: "multiprocessing.Queue[str]") -> None:
    """Process: a server with the Core service."""

    async def main() -> None:
        runtime = real_runtime(SocketNetwork())
        server = Server(IDENTITY, RpcSection())
        server.add_service("Core", CoreService(IDENTITY, runtime.clock, []))
        async with trio.open_nursery() as nursery:
            bound.put(await nursery.start(server.run, runtime.network, address))

    trio.run(main)


def open_bare(address: str) -> socket.socket:
    """Return a blocking socket connected to an address."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("unix:"))
        return sock
    return socket.create_connection(split_tcp(address))


def serve_bare(address: str, bound: "multiprocessing.Queue[str]") -> None:
    """Process: answer each request of 8 bytes (bytes to take, bytes to give) on bare sockets."""
    if address.startswith("unix:"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address.removeprefix("unix:"))
        listener.listen()
        bound.put(address)
    else:
        listener = socket.create_server(split_tcp(address))
        bound.put(f"tcp:127.0.0.1:{listener.getsockname()[1]}")
    data = memoryview(bytearray(LARGE_BYTES))
    while True:
        sock, _ = listener.accept()
        _set_no_delay(sock)
        with sock:
            while len(order := sock.recv(8, socket.MSG_WAITALL)) == 8:  # noqa: PLR2004
                take, give = int.from_bytes(order[:4]), int.from_bytes(order[4:])
                if take:
                    sock.recv_into(data[:take], take, socket.MSG_WAITALL)
                sock.sendall(data[:give])


def _set_no_delay(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def bare_seconds(address: str, take: int, give: int, seconds: float) -> list[float]:
    """Return the duration of each bare round trip."""
    data = memoryview(bytearray(LARGE_BYTES))
    order = take.to_bytes(4) + give.to_bytes(4)
    durations = []
    with open_bare(address) as sock:
        _set_no_delay(sock)
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            sock.sendmsg([order]) if not take else sock.sendall(order)
            if take:
                sock.sendall(data[:take])
            sock.recv_into(data[:give], give, socket.MSG_WAITALL)
            durations.append(time.perf_counter() - begin)
    return durations


async def call_seconds(
    channel: RpcChannel, request: core.EchoReq, take: int, in_flight: int, seconds: float
) -> list[float]:
    """Return the duration of each call, `in_flight` of them at a time."""
    durations: list[float] = []
    end = time.perf_counter() + seconds

    async def caller() -> None:
        data = [memoryview(bytearray(take))] if take else []
        target = memoryview(bytearray(LARGE_BYTES))
        while (begin := time.perf_counter()) < end:
            await channel.call(
                services.CORE_ECHO, request, payload=data, into=lambda _m, n: [target[:n]]
            )
            durations.append(time.perf_counter() - begin)

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(caller)
    return durations


def _at(durations: list[float], fraction: float) -> float:
    ordered = sorted(durations)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] * 1e6


async def measure_kind(kind: str, calls: str, bare: str, seconds: float) -> list[Row]:
    """Return the rows of one kind of socket."""
    small = core.EchoReq(data=bytes(SMALL_BYTES))
    give = core.EchoReq(reply_payload_bytes=LARGE_BYTES)
    rows = []
    limit = bare_seconds(bare, SMALL_BYTES, SMALL_BYTES, seconds)
    limit_give = LARGE_BYTES * len(bare_seconds(bare, 0, LARGE_BYTES, seconds)) / seconds / 1e9
    limit_take = LARGE_BYTES * len(bare_seconds(bare, LARGE_BYTES, 1, seconds)) / seconds / 1e9
    runtime = real_runtime(SocketNetwork())
    async with open_channels(runtime, Identity("benchmark"), RpcSection()) as channels:
        channel = channels.get(calls)
        await call_seconds(channel, small, 0, 1, 0.1)
        one = await call_seconds(channel, small, 0, 1, seconds)
        for name, fraction in (("p50", 0.5), ("p99", 0.99)):
            rows.append(
                Row(f"{kind} small {name}", _at(one, fraction), "us", _at(limit, fraction), True)
            )
        many = await call_seconds(channel, small, 0, IN_FLIGHT, seconds)
        rows.append(
            Row(
                f"{kind} small, {IN_FLIGHT} in flight",
                len(many) / seconds,
                "/s",
                1e6 / _at(limit, 0.5),
            )
        )
        rows.append(Row(f"{kind} small, {IN_FLIGHT} in flight, p99", _at(many, 0.99), "us"))
        for count in (1, LARGE_IN_FLIGHT):
            done = await call_seconds(channel, give, 0, count, seconds)
            rate = LARGE_BYTES * len(done) / seconds / 1e9
            rows.append(Row(f"{kind} 1 MiB replies, {count} in flight", rate, "GB/s", limit_give))
        for count in (1, LARGE_IN_FLIGHT):
            taken = core.EchoReq(reply_payload_bytes=1)
            done = await call_seconds(channel, taken, LARGE_BYTES, count, seconds)
            rate = LARGE_BYTES * len(done) / seconds / 1e9
            rows.append(Row(f"{kind} 1 MiB requests, {count} in flight", rate, "GB/s", limit_take))
    return rows


def measure(seconds: float, _parent: Path | None, progress: Progress) -> list[Row]:
    """Measure everything; about `seconds` for each figure."""
    context = multiprocessing.get_context("spawn")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("tcp", "unix"):
            progress.step(f"rpc: {kind}")
            addresses, processes = [], []
            targets: list[tuple[str, Callable[..., None]]] = [
                ("calls", serve_calls),
                ("bare", serve_bare),
            ]
            for name, target in targets:
                address = "tcp:127.0.0.1:0" if kind == "tcp" else f"unix:{Path(folder) / name}"
                bound: multiprocessing.Queue[str] = context.Queue()
                process = context.Process(target=target, args=(address, bound), daemon=True)
                process.start()
                processes.append(process)
                addresses.append(bound.get(timeout=20))
            rows += trio.run(measure_kind, kind, *addresses, seconds)
            for process in processes:
                process.kill()
                process.join()
    return rows


if __name__ == "__main__":
    sys.exit(bench_command("rpc", __doc__, (QUICK_SECONDS, FULL_SECONDS), measure))
