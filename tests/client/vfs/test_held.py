# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Files without a name that the kernel has not forgotten: somebody holds them, by O_PATH."""

import os

import trio

from fs.client import ending
from fs.client.vfs import held
from fs.client.vfs.held import LOOK_S
from fs.schema.status import FsError, Status

from .conftest import ROOT

SOON_S = 2 * LOOK_S + 0.5
"""By then a file that is held is kept."""


async def make(m, cluster, name=b"f"):
    """Make a file that the kernel knows, and nobody has open; garbage is collected late."""
    await m.write_file(name, b"text")
    inode_id = (await m.stat(name)).inode_id
    await trio.sleep(1)  # its session ends
    cluster.collect = late
    return inode_id


async def late(_inode):
    """Garbage collection, before its time."""


async def read_by_descriptor(m, inode_id):
    """As by way of /proc/self/fd."""
    opened = await m.files.open(inode_id, os.O_RDONLY, ROOT)
    text = await m.read_all(opened.handle_id)
    await m.files.release(opened.handle_id)
    return text


async def test_what_is_held_is_kept_until_the_kernel_forgets_it(autojump_clock, mounts, cluster):
    async with mounts() as m:
        collect, inode_id = cluster.collect, await make(m, cluster)
        await m.names.unlink(1, b"f", ROOT)
        await trio.sleep(SOON_S)
        cluster.collect = collect
        assert len(cluster.sessions[inode_id]) == 1
        for _ in range(2):
            assert await read_by_descriptor(m, inode_id) == b"text"
            await trio.sleep(SOON_S)
        assert len(cluster.sessions[inode_id]) == 1
        m.forget_removed()
        await trio.sleep(1)
        assert inode_id not in cluster.inodes


async def test_what_was_open_is_kept_without_a_gap(autojump_clock, mounts, cluster):
    """The collector may come by at any moment: the session that kept it goes on."""
    async with mounts() as m:
        await m.write_file(b"f", b"text")
        opened = await m.open(b"f", os.O_RDONLY)
        inode_id = (await m.stat(b"f")).inode_id
        await m.write_file(b"g", b"new")
        await m.names.rename((1, b"g"), (1, b"f"), ROOT)
        await m.files.release(opened.handle_id)
        await trio.sleep(10)
        assert await read_by_descriptor(m, inode_id) == b"text"
        m.forget_removed()
        await trio.sleep(1)
        assert inode_id not in cluster.inodes


async def test_what_nobody_holds_is_not_kept(autojump_clock, mounts, cluster):
    async with mounts() as m:
        for number in range(3):
            await make(m, cluster, b"%d" % number)
            cluster.calls.clear()
            await m.names.unlink(1, b"%d" % number, ROOT)
            m.forget_removed()
            await trio.sleep(SOON_S)
            assert "Open" not in cluster.calls


async def test_it_is_forgotten_while_meta_is_asked(autojump_clock, mounts, cluster):
    async with mounts() as m:
        inode_id = await make(m, cluster)
        core = m.vfs._core
        call = core.held._meta.call

        async def slowly(method, request, **fields):
            reply = await call(method, request, **fields)
            if method.name == "Open":
                m.forget_removed()
            return reply

        core.held._meta.call = slowly
        await m.names.unlink(1, b"f", ROOT)
        await trio.sleep(SOON_S + 1)
        assert not cluster.sessions.get(inode_id) and not core.held._sessions


async def test_not_more_are_kept_than_may_be(autojump_clock, mounts, cluster, monkeypatch, caplog):
    monkeypatch.setattr(held, "HELD_MAX", 2)
    async with mounts() as m:
        made = [await make(m, cluster, b"%d" % number) for number in range(3)]
        for number in range(3):
            await m.names.unlink(1, b"%d" % number, ROOT)
        await trio.sleep(SOON_S)
        assert [bool(cluster.sessions.get(inode_id)) for inode_id in made] == [True, True, False]
        assert f"inode {made[2]:#x} was removed and is held" in caplog.text
        m.names.forget(made[0], 100)
        await trio.sleep(1)
        assert not cluster.sessions.get(made[0])


async def test_they_end_with_the_mount(autojump_clock, mounts, cluster):
    async with mounts() as m:
        inode_id = await make(m, cluster)
        await m.names.unlink(1, b"f", ROOT)
        await trio.sleep(SOON_S)
        assert cluster.sessions[inode_id]
    assert not cluster.sessions.get(inode_id)


async def test_a_service_that_does_not_answer_is_logged(autojump_clock, mounts, cluster, caplog):
    async with mounts() as m:
        await make(m, cluster)

        async def refuses(_method, _request, **_fields):
            raise FsError(Status.IO_ERROR, "injected")

        await m.names.unlink(1, b"f", ROOT)
        m.vfs._core.held._meta.call = refuses
        await trio.sleep(SOON_S)
        assert "is not kept: " in caplog.text


async def test_where_too_many_wait_for_their_end_a_session_ends_by_itself(
    autojump_clock, mounts, cluster, monkeypatch
):
    async with mounts() as m:
        inode_id = await make(m, cluster)
        await m.names.unlink(1, b"f", ROOT)
        await trio.sleep(SOON_S)
        assert cluster.sessions[inode_id]
        monkeypatch.setattr(ending, "PENDING_MAX", 0)
        m.forget_removed()
        await trio.sleep(1)
        assert not cluster.sessions.get(inode_id)
