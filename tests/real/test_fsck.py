"""`ember fsck` on a cluster of real processes: while others work, and with defects planted."""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import trio

from fs.app.machine.cluster_dir import ClusterDir
from fs.app.stores.store_access import open_chosen, store_of_cluster
from fs.kv.api import KeyValue, prefix_end
from fs.kv.transact import transact
from fs.meta import records
from fs.schema.ids import ROOT_INODE_ID
from fs.schema.proto.common_pb2 import InodePb
from fs.schema.proto.record_pb2 import DentryRecordPb, FileSessionRecordPb
from tests.real.conftest import EMBER, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.mount, pytest.mark.timeout(500)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    base = tmp_path_factory.mktemp("fsck")
    made = Cluster(base / "cluster", base / "mount")
    made.mount.mkdir()
    try:
        made.up("--nodes", 2, "--replicas", 2)
        yield made
    finally:
        made.wipe()


def fsck(cluster, *options) -> tuple[int, dict]:
    """Run it; return the exit code and what it says."""
    done = cluster.tried("fsck", "--json", *options)
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode, json.loads(done.stdout)


def counts(told: dict, what: str = "findings") -> dict[str, int]:
    found: dict[str, int] = {}
    for finding in told[what]:
        found[finding["kind"]] = found.get(finding["kind"], 0) + 1
    return found


def change(cluster, body) -> None:
    """Change the store of a running cluster behind its back."""

    async def run() -> None:
        async with open_chosen(store_of_cluster(ClusterDir(cluster.directory))) as store:
            await transact(store.engine, body, runtime=store.runtime)

    trio.run(run)


def wait_until_closed(cluster, *names: bytes) -> None:
    """Wait for the ends of the sessions of files in the root, which a mount tells a moment after
    their close: fsck judges no length of a file that is open.
    """

    async def look(tr) -> None:
        nonlocal left
        left = []
        for name in names:
            _, inode = await inode_at(tr, name)
            begin = records.file_session_prefix(inode.inode_id)
            left += await tr.get_range(begin, prefix_end(begin), snapshot=True)

    left: list[KeyValue] = []
    deadline = time.monotonic() + 60
    change(cluster, look)
    while left:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
        change(cluster, look)


async def inode_at(tr, name: bytes) -> tuple[bytes, InodePb]:
    entry = await tr.get(records.dentry_key(ROOT_INODE_ID, name))
    key = records.inode_key(DentryRecordPb.FromString(entry).inode_id)
    return key, InodePb.FromString(await tr.get(key))


def work(folder: Path, stop: threading.Event) -> None:
    """Make, write, cut, rename and remove files until told to stop; then remove all."""
    folder.mkdir()
    for n in range(100_000):
        if stop.is_set():
            shutil.rmtree(folder)
            return
        path = folder / f"{n % 7}"
        path.write_bytes(bytes(n % 5 * 400_000))
        with path.open("r+b") as file:
            file.truncate(n % 3 * 300_000)
        path.rename(folder / f"{n % 4} moved")
        (folder / f"{(n + 2) % 4} moved").unlink(missing_ok=True)


