"""How the commands for files reach the file system."""

import pytest

from fs.app.admin import standing
from fs.app.reach.where import Where
from fs.schema.status import FsError, Status


def test_an_address_at_which_no_manager_is_is_told_soon(monkeypatch):
    """It took client.retry_time_s_max, two minutes, as with a cluster that is away for a while."""
    assert standing.ANSWERS_WITHIN_S <= 10
    monkeypatch.setattr(standing, "ANSWERS_WITHIN_S", 0.1)

    async def use(_fs):
        raise AssertionError("connected")

    address = "tcp:127.0.0.1:1"
    with pytest.raises(FsError, match=f"no manager answers at {address} within 0.1 s") as failed:
        standing.run_fs_at(use, Where((address,), "emberfs"))
    assert failed.value.status is Status.RPC_TIMEOUT
