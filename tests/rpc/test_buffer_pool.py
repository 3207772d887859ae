"""Receive buffers: aligned, reused, bounded, in line."""

import ctypes

import trio
from hypothesis import given
from hypothesis import strategies as st

from fs.rpc.buffer_pool import BufferPool


async def test_buffers_are_aligned_and_reused():
    pool = BufferPool(1 << 20)
    lease = await pool.acquire(5000)
    assert len(lease.view) == 5000
    assert ctypes.addressof(ctypes.c_char.from_buffer(lease.memory)) % 4096 == 0
    memory = lease.memory
    pool.release(lease)
    assert (pool.used_bytes, pool.idle_bytes) == (0, 8192)
    again = await pool.acquire(8192)
    assert again.memory is memory
    assert (pool.used_bytes, pool.idle_bytes) == (8192, 0)


async def test_who_came_first_is_served_first_and_cancelled_ones_leave():
    pool = BufferPool(8192)
    held = [await pool.acquire(4096), await pool.acquire(4096)]
    served = []

    async def want(name, length):
        lease = await pool.acquire(length)
        served.append(name)
        pool.release(lease)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(want, "large", 8192)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01) as scope:
            await want("cancelled", 1)
        assert scope.cancelled_caught
        nursery.start_soon(want, "small", 1)
        await trio.testing.wait_all_tasks_blocked()
        pool.release(held.pop())
        await trio.testing.wait_all_tasks_blocked()
        assert served == []
        pool.release(held.pop())
    assert served == ["large", "small"]
    assert pool.used_bytes == 0


async def test_one_buffer_may_be_larger_than_the_pool():
    pool = BufferPool(4096)
    lease = await pool.acquire(100_000)
    assert len(lease.view) == 100_000
    pool.release(lease)


@given(st.lists(st.tuples(st.integers(1, 40_000), st.booleans()), max_size=40))
def test_the_bounds_hold(steps):
    bytes_max, idle_max = 128 * 1024, 32 * 1024

    async def main():
        pool = BufferPool(bytes_max, idle_bytes_max=idle_max)
        held = []
        for length, is_release in steps:
            if is_release and held:
                pool.release(held.pop(0))
            else:
                with trio.move_on_after(0):
                    held.append(await pool.acquire(length))
            assert pool.used_bytes == sum(lease.size for lease in held) <= bytes_max
            assert pool.idle_bytes <= idle_max

    trio.run(main)
