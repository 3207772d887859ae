"""Listings that no task waits for: they show what is there,
whatever is changed meanwhile and whatever becomes of the first try.
"""

import errno

import msgspec
import pytest
import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode
from fs.client.vfs import directory
from fs.schema.status import FsError, Status
from tests.client.fuse.test_begun import begun_at, cluster  # noqa: F401 - fixtures
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    entries,
    is_watched,
    kernel,
    killed,
)

DOTS = {b".", b".."}
NOBODY_KNOWN = 0
"""A thread that is shown attributes always."""


async def opened(kernel):  # noqa: F811
    _, reply = await kernel.ask(Opcode.OPENDIR, p.OPEN_IN.pack(0, 0))
    return p.OPEN_OUT.unpack(reply)[0]


async def begin(kernel, fh, cookie=0, size=4096):  # noqa: F811
    """Ask for what follows a cookie; return the number of the request."""
    body = p.READ_IN.pack(fh, cookie, size, 0, 0, 0, 0)
    return await kernel.send(Opcode.READDIRPLUS, body, pid=NOBODY_KNOWN)


async def told(kernel, asked):  # noqa: F811
    """Return the names of the reply to a request, by their cookies."""
    unique, error, reply = await kernel.receive()
    assert (unique, error) == (asked, 0)
    return {cookie: name for name, cookie, *_ in entries(reply, True)}


async def test_one_call_serves_a_listing_that_takes_several_replies(kernel, cluster):  # noqa: F811
    names = [b"name %d" % i for i in range(9)]
    for name in names:
        await kernel.make(name)
    fh = await opened(kernel)
    asked = await begin(kernel, fh, size=700)
    one = await begun_at(cluster, 1)
    # Others are served meanwhile.
    assert (await kernel.ask(Opcode.GETXATTR, p.GETXATTR_IN.pack(9, 0) + b"user.a\0"))[0]
    cluster.calls.clear()
    await one.serve()
    seen = await told(kernel, asked)
    while found := await told(kernel, await begin(kernel, fh, max(seen), 700)):
        seen |= found
    assert list(seen.values()) == [b".", b"..", *names]
    assert (cluster.calls, len(cluster.only.begun)) == (["List"], 1)


async def test_what_changes_meanwhile_is_listed_as_it_is_by_then(kernel, cluster):  # noqa: F811
    for name in (b"gone", b"kept"):
        await kernel.make(name)
    asked = await begin(kernel, await opened(kernel))
    one = await begun_at(cluster, 1)
    reply = await cluster.only.call(one.method, one.request)
    assert await kernel.ask(Opcode.UNLINK, b"gone\0") == (0, b"")
    one.end(reply)
    assert set((await told(kernel, asked)).values()) == DOTS | {b"kept"}


@pytest.mark.parametrize("status", [Status.RPC_CONNECTION_LOST, Status.STALE])
async def test_what_another_try_may_cure_is_tried_again(kernel, cluster, status):  # noqa: F811
    await kernel.make(b"f")
    asked = await begin(kernel, await opened(kernel))
    (await begun_at(cluster, 1)).fail(FsError(status, "the first try"))
    if status is Status.STALE:
        assert (await kernel.receive())[:2] == (asked, errno.ESTALE)
    else:
        assert set((await told(kernel, asked)).values()) == DOTS | {b"f"}


@pytest.mark.parametrize("lacks", ["parent", "attributes"])
async def test_what_a_reply_lacks_is_asked_for(kernel, cluster, lacks):  # noqa: F811
    """A metadata service of an earlier release does not tell the parent,
    and attributes only to who may search.
    """
    inode_id, _ = await kernel.make(b"f")
    asked = await begin(kernel, await opened(kernel))
    one = await begun_at(cluster, 1)
    reply = await cluster.only.call(one.method, one.request)
    if lacks == "parent":
        reply.parent_inode_id = 0
    else:
        reply.entries[0].ClearField("inode")
    one.end(reply)
    assert set((await told(kernel, asked)).values()) == DOTS | {b"f"}
    assert kernel.vfs._core.known[inode_id].lookup_count == 2


async def test_a_signal_ends_it_and_the_next_request_shows_all(kernel, cluster, killed):  # noqa: F811
    await kernel.make(b"f")
    fh = await opened(kernel)
    asked = await begin(kernel, fh)
    one = await begun_at(cluster, 1)
    killed.add(NOBODY_KNOWN)
    await kernel.send(Opcode.INTERRUPT, p.INTERRUPT_IN.pack(asked))
    assert (await kernel.receive())[:2] == (asked, errno.EINTR)
    again = await begin(kernel, fh)
    await (await begun_at(cluster, 2)).serve()
    assert set((await told(kernel, again)).values()) == DOTS | {b"f"}
    await one.serve()  # too late


async def test_what_is_left_of_an_old_page_is_asked_for_again(kernel, cluster, monkeypatch):  # noqa: F811
    monkeypatch.setattr(directory, "PAGE_ENTRY_COUNT", 3)
    begin_call = cluster.only.begin

    def served(method, request, on_end):
        begun = begin_call(method, request, on_end)
        trio.lowlevel.spawn_system_task(begun.serve)
        return begun

    monkeypatch.setattr(cluster.only, "begin", served)
    for number in range(6):
        await kernel.make(b"%d" % number)
    fh = await opened(kernel)
    cluster.calls.clear()
    seen = await told(kernel, await begin(kernel, fh, size=500))
    assert list(seen.values()) == [b".", b"..", b"0"]
    cluster.clock.slept_s += kernel.vfs.section.attr_timeout_s + 0.1
    while found := await told(kernel, await begin(kernel, fh, max(seen))):
        assert not found.keys() & seen.keys()
        seen |= found
    assert list(seen.values()) == [b".", b"..", *(b"%d" % number for number in range(6))]
    assert cluster.calls == ["List"] * 4  # and what was asked for ahead, too early


