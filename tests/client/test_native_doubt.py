# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
"""Inline files whose native client is not told what has become of its report,
while others change the file: its bytes take effect once.
"""

import pytest
import trio

from fs.client.inline_report import InlineReport
from fs.schema.config import OUTCOMES_KEPT_S
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status

from .fake_inline import Refusing, change
from .test_native import PathMeta
from .test_native_inline import autojump_clock, client, cluster

__all__ = ["autojump_clock", "client", "cluster"]

DATA, THEIRS = b"small", b"THEIRS"


class Repeating(PathMeta):
    """Asks again with each report that brings bytes, as the first reply is lost;
    others do something between.
    """

    async def come_between(self):
        await trio.lowlevel.checkpoint()

    async def call(self, method, request, *, timeout_s=None):
        reply = await super().call(method, request, timeout_s=timeout_s)
        if method.name == "Sync" and request.HasField("inline_data"):
            await self.come_between()
            request.caller.is_repeat = True
            reply = await super().call(method, request, timeout_s=timeout_s)
        return reply


@pytest.fixture
def fs(client, cluster):
    made = client()
    made._meta = Repeating(cluster, "native")
    return made


@pytest.mark.parametrize("how", ["in a chunk", "inline", "empties"])
@pytest.mark.parametrize("refuses", [False, True])
async def test_others_change_it_before_the_repeat(autojump_clock, cluster, fs, how, refuses):
    """Their bytes stand: those of the report were there before."""
    if refuses:
        Refusing(cluster, takes_first=True)
    fs._meta.come_between = lambda: change(cluster, how, THEIRS)
    async with await fs.create("/f") as file:
        await file.write(0, DATA, is_last=True)
        assert await fs.read_file("/f") == THEIRS
        await file.write(2, b"#")
    assert await fs.read_file("/f") == b"TH#IRS"


async def test_what_was_not_taken_is_written(autojump_clock, client, cluster, fs):
    Refusing(cluster, takes_first=False)
    async with await fs.create("/f") as file:
        await file.write(0, DATA, is_last=True)
    assert await client("reader").read_file("/f") == DATA and not cluster.inline.data


@pytest.mark.parametrize("why", ["earlier release", "away for long", "suspended"])
async def test_who_cannot_find_out_is_told_once(autojump_clock, client, cluster, fs, why):
    """Nothing of others is overwritten; and what is written next is written."""
    Refusing(cluster, takes_first=why == "earlier release", knows=why != "earlier release")

    async def come_between():
        await change(cluster, "in a chunk", THEIRS)
        if why == "away for long":
            await trio.sleep(OUTCOMES_KEPT_S)
        if why == "suspended":
            cluster.clock.slept_s += OUTCOMES_KEPT_S

    fs._meta.come_between = come_between
    async with await fs.create("/f") as file:
        with pytest.raises(FsError) as e:
            await file.write(0, DATA, is_last=True)
        assert e.value.status is Status.IO_ERROR
        assert await client("reader").read_file("/f") == THEIRS
        await file.write(2, b"#", is_last=True)
    assert await client("reader").read_file("/f") == b"TH#IRS"


async def test_a_first_try_that_is_refused_leaves_no_doubt(autojump_clock, client, cluster):
    """Also with metadata that does not know of outcomes."""
    Refusing(cluster, takes_first=False, knows=False)
    async with await client().create("/f") as file:
        await file.write(0, DATA, is_last=True)
    assert await client("reader").read_file("/f") == DATA


async def test_who_writes_meanwhile_finds_out_for_both(autojump_clock, client, cluster, fs):
    """Another write extends the stripe before the repeat is refused,
    and ends the report with that.
    """
    file = await fs.create("/f")

    async def come_between():
        await file.write(5, b" tail")
        await change(cluster, "in a chunk", THEIRS)

    Refusing(cluster, takes_first=True)
    fs._meta.come_between = come_between
    await file.write(0, DATA, is_last=True)
    await file.close()
    assert await client("reader").read_file("/f") == THEIRS + b"tail"


def report() -> InlineReport:
    return InlineReport(meta.SyncReq(inode_id=7), 100.0)


def reply(*, is_refused):
    return meta.InodeRsp(is_inline_refused=is_refused)


def test_what_is_known_of_a_report():
    one = report()
    with pytest.raises(FsError, match="nobody knows"):
        one.was_taken()
    one.note_reply(reply(is_refused=True), is_repeat=True)
    assert not one.is_settled
    one.note_told(meta.INLINE_NOT_TAKEN, 100.0 + OUTCOMES_KEPT_S - 1)
    assert one.is_settled and not one.was_taken()
    one = report()
    one.note_reply(reply(is_refused=True), is_repeat=False)
    assert one.is_settled and not one.was_taken()
    one = report()
    one.note_reply(reply(is_refused=False), is_repeat=True)
    assert one.is_settled and one.was_taken()


@pytest.mark.parametrize(
    ("outcome", "later_s"),
    [(meta.INLINE_NOT_KNOWN, 1.0), (meta.INLINE_NOT_TAKEN, OUTCOMES_KEPT_S)],
)
def test_what_nobody_remembers_is_not_known(outcome, later_s):
    one = report()
    one.note_told(outcome, 100.0 + later_s)
    assert one.is_settled
    with pytest.raises(FsError, match="nobody knows"):
        one.was_taken()


def test_what_was_taken_long_ago_was_taken():
    one = report()
    one.note_told(meta.INLINE_TAKEN, 100.0 + 2 * OUTCOMES_KEPT_S)
    assert one.was_taken()
