# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""A mount whose background work finds no memory goes on:
who waits for that is told, and nobody else is.
"""

import pytest
import trio

from fs.schema.layout import MIB
from fs.schema.status import FsError, Status


def lacking_once(monkeypatch, store, name):
    """Have the next call of a method find no memory; return what it is about."""
    real, asked = getattr(store, name), []

    async def method(*args, **options):
        if not asked:
            asked.append(args)
            raise MemoryError("injected")
        return await real(*args, **options)

    monkeypatch.setattr(store, name, method)
    return asked


async def test_what_is_not_read_ahead_is_read(autojump_clock, mounts, monkeypatch):
    content = b"0123456789abcdef" * (MIB // 4)
    async with mounts(readahead_bytes_max=8 * MIB) as m:
        await m.write_file(b"f", content)
        handle_id = (await m.open(b"f")).handle_id
        asked = lacking_once(monkeypatch, m.vfs._core.store, "read")
        with trio.fail_after(60):
            assert await m.files.read(handle_id, 0, MIB) == content[:MIB]
            assert asked
            assert await m.files.read(handle_id, MIB, MIB) == content[MIB : 2 * MIB]
        await m.close(handle_id)
        assert m.vfs._core.readahead_bytes == 0


@pytest.mark.parametrize("method", ["write", "write_ranges"])
async def test_what_is_not_written_is_told_once(autojump_clock, mounts, monkeypatch, method):
    async with mounts() as m:
        handle_id = await m.create(b"f")
        asked = lacking_once(monkeypatch, m.vfs._core.store, method)
        await m.files.write(handle_id, 0, b"x" * 100)
        if method == "write_ranges":
            await m.files.write(handle_id, 1000, b"x" * 100)
            await m.files.write(handle_id, 2000, b"x" * 100)
        with pytest.raises(FsError) as told, trio.fail_after(60):
            await m.files.fsync(handle_id, is_data_only=False)
        assert asked and told.value.status is Status.OUT_OF_RESOURCES
        await m.files.write(handle_id, 0, b"y" * 5000)
        await m.close(handle_id)
        assert await m.read_file(b"f") == b"y" * 5000


async def test_what_is_not_reported_by_itself_is_reported_later(
    autojump_clock, mounts, monkeypatch
):
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        core, call, asked = one.vfs._core, one.vfs._core.call, []

        async def lacking(method, request):
            if method.name == "Sync" and not asked:
                asked.append(request)
                raise MemoryError("injected")
            return await call(method, request)

        monkeypatch.setattr(core, "call", lacking)
        await one.files.write(handle_id, 0, b"x" * 100)
        await trio.sleep(1.5 * core.section.write_back_interval_s)
        assert asked and (await two.stat(b"f")).length == 0
        await trio.sleep(core.section.write_back_interval_s)
        assert (await two.stat(b"f")).length == 100
        await one.close(handle_id)
