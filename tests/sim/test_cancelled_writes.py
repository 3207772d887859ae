"""Writes that are cancelled.

Those that go together have one task send them: should it be cancelled, the others repeat theirs,
and each is still done exactly once.  Nothing of a cancelled write arrives after it has ended.
"""

import random
from collections.abc import Iterator

import pytest
import trio

from fs.chunkengine.api import ChunkState
from fs.client.native import EmberFs
from tests.examples import some_of

from .checkers import Observer
from .cluster import CHUNK_BYTES, SimCluster
from .determinism import run_deterministic
from .shape import Shape
from .workload import Memory

CHUNK_COUNT = 24
ROUND_COUNT = 20


class Cancelled:
    """One client that writes all chunks of a file at once, again and again;
    some of these writes are given up.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.done = [0] * CHUNK_COUNT
        self.given_up = [0] * CHUNK_COUNT
        """By chunk: writes that ended, and that were cancelled, done or not."""

    async def use(self, fs: EmberFs) -> None:
        """Write."""
        async with await fs.create("/f") as file:
            await file.write(0, bytes(CHUNK_COUNT * CHUNK_BYTES))
            self.inode_id = file.ref.inode_id
            self.done = [1] * CHUNK_COUNT
            for number in range(ROUND_COUNT):
                async with trio.open_nursery() as nursery:
                    for index in range(CHUNK_COUNT):
                        nursery.start_soon(self._write, file, index, number)

    async def _write(self, file, index: int, number: int) -> None:
        is_short_lived = self.random.random() < 0.4
        with trio.CancelScope() as scope:
            if is_short_lived:
                scope.deadline = trio.current_time() + self.random.random() ** 2 * 0.02
            await file.write(index * CHUNK_BYTES + 100, b"%08d" % number)
        if scope.cancelled_caught:
            self.given_up[index] += 1
        else:
            self.done[index] += 1


def states_on_disks(cluster: SimCluster, inode_id: int) -> Iterator[ChunkState]:
    """Return the chunks of a file on all targets."""
    for name in cluster.storages:
        for target in cluster.processes[name].services["Storage"]._context.targets.targets.values():
            yield from target.disk.engine.list_file(target.target_id, inode_id)


def versions_on_disks(cluster: SimCluster, inode_id: int) -> dict[int, set[int]]:
    """Return the committed versions of each chunk of a file, on all targets."""
    found: dict[int, set[int]] = {}
    for state in states_on_disks(cluster, inode_id):
        found.setdefault(state.chunk_id.index, set()).add(state.commit_ver)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some_of(range(4), 2))
def test_each_write_is_done_once_whoever_of_its_group_is_cancelled(seed):
    cancelled, versions = Cancelled(seed), {}

    async def main() -> None:
        shape = Shape.draw(seed)
        cluster = SimCluster(seed, shape)

        async def scenario() -> None:
            await cluster.connect_client("client-1.0", cancelled.use)
            await trio.sleep(10)  # what was given up may still be under way
            versions.update(versions_on_disks(cluster, cancelled.inode_id))

        observer = Observer(cluster, Memory.of(shape), lambda _: None)
        await cluster.run(scenario, observer.run)

    run_deterministic(main, seed)
    assert sum(cancelled.given_up) > 20
    assert len(versions) == CHUNK_COUNT
    for index, found in versions.items():
        # What was given up may be committed on some replicas only, until somebody needs the chunk.
        least = cancelled.done[index]
        assert least <= min(found) <= max(found) <= least + cancelled.given_up[index], (
            index,
            found,
        )


class ClosedAtOnce:
    """One client that lengthens files by writes that are given up, and closes them at once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lengths: dict[int, int] = {}
        """By inode: how far the file reached after its close."""
        self.given_up = 0

    async def use(self, fs: EmberFs) -> None:
        """Write."""
        for number in range(ROUND_COUNT):
            path = f"/f{number}"
            async with await fs.create(path) as file:
                await file.write(0, bytes(CHUNK_BYTES))
                with trio.CancelScope() as scope:
                    scope.deadline = trio.current_time() + self.random.random() ** 2 * 0.01
                    await file.write(CHUNK_BYTES, bytes(3 * CHUNK_BYTES))
                self.given_up += scope.cancelled_caught
            found = await fs.stat(path)
            self.lengths[found.inode_id] = found.length


def reach_on_disks(cluster: SimCluster, inode_id: int) -> int:
    """Return how far the chunks of a file reach, on any target."""
    return max(
        state.chunk_id.index * CHUNK_BYTES + state.length
        for state in states_on_disks(cluster, inode_id)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some_of(range(4), 2))
def test_what_is_given_up_does_not_arrive_after_the_close(seed):
    """It left chunks behind the end of the file, which a later lengthening would have shown."""
    writer, reached = ClosedAtOnce(seed), {}

    async def main() -> None:
        shape = Shape.draw(seed)
        cluster = SimCluster(seed, shape)

        async def scenario() -> None:
            await cluster.connect_client("client-1.0", writer.use)
            await trio.sleep(10)
            reached.update({i: reach_on_disks(cluster, i) for i in writer.lengths})

        observer = Observer(cluster, Memory.of(shape), lambda _: None)
        await cluster.run(scenario, observer.run)

    run_deterministic(main, seed)
    assert writer.given_up > ROUND_COUNT // 4
    assert reached == writer.lengths
