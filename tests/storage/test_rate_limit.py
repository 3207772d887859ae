# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""The rate limit of resync: bytes over time, in the order of asking."""

import pytest
import trio

from fs.storage.rate_limit import LOOK_INTERVAL_S, RateLimit
from fs.storage.resync_groups import GROUP_BYTES_MAX


async def test_the_rate_limit_spreads_bytes(mock_clock):
    limit = RateLimit(1000)
    start_s = trio.current_time()
    for _ in range(5):
        await limit.take(500)
    assert 1.9 < trio.current_time() - start_s < 2.1
    assert limit.group_bytes_max == 125
    assert RateLimit(1 << 40).group_bytes_max == GROUP_BYTES_MAX
    free = RateLimit(0)
    assert free.group_bytes_max == GROUP_BYTES_MAX
    await free.take(10**9)
    assert trio.current_time() - start_s < 2.1


@pytest.mark.parametrize(("new_limit", "took_s"), [(0, 0.0), (100, 5.0)])
async def test_those_who_wait_go_on_by_a_new_rate_limit(mock_clock, new_limit, took_s):
    limit = RateLimit(1)
    await limit.take(100_000)
    ended_s = []

    async def take():
        await limit.take(500)
        ended_s.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(take)
        await trio.sleep(10)
        assert not ended_s
        began_s = trio.current_time()
        limit.adopt(new_limit)
    assert ended_s == [began_s, began_s + took_s]


async def test_who_is_not_wanted_any_more_gives_its_turn_to_those_behind(mock_clock):
    limit = RateLimit(100)
    began_s, wanted, ended = trio.current_time(), {"large"}, {}

    async def take(name, byte_count):
        allowed = await limit.take(byte_count, lambda: name != "large" or name in wanted)
        ended[name] = (allowed, trio.current_time() - began_s)

    assert await limit.take(2000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, "large", 100_000)
        await trio.sleep(1)
        nursery.start_soon(take, "small", 100)
        await trio.sleep(1)
        wanted.clear()
    allowed, ended_s = ended["large"]
    assert not allowed and ended_s <= 2 + LOOK_INTERVAL_S
    assert ended["small"] == (True, pytest.approx(20.0))  # what was allowed before still counts
    assert await limit.take(1)
    assert trio.current_time() - began_s == pytest.approx(21.0)
