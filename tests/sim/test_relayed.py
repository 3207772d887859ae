"""A client that does not reach one storage node, which all others reach, pauses for seconds, once;
and each update happens once.

Simulated time.  Such a cut stops nobody but that client: the manager judges nobody, and the
other nodes pass its requests on.
"""

import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product

import pytest
import trio

from fs.client.native import EmberFs
from fs.schema.ids import ROOT_INODE_ID
from fs.schema.routing import Role
from fs.schema.status import FsError, Status
from fs.storage.relay import Relays
from tests.examples import some_of

from .cluster import CHUNK_BYTES, CLIENT_SECTION, SimCluster
from .determinism import run_deterministic
from .mounts import OWN, Mount
from .shape import Shape

CUT_S = 50.0
PAUSE_S_MAX = 4.5
"""Until it is found out: two seconds of waiting, two of trying."""
LEASE_PAUSE_S_MAX = 9.0
"""As long as a machine that falls silent may cost."""
LINK_PAUSE_S_MAX = 17.5
"""Where two members of a chain do not reach each other either."""
RESTART_PAUSE_S_MAX = 4.0
FLAP_COUNT = 8
FLAP_S = 12.0
QUICK_S = 1.0
DATA = b"pass" * CHUNK_BYTES
"""In every chain."""
CLIENT = "client-0"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Use = Callable[["Scene", EmberFs], Awaitable[None]]


class Scene:
    """A cluster whose clients work while links are cut."""

    def __init__(self, seed: int, **changes: object) -> None:
        shape = Shape.draw(seed)
        usual = {"inline_bytes_max": 0, "rotate_after_s": 600.0, "replica_count": 3}
        self.cluster = SimCluster(seed, replace(shape, **{**usual, **changes}))
        self.head = self.cluster.storages[0]
        """Of the first chain."""
        self.pauses: list[float] = []

    def run(self, *uses: Use) -> None:
        """Have each function work with a client of its own until all have ended."""

        async def observe() -> None:
            """Nothing is looked at beside the clients."""

        async def scenario() -> None:
            async def one(number: int, use: Use) -> None:
                async def with_client(fs: EmberFs) -> None:
                    await use(self, fs)

                await self.cluster.connect_client(f"client-{number}", with_client)

            async with trio.open_nursery() as nursery:
                for number, use in enumerate(uses):
                    nursery.start_soon(one, number, use)

        async def main() -> None:
            await self.cluster.run(scenario, observe)

        run_deterministic(main, self.cluster.seed)
        assert not self.cluster.bugs

    def cut(self, one: str, two: str, ways: str = "both") -> None:
        """Cut a link: `to` the second, `from` it, or both ways."""
        if ways != "from":
            self.cluster.network.block(one, two)
        if ways != "to":
            self.cluster.network.block(two, one)

    def storage(self, name: str):
        return self.cluster.processes[name].services["Storage"]

    @property
    def relayed(self) -> dict[str, int]:
        """How many requests each storage process has passed on."""
        found = {}
        for name in self.cluster.storages:
            if self.cluster.processes[name].services:
                links = self.storage(name).relays.links.values()
                found[name] = sum(link.count for link in links)
        return found

    async def timed(self, act: Awaitable[None]) -> float:
        began_s = trio.current_time()
        await act
        self.pauses.append(trio.current_time() - began_s)
        return self.pauses[-1]

    async def repeat(self, act: Callable[[int], Awaitable[None]], for_s: float = CUT_S) -> None:
        """Do something again and again, and note how long each time took."""
        end_s = trio.current_time() + for_s
        count = 0
        while trio.current_time() < end_s:
            await self.timed(act(count))
            count += 1
            await trio.sleep(1.5)

    def check_pauses(self, count_max: int = 1, longest_s: float = PAUSE_S_MAX) -> None:
        long = [pause for pause in self.pauses if pause > QUICK_S]
        assert len(long) <= count_max and max(self.pauses) < longest_s, long
        self.pauses.clear()


async def use_native(fs: EmberFs, count: int) -> None:
    """Everything that a native client asks heads for."""
    path = f"/native-{count}"
    file = await fs.create(path)
    await file.write(0, DATA)
    await file.fsync()
    await file.truncate(CHUNK_BYTES + 5)
    await file.close()
    assert await fs.read_file(path) == DATA[: CHUNK_BYTES + 5]
    await fs.unlink(path)


