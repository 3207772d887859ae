"""What `./ember` itself says, before there is anything to run."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "ember"
NOBODY = 65534


@pytest.fixture
def tree_of_another():
    """A checkout in which this user, or nobody in root's place, may not write."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(SCRIPT, name)
        Path(name).chmod(0o555)
        yield Path(name)
        Path(name).chmod(0o755)


def test_an_interpreter_that_was_asked_for_and_is_none_is_told(tmp_path):
    """Another one was taken without a word."""
    shutil.copy(SCRIPT, tmp_path)
    done = subprocess.run(
        [tmp_path / "ember", "version"],
        capture_output=True, text=True, check=False, timeout=60,
        env=os.environ | {"EMBER_PYTHON": "/nope/python3"},
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("ember: EMBER_PYTHON=/nope/python3: no Python 3.11")
    assert not (tmp_path / ".venv").exists()


def test_a_tree_of_another_user_is_told_with_the_remedy(tree_of_another):
    """Was a line of bash's, and a hint at a log that could not be made."""
    user = NOBODY if os.geteuid() == 0 else None
    done = subprocess.run(
        [tree_of_another / "ember", "status"],
        capture_output=True, text=True, check=False, timeout=60, user=user, cwd="/",
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("ember: ") and str(tree_of_another) in line
    assert line.endswith("once as its owner")
