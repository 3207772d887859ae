"""Many who truncate one file without end: everybody gets his turn."""

import pytest

# ruff: noqa: ARG001 - a test that sleeps names the clock it wants
import trio

from fs.schema.status import FsError
from tests.meta.harness import ROOT, hint, session

pytestmark = pytest.mark.thorough

TASK_COUNT = 40
CUT_S = 0.05
RUN_S = 60.0


async def test_who_truncates_among_many_waits_for_each_of_them_once(
    world, root, nursery, autojump_clock
):
    """Who came later was often first, so that some waited until they were refused as BUSY."""
    await nursery.start(world.meta.run)
    made = await root.create(ROOT, b"f", 0o666, wants_write=True, session=session(1))
    file = made.inode_id
    await root.sync(file, length_hint=hint(1000), has_new_data=True)

    async def cut():
        await trio.sleep(CUT_S)

    world.chunks.before_truncate = cut
    took_s, refused = [], []

    async def truncate_on_and_on():
        while trio.current_time() < RUN_S:
            for length in (1000, 10):
                began_s = trio.current_time()
                try:
                    await root.set_attr(file, length=length)
                except FsError as error:
                    refused.append(error)
                took_s.append(trio.current_time() - began_s)

    async with trio.open_nursery() as truncators:
        for _ in range(TASK_COUNT):
            truncators.start_soon(truncate_on_and_on)
    assert not refused
    assert max(took_s) < 3 * TASK_COUNT * CUT_S
    nursery.cancel_scope.cancel()
