"""PyTorch and safetensors: checkpoints that are mapped, replaced while they are,
and shared by a map.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
state = {f"layer{i}": torch.randn(256, 256) for i in range(20)}


def is_state(found: dict, added: float = 0) -> bool:
    return all(torch.equal(found[name], tensor + added) for name, tensor in state.items())


torch.save(state, HERE / "m.pt")
mapped = torch.load(OTHER / "m.pt", mmap=True, weights_only=True)
assert is_state(mapped)
torch.save({name: tensor + 1 for name, tensor in state.items()}, HERE / "m.tmp")
os.replace(HERE / "m.tmp", HERE / "m.pt")
assert is_state(mapped)
assert is_state(torch.load(OTHER / "m.pt", weights_only=True), 1)
save_file(state, HERE / "m.safetensors")
assert is_state(load_file(OTHER / "m.safetensors"))
shared = torch.from_file(str(HERE / "shared"), shared=True, size=1 << 18)
shared.fill_(3.0)
del shared
assert float(torch.from_file(str(OTHER / "shared"), shared=False, size=1 << 18).sum()) == 3 << 18
array = np.lib.format.open_memmap(HERE / "a.npy", mode="w+", dtype="f4", shape=(500, 500))
array[:] = 2
array.flush()
del array
assert np.load(OTHER / "a.npy", mmap_mode="r").sum() == 500_000
