# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Reads while this mount cuts the file: storage has cut it before metadata's answer says so."""

import os

import pytest
import trio

from fs.client.vfs.changing_attributes import AttrChange
from fs.schema import services

from .conftest import ROOT, RW


async def _by_open(m, handle_id):
    opened = await m.open(b"f", RW | os.O_TRUNC)
    await m.close(opened.handle_id)


async def _by_length(m, handle_id):
    state = m.files.handle(handle_id).state
    await m.names.setattr(state.inode_id, AttrChange(length=0), handle_id, ROOT)


@pytest.mark.parametrize("cut", [_by_open, _by_length])
@pytest.mark.parametrize("reads_by", ["begin", "read"])
async def test_bytes_that_go_are_not_read_as_zeros(
    autojump_clock, mounts, monkeypatch, cut, reads_by
):
    async with mounts() as m:
        await m.write_file(b"f", b"content")
        handle_id = (await m.open(b"f")).handle_id
        core, is_cut = m.vfs._core, trio.Event()
        usual = core.call

        async def late(method, request, **others):
            reply = await usual(method, request, **others)
            if method in {services.META_OPEN, services.META_SET_ATTR}:
                is_cut.set()
                await trio.sleep(1)
            return reply

        async with trio.open_nursery() as nursery:
            monkeypatch.setattr(core, "call", late)
            nursery.start_soon(cut, m, handle_id)
            await is_cut.wait()
            if reads_by == "begin":
                assert m.files.begin_read(handle_id, 0, 100) is None
            assert m.files.read_now(handle_id, 0, 100) is None
            assert bytes(await m.files.read(handle_id, 0, 100)) == b""
