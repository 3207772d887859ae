"""Samples in shards of WebDataset (tar): written by one mount, read by workers on the other."""

import sys
from pathlib import Path

import numpy as np
import webdataset
from torch.utils.data import DataLoader

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
COUNT = 300

with webdataset.ShardWriter(str(HERE / "shard-%04d.tar"), maxcount=100, verbose=0) as sink:
    for i in range(COUNT):
        sink.write({"__key__": f"{i:06d}", "npy": np.full(500, i), "cls": i % 7})
samples = webdataset.WebDataset(str(OTHER / "shard-{0000..0002}.tar"), shardshuffle=False).decode()
for _ in range(2):
    found = {int(s["npy"][0]): s["cls"] for s in DataLoader(samples, None, num_workers=2)}
    assert found == {i: i % 7 for i in range(COUNT)}
