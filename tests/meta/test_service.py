"""What stands around the operations: request checks, inode ids, formats, the namespace check."""

import itertools
import tracemalloc

import pytest
import trio

from fs.kv.faulty import CommitFault, Fate, ScriptedFaults
from fs.kv.transact import transact
from fs.meta import records
from fs.meta.init import initialise, require_format, storage_level_min
from fs.meta.inode_ids import BLOCK_COUNT, SHARD_COUNT, InodeIds, block_ids
from fs.meta.service import MetaService
from fs.schema.ids import FIRST_INODE_ID
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.common_pb2 import CallerPb
from fs.schema.proto.record_pb2 import FormatRecordPb
from fs.schema.routing import FILLS_LEVEL, STORAGE_LEVEL
from fs.schema.status import Status
from tests.meta.harness import CALL, ROOT, SECOND_NS, World, hint, refused, session


def snake(name):
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def test_every_rpc_is_served():
    for method in meta.DESCRIPTOR.services_by_name["Meta"].methods:
        assert callable(getattr(MetaService, snake(method.name))), method.name


@pytest.mark.parametrize(
    "caller",
    [
        None,
        CallerPb(client_id="x" * 65),
        CallerPb(client_id="a\x00b"),
        CallerPb(request_id=b"short"),
        CallerPb(groups=range(65_537)),
    ],
)
async def test_bad_callers_are_refused(world, caller):
    for name, request in (
        ("mkdir", meta.MkdirReq(parent_inode_id=ROOT, name=b"d", caller=caller)),
        ("lookup", meta.LookupReq(parent_inode_id=ROOT, name=b"d", caller=caller)),
        ("sync_meta", meta.SyncMetaReq(caller=caller)),
        ("close", meta.CloseReq(sync=meta.SyncReq(inode_id=ROOT, caller=caller))),
    ):
        with refused(Status.RPC_BAD_REQUEST):
            await getattr(world.meta.service, name)(CALL, request)


async def test_groups_without_end_are_refused_before_they_take_memory(world):
    """As a set they take thirty times the memory of the message."""
    caller = CallerPb(groups=range(1, 500_000))
    request = meta.GetAttrReq(caller=caller, inode_id=ROOT)
    tracemalloc.start()
    try:
        with refused(Status.RPC_BAD_REQUEST):
            await world.meta.service.get_attr(CALL, request)
        taken_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken_bytes < 1 << 20


@pytest.mark.parametrize("inode_id", [0, 2, 2**63, 2**64 - 1])
async def test_odd_inode_ids_get_a_clear_error(root, inode_id):
    for attempt in (
        root.lookup(inode_id, b"x"),
        root.create(inode_id, b"x"),
        root.open(inode_id, wants_write=True, session=session(1)),
        root.rename(inode_id, b"x", inode_id, b"y"),
    ):
        with pytest.raises(Exception) as info:  # noqa: PT011 - the status is looked at below
            await attempt
        assert info.value.status in (Status.STALE, Status.NOT_FOUND, Status.IS_DIRECTORY)


def test_blocks_of_ids_tile_the_space():
    blocks = [block_ids(shard, block) for block in range(3) for shard in range(SHARD_COUNT)]
    assert blocks[0].start == FIRST_INODE_ID
    assert all(a.stop == b.start for a, b in itertools.pairwise(blocks))


async def test_ids_are_unique_across_services_and_unknown_outcomes(world):
    world.engine.faults = ScriptedFaults([Fate.UNKNOWN_COMMITTED, Fate.UNKNOWN_LOST] * 3)
    taken = []

    async def take(source, count):
        for _ in range(count):
            taken.append(await source.take())  # noqa: PERF401 - tasks interleave here

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            source = InodeIds(world.engine, world.runtime, 10.0)
            for _ in range(4):
                nursery.start_soon(take, source, BLOCK_COUNT // 2)
    world.engine.faults = None
    assert len(taken) == len(set(taken)) == 3 * 4 * BLOCK_COUNT // 2


async def test_ids_are_fetched_ahead(world, nursery, autojump_clock):  # noqa: ARG001
    await nursery.start(world.meta.run)
    ids = world.meta.service.inode_ids
    await ids.take()
    while ids.left_count > 1000:
        await ids.take()
    await trio.sleep(0.1)  # a flush is part of it
    assert ids.left_count > BLOCK_COUNT
    nursery.cancel_scope.cancel()


async def test_time_goes_on_at_half_its_pace_while_the_wall_clock_is_behind(world, autojump_clock):  # noqa: ARG001
    service, clock = world.meta.service, world.runtime.clock
    before_ns = service.now_ns()
    clock.wall_offset_ns -= 100 * SECOND_NS
    first_ns = service.now_ns()
    assert first_ns == before_ns + 1
    assert service.now_ns() == first_ns + 1
    await trio.sleep(50)
    assert service.now_ns() == first_ns + 1 + 25 * SECOND_NS
    await trio.sleep(10)
    assert service.now_ns() == first_ns + 1 + 30 * SECOND_NS
    await trio.sleep(200)
    assert service.now_ns() == clock.wall_ns()
    clock.wall_offset_ns -= SECOND_NS
    assert service.now_ns() == clock.wall_ns() + SECOND_NS + 1


async def test_initialising_twice_changes_nothing(world):
    before = await world.dump()
    arguments = {"runtime": world.runtime, "config": world.config.meta}
    assert not await initialise(world.engine, cluster_id="emberfs", **arguments)
    assert await world.dump() == before
    assert await require_format(world.engine, "emberfs") == records.FORMAT_VERSION
    with refused(Status.KV_BAD_FORMAT):
        await initialise(world.engine, cluster_id="other", **arguments)
    with refused(Status.KV_BAD_FORMAT):
        await require_format(world.engine, "other")


@pytest.mark.parametrize(("version", "level"), [(1, 0), (3, 0), (4, FILLS_LEVEL)])
async def test_storage_has_to_know_fills_beside_a_store_that_may_hold_inline_files(
    world, version, level
):
    async def age(tr):
        stored = FormatRecordPb.FromString(await tr.get(records.FORMAT_KEY))
        stored.format_version = version
        tr.set(records.FORMAT_KEY, stored.SerializeToString())

    await transact(world.engine, age, runtime=world.runtime)
    assert await storage_level_min(world.engine, "emberfs") == level <= STORAGE_LEVEL


async def test_a_newer_or_missing_format_is_refused(world, open_lab, monkeypatch):
    monkeypatch.setattr(records, "FORMAT_VERSION", 0)
    with refused(Status.KV_BAD_FORMAT):
        await require_format(world.engine, "emberfs")
    empty = World(await open_lab())
    with refused(Status.KV_BAD_FORMAT):
        await empty.meta.run()


async def test_the_later_of_two_changes_has_the_larger_ctime(world, root, autojump_clock):  # noqa: ARG001
    """A client tells by it which of two replies is the newer one,
    whatever the order in which they arrive.
    """
    inode_id = (await root.create(ROOT, b"f")).inode_id
    world.engine.faults = ScriptedFaults([CommitFault(Fate.CONFLICT, delay_before_s=2.0)])
    replies = {}

    async def extend():
        replies["extended"] = await root.set_attr(inode_id, length=2000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(extend)
        await trio.sleep(1)
        replies["reported"] = await root.sync(inode_id, has_new_data=True, length_hint=hint(1000))
    world.engine.faults = None
    assert (replies["reported"].file.length, replies["extended"].file.length) == (1000, 2000)
    assert replies["extended"].ctime_ns > replies["reported"].ctime_ns
