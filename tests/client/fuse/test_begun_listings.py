"""Listings that no task waits for: they show what is there,
whatever is changed meanwhile and whatever becomes of the first try.
"""

import errno

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
    assert cluster.calls == ["List"] * 3
