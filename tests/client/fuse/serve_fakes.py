"""A program for mount tests: serves one mount over the in-memory model until SIGTERM or unmount.

Usage: serve_fakes.py MOUNT_POINT [key=value of ClientSection ...]; prints "ready"
when mounted, and at each SIGUSR1 what the kernel (direct frontend only) and the mount
have asked for since the last one.
"""

import json
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import trio

from fs.client.fuse.direct.device import Device
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.mount import run_mount
from fs.client.vfs import leased_names
from fs.client.vfs.vfs import Vfs
from fs.kernels.device import READ_REQUEST
from fs.runtime.ports import Runtime
from fs.runtime.real import real_runtime
from fs.schema.config import ClientSection
from fs.schema.status import FsError
from tests.client.fakes import FakeCluster, run_inline


class RealClock:
    def wall_ns(self):
        return time.time_ns()

    def monotonic_s(self):
        return trio.current_time()


_NAMES = {int(opcode): opcode.name for opcode in Opcode}


def count_kernel_requests():
    """Return the lists to which the name of every request is added as it is received,
    and the bytes of every READ.
    """
    asked, read_sizes = [], []
    receive_now = Device.receive_now

    def counting_receive_now(self, count_max):
        rows, request = receive_now(self, count_max)
        for row in READ_REQUEST.iter_unpack(rows):
            asked.append("READ")
            read_sizes.append(row[11])
        if request is not None:
            asked.append(_NAMES.get(request.opcode, str(request.opcode)))
        return rows, request

    Device.receive_now = counting_receive_now
    return asked, read_sizes


async def tell_counts(cluster, asked, read_sizes):
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        async for _ in signals:
            counts = {"kernel": asked, "meta": cluster.calls, "read_sizes": read_sizes}
            chunks = cluster.chunks
            counts["storage"] = len(chunks.writes) + len(chunks.reads) + chunks.sync_count
            print(json.dumps(counts), flush=True)
            asked.clear()
            read_sizes.clear()
            cluster.calls.clear()


async def hang(*_, **__):
    await trio.sleep_forever()


async def main(mount_point, section):
    clock = RealClock()
    cluster = FakeCluster(clock, chunk_size_bytes=1 << 20)
    cluster.inline.bytes_max = int(os.environ.get("INLINE_BYTES_MAX", "0"))
    leased_names.LEASE_S = float(os.environ.get("NAME_LEASE_S", str(leased_names.LEASE_S)))
    own_threads = real_runtime(None).own_threads
    runtime = Runtime(clock, None, run_inline, random.Random(1), own_threads=own_threads)
    if os.environ.get("INJECT_BUG"):
        cluster.chunks.write_faults.append(AssertionError("injected bug"))
    if os.environ.get("HANG_READS"):
        cluster.chunks.read = hang
    vfs = Vfs(cluster.meta(), cluster.store(), runtime, section)
    asked, read_sizes = count_kernel_requests()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_counts, cluster, asked, read_sizes)

        async def serve(task_status=trio.TASK_STATUS_IGNORED):
            await run_mount(
                vfs,
                mount_point,
                runtime=runtime,
                section=section,
                cluster_id="model",
                task_status=task_status,
            )
            nursery.cancel_scope.cancel()

        await nursery.start(serve)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            print("ready", flush=True)
            async for _ in signals:
                break
        nursery.cancel_scope.cancel()
    report = {
        "calls": Counter(cluster.calls),
        "sessions": sum(map(len, cluster.sessions.values())),
        "lengths": {n.decode(): cluster.get(i).length for n, i in cluster.names[1].items()},
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    settings = {k: json.loads(v) for k, v in (a.split("=") for a in sys.argv[2:])}
    try:
        trio.run(main, Path(sys.argv[1]), ClientSection(**settings))
    except* FsError as errors:
        print(f"error: {errors.exceptions[0]}", flush=True)
        sys.exit(1)
