"""The native client's trash, locks on directories and lookups by the hundred,
right at the service.
"""

import re

import pytest

from fs.client import native_paths
from fs.client.meta_client import caller_of
from fs.client.native import EmberFs, Identity
from fs.meta import records
from fs.schema.status import FsError, Status
from tests.meta.harness import CALL, refused


class DirectMeta:
    """A MetaCaller at the service."""

    def __init__(self, world, client_id):
        self._world, self.client_id = world, client_id

    async def call(self, method, request, *, timeout_s=None):  # noqa: ARG002 - the port has it
        caller = caller_of(request)
        caller.client_id, caller.request_id = self.client_id, self._world.next_request_id()
        served = re.sub("(?<!^)(?=[A-Z])", "_", method.name).lower()
        return await getattr(self._world.meta.service, served)(CALL, request)


async def store(world, key, value):
    tr = world.engine.transaction()
    tr.set(key, value)
    await tr.commit()


@pytest.fixture
def client(world):
    def make(number=1, uid=0):
        meta = DirectMeta(world, str(number) * 32)
        return EmberFs(meta, None, runtime=world.runtime, identity=Identity(uid, uid))

    return make


async def test_what_was_trashed_is_listed_and_comes_back(client):
    fs = client()
    assert await fs.trash() == []
    await fs.makedirs("/a/b")
    await fs.move_to_trash("/a/b", 3600)
    (entry,) = await fs.trash()
    assert (entry.name, entry.path, entry.is_dir) == ("b", "/a/b", True)
    assert entry.due_ns - entry.removed_ns == 3600 * 10**9
    # Where its directory is by now.
    await fs.rename("/a", "/z")
    assert await fs.restore(entry) == "/z/b"
    assert await fs.trash() == []


async def test_restoring_replaces_nothing_and_says_what_is_wrong(client):
    fs = client()
    for _ in range(2):
        await fs.makedirs("/a/b")
        await fs.move_to_trash("/a/b")
    await fs.makedirs("/a/b")
    first, second = await fs.trash()
    assert (first.name, first.path) == ("b", second.path)
    with refused(Status.EXISTS):
        await fs.restore(first)
    assert await fs.restore(first, "/c") == "/c"
    await fs.move_to_trash("/a")
    with refused(Status.BUSY) as told:
        await fs.restore(second)
    assert "restore it first" in told.value.detail
    (above,) = [entry for entry in await fs.trash() if entry.name == "a"]
    await fs.remove_for_good(above)
    with refused(Status.NOT_FOUND) as told:
        await fs.restore(second)
    assert "say where" in told.value.detail
    assert await fs.restore(second, "/d") == "/d"
    assert await fs.trash() == []


async def test_one_client_locks_a_directory(client):
    one, two = client(1), client(2)
    await one.mkdir("/d")
    await one.lock_directory("/d")
    with refused(Status.NO_LOCK):
        await two.mkdir("/d/x")
    with refused(Status.NO_LOCK):
        await two.unlock_directory("/d")
    await two.lock_directory("/d", preempt=True)
    await two.mkdir("/d/x")
    await one.unlock_directory("/d", clear=True)
    await one.mkdir("/d/y")


async def test_a_slash_at_the_end_of_a_path_means_a_directory(client, world):
    """`file/` was removed, renamed and written to as `file`."""
    fs, user = client(), world.user()
    await fs.makedirs("/d")
    await user.create(1, b"f")
    await user.symlink(1, b"link", b"/d")
    for path in ("/f/", "/link/"):
        for way in (fs.unlink, fs.move_to_trash, lambda p: fs.rename(p, "/x")):
            with refused(Status.NOT_DIRECTORY, "ENOTDIR"):
                await way(path)
    with refused(Status.NOT_DIRECTORY, "ENOTDIR"):
        await fs.rename("/f", "/x/")
    for way in (fs.link, fs.symlink):
        with refused(Status.NOT_FOUND, "ENOENT"):
            await way("/f", "/x/")
        with refused(Status.EXISTS, "EEXIST"):
            await way("/f", "/link/")
    with refused(Status.IS_DIRECTORY, "EISDIR"):
        await fs.create("/x/")
    assert await user.names(1) == [b"d", b"f", b"link"]
    await fs.mkdir("/e/")
    with refused(Status.NOT_DIRECTORY, "ENOTDIR"):
        await fs.rename("/e", "/f/", exchange=True)
    await fs.rename("/f", "/e/", exchange=True)
    await fs.rename("/f/", "/e", exchange=True)
    await fs.rename("/e/", "/g/")
    await fs.move_to_trash("/g/")


