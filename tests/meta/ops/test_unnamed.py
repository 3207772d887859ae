"""Files made without a name: kept by sessions, given a name by link, else collected."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import pytest
import trio

from fs.meta.check import check
from fs.schema.status import Status
from tests.meta.harness import ROOT, hint, refused, session
from tests.meta.test_gc import collect_all, keys


async def make(user, number, **fields):
    return await user.create(
        ROOT, b"", wants_write=True, session=session(number), is_unnamed=True, **fields
    )


async def test_it_goes_when_nobody_has_it_open(world, root, autojump_clock):
    made = await make(root, 1)
    assert made.nlink == 0 and not await root.names(ROOT)
    for _ in range(20):
        await trio.sleep(30)
        await collect_all(world)
    assert (await root.attr(made.inode_id)).nlink == 0
    await root.close(made.inode_id, session(1).session_id)
    await trio.sleep(61)
    await collect_all(world)
    with refused(Status.STALE):
        await root.attr(made.inode_id)
    assert not await keys(world, b"GC")


async def test_it_goes_with_a_dead_client(world, root, autojump_clock):
    made = await make(root, 1)
    await trio.sleep(world.config.meta.session_grace_s + 1)
    assert await world.meta.sessions.step() == 1
    await trio.sleep(61)
    await collect_all(world)
    with refused(Status.STALE):
        await root.attr(made.inode_id)


@pytest.mark.parametrize("pause_s", [0, 90, 300])
async def test_a_name_keeps_it(world, root, autojump_clock, pause_s):
    made = await make(root, 1)
    await root.sync(made.inode_id, has_new_data=True, length_hint=hint(5))
    for _ in range(pause_s // 30):
        await trio.sleep(30)
        await collect_all(world)  # which puts it off, again and again
    assert (await root.link(made.inode_id, ROOT, b"f")).nlink == 1
    assert not await keys(world, b"GC")
    assert (await root.usage(ROOT)).directory.usage.bytes == 5
    assert await check(world.engine) == []
    assert (await root.link(made.inode_id, ROOT, b"g")).nlink == 2
    await root.close(made.inode_id, session(1).session_id)
    await trio.sleep(300)
    await collect_all(world)
    assert (await root.lookup(ROOT, b"f")).file.length == 5
    await root.unlink(ROOT, b"f")
    await root.unlink(ROOT, b"g")
    with refused(Status.NOT_FOUND, "ENOENT"):
        await root.link(made.inode_id, ROOT, b"f")
    assert await check(world.engine) == []


async def test_refusals(world, root, alice):
    never = await make(root, 1, is_exclusive=True)
    with refused(Status.NOT_FOUND):
        await root.link(never.inode_id, ROOT, b"f")
    with refused(Status.ACCESS_DENIED):
        await make(alice, 2)
    with refused(Status.INVALID_ARGUMENT):
        await root.create(ROOT, b"", is_unnamed=True)
    made = await make(root, 3)
    with refused(Status.ACCESS_DENIED):
        await alice.link(made.inode_id, ROOT, b"f")
    assert await check(world.engine) == []


async def test_its_name_is_judged_by_quotas(world, root):
    full = await root.mkdir(ROOT, b"full")
    await root.set_quota(full.inode_id, 4, 10)
    made = await make(root, 1)
    await root.sync(made.inode_id, has_new_data=True, length_hint=hint(5))
    with refused(Status.QUOTA_EXCEEDED):
        await root.link(made.inode_id, full.inode_id, b"f")
    assert await check(world.engine) == []
    assert (await root.link(made.inode_id, ROOT, b"f")).nlink == 1
