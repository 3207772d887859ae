"""A process with a store whose disk hangs from some moment on; run by test_abandon.py.

python -m tests.app.stores.hung_store DIRECTORY    prints a port, then waits for a line and commits
"""

import logging
import sys
import threading
from types import SimpleNamespace

import trio

from fs.app.process.compose import Process, new_identity
from fs.app.stores.store import open_local_store
from fs.kv import disk_watch
from fs.rpc.channel import open_channels
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema.config import KvSection, ProcessConfig


async def main(path: str) -> None:
    """Serve a port and commit; the event loop never comes back from the second commit."""
    config = ProcessConfig(kv=KvSection(path=path, disk_hang_s=1.0))
    runtime = real_runtime(SocketNetwork())
    async with (
        open_channels(runtime, new_identity(config, runtime), config.rpc) as channels,
        open_local_store(
            Process(config, runtime, new_identity(config, runtime), channels, trio.Event())
        ) as engine,
        trio.open_nursery() as nursery,
    ):
        assert engine.watch is not None
        engine.watch._judge._stat_paths = []  # others may use the device
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        for what in (b"1", b"2"):
            tr = engine.transaction()
            tr.set(b"a", what)
            await tr.commit()
            print(listeners[0].socket.getsockname()[1], flush=True)
            sys.stdin.readline()
            disk_watch.os = SimpleNamespace(pwrite=lambda *_: threading.Event().wait())  # type: ignore[attr-defined]


async def serve(stream: trio.SocketStream) -> None:
    """Say nothing."""
    await stream.receive_some()


if __name__ == "__main__":
    logging.basicConfig()
    trio.run(main, sys.argv[1])
