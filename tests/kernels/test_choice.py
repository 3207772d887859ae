"""Which of the two serves."""

import os
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from fs.kernels import choice
from fs.kernels.choice import fits, serves

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "fs/kernels").rglob("*.c"))
INCLUDES = sysconfig.get_paths()["include"]


def test_a_module_of_another_interface_is_not_used():
    module = types.ModuleType("old")
    assert not fits(module, 1)
    module.INTERFACE = 1
    assert fits(module, 1)
    assert not fits(module, 2)


def test_a_module_that_is_missing_or_not_wanted_does_not_serve(monkeypatch):
    built = types.ModuleType("built")
    built.INTERFACE = 3

    def missing():
        raise ImportError

    assert serves(lambda: built, 3)
    assert not serves(lambda: built, 4)
    assert not serves(missing, 3)
    monkeypatch.setattr(choice, "IS_WANTED", False)
    assert not serves(lambda: built, 3)


def test_the_twins_serve_where_the_environment_says_so():
    code = "from fs.kernels.in_use import kernels_in_use; print(kernels_in_use())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "EMBER_KERNELS": "python"},
    )  # fmt: skip
    assert done.stdout == "Python\n"


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=[path.stem for path in SOURCES])
def test_the_compiler_has_nothing_to_say(source, tmp_path):
    """Warnings are errors here, but not where users build."""
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-DPy_LIMITED_API=0x030b0000"]
    done = subprocess.run(
        [*command, f"-I{INCLUDES}", "-c", source, "-o", tmp_path / "out.o"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
