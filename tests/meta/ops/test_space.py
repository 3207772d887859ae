"""What a file takes: its length, or, once it has holes, what its chunks hold."""

from fs.client.fuse.answers import used_blocks
from fs.meta.content_driver import PATIENT_ROUND_COUNT
from fs.schema.inode import inode_from_pb
from tests.meta.harness import ROOT, hint, session


async def blocks(user, inode_id):
    return used_blocks(inode_from_pb(await user.attr(inode_id)))


async def test_without_holes_nobody_asks_the_chains(world, root):
    f = (await root.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    world.chunks.error = AssertionError("asked")
    await root.sync(f, has_new_data=True, length_hint=hint(10_000))
    await root.close(f, session(1).session_id, has_new_data=True, length_hint=hint(20_000))
    assert await blocks(root, f) == 40


async def test_with_holes_the_chains_say_it(world, root):
    f = (await root.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    world.chunks.used[f] = 700
    before = await root.sync(f, has_new_data=True, length_hint=hint(1 << 20), counts_space=True)
    assert await blocks(root, f) == 2
    after = await root.sync(f, counts_space=True)  # after everything was reported
    assert after.ctime_ns == before.ctime_ns
    await root.sync(f, has_new_data=True, length_hint=hint((1 << 20) + 1024))
    assert await blocks(root, f) == 4  # until it is counted again
    world.chunks.used[f] = (1 << 20) + 1024
    await root.close(f, session(1).session_id, counts_space=True)
    assert not (await root.attr(f)).file.has_holes
    assert await blocks(root, f) == 2050


async def test_truncation_makes_and_cuts_holes(world, root):
    f = (await root.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    await root.sync(f, has_new_data=True, length_hint=hint(1000))
    await root.set_attr(f, length=1 << 30)
    assert await blocks(root, f) == 2
    world.chunks.used[f] = 0  # what was there lay behind the new end
    shown = await root.set_attr(f, length=1 << 20)
    assert used_blocks(inode_from_pb(shown)) == 0
    assert await blocks(root, f) == 0
    await root.set_attr(f, length=0)
    assert not (await root.attr(f)).file.has_holes


async def test_an_old_answer_of_the_chains_does_not_undo_a_newer_count(world, root):
    f = (await root.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    await root.set_attr(f, length=1 << 20)
    world.chunks.used[f] = 1000

    async def another_counts():
        world.chunks.after_look = None
        world.chunks.used[f] = 5000
        await root.sync(f, has_new_data=True, length_hint=hint(5000), counts_space=True)

    world.chunks.after_look = another_counts
    await root.sync(f, has_new_data=True, length_hint=hint(1000), counts_space=True)
    assert (await root.attr(f)).used_bytes == 5000


async def test_others_that_report_all_the_time_hold_up_no_count(world, root):
    f = (await root.create(ROOT, b"f", wants_write=True, session=session(1))).inode_id
    await root.set_attr(f, length=1 << 20)
    world.chunks.used[f] = 1000
    looks = []

    async def another_reports():
        looks.append(1)
        await root.sync(f, has_new_data=True, length_hint=hint(1000))

    world.chunks.after_look = another_reports
    await root.sync(f, has_new_data=True, length_hint=hint(1000), counts_space=True)
    assert (await root.attr(f)).used_bytes == 1000
    assert len(looks) == PATIENT_ROUND_COUNT + 1