async def test_many_paths_at_once(client, world):
    fs, stranger = client(), client(2, uid=1000)
    await fs.makedirs("/a/b")
    await world.user().symlink(1, b"link", b"/a/b")
    await fs.mkdir("/secret", 0o700)
    await fs.mkdir("/secret/x")
    paths = ["/a/b", "/no", "/link", "/a/b/c/d", "/secret/x", "", "/"] * 200
    found = await stranger.stat_many(paths)
    assert len(found) == len(paths)
    shown = [f.status if isinstance(f, FsError) else f.inode_id for f in found[:7]]
    b = (await fs.stat("/a/b")).inode_id
    assert shown == [
        b,
        Status.NOT_FOUND,
        b,
        Status.NOT_FOUND,
        Status.ACCESS_DENIED,
        Status.NOT_FOUND,
        1,
    ]
    assert found[700].inode_id == b
    (link,) = await fs.stat_many(["/link"], follow=False)
    assert link.inode_id != b


async def test_where_an_inode_is(client, world):
    fs, user = client(), world.user()
    await fs.makedirs("/a/b")
    b = (await fs.stat("/a/b")).inode_id
    f = (await user.create(b, b"f")).inode_id
    await user.link(f, b, b"g")
    await user.link(f, 1, b"elsewhere")
    assert await fs.paths_of(b) == ["/a/b"]
    assert await fs.paths_of(1) == ["/"]
    assert await fs.paths_of(f) == ["/a/b/f", "/a/b/g"]
    for parent, name in ((b, b"f"), (b, b"g"), (1, b"elsewhere")):
        await user.unlink(parent, name)
    with refused(Status.NOT_FOUND):
        await fs.paths_of(f)
    with refused(Status.STALE):
        await fs.paths_of(0x9999)


async def test_a_tree_is_found(client, world):
    fs = client()
    await fs.makedirs("/t/a/b/c")
    await fs.mkdir("/t/z")
    await fs.symlink("/t/a", "/t/z/link")
    await world.user().create((await fs.stat("/t/a")).inode_id, b"f")
    everything = ["/t/a", "/t/a/b", "/t/a/b/c", "/t/a/f", "/t/z", "/t/z/link"]
    assert [one.path for one in await fs.find("/t")] == everything
    assert [one.path for one in await fs.find("/t/", depth_max=1)] == ["/t/a", "/t/z"]
    assert [one.path for one in await fs.find("/", depth_max=1)][0:1] == ["/t"]
    for path, status in (("/no", Status.NOT_FOUND), ("/t/a/f", Status.NOT_DIRECTORY)):
        with refused(status):
            await fs.find(path)
    await fs.mkdir("/t/z/secret", 0o700)
    with refused(Status.ACCESS_DENIED):
        await client(2, uid=1000).find("/t")


