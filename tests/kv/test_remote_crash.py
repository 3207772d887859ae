"""kill -9 of the process that serves the store, under load:
nothing acknowledged is lost, nothing half there.

Clients commit numbered transactions over a Unix socket while the process dies and comes back; each
knows of each of its transactions that it happened, that it did not, or that nobody told.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from fs.kv.remote import RemoteEngine
from fs.kv.transact import snapshot_read, transact
from fs.rpc.api import Identity
from fs.rpc.channel import open_channels
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema.config import RpcSection
from fs.schema.status import FsError, Status
from tests.kv.harness import int_value

KILL_COUNT = int(os.environ.get("KV_REMOTE_KILLS", "4"))
ROOT = Path(__file__).parents[2]
ROW_COUNT = 4
WRITER_COUNT = 4
CLUSTER_ID = "test-cluster"


class KvProcess:
    """`ember kv` as a child that can be killed and started again."""

    def __init__(self, base: Path) -> None:
        self.address = f"unix:{base}/kv.sock"
        self.config = base / "kv.toml"
        self.config.write_text(
            f'[process]\ncluster_id = "{CLUSTER_ID}"\nlisten = "{self.address}"\n'
            f'mgmtd_addresses = ["unix:{base}/nobody"]\n[kv]\npath = "{base}/kv"\n'
        )
        self.log = base / "kv.log"
        self.child: subprocess.Popen | None = None

    async def start(self) -> None:
        ready, told = os.pipe()
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                [sys.executable, "-m", "fs.app.kv", str(self.config)],
                stdout=log, stderr=log, cwd=ROOT, pass_fds=[told],
                env={**os.environ, "EMBERFS_READY_FD": str(told)},
            )  # fmt: skip
        os.close(told)
        await trio.lowlevel.wait_readable(ready)
        assert os.read(ready, 1) == b"\n", self.log.read_text()
        os.close(ready)

    def end(self, number: signal.Signals) -> None:
        assert self.child is not None
        self.child.send_signal(number)
        self.child.wait(30)
        self.child = None


@pytest.fixture
def kv_process(tmp_path):
    made = KvProcess(tmp_path)
    yield made
    if made.child is not None:
        made.end(signal.SIGKILL)


class Writers:
    """What the clients did and what they were told."""

    def __init__(self, engine: RemoteEngine, runtime) -> None:
        self.engine = engine
        self.runtime = runtime
        self.next_number = 0
        self.done: set[int] = set()
        self.unknown: set[int] = set()
        self.failed: set[int] = set()

    async def run(self) -> None:
        while True:
            number = self.next_number
            self.next_number += 1
            try:
                await self.write(number)
            except FsError as error:
                # A read that failed was no commit; KV_TIMED_OUT would mean
                # that a commit was repeated.
                if error.status not in {
                    Status.KV_COMMIT_UNKNOWN,
                    Status.KV_UNREACHABLE,
                    Status.KV_UNAVAILABLE,
                }:
                    raise
                outcome = self.unknown if error.status is Status.KV_COMMIT_UNKNOWN else self.failed
                outcome.add(number)
            else:
                self.done.add(number)

    async def write(self, number: int) -> None:
        async def fn(tr):
            last = int_value(await tr.get(b"last/%d" % (number % WRITER_COUNT)))
            tr.set(b"last/%d" % (number % WRITER_COUNT), number.to_bytes(8, "little"))
            tr.atomic_add(b"count", 1)
            for row in range(ROW_COUNT):
                tr.set(b"t/%08d/%d" % (number, row), b"%d after %d" % (number, last))

        await transact(self.engine, fn, runtime=self.runtime, is_idempotent=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_store_loses_nothing_acknowledged(kv_process, report_figure):
    runtime = real_runtime(SocketNetwork())
    source = random.Random(3)
    await kv_process.start()
    async with open_channels(
        runtime, Identity(CLUSTER_ID, client_id="x"), RpcSection()
    ) as channels:
        engine = RemoteEngine(channels.get(kv_process.address), kv_process.address, runtime)
        writers = Writers(engine, runtime)
        async with trio.open_nursery() as nursery:
            for _ in range(WRITER_COUNT):
                nursery.start_soon(writers.run)
            for _ in range(KILL_COUNT):
                begun = len(writers.done)
                while len(writers.done) < begun + 20:  # noqa: ASYNC110 - a look now and then will do
                    await trio.sleep(0.01)
                await trio.sleep(source.random() * 0.2)
                kv_process.end(signal.SIGKILL)
                await kv_process.start()
            nursery.cancel_scope.cancel()
        # Unknown are also those that were under way at the end.
        maybe = set(range(writers.next_number)) - writers.done - writers.failed
        rows = await snapshot_read(engine, lambda tr: tr.get_range(b"t/", b"t0"))
        count = int_value(await snapshot_read(engine, lambda tr: tr.get(b"count")))
        await engine.aclose()
    present = {int(key[2:10]) for key, _ in rows}
    assert len(rows) == ROW_COUNT * len(present), "half a transaction"
    assert writers.done <= present, sorted(writers.done - present)[:5]
    assert present <= writers.done | maybe
    assert count == len(present), "counted twice, or not at all"
    kv_process.end(signal.SIGTERM)
    took_effect = len(writers.unknown & present)
    report_figure(
        f"{KILL_COUNT} kills of the kv process: {len(writers.done)} acknowledged commits, none "
        "lost;"
        f" {len(writers.unknown)} of unknown outcome, of which {took_effect} had happened"
    )
