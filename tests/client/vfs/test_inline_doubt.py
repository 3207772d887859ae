# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Inline files whose mount is not told what has become of its report, while others change the file:
its bytes take effect once.
"""

import pytest
import trio

from fs.schema.config import OUTCOMES_KEPT_S
from fs.schema.status import FsError, Status
from tests.client.fake_inline import Refusing, change

from .conftest import RW
from .test_inline import LOST, close, cluster, fsync, read, write

__all__ = ["cluster"]

DATA = b"small"


@pytest.mark.parametrize("length", [4, 5, 8])
@pytest.mark.parametrize("how", ["in a chunk", "inline", "empties"])
async def test_others_change_it_before_the_repeat(autojump_clock, mounts, cluster, how, length):
    """Their bytes stand: those of the report were there before.

    What is written next is written over theirs.
    """
    theirs = b"theirs#!"[:length]
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, DATA)
        cluster.lost_replies = [LOST]
        cluster.between = [lambda: change(cluster, how, theirs)]
        await fsync(m, h)
        rest = b"l" if length == 4 and how == "in a chunk" else b""
        await write(m, h, 1, b"??")
        await close(m, h)
        assert await read(m, b"f") == theirs[:1] + b"??" + theirs[3:] + rest


async def test_what_was_taken_is_not_written_once_more(autojump_clock, mounts, cluster):
    Refusing(cluster, takes_first=True)
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, DATA)
        cluster.lost_replies = [LOST]
        cluster.between = [lambda: change(cluster, "in a chunk", b"THEIRS")]
        await fsync(m, h)
        assert await read(m, b"f") == b"THEIRS"
        await write(m, h, 2, b"#")
        await close(m, h)
        assert await read(m, b"f") == b"TH#IRS"


async def test_what_was_not_taken_is_written(autojump_clock, mounts, cluster):
    Refusing(cluster, takes_first=False)
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, DATA)
        cluster.lost_replies = [LOST]
        await close(m, h)
        assert await read(m, b"f") == DATA and cluster.stored == len(DATA)


@pytest.mark.parametrize("why", ["earlier release", "away for long"])
async def test_who_cannot_find_out_is_told_once(autojump_clock, mounts, cluster, why):
    """Nothing of others is overwritten; and the mount goes on with what is written next."""
    Refusing(cluster, takes_first=why == "earlier release", knows=why != "earlier release")

    async def come_between():
        await change(cluster, "in a chunk", b"THEIRS")
        if why == "away for long":
            await trio.sleep(OUTCOMES_KEPT_S)

    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, DATA)
        cluster.lost_replies, cluster.between = [LOST], [come_between]
        with pytest.raises(FsError) as e:
            await fsync(m, h)
        assert e.value.status is Status.IO_ERROR
        await fsync(m, h)
        assert await read(m, b"f") == b"THEIRS"
        await write(m, h, 2, b"#")
        await close(m, h)
        assert await read(m, b"f") == b"TH#IRS"
        assert not m.vfs._core.unsure_inline and not m.vfs._core.budget.used_bytes


async def test_what_is_written_meanwhile_is_not_taken_for_taken(
    autojump_clock, mounts, cluster, monkeypatch
):
    """It does not join bytes that are in doubt."""
    Refusing(cluster, takes_first=True)
    async with mounts() as m:
        h = await m.create(b"f", RW)
        core, asked, go_on = m.vfs._core, trio.Event(), trio.Event()
        have_stripe = core.have_stripe

        async def slowly(*args):
            if not asked.is_set():
                asked.set()
                await go_on.wait()
            return await have_stripe(*args)

        monkeypatch.setattr(core, "have_stripe", slowly)
        await write(m, h, 0, DATA)
        cluster.lost_replies = [LOST]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fsync, m, h)
            await asked.wait()
            await write(m, h, 1, b"MALL")
            core.start_flush(m.files.open_state(h))
            go_on.set()
        await close(m, h)
        assert await read(m, b"f") == b"sMALL"


async def test_a_first_try_that_is_refused_leaves_no_doubt(autojump_clock, mounts, cluster):
    """Also with metadata that does not know of outcomes."""
    Refusing(cluster, takes_first=False, knows=False)
    async with mounts() as m:
        h = await m.create(b"f", RW)
        await write(m, h, 0, DATA)
        await close(m, h)
        assert await read(m, b"f") == DATA and cluster.stored == len(DATA)
