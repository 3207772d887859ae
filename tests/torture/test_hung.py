"""A disk that hangs is found, its process goes on with the others, and everything comes back."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from .test_torture import ROOT

TOOLS = ("nft", "nsenter", "losetup", "mkfs.ext4", "setpriv", "fsfreeze")
MISSING = [
    tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None
]

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, loop devices"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def test_a_disk_that_hangs_takes_no_other_with_it(tmp_path, report_figure):
    # A process of its own: it leaves the network that the other tests' mounts and children meet in.
    short = ["--rounds", "1", "--watch", "8", "--recheck", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.hung", *short, "--dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["code"] == 1, "it says that it has left a disk as it is"
    report_figure(
        f"a disk hangs: out of service after {max(told['found_s'])} s, longest write"
        f" {told['longest_write_s']} s; ended in {told['stopped_s']} s"
    )
