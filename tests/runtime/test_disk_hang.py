"""Which devices are below a disk, and whether they do anything."""

import threading
import time

import pytest

from fs.runtime import disk_hang
from fs.runtime.disk_hang import HangJudge

MOUNTS = b"""\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
36 25 0:27 / /disks/a rw,noatime shared:7 - btrfs /dev/sdb rw,space_cache=v2
37 25 0:28 / /disks/b rw - zfs pool/b rw
"""


@pytest.mark.parametrize(
    ("device", "source"), [("0:27", "/dev/sdb"), ("0:28", "pool/b"), ("0:2", "")]
)
def test_what_is_below_a_file_system_without_a_device_of_its_own(device, source):
    """A flush of btrfs that took 10 s was taken for a hang:
    nothing said that the device was at work.
    """
    assert disk_hang.source_of(device, MOUNTS) == source


def test_all_devices_of_a_disk_are_looked_at(tmp_path):
    made = HangJudge(str(tmp_path), 10.0)
    for name in ("a", "b"):
        (tmp_path / name).write_text("1 0 0 0 2 0 0 0 0 0 0")
    made._stat_paths = [tmp_path / "a", tmp_path / "b"]
    assert made._count_completed() == 6
    (tmp_path / "b").write_text("1 0 0 0 3 0 0 0 0 0 0 0 0 0 0 4 0")
    assert made._count_completed() == 11
    (tmp_path / "a").unlink()  # pulled out of a file system that has another one
    assert made._count_completed() == 8
    (tmp_path / "b").write_text("1 0 0 0 3 0 0 0 0 0 0 0 0 0 0 5 0")
    assert made._count_completed() == 9


def test_devices_of_btrfs_are_found_together(monkeypatch, tmp_path):
    for number in ("8:0", "8:16", "8:32"):
        (tmp_path / "block" / number).mkdir(parents=True)
    folder = tmp_path / "btrfs" / "some-uuid" / "devices"
    folder.mkdir(parents=True)
    for number, name in (("8:16", "sdb"), ("8:32", "sdc")):
        (folder / name).symlink_to(tmp_path / "block" / number)
    monkeypatch.setattr(disk_hang, "_BLOCK_DEVICES", tmp_path / "block")
    monkeypatch.setattr(disk_hang, "_BTRFS", tmp_path / "btrfs")
    assert {path.name for path in disk_hang._companions("8:16")} == {"sdb", "sdc"}
    assert [path.name for path in disk_hang._companions("8:0")] == ["8:0"]


@pytest.mark.parametrize(
    ("worked_ns", "hangs_at_s"),
    [
        (lambda _second: 0, 10),  # not known, or waits for the disk
        (lambda second: second * 10_000_000, 10),  # wakes up now and then
        (lambda second: second * 300_000_000, 120),  # computes, and waits for a core in between
        (lambda _second: -1, 120),
        (lambda second: -1 if second < 40 else 5, 49),
        (lambda second: min(second, 40) * 10**9, 50),
    ],
)
def test_a_thread_that_works_does_not_wait_for_the_disk(monkeypatch, worked_ns, hangs_at_s):
    made = HangJudge("/nowhere", 10.0)
    for second in range(1, 200):
        monkeypatch.setattr(disk_hang, "work_ns", lambda _thread_id, at=second: worked_ns(at))
        made.pass_time(1.0)
        if made.hung_s(0.0, 7):
            break
    assert second == hangs_at_s


def test_work_of_one_call_says_nothing_of_the_next(monkeypatch):
    made = HangJudge("/nowhere", 10.0)
    monkeypatch.setattr(disk_hang, "work_ns", lambda thread_id: thread_id * 10**12)
    for second in range(1, 20):
        made.pass_time(1.0)
        if made.hung_s(0.0, second):  # others are the oldest one after the other
            break
    assert second == 10


def test_threads_are_seen_at_work_and_waiting():
    may_end, at_work = threading.Event(), threading.Event()

    def work():
        while not at_work.is_set():
            pass
        may_end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert any(disk_hang.work_ns(thread.native_id) < 0 for _ in range(100_000))
        at_work.set()
        while (waits := disk_hang.work_ns(thread.native_id)) < 0:
            pass
        assert waits > 0
    finally:
        at_work.set()
        may_end.set()
        thread.join()
    deadline_s = time.monotonic() + 60
    while disk_hang.work_ns(thread.native_id):
        # The kernel's end of it comes after the interpreter's.
        assert time.monotonic() < deadline_s
    assert disk_hang.work_ns(0) == 0
