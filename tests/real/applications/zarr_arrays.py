"""Zarr: many small files, shards of them, and a zip file;
removed at the end, so that no name is left behind.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import zarr

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
numbers = np.arange(40_000).reshape(200, 200)
group = zarr.open_group(HERE / "g.zarr", mode="w")
group.create_array("a", shape=(200, 200), chunks=(50, 50), dtype="f4")[:] = numbers
sharded = group.create_array("b", shape=(200, 200), chunks=(20, 20), shards=(100, 100), dtype="i4")
sharded[:] = 7
sharded[10:30, 10:30] = 9
seen = zarr.open_group(OTHER / "g.zarr", mode="r")
assert (seen["a"][:] == numbers).all()
assert seen["b"][15, 15] == 9
assert seen["b"][100, 100] == 7
store = zarr.storage.ZipStore(HERE / "z.zip", mode="w")
zarr.create_array(store, shape=(100,), chunks=(10,), dtype="i4")[:] = 3
store.close()
assert (zarr.open_array(zarr.storage.ZipStore(OTHER / "z.zip", mode="r"))[:] == 3).all()
shutil.rmtree(HERE / "g.zarr")
assert not (HERE / "g.zarr").exists()
