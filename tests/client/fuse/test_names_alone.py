"""Listings of names alone, and the look-ups that follow some of them."""

import errno
import os

import msgspec
import pytest
import trio

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode
from fs.client.vfs import ahead_names
from fs.client.vfs.directory import PAGE_ENTRY_COUNT
from fs.client.vfs.listers import FIRST_COUNT, LEFT_COUNT_MIN, TRIED_AGAIN_COUNT, TRIED_COUNT
from fs.schema.status import FsError, Status
from tests.client.fuse.test_begun import Begun, cluster  # noqa: F401 - a fixture
from tests.client.fuse.test_begun_listings import DOTS, opened
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    entries,
    is_watched,
    kernel,
    killed,
)

SIZE = 1 << 17


pytestmark = pytest.mark.usefixtures("served")


@pytest.fixture
def served(cluster, monkeypatch):  # noqa: F811
    """Calls that are begun are answered by themselves; yields their requests."""
    begin_call, requests = cluster.only.begin, []

    def begin(method, request, on_end):
        requests.append((method.name, request))
        begun = begin_call(method, request, on_end)
        trio.lowlevel.spawn_system_task(begun.serve)
        return begun

    monkeypatch.setattr(cluster.only, "begin", begin)
    return requests


async def read(kernel, fh, cookie=0, pid=1):  # noqa: F811
    """Return the entries behind a cookie: by name, (cookie, node id, inode id)."""
    body = p.READ_IN.pack(fh, cookie, SIZE, 0, 0, 0, 0)
    error, reply = await kernel.ask(Opcode.READDIRPLUS, body, pid=pid)
    assert error == 0
    return {name: rest for name, *rest in entries(reply, True)}


async def listed(kernel, pid=1):  # noqa: F811
    """Return the pages of a listing to the end."""
    fh, pages, cookie = await opened(kernel), [], 0
    while page := await read(kernel, fh, cookie, pid):
        pages.append(page)
        cookie = max(at for at, *_ in page.values())
    return pages


async def made(kernel, count):  # noqa: F811
    """Make and close so many files; return their inode ids by name."""
    files = {}
    for number in range(count):
        name = b"f%04d" % number
        files[name], fh = await kernel.make(name)
        body = p.RELEASE_IN.pack(fh, 0, 0, 0)
        assert (await kernel.ask(Opcode.RELEASE, body, files[name]))[0] == 0
    return files


def bare(page):
    """Return the names of a page that have no attributes, and those that have."""
    alone = {name for name, (_, node_id, _) in page.items() if not node_id} - DOTS
    return alone, set(page) - alone - DOTS


async def look_up(kernel, name):  # noqa: F811
    error, reply = await kernel.ask(Opcode.LOOKUP, name + b"\0")
    return error, reply and p.ENTRY_OUT.unpack_from(reply)[0]


def asked_for(served, kind):
    return [request for name, request in served if name == kind]


async def test_who_only_lists_is_shown_names_alone(kernel, served):  # noqa: F811
    files = await made(kernel, 100)
    assert (await kernel.ask(Opcode.MKDIR, p.MKDIR_IN.pack(0o755, 0) + b"zd\0"))[0] == 0
    first, *others = await listed(kernel)
    assert len(first) <= FIRST_COUNT + len(DOTS)
    assert len(bare(first)[0]) == TRIED_COUNT
    rest = {name: found for page in others for name, found in page.items()}
    assert bare(rest) == (set(files) - set(first), {b"zd"})
    shown = {**first, **rest}
    assert {name: shown[name][2] for name in files} == files
    assert {page.with_inodes for page in asked_for(served, "List")} == {True, False}
    (again,) = await listed(kernel)
    assert bare(again) == (set(files), {b"zd"})
    # What the kernel was not told of it does not hold.
    held = kernel.vfs._core.known[files[b"f0099"]]
    assert held.lookup_count == 1


async def test_who_looks_files_up_is_shown_attributes(kernel, served):  # noqa: F811
    files = await made(kernel, 100)
    fh = await opened(kernel)
    first = await read(kernel, fh)
    for name in sorted(bare(first)[0]):
        assert await look_up(kernel, name) == (0, files[name])
    rest = await read(kernel, fh, max(at for at, *_ in first.values()))
    assert bare(rest) == (set(), set(files) - set(first))
    assert len(asked_for(served, "Lookup")) == TRIED_COUNT


async def test_another_process_namespace_is_shown_attributes(kernel):  # noqa: F811
    files = await made(kernel, 50)
    assert bare(*await listed(kernel, pid=0)) == (set(), set(files))


async def looked_through(kernel, files):  # noqa: F811
    """List, and then look every file up, in the order of the listing."""
    await listed(kernel)
    for name, inode_id in files.items():
        assert await look_up(kernel, name) == (0, inode_id)


