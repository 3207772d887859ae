"""What each system call costs: requests of the kernel, and calls of meta;
the table in specs/measurements/names.md, checked.
"""

import json
import os
import re
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from tests.client.fuse.test_mount import Server

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse"),
]
SPEC = Path(__file__).parents[3] / "specs" / "measurements" / "names.md"
BY_ITSELF = {"StatFs", "PruneSessions", "NoteReads"}
"""Calls that no system call waits for: one every few seconds;
one for all files closed, or read for the first time, within a moment.
"""


RIGHTS = struct.pack("<IHHIHHIHHI", 2, 1, 6, 2**32 - 1, 4, 4, 2**32 - 1, 32, 4, 2**32 - 1)
"""Those of mode 644."""


class Counter:
    def __init__(self, server):
        self.process = server.process
        self.mnt = server.mount_point

    def _take(self):
        # Requests are received in their order: behind this one none of before is left.
        os.statvfs(self.mnt)
        self.process.send_signal(signal.SIGUSR1)
        return json.loads(self.process.stdout.readline())

    def of(self, action, *arguments):
        """Return what an action makes the kernel and the mount ask for."""
        self._take()
        action(*arguments)
        taken = self._take()
        kernel = [name for name in taken["kernel"] if name not in {"STATFS", "FORGET"}]
        assert "STATFS" in taken["kernel"]
        return kernel, [name for name in taken["meta"] if name not in BY_ITSELF]


@pytest.fixture
def counter(tmp_path, monkeypatch):
    (tmp_path / "mnt").mkdir()
    # Attributes and leases must not grow old while the test is counting.
    monkeypatch.setenv("NAME_LEASE_S", "600")
    server = Server(tmp_path / "mnt", "attr_timeout_s=600", "dir_entry_timeout_s=600")
    assert server.first_line == "ready"
    yield Counter(server)
    server.close()


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def open_and_close(path):
    os.close(os.open(path, os.O_RDONLY))


def write_small(path):
    path.write_bytes(bytes(65_536))


def write_as_git(path):
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(descriptor, b"checked out")
    os.fstat(descriptor)
    os.close(descriptor)


def write_as_tar(path):
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(descriptor, b"unpacked")
    os.utime(descriptor, ns=(1, 1))
    os.fchown(descriptor, os.getuid(), os.getgid())
    os.fchmod(descriptor, 0o644)
    os.close(descriptor)


