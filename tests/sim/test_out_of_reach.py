"""A metadata service that does not reach a storage node, which all others reach,
costs its clients seconds and no more.
"""

from collections.abc import Awaitable, Callable

import pytest
import trio

from fs.client.native import EmberFs
from fs.schema.routing import Role
from tests.examples import some_of

from .cluster import CHUNK_BYTES, SimCluster
from .determinism import run_deterministic
from .shape import Shape

CUT_S = 60.0
"""Longer than any client would wait for it in silence."""
PAUSE_S_MAX = 7.0
"""As long as a machine that falls silent may cost."""
METAS_CUT_OFF = 2
"""One after the other; a client asks one of them, and that one again after half a minute."""
DATA = b"reach" * CHUNK_BYTES


def run(seed: int, use: Callable[[SimCluster, EmberFs], Awaitable[None]]) -> None:
    """Run a cluster with two metadata services until one client has done its part."""
    shape = Shape.draw(seed)
    assert sum(Role.META in roles for roles in shape.roles.values()) == METAS_CUT_OFF, shape
    cluster = SimCluster(seed, shape)

    async def observe() -> None:
        """Nothing is looked at beside the client."""

    async def main() -> None:
        async def scenario() -> None:
            async def with_client(fs: EmberFs) -> None:
                await use(cluster, fs)

            await cluster.connect_client("client", with_client)

        await cluster.run(scenario, observe)

    run_deterministic(main, seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", some_of([1, 2, 3], 1))
def test_a_client_asks_another_service_soon(seed):
    pauses = []

    async def use(cluster: SimCluster, fs: EmberFs) -> None:
        metas = [name for name, roles in cluster.shape.roles.items() if Role.META in roles]
        for number, meta in enumerate(metas):
            storage = cluster.storages[0]
            cluster.network.block(meta, storage)
            cluster.network.block(storage, meta)
            end_s = trio.current_time() + CUT_S
            count = 0
            while trio.current_time() < end_s:
                began_s = trio.current_time()
                path = f"/f{number}-{count}"
                file = await fs.create(path)
                await file.write(0, DATA)
                await file.fsync()
                await file.truncate(CHUNK_BYTES + 5)
                await file.close()
                assert await fs.read_file(path) == DATA[: CHUNK_BYTES + 5]
                pauses.append(trio.current_time() - began_s)
                count += 1
                await trio.sleep(1.0)
            cluster.network.heal()
            await trio.sleep(10.0)

    run(seed, use)
    assert max(pauses) < PAUSE_S_MAX
    assert sum(pause > 1.0 for pause in pauses) <= 2 * METAS_CUT_OFF, pauses
