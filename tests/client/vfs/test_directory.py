# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import random

import pytest
import trio

from fs.client.vfs import directory as directory_module
from fs.client.vfs.changing_attributes import AttrChange
from fs.client.vfs.listed_file import UNKNOWN_ID, ListedName
from fs.client.vfs.ports import Caller
from fs.schema import services
from fs.schema.status import FsError, Status
from tests.meta.harness import refused

from .conftest import ROOT

USER = Caller(1000, 1000)


async def listing(m, handle_id, cookie=0, take=7):
    """Names after a cookie, in steps of `take` as a kernel with small buffers reads them."""
    names = []
    while entries := (await m.vfs.directories.readdir(handle_id, cookie))[:take]:
        names += [e.name for e in entries]
        cookie = entries[-1].cookie
    return names


async def test_a_name_with_a_damaged_record_is_listed_without_attributes(
    autojump_clock, mounts, cluster
):
    """One such name made its directory unlistable.  Left out, the directory would look empty."""
    async with mounts() as m:
        made = {name: await m.names.mkdir(1, name, 0o755, ROOT) for name in (b"a", b"b", b"c")}
        cluster.damaged.add(made[b"b"].inode_id)
        d = m.vfs.directories.opendir(1, ROOT)
        page = await m.vfs.directories.readdir(d, 0)
        assert [entry.name for entry in page] == [b"a", b"b", b"c"]
        assert [type(entry.told) is ListedName for entry in page] == [False, True, False]
        assert page[1].told.inode_id == made[b"b"].inode_id
        with pytest.raises(FsError) as caught:
            _ = page[1].inode
        assert caught.value.status is Status.METADATA_DAMAGED
        cluster.damaged.clear()


async def test_a_damaged_name_is_listed_and_not_taken_for_a_removed_one(
    autojump_clock, mounts, cluster
):
    """Where its record is damaged, meta lists a name that leads to nothing (0), which programs
    would pass over.
    """
    async with mounts() as m:
        for name in (b"a", b"b"):
            await m.names.mkdir(1, name, 0o755, ROOT)
        made = cluster.names[1][b"b"]
        cluster.names[1][b"b"] = 0
        d = m.vfs.directories.opendir(1, ROOT)
        page = await m.vfs.directories.readdir(d, 0)
        assert [entry.name for entry in page] == [b"a", b"b"]
        assert page[1].told == ListedName(UNKNOWN_ID, 0)
        cluster.names[1][b"b"] = made


async def test_cursor_is_stable_while_entries_come_and_go(autojump_clock, mounts, monkeypatch):
    monkeypatch.setattr(directory_module, "PAGE_ENTRY_COUNT", 16)
    rng = random.Random(5)
    async with mounts() as m:
        stay = {b"stay%03d" % i for i in range(100)}
        for name in sorted(stay):
            await m.names.mkdir(1, name, 0o755, ROOT)
        d = m.vfs.directories.opendir(1, ROOT)
        seen, cookie, others = [], 0, 0
        while entries := (await m.vfs.directories.readdir(d, cookie))[:5]:
            seen += [e.name for e in entries]
            cookie = entries[-1].cookie
            if others < 60:
                others += 1
                await m.names.mkdir(
                    1, b"%c-other%d" % (rng.randrange(97, 123), others), 0o755, ROOT
                )
            if rng.random() < 0.5 and seen[-1] not in stay:
                await m.names.rmdir(1, seen[-1], ROOT)
        assert sorted(n for n in seen if n in stay) == sorted(stay)
        assert len(seen) == len(set(seen))
        m.vfs.directories.releasedir(d)


