"""A fresh cluster of real processes for a benchmark, wiped afterwards."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def ember(*arguments: str) -> str:
    """Run an `ember` command with this python and return what it printed; its words are shown if it fails."""
    command = [sys.executable, "-m", "fs.app.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"ember {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def fresh_cluster(parent: Path | None = None, *options: str) -> Iterator[tuple[Path, Path]]:
    """Bring up a cluster and a mount, gone when we are; yield (cluster directory, mount point).

    Args:
        parent: on the disk to measure; default: the temporary directory.
        options: more of `ember up`; without: three storage processes.
    """
    with tempfile.TemporaryDirectory(prefix="ember-bench-", dir=parent) as folder:
        directory, mount_point = Path(folder) / "cluster", Path(folder) / "mnt"
        mount_point.mkdir()
        place = ("--dir", str(directory), "--mount", str(mount_point))
        ember("up", *place, "--until", str(os.getpid()), *options)
        try:
            yield directory, mount_point
        finally:
            ember("down", "--dir", str(directory), "--wipe")
