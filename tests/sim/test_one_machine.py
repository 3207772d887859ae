"""Simulated clusters whose processes lend each other payloads, of requests and of replies,
as those of one machine do.
"""

import pytest

from fs.client import asked_reads
from fs.rpc import lending, lent_replies
from fs.rpc.simulated_memory import SimulatedMemory
from fs.rpc.transport_memory import MemoryNetwork
from fs.storage import read_lent
from tests.examples import some_of

from . import cluster
from .scenario import run_seed


@pytest.fixture
def lent(monkeypatch):
    """Make the simulated machines one, whose processes lend all there is;
    return what has been lent.
    """
    found = {"memory": [], "replies": 0}

    def network(seed, **options):
        made = MemoryNetwork(seed, **options)
        made.memory = SimulatedMemory(seed)
        found["memory"].append(made.memory)
        return made

    monkeypatch.setattr(cluster, "MemoryNetwork", network)
    monkeypatch.setattr(lending, "PIECE_BYTES_MIN", 1)
    monkeypatch.setattr(lent_replies, "PIECE_BYTES_MIN", 1)
    monkeypatch.setattr(asked_reads, "LENT_BYTES_MIN", 1)
    monkeypatch.setattr(read_lent, "ROW_BYTES_MIN", 1)
    for kind in (
        lending.Lender,
        lending.Borrower,
        lent_replies.ReplyLender,
        lent_replies.ReplyBorrower,
    ):

        def begin(self, memory, bytes_min, *rest, _first=kind.__init__):
            assert bytes_min
            _first(self, memory, 1, *rest)

        monkeypatch.setattr(kind, "__init__", begin)

    def lend(self, header, reply, _first=lent_replies.ReplyLender.lend):
        size = _first(self, header, reply)
        found["replies"] += size > 0
        return size

    monkeypatch.setattr(lent_replies.ReplyLender, "lend", lend)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", some_of(range(4, 7), 2))
def test_what_is_lent_is_what_is_read(lent, seed):
    result = run_seed(seed)
    assert result.op_count >= 200 and sum(result.fault_counts.values()) >= 10
    (memory,) = lent["memory"]
    assert lent["replies"] >= 10 and memory.read_count >= 100
    assert memory.range_count >= 5
