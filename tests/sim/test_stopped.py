"""A run that fails while one of its processes is stopped ends, and tells why."""

import pytest
import trio

from . import faults
from .scenario import Run, run_seed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_fails_while_a_process_is_stopped_ends(monkeypatch):
    real_freeze, real_scenario, nurseries = faults.freeze, Run._scenario, []

    async def fail() -> None:
        await trio.sleep(0.5)
        raise AssertionError("broken on purpose")

    def freeze(name: str) -> None:
        real_freeze(name)
        nurseries[0].start_soon(fail)

    async def scenario(run: Run) -> None:
        async with trio.open_nursery() as nursery:
            nurseries.append(nursery)
            await real_scenario(run)

    monkeypatch.setattr(faults, "freeze", freeze)
    monkeypatch.setattr(Run, "_scenario", scenario)
    with pytest.RaisesGroup(
        pytest.RaisesExc(AssertionError, match="broken on purpose"),
        allow_unwrapped=True,
        flatten_subgroups=True,
    ):
        run_seed(3, work_s=10.0, only=["pause"])
