"""The simulation finds mistakes: a few quick mutants, each in a process of its own,
must be caught.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("resync_skipped", 11),
        ("acknowledge_before_successor", 11),
        ("removed_while_opened_not_kept", 1),
    ],
)
def test_a_mutant_is_caught(name, seed):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.sim.mutants",
            "--here",
            f"--first={seed}",
            "--seeds=3",
            "--seconds=8",
            name,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "caught" in done.stdout, done.stdout + done.stderr
