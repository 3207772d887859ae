"""The empty pyfuse3 file system: the kernel asks it for what it asks our mount for,
however deep the directory; what is measured in turn.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyfuse3
import pytest

from benchmarks import meta, mount
from benchmarks.empty_fuse import EmptyFs
from benchmarks.mount import empty_mount
from fs.app.commands.develop import checkout
from fs.schema.config import ClientSection
from tests.client.fuse.test_round_trips import create, open_and_close, stated, write_small

NOT_ASKED = {"IOCTL", "GETXATTR"}
"""Refused by libfuse itself; refused once."""
SERVER = """
import inspect, sys
from benchmarks.empty_fuse import EmptyFs, serve
from fs.schema.config import ClientSection

class Telling(EmptyFs):
    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if inspect.iscoroutinefunction(found):
            print(name, flush=True)
        return found

serve(Telling(ClientSection(attr_timeout_s=600, dir_entry_timeout_s=600)), sys.argv[1])
"""
needs_fuse = pytest.mark.skipif(
    not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse"
)


def test_it_lets_the_kernel_keep_what_our_mount_lets_it_keep():
    empty, usual = EmptyFs(), ClientSection()
    directory = empty.attributes(pyfuse3.ROOT_INODE)
    file = empty.attributes(empty.new_name(pyfuse3.ROOT_INODE, b"file"))
    assert directory.entry_timeout == usual.dir_entry_timeout_s == 1.0
    assert file.entry_timeout == usual.entry_timeout_s == 0.0
    assert directory.attr_timeout == file.attr_timeout == usual.attr_timeout_s == 1.0


@pytest.fixture
def asked(tmp_path):
    """Yield where it is mounted, and what returns the requests
    that an action makes the kernel send.
    """
    command = [sys.executable, "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=checkout(), stdout=subprocess.PIPE, text=True) as process:
        mount._wait_mounted(str(tmp_path))

        def requests():
            found = []
            # Requests come in their order: behind this one none of before is left.
            with pytest.raises(OSError, match="not implemented"):
                os.statvfs(tmp_path)
            while (name := process.stdout.readline().strip()) != "statfs":
                assert name, "the server is gone"
                found.append(name.upper())
            return [name for name in found if name != "FORGET"]

        def of(action, *arguments):
            requests()
            action(*arguments)
            return requests()

        try:
            yield tmp_path, of
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.mount
@needs_fuse
def test_the_kernel_asks_it_for_what_it_asks_our_mount_for(asked, depth):
    mounted, requests_of = asked
    folder = mounted.joinpath(*map(str, range(depth)))
    for path in (*reversed(folder.parents[: depth - 1]), folder):
        path.mkdir()
    create(folder / "before")
    actions = {
        "create, close": (create, folder / "f"),
        "stat": (os.stat, folder / "f"),
        "open, close": (open_and_close, folder / "f"),
        "rename": (os.rename, folder / "f", folder / "g"),
        "unlink": (os.unlink, folder / "g"),
        "mkdir": (os.mkdir, folder / "d"),
        "new file of 64 KiB, close": (write_small, folder / "w"),
    }
    requests_of(write_small, folder / "asked for attributes")
    ours = stated()
    for number, (name, (action, *arguments)) in enumerate(actions.items()):
        wanted = [request for request in ours[name][0] if request not in NOT_ASKED]
        assert (name, requests_of(action, *arguments)) == (name, wanted)
        create(folder / f"again-{number}")  # the kernel forgets what it knew of the directory


@pytest.mark.mount
@needs_fuse
def test_it_is_read_ahead_as_our_mount_is():
    with empty_mount() as mounted:
        device = mounted.stat().st_dev
        place = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        wanted = ClientSection().kernel_readahead_bytes // 1024
        assert os.geteuid() or int(place.read_text()) == wanted


def test_names_are_measured_in_turn_and_each_place_is_first_in_half(tmp_path, monkeypatch):
    places = [[tmp_path / place / str(thread) for thread in range(2)] for place in "ab"]
    steps, clock = [], iter(range(0, 1000, 2))
    monkeypatch.setattr(meta, "drop_page_cache", lambda: steps.append("dropped"))
    monkeypatch.setattr(meta.time, "perf_counter", partial(next, clock))

    def act(path):
        steps.append((path.parent.parent.name, path.name))

    assert meta.PARTS == 4
    assert meta.in_turn(places, 8, act, is_cold=True) == [8 / 8, 8 / 8]
    told = " ".join(step if step == "dropped" else step[0] for step in steps)
    parts = [part.strip() for part in told.split("dropped")]
    assert parts == ["", *["a a", "b b", "b b", "a a"] * 2]
    assert sorted(step for step in steps if step != "dropped") == sorted(
        (place, f"f{number}") for place in "ab" for number in range(4) for _ in range(2)
    )
