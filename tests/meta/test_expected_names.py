"""A change of an inode that was found by a name is refused when
that name leads elsewhere by then.
"""

import pytest

from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import CALL, ROOT, refused, session

XATTR = b"user.x"


def expecting(request, inode_id, name):
    request.inode_id, request.expected_name = inode_id, name
    request.expected_parent_inode_id = ROOT
    return request


def changes(inode_id, name):
    """Return each method with a request that expects a name."""
    return {
        "open": expecting(meta.OpenReq(wants_read=True), inode_id, name),
        "set_attr": expecting(meta.SetAttrReq(length=0), inode_id, name),
        "set_xattr": expecting(meta.SetXattrReq(name=XATTR, value=b"1"), inode_id, name),
        "remove_xattr": expecting(meta.RemoveXattrReq(name=XATTR), inode_id, name),
        "link": expecting(meta.LinkReq(parent_inode_id=ROOT, name=b"other"), inode_id, name),
    }


@pytest.mark.parametrize("method", [*changes(1, b"")])
@pytest.mark.parametrize("how", ["replaced", "moved", "removed"])
async def test_what_a_name_no_longer_leads_to_is_not_changed(root, method, how):
    kept = {"session": session(1)}
    inode_id = (await root.create(ROOT, b"f", wants_write=True, **kept)).inode_id
    await root.call("set_xattr", meta.SetXattrReq(inode_id=inode_id, name=XATTR, value=b"0"))
    if how == "replaced":
        await root.create(ROOT, b"g")
        await root.rename(ROOT, b"g", ROOT, b"f")
    elif how == "moved":
        await root.rename(ROOT, b"f", ROOT, b"g")
    else:
        await root.unlink(ROOT, b"f")
    before = await root.attr(inode_id)
    with refused(Status.STALE, "ESTALE"):
        await root.call(method, changes(inode_id, b"f")[method])
    assert await root.attr(inode_id) == before
    assert b"other" not in await root.names(ROOT)


@pytest.mark.parametrize("method", [*changes(1, b"")])
async def test_what_it_still_leads_to_is(root, method):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    await root.call("set_xattr", meta.SetXattrReq(inode_id=inode_id, name=XATTR, value=b"0"))
    before = await root.attr(inode_id)
    await root.call(method, changes(inode_id, b"f")[method])
    assert method == "open" or (await root.attr(inode_id)).ctime_ns > before.ctime_ns


async def test_a_repeat_of_what_was_done_is_not_refused(root):
    inode_id = (await root.create(ROOT, b"f")).inode_id
    request = changes(inode_id, b"f")["set_attr"]
    request.caller.CopyFrom(root.caller())
    service = root.world.meta.service
    await service.set_attr(CALL, request)
    await root.unlink(ROOT, b"f")
    request.caller.is_repeat = True
    assert (await service.set_attr(CALL, request)).inode.inode_id == inode_id
