# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""What open files have read ahead when somebody changes how much that may be."""

import msgspec


async def test_what_was_read_ahead_is_void_once_nothing_is_any_more(autojump_clock, mounts):
    async with mounts() as m:
        await m.write_file(b"f", b"old" * 200_000)
        handle_id = (await m.open(b"f")).handle_id
        for number in range(4):
            await m.files.read(handle_id, number * 10_000, 10_000)
        assert m.vfs._core.readahead_bytes
        m.vfs.adopt(msgspec.structs.replace(m.vfs.section, readahead_bytes_max=0))
        await m.files.write(handle_id, 40_000, b"new")
        assert await m.files.read(handle_id, 40_000, 3) == b"new"
        assert not m.vfs._core.readahead_bytes
        await m.close(handle_id)