async def test_look_ups_after_a_listing_ask_for_many_at_a_time(kernel, served):  # noqa: F811
    files = await made(kernel, 400)
    await looked_through(kernel, files)
    lookups, lists = len(asked_for(served, "Lookup")), len(asked_for(served, "List"))
    assert lookups < 40
    assert lists < 12
    # As many entries as the kernel was handed: made, those of the first page, and each look-up.
    counts = [kernel.vfs._core.known[inode_id].lookup_count for inode_id in files.values()]
    assert set(counts) <= {2, 3}
    assert counts[0] == counts[-1] == 2


async def test_another_order_is_given_up_soon(kernel, served):  # noqa: F811
    files = await made(kernel, 400)
    await listed(kernel)
    before = len(asked_for(served, "List"))
    for name in sorted(files, key=lambda name: name[::-1]):
        assert await look_up(kernel, name) == (0, files[name])
    assert len(asked_for(served, "List")) - before < 6


@pytest.fixture
async def ahead(kernel, served):  # noqa: F811
    """Files of which some are known ahead, and their inode ids by name; the next is f0005."""
    files = await made(kernel, 100)
    await listed(kernel)
    for name in list(files)[:5]:
        assert await look_up(kernel, name) == (0, files[name])
    told = kernel.vfs.namespace.ahead._told[1]
    with trio.fail_after(60):
        while b"f0005" not in told.files:  # noqa: ASYNC110 - the condition is somebody else's
            await trio.sleep(0.001)
    served.clear()
    return files


async def test_each_name_is_answered_once(kernel, served, ahead):  # noqa: F811
    assert await look_up(kernel, b"f0005") == (0, ahead[b"f0005"])
    assert not served
    assert await look_up(kernel, b"f0005") == (0, ahead[b"f0005"])
    assert [name for name, _ in served] == ["Lookup"]


async def test_what_others_took_away_is_gone_when_it_is_looked_up_again(
    kernel,  # noqa: F811
    cluster,  # noqa: F811
    ahead,
):
    """As with a name that a listing has shown: an open is refused, and the kernel asks again,
    whatever it came by.
    """
    cluster.names[1].pop(b"f0006")
    taken = cluster.names[1].pop(b"f0005")
    assert taken == ahead[b"f0005"]
    assert await look_up(kernel, b"f0005") == (0, taken)
    error, _ = await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDONLY, 0), taken)
    assert error == errno.ESTALE
    assert (await look_up(kernel, b"f0006"))[0] == errno.ENOENT
    assert (await look_up(kernel, b"f0005"))[0] == errno.ENOENT


async def test_what_this_mount_removed_is_gone_at_once(kernel, ahead):  # noqa: F811
    assert await kernel.ask(Opcode.UNLINK, b"f0005\0") == (0, b"")
    assert (await look_up(kernel, b"f0005"))[0] == errno.ENOENT
    assert await look_up(kernel, b"f0006") == (0, ahead[b"f0006"])


async def test_what_this_mount_made_anew_is_found(kernel, ahead):  # noqa: F811
    assert await kernel.ask(Opcode.UNLINK, b"f0005\0") == (0, b"")
    inode_id, _ = await kernel.make(b"f0005")
    assert inode_id != ahead[b"f0005"]
    assert await look_up(kernel, b"f0005") == (0, inode_id)


async def test_what_is_open_here_is_asked_for(kernel, served, ahead):  # noqa: F811
    error, _ = await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDWR, 0), ahead[b"f0005"])
    assert error == 0
    served.clear()
    assert await look_up(kernel, b"f0005") == (0, ahead[b"f0005"])
    assert [name for name, _ in served] == ["Lookup"]


async def test_what_was_told_long_ago_is_asked_for(kernel, served, ahead, monkeypatch):  # noqa: F811
    valid_s = kernel.vfs.section.attr_timeout_s * ahead_names.USED_SHARE
    now_s = kernel.vfs._core.now_s
    monkeypatch.setattr(kernel.vfs._core, "now_s", lambda: now_s() + valid_s)
    assert await look_up(kernel, b"f0005") == (0, ahead[b"f0005"])
    assert [name for name, _ in served] == ["Lookup"]


async def test_no_answer_about_those_behind_is_no_error(kernel, cluster):  # noqa: F811
    files = await made(kernel, 100)
    await listed(kernel)
    cluster.meta_faults["List"] = [FsError(Status.RPC_TIMEOUT, "lost")]
    for name, inode_id in files.items():
        assert await look_up(kernel, name) == (0, inode_id)
    assert not cluster.meta_faults["List"]


async def test_directories_alone_are_shown_by_whole_pages(kernel, served):  # noqa: F811
    """There a thread never shows what it wants."""
    for number in range(5 * FIRST_COUNT):
        name = b"d%03d\0" % number
        assert (await kernel.ask(Opcode.MKDIR, p.MKDIR_IN.pack(0o755, 0) + name))[0] == 0
    await listed(kernel)
    assert [r.entry_count_max for r in asked_for(served, "List")][1:] == [PAGE_ENTRY_COUNT]