async def use_mount(mount: Mount, count: int) -> None:
    """The same by way of a vfs."""
    made, inode = await mount.create(f"mount-{count}".encode(), os.O_RDWR | os.O_CREAT)
    mount.names.give(inode, lookup_count=1)
    await mount.files.write(made.handle_id, 0, DATA[: 3 * CHUNK_BYTES])
    await mount.files.fsync(made.handle_id, is_data_only=False)
    await mount.files.write(made.handle_id, 5, b"small")
    found = bytes(await mount.files.read(made.handle_id, 0, 20))
    assert found == DATA[:5] + b"small" + DATA[10:20]
    await mount.close(made.handle_id)
    opened = await mount.files.open(inode.inode_id, os.O_RDONLY, OWN)
    for offset in range(0, 3 * CHUNK_BYTES, CHUNK_BYTES):
        found = bytes(await mount.files.read(opened.handle_id, offset + 100, 300))
        assert found == DATA[offset + 100 : offset + 400]
    await mount.close(opened.handle_id)
    mount.names.forget(inode.inode_id, 1)
    await mount.names.unlink(ROOT_INODE_ID, f"mount-{count}".encode(), OWN)


@asynccontextmanager
async def acting(kind: str, fs: EmberFs) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """Offer what a kind of client does, again and again, by the number of the time."""
    if kind == "native":
        yield lambda count: use_native(fs, count)
        return
    async with trio.open_nursery() as running:
        mount = Mount(fs, CLIENT_SECTION)
        await running.start(mount.vfs.run)
        yield lambda count: use_mount(mount, count)
        running.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("kind", "ways"), some_of(product(["native", "mount"], ["both", "to", "from"]), 4)
)
def test_a_cut_is_a_pause(kind, ways):
    scene = Scene(2)

    async def use(scene: Scene, fs: EmberFs) -> None:
        async with acting(kind, fs) as act:
            for count in range(3):
                await act(1000 + count)
            scene.cut(CLIENT, scene.head, ways)
            await scene.repeat(act)
            assert len(scene.pauses) > CUT_S / 4
            scene.check_pauses()
            scene.cluster.network.heal()
            await trio.sleep(10.0)
            relayed = scene.relayed
            assert sum(relayed.values()) > 30
            await scene.repeat(lambda count: act(2000 + count), 10.0)
            scene.check_pauses(0)
            assert scene.relayed == relayed, "straight again"

    scene.run(use)


@pytest.mark.parametrize("seed", some_of([1, 2, 3], 1))
def test_a_cut_that_metadata_services_share_is_a_pause(seed):
    """None can do in the other's place what both do not reach."""
    scene = Scene(seed)
    metas = [name for name, roles in scene.cluster.shape.roles.items() if Role.META in roles]

    async def use(scene: Scene, fs: EmberFs) -> None:
        for meta in metas:
            scene.cut(meta, scene.head)
        await scene.repeat(lambda count: use_native(fs, count))
        scene.check_pauses(len(metas), 7.0)

    scene.run(use)


@pytest.mark.parametrize("seed", some_of([1, 2, 3], 1))
def test_reads_go_to_other_replicas(seed):
    scene = Scene(seed)

    async def use(scene: Scene, fs: EmberFs) -> None:
        file = await fs.create("/f")
        await file.write(0, DATA)
        await file.close()

        async def read(_count: int) -> None:
            assert await fs.read_file("/f") == DATA

        for count in range(6):  # from each replica once
            await read(count)
        scene.cut(CLIENT, scene.head)
        await scene.repeat(read)
        scene.check_pauses()
        assert not any(scene.relayed.values()), "others have the same bytes"

    scene.run(use)


def test_reads_of_a_chain_with_one_target_are_passed_on():
    scene = Scene(2, replica_count=1)

    async def use(scene: Scene, fs: EmberFs) -> None:
        scene.cut(CLIENT, scene.head)
        await scene.repeat(lambda count: use_native(fs, count))
        scene.check_pauses()
        assert any(scene.relayed.values())

    scene.run(use)


def versions_of(scene: Scene, inode_id: int) -> dict[int, int]:
    """Return by index how many updates of each chunk of a file have been committed."""
    found = {}
    for targets in (scene.storage(name)._context.targets for name in scene.cluster.storages):
        for target in targets.targets.values():
            for state in target.disk.engine.list_chunks(target.target_id, limit=10_000):
                if state.chunk_id.inode_id == inode_id:
                    found[state.chunk_id.index] = state.commit_ver
    return found


