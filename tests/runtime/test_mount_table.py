"""The kernel's list of mounts, in which others choose names."""

import os
import subprocess
import sys

import pytest

from fs.runtime import mount_table
from fs.runtime.mount_table import Mounted, mount_at, read_mounts

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
    assert all(mount_at(f"/m/{name}").source == name for name in NAMES)


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
    assert mount_at("/m").source == "b"
    assert mount_at("/o") is None


MOUNTS_AND_LOOKS = """
import ctypes, os, sys
from fs.runtime.mount_table import mount_at
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, ctypes.c_ulong(0x4000 | 1 << 18), None) == 0
for place in sys.argv[1:]:
    name = os.path.basename(place)
    assert libc.mount(os.fsencode(name), os.fsencode(place), b"tmpfs", 0, None) == 0
    assert mount_at(place).source == name, (place, mount_at(place))
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
