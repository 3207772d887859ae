"""Whiteouts on a mount: devices (0, 0), with which overlays hide names of lower directories.

Not compared with a local file system, which may be an overlay, and refuses them then.
"""

import os
import stat
from pathlib import Path

import pytest

from .calls import Probe, renameat2, run_child

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users, which only root may"),
]

RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
USER = (65533, 65531, ())


def _rename(p: Probe) -> None:
    p.touch("a", content=b"x")
    p.mkdir("sub")
    p.t("whiteout", renameat2, "a", "b", RENAME_WHITEOUT)
    p.stat("a")
    p.t("moved", Path("b").read_text)
    p.t("of a directory", renameat2, "sub", "there", RENAME_WHITEOUT)
    p.stat("sub")
    p.t("nothing is replaced", renameat2, "b", "a", RENAME_WHITEOUT | RENAME_NOREPLACE)
    p.t("exchange", renameat2, "b", "a", RENAME_WHITEOUT | RENAME_EXCHANGE)
    p.t("listing", lambda: sorted(os.listdir(".")))
    p.t("over a whiteout", os.rename, "b", "a")
    p.t("back", Path("a").read_text)
    p.t("mknod", os.mknod, "w", stat.S_IFCHR, 0)
    p.t("another device", os.mknod, "c", stat.S_IFCHR, os.makedev(1, 3))


def test_anybody_may_leave_and_make_them(posix_place):
    posix_place.chmod(0o777)
    found = dict(map(tuple, run_child(_rename, posix_place, USER)))
    node = (oct(stat.S_IFCHR), 1, USER[0], USER[1], 0)
    expected = {
        "whiteout": None,
        "stat a": node,
        "moved": "x",
        "of a directory": None,
        "stat sub": node,
        "nothing is replaced": "EEXIST",
        "exchange": "EINVAL",
        "listing": ["a", "b", "sub", "there"],
        "over a whiteout": None,
        "back": "x",
        "mknod": None,
        "another device": "EPERM",
    }
    assert found == {label: repr(value) for label, value in expected.items()}