@pytest.fixture
def pages_of_three(monkeypatch):
    """Meta is asked for three entries at a time."""
    monkeypatch.setattr(directory, "PAGE_ENTRY_COUNT", 3)


async def first_page(kernel, cluster, names=b"01234567"):  # noqa: F811
    """Have files made, and the first page listed; return the open directory, what was seen, and
    the call for the page behind it.
    """
    for name in names:
        await kernel.make(bytes([name]))
    fh = await opened(kernel)
    asked = await begin(kernel, fh)
    await (await begun_at(cluster, 1)).serve()
    seen = await told(kernel, asked)
    assert list(seen.values()) == [b".", b"..", b"0", b"1", b"2"]
    return fh, seen, await begun_at(cluster, 2)


@pytest.mark.usefixtures("pages_of_three")
async def test_the_next_page_is_asked_for_ahead(kernel, cluster):  # noqa: F811
    fh, seen, ahead = await first_page(kernel, cluster)
    assert (ahead.request.after, ahead.request.entry_count_max) == (b"2", 3)
    await ahead.serve()
    cluster.calls.clear()
    seen |= await told(kernel, await begin(kernel, fh, max(seen)))
    assert list(seen.values())[-3:] == [b"3", b"4", b"5"]
    assert not cluster.calls  # it was there
    last = await begun_at(cluster, 3)
    asked = await begin(kernel, fh, max(seen))  # which waits for it
    await last.serve()
    seen |= await told(kernel, asked)
    assert not await told(kernel, await begin(kernel, fh, max(seen)))
    assert list(seen.values())[2:] == [bytes([name]) for name in b"01234567"]
    assert len(cluster.only.begun) == 3


@pytest.mark.usefixtures("pages_of_three")
@pytest.mark.parametrize("is_there", [True, False])
async def test_what_this_mount_changes_meanwhile_is_listed(
    kernel,  # noqa: F811
    cluster,  # noqa: F811
    is_there,
):
    """A program finds what it has made itself, though meta was asked before."""
    fh, seen, ahead = await first_page(kernel, cluster)
    if is_there:
        await ahead.serve()
    await kernel.make(b"3a")
    assert await kernel.ask(Opcode.UNLINK, b"4\0") == (0, b"")
    asked = await begin(kernel, fh, max(seen))
    await (await begun_at(cluster, 3)).serve()
    found = await told(kernel, asked)
    assert list(found.values()) == [b"3", b"3a", b"5"]
    await ahead.serve()  # too late, if it was not there
    assert len(cluster.only.begun) == 3  # and nothing more is asked for ahead
    kernel.vfs.directories.rewind(fh)
    asked = await begin(kernel, fh)
    await (await begun_at(cluster, 4)).serve()
    await told(kernel, asked)
    await begun_at(cluster, 5)  # but from the beginning on


@pytest.mark.usefixtures("pages_of_three")
async def test_what_was_asked_for_ahead_and_has_grown_old_is_asked_for_again(
    kernel,  # noqa: F811
    cluster,  # noqa: F811
):
    fh, seen, ahead = await first_page(kernel, cluster)
    await ahead.serve()
    cluster.clock.slept_s += kernel.vfs.section.attr_timeout_s + 0.1
    asked = await begin(kernel, fh, max(seen))
    await (await begun_at(cluster, 3)).serve()
    assert list((await told(kernel, asked)).values()) == [b"3", b"4", b"5"]
    assert len(cluster.only.begun) == 3


@pytest.mark.usefixtures("pages_of_three")
async def test_an_error_of_what_was_asked_for_ahead_is_nobodys(kernel, cluster):  # noqa: F811
    fh, seen, ahead = await first_page(kernel, cluster)
    ahead.fail(FsError(Status.RPC_CONNECTION_LOST, "the first try"))
    asked = await begin(kernel, fh, max(seen))
    await (await begun_at(cluster, 3)).serve()
    assert list((await told(kernel, asked)).values()) == [b"3", b"4", b"5"]


@pytest.mark.usefixtures("pages_of_three")
async def test_who_goes_elsewhere_is_shown_what_is_there(kernel, cluster):  # noqa: F811
    fh, seen, ahead = await first_page(kernel, cluster)
    await ahead.serve()
    behind_0 = next(cookie for cookie, name in seen.items() if name == b"0")
    assert list((await told(kernel, await begin(kernel, fh, behind_0))).values()) == [b"1", b"2"]
    asked = await begin(kernel, fh)  # from the beginning
    await (await begun_at(cluster, 3)).serve()
    assert list((await told(kernel, asked)).values()) == [b".", b"..", b"0", b"1", b"2"]


@pytest.mark.usefixtures("pages_of_three")
async def test_nothing_is_asked_for_ahead_where_attributes_may_not_be_used(
    kernel,  # noqa: F811
    cluster,  # noqa: F811
    monkeypatch,
):
    core = kernel.vfs._core
    monkeypatch.setattr(core, "section", msgspec.structs.replace(core.section, attr_timeout_s=0.0))
    for number in range(6):
        await kernel.make(b"%d" % number)
    asked = await begin(kernel, await opened(kernel))
    await (await begun_at(cluster, 1)).serve()
    await told(kernel, asked)
    assert len(cluster.only.begun) == 1