def write_as_cp(path):
    """As `cp -a` does: rights are set by an access control list that says no more than a mode."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.fstat(descriptor)
    os.write(descriptor, b"copied")
    os.utime(descriptor, ns=(1, 1))
    os.setxattr(descriptor, "system.posix_acl_access", RIGHTS)
    os.close(descriptor)


def sync_again(path):
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def list_with_attributes(path):
    with os.scandir(path) as entries:
        assert [entry.stat(follow_symlinks=False).st_mode for entry in entries]


def list_as_ls(path):
    """What `ls -l` of GNU coreutils 9.1 asks for:
    of each file a label, and whether there is an access control list.
    """
    with os.scandir(path) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
            for name in ("security.selinux", "system.posix_acl_access"):
                with pytest.raises(OSError, match="No data"):
                    os.getxattr(entry.path, name, follow_symlinks=False)


def ask_when_made(*paths):
    """What `stat` of GNU coreutils asks for, and of what comes by itself."""
    found = subprocess.run(["stat", "-c", "%W", *paths], check=True, capture_output=True)
    assert all(int(made_s) > 0 for made_s in found.stdout.split())


def measured(counter):
    """Return the rows: system call, requests of the kernel, calls of meta;
    each in a directory of the mount that just changed.
    """
    d = counter.mnt / "d"
    d.mkdir()
    create(d / "before")
    actions = [
        ("create, close", create, d / "f"),
        ("stat", os.stat, d / "f"),
        ("open, close", open_and_close, d / "f"),
        ("rename", os.rename, d / "f", d / "g"),
        ("link", os.link, d / "g", d / "h"),
        ("unlink", os.unlink, d / "h"),
        ("mkdir", os.mkdir, d / "e"),
        ("rmdir", os.rmdir, d / "e"),
        ("symlink", os.symlink, "there", d / "s"),
        ("readlink", os.readlink, d / "s"),
        ("new file of 64 KiB, close", write_small, d / "w"),
        ("file of 64 KiB read, close", Path.read_bytes, d / "w"),
        ("new file as of git, close", write_as_git, d / "git"),
        ("new file as of tar, close", write_as_tar, d / "tar"),
        ("new file as of `cp -a`, close", write_as_cp, d / "cp"),
        ("fsync of a closed file", sync_again, d / "cp"),
        ("chmod", os.chmod, d / "w", 0o600),
        ("listing with attributes", list_with_attributes, d),
    ]
    looked_at = counter.mnt / "looked" / "at"
    looked_at.parent.mkdir()
    create(looked_at)
    two = counter.mnt / "two"
    two.mkdir()
    create(two / "a")
    create(two / "b")
    actions.append(("`ls -l` of two files", list_as_ls, two))
    paths = two / "a", two / "b"
    actions.append(("`stat -c %W` of two files, after that", ask_when_made, *paths))
    rows = {}
    for name, action, *arguments in actions:
        rows[name] = counter.of(action, *arguments)
        # The kernel forgets what it knew of the directory.
        counter.of(create, d / f"again-{len(rows)}")
        for _ in range(3):  # the mount does not expect the next look-up to be for a removal
            os.stat(looked_at)
    return rows | measured_of_many(counter)


def measured_of_many(counter):
    """Return rows of what a thread does again and again, once the mount expects it of it."""
    d = counter.mnt / "many"
    d.mkdir()
    names = [str(number) for number in range(5)]
    for name in names:
        write_small(d / name)
    rows = {}
    for name in names:
        rows["rename, one of many"] = counter.of(os.rename, d / name, d / f"new-{name}")
    for name in names:
        create(d / name)
    for name in names:
        rows["rename onto a file, one of many"] = counter.of(os.rename, d / f"new-{name}", d / name)
    for name in names[:4]:
        rows["unlink, one of many"] = counter.of(os.unlink, d / name)
    rows["stat, unexpected"] = counter.of(os.stat, d / names[4])
    return rows


def stated():
    """Return the same from the table of the specification."""
    rows = {}
    for line in SPEC.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(
            r"\| ([^|]+) \| \d+: ([A-Z, 0-9+]+) \| \d+(?:: ([A-Za-z, ]+))? \|.*\|", line
        )
        if found:
            name, kernel, meta = found.groups()
            rows[name] = kernel.split(", "), meta.split(", ") if meta else []
    return rows


def test_each_system_call_costs_what_the_specification_says(counter):
    rows = measured(counter)
    expected = stated()
    assert {name: rows[name] for name in rows} == expected


def touch_storage(counter, action, *arguments):
    """Return what an action asks of meta, and how often storage had been asked for anything
    before and after it.
    """
    before = counter._take()["storage"]
    action(*arguments)
    taken = counter._take()
    return [name for name in taken["meta"] if name not in BY_ITSELF], taken["storage"] - before


@pytest.mark.parametrize(
    ("act", "asked"),
    [
        (write_small, ["Lookup", "Create", "Sync"]),
        (write_as_git, ["Lookup", "Create", "Sync"]),
        (write_as_tar, ["Lookup", "Create", "Sync"]),
        (write_as_cp, ["Lookup", "Create", "Sync"]),
    ],
)
def test_inline_files_ask_nothing_of_storage(counter, monkeypatch, tmp_path, act, asked):
    (tmp_path / "inline").mkdir()
    monkeypatch.setenv("INLINE_BYTES_MAX", "65536")
    server = Server(tmp_path / "inline", "attr_timeout_s=600", "dir_entry_timeout_s=600")
    assert server.first_line == "ready"
    other = Counter(server)
    try:
        path = other.mnt / "f"
        found = touch_storage(other, act, path)
        assert (sorted(found[0]), found[1]) == (sorted(asked), 0)
        written = path.read_bytes()
        assert touch_storage(other, Path.read_bytes, path) == (["Lookup", "Open"], 0)
        assert counter.of(act, counter.mnt / "f")[1] == asked, "as without"
        assert written == (counter.mnt / "f").read_bytes()
        assert touch_storage(other, sync_again, path) == (["Lookup", "Open", "Sync"], 0)
    finally:
        server.close()
