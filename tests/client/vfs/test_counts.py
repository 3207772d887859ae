# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What a mount counts of its caches."""

import os

from fs.runtime.figures import Figures
from fs.schema import metrics


async def test_reads_that_were_fetched_ahead_are_hits(autojump_clock, mounts):
    content = os.urandom(1_000_000)
    async with mounts() as mount:
        await mount.write_file(b"a", content)
        assert await mount.read_file(b"a") == content
        core = mount.vfs._core
        assert core.ahead_hit_count + core.ahead_miss_count == 10
        assert core.ahead_hit_count >= 5 and core.ahead_miss_count >= 1
        figures = Figures()
        mount.vfs.say(figures)
    said = figures.numbers
    assert said[metrics.MOUNT_CACHE_HITS]["readahead",] == core.ahead_hit_count
    assert said[metrics.MOUNT_CACHE_MISSES]["readahead",] == core.ahead_miss_count
    assert 0 < said[metrics.MOUNT_AHEAD_BYTES][()] < len(content)
