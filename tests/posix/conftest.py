"""Where the checks run: a cluster of their own, or the directory named by EMBER_POSIX_DIR."""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

EMBER = Path(sys.executable).parent / "ember"


@pytest.fixture(scope="session")
def posix_mount(tmp_path_factory, until_last_use):
    given = os.environ.get("EMBER_POSIX_DIR")
    if given:
        return Path(given)
    return until_last_use.enter_context(_mounted(tmp_path_factory.mktemp("posix")))


@contextmanager
def _mounted(base):
    mount = base / "mnt"
    mount.mkdir()
    place = ("--dir", base / "data")
    try:
        until = ("--until", str(os.getpid()))  # no mount is left behind by a killed run
        subprocess.run([EMBER, "up", *place, "--mount", mount, *until], check=True, timeout=120)
        yield mount
    finally:
        subprocess.run([EMBER, "down", *place, "--wipe"], check=False, timeout=120)


@pytest.fixture
def posix_place(posix_mount):
    """A fresh directory on the mount."""
    made = Path(tempfile.mkdtemp(dir=posix_mount))
    yield made
    shutil.rmtree(made)
