"""`ember profile`: what is shown of two readings; and of a mount, live."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fs.app.monitoring.profile import path_of, read_profile, tables_of, view_between
from fs.runtime.figures import BOUNDS_S
from tests.client.user.serving import Server

HERE = Path("/nowhere")
NEEDS_KERNEL = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse"
)


def operation(calls, byte_count=0, **counts_by_bound):
    counts = [0] * (len(BOUNDS_S) + 1)
    for bound, number in counts_by_bound.items():
        counts[BOUNDS_S.index(float(bound.removeprefix("up_to_")) / 1000)] = number
    return {"calls": calls, "bytes": byte_count, "sum_s": calls * 0.01, "counts": counts}


def reading(at_s, *, began_s=1.0, processes=(), files=()):
    return {
        "format": 1, "began_s": began_s, "at_s": at_s, "left_out": 0, "processes": list(processes),
        "files": list(files),
    }  # fmt: skip


def process(pid, **operations):
    return {"pid": pid, "command": f"c{pid}", "operations": operations}


def file(inode_id, calls, byte_count):
    return {"inode_id": inode_id, "calls": calls, "bytes": byte_count, "pid": 5}


def test_what_happened_in_between_is_shown_per_second_the_busiest_first():
    before = reading(
        10.0, processes=[process(5, read=operation(10, 100, up_to_1=10))], files=[file(7, 10, 100)]
    )
    after = reading(
        12.0,
        processes=[
            process(
                5, read=operation(30, 2100, up_to_1=28, up_to_100=2), open=operation(1, up_to_1=1)
            ),
            process(6, write=operation(100, 8, up_to_10=100)),
        ],
        files=[file(7, 30, 2100), file(8, 100, 8)],
    )
    view = view_between(before, after, HERE)
    assert [(row.pid, row.operation) for row in view.rows] == [
        (6, "write"),
        (5, "read"),
        (5, "open"),
    ]
    write, read, _ = view.rows
    assert (read.calls_per_s, read.bytes_per_s) == (10.0, 1000.0)
    assert read.mean_s == pytest.approx(0.01)
    assert (read.p50_s, read.p99_s, write.p50_s) == (0.001, 0.1, 0.01)
    assert write.share == pytest.approx(0.5)
    assert [(f.inode_id, f.calls_per_s, f.bytes_per_s) for f in view.files] == [
        (8, 50, 4),
        (7, 10, 1000),
    ]
    assert tables_of(view)


def test_what_stood_still_is_left_out():
    still = reading(
        10.0, processes=[process(5, read=operation(10, up_to_1=10))], files=[file(7, 10, 1)]
    )
    view = view_between(still, {**still, "at_s": 11.0}, HERE)
    assert view.rows == view.files == []


def test_a_count_begun_anew_counts_from_its_start():
    before = reading(10.0, processes=[process(5, read=operation(100, up_to_1=100))])
    after = reading(22.0, began_s=20.0, processes=[process(5, read=operation(10, up_to_1=10))])
    (row,) = view_between(before, after, HERE).rows
    assert row.calls_per_s == 5.0


def test_paths_are_found_by_what_a_process_has_open(tmp_path):
    with (tmp_path / "a").open("w") as open_file:
        inode_id = os.fstat(open_file.fileno()).st_ino
        assert path_of(os.getpid(), inode_id, tmp_path) == str(tmp_path / "a")
        assert path_of(os.getpid(), tmp_path.stat().st_ino, tmp_path) == str(tmp_path)
    assert path_of(os.getpid(), inode_id, tmp_path) == ""
    assert path_of(2**22 + 1, 1, tmp_path) == ""


@pytest.mark.slow
def test_what_is_no_mount_says_so(tmp_path):
    command = [sys.executable, "-m", "fs.app.main", "profile", str(tmp_path), "--count", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("ember: NOT_RUNNING")
    assert not done.stdout
    assert json.dumps(str(tmp_path)).strip('"') in done.stderr


@NEEDS_KERNEL
@pytest.mark.mount
def test_a_program_that_writes_and_reads_is_seen_on_a_mount(tmp_path):
    server = Server(tmp_path / "mnt")
    try:
        assert server.first_line == "ready"
        before = read_profile(server.mount_point)
        with (server.mount_point / "a").open("wb", buffering=0) as writing:
            writing.write(bytes(8192))
            os.fsync(writing.fileno())
            view = view_between(before, read_profile(server.mount_point), server.mount_point)
            inode_id = os.fstat(writing.fileno()).st_ino
        own = {row.operation: row for row in view.rows if row.pid == os.getpid()}
        assert {"create", "write", "fsync", "getxattr"} <= own.keys()
        assert own["write"].bytes_per_s * view.seconds == pytest.approx(8192)
        assert own["fsync"].command == Path(f"/proc/{os.getpid()}/comm").read_text().strip()
        (found,) = [one for one in view.files if one.inode_id == inode_id]
        assert found.path == str(server.mount_point / "a") and found.pid == os.getpid()
        server.stop()
    finally:
        server.close()
