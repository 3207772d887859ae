import os

import pytest

from tests.kv.harness import Lab

ENGINES = [
    "memory",
    "rocksdb",
    "remote",
    pytest.param(
        "foundationdb",
        marks=[
            pytest.mark.fdb,
            pytest.mark.skipif(
                "FDB_CLUSTER_FILE" not in os.environ, reason="FDB_CLUSTER_FILE is not set"
            ),
        ],
    ),
]


@pytest.fixture(params=ENGINES)
async def lab(request, tmp_path, nursery):
    """An open engine; a test that sleeps asks for `autojump_clock` too."""
    lab = Lab(request.param, tmp_path / "kv", nursery)
    await lab.open()
    yield lab
    await lab.close()