async def test_a_listing_says_why_it_tells_nothing_of_a_name(client, world, monkeypatch):
    """It was a bug, by all that showed."""
    fs = client()
    await fs.makedirs("/t/a")
    inode_id = (await fs.stat("/t")).inode_id
    made = await world.user().create(inode_id, b"f")
    await fs.set_attributes("/t", mode=0o744)
    key = records.inode_key(made.inode_id)
    stored = (await world.dump())[key]
    await store(world, key, b"\xff")
    for user, status in ((fs, Status.METADATA_DAMAGED), (client(2, uid=5), Status.ACCESS_DENIED)):
        for way in (user.listdir, user.find):
            with refused(status):
                await way("/t")
    await store(world, key, stored)
    real = fs._list

    async def list_bare(inode_id, **wanted):
        found = await real(inode_id, **wanted)
        for entry in found:
            entry.ClearField("inode")
        await world.user().unlink(inode_id, b"f")
        return found

    monkeypatch.setattr(fs, "_list", list_bare)
    assert [one.name for one in await fs.listdir("/t")] == ["a"]  # the other is gone by now


async def test_as_many_entries_are_listed_as_are_asked_for(client, monkeypatch):
    fs = client()
    await fs.makedirs("/t")
    names = ["a", "b", "c"]
    for name in names:
        await fs.mkdir(f"/t/{name}")
    for page_count in (1, 2, 1024):
        monkeypatch.setattr(native_paths, "LIST_PAGE_COUNT", page_count)
        for count in range(5):
            found = await fs.listdir("/t", count_max=count)
            assert [one.name for one in found] == names[:count]
        assert [one.name for one in await fs.listdir("/t")] == names


async def test_what_is_removed_during_a_search_is_left_out(client, monkeypatch):
    fs = client()
    await fs.makedirs("/t/a/b")
    await fs.makedirs("/t/c/d")
    gone = (await fs.stat("/t/c")).inode_id
    real = fs._list

    async def list_what_is_there(inode_id, **wanted):
        if inode_id == gone:
            raise FsError(Status.STALE, "removed meanwhile")
        return await real(inode_id, **wanted)

    monkeypatch.setattr(fs, "_list", list_what_is_there)
    assert [one.path for one in await fs.find("/t")] == ["/t/a", "/t/a/b", "/t/c"]
    with refused(Status.STALE):
        await fs.find("/t/c")


async def test_links_and_attributes(client, world):
    fs = client()
    await fs.mkdir("/d")
    d = (await fs.stat("/d")).inode_id
    f = (await world.user().create(d, b"f")).inode_id
    await fs.symlink("f", "/d/link")
    assert await fs.readlink("/d/link") == "f"
    with refused(Status.INVALID_ARGUMENT):
        await fs.readlink("/d/f")
    await fs.link("/d/f", "/g")
    assert (await fs.stat("/g")).inode_id == f
    await fs.link("/d/link", "/second-link")
    assert await fs.readlink("/second-link") == "f"
    changed = await fs.set_attributes("/d/link", mode=0o640, uid=5, gid=6, mtime_ns=7)
    assert (changed.inode_id, changed.mode, changed.uid, changed.gid) == (f, 0o640, 5, 6)
    assert changed.mtime_ns == 7
    changed = await fs.set_attributes("/d/f", times_now=True)
    assert changed.mtime_ns == changed.atime_ns > 7
    assert changed.mode == 0o640
    with refused(Status.NOT_PERMITTED):
        await client(2, uid=1000).set_attributes("/g", mode=0o777)
    assert (await fs.set_attributes("/d/link", uid=9, follow=False)).inode_id != f


async def test_files_are_made_where_links_lead(client):
    fs = client()
    await fs.makedirs("/a/b")
    await fs.symlink("../a/f", "/a/link")
    await fs.symlink("/a/link", "/top")
    await fs.symlink("/round", "/round")
    await fs.create("/top")
    made = await fs.stat("/a/f")
    assert made.length == 0
    assert (await fs.create("/top")).ref.inode_id == made.inode_id
    with refused(Status.TOO_MANY_SYMLINKS):
        await fs.create("/round")
    with refused(Status.IS_DIRECTORY):
        await fs.create("/a/b")
    with refused(Status.EXISTS):
        await fs.create("/top", exclusive=True)