def test_nothing_is_found_while_others_work(small):
    stop = threading.Event()
    workers = [threading.Thread(target=work, args=(small.mount / f"w{n}", stop)) for n in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(2):
            code, told = fsck(small)
            assert code == 0, told
            assert set(counts(told)) <= {"no-chunks"}
            assert told["chunk_count"] is not None
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_counters_are_counted_anew(small):
    """`ember quota recount` while a mount works:
    what was planted is found by its path, and put right.
    """
    (small.mount / "counted" / "below").mkdir(parents=True)
    (small.mount / "counted" / "below" / "f").write_bytes(bytes(1000))

    async def plant(tr) -> None:
        key, _ = await inode_at(tr, b"counted")
        tr.atomic_add(records.usage_key(records.unpack_id(key[4:12]), b"b"), 77)

    change(small, plant)
    path = small.mount / "counted"
    for options, code, repaired in ((["--check"], 1, 0), ([path], 0, 1), ([], 0, 0)):
        done = small.tried("quota", "recount", "--json", *options)
        assert done.returncode == code, done.stderr
        told = json.loads(done.stdout)
        assert told["repaired_count"] == repaired
        wrong = [(w["path"], w["missing"]) for w in told["wrong"]]
        assert wrong == ([("/counted", {"bytes": -77})] if options else [])
    assert os.getxattr(path, "ember.usage.bytes") == b"1000"


def test_what_is_wrong_with_chunks_is_found_and_repaired(small):
    for name in ("lost", "short", "misplaced", "nowhere"):
        (small.mount / name).write_bytes(bytes(3 * MIB))
    with (small.mount / "hole").open("wb") as file:
        file.truncate(MIB)
    wait_until_closed(small, b"lost", b"short", b"misplaced", b"nowhere", b"hole")

    async def plant(tr) -> None:
        key, _ = await inode_at(tr, b"lost")
        tr.clear(key)
        key, inode = await inode_at(tr, b"short")
        inode.file.length = 10
        tr.set(key, inode.SerializeToString())
        key, inode = await inode_at(tr, b"misplaced")
        inode.file.dyn_stripe = inode.file.layout.stripe_size = 1
        tr.set(key, inode.SerializeToString())
        key, inode = await inode_at(tr, b"nowhere")
        inode.file.layout.table_id = 9
        tr.set(key, inode.SerializeToString())
        record = FileSessionRecordPb(session_id="f" * 32, client_id="e" * 32, created_ns=1)
        key = records.file_session_key(inode.inode_id, record.session_id)
        tr.set(key, record.SerializeToString())

    change(small, plant)
    code, told = fsck(small)
    found = counts(told)
    assert code == 1
    assert found["orphan-chunk"] == 6
    assert found["chunk-beyond-end"] >= 2
    assert found["misplaced-chunk"] >= 2
    assert (found["no-chain"], found["dangling-name"], found["no-chunks"]) == (1, 1, 1)
    code, told = fsck(small, "--repair")
    assert (code, counts(told, "left")["orphan-chunk"]) == (1, 6)
    code, told = fsck(small, "--remove-chunks")
    left = counts(told, "left")
    assert {*left} <= {"misplaced-chunk", "no-chain", "chunk-beyond-end", "dead-session"}
    assert (small.mount / "short").stat().st_size == 10
    deadline = time.monotonic() + 60
    while "chunk-beyond-end" in counts(fsck(small)[1]):
        # A metadata service finishes the truncation.
        assert time.monotonic() < deadline
        time.sleep(1)


def test_wrong_space_is_found_and_repaired(small):
    whole, sparse = small.mount / "whole", small.mount / "sparse"
    whole.write_bytes(bytes(3 * MIB + 5))
    with sparse.open("wb") as file:
        file.seek(5 * MIB)
        file.write(b"end")
    before = [path.stat().st_blocks for path in (whole, sparse)]
    wait_until_closed(small, b"whole", b"sparse")
    found = counts(fsck(small)[1])

    async def plant(tr) -> None:
        key, inode = await inode_at(tr, b"whole")
        inode.file.has_holes, inode.used_bytes = True, 77_000
        tr.set(key, inode.SerializeToString())
        key, inode = await inode_at(tr, b"sparse")
        inode.file.has_holes = False
        tr.set(key, inode.SerializeToString())

    change(small, plant)
    assert "wrong-space" not in found
    code, told = fsck(small)
    assert (code, counts(told)["wrong-space"]) == (1, 2)
    code, told = fsck(small, "--repair")
    assert "wrong-space" not in counts(told, "left")
    time.sleep(1.1)  # attributes that the mount has kept
    assert [path.stat().st_blocks for path in (whole, sparse)] == before
    for path in (whole, sparse):
        path.unlink()


def test_a_stopped_cluster_is_checked_without_chunks(small):
    change(small, _mend)
    small.ember("down", "--dir", small.directory)
    code, told = fsck(small)
    assert (code, told["findings"], told["chunk_count"]) == (0, [], None)
    done = subprocess.run(
        [str(EMBER), "fsck", "--kv", "rocksdb:/nowhere", "--cluster-id", "x"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


async def _mend(tr) -> None:
    """Take back what no repair is known for."""
    for name in (b"misplaced", b"nowhere"):
        key, inode = await inode_at(tr, name)
        inode.file.layout.stripe_size = max(2, inode.file.layout.stripe_size)
        inode.file.layout.table_id = 1
        tr.set(key, inode.SerializeToString())
        sessions = records.file_session_prefix(inode.inode_id)
        tr.clear_range(sessions, sessions + b"\xff")
