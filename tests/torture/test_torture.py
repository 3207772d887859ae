"""The short form of `ember torture`, and the proof that it would notice:
broken builds must fail it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("nft", "nsenter", "losetup", "mkfs.ext4", "setpriv")
MISSING = [
    tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None
]

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, loop devices"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def torture(tmp_path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", "--dir", str(tmp_path), "--seed", "11", *options],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_random_faults_harm_nothing(tmp_path, report_figure):
    code, told = torture(tmp_path, "--count", "3", "--pause", "0.5")
    assert code == 0, told
    (longest,) = [line for line in told.splitlines() if line.startswith("pause_max_s")]
    (rounds,) = [line for line in told.splitlines() if line.startswith("faults")]
    report_figure(f"torture: {rounds}; longest pause {longest.removeprefix('pause_max_s: ')} s")


@pytest.mark.parametrize("mutant", ["resync_skipped"])
def test_a_broken_build_is_found(tmp_path, mutant):
    wanted = ("--minutes", "1", "--pause", "0.5", "--only", "kill", "wipe")
    code, told = torture(tmp_path, *wanted, "--broken", mutant)
    assert code == 1, told
    signs = ("replicas differ", "expected version", "differs: ")
    assert any(sign in told for sign in signs), told
