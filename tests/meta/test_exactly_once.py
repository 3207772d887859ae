# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Names made, linked, moved and removed by clients whose requests arrive late, twice or never,
at any of three services.

Every client takes away what the others make, so a repeat seldom finds its work where it left it.
What the clients were told must add up to what is there: a change that was made twice, or refused
and made all the same, is one name too many or too few.
"""

import random
from collections import Counter

import pytest
import trio

from fs.kv.faulty import RandomFaults
from fs.meta.check import check
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.kv.harness import CHOSEN_KIND
from tests.meta.harness import ROOT, World
from tests.meta.late_calls import LateCalls

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHOSEN_KIND not in {"", "memory"}, reason="takes virtual time"),
]

CLIENT_COUNT = 4
CHANGE_COUNT = 60
"""Of each client."""

NAME_COUNT = 6
EXPECTED = {
    Status.EXISTS,
    Status.NOT_FOUND,
    Status.NOT_DIRECTORY,
    Status.IS_DIRECTORY,
    Status.NOT_EMPTY,
}


class Crowd:
    """The clients, the services, and what was done as far as its client knows."""

    def __init__(self, world: World, seed: int, nursery: trio.Nursery) -> None:
        self.random = random.Random(seed)
        self.calls = LateCalls(world, self.random, nursery)
        self.done: Counter[str] = Counter()

    def _change(self):
        """Return (what it does to the number of names, RPC, request)."""
        rng = self.random
        place = {"parent_inode_id": ROOT, "name": b"%d" % rng.randrange(NAME_COUNT)}
        move = {"old_parent_inode_id": ROOT, "old_name": place["name"], "new_parent_inode_id": ROOT}
        return rng.choice(
            [
                (1, "create", meta.CreateReq(is_exclusive=True, **place)),
                (1, "mkdir", meta.MkdirReq(**place)),
                (1, "symlink", meta.SymlinkReq(target=b"t", **place)),
                (1, "mknod", meta.MknodReq(type=pb.FIFO, **place)),
                (1, "link", meta.LinkReq(inode_id=self.shared_id, **place)),
                (-1, "unlink", meta.UnlinkReq(**place)),
                (-1, "rmdir", meta.RmdirReq(**place)),
                (-1, "remove_tree", meta.RemoveTreeReq(**place)),
                (0, "rename", meta.RenameReq(new_name=rng.randbytes(8).hex().encode(), **move)),
                (
                    0,
                    "rename",
                    meta.RenameReq(
                        new_name=b"%d" % rng.randrange(NAME_COUNT), no_replace=True, **move
                    ),
                ),
            ]
        )

    async def work(self, number: int) -> None:
        for _ in range(CHANGE_COUNT):
            growth, name, request = self._change()
            try:
                await self.calls.call(f"{number:032x}", name, request)
            except FsError as error:
                assert error.status in EXPECTED, error  # noqa: PT017 - success is an outcome too
                continue
            self.done[name] += 1
            self.done["names"] += growth

    async def run(self) -> None:
        self.shared_id = (
            await self.calls.call(
                "e" * 32, "create", meta.CreateReq(parent_inode_id=ROOT, name=b"shared")
            )
        ).inode.inode_id
        async with trio.open_nursery() as nursery:
            for number in range(CLIENT_COUNT):
                nursery.start_soon(self.work, number)


@pytest.mark.parametrize("seed", range(6))
async def test_what_clients_were_told_adds_up(world, autojump_clock, seed):
    world.engine.faults = RandomFaults(
        random.Random(seed),
        conflict=0.05,
        unknown_committed=0.05,
        unknown_lost=0.05,
        delay_before_s_max=0.1,
        delay_after_s_max=0.1,
    )
    async with trio.open_nursery() as nursery:
        crowd = Crowd(world, seed, nursery)
        await crowd.run()
    # Everything that was late has arrived now.
    world.engine.faults = None
    found = await world.user().names(ROOT)
    assert len(found) == 1 + crowd.done["names"], crowd.done
    assert crowd.calls.repeat_count and crowd.done.total() > CHANGE_COUNT
    assert await check(world.engine) == []
