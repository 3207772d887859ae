"""Which devices are below a disk, and whether they do anything."""

import pytest

from fs.runtime import disk_hang
from fs.runtime.disk_hang import HangJudge

MOUNTS = """\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
36 25 0:27 / /disks/a rw,noatime shared:7 - btrfs /dev/sdb rw,space_cache=v2
37 25 0:28 / /disks/b rw - zfs pool/b rw
"""


@pytest.mark.parametrize(
    ("device", "source"), [("0:27", "/dev/sdb"), ("0:28", "pool/b"), ("0:2", "")]
)
def test_what_is_below_a_file_system_without_a_device_of_its_own(device, source):
    """A flush of btrfs that took 10 s was taken for a hang: nothing said that the device was at work."""
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
