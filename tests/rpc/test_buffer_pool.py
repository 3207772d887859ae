"""Receive buffers: aligned, reused, bounded, in line."""

import ctypes
import errno

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fs.rpc import buffer_pool
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


async def test_halves_of_a_huge_page_are_made_in_pairs_and_never_shared():
    pool = BufferPool(8 << 20)
    leases = [await pool.acquire(length) for length in (1 << 20, 600_000, 3 << 20)]
    assert [lease.size for lease in leases] == [1 << 20, 1 << 20, 4 << 20]
    assert (pool.used_bytes, pool.idle_bytes) == (6 << 20, 0)
    first, second, large = (
        ctypes.addressof(ctypes.c_char.from_buffer(lease.memory)) for lease in leases
    )
    assert second - first == 1 << 20
    assert not any(address % 4096 for address in (first, second, large))
    leases[0].view[:] = b"a" * (1 << 20)
    leases[1].view[:] = b"b" * 600_000
    assert bytes(leases[0].view) == b"a" * (1 << 20)
    for lease in leases:
        pool.release(lease)
    assert (pool.used_bytes, pool.idle_bytes) == (0, 6 << 20)


async def test_a_twin_is_not_kept_beyond_the_bound():
    pool = BufferPool(8 << 20, idle_bytes_max=100)
    lease = await pool.acquire(1 << 20)
    lease.view[-1] = 7
    assert pool.idle_bytes == 0
    pool.release(lease)
    assert (pool.used_bytes, pool.idle_bytes) == (0, 0)


async def test_half_of_a_huge_page_that_nobody_would_keep_is_not_mapped():
    pool = BufferPool(8 << 20, idle_bytes_max=100)
    lease = await pool.acquire(1 << 20)
    assert len(lease.memory.obj) == 1 << 20, "buffers in use would take twice what is allowed"


async def test_idle_buffers_of_sizes_that_nobody_asks_for_give_way():
    pool = BufferPool(8 << 20, idle_bytes_max=4 << 20)
    for lease in [await pool.acquire(2 << 20) for _ in range(2)]:
        pool.release(lease)
    assert pool.idle_bytes == 4 << 20
    small = await pool.acquire(1 << 16)
    memory = small.memory
    pool.release(small)
    assert pool.idle_bytes == (2 << 20) + (1 << 16)
    again = await pool.acquire(1 << 16)
    assert again.memory is memory, "else each takes new memory, for as long as the process lives"
    large = await pool.acquire(2 << 20)
    pool.release(again)
    pool.release(large)
    assert pool.idle_bytes == (2 << 20) + (1 << 16)


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


async def test_memory_that_is_refused_takes_no_room(monkeypatch):
    pool = BufferPool(8192)
    with monkeypatch.context() as patch:

        def refused(_size, **_options):
            raise OSError(errno.ENOMEM, "no memory")

        patch.setattr(buffer_pool, "_fresh", refused)
        with pytest.raises(OSError, match="no memory"):
            await pool.acquire(8192)
    assert pool.used_bytes == 0
    assert pool.acquire_now(8192) is not None


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
