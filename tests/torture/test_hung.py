"""A disk that hangs is found, its process goes on with the others, and everything comes back."""

import os
import shutil

import pytest

from . import hung

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
    told = hung.run(tmp_path / "cluster", rounds=1)
    assert told["code"] == 1, "it says that it has left a disk as it is"
    report_figure(
        f"a disk hangs: out of service after {max(told['found_s'])} s, longest write"
        f" {told['longest_write_s']} s; ended in {told['stopped_s']} s"
    )
