"""Trains a small network on several ranks from a data set on EmberFS,
and survives being killed at any moment.

    torchrun --nproc-per-node 2 train.py --dir /mnt/ember/run --steps 200

makes the data set if it is not there, goes on from the newest checkpoint, saves every
`--every` steps, and prints at the end a checksum of all that training has made: the same
however often it was killed on the way.

Shows: `emberfs.torch.datasets`, `emberfs.torch.loader`,
`emberfs.torch.checkpoint`, `emberfs.publish`.
"""

import argparse
import os
import random
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from emberfs.ffrecord import RecordWriter
from emberfs.publish import CheckpointFolder
from emberfs.torch.checkpoint import CheckpointReader, CheckpointWriter
from emberfs.torch.datasets import RecordDataset
from emberfs.torch.loader import BlockSampler, ResumableLoader
from emberfs.torch.memory import bytes_of, stack_neighbours
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from xxhash import xxh3_64

FEATURES = 16
SAMPLES = 400
BATCH = 8


def make_data(path: Path) -> None:
    """Write points and whether they lie within a ball:
    16 coordinates and the answer, as 17 floats.
    """
    source = random.Random(1)  # noqa: S311 - not a secret
    with RecordWriter(path, SAMPLES) as writer:
        for _ in range(SAMPLES):
            point = [source.gauss(0, 1) for _ in range(FEATURES)]
            inside = sum(x * x for x in point) < FEATURES
            writer.write(struct.pack(f"<{FEATURES + 1}f", *point, inside))


def decode(sample: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a sample."""
    return sample.view(torch.float32)


class Training:
    """All that a checkpoint holds: model, optimizer, position in the data."""

    def __init__(self, data: Path, workers: int) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        dataset = RecordDataset(data, decode)
        self.loader = ResumableLoader(
            dataset,
            batch_sampler=BlockSampler(len(dataset), BATCH, block=4, window=8),
            num_workers=workers,
            collate_fn=stack_neighbours,
        )
        self.step = 0

    def batches(self) -> Iterator[torch.Tensor]:
        """Yield batches, epoch after epoch."""
        while True:
            yield from self.loader

    def train(self, batch: torch.Tensor) -> float:
        """Do one step; return the loss."""
        points, answers = batch[:, :FEATURES], batch[:, FEATURES:]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(points), answers)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def state(self) -> dict[str, object]:
        """Return what to save."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "loader": self.loader.state_dict(),
            "step": self.step,
        }

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = self.state()
        dcp.load(state, storage_reader=CheckpointReader(path))
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.loader.load_state_dict(state["loader"])
        self.step = state["step"]

    def checksum(self) -> str:
        """Return a sum over model and optimizer: equal only if every bit is."""
        total = xxh3_64()
        tensors = list(self.model.state_dict().values())
        for parameter in self.model.parameters():
            tensors += [self.optimizer.state[parameter][name] for name in ("exp_avg", "exp_avg_sq")]
        for tensor in tensors:
            total.update(bytes_of(tensor.detach().contiguous()))
        return total.hexdigest()


def run(options: argparse.Namespace) -> None:
    """Train to the end."""
    rank = distributed.get_rank()
    data = options.dir / "data.ffr"
    if rank == 0 and not data.exists():
        options.dir.mkdir(parents=True, exist_ok=True)
        make_data(data)
    distributed.barrier()
    checkpoints = CheckpointFolder(options.dir / "checkpoints")
    training = Training(data, options.workers)
    found = checkpoints.latest()
    if found is not None:
        training.restore(checkpoints.path(found))
        print(f"rank {rank}: goes on after step {found}", flush=True)
    loss = 0.0
    for batch in training.batches():
        if training.step == options.steps:
            break
        loss = training.train(batch)
        if training.step % options.every == 0:
            writer = CheckpointWriter(checkpoints.path(training.step))
            dcp.save(training.state(), storage_writer=writer)
            if rank == 0:
                checkpoints.prune()
        if training.step == options.kill_at and found is None:
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"rank {rank}: step {training.step} loss {loss:.4f} checksum {training.checksum()}")


def main() -> None:
    """Read the options, join the other ranks, train."""
    parser = argparse.ArgumentParser(description="Train a small network, resumably.")
    parser.add_argument("--dir", type=Path, required=True, help="where data and checkpoints lie")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--workers", type=int, default=2, help="of the data loader")
    parser.add_argument("--kill-at", type=int, help="die at this step, if this is the first run")
    parser.add_argument("--init", default="env://", help="where ranks meet; torchrun sets it up")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order, on every machine
    distributed.init_process_group(
        "gloo",
        init_method=options.init,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    try:
        run(options)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
