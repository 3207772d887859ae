"""Every request whose service dies at any of its awaits on the store or the chunks,
made again at another service: done once.

The n-th await is the last thing a service does, for n = 1, 2, ... until the request is answered
before that; before it, its first commit may be of unknown outcome, of both kinds.  The namespace
must then be what one undisturbed request leaves.
"""

import itertools

import pytest
import trio

from fs.kv.faulty import Fate, ScriptedFaults
from fs.kv.memory import MemoryEngine
from fs.meta import idempotency, records
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto.record_pb2 import DentryRecordPb
from tests.meta.harness import World
from tests.meta.pauses import PausingEngine
from tests.meta.test_idempotency import NAMES, NOT_COUNTED, comparable, prepare, requests

pytestmark = pytest.mark.thorough

FATES = {
    "none": [],
    "committed": [Fate.UNKNOWN_COMMITTED],
    "lost": [Fate.UNKNOWN_LOST],
}


class Victim:
    """Dies at its n-th await; counts them."""

    def __init__(self, last):
        self.left = last
        self.scope = trio.CancelScope()

    async def pause(self, _what="chunks"):
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()
            await trio.lowlevel.checkpoint()


async def survive(name, fates, last):
    """Return (whether the service died, what is left afterwards)."""
    store = MemoryEngine(SimulatedClock())
    victim = Victim(0)
    world = World(PausingEngine(store, victim.pause))
    await world.initialise()
    d, f = await prepare(world)
    before = inode_ids(await world.dump())
    rpc, request = requests(d, f)[name]
    user = world.user()
    user.request_id = b"R" * 16
    world.meta, other = world.new_meta(), world.new_meta()
    for service in (world.meta.service, other.service):
        await service.inode_ids.take()
    store.faults = ScriptedFaults(fates)
    world.chunks.before_truncate = victim.pause
    victim.left = last
    with victim.scope:
        await user.call(rpc, request)
    store.faults, victim.left = None, 0
    if victim.scope.cancelled_caught:
        world.meta, user.is_repeat = other, True
        await user.call(rpc, request)
    assert await check(store) == []
    found = await comparable(world, with_data_ver=name not in NOT_COUNTED)
    return victim.scope.cancelled_caught, anonymous(found, before)


def inode_ids(rows):
    return {records.unpack_id(key[4:12]) for key in rows if key.startswith(records.INODE)}


def anonymous(found, before):
    """The same with the ids of new inodes taken out: each service has ids of its own."""
    new_ids = sorted(inode_ids(found) - before)
    names = {inode_id: -number % 2**64 for number, inode_id in enumerate(new_ids, 1)}
    made = {}
    for key, value in found.items():
        for number, inode_id in enumerate(new_ids):
            mark = b"new %4d" % number
            key = key.replace(records.pack_id(inode_id), mark)  # noqa: PLW2901
            key = key.replace(inode_id.to_bytes(8, "big"), mark)  # noqa: PLW2901
        if key.startswith(records.INODE):
            inode = pb.InodePb.FromString(value)
            inode.inode_id = names.get(inode.inode_id, inode.inode_id)
            inode.home_inode_id = names.get(inode.home_inode_id, inode.home_inode_id)
            if inode.HasField("directory"):
                parent_id = inode.directory.parent_inode_id
                inode.directory.parent_inode_id = names.get(parent_id, parent_id)
            value = inode.SerializeToString()  # noqa: PLW2901
        elif key.startswith(records.DENTRY):
            dentry = DentryRecordPb.FromString(value)
            dentry.inode_id = names.get(dentry.inode_id, dentry.inode_id)
            value = dentry.SerializeToString()  # noqa: PLW2901
        made[key] = value
    return made


@pytest.mark.parametrize(
    "fate", [pytest.param(f, marks=[pytest.mark.slow] * (f == "lost")) for f in FATES]
)
@pytest.mark.parametrize("name", NAMES)
async def test_dying_at_every_await(name, fate, autojump_clock):  # noqa: ARG001
    _, expected = await survive(name, [], 0)
    for last in itertools.count(1):
        has_died, found = await survive(name, FATES[fate], last)
        assert found == expected, f"died at await {last}"
        if not has_died:
            break
    assert last > 3, "a request that changes something reads, commits and has committed"


async def test_a_forgotten_reply_is_noticed(monkeypatch, autojump_clock):  # noqa: ARG001
    async def nothing(*_args):
        return None

    _, expected = await survive("append", [], 0)
    monkeypatch.setattr(idempotency, "recall", nothing)
    assert any([(await survive("append", [], last))[1] != expected for last in range(1, 12)])
