"""HDF5: one writer and readers of a growing file (SWMR), refusal of a second writer,
files in several pieces.
"""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
READ = """
import h5py, sys
with h5py.File(sys.argv[1], "r", libver="latest", swmr=True) as file:
    print(file["x"].shape, float(file["x"][:10].sum()))
"""
WRITE = "import h5py, sys; h5py.File(sys.argv[1], 'r+')"


def by_another(code: str, path: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, path]
    return subprocess.run(command, check=False, capture_output=True, text=True)


with h5py.File(HERE / "a.h5", "w", libver="latest") as file:
    shape = {"maxshape": (None, 100, 100), "chunks": (1, 100, 100)}
    x = file.create_dataset("x", (10, 100, 100), dtype="f8", compression="gzip", **shape)
    x[:] = np.arange(100_000).reshape(10, 100, 100)
    file.swmr_mode = True
    assert by_another(READ, HERE / "a.h5").stdout == "(10, 100, 100) 4999950000.0\n"
    for i in range(10, 30):
        x.resize(i + 1, 0)
        x[i] = i
        x.flush()
    assert by_another(READ, HERE / "a.h5").stdout == "(30, 100, 100) 4999950000.0\n"
    refused = by_another(WRITE, OTHER / "a.h5")
    assert refused.returncode != 0
    assert "lock" in refused.stderr or "already open" in refused.stderr, refused.stderr
with h5py.File(OTHER / "a.h5") as file:
    assert file["x"].shape == (30, 100, 100)
    assert file["x"][29, 0, 0] == 29
with h5py.File(HERE / "part%d.h5", "w", driver="family", memb_size=1 << 20) as file:
    file["y"] = np.arange(1_000_000)
with h5py.File(OTHER / "part%d.h5", "r", driver="family", memb_size=1 << 20) as file:
    assert file["y"][999_999] == 999_999