@pytest.mark.parametrize("seed", some_of(range(1, 5), 2))
def test_each_write_happens_once_whatever_moment_the_cut_begins_at(seed):
    """The original may have arrived, and be executed, when the same write comes by another way."""
    scene = Scene(seed)
    source = random.Random(f"cuts {seed}")
    counts = dict.fromkeys(range(scene.cluster.shape.chain_count), 0)

    async def use(scene: Scene, fs: EmberFs) -> None:
        file = await fs.create("/f")
        end_s = trio.current_time() + CUT_S

        async def write(index: int) -> None:
            while trio.current_time() < end_s:
                data = counts[index].to_bytes(8, "big") * 16
                await file.write(index * CHUNK_BYTES, data)
                counts[index] += 1
                if counts[index] % 7 == 0:
                    await file.fsync()
                await trio.sleep(source.choice([0.0, 0.05, 0.2]))

        async with trio.open_nursery() as nursery:
            for index in counts:
                nursery.start_soon(write, index)
            while trio.current_time() < end_s:
                await trio.sleep(source.uniform(0.5, 3.0))
                names = source.sample(scene.cluster.storages, source.choice([1, 1, 2]))
                for name in names:
                    scene.cut(CLIENT, name, source.choice(["both", "to", "from", "from"]))
                await trio.sleep(source.choice([0.5, 3.0, 6.0, 12.0]))
                scene.cluster.network.heal()
        await file.close()
        content = await fs.read_file("/f")
        for index, count in counts.items():
            place = index * CHUNK_BYTES
            assert content[place : place + 8] == (count - 1).to_bytes(8, "big")
        assert versions_of(scene, file.ref.inode_id) == counts
        assert sum(scene.relayed.values()) > 5 and min(counts.values()) > 30

    scene.run(use)


def test_one_that_is_cut_off_and_one_that_is_not_see_each_others_writes():
    scene = Scene(2)
    turn, end_s = [0], [math.inf]

    async def use(own: int, fs: EmberFs) -> None:
        while True:
            while turn[0] % 2 != own and trio.current_time() < end_s[0]:  # noqa: ASYNC110 - polls
                await trio.sleep(0.01)
            if trio.current_time() >= end_s[0]:
                return
            began_s = trio.current_time()
            if turn[0]:
                found, value = await fs.read_file("/f"), turn[0].to_bytes(8, "big")
                assert {found[i * CHUNK_BYTES :][:8] for i in range(4)} == {value}
            file = await (fs.open("/f", is_writable=True) if turn[0] else fs.create("/f"))
            for index in range(4):
                await file.write(index * CHUNK_BYTES, (turn[0] + 1).to_bytes(8, "big"))
            await file.close()
            scene.pauses.append(trio.current_time() - began_s)
            turn[0] += 1
            await trio.sleep(0.5)

    async def first(_scene: Scene, fs: EmberFs) -> None:
        await use(0, fs)

    async def second(scene: Scene, fs: EmberFs) -> None:
        while not turn[0]:  # noqa: ASYNC110 - polls
            await trio.sleep(0.01)
        scene.cut(CLIENT, scene.head)
        end_s[0] = trio.current_time() + CUT_S
        await use(1, fs)

    scene.run(first, second)
    assert len(scene.pauses) > 30
    scene.check_pauses()


def relay_of(scene: Scene) -> str:
    (name,) = [name for name, count in scene.relayed.items() if count]
    return name


@pytest.mark.parametrize("fault", ["cut", "kill", "silent"])
def test_the_relay_fails_as_well(fault):
    scene = Scene(2)
    assert scene.cluster.shape.storage_count > 3

    async def use(scene: Scene, fs: EmberFs) -> None:
        scene.cut(CLIENT, scene.head)
        await scene.repeat(lambda count: use_native(fs, count), 10.0)
        relay = relay_of(scene)
        scene.check_pauses()
        if fault == "cut":
            scene.cut(CLIENT, relay)
        elif fault == "kill":
            await scene.cluster.kill(relay)
        else:
            scene.cluster.network.switch_off(relay)
        await scene.repeat(lambda count: use_native(fs, 100 + count), 30.0)
        # What is silent is judged: its own chains, too, go on when its lease is over.
        scene.check_pauses(2, LEASE_PAUSE_S_MAX if fault == "silent" else PAUSE_S_MAX)
        if fault == "silent":
            scene.cluster.network.switch_on(relay)

    scene.run(use)


