"""Mode and owner that come with a report: as a SetAttr of the same caller, once,
and not over what others set later.
"""

import itertools

import pytest

from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, hint, inline_report, refused, session

DATA = b"all of it"
REQUEST_ID = b"r" * 16
OTHER = "d" * 32


@pytest.fixture(params=["in chunks", "inline"])
def is_inline(request):
    return request.param == "inline"


@pytest.fixture
def world(request, is_inline):
    return request.getfixturevalue("inline_world" if is_inline else "world")


@pytest.fixture
async def file(root):
    made = await root.create(ROOT, b"f", 0o600, wants_write=True, session=session(1))
    return made.inode_id


@pytest.fixture
def news(is_inline):
    """Return what a report tells of content."""
    versions = itertools.count()

    def told():
        if is_inline:
            return inline_report(DATA, data_ver=next(versions))
        return {"has_new_data": True, "length_hint": hint(9)}

    return told


def owner_of(inode, set_ns=None, **asked):
    seen = {"mode_seen": inode.mode, "uid_seen": inode.uid, "gid_seen": inode.gid}
    set_ns = inode.ctime_ns if set_ns is None else set_ns
    return meta.OwnerReportPb(**asked, **seen, set_ns=set_ns)


async def report(user, inode_id, owner, news) -> meta.InodeRsp:
    return await user.call("sync", meta.SyncReq(inode_id=inode_id, owner=owner, **news()))


def owned(inode):
    return oct(inode.mode), inode.uid, inode.gid


async def test_all_of_it_is_set_with_the_content(root, file, news):
    before = await root.attr(file)
    reply = await report(root, file, owner_of(before, mode=0o644, uid=5, gid=6), news)
    assert reply.owner_outcome == meta.OWNER_SET
    assert owned(reply.inode) == owned(await root.attr(file)) == ("0o644", 5, 6)
    assert reply.inode.file.length == 9
    assert reply.inode.ctime_ns > before.ctime_ns


async def test_ctime_is_what_the_client_shows_since_it_was_set(root, file, news):
    """Programs note it before they close."""
    before = await root.attr(file)
    set_ns = before.ctime_ns + 1
    owner = owner_of(before, set_ns, mode=0o644)
    request = meta.SyncReq(inode_id=file, owner=owner, mtime_ns=7, **news())
    told = (await root.call("sync", request)).inode
    assert (told.mtime_ns, told.ctime_ns) == (7, set_ns)


async def test_without_content_it_is_a_change_too(root, file):
    before = await root.attr(file)
    told = await root.sync(file, owner=owner_of(before, mode=0o644))
    assert owned(told) == ("0o644", 0, 0)
    assert told.ctime_ns > before.ctime_ns and told.file.data_ver == before.file.data_ver


@pytest.mark.parametrize("is_later", [True, False])
async def test_what_others_have_set_later_stays(root, file, news, is_later):
    seen = await root.attr(file)
    if not is_later:
        await root.set_attr(file, mode=0o400)
    set_ns = (await root.attr(file)).ctime_ns
    if is_later:
        await root.set_attr(file, mode=0o400)
    reply = await report(root, file, owner_of(seen, set_ns, mode=0o644, uid=5), news)
    found = owned(await root.attr(file))
    if is_later:
        assert (reply.owner_outcome, found) == (meta.OWNER_SUPERSEDED, ("0o400", 0, 0))
    else:
        assert (reply.owner_outcome, found) == (meta.OWNER_SET, ("0o644", 5, 0))
    assert reply.inode.file.length == 9


async def test_what_a_set_attr_would_refuse_is_left_to_one(root, world, file, news):
    user = world.user(1000)
    await root.set_attr(file, mode=0o666)
    before = await root.attr(file)
    for asked in ({"mode": 0o777}, {"uid": 1000}, {"mode": 0o777, "gid": 1000}):
        reply = await report(user, file, owner_of(before, **asked), news)
        assert reply.owner_outcome == meta.OWNER_NOT_SET
        assert owned(await root.attr(file)) == ("0o666", 0, 0)
        assert reply.inode.file.length == 9


