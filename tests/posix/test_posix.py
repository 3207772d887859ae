"""The mount against the local file system: the same calls must have the same outcomes.

Both sides run every check of the table, as root and as other users.  What a mount cannot do is left
out of the checks and stands in specs/semantics.md.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from . import acl, allocation, births, copies, data, handles, names, paths, rights  # noqa: F401 - they fill the table
from .calls import CHECKS, run_child

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users, which only root may"),
]


@pytest.fixture
def local():
    made = Path(tempfile.mkdtemp(prefix="ember-posix-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", CHECKS)
def test_same_as_local(name, local, posix_place):
    for directory in (local, posix_place):
        directory.chmod(0o755)
    expected = run_child(CHECKS[name], local)
    found = run_child(CHECKS[name], posix_place)
    assert len(expected) > 1
    differences = [
        f"{e[0]}: local {e[1]}, mount {f[1]}"
        for e, f in zip(expected, found, strict=True)
        if e != f
    ]
    assert not differences, "\n" + "\n".join(differences)