@pytest.mark.parametrize("fault", ["kill", "silent"])
def test_the_node_fails_while_it_is_cut_off(fault):
    """New routing info wins: who is judged is not asked by any way."""
    scene = Scene(2)

    async def use(scene: Scene, fs: EmberFs) -> None:
        scene.cut(CLIENT, scene.head)
        await scene.repeat(lambda count: use_native(fs, count), 10.0)
        scene.check_pauses()
        if fault == "kill":
            await scene.cluster.kill(scene.head)
        else:
            scene.cluster.network.switch_off(scene.head)
        await scene.repeat(lambda count: use_native(fs, 100 + count), 20.0)
        scene.check_pauses(1, 3.0 if fault == "kill" else LEASE_PAUSE_S_MAX)
        relayed = sum(scene.relayed.values())
        await scene.repeat(lambda count: use_native(fs, 200 + count), 5.0)
        assert sum(scene.relayed.values()) == relayed
        scene.check_pauses(0)
        if fault == "silent":
            scene.cluster.network.switch_on(scene.head)

    scene.run(use)


def test_a_link_that_flaps_costs_ever_fewer_pauses():
    """Who goes straight as soon as the way is free pays for each time that it is cut again."""
    scene = Scene(2)

    async def use(scene: Scene, fs: EmberFs) -> None:
        async def flap() -> None:
            for _ in range(FLAP_COUNT):
                scene.cut(CLIENT, scene.head)
                await trio.sleep(FLAP_S)
                scene.cluster.network.heal()
                await trio.sleep(FLAP_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flap)
            await scene.repeat(lambda count: use_native(fs, count), 2 * FLAP_COUNT * FLAP_S)
        scene.check_pauses(3)

    scene.run(use)


def test_the_node_is_started_again_while_the_link_is_cut():
    """Its next process is found to be cut off before anybody waits for it."""
    scene = Scene(2, replica_count=1)

    async def use(scene: Scene, fs: EmberFs) -> None:
        scene.cut(CLIENT, scene.head)
        await scene.repeat(lambda count: use_native(fs, count), 10.0)
        scene.check_pauses()
        for count in range(3):
            await scene.cluster.kill(scene.head)
            scene.cluster.start(scene.head)
            await scene.repeat(lambda again, n=1000 * count: use_native(fs, n + again), 12.0)
            scene.check_pauses(1, RESTART_PAUSE_S_MAX)
        assert any(scene.relayed.values())

    scene.run(use)


def test_the_link_of_the_relay_is_cut_as_well():
    scene = Scene(2)

    async def use(scene: Scene, fs: EmberFs) -> None:
        scene.cut(CLIENT, scene.head)
        await scene.repeat(lambda count: use_native(fs, count), 10.0)
        scene.check_pauses()
        scene.cut(relay_of(scene), scene.head)
        await scene.repeat(lambda count: use_native(fs, 100 + count), 40.0)
        # Chains that both are in go on once one of them has left (storage.link_failed_after_s).
        scene.check_pauses(1, LINK_PAUSE_S_MAX)

    scene.run(use)


@pytest.mark.parametrize("older", ["some", "all"])
def test_nodes_of_an_earlier_release_pass_nothing_on(older, monkeypatch):
    scene = Scene(2)
    names = scene.cluster.storages
    without = {100 + i + 1 for i in range(len(names)) if older == "all" or i < len(names) - 1}
    real = Relays.relay

    async def relay(self, call, request):
        if self._context.node_id in without:
            raise FsError(Status.RPC_UNKNOWN_METHOD, "service 3 method 21")
        return await real(self, call, request)

    monkeypatch.setattr(Relays, "relay", relay)

    async def use(scene: Scene, fs: EmberFs) -> None:
        scene.cut(CLIENT, scene.head)

        async def heal() -> None:
            await trio.sleep(CUT_S)
            scene.cluster.network.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal)
            await scene.repeat(lambda count: use_native(fs, count))
        if older == "some":
            scene.check_pauses()
        else:  # as ever: for as long as the cut lasts
            assert CUT_S - 1.0 < max(scene.pauses) < CUT_S + 10.0
        await trio.sleep(10.0)
        scene.pauses.clear()
        await scene.repeat(lambda count: use_native(fs, 100 + count), 5.0)
        scene.check_pauses(0)

    scene.run(use)


def test_who_reaches_no_storage_node_waits_as_ever():
    scene = Scene(2)

    async def use(scene: Scene, fs: EmberFs) -> None:
        await use_native(fs, 0)
        for name in scene.cluster.storages:
            scene.cut(CLIENT, name)

        async def heal() -> None:
            await trio.sleep(CUT_S)
            scene.cluster.network.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal)
            await scene.timed(use_native(fs, 1))
        assert CUT_S - 1.0 < scene.pauses[0] < CUT_S + 8.0
        await trio.sleep(10.0)
        await scene.timed(use_native(fs, 2))
        assert scene.pauses[1] < QUICK_S

    scene.run(use)
