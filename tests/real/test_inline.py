"""Small files in the metadata store, on a real cluster:
through kills of everything, a stop, and the loss of all storage.
"""

import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from fs.app.machine.cluster_dir import ClusterDir, need_record
from fs.client.blocking import BlockingFs, connect_blocking
from fs.client.connect import connect as connect_here
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema.config import ProcessConfig, RpcSection

from .conftest import Cluster, run, scaled
from .small_files import MARK

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]
LENGTH_MAX = 65_536
PROCESS_COUNT = 2
"""On each of two mounts."""
PAUSE_S = 0.7


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory):
    """A small cluster that keeps small files in its metadata store."""
    base = tmp_path_factory.mktemp("small")
    made = Cluster(base / "data", base / "mnt")
    made.mount.mkdir()
    try:
        made.up("--nodes", 2, "--replicas", 2, "--chains", 1)
        made.keep_small_files(LENGTH_MAX)
        yield made
    finally:
        made.wipe()


def connect(cluster):
    cluster_id = need_record(ClusterDir(cluster.directory)).cluster_id
    return connect_blocking([f"unix:{cluster.directory}/run/control.sock"], cluster_id)


def inline_count(fs, paths):
    """How many of these files are in the metadata store."""
    found = fs.stat_many(paths)
    return sum(inode.file.is_inline for inode in found)


def digest(data):
    return f"{len(data)} {hashlib.md5(data).hexdigest()}"


@contextmanager
def working(folder, seed, stop):
    command = sys.executable, "-m", "tests.real.small_files", folder, seed, stop
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def test_small_files_survive_the_death_of_everything_in_turn(
    small_cluster, tmp_path, report_figure
):
    other = tmp_path / "other"
    other.mkdir()
    small_cluster.ember("mount", "--dir", small_cluster.directory, other)
    stop = tmp_path / "stop"
    with ExitStack() as stack:
        workers = []
        for number in range(PROCESS_COUNT):
            for mount in (small_cluster.mount, other):
                folder = mount / f"work-{mount.name}-{number}"
                folder.mkdir()
                (folder / MARK).touch()
                worker = stack.enter_context(working(folder, number, stop))
                workers.append((folder.name, mount, worker))
        for _ in range(scaled(1, 10)):
            for victim in ("control", "mount-1", "storage-1"):
                time.sleep(PAUSE_S)
                small_cluster.kill(victim)
        time.sleep(PAUSE_S)
        stop.touch()
        told_by = [json.loads(worker.communicate(timeout=120)[0]) for *_, worker in workers]
    steps = lost = 0
    with connect(small_cluster) as fs:
        for (name, mount, _), told in zip(workers, told_by, strict=True):
            steps, lost = steps + told["steps"], lost + told["lost"]
            across = other if mount == small_cluster.mount else small_cluster.mount
            for file, allowed in told["allowed"].items():
                path = across / name / file
                if len(allowed) == 1:
                    found = digest(path.read_bytes()) if path.exists() else ""
                    assert found in allowed, path
                native = fs.exists(f"/{name}/{file}") and fs.read_file(f"/{name}/{file}")
                assert native is False or path.read_bytes() == native
        there = [
            f"/{name}/{entry.name}" for name, *_ in workers for entry in fs.listdir(f"/{name}")
        ]
        kept = inline_count(fs, there)
    assert kept > 0
    small_cluster.ember("umount", other)
    report_figure(
        f"{steps} steps, {lost} cut short by the death of a mount; {kept} of {len(there)} files "
        "inline"
    )


