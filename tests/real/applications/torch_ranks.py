"""PyTorch's ranks on both mounts: they meet in a file that they lock,
and write one checkpoint together.
"""

import subprocess
import sys
from pathlib import Path

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
RANK = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
side, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{side}/meet", rank=rank, world_size=2)
for step in range(2):
    state = {f"r{rank}": torch.full((300, 300), rank + step + 1.0), "step": step}
    dcp.async_save(state, checkpoint_id=f"{side}/step-{step}").result()
    dist.barrier()
    back = {f"r{1 - rank}": torch.zeros(300, 300), "step": None}
    dcp.load(back, checkpoint_id=f"{side}/step-{step}")
    assert back["step"] == step
    assert (back[f"r{1 - rank}"] == 2 - rank + step).all()
store = dist.FileStore(side + "/store", 2)
total = [store.add("n", 1) for _ in range(50)][-1]
dist.barrier()
assert store.add("n", 0) == 100
dist.barrier()
dist.destroy_process_group()
"""

ranks = [
    subprocess.Popen([sys.executable, "-c", RANK, side, str(rank)])
    for rank, side in enumerate((HERE, OTHER))
]
assert [rank.wait(600) for rank in ranks] == [0, 0]
