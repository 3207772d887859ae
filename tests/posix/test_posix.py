"""The mount against the local file system: the same calls must have the same outcomes.

Both sides run every check of the table, as root and as other users.  What a mount cannot do is left
out of the checks and stands in specs/semantics.md.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from . import acl, allocation, births, copies, data, handles, names, paths, rights  # noqa: F401 - they fill the table
from .calls import CHECKS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users, which only root may"),
]


@pytest.fixture(scope="module")
def noted():
    """Return a function that runs a check in a directory and returns what it notes.

    Checks fork, often for each user that they become.  A worker has loaded what all tests need: a
    fork of it takes ten times as long as one of a process that knows the checks alone.
    """
    command = [sys.executable, "-m", "tests.posix"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:

        def ask(name, directory):
            process.stdin.write(json.dumps([name, str(directory)]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, f"{name} in {directory} ended in another way than by its notes"
            return json.loads(answer)

        yield ask


@pytest.fixture
def local():
    made = Path(tempfile.mkdtemp(prefix="ember-posix-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", CHECKS)
def test_same_as_local(name, local, posix_place, noted):
    for directory in (local, posix_place):
        directory.chmod(0o755)
    expected = noted(name, local)
    found = noted(name, posix_place)
    assert len(expected) > 1
    differences = [
        f"{e[0]}: local {e[1]}, mount {f[1]}"
        for e, f in zip(expected, found, strict=True)
        if e != f
    ]
    assert not differences, "\n" + "\n".join(differences)
