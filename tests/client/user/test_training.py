"""The example that trains: killed in the middle, it goes on and ends with the very same bits.

On a mount: `pytest --basetemp /mnt/ember/tests tests/client/user/test_training.py`.
"""

import multiprocessing
import os
import re
import runpy
import sys
from multiprocessing import connection
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install emberfs[torch]")

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(3600)]

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy/examples/train.py"
RANKS = range(2)
KILL_AT = 27
"""A step in the second epoch, which begins after 25, and behind the checkpoint of step 24."""
OPTIONS = ("--steps", "30", "--every", "4", "--workers", "0")


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
    """Run all ranks until one of them has ended, which ends the others if it was killed; return what each printed."""
    output.mkdir()
    ranks = [
        context.Process(target=rank_process, args=(rank, folder, output, (*OPTIONS, *options)))
        for rank in RANKS
    ]
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
    said = [(output / f"{rank}.txt").read_text() for rank in RANKS]
    errors = "".join((output / f"{rank}.err").read_text() for rank in RANKS)
    return [rank.exitcode for rank in ranks], said, errors


def checksums(said):
    return {
        checksum
        for text in said
        for checksum in re.findall(r"step 30 loss \S+ checksum (\w+)", text)
    }


def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # the ranks import this module
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.checkpoint", "torch.nn.parallel"])
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
