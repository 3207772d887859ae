"""Which of the two serves."""

import os
import shutil
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from fs.kernels import choice, reads
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
    monkeypatch.setattr(choice, "import_module", lambda _name: built)
    assert serves("choice", 3)
    assert not serves("choice", 4)
    assert not serves("no_such_module", 3)

    def missing(_name):
        raise ImportError

    monkeypatch.setattr(choice, "import_module", missing)
    assert not serves("choice", 3)
    monkeypatch.setattr(choice, "import_module", lambda _name: built)
    monkeypatch.setattr(choice, "IS_WANTED", False)
    assert not serves("choice", 3)


def test_the_twins_serve_where_the_environment_says_so():
    code = "from fs.kernels.in_use import kernels_in_use; print(kernels_in_use())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "EMBER_KERNELS": "python"},
    )  # fmt: skip
    assert done.stdout == "Python\n"


def asked_of_a_copy(directory, change):
    """What a process says whose compiled reads were changed as `change` says."""
    if not reads.IS_COMPILED:
        pytest.skip("not compiled: python setup.py build_ext --inplace")
    ignored = shutil.ignore_patterns("__pycache__", "*.c", "hashing")
    copy = directory / "fs/kernels"
    shutil.copytree(ROOT / "fs/kernels", copy, ignore=ignored)
    shutil.copy(ROOT / "fs/__init__.py", directory / "fs")
    (file,) = copy.glob("_reads*.so")
    file.write_bytes(change(file.read_bytes()))
    code = "from fs.kernels.in_use import kernels_in_use; print(kernels_in_use())"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(directory)},
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("per_mille", [0, 1, 2, 20, 200, 500, 800, 860, 900, 999])
def test_a_file_that_was_cut_off_does_not_serve(tmp_path, per_mille):
    """The loader would map it, and the process would die of SIGBUS."""
    done = asked_of_a_copy(tmp_path, lambda data: data[: len(data) * per_mille // 1000])
    assert done.returncode == 0, done.returncode
    assert done.stdout.startswith(
        "batches compiled, device compiled, direct compiled, frames compiled, lent compiled,"
        " read_messages compiled, reads Python, writes compiled (_reads: "
    )
    assert done.stderr.count("\n") == 1 and "its twin in Python serves" in done.stderr


def test_a_file_whose_end_was_never_written_does_not_serve(tmp_path):
    done = asked_of_a_copy(
        tmp_path, lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    )
    assert done.returncode == 0, done.returncode
    assert done.stdout == (
        "batches compiled, device compiled, direct compiled, frames compiled, lent compiled,"
        " read_messages compiled, reads Python, writes compiled (_reads: it is cut off)\n"
    )


def test_a_whole_file_serves_without_a_word(tmp_path):
    done = asked_of_a_copy(tmp_path, lambda data: data)
    assert (done.stdout, done.stderr) == ("compiled\n", "")


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
