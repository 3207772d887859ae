"""How `ember test` runs pytest: where its files are, what stays of them,
and which environment it has.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fs.app.commands import develop


@pytest.fixture
def ran(monkeypatch):
    """The commands that were run, each of which made files; `ran.code` is how they end."""

    class Ran(list):
        code = 0

        def place(self):
            (option,) = [w for w in self[-1] if w.startswith("--basetemp=")]
            return Path(option.removeprefix("--basetemp="))

    ran = Ran()

    def run(command, _root):
        assert "PYTHONDONTWRITEBYTECODE" not in os.environ
        ran.append(command)
        ran.place().mkdir()
        return ran.code

    monkeypatch.setattr(develop, "run", run)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return ran


@pytest.mark.parametrize(
    ("code", "stays"), [(0, False), (develop.SOME_FAILED, True), (2, False), (4, False)]
)
def test_files_stay_where_tests_failed(ran, monkeypatch, tmp_path, code, stays):
    monkeypatch.setattr(develop.tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran.code = code
    assert develop.run_tests(fast=True, arguments=["-k", "chain"]) == code
    assert ran.place().exists() == stays
    assert ran.place().parent.parent == tmp_path
    assert ran[-1][-2:] == ["-k", "chain"]
    assert "not slow and not thorough and not mount" in ran[-1]


@pytest.mark.parametrize(("free_bytes", "is_in_memory"), [(8 << 30, True), (1 << 30, False)])
def test_files_are_in_memory_where_there_is_room(
    ran, monkeypatch, tmp_path, free_bytes, is_in_memory
):
    memory, usual = tmp_path / "memory", tmp_path / "usual"
    memory.mkdir()
    usual.mkdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(develop.tempfile, "tempdir", str(usual))
    monkeypatch.setattr(develop, "MEMORY_FOLDER", str(memory))
    monkeypatch.setattr(develop.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    assert develop.run_tests(fast=False, arguments=[]) == 0
    assert ran.place().parent.parent == (memory if is_in_memory else usual)
    assert "not slow" not in " ".join(ran[-1])
