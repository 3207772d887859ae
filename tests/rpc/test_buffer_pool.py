"""Receive buffers: aligned, reused, bounded, in line."""

import ctypes
import errno
import resource
import weakref

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fs.rpc import buffer_pool, slabs
from fs.rpc.buffer_pool import BufferPool
from fs.rpc.slabs import SLAB_BYTES, SlabShelf

MIB = 1 << 20


async def test_buffers_are_aligned_and_reused():
    pool = BufferPool(1 << 20)
    lease = await pool.acquire(5000)
    assert len(lease.view) == 5000
    assert ctypes.addressof(ctypes.c_char.from_buffer(lease.memory)) % 4096 == 0
    memory = lease.memory
    pool.release(lease)
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (0, 8192)
    again = await pool.acquire(8192)
    assert again.memory is memory
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (8192, 0)


def address_of(lease):
    return ctypes.addressof(ctypes.c_char.from_buffer(lease.memory))


async def test_large_buffers_are_whole_units_of_a_slab_and_never_shared():
    pool = BufferPool(16 * MIB)
    leases = [await pool.acquire(length) for length in (MIB, 600_000, 3 * MIB - 5, 3 * MIB)]
    assert [lease.size // MIB for lease in leases] == [1, 1, 3, 3]
    assert [len(lease.view) for lease in leases] == [MIB, 600_000, 3 * MIB - 5, 3 * MIB]
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (8 * MIB, 0)
    start = address_of(leases[0])
    assert start % 4096 == 0
    assert [address_of(lease) - start for lease in leases] == [0, MIB, 2 * MIB, 5 * MIB]
    for number, lease in enumerate(leases):
        lease.view[:] = bytes([number]) * len(lease.view)
    for number, lease in enumerate(leases):
        assert bytes(lease.view) == bytes([number]) * len(lease.view)
    for lease in leases:
        assert pool.shelf.idle_bytes == 0
        pool.release(lease)
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (0, SLAB_BYTES)


async def test_memory_that_was_touched_is_used_before_any_other_whatever_the_size():
    pool = BufferPool(64 * MIB)
    held = [await pool.acquire(2 * MIB) for _ in range(8)]
    first = min(map(address_of, held[:4]))
    second = min(map(address_of, held[4:]))
    for lease in (held[1], held[2], held[5]):
        pool.release(lease)
    again = await pool.acquire(3 * MIB)
    assert address_of(again) - first == 2 * MIB
    small = await pool.acquire(MIB)
    assert address_of(small) - first == 5 * MIB
    other = await pool.acquire(2 * MIB)
    assert address_of(other) - second == 2 * MIB


async def test_what_is_larger_than_a_slab_has_memory_of_its_own():
    pool = BufferPool(64 * MIB)
    lease = await pool.acquire(SLAB_BYTES + 1)
    assert (lease.size, lease.slab) == (2 * SLAB_BYTES, None)
    pool.release(lease)
    assert pool.shelf.idle_bytes == 2 * SLAB_BYTES


async def test_where_slabs_are_too_many_already_a_buffer_has_memory_of_its_own():
    pool = BufferPool(2 * SLAB_BYTES)
    held = [await pool.acquire(7 * MIB) for _ in range(2)]
    lease = await pool.acquire(2 * MIB)
    assert lease.slab is None
    for one in (*held, lease):
        pool.release(one)
    assert pool.shelf.idle_bytes == 2 * SLAB_BYTES + 2 * MIB


async def test_no_slab_is_made_of_which_nothing_would_be_kept():
    pool = BufferPool(8 * MIB, SlabShelf(100))
    lease = await pool.acquire(MIB)
    assert len(lease.memory.obj) == MIB, "buffers in use would take eight times what is allowed"
    pool.release(lease)
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (0, 0)


async def test_slabs_beyond_the_bound_are_unmapped_when_nothing_of_them_is_used():
    pool = BufferPool(64 * MIB, SlabShelf(2 * SLAB_BYTES))
    held = [await pool.acquire(5 * MIB) for _ in range(4)]
    gone = [weakref.ref(lease.memory.obj) for lease in held]
    for lease in held:
        pool.release(lease)
    assert pool.shelf.idle_bytes == 2 * SLAB_BYTES
    del held, lease
    assert [one() is None for one in gone] == [False, False, True, True]


async def test_a_disowned_slab_is_never_used_again():
    pool = BufferPool(64 * MIB)
    idle, used = [await pool.acquire(8 * MIB) for _ in range(2)]
    start = address_of(idle)
    pool.release(idle)
    pool.disown()
    leases = [await pool.acquire(8 * MIB) for _ in range(2)]
    assert address_of(leases[0]) == start, "nobody had this one"
    assert address_of(leases[1]) != address_of(used)
    pool.release(used)
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (2 * SLAB_BYTES, 0)
    assert (await pool.acquire(MIB)).slab not in {used.slab, *(one.slab for one in leases)}


async def test_warm_memory_is_touched_and_used_first():
    pool = BufferPool(64 * MIB)
    await pool.shelf.warm(2 * SLAB_BYTES + 5, trio.to_thread.run_sync)
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (0, 2 * SLAB_BYTES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    leases = [await pool.acquire(8 * MIB) for _ in range(2)]
    for lease in leases:
        for at in range(0, len(lease.view), 4096):
            lease.view[at] = 1
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 1000, "of 4,096 pages"
    assert pool.shelf.idle_bytes == 0


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOMEM, "no memory"), MemoryError(), RuntimeError("can't start new thread")],
)
async def test_memory_that_cannot_be_had_beforehand_is_no_error(monkeypatch, error):
    def refused(_size):
        raise error

    monkeypatch.setattr(slabs, "fresh_memory", refused)
    pool = BufferPool(64 * MIB)
    await pool.shelf.warm(16 * MIB, trio.to_thread.run_sync)
    assert (pool.used_bytes, pool.shelf.idle_bytes) == (0, 0)


