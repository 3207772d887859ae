"""What chunks rely on is durable before they are touched: an id, a new length, a removal."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

from functools import partial

import trio

from fs.meta import records
from fs.schema.proto import meta_pb2 as meta
from tests.meta.harness import ROOT, session


async def test_an_id_given_away_is_not_given_again(memory_world, autojump_clock):
    world = memory_world
    before = {await world.meta.service.inode_ids.take() for _ in range(10)}
    world.engine.power_loss(LosesAll())
    world.meta = world.new_meta()
    shards = [
        records.unpack_u64(await world.engine.transaction().get(records.inode_ids_key(shard)))
        for shard in range(32)
    ]
    assert sum(shards) >= 1
    assert before.isdisjoint({await world.meta.service.inode_ids.take() for _ in range(10)})


async def test_a_length_is_durable_before_chunks_are_cut(memory_world, root, autojump_clock):
    world = memory_world
    file = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    world.chunks.lengths[file.inode_id] = 100
    request = meta.SyncReq(
        inode_id=file.inode_id,
        length_hint=meta.LengthHintPb(length=100),
        has_new_data=True,
        is_durable=True,
    )
    await root.call("sync", request)
    kept = []

    async def lose_power() -> None:
        world.engine.power_loss(LosesAll())
        kept.append((await root.attr(file.inode_id)).file)

    world.chunks.before_truncate = lose_power
    await root.create(ROOT, b"f", is_truncate=True, wants_write=True, session=session(2))
    assert [(f.length, f.truncate_pending) for f in kept] == [(0, True)]


async def test_a_truncation_that_has_finished_is_not_done_again(memory_world, root, autojump_clock):
    """Whoever has the file open for writing since may outlive the power loss, and go on writing."""
    world = memory_world
    file = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    world.chunks.lengths[file.inode_id] = 100
    written = meta.SyncReq(
        inode_id=file.inode_id,
        length_hint=meta.LengthHintPb(length=100),
        has_new_data=True,
        is_durable=True,
    )
    await root.call("sync", written)
    file = await root.create(ROOT, b"f", is_truncate=True, wants_write=True, session=session(2))
    cut_count = len(world.chunks.truncated)
    world.engine.power_loss(LosesAll())
    written.length_hint.truncate_ver = file.file.truncate_ver
    await root.call("sync", written)
    assert (await root.attr(file.inode_id)).file.length == 100
    assert len(world.chunks.truncated) == cut_count == 1


async def test_a_finished_truncation_is_not_told_before_it_is_durable(
    memory_world, root, nursery, autojump_clock
):
    """Another service would let a client write behind the end,
    and that would be cut after a power loss.
    """
    world = memory_world
    file = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    world.chunks.lengths[file.inode_id] = 100
    await root.sync(
        file.inode_id, length_hint=meta.LengthHintPb(length=100), has_new_data=True, is_durable=True
    )
    sync, go, held = world.engine.sync, trio.Event(), trio.Event()

    async def slow_sync() -> None:
        if world.chunks.truncated:
            held.set()
            await go.wait()
        await sync()

    world.engine.sync = slow_sync
    nursery.start_soon(partial(root.set_attr, file.inode_id, length=10))
    await held.wait()
    part = (await root.attr(file.inode_id)).file
    assert (part.length, part.truncate_pending, part.cut_ver) == (10, True, part.truncate_ver)
    go.set()


async def test_a_stripe_lost_with_the_power_is_there_again_with_the_length(
    memory_world, root, autojump_clock
):
    """Else a later truncation or removal would not ask the chains
    that the writer has used since.
    """
    world = memory_world
    file = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    await root.call("sync", meta.SyncReq(inode_id=file.inode_id, is_durable=True))
    extend = meta.ExtendStripeReq(inode_id=file.inode_id, dyn_stripe_min=3)
    assert (await root.call("extend_stripe", extend)).inode.file.dyn_stripe == 4
    world.engine.power_loss(LosesAll())
    assert (await root.attr(file.inode_id)).file.dyn_stripe == 1
    hint = meta.LengthHintPb(length=2 * file.file.layout.chunk_size_bytes + 1)
    request = meta.SyncReq(inode_id=file.inode_id, length_hint=hint, has_new_data=True)
    await root.call("sync", request)
    assert (await root.attr(file.inode_id)).file.dyn_stripe == 4


async def test_a_removal_is_durable_before_its_chunks_go(memory_world, root, autojump_clock):
    world = memory_world
    file = await root.create(ROOT, b"f")
    await root.call("sync", meta.SyncReq(inode_id=file.inode_id, is_durable=True))
    await root.unlink(ROOT, b"f")
    await trio.sleep(61)
    remove_files = world.chunks.remove_files

    async def lose_power_first(files) -> None:
        world.engine.power_loss(LosesAll())
        assert await world.engine.transaction().get(records.inode_key(file.inode_id)) is None
        await remove_files(files)

    world.chunks.remove_files = lose_power_first
    while await world.meta.gc.step():
        pass
    assert world.chunks.removed == [file.inode_id]


class LosesAll:
    """A source whose power losses take everything that may be taken."""

    def randint(self, low: int, _high: int) -> int:
        return low
