"""Starts that are killed or made twice, and a cluster whose folder of sockets is emptied:
nothing is lost, nothing is left running.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import EMBER

pytestmark = [pytest.mark.mount, pytest.mark.slow]


def _begun(cluster):
    words = [EMBER, "up", "--dir", cluster.directory, "--mount", cluster.mount]
    words += ["--until", str(os.getpid())]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _processes(cluster):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = os.fsdecode(path.read_bytes())
        except OSError:  # it has just ended
            continue
        if str(cluster.directory) in words and "fs.app." in words:
            found.append(words)
    return found


def test_of_two_starts_at_once_one_goes_on(lone_cluster):
    (lone_cluster.mount / "f").write_bytes(b"kept")
    lone_cluster.down()
    begun = [_begun(lone_cluster) for _ in range(2)]
    said = [one.communicate(timeout=300)[1] for one in begun]
    assert sorted(one.returncode for one in begun) == [0, 1], said
    assert sum("ALREADY_RUNNING" in text for text in said) == 1, said
    assert (lone_cluster.mount / "f").read_bytes() == b"kept"


def test_a_start_that_was_killed_is_gone_on_with(own_cluster):
    (own_cluster.mount / "f").write_bytes(b"kept")
    own_cluster.down()
    for seconds in (0.6, 1.2, 2.4):
        one = _begun(own_cluster)
        time.sleep(seconds)
        one.send_signal(signal.SIGKILL)
        one.communicate(timeout=300)
    one = _begun(own_cluster)
    said = one.communicate(timeout=300)[1]
    assert one.returncode == 0 or "ALREADY_RUNNING" in said, said  # the last one had got that far
    assert (own_cluster.mount / "f").read_bytes() == b"kept"


def test_a_cluster_whose_sockets_were_removed_is_stopped(lone_cluster):
    """By who tidies temporary folders: it had been taken for one that does not run,
    and a wipe removed the files under it.
    """
    (lone_cluster.mount / "f").write_bytes(b"kept")
    shutil.rmtree(lone_cluster.directory / "run")
    refused = lone_cluster.tried("up", "--mount", lone_cluster.mount)
    assert "ALREADY_RUNNING" in refused.stderr
    assert "ember down" in refused.stderr
    assert (lone_cluster.mount / "f").read_bytes() == b"kept"
    lone_cluster.down()
    assert not _processes(lone_cluster)
    assert not os.path.ismount(lone_cluster.mount)
    lone_cluster.up()
    assert (lone_cluster.mount / "f").read_bytes() == b"kept"


def test_mounts_begun_at_once_get_in_nobodys_way(lone_cluster, tmp_path):
    """They had chosen the same name, and one was ended for another's failure."""
    (lone_cluster.mount / "f").write_bytes(b"kept")
    places = [tmp_path / name for name in ("a", "b", "c")]
    for place in places:
        place.mkdir()
    words = [EMBER, "mount", "--dir", lone_cluster.directory]
    chosen = [*places, places[0], places[0]]
    begun = [
        subprocess.Popen([*words, place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for place in chosen
    ]
    said = [one.communicate(timeout=300)[1] for one in begun]
    assert sorted(one.returncode for one in begun) == [0, 0, 0, 1, 1], said
    refused = [text for one, text in zip(begun, said, strict=True) if one.returncode]
    assert all("BAD_MOUNT_POINT" in text and "Traceback" not in text for text in refused), said
    for place in places:
        assert (place / "f").read_bytes() == b"kept"
        lone_cluster.ember("umount", place)
    assert (lone_cluster.mount / "f").read_bytes() == b"kept"
