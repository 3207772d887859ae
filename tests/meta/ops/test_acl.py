"""Access control lists: the decision against acl(5) written down plainly, their form,
and what operations do to them.
"""

from hypothesis import given
from hypothesis import strategies as st

from fs.meta import acl, permissions
from fs.meta.context import Caller
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, refused
from tests.posix.acl import ACCESS, DEFAULT, FULL
from tests.posix.acl import acl as value_of

IDS = st.integers(1, 5)
RIGHTS = st.integers(0, 7)
NAMED = st.dictionaries(IDS, RIGHTS, max_size=4)


def allowed_by_the_manual(uid, groups, owners, entries, wanted):
    """acl(5), "Access check algorithm", step by step;
    `entries`: (owner, group, rest, mask, users, groups).
    """
    owner, group = owners
    owner_rights, group_rights, rest, mask, users, named = entries
    if uid == owner:
        return owner_rights & wanted == wanted
    if uid in users:
        return users[uid] & mask & wanted == wanted
    matching = [rights for gid, rights in named.items() if gid in groups]
    if group in groups:
        matching.append(group_rights)
    if matching:
        return any(rights & wanted == wanted for rights in matching) and mask & wanted == wanted
    return rest & wanted == wanted


@given(
    st.tuples(RIGHTS, RIGHTS, RIGHTS, RIGHTS, NAMED, NAMED),
    IDS,
    st.frozensets(IDS, min_size=1),
    st.tuples(IDS, IDS),
    RIGHTS,
)
def test_the_decision_is_that_of_the_manual(entries, uid, groups, owners, wanted):
    inode = pb.InodePb(type=pb.FILE, uid=owners[0], gid=owners[1], mode=0o6000)
    owner, group, rest, mask, users, named = entries
    whole = value_of(owner, group, rest, mask, sorted(users.items()), sorted(named.items()))
    acl.set_access_acl(inode, acl.unpack(whole))
    found = acl.access_acl(inode)
    assert inode.mode == 0o6000 | owner << 6 | mask << 3 | rest
    assert acl.pack(found) == whole
    caller = Caller(uid, min(groups), groups)
    expected = allowed_by_the_manual(uid, groups, owners, entries, wanted)
    assert permissions.is_allowed(caller, inode, wanted) == expected


@given(st.binary(max_size=60) | st.binary(max_size=56).map(lambda b: b"\2\0\0\0" + b))
def test_any_value_is_a_list_or_refused(value):
    found, status = None, None
    try:
        found = acl.unpack(value)
    except FsError as error:
        status = error.status
    assert status in (None, Status.INVALID_ARGUMENT, Status.NOT_SUPPORTED)
    assert found is None or acl.unpack(acl.pack(found)) == found


async def put(user, inode_id, name, value):
    request = meta.SetXattrReq(inode_id=inode_id, name=name.encode(), value=value)
    await user.call("set_xattr", request)


async def file_of(root, user):
    inode_id = (await root.create(ROOT, b"f", 0o600)).inode_id
    await root.set_attr(inode_id, uid=user.uid, gid=user.gid)
    return inode_id


async def may(user, inode_id, mask):
    await user.call("access", meta.AccessReq(inode_id=inode_id, mask=mask))


async def test_a_list_opens_what_the_mode_closes(root, alice, bob):
    inode_id = await file_of(root, alice)
    with refused(Status.ACCESS_DENIED):
        await may(bob, inode_id, 4)
    await put(alice, inode_id, ACCESS, value_of(6, 0, 0, 4, [(bob.uid, 7)]))
    await may(bob, inode_id, 4)
    with refused(Status.ACCESS_DENIED):
        await may(bob, inode_id, 2)
    with refused(Status.NOT_PERMITTED):
        await put(bob, inode_id, ACCESS, FULL)
    await alice.set_attr(inode_id, mode=0o660)  # the mask
    await may(bob, inode_id, 6)
    await alice.set_attr(inode_id, mode=0o606)
    with refused(Status.ACCESS_DENIED):  # unlike what Linux makes of an empty mask
        await may(bob, inode_id, 4)


async def test_who_sets_a_list_sets_no_group_id_of_others(root, alice):
    inode_id = await file_of(root, alice)
    await root.set_attr(inode_id, gid=77)
    await root.set_attr(inode_id, mode=0o2770)
    await put(alice, inode_id, ACCESS, FULL)
    assert (await alice.attr(inode_id)).mode == 0o760


async def test_a_list_too_long_for_a_small_record(root, alice):
    inode_id = await file_of(root, alice)
    fits = [(uid, 7) for uid in range(acl.ENTRY_COUNT_MAX - 4)]
    await put(root, inode_id, ACCESS, value_of(7, 7, 7, 7, fits))
    with refused(Status.NO_SPACE):
        await put(root, inode_id, ACCESS, value_of(7, 7, 7, 7, [*fits, (999, 7)]))


async def test_to_remove_a_list_that_is_not_there_changes_nothing(root, alice):
    d = (await root.mkdir(ROOT, b"d", 0o777)).inode_id
    for inode_id, names in ((await file_of(root, alice), [ACCESS]), (d, [ACCESS, DEFAULT])):
        for name in names:
            before = await root.attr(inode_id)
            await put(root, inode_id, name, b"")
            request = meta.RemoveXattrReq(inode_id=inode_id, name=name.encode())
            await root.call("remove_xattr", request)
            assert await root.attr(inode_id) == before
            await put(root, inode_id, name, FULL)
            given = await root.attr(inode_id)
            await root.call("remove_xattr", request)
            assert (await root.attr(inode_id)).ctime_ns > given.ctime_ns
    with refused(Status.NOT_PERMITTED):
        await put(alice, d, DEFAULT, b"")


async def test_a_default_list_counts_instead_of_the_umask(root):
    plain = await root.mkdir(ROOT, b"plain", 0o777, umask=0o027)
    assert plain.mode == 0o750
    await put(root, plain.inode_id, DEFAULT, FULL)
    made = await root.mkdir(plain.inode_id, b"d", 0o777, umask=0o777)
    assert made.mode == 0o760
    request = meta.GetXattrReq(inode_id=made.inode_id, name=DEFAULT.encode())
    assert (await root.call("get_xattr", request)).value == FULL
    names = await root.call("list_xattrs", meta.ListXattrsReq(inode_id=made.inode_id))
    assert list(names.names) == [ACCESS.encode(), DEFAULT.encode()]
    with refused(Status.NO_ATTRIBUTE):
        request = meta.GetXattrReq(inode_id=plain.inode_id, name=ACCESS.encode())
        await root.call("get_xattr", request)
    assert not (await root.symlink(plain.inode_id, b"l", b"x")).HasField("acl")
