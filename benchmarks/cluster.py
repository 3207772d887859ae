"""A fresh cluster of real processes for a benchmark, wiped afterwards."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def ember(*arguments: str) -> None:
    """Run an `ember` command with this python; its words are shown only if it fails."""
    command = [sys.executable, "-m", "fs.app.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"ember {' '.join(arguments)}: {done.stdout}{done.stderr}")


@contextmanager
def fresh_cluster(parent: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """Bring up three storage processes and a mount; yield (cluster directory, mount point).

    Args:
        parent: on the disk to measure; default: the temporary directory.
    """
    with tempfile.TemporaryDirectory(prefix="ember-bench-", dir=parent) as folder:
        directory, mount_point = Path(folder) / "cluster", Path(folder) / "mnt"
        mount_point.mkdir()
        ember("up", "--dir", str(directory), "--mount", str(mount_point))
        try:
            yield directory, mount_point
        finally:
            ember("down", "--dir", str(directory), "--wipe")