async def test_seek_back_and_rewind(autojump_clock, mounts, monkeypatch):
    monkeypatch.setattr(directory_module, "PAGE_ENTRY_COUNT", 8)
    async with mounts() as m:
        for i in range(30):
            await m.names.mkdir(1, b"d%02d" % i, 0o755, ROOT)
        d = m.vfs.directories.opendir(1, ROOT)
        everything = await listing(m, d)
        assert everything == [b"d%02d" % i for i in range(30)]
        assert await listing(m, d, cookie=12) == everything[12:]
        assert await listing(m, d, cookie=25) == everything[25:]
        assert await listing(m, d, cookie=0) == everything
        assert await listing(m, d, cookie=29) == everything[29:]
        # Going back, and then to the end of what had been read before that.
        assert await listing(m, d, cookie=3) == everything[3:]
        end = len(everything)
        for back in (5, 20):
            last = (await m.vfs.directories.readdir(d, 12))[-1].cookie
            assert (await m.vfs.directories.readdir(d, back))[0].name == everything[back]
            assert (await listing(m, d, cookie=last))[0] == everything[20]
            assert await listing(m, d, cookie=end) == []
        await m.names.mkdir(1, b"a-first", 0o755, ROOT)
        m.vfs.directories.rewind(d)
        assert (await listing(m, d))[0] == b"a-first"
        with pytest.raises(FsError) as e:
            await m.vfs.directories.readdir(d, 4711)
        assert e.value.status is Status.INVALID_ARGUMENT
        m.vfs.directories.releasedir(d)
        with pytest.raises(FsError) as e:
            await m.vfs.directories.readdir(d, 0)
        assert e.value.status is Status.BAD_FILE


async def test_a_rewind_keeps_the_places_that_were_handed_out(autojump_clock, mounts, monkeypatch):
    monkeypatch.setattr(directory_module, "PAGE_ENTRY_COUNT", 8)
    monkeypatch.setattr(directory_module, "NAMES_KEPT_MAX", 70)
    async with mounts() as m:
        for i in range(30):
            await m.names.mkdir(1, b"d%02d" % i, 0o755, ROOT)
        directories = m.vfs.directories
        d = directories.opendir(1, ROOT)
        everything = await listing(m, d)
        for place in (29, 3, 17, 0, 24, 8):
            directories.rewind(d)
            assert await listing(m, d, cookie=place) == everything[place:]
        directories.rewind(d)
        page = await directories.readdir(d, 12)
        assert [entry.cookie for entry in page] == list(range(13, 21))
        with pytest.raises(FsError):
            await directories.readdir(d, 31)  # nothing has grown
        # A name that comes has others read anew, and the old places stay.
        await m.names.mkdir(1, b"d10-more", 0o755, ROOT)
        directories.rewind(d)
        assert await listing(m, d) == sorted([*everything, b"d10-more"])
        assert (await directories.readdir(d, 20))[0].name == everything[20]
        # What has been read over and over is forgotten at last.
        await m.names.mkdir(1, b"a", 0o755, ROOT)
        directories.rewind(d)
        assert len(await listing(m, d)) == 32
        directories.rewind(d)
        with pytest.raises(FsError):
            await directories.readdir(d, 20)
        directories.releasedir(d)


async def test_who_goes_from_place_to_place_has_no_pages_listed(
    autojump_clock, mounts, monkeypatch
):
    monkeypatch.setattr(directory_module, "PAGE_ENTRY_COUNT", 20)
    async with mounts() as m:
        for i in range(60):
            await m.names.mkdir(1, b"d%02d" % i, 0o755, ROOT)
        directories = m.vfs.directories
        d = directories.opendir(1, ROOT)
        everything = await listing(m, d)
        asked = []
        meta = m.vfs._core.meta
        listed = meta.list

        async def noting(request):
            asked.append(request.entry_count_max)
            return await listed(request)

        monkeypatch.setattr(meta, "list", noting)
        for place in (35, 10, 31, 9):
            page = await directories.readdir(d, place, 4)
            assert [entry.name for entry in page] == everything[place : place + 4]
        assert asked == [4, 4, 4, 4]
        # It goes on from the last place.
        assert (await directories.readdir(d, 13, 4))[0].name == everything[13]
        assert asked[4:] == [20]
        directories.releasedir(d)


