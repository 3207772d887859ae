"""A sample of simulated clusters, and the proof that a seed decides everything."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import some_of

from .scenario import run_seed

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", some_of(range(1, 4), 2))
def test_seed(seed):
    result = run_seed(seed)
    assert result.op_count >= 200 and sum(result.fault_counts.values()) >= 10
    assert result.replaced_count > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", some_of([1, 2], 1))
def test_seed_with_lacks(seed):
    """Any lack in what a storage process does by itself ended it, within seconds."""
    result = run_seed(seed, only=["lack"])
    assert result.op_count >= 200 and result.fault_counts["lacked"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_runs_of_one_seed_are_the_same():
    """In two fresh processes with different hash seeds."""
    lines = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim", "3", "--seconds", "8", "--trace"],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        lines.append(done.stdout.splitlines()[:-1])
    assert lines[0] == lines[1]
    assert len(lines[0]) > 50
