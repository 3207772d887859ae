"""A client is killed with a lock in its hands and writes on their way, in the middle of faults; who
is sure of its end says so.  Another client has the lock within seconds, and meets no late write.

Simulated time.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from fs.client import gone_clients
from fs.client.gone_clients import GoneClients
from fs.client.native import EmberFs
from fs.meta.file_locks import END_MAX
from fs.schema import services
from fs.schema.proto.common_pb2 import FLOCK_LOCK, CallerPb, FileLockPb
from fs.schema.proto.meta_pb2 import SetLockReq
from tests.examples import some_of

from .cluster import CHUNK_BYTES, SimCluster
from .determinism import freeze, run_deterministic, thaw
from .shape import Shape

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHUNK_COUNT = 12
WRITER_COUNT = 6
STOPPED_S = 4.0
"""Shorter than a lease: nobody is judged, and what he was sent stays with him."""
SOON_S = 3.0
"""With nothing else wrong."""
LATE_S = 12.0
"""Where others were killed or stopped as well; much less than a client may be silent for."""
QUIET_S = 60.0
LATE_SEEDS = (0, 6, 11, 14)
FAULTS = ("none", "stopped storage", "stopped control", "killed storage", "cut", "two")


class Scene:
    """One client that holds a lock and writes, one that waits for it, one that knows of its end."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"{seed}/gone")
        shape = replace(Shape.draw(seed), inline_bytes_max=0, rotate_after_s=600.0)
        self.cluster = SimCluster(seed, replace(shape, replica_count=max(2, shape.replica_count)))
        self.fault = FAULTS[seed % len(FAULTS)]
        self.client_id, self.inode_id = "", 0
        self.is_locked, self.has_died = trio.Event(), trio.Event()
        self.had_s = self.died_s = 0.0
        self.seen: list[bytes] = []
        self.is_freed = False

    def run(self) -> None:
        async def observe() -> None:
            """Nothing is looked at beside the clients."""

        async def scenario() -> None:
            uses = [self.hold, self.wait, self.succeed]
            async with trio.open_nursery() as nursery:
                for number, use in enumerate(uses):
                    nursery.start_soon(self.cluster.connect_client, f"client-{number}", use)
                await self.is_locked.wait()
                await trio.sleep(self.random.uniform(0.1, 1.0))
                await self._break(nursery.start_soon)

        async def main() -> None:
            await self.cluster.run(scenario, observe)

        run_deterministic(main, self.cluster.seed)
        assert not self.cluster.bugs

    async def _break(self, start_soon: Callable[..., None]) -> None:
        """Kill the client, in the middle of the fault."""
        cluster, source = self.cluster, self.random
        storage = source.sample(cluster.storages, k=2)
        controls = [n for n in cluster.controls if n not in cluster.acting] or cluster.controls
        control = source.choice(controls)
        names = {"stopped storage": storage[:1], "stopped control": [control]}
        names["two"] = [storage[0], control]
        for name in names.get(self.fault, []):
            start_soon(self._stop, name)
        if self.fault == "cut":
            cluster.network.block("client-0", storage[0])
        await trio.sleep(source.uniform(0.0, 0.3))
        if self.fault == "killed storage":
            await cluster.kill(storage[0])
        self.died_s = trio.current_time()
        cluster.clients["client-0"].end()
        self.has_died.set()
        if self.fault == "killed storage":
            await trio.sleep(2.0)
            cluster.start(storage[0])

    @staticmethod
    async def _stop(name: str) -> None:
        freeze(name)
        try:
            await trio.sleep(STOPPED_S)
        finally:
            thaw(name)

    async def hold(self, fs: EmberFs) -> None:
        """Write under a lock, until killed; nothing is synced."""
        self.client_id = fs._meta.client_id
        file = await fs.create("/f")
        await file.write(0, bytes(CHUNK_COUNT * CHUNK_BYTES))
        await file.fsync()
        self.inode_id = file.ref.inode_id
        assert await self._lock(fs)

        async def write(number: int) -> None:
            count = 0
            while True:
                count += 1
                index = self.random.randrange(CHUNK_COUNT)
                text = b"%d %d" % (number, count)
                await file.write(index * CHUNK_BYTES + 16 * number, text)

        async with trio.open_nursery() as nursery:
            for number in range(WRITER_COUNT):
                nursery.start_soon(write, number)
            self.is_locked.set()

    async def wait(self, fs: EmberFs) -> None:
        """Get the lock; see that nothing changes from then on but what is written here."""
        await self.is_locked.wait()
        is_mine = False
        while not is_mine:
            await trio.sleep(0.1)
            is_mine = await self._lock(fs)
        assert self.has_died.is_set()
        self.had_s = trio.current_time() - self.died_s
        async with await fs.open("/f", is_writable=True) as file:
            self.seen.append(await fs.read_file("/f"))
            for index in range(CHUNK_COUNT):  # completes what was left over of these chunks
                await file.write(index * CHUNK_BYTES + 4096, b"mine")
            await trio.sleep(QUIET_S)
            found = bytearray(await fs.read_file("/f"))
        for index in range(CHUNK_COUNT):
            start = index * CHUNK_BYTES + 4096
            assert found[start : start + 4] == b"mine"
            found[start : start + 4] = bytes(4)
        self.seen.append(bytes(found))

    async def succeed(self, fs: EmberFs) -> None:
        """Say that the holder is gone, as the next daemon at its mount point does."""
        await self.has_died.wait()
        clients = GoneClients(
            channels=fs._meta._channels,
            routing=fs._meta._routing,
            mgmtd=fs._chunks._nodes._mgmtd,
            meta=fs._meta,
        )
        self.is_freed = await clients.free(self.client_id)

    async def _lock(self, fs: EmberFs) -> bool:
        wish = FileLockPb(owner=1, kind=FLOCK_LOCK, first=0, last=END_MAX, is_write=True)
        request = SetLockReq(caller=CallerPb(), inode_id=self.inode_id, lock=wish)
        return (await fs._meta.call(services.META_SET_LOCK, request)).is_done


@pytest.mark.parametrize("seed", some_of(range(60), 12))
def test_the_lock_of_a_killed_client_is_had_soon_and_no_write_comes_late(seed):
    scene = Scene(seed)
    scene.run()
    assert scene.is_freed
    assert scene.had_s < (SOON_S if scene.fault == "none" else LATE_S), scene.fault
    first, last = scene.seen
    late = [index for index in range(CHUNK_COUNT) if _chunk(first, index) != _chunk(last, index)]
    assert not late, f"{scene.fault}: late writes to chunks {late}"


def _chunk(data: bytes, index: int) -> bytes:
    return data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def test_without_refusing_the_dead_one_writes_come_late(monkeypatch):
    """The test above has teeth."""

    async def nothing(_self: GoneClients, _client_id: str) -> None:
        """Ask nobody."""

    monkeypatch.setattr(gone_clients.GoneClients, "_fence", nothing)
    late = 0
    for seed in LATE_SEEDS:
        scene = Scene(seed)
        scene.run()
        late += scene.seen[0] != scene.seen[1]
    assert late