def test_programs(small_cluster, tmp_path):
    """What people do with many small files; each is read back from another mount's point of view,
    the native client's.
    """
    place = small_cluster.mount / "programs"
    place.mkdir()
    source = tmp_path / "source"
    source.mkdir()
    rng = random.Random(7)
    for number in range(40):
        folder = source / f"d{number % 7}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_bytes(
            rng.randbytes(rng.choice([0, 1, 700, 9000, 65_536, 90_000]))
        )
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    repository = place / "repository"
    run("cp", "-a", source, repository)
    run("git", "init", "-q", ".", cwd=repository)
    run("git", *identity, "add", "-A", cwd=repository)
    run("git", *identity, "commit", "-q", "-m", "all", cwd=repository)
    run("git", "clone", "-q", "--no-local", repository, place / "clone")
    run("git", "fsck", "--full", "--strict", cwd=place / "clone")
    run("diff", "-r", "--exclude=.git", source, place / "clone")
    run("tar", "-C", source, "-cf", place / "all.tar", ".")
    (place / "untarred").mkdir()
    run("tar", "-C", place / "untarred", "-xf", place / "all.tar")
    run("diff", "-r", source, place / "untarred")
    if shutil.which("rsync"):
        run("rsync", "-a", "--checksum", f"{source}/", place / "synced")
        (source / "d1" / "f1").write_bytes(b"changed")
        run("rsync", "-a", "--inplace", "--no-whole-file", f"{source}/", place / "synced")
        run("diff", "-r", source, place / "synced")
    for journal in ("delete", "wal"):
        with sqlite3.connect(place / f"{journal}.db") as db:
            db.execute(f"pragma journal_mode={journal}")
            db.execute("create table t (id integer primary key, value text)")
            for begin in range(0, 300, 100):
                rows = ((n, f"value {n}" * 30) for n in range(begin, begin + 100))
                db.executemany("insert into t values (?, ?)", rows)
                db.commit()
        db.close()
        with sqlite3.connect(place / f"{journal}.db") as db:
            assert db.execute("select count(*), sum(id) from t").fetchone() == (300, 300 * 299 // 2)
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        db.close()
    with connect(small_cluster) as fs:
        paths = [entry.path for entry in fs.find("/programs") if entry.inode.file is not None]
        assert inline_count(fs, paths) > 60
        for path in paths:
            assert fs.read_file(path) == (small_cluster.mount / path[1:]).read_bytes(), path


def test_what_is_inline_is_there_after_a_stop_without_any_storage(small_cluster):
    """The last test of its cluster: it takes its disks away."""
    with connect(small_cluster) as fs:
        fs.makedirs("/last")
        contents = {f"/last/{n}": os.urandom(n) for n in (1, 4096, LENGTH_MAX, LENGTH_MAX + 1)}
        assert not fs.write_files(contents)
        expected = {
            entry.path: fs.read_file(entry.path) for entry in fs.find("/") if entry.inode.file
        }
    assert set(contents) <= set(expected)
    small_cluster.down()
    for disk in (small_cluster.directory / "data").glob("storage-*"):
        shutil.rmtree(disk)
    small_cluster.up("--no-mount")
    small_cluster.ember("mount", "--dir", small_cluster.directory, small_cluster.mount)
    with connect(small_cluster) as fs:
        kept = [path for path in expected if fs.stat(path).file.is_inline]
        assert set(contents) - set(kept) == {f"/last/{LENGTH_MAX + 1}"}
        for path in kept:
            assert (small_cluster.mount / path[1:]).read_bytes() == expected[path], path
            assert fs.read_file(path) == expected[path], path
    small_cluster.ember("umount", small_cluster.mount)


@pytest.mark.parametrize("lend_bytes_min", ["as it is", "none"])
def test_many_are_read_with_few_calls(small_cluster, lend_bytes_min):
    """Their bytes come as payloads: out of the metadata service's memory, or over the socket."""
    rng, folder = random.Random(154), f"/many-{lend_bytes_min[:2]}"
    contents = {
        f"{folder}/{n}": rng.randbytes(rng.choice([1, 500, 4096, 16_384, LENGTH_MAX]))
        for n in range(400)
    }
    rpc = RpcSection() if lend_bytes_min == "as it is" else RpcSection(lend_bytes_min=0)
    told = small_cluster.status()
    made = partial(
        connect_here,
        [f"unix:{small_cluster.directory}/run/control.sock"],
        told["cluster_id"],
        runtime=real_runtime(SocketNetwork()),
        config=ProcessConfig(rpc=rpc),
    )
    with BlockingFs(made) as fs:
        fs.mkdir(folder)
        assert not fs.write_files(contents)
        assert inline_count(fs, list(contents)) == len(contents)
        for pause_s in (0.0, 1.5):
            files = fs.open_many(list(contents))
            time.sleep(pause_s)
            buffers = [bytearray(len(data) + 1) for data in contents.values()]
            reads = [(file, 0, memoryview(b)) for file, b in zip(files, buffers, strict=True)]
            assert fs.read_batch(reads) == [len(data) for data in contents.values()]
            for buffer, data in zip(buffers, contents.values(), strict=True):
                assert buffer[:-1] == data
            for file in files:
                file.close()