async def test_listing_shows_local_lengths_and_fsyncdir_is_durable(autojump_clock, mounts, cluster):
    async with mounts() as m:
        h = await m.create(b"f")
        await m.files.write(h, 0, b"12345")
        d = m.vfs.directories.opendir(1, ROOT)
        entries = await m.vfs.directories.readdir(d, 0)
        assert [(e.name, e.inode.length) for e in entries] == [(b"f", 5)]
        assert await m.vfs.directories.readdir(d, entries[-1].cookie) == []
        assert await m.vfs.directories.parent_of(d) == (1, 1)
        await m.vfs.directories.fsyncdir(d)
        assert cluster.durable_calls == 1
        await m.close(h)


async def test_a_page_that_is_older_than_attributes_may_be_is_read_again(autojump_clock, mounts):
    async with mounts(2) as (here, there):
        for name in (b"a", b"b", b"c"):
            await there.write_file(name, b"x")
        d = here.vfs.directories.opendir(1, ROOT)
        (first,) = await here.vfs.directories.readdir(d, 0, 1)
        inode_id = (await there.stat(b"b")).inode_id
        await there.names.setattr(inode_id, AttrChange(mode=0o600), None, ROOT)
        await there.names.setxattr(inode_id, b"security.capability", b"1", ROOT)
        await trio.sleep(2)
        second, third = await here.vfs.directories.readdir(d, first.cookie)
        assert (second.name, third.name) == (b"b", b"c")
        here.names.give_listed(1, second.name, second.inode)
        assert second.inode.mode & 0o777 == 0o600
        assert await here.names.getxattr(inode_id, b"security.capability", ROOT) == b"1"
        here.vfs.directories.releasedir(d)


async def test_what_is_left_of_a_page_tells_how_old_it_is(autojump_clock, mounts):
    """So that the kernel keeps nothing for longer than it might have kept it from the beginning."""
    async with mounts() as here:
        for name in (b"a", b"b", b"c"):
            await here.write_file(name, b"x")
        d = here.vfs.directories.opendir(1, ROOT)
        (first,) = await here.vfs.directories.readdir(d, 0, 1)
        age_s = here.vfs.directories.age_s(first)
        assert age_s < 0.1
        here.names.give_listed(1, first.name, first.inode, age_s=age_s)
        await trio.sleep(0.75)
        second, _ = await here.vfs.directories.readdir(d, first.cookie)
        age_s = here.vfs.directories.age_s(second)
        assert 0.7 < age_s < 0.9
        here.names.give_listed(1, second.name, second.inode, age_s=age_s)
        known, now_s = here.vfs._core.known, here.vfs._core.now_s()
        for entry, left_s in ((first, 0.25), (second, 0.25)):
            told = known[entry.inode.inode_id]
            assert told.given_until_s - now_s == pytest.approx(left_s, abs=0.1)
            assert max(told.no_acl_until_s, told.bare_until_s) - now_s < left_s + 0.1
        here.vfs.directories.releasedir(d)


async def renamed_while_listed(m, change, take):
    """Have `change` make a new name of each that is listed, in a directory with names of digits;
    return what was listed.
    """
    for number in range(20):
        await m.names.mkdir(1, b"%02d" % number, 0o755, ROOT)
    d, cookie, seen = m.vfs.directories.opendir(1, ROOT), 0, []
    while entries := (await m.vfs.directories.readdir(d, cookie))[:take]:
        for entry in entries:
            seen.append(entry.name)
            assert len(seen) < 100
            await change(entry.name)
        cookie = entries[-1].cookie
    m.vfs.directories.releasedir(d)
    assert not len(m.vfs._core.listings)
    return seen


