# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What meta says after a power loss that has taken from it what this mount was told before."""

import os
from dataclasses import replace


async def test_a_file_goes_on_to_more_chains_though_meta_has_lost_its_last_change(
    autojump_clock, mounts, cluster
):
    async with mounts() as here:
        handle_id = await here.create(b"f", os.O_RDWR)
        state = here.files.handle(handle_id).state
        before = cluster.inodes[state.inode_id]
        newer = replace(before, ctime_ns=before.ctime_ns + 1_000_000_000)
        assert state.absorb(newer)
        wider = replace(before, file=replace(before.file, dyn_stripe=before.file.dyn_stripe + 4))
        assert not state.absorb(wider)
        assert state.ref.dyn_stripe == wider.file.dyn_stripe
        assert state.inode.ctime_ns == newer.ctime_ns
        await here.close(handle_id)
