"""Row H1, live, in its short form: histories under kills are linearizable,
and those of a broken build are not.
"""

import subprocess
import sys

from .test_torture import ROOT, pytestmark

__all__ = ["pytestmark"]


def histories(*options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.histories", *options],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_histories_under_kills_are_linearizable():
    code, told = histories("--count", "1")
    assert code == 0, told
    assert "1 linearizable" in told and " 0 kills" not in told, told


def test_histories_of_a_broken_build_are_not():
    code, told = histories(
        "--count", "60", "--at-once", "6", "--no-kills", "--broken", "tail_not_asked"
    )
    assert code == 1, told
    assert "is not linearizable" in told, told
