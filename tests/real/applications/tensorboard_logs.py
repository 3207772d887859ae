"""Logs of TensorBoard: written by one mount without a sync,
followed by the other while they grow.
"""

import sys
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
PATIENCE_S = 60

with SummaryWriter(str(HERE / "run"), flush_secs=1) as writer:
    writer.add_scalar("loss", 0.0, 0)
    writer.flush()
    reader = EventAccumulator(str(OTHER / "run"))
    for step in range(1, 60):
        writer.add_scalar("loss", 1 / step, step)
        writer.add_text("note", f"step {step} " * 50, step)
        if step % 20 == 0:
            writer.flush()
            end = time.monotonic() + PATIENCE_S
            while "loss" not in reader.Tags()["scalars"] or reader.Scalars("loss")[-1].step < step:
                assert time.monotonic() < end, f"step {step} is not to be seen"
                time.sleep(0.2)
                reader.Reload()
            assert [e.step for e in reader.Scalars("loss")] == list(range(step + 1))
reader.Reload()
assert [e.step for e in reader.Scalars("loss")] == list(range(60))
assert len(EventAccumulator(str(OTHER / "run")).Reload().Tags()["tensors"]) == 1
