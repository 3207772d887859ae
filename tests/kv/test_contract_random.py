"""Random concurrent transactions must equal the same transactions one after the other,
on an engine without faults.

Every transaction records what it read and did; the commit versionstamp gives the order; replaying
the committed ones on a plain model must give the same reads and the same end.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import os

import pytest

from tests.kv.isolation import Run, serializable

pytestmark = pytest.mark.thorough

SEED_COUNT = int(os.environ.get("KV_RANDOM_SEEDS", "6"))


@pytest.mark.parametrize("seed", range(SEED_COUNT))
async def test_random_transactions_are_serializable(lab, autojump_clock, seed):
    await serializable(Run(lab.engine, lab.runtime, seed), script_count=40)