async def test_of_an_immutable_file_nothing_is_set(root, file, news):
    before = await root.attr(file)
    await root.set_attr(file, iflags=0x10)
    reply = await report(root, file, owner_of(before, mode=0o644), news)
    assert reply.owner_outcome == meta.OWNER_NOT_SET
    assert owned(await root.attr(file)) == ("0o600", 0, 0)


async def test_the_owner_may_widen_his_own(root, world, file, news):
    await root.set_attr(file, uid=1000)
    before = await root.attr(file)
    reply = await report(world.user(1000), file, owner_of(before, mode=0o644), news)
    assert reply.owner_outcome == meta.OWNER_SET
    assert owned(reply.inode) == ("0o644", 1000, 0)


async def test_set_id_bits_go_as_with_a_chown(root, file, news):
    await root.set_attr(file, mode=0o6755)
    before = await root.attr(file)
    reply = await report(root, file, owner_of(before, uid=5), news)
    assert owned(reply.inode) == ("0o755", 5, 0)


async def test_a_list_has_its_mask_set_as_by_a_chmod(root, file, news):
    entries = [(1, 6, -1), (2, 7, 1000), (4, 0, -1), (16, 7, -1), (32, 0, -1)]
    value = b"\2\0\0\0" + b"".join(
        t.to_bytes(2, "little") + r.to_bytes(2, "little") + (i & 0xFFFFFFFF).to_bytes(4, "little")
        for t, r, i in entries
    )
    name = b"system.posix_acl_access"
    await root.call("set_xattr", meta.SetXattrReq(inode_id=file, name=name, value=value))
    before = await root.attr(file)
    reply = await report(root, file, owner_of(before, mode=0o640), news)
    assert (reply.inode.mode, reply.inode.acl.users[0].id) == (0o640, 1000)


async def test_a_repeat_does_not_undo_what_others_set(root, world, file, news):
    """Also where clocks disagree, and where others set what was there before."""
    sender = world.user(0)
    sender.request_id = REQUEST_ID
    before, told = await root.attr(file), news()
    owner = owner_of(before, before.ctime_ns + 10**15, mode=0o644)

    async def send():
        return await sender.call("sync", meta.SyncReq(inode_id=file, owner=owner, **told))

    assert (await send()).owner_outcome == meta.OWNER_SET
    await root.set_attr(file, mode=0o600)
    sender.is_repeat = True
    reply = await send()
    assert reply.owner_outcome == meta.OWNER_SET  # once
    assert owned(reply.inode) == owned(await root.attr(file)) == ("0o600", 0, 0)


async def test_a_first_try_that_comes_after_its_repeat_changes_nothing(root, world, file, news):
    sender = world.user(0)
    sender.request_id, sender.is_repeat = REQUEST_ID, True
    request = meta.SyncReq(
        inode_id=file, owner=owner_of(await root.attr(file), mode=0o644), **news()
    )
    await sender.call("sync", request)
    await root.set_attr(file, mode=0o600)
    sender.is_repeat = False
    await sender.call("sync", request)
    assert owned(await root.attr(file)) == ("0o600", 0, 0)


@pytest.mark.parametrize("is_inline", [True])
async def test_bytes_that_are_refused_take_nothing_along(root, world, file, is_inline):
    assert is_inline
    before = await root.attr(file)
    other = world.user(0, client=OTHER)
    await other.open(file, wants_write=True, session=session(2), takes_inline=True)
    request = meta.SyncReq(inode_id=file, owner=owner_of(before, mode=0o644), **inline_report(DATA))
    reply = await root.call("sync", request)
    assert reply.is_inline_refused and reply.owner_outcome == meta.OWNER_NOT_SET
    assert owned(await root.attr(file)) == ("0o600", 0, 0)


async def test_a_close_brings_none(root, file):
    before = await root.attr(file)
    with refused(Status.INVALID_ARGUMENT):
        await root.close(file, session(1).session_id, owner=owner_of(before, mode=0o644))


async def test_a_directory_has_none(root):
    d = (await root.mkdir(ROOT, b"d", 0o700)).inode_id
    request = meta.SyncReq(inode_id=d, owner=owner_of(await root.attr(d), mode=0o755))
    assert (await root.call("sync", request)).owner_outcome == meta.OWNER_NOT_SET
    assert (await root.attr(d)).mode == 0o700
