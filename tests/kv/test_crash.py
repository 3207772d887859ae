"""kill -9 of a process that commits: nothing acknowledged is lost, nothing is half there."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fs.kv.rocksdb import RocksDbEngine
from fs.kv.transact import snapshot_read
from fs.schema.config import KvSection
from tests.kv.crash_writer import KEPT_COUNT, ROW_COUNT, WRITER_COUNT
from tests.kv.harness import CLUSTER_ID, inline_runtime, int_value

KILL_COUNT = int(os.environ.get("KV_KILLS", "20"))
ROOT = Path(__file__).parents[2]


def run_until_killed(path: Path, start: int, live_s: float) -> list[int]:
    """Return the acknowledged numbers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kv.crash_writer", str(path), str(start)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(live_s)
    process.send_signal(signal.SIGKILL)
    lines = (first + process.stdout.read()).split(b"\n")
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    return [int(line) for line in lines[:-1]]  # the last one may be cut


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_kill_loses_nothing_acknowledged(tmp_path, capsys):
    path = tmp_path / "kv"
    source = random.Random(7)
    acknowledged: set[int] = set()
    start, last_version, open_s_max = 0, 0, 0.0
    for _ in range(KILL_COUNT):
        # The kill of one round leaves at most WRITER_COUNT unacknowledged numbers behind.
        acknowledged.update(run_until_killed(path, start, source.random() * 0.15))
        began_s = time.monotonic()
        engine = await RocksDbEngine.open(
            str(path), KvSection(), inline_runtime(), cluster_id=CLUSTER_ID
        )
        open_s_max = max(open_s_max, time.monotonic() - began_s)
        found = dict(await snapshot_read(engine, lambda tr: tr.get_range(b"t/", b"t0")))
        count = int_value(await snapshot_read(engine, lambda tr: tr.get(b"count")))
        assert engine.version > last_version
        last_version = engine.version
        await engine.aclose()

        numbers = [int(key[2:12]) for key in found]
        present = set(numbers)
        assert len(numbers) == ROW_COUNT * len(present), "half a transaction"
        assert all(value == b"%d" % int(key[2:12]) * 20 for key, value in found.items())
        newest = max(acknowledged)
        # What a later transaction may have removed is older than KEPT_COUNT of the newest possible.
        must = {n for n in acknowledged if n > newest + WRITER_COUNT - KEPT_COUNT}
        assert must <= present, sorted(must - present)[:5]
        assert len(acknowledged) <= count == engine.version
        assert count <= len(acknowledged) + WRITER_COUNT * KILL_COUNT
        start = max(present) + 1
    with capsys.disabled():
        print(
            f"\n{KILL_COUNT} kills, {len(acknowledged)} acknowledged,"
            f" slowest reopening {open_s_max * 1000:.0f} ms"
        )
