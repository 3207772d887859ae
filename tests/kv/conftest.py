import pytest
import trio.testing

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


@pytest.fixture
def autojump_clock(request):
    """Virtual time; on FoundationDB, which answers from elsewhere, the harness steps it."""
    callspec = getattr(request.node, "callspec", None)
    is_elsewhere = callspec is not None and callspec.params.get("lab") == "foundationdb"
    return trio.testing.MockClock(autojump_threshold=float("inf") if is_elsewhere else 0)