@pytest.mark.parametrize("take", [1, 3, 7])
@pytest.mark.parametrize("new", [b"n%s", b"%s.done", b"%s "])
async def test_what_is_renamed_once_it_is_listed_is_not_listed_again(
    autojump_clock, mounts, monkeypatch, take, new
):
    monkeypatch.setattr(directory_module, "PAGE_ENTRY_COUNT", 6)
    async with mounts() as m:

        async def change(name):
            await m.names.rename((1, name), (1, b"through"), ROOT)
            await m.names.rename((1, b"through"), (1, new % name), ROOT)

        seen = await renamed_while_listed(m, change, take)
        assert seen == [b"%02d" % number for number in range(20)]


@pytest.mark.parametrize("take", [1, 3, 7])
async def test_what_is_renamed_before_it_is_listed_is_listed_by_its_new_name(
    autojump_clock, mounts, monkeypatch, take
):
    monkeypatch.setattr(directory_module, "PAGE_ENTRY_COUNT", 6)
    async with mounts() as m:

        async def change(name):
            if name == b"03":
                await m.names.rename((1, b"15"), (1, b"x15"), ROOT)
                await m.names.rename((1, b"04"), (1, b"x04"), ROOT)
                await m.names.rename((1, b"03"), (1, b"x03"), ROOT)
                await m.names.mkdir(1, b"x99", 0o755, ROOT)

        seen = await renamed_while_listed(m, change, take)
        assert {b"15", b"x03", b"x04", b"x15", b"x99"} & set(seen) >= {b"x15", b"x99"}
        assert b"x03" not in seen
        assert (b"04" in seen) != (b"x04" in seen)
        assert len(seen) == len(set(seen)) == 21


async def test_what_replaces_a_name_or_goes_back_is_listed(autojump_clock, mounts):
    async with mounts() as m:
        for name in (b"a", b"b", b"y", b"z"):
            await m.write_file(name, b"")
        d = m.vfs.directories.opendir(1, ROOT)
        (first,) = await m.vfs.directories.readdir(d, 0, 1)
        await m.names.rename((1, b"a"), (1, b"y"), ROOT)  # which was there all the time
        await m.names.rename((1, b"b"), (1, b"c"), ROOT)
        assert await listing(m, d, first.cookie) == [b"c", b"y", b"z"]
        await m.names.rename((1, b"c"), (1, b"zz"), ROOT)
        assert await listing(m, d, first.cookie) == [b"y", b"z", b"zz"]
        m.vfs.directories.rewind(d)
        assert await listing(m, d) == [b"y", b"z", b"zz"]
        m.vfs.directories.releasedir(d)


async def test_a_directory_that_was_changed_since_it_was_opened_is_read_on(autojump_clock, mounts):
    """Meta judges by the mode of now, and the kernel has judged the opening."""
    denied = {USER.uid: Status.ACCESS_DENIED}
    async with mounts() as m:
        await m.names.mkdir(1, b"a", 0o755, ROOT)
        core, asked, call = m.vfs._core, [], m.vfs._core.call

        async def call_as(method, request, **more):
            if method is services.META_LIST:
                asked.append(request.caller.uid)
                if status := denied.get(request.caller.uid):
                    raise FsError(status, "by the mode of now")
            return await call(method, request, **more)

        core.call = call_as
        first, second = (m.vfs.directories.opendir(1, USER) for _ in range(2))
        with refused(Status.ACCESS_DENIED):  # as it was opened, for all that is known
            await m.vfs.directories.readdir(first, 0)
        assert asked == [USER.uid]
        await trio.sleep(1)
        await m.names.setattr(1, AttrChange(mode=0), None, ROOT)
        assert await listing(m, first) == await listing(m, first) == [b"a"]
        assert asked[1:3] == [USER.uid, 0]
        assert not any(asked[3:])
        late = m.vfs.directories.opendir(1, USER)
        denied[0] = Status.RPC_NOT_ALLOWED  # to a mount by a user's token
        for handle_id in (second, late):
            with refused(Status.ACCESS_DENIED):
                await m.vfs.directories.readdir(handle_id, 0)
