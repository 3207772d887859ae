import pytest

from tests.kv.harness import CHOSEN_KIND, Lab

ENGINES = [
    "memory",
    "rocksdb",
    "remote",
    pytest.param("foundationdb", marks=[pytest.mark.fdb, pytest.mark.slow]),
]


@pytest.fixture(params=[CHOSEN_KIND] if CHOSEN_KIND else ENGINES)
async def lab(request, tmp_path, nursery):
    """An open engine; a test that sleeps asks for `autojump_clock` too."""
    lab = Lab(request.param, tmp_path / "kv", nursery)
    await lab.open()
    yield lab
    await lab.clean()
    await lab.close()
