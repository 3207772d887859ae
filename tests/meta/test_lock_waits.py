"""Who waits for a lock is woken, and leaves nothing behind."""

import trio

from fs.meta.lock_waits import LockWaits
from fs.schema.proto.meta_pb2 import FindLockConflictReq, FindLockConflictRsp

TAKEN, FREE = FindLockConflictRsp(conflict={}), FindLockConflictRsp()


def request(inode_id, wait_ms=1000):
    return FindLockConflictReq(inode_id=inode_id, wait_ms=wait_ms)


async def test_a_wait_in_vain_leaves_nothing(autojump_clock):  # noqa: ARG001
    waits = LockWaits()

    async def taken():
        return TAKEN

    async with trio.open_nursery() as nursery:
        for inode_id in (1, 1, 2, 3):
            nursery.start_soon(waits.wait, request(inode_id), taken)
    assert trio.current_time() > 0 and waits._freed == {}


async def test_all_who_wait_are_woken_and_leave_nothing(nursery, autojump_clock):  # noqa: ARG001
    waits, replies, ended = LockWaits(), [TAKEN], []

    async def test():
        return replies[-1]

    async def wait():
        ended.append((await waits.wait(request(1, 9000), test), trio.current_time()))

    async with trio.open_nursery() as waiting:
        began_s = trio.current_time()
        for _ in range(3):
            waiting.start_soon(wait)
        await trio.sleep(0.1)
        replies.append(FREE)
        waits.wake(1)
    assert [reply for reply, _ in ended] == [FREE] * 3
    assert max(at_s for _, at_s in ended) - began_s < 0.2
    assert waits._freed == {}


async def test_one_who_leaves_does_not_take_the_others_with_him(autojump_clock):  # noqa: ARG001
    waits, replies = LockWaits(), [TAKEN]

    async def test():
        return replies[-1]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits.wait, request(1, 9000), test)
        await trio.sleep(0.1)
        with trio.move_on_after(0.01):
            await waits.wait(request(1), test)
        replies.append(FREE)
        began_s = trio.current_time()
        waits.wake(1)
    assert trio.current_time() - began_s < 0.01
