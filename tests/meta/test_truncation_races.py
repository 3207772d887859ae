"""Truncations of one file by several clients,
the end of one and the beginning of the next at the same moment.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

from functools import partial

import pytest
import trio

from fs.meta.context import TruncationUnfinishedError
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, session

pytestmark = pytest.mark.thorough


async def write_100_bytes(world, root, file_id):
    part = (await root.attr(file_id)).file
    hint = meta.LengthHintPb(length=100, truncate_ver=part.truncate_ver)
    world.chunks.lengths[file_id] = 100
    await root.sync(file_id, length_hint=hint, has_new_data=True)


async def file_of_100_bytes(world, root):
    file = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    await write_100_bytes(world, root, file.inode_id)
    return file.inode_id


class LateTransactions:
    """Transactions of a service whose outcome is there for all others,
    while the service itself has not heard of it.
    """

    def __init__(self, driver) -> None:
        self._transact = driver.transact
        self.is_late = None
        self.reached, self.go = trio.Event(), trio.Event()
        driver.transact = self.transact

    async def transact(self, fn):
        result = await self._transact(fn)
        if self.is_late is not None and await self.is_late():
            self.is_late = None
            self.reached.set()
            await self.go.wait()
        return result


async def test_an_open_does_not_take_the_cut_of_an_earlier_truncation_for_its_own(
    memory_world, root, nursery, autojump_clock
):
    """Its client would write, and the cut that is still to come would take what it wrote."""
    world = memory_world
    file_id = await file_of_100_bytes(world, root)

    async def has_finished() -> bool:
        part = (await root.attr(file_id)).file
        return bool(world.chunks.truncated) and not part.truncate_pending

    late = LateTransactions(world.meta.service.driver)
    late.is_late = has_finished
    truncate = meta.OpenReq(inode_id=file_id, is_truncate=True, wants_write=True)
    truncate.session.CopyFrom(session(2))
    nursery.start_soon(partial(root.call, "open", truncate))
    await late.reached.wait()
    # The first truncation is over for everybody but for who drove it: somebody writes,
    # and somebody truncates again.
    await write_100_bytes(world, root, file_id)
    again = meta.OpenReq(inode_id=file_id, is_truncate=True, wants_write=True)
    again.session.CopyFrom(session(3))
    opened = []

    async def open_again() -> None:
        opened.append((await root.call("open", again)).inode)

    async with trio.open_nursery() as inner:
        inner.start_soon(open_again)
        await trio.sleep(1)
        late.go.set()
    part = (await root.attr(file_id)).file
    assert (part.truncate_ver, part.truncate_pending) == (2, False)
    assert [one.file.truncate_pending for one in opened] == [False]
    assert len(world.chunks.truncated) == 2


async def test_those_who_wait_for_a_cut_share_one_further_look(memory_world, root, autojump_clock):
    world, looks = memory_world, []
    file_id = await file_of_100_bytes(world, root)
    driver = world.meta.service.driver
    world.chunks.before_truncate = partial(trio.sleep, 1)
    look = driver._inode

    async def counted_look(inode_id):
        looks.append(inode_id)
        await trio.sleep(0.1)
        return await look(inode_id)

    async with trio.open_nursery() as inner:
        inner.start_soon(partial(root.set_attr, file_id, length=10))
        await trio.sleep(0.5)
        driver._inode = counted_look
        for _ in range(5):
            inner.start_soon(driver.finish_truncation, file_id)
    assert len(looks) == 2  # the first cut asked whether it is still wanted; then one more for all
    assert len(world.chunks.truncated) == 1
    assert not (await root.attr(file_id)).file.truncate_pending


async def test_who_waits_for_a_cut_is_told_of_its_failure_and_the_next_tries_again(
    memory_world, root, autojump_clock
):
    world, told = memory_world, []
    file_id = await file_of_100_bytes(world, root)
    world.chunks.before_truncate = partial(trio.sleep, 1)
    world.chunks.error = FsError(Status.IO_ERROR, "no chain")

    async def finish(work) -> None:
        with pytest.raises(FsError) as error:
            await work()
        told.append(error.value.status)

    async with trio.open_nursery() as inner:
        inner.start_soon(finish, partial(root.set_attr, file_id, length=10))
        await trio.sleep(0.5)
        inner.start_soon(finish, partial(world.meta.service.driver.finish_truncation, file_id))
    assert told == [Status.IO_ERROR] * 2
    world.chunks.error = None
    await world.meta.service.driver.finish_truncation(file_id)
    assert not (await root.attr(file_id)).file.truncate_pending


async def test_of_many_who_truncate_one_file_none_is_turned_away(
    memory_world, root, autojump_clock
):
    world = memory_world
    file_id = await file_of_100_bytes(world, root)
    world.chunks.before_truncate = partial(trio.sleep, 0.01)
    async with trio.open_nursery() as inner:
        for number in range(
            200
        ):  # every other one makes it longer again, so that there is always something to cut
            inner.start_soon(partial(root.set_attr, file_id, length=10 if number % 2 else 100))
    assert not (await root.attr(file_id)).file.truncate_pending


async def test_who_never_gets_his_turn_is_told_so_in_the_end(memory_world, root, autojump_clock):
    world = memory_world
    file_id = await file_of_100_bytes(world, root)
    driver, begun_s = world.meta.service.driver, trio.current_time()

    async def attempt(_):
        raise TruncationUnfinishedError(await root.attr(file_id))

    with pytest.raises(FsError) as e:
        await driver.run(attempt)
    assert e.value.status is Status.BUSY
    assert 9 < trio.current_time() - begun_s < 12
