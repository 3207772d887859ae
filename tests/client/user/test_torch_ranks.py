"""Several ranks: checkpoints of shards, and the example that trains,
is killed and ends with the very same bits.

On a mount: `pytest --basetemp /mnt/ember/tests tests/client/user/test_torch_ranks.py`.
"""

import multiprocessing
import os
import re
import runpy
import sys
from multiprocessing import connection
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install emberfs[torch]")

import torch.distributed.checkpoint as dcp
from emberfs.torch.checkpoint import CheckpointReader, CheckpointWriter
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # importing torch takes seconds
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy/examples/train.py"
RANKS = range(2)
KILL_AT = 27
"""A step in the second epoch, which begins after 25, and behind the checkpoint of step 24."""
OPTIONS = ("--steps", "30", "--every", "4", "--workers", "0")


@pytest.fixture
def context(monkeypatch):
    """Starts ranks: all of this module by one process that has imported torch."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # the ranks import this module
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(
        ["torch.distributed.checkpoint", "torch.distributed.tensor", "torch.nn.parallel"]
    )
    return made


def run_ranks(context, target, *args):
    """Run both ranks until both have ended; return their exit codes."""
    ranks = [context.Process(target=target, args=(rank, *args)) for rank in RANKS]
    for rank in ranks:
        rank.start()
    waiting = {rank.sentinel: rank for rank in ranks}
    while waiting:
        for sentinel in connection.wait(list(waiting)):
            ended = waiting.pop(sentinel)
            ended.join()
            if ended.exitcode:  # as torchrun does: when one rank is gone, so are the others
                for rank in ranks:
                    rank.kill()
    return [rank.exitcode for rank in ranks]


def whole():
    return torch.arange(7 * 6, dtype=torch.float32).view(7, 6)


def sharded(rank, folder):
    """One of two ranks: save shards of rows; load them as shards of columns, and replicated."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {"t": distribute_tensor(whole(), mesh, [Shard(0)]), f"only-{rank}": rank}
    dcp.save(state, storage_writer=CheckpointWriter(folder / "one"))
    for placement in (Shard(0), Shard(1), Replicate()):
        target = {"t": distribute_tensor(torch.zeros(7, 6), mesh, [placement])}
        dcp.load(target, storage_reader=CheckpointReader(folder / "one"))
        assert isinstance(target["t"], DTensor)
        assert torch.equal(target["t"].full_tensor(), whole())
    distributed.destroy_process_group()


def test_shards_of_several_ranks_are_loaded_in_other_shards_and_whole(tmp_path, context):
    assert run_ranks(context, sharded, tmp_path) == [0, 0]
    assert sorted(os.listdir(tmp_path / "one")) == [".metadata", "rank-00000", "rank-00001"]
    target = {"t": torch.zeros(7, 6), "only-0": None, "only-1": None}
    dcp.load(target, storage_reader=CheckpointReader(tmp_path / "one"))
    assert torch.equal(target["t"], whole())
    assert (target["only-0"], target["only-1"]) == (0, 1)


def rank_process(rank, folder, output, options):
    """One of the ranks, as torchrun would start it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(RANKS)), "GLOO_SOCKET_IFNAME": "lo"}
    sys.argv = ["train.py", "--dir", str(folder), "--init", f"file://{output}/store", *options]
    with (
        open(output / f"{rank}.txt", "w") as sys.stdout,
        open(output / f"{rank}.err", "w") as sys.stderr,
    ):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def train(context, folder, output, *options):
    """Run both ranks; return their exit codes, what each printed, and what went wrong."""
    output.mkdir()
    codes = run_ranks(context, rank_process, folder, output, (*OPTIONS, *options))
    said = [(output / f"{rank}.txt").read_text() for rank in RANKS]
    errors = "".join((output / f"{rank}.err").read_text() for rank in RANKS)
    return codes, said, errors


def checksums(said):
    return {
        checksum
        for text in said
        for checksum in re.findall(r"step 30 loss \S+ checksum (\w+)", text)
    }


@pytest.mark.thorough
def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path, context):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    codes, said, errors = train(context, straight, tmp_path / "1")
    assert codes == [0, 0], errors
    expected = checksums(said)
    assert len(expected) == 1, said
    codes, said, errors = train(context, killed, tmp_path / "2", "--kill-at", str(KILL_AT))
    assert all(codes), errors
    assert not checksums(said)
    codes, said, errors = train(context, killed, tmp_path / "3")
    assert codes == [0, 0], errors
    assert all("goes on after step 24" in text for text in said), said
    assert checksums(said) == expected
    names = sorted(os.listdir(killed / "checkpoints"))
    assert names == ["step-000000020", "step-000000024", "step-000000028"]
