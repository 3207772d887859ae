"""What one small call costs both sides, counted:
calls of functions, turns of the event loop, system calls to wait.

`python -m benchmarks.calls [--full | --count N]`.  Two processes, one Unix socket.  Counts say the
same on a busy machine as on an idle one; a process that has slept has none of its code in its
caches, so what it calls is what it costs.
"""

import cProfile
import multiprocessing
import pstats
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from fs.app.terminal.progress import Progress
from fs.rpc.api import Call, Identity, Reply
from fs.rpc.channel import RpcChannel, open_channels
from fs.rpc.core_service import CoreService
from fs.rpc.observer import RpcObserver
from fs.rpc.server import Server
from fs.rpc.transport import SocketNetwork
from fs.runtime import readiness
from fs.runtime.real import real_runtime
from fs.schema import services
from fs.schema.config import RpcSection
from fs.schema.proto import core_pb2 as core

from .command import bench_command
from .table import Row

COUNT = 500
IDENTITY = Identity("benchmark", 1)
COUNTED = (
    ("functions", lambda _file, _name: True),
    ("  of them in Python", lambda file, _name: file != "~"),
    ("turns of the loop", lambda _file, name: name == "unrolled_run"),
    ("looks at the epoll", lambda _file, name: name == "<method 'poll' of 'select.epoll' objects>"),
    (
        "changes of the epoll",
        lambda _file, name: name == "<method 'modify' of 'select.epoll' objects>",
    ),
    ("receipts", lambda _file, name: name == "<method 'recv_into' of '_socket.socket' objects>"),
)

Counts = dict[str, float]


def counted(profile: cProfile.Profile, count: int) -> Counts:
    """Return what was called, for each of `count` operations."""
    stats: dict[tuple[str, int, str], Any] = vars(pstats.Stats(profile))["stats"]
    return {
        what: sum(row[1] for (file, _, name), row in stats.items() if is_one(file, name)) / count
        for what, is_one in COUNTED
    }


class Counting(CoreService):
    """Echoes; a message of no bytes begins or ends the counting."""

    profile: cProfile.Profile | None = None

    def _turn(self, request: core.EchoReq) -> None:
        if request.data:
            return
        if self.profile is None:
            self.profile = cProfile.Profile()
            self.profile.enable()
        else:
            self.profile.disable()


class InTask(Counting):
    """By a coroutine."""

    async def echo(self, call: Call, request: core.EchoReq) -> core.EchoRsp | Reply[core.EchoRsp]:
        """Answer."""
        self._turn(request)
        return await super().echo(call, request)


class AtOnce(Counting):
    """By a plain function."""

    def echo(self, _call: Call, request: core.EchoReq) -> Reply[core.EchoRsp]:  # type: ignore[override]
        """Answer."""
        self._turn(request)
        return Reply(core.EchoRsp(data=request.data), [bytes(request.reply_payload_bytes)])


def serve(
    kind: type[Counting], address: str, link: "multiprocessing.connection.Connection[Any, Any]"
) -> None:
    """Process: a server, until it is told how many calls were counted; says what it counted."""

    async def main() -> None:
        readiness.install()
        runtime = real_runtime(SocketNetwork())
        server = Server(IDENTITY, RpcSection(), observer=RpcObserver())
        service = kind(IDENTITY, runtime.clock, [])
        server.add_service("Core", service)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run, runtime.network, address)
            link.send(None)
            count = await trio.to_thread.run_sync(link.recv)
            assert service.profile is not None
            link.send(counted(service.profile, count))
            nursery.cancel_scope.cancel()

    trio.run(main)


async def call_all(address: str, request: core.EchoReq, count: int) -> Counts:
    """Call one after the other; return what that took here."""
    readiness.install()
    runtime = real_runtime(SocketNetwork())
    observer = RpcObserver()
    async with open_channels(runtime, IDENTITY, RpcSection(), observer=observer) as channels:
        channel = channels.get(address)
        await _call(channel, request, 20)
        await _call(channel, core.EchoReq(), 1)
        with cProfile.Profile() as profile:
            await _call(channel, request, count)
        await _call(channel, core.EchoReq(), 1)
    return counted(profile, count)


async def _call(channel: RpcChannel, request: core.EchoReq, count: int) -> None:
    for _ in range(count):
        await channel.call(services.CORE_ECHO, request)


def measure(count: int, _parent: Path | None, progress: Progress) -> list[Row]:
    """Count everything."""
    context = multiprocessing.get_context("spawn")
    kinds: Sequence[tuple[str, type[Counting], core.EchoReq]] = (
        ("empty call, by a coroutine", InTask, core.EchoReq(data=b"x")),
        ("empty call, at once", AtOnce, core.EchoReq(data=b"x")),
        ("4 KiB, at once", AtOnce, core.EchoReq(data=b"x", reply_payload_bytes=4096)),
    )
    rows = []
    for name, kind, request in kinds:
        progress.step(f"calls: {name}")
        with tempfile.TemporaryDirectory() as folder:
            address = f"unix:{Path(folder) / 'calls'}"
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(kind, address, theirs), daemon=True)
            process.start()
            ours.recv()
            caller = trio.run(call_all, address, request, count)
            ours.send(count)
            server: Counts = ours.recv()
            process.join()
        for what in caller:
            rows.append(Row(f"{name}: {what}, caller", caller[what], "per call"))
            rows.append(Row(f"{name}: {what}, server", server[what], "per call"))
    return rows


if __name__ == "__main__":
    sys.exit(bench_command("calls", __doc__, (COUNT, 10 * COUNT), measure, amount="calls"))