async def test_no_more_is_warmed_than_is_kept():
    pool = BufferPool(64 * MIB, SlabShelf(20 * MIB))
    await pool.shelf.warm(64 * MIB, trio.to_thread.run_sync)
    assert pool.shelf.idle_bytes == 2 * SLAB_BYTES


async def test_pools_of_one_shelf_use_the_same_idle_memory_one_after_the_other():
    shelf = SlabShelf()
    received, read = BufferPool(64 * MIB, shelf), BufferPool(64 * MIB, shelf)
    held = [await received.acquire(5 * MIB) for _ in range(3)]
    places = [address_of(lease) for lease in held]
    for lease in reversed(held):
        received.release(lease)
    assert shelf.slab_bytes == 3 * SLAB_BYTES
    again = [await read.acquire(8 * MIB), await received.acquire(8 * MIB)]
    assert [address_of(lease) for lease in again] == places[:2], "the oldest first"
    other = await read.acquire(MIB)
    assert address_of(other) == places[2]
    assert (shelf.idle_bytes, read.used_bytes, received.used_bytes) == (0, 9 * MIB, 8 * MIB)


async def test_pools_of_one_shelf_keep_no_more_than_it_allows():
    shelf = SlabShelf(2 * SLAB_BYTES)
    one, other = BufferPool(64 * MIB, shelf), BufferPool(64 * MIB, shelf)
    for pool in (one, other):
        leases = [await pool.acquire(8 * MIB), await pool.acquire(MIB // 2)]
        for lease in leases:
            pool.release(lease)
    assert shelf.idle_bytes == SLAB_BYTES + MIB, "the same slab, and a small one of each"
    leases = [await one.acquire(8 * MIB), await other.acquire(8 * MIB)]
    for pool, lease in zip((one, other), leases, strict=True):
        pool.release(lease)
    assert (shelf.idle_bytes, shelf.slab_bytes) == (SLAB_BYTES + MIB, SLAB_BYTES)
    assert (one.idle_bytes, other.idle_bytes) == (MIB // 2, MIB // 2)


async def test_what_one_pool_disowns_no_pool_of_the_shelf_uses_again():
    shelf = SlabShelf()
    one, other = BufferPool(64 * MIB, shelf), BufferPool(64 * MIB, shelf)
    written = await one.acquire(3 * MIB)
    one.disown()
    one.release(written)
    assert shelf.idle_bytes == 0
    kept = [await other.acquire(8 * MIB), await one.acquire(8 * MIB)]
    assert written.slab not in {lease.slab for lease in kept}


async def test_idle_buffers_of_sizes_that_nobody_asks_for_give_way():
    pool = BufferPool(8 * MIB, SlabShelf(MIB))
    for lease in [await pool.acquire(MIB // 2) for _ in range(2)]:
        pool.release(lease)
    assert pool.shelf.idle_bytes == MIB
    small = await pool.acquire(1 << 16)
    memory = small.memory
    pool.release(small)
    assert pool.shelf.idle_bytes == MIB // 2 + (1 << 16)
    again = await pool.acquire(1 << 16)
    assert again.memory is memory, "else each takes new memory, for as long as the process lives"
    large = await pool.acquire(MIB // 2)
    pool.release(again)
    pool.release(large)
    assert pool.shelf.idle_bytes == MIB // 2 + (1 << 16)


async def test_idle_slabs_give_way_to_small_buffers():
    pool = BufferPool(64 * MIB, SlabShelf(2 * SLAB_BYTES))
    for lease in [await pool.acquire(8 * MIB) for _ in range(2)]:
        pool.release(lease)
    assert pool.shelf.idle_bytes == 2 * SLAB_BYTES
    pool.release(await pool.acquire(4096))
    assert pool.shelf.idle_bytes == SLAB_BYTES + 4096
    for lease in [await pool.acquire(8 * MIB) for _ in range(2)]:
        pool.release(lease)
    assert pool.shelf.idle_bytes == SLAB_BYTES + 4096, "and the small one stays"


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

        patch.setattr(buffer_pool, "fresh_memory", refused)
        with pytest.raises(OSError, match="no memory"):
            await pool.acquire(8192)
    assert pool.used_bytes == 0
    assert pool.acquire_now(8192) is not None


SMALL_STEPS = st.lists(st.tuples(st.integers(1, 40_000), st.booleans()), max_size=40)
LARGE_STEPS = st.lists(
    st.tuples(st.integers(1, 12).map(lambda units: units * MIB - 7), st.booleans()), max_size=60
)


@pytest.mark.parametrize(
    ("unit", "step"), [(1024, SMALL_STEPS), (MIB, LARGE_STEPS)], ids=["small", "large"]
)
@given(st.data())
def test_the_bounds_hold(unit, step, data):
    steps = data.draw(step)
    bytes_max, idle_max = 128 * unit, 32 * unit

    async def main():
        pool = BufferPool(bytes_max, SlabShelf(idle_max))
        held = []
        for length, is_release in steps:
            if is_release and held:
                pool.release(held.pop(0))
            else:
                with trio.move_on_after(0):
                    held.append(await pool.acquire(length))
            assert pool.used_bytes == sum(lease.size for lease in held) <= bytes_max
            assert pool.shelf.idle_bytes <= idle_max
            places = sorted((address_of(lease), lease.size) for lease in held)
            ends = [start + size for start, size in places]
            assert all(end <= start for end, (start, _) in zip(ends, places[1:], strict=False))
            used = {lease.slab for lease in held if lease.slab is not None}
            assert used == set(pool._slabs)
            assert len(used) * SLAB_BYTES <= max(bytes_max, SLAB_BYTES)

    trio.run(main)
