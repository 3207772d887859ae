# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Files that another mount cuts while this one writes them."""

import os

import pytest

from .conftest import ROOT, RW


@pytest.mark.parametrize("looks", [False, True])
async def test_what_is_written_after_another_mount_has_cut_the_file_stays(
    autojump_clock, mounts, looks
):
    async with mounts(2) as (here, there):
        await here.write_file(b"f", b"before" * 1000)
        handle_id = (await here.open(b"f")).handle_id
        cut = await there.open(b"f", RW | os.O_TRUNC)
        await there.close(cut.handle_id)
        await here.files.write(handle_id, 0, b"after")
        state = here.files.handle(handle_id).state
        await here.vfs._core.drain(state)
        if looks:  # and so learns of the cut, before it tells of what it wrote
            await here.stat(b"f")
            assert bytes(await here.files.read(handle_id, 0, 100)) == b"after"
            inode_id = here.files.handle(handle_id).state.inode_id
            assert (await here.names.getattr(inode_id, ROOT)).length == 5
        await here.close(handle_id)
        assert await there.read_file(b"f") == b"after"
        assert await here.read_file(b"f") == b"after"
