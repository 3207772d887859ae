"""How processes begin with the settings that the managers keep."""

from types import SimpleNamespace

import trio

from fs.app.process import kept_settings, roots
from fs.app.process.systemd import SystemdLink
from fs.kv.memory import MemoryEngine
from fs.mgmtd import store
from fs.rpc.transport_memory import MemoryNetwork
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import ProcessConfig
from fs.schema.status import FsError, Status


async def test_a_store_that_is_starting_is_waited_for(monkeypatch, autojump_clock):
    """A manager and the store that are killed together come back in any order."""
    del autojump_clock
    runtime = simulated_runtime(MemoryNetwork(seed=1).endpoint("x"), 1)
    config = ProcessConfig()
    process = SimpleNamespace(
        kept=roots.kept_settings("mgmtd", config, runtime),
        runtime=runtime,
        config=config,
        systemd=SystemdLink({}),
        has_served=False,
    )
    up_s = trio.current_time() + 3.0
    read = store.read_settings

    async def read_when_up(tr):
        if trio.current_time() < up_s:
            raise FsError(Status.KV_UNREACHABLE, "starting")
        return await read(tr)

    monkeypatch.setattr(store, "read_settings", read_when_up)
    await kept_settings.begin_from_store(process, MemoryEngine(runtime.clock))
    assert trio.current_time() >= up_s
