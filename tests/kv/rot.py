"""Rot in each file of the key-value store:
it opens with every synced commit, refuses, or fails the read; it never loses silently.

    python -m tests.kv.rot [--places N] [--seeds N] [--jobs J]

Of a store that was closed (even seeds) and of one whose process was killed (odd ones) one byte at a
time is changed in every file, at N places each; then each file is cut in half, and then removed.
Commit n writes row n % ROW_COUNT, so the contents at every version are known; unsynced commits at
the end may be missing, but only from the end.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import trio

from fs.kv import rocksdb as engine_module
from fs.kv.rocksdb import RocksDbEngine
from fs.kv.transact import snapshot_read
from fs.schema.config import KvSection
from fs.schema.status import FsError, Status
from tests.chunkengine.campaign import run_campaign
from tests.chunkengine.rot import harm_each
from tests.kv.harness import CLUSTER_ID, inline_runtime

ROOT = Path(__file__).parents[2]
ROW_COUNT = 150
SYNCED_COUNT = 280
COMMIT_COUNT = 300
ROTATE_COST_BYTES = 64 << 10
REFUSALS = (Status.KV_DAMAGED, Status.KV_BAD_FORMAT)


def row(number: int) -> tuple[bytes, bytes]:
    return b"%04d" % (number % ROW_COUNT), random.Random(number).randbytes(1000)


def rows_at(version: int) -> dict[bytes, bytes]:
    return dict(row(number) for number in range(1, version + 1))


async def open_at(path: Path) -> RocksDbEngine:
    return await RocksDbEngine.open(str(path), KvSection(), inline_runtime(), cluster_id=CLUSTER_ID)


async def write(path: Path, *, is_killed: bool) -> None:
    """Make the store in two lives; a killed one ends this process."""
    engine_module.ROTATE_COST_BYTES = ROTATE_COST_BYTES
    engine = await open_at(path)
    for number in range(1, COMMIT_COUNT + 1):
        if number == COMMIT_COUNT // 4:
            await engine.aclose()
            engine = await open_at(path)
        tr = engine.transaction()
        tr.set(*row(number))
        await tr.commit()
        if number == SYNCED_COUNT:
            await engine.sync()
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    await engine.aclose()


def make_store(path: Path, *, is_killed: bool) -> None:
    how = "killed" if is_killed else "closed"
    command = [sys.executable, "-m", "tests.kv.rot", "--make", how, str(path)]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == (-signal.SIGKILL if is_killed else 0), done


def check(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


def expected(error: FsError, path: Path, *statuses: Status) -> str:
    check(error.status in statuses and (path == Path() or str(path) in error.detail), str(error))
    return "error on reading" if error.status is Status.IO_ERROR else "refused"


async def judge(path: Path, least_version: int) -> str:
    """Open a damaged store; return what came of it; raises AssertionError for a silent loss."""
    try:
        engine = await open_at(path)
    except FsError as error:
        return expected(error, path, *REFUSALS)
    try:
        check(engine.version >= least_version, f"silently lost: version {engine.version}")
        try:
            found = dict(await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff")))
        except FsError as error:
            return expected(error, Path(), Status.IO_ERROR)
        check(found == rows_at(engine.version), "silently lost or changed rows")
    finally:
        try:
            await engine.aclose()
        except FsError as error:  # a table that RocksDB could not merge
            expected(error, Path(), Status.IO_ERROR)
    return "opened with everything" if engine.version == COMMIT_COUNT else "without an unsynced end"


def run_seed(places: int, seed: int, directory: Path) -> Counter[str]:
    """Damage every file of one store."""
    is_killed = seed % 2 == 1
    saved, path = directory / "saved", directory / "kv"
    make_store(saved, is_killed=is_killed)
    judged = partial(trio.run, judge, path, SYNCED_COUNT if is_killed else COMMIT_COUNT)
    return harm_each(saved, path, "", judged, places=places, seed=seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kv.rot")
    parser.add_argument("--places", type=int, default=5, help="per file")
    parser.add_argument("--seeds", type=int, default=4, help="stores")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--make", nargs=2, metavar=("HOW", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        how, path = arguments.make
        trio.run(partial(write, Path(path), is_killed=how == "killed"))
        return 0
    trial = partial(run_seed, arguments.places)
    outcome = run_campaign(trial, 0, arguments.seeds, arguments.jobs, "stores")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
