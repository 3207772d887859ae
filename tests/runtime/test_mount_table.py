"""The kernel's list of mounts, in which others choose names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fs.runtime import mount_table
from fs.runtime.mount_table import (
    Mounted,
    awaited_mount,
    is_same_place,
    mount_at,
    read_mounts,
    real_place,
)

NAMES = (
    "plain",
    "a b",
    "a\tb",
    "a\nb",
    "a\\b",
    "a\\040b",
    "#",
    "\r",
    "\x0b\x0c\x1c\x85",
    "\u3000\u00a0\u2028",
    "é☃😀",
    "\udcff\udcfe",
)
"""Of which Unicode takes many for blanks and for ends of lines; the last one is no UTF-8."""


def test_names_of_any_kind_are_read(tmp_path, monkeypatch):
    table = tmp_path / "mounts"
    text = b"".join(
        b"%b /m/%b fuse.ember rw,user_id=7 0 0\n" % (escaped(name, b"#"), escaped(name))
        for name in NAMES
    )
    table.write_bytes(b"proc /proc proc rw 0 0\n" + text)
    monkeypatch.setattr(mount_table, "TABLE", table)
    options = "rw", "user_id=7"
    expected = [Mounted(name, f"/m/{name}", "fuse.ember", options) for name in NAMES]
    assert read_mounts() == [Mounted("proc", "/proc", "proc", ("rw",)), *expected]
    assert all(mount_at(Path(f"/m/{name}")).source == name for name in NAMES)


def escaped(name, more=b""):
    """As the kernel does it (`mangle`)."""
    special = b" \t\n\\" + more
    return b"".join(
        b"\\%03o" % byte if byte in special else bytes([byte]) for byte in os.fsencode(name)
    )


def test_the_uppermost_mount_counts(tmp_path, monkeypatch):
    table = tmp_path / "mounts"
    table.write_text("a /m autofs rw 0 0\nb /m tmpfs rw 0 0\nc /n tmpfs rw 0 0\n")
    monkeypatch.setattr(mount_table, "TABLE", table)
    assert mount_at(Path("/m")).source == "b"
    assert mount_at(Path("/o")) is None


@pytest.mark.parametrize(
    ("given", "real"),
    [
        ("real/m", "real/m"),
        ("link/m", "real/m"),
        ("link/none", "real/none"),
        ("none/m", "none/m"),
        ("last", "real/m"),
        ("link/../last", "real/m"),
        ("real/m/..", "real"),
        ("link", "real"),
        ("loop", "loop"),
    ],
)
def test_a_place_without_links(tmp_path, given, real, monkeypatch):
    """As the list of mounts has it.  A daemon that came back looked for what the one before had
    left by the other name, and mounted never again.
    """
    (tmp_path / "real/m").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "last").symlink_to(tmp_path / "link/m")
    (tmp_path / "loop").symlink_to("loop")
    assert real_place(tmp_path / given) == tmp_path / real
    monkeypatch.chdir(tmp_path)
    assert real_place(Path(given)) == tmp_path / real
    assert is_same_place(str(tmp_path / "link/m"), tmp_path / "real/m")
    assert not is_same_place(str(tmp_path / "link/n"), tmp_path / "real/m")
    assert not is_same_place("", tmp_path)


MOUNTS_AND_LOOKS = """
import ctypes, os, sys
from pathlib import Path
from fs.runtime.mount_table import mount_at
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, ctypes.c_ulong(0x4000 | 1 << 18), None) == 0
for place in sys.argv[1:]:
    name = os.path.basename(place)
    assert libc.mount(os.fsencode(name), os.fsencode(place), b"tmpfs", 0, None) == 0
    assert mount_at(Path(place)).source == name, (place, mount_at(Path(place)))
"""


@pytest.mark.mount
@pytest.mark.skipif(os.geteuid() != 0, reason="root mounts, out of sight of others")
def test_the_kernel_writes_it_so(tmp_path):
    places = [tmp_path / name for name in NAMES]
    for place in places:
        place.mkdir()
    command = [sys.executable, "-c", MOUNTS_AND_LOOKS, *map(os.fsencode, places)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("directory", "mounted", "awaited"),
    [
        ("/data/disk1", ["/"], "/data/disk1"),
        ("/data/disk1", ["/", "/data/disk1"], None),
        ("/data/disk1/ember", ["/"], "/data/disk1"),
        ("/data/disk1/ember", ["/", "/data/disk1"], None),
        ("/data/disk1", ["/", "/data"], "/data/disk1"),  # the deepest one counts
        ("/data/disk1/ember", ["/", "/data/disk1/ember"], None),  # by other means than the table
        ("/data/a disk", ["/"], "/data/a disk"),
        ("/data/disk11", ["/"], None),
        ("/data", ["/"], None),
        ("/old", ["/"], None),
        ("/var/lib/emberfs", ["/"], None),
    ],
)
def test_a_file_system_that_is_to_be_there_is_awaited(
    tmp_path, monkeypatch, directory, mounted, awaited
):
    planned, table = tmp_path / "fstab", tmp_path / "mounts"
    planned.write_text(
        "# /dev/vdz /old ext4 defaults 0 2\n\n"
        "UUID=1 / ext4 errors=remount-ro 0 1\n"
        "UUID=2 none swap sw 0 0\n"
        "  UUID=3\t/data/disk1/ ext4 defaults,nofail 0 2\n"
        "UUID=4 /data/a\\040disk xfs noauto 0 2\n"
    )
    table.write_text("".join(f"x {place} ext4 rw 0 0\n" for place in mounted))
    monkeypatch.setattr(mount_table, "PLANNED", planned)
    monkeypatch.setattr(mount_table, "TABLE", table)
    assert awaited_mount(Path(directory)) == awaited


def test_without_a_table_nothing_is_awaited(tmp_path, monkeypatch):
    monkeypatch.setattr(mount_table, "PLANNED", tmp_path / "fstab")
    assert awaited_mount(tmp_path) is None
