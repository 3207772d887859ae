"""Who owns the import name `fs`, what is packaged, and the interpreter's own conditions."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fs

ROOT = Path(__file__).resolve().parent.parent
LOCKS = [
    "requirements-build.lock",
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-torch.lock",
]


def test_fs_is_ours():
    """PyFilesystem2 installs a package of the same name; both in one environment break each other."""
    assert fs.__file__ is not None
    folder = Path(fs.__file__).parent
    assert (folder / "schema").is_dir(), f"{folder} is not EmberFS: uninstall PyFilesystem2 ('fs')"
    owners = set(importlib.metadata.packages_distributions().get("fs", []))
    assert owners <= {"emberfs"}, f"{owners} all install 'fs': uninstall the others"


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_by_hash_and_name_no_registry(lock):
    text = (ROOT / lock).read_text()
    assert not re.search(r"https?:|file:/|--index|--find-links|--trusted|/home/|/tmp/", text)
    pins = re.findall(r"^([a-z0-9_.-]+)==", text, re.MULTILINE | re.IGNORECASE)
    assert pins
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            assert re.match(r"^[A-Za-z0-9_.\-\[\]]+==\S+ .*\\$", line), line
    assert text.count("--hash=sha256:") >= len(pins)


def test_development_runs_on_the_very_packages_that_users_get():
    def pins(lock):
        return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))

    run_time, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {name: dev.get(name) for name in run_time} == run_time


def test_assertions_are_never_switched_off():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "fs.app.main", "version"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("ember: BAD_CONFIG")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_starts_quickly():
    """Heavy imports belong into the commands that need them."""
    code = (
        "import sys, fs.app.main; print([m for m in ('trio', 'grpc', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
