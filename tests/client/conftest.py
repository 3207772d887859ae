"""What tests of batched reads share."""

import pytest

from fs.kernels import batches_twin


@pytest.fixture(params=["serving", "twin"])
def kernel(request, monkeypatch):
    """Have the tests done by what serves, and by the twin."""
    if request.param == "twin":
        monkeypatch.setattr("fs.client.read_plans.plan_reads", batches_twin.plan_reads)
        monkeypatch.setattr("fs.client.storage_reads.have_come", batches_twin.have_come)
        monkeypatch.setattr("fs.client.asked_reads.windows_of", batches_twin.windows_of)
        monkeypatch.setattr("fs.client.storage_reads.put_reply", batches_twin.put_reply)
