"""The static checks, as tests: one run and one closing line say everything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fs.app.commands.develop import c_files

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
THIS_TREE = {"PYTHONPATH": f"{ROOT}:{ROOT / 'fs/client/user'}"}
"""What programs import is looked at here, also where the environment
is that of another working tree.
"""

pytestmark = pytest.mark.timeout(1800)  # mypy without its cache on a loaded machine


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["mypy"],
        ["lint-imports"],
        ["clang-format", "--dry-run", "--Werror", *c_files(ROOT)],
    ],
    ids=["ruff", "format", "mypy", "imports", "format-c"],
)
def test_check(command):
    done = subprocess.run(
        [PROGRAMS / command[0], *command[1:]],
        cwd=ROOT,
        env=os.environ | THIS_TREE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"


def test_shell_scripts_parse():
    for script in ("ember", ".ci/run"):
        subprocess.run(["bash", "-n", ROOT / script], check=True)
