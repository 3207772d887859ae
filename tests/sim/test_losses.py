"""A client that outlives all storage machines:
it is told of lost power, and not bothered with processes that died.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from fs.client.native import EmberFs
from fs.schema.status import FsError, Status

from .cluster import CHUNK_BYTES, SimCluster
from .determinism import run_deterministic
from .shape import Shape

DATA = b"acknowledged" * (CHUNK_BYTES // 4)


async def _observe() -> None:
    """Nothing is looked at beside the client."""


async def _restart(cluster: SimCluster, *, with_power: bool, in_order: bool = False) -> None:
    names = sorted(cluster.processes)
    if in_order:
        await cluster.stop(*cluster.storages)
    await cluster.kill(*names)
    for name in cluster.storages if with_power else ():
        cluster.lose_power(name, cluster.random)
    for name in names:
        cluster.start(name)
    await cluster.wait_healthy()


def _run(cluster: SimCluster, use: Callable[[EmberFs], Awaitable[None]]) -> None:
    """Run a cluster until one client has done its part."""

    async def scenario() -> None:
        await cluster.connect_client("client", use)

    async def main() -> None:
        await cluster.run(scenario, _observe)

    run_deterministic(main, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("with_power", [True, False])
def test_what_a_later_fsync_says(with_power):
    async def use(fs: EmberFs) -> None:
        file = await fs.create("/f")
        await file.write(0, DATA)
        await file.fsync()
        await file.write(0, DATA.upper())
        await _restart(cluster, with_power=with_power)
        await file.write(0, DATA[:100])
        if with_power:
            with pytest.raises(FsError) as caught:
                await file.fsync()
            assert caught.value.status is Status.WRITES_LOST
            await file.write(0, DATA.upper())  # again, as it has to
        await file.fsync()
        await _restart(cluster, with_power=True)
        await file.fsync()  # nothing was written since
        wanted = DATA.upper() if with_power else DATA[:100] + DATA.upper()[100:]
        assert await file.read(0, len(DATA)) == wanted
        await file.write(0, DATA)
        await file.close()

    cluster = SimCluster(1, Shape.draw(1))
    _run(cluster, use)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_small_files_that_were_closed_survive_the_loss_of_power():
    """Their bytes are made durable on their way, by no request of their own."""

    async def use(fs: EmberFs) -> None:
        contents: dict[str, bytes] = {}
        for round_number in range(3):
            for number in range(4):
                path = f"/small-{round_number}-{number}"
                contents[path] = path.encode() * (200 * (number + 1))
                await fs.write_file(path, contents[path])
            # Not durable, and on the same disks: what it leaves behind may be torn.
            file = await fs.create("/others")
            await file.write(0, DATA)
            await _restart(cluster, with_power=True)
            for path, content in contents.items():
                assert await fs.read_file(path) == content, path

    cluster = SimCluster(1, Shape.draw(1))
    _run(cluster, use)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_machines_that_are_stopped_in_order_lose_nothing():
    async def use(fs: EmberFs) -> None:
        file = await fs.create("/f")
        for count in range(3):
            await file.write(0, DATA[count:])
            await _restart(cluster, with_power=True, in_order=count != 1)
            if count == 1:  # their disks bear the notes of the first stop
                with pytest.raises(FsError) as caught:
                    await file.fsync()
                assert caught.value.status is Status.WRITES_LOST
            else:
                await file.fsync()
                assert await file.read(0, 100) == DATA[count : count + 100]
        await file.close()

    cluster = SimCluster(1, Shape.draw(1))
    _run(cluster, use)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("direct_write_bytes_min", [0, CHUNK_BYTES])
def test_what_an_fsync_says_after_flushes_that_failed(direct_write_bytes_min):
    """What waited for them in memory is lost; what was written past it is not."""

    def refuse(step: str) -> None:
        if step == "flush":
            raise FsError(Status.IO_ERROR, "injected")

    async def use(fs: EmberFs) -> None:
        file = await fs.create("/f")
        await file.write(0, DATA)
        await file.fsync()
        good_steps = [errors.step for errors in cluster.errors.values()]
        await file.write(0, DATA.upper())
        for errors in cluster.errors.values():
            errors.step = refuse
        with trio.fail_after(60):
            while any(chain.serving for chain in cluster.watch.chains.values()):  # noqa: ASYNC110
                await trio.sleep(0.5)
        for errors, step in zip(cluster.errors.values(), good_steps, strict=True):
            errors.step = step
        await cluster.kill(*cluster.storages)
        for name in cluster.storages:
            cluster.start(name)
        await cluster.wait_healthy()
        if direct_write_bytes_min:
            await file.fsync()
            assert await file.read(0, len(DATA)) == DATA.upper()
        else:
            with pytest.raises(FsError) as caught:
                await file.fsync()
            assert caught.value.status is Status.WRITES_LOST
        await file.write(0, DATA.upper())
        await file.close()
        assert await fs.read_file("/f") == DATA.upper()

    shape = replace(Shape.draw(1), direct_write_bytes_min=direct_write_bytes_min)
    cluster = SimCluster(1, shape)
    _run(cluster, use)