async def test_who_wants_attributes_has_them_of_many_directories(kernel):  # noqa: F811
    files = await made(kernel, 3)
    for name in (b"f0000", b"f0001"):
        await listed(kernel)
        assert await look_up(kernel, name) == (0, files[name])
    for _ in range(TRIED_AGAIN_COUNT):
        assert bare(*await listed(kernel)) == (set(), set(files))
    assert len(bare(*await listed(kernel))[0]) == TRIED_COUNT


def with_settings(kernel, monkeypatch, **settings):  # noqa: F811
    section = msgspec.structs.replace(kernel.vfs.section, **settings)
    monkeypatch.setattr(kernel.vfs._core, "section", section)


async def test_names_that_no_open_would_name_are_asked_for(
    kernel,  # noqa: F811
    served,
    monkeypatch,
):
    with_settings(kernel, monkeypatch, listed_timeout_s=0.0)
    files = await made(kernel, 100)
    await looked_through(kernel, files)
    assert len(asked_for(served, "Lookup")) == len(files)


async def test_names_are_told_for_no_longer_than_those_of_a_listing(
    kernel,  # noqa: F811
    served,
    ahead,
    monkeypatch,
):
    with_settings(kernel, monkeypatch, listed_timeout_s=0.1)
    now_s = kernel.vfs._core.now_s
    monkeypatch.setattr(kernel.vfs._core, "now_s", lambda: now_s() + 0.1)
    assert await look_up(kernel, b"f0005") == (0, ahead[b"f0005"])
    assert [name for name, _ in served] == ["Lookup"]


async def test_no_answer_is_older_than_one_before(kernel, cluster, served, monkeypatch):  # noqa: F811
    files = await made(kernel, 100)
    await listed(kernel)
    begin, held = cluster.only.begin, []

    def begin_held(method, request, on_end):
        if method.name != "List":
            return begin(method, request, on_end)
        held.append(Begun(cluster.only, method, request, on_end))
        return held[-1]

    monkeypatch.setattr(cluster.only, "begin", begin_held)
    for name in (b"f0000", b"f0001"):
        assert await look_up(kernel, name) == (0, files[name])
    (coming,) = held
    reply = await cluster.only.call(coming.method, coming.request)
    # Another mount gives the name to something else, and this one is told so.
    cluster.names[1][b"f0050"] = files[b"f0051"]
    assert await look_up(kernel, b"f0050") == (0, files[b"f0051"])
    coming.end(reply)
    served.clear()
    assert await look_up(kernel, b"f0050") == (0, files[b"f0051"])
    assert [name for name, _ in served] == ["Lookup"]


async def test_what_was_looked_up_by_another_name_since_is_asked_for(
    kernel,  # noqa: F811
    cluster,  # noqa: F811
    ahead,
):
    """An open that follows would be refused: it may have come by the name that was told."""
    for handle_id in list(kernel.vfs.directories._open):
        kernel.vfs.directories.releasedir(handle_id)
    cluster.names[1][b"g"] = cluster.names[1].pop(b"f0050")
    assert await look_up(kernel, b"g") == (0, ahead[b"f0050"])
    assert (await look_up(kernel, b"f0050"))[0] == errno.ENOENT


async def test_many_directories_at_once_are_not_asked_for_again_and_again(
    kernel,  # noqa: F811
    served,
    monkeypatch,
):
    monkeypatch.setattr(ahead_names, "DIRECTORY_COUNT_MAX", 0)
    files = await made(kernel, 100)
    await listed(kernel)
    before = len(asked_for(served, "List"))
    for name, inode_id in files.items():
        assert await look_up(kernel, name) == (0, inode_id)
    assert len(asked_for(served, "List")) == before


async def test_who_looks_up_slowly_has_meta_asked_for_ever_fewer(
    kernel,  # noqa: F811
    served,
    monkeypatch,
):
    monkeypatch.setattr(ahead_names, "NAME_COUNT_MAX", 4 * LEFT_COUNT_MIN)
    files = await made(kernel, 100)
    await listed(kernel)
    served.clear()
    for name in list(files)[:2]:
        assert await look_up(kernel, name) == (0, files[name])
    now_s, passed_s = kernel.vfs._core.now_s, 0.0
    monkeypatch.setattr(kernel.vfs._core, "now_s", lambda: now_s() + passed_s)
    for name in list(files)[2:]:
        passed_s += kernel.vfs.section.attr_timeout_s / 2
        assert await look_up(kernel, name) == (0, files[name])
    counts = [request.entry_count_max // LEFT_COUNT_MIN for request in asked_for(served, "List")]
    assert counts == [4, 2, 1]
