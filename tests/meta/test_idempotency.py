"""Every change comes out exactly once, however often its request or its transaction is repeated."""

import pytest
import trio

from fs.kv.faulty import CommitFault, Fate, ScriptedFaults
from fs.meta import runner
from fs.meta.check import check
from fs.meta.idempotency import refuse
from fs.schema.inode import is_bare
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import DentryRecordPb
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, World, hint, inline_report, make_config, refused, session

pytestmark = pytest.mark.thorough


async def prepare(world: World):
    """A small tree that every request below can act on."""
    world.config = make_config(inline_bytes_max=4096)
    world.meta.adopt(world.config.meta)
    root = world.user()
    d = (await root.mkdir(ROOT, b"d")).inode_id
    f = (await root.create(d, b"f", wants_write=True, session=session(1))).inode_id
    await root.sync(f, length_hint=hint(100), has_new_data=True)
    small = await root.create(d, b"small", wants_write=True, session=session(2))
    assert small.inode_id == small_of(f)
    await root.sync(small.inode_id, **inline_report(b"bytes"))
    await root.mkdir(d, b"empty")
    sub = (await root.mkdir(d, b"tree")).inode_id
    await root.create(sub, b"inner")
    await root.call("set_xattr", meta.SetXattrReq(inode_id=f, name=b"user.old", value=b"v"))
    return d, f


def small_of(f: int) -> int:
    """Return the inline file that is made after f."""
    return f + 1


def requests(d, f):
    """(name, RPC, request) of every RPC that changes something."""
    small = small_of(f)
    place = {"parent_inode_id": d, "name": b"new"}
    write = {"wants_write": True, "session": session(7)}
    xattr = {"inode_id": f, "name": b"user.new"}
    rename = {"old_parent_inode_id": d, "new_parent_inode_id": ROOT, "new_name": b"moved"}
    swap = {"new_parent_inode_id": d, "new_name": b"tree", "exchange": True}
    report = meta.SyncReq(inode_id=f, length_hint=hint(150), has_new_data=True)
    return {
        "create": ("create", meta.CreateReq(is_exclusive=True, **place, **write)),
        "create-truncate": (
            "create",
            meta.CreateReq(parent_inode_id=d, name=b"f", is_truncate=True, **write),
        ),
        "mkdir": ("mkdir", meta.MkdirReq(**place)),
        "make_directories": (
            "make_directories",
            meta.MakeDirectoriesReq(parent_inode_id=d, path=b"new/a/b", mode=0o755),
        ),
        "symlink": ("symlink", meta.SymlinkReq(target=b"t", **place)),
        "mknod": ("mknod", meta.MknodReq(type=pb.FIFO, **place)),
        "link": ("link", meta.LinkReq(inode_id=f, **place)),
        "unlink": ("unlink", meta.UnlinkReq(parent_inode_id=d, name=b"f")),
        "rmdir": ("rmdir", meta.RmdirReq(parent_inode_id=d, name=b"empty")),
        "remove_tree": ("remove_tree", meta.RemoveTreeReq(parent_inode_id=d, name=b"tree")),
        "rename": ("rename", meta.RenameReq(old_name=b"f", **rename)),
        "rename-directory": ("rename", meta.RenameReq(old_name=b"tree", **rename)),
        "rename-replace": (
            "rename",
            meta.RenameReq(
                old_parent_inode_id=d,
                old_name=b"tree",
                new_parent_inode_id=d,
                new_name=b"empty",
            ),
        ),
        "rename-exchange": (
            "rename",
            meta.RenameReq(old_parent_inode_id=d, old_name=b"f", **swap),
        ),
        "open": ("open", meta.OpenReq(inode_id=f, **write)),
        "open-truncate": ("open", meta.OpenReq(inode_id=f, is_truncate=True, **write)),
        "sync": ("sync", report),
        "close": ("close", meta.CloseReq(sync=report, session_id=session(1).session_id)),
        "chmod": ("set_attr", meta.SetAttrReq(inode_id=f, mode=0o600)),
        "truncate": ("set_attr", meta.SetAttrReq(inode_id=f, length=10)),
        "extend": ("set_attr", meta.SetAttrReq(inode_id=f, length=1000)),
        "set_xattr": ("set_xattr", meta.SetXattrReq(mode=meta.XATTR_CREATE, **xattr)),
        "remove_xattr": (
            "remove_xattr",
            meta.RemoveXattrReq(inode_id=f, name=b"user.old"),
        ),
        "append": ("reserve_append", meta.ReserveAppendReq(inode_id=f, length=5)),
        "reserve_space": ("reserve_space", meta.ReserveSpaceReq(inode_id=f, length=300)),
        "set_quota": (
            "set_quota",
            meta.SetQuotaReq(inode_id=d, quota=meta.QuotaPb(bytes_max=10**6, inodes_max=100)),
        ),
        "move_to_trash": ("move_to_trash", meta.MoveToTrashReq(parent_inode_id=d, name=b"f")),
        "move_to_trash-tree": (
            "move_to_trash",
            meta.MoveToTrashReq(parent_inode_id=d, name=b"tree", expire_s=60),
        ),
        "lock_directory": (
            "lock_directory",
            meta.LockDirectoryReq(inode_id=d, action=meta.LOCK_TAKE),
        ),
        "sync-inline": (
            "sync",
            meta.SyncReq(inode_id=small, **inline_report(b"other", data_ver=1)),
        ),
        "sync-inline-refused": ("sync", meta.SyncReq(inode_id=f, **inline_report(b"other"))),
        "empty-inline": ("set_attr", meta.SetAttrReq(inode_id=small, length=0)),
        "move-inline": ("extend_stripe", meta.ExtendStripeReq(inode_id=small, dyn_stripe_min=1)),
        "truncate-inline": ("set_attr", meta.SetAttrReq(inode_id=small, length=2)),
        "append-inline": ("reserve_append", meta.ReserveAppendReq(inode_id=small, length=2)),
        "open-inline": ("open", meta.OpenReq(inode_id=small, wants_read=True, **write)),
        "stripe": ("extend_stripe", meta.ExtendStripeReq(inode_id=f, dyn_stripe_min=4)),
    }


NAMES = sorted(requests(1, 2))
NOT_COUNTED = {"sync", "close"}
"""A repeated report of new content raises data_ver twice, which costs a cache and nothing else."""


async def comparable(world, *, with_data_ver):
    """The namespace without what may differ between two runs: times and random seeds."""
    found = {}
    for key, value in (await world.dump()).items():
        kind = key[:4]
        if kind == b"INOD":
            inode = pb.InodePb.FromString(value)
            inode.bare_ctime_ns = int(is_bare(inode))
            inode.mtime_ns = inode.ctime_ns = inode.atime_ns = inode.btime_ns = 0
            inode.file.layout.shuffle_seed = inode.file.layout.first_chain_index = 0
            if not with_data_ver:
                inode.file.data_ver = 0
            found[key] = inode.SerializeToString()
        elif kind == b"DENT":
            dentry = DentryRecordPb.FromString(value)
            if dentry.HasField("trash"):
                dentry.trash.removed_ns = dentry.trash.due_ns = 0
            found[key] = dentry.SerializeToString()
        elif kind in (b"DCNT", b"INOS", b"XATR", b"USAG", b"LINK", b"QUOT", b"INLN") or key in (
            b"SINGinode-count",
            b"SINGinline-bytes",
        ):
            found[key] = value if kind != b"INOS" else b""
        elif kind == b"DLCK":
            found[key] = b""
        elif kind.startswith(b"GC") or kind == b"TRSH":
            found[kind + key[12:]] = b""
    return found


async def outcome(world, name, *, repeat=1, fates=()):
    """Prepare, run one request `repeat` times under one id, and return (last reply, namespace)."""
    d, f = await prepare(world)
    rpc, request = requests(d, f)[name]
    user = world.user()
    user.request_id = b"R" * 16
    # Ids are prefetched, so that the faults below meet the request and not the id counter.
    world.engine.faults = ScriptedFaults(fates)
    reply = None
    for _ in range(repeat):
        reply = await user.call(rpc, request)
    world.engine.faults = None
    assert await check(world.engine) == []
    return reply, await comparable(world, with_data_ver=name not in NOT_COUNTED)


@pytest.mark.parametrize(
    "fates",
    [
        [Fate.CONFLICT] * 3,
        [Fate.UNKNOWN_COMMITTED],
        [Fate.UNKNOWN_LOST],
        [Fate.UNKNOWN_LOST, Fate.CONFLICT, Fate.UNKNOWN_COMMITTED],
        [Fate.UNKNOWN_COMMITTED, Fate.UNKNOWN_COMMITTED],
    ],
    ids=["conflicts", "committed", "lost", "mixed", "twice"],
)
@pytest.mark.parametrize("name", NAMES)
async def test_faulty_commits(world, name, fates):
    expected = (await outcome(await world.fresh(), name))[1]
    assert (await outcome(await world.fresh(), name, fates=fates))[1] == expected


@pytest.mark.parametrize("name", NAMES)
async def test_repeated_requests(world, name):
    once_reply, once = await outcome(await world.fresh(), name)
    again_reply, again = await outcome(await world.fresh(), name, repeat=3)
    assert again == once
    field = once_reply.DESCRIPTOR.fields[0].name if once_reply.DESCRIPTOR.fields else None
    if field == "inode":
        assert again_reply.inode.inode_id == once_reply.inode.inode_id
        assert again_reply.inode.nlink == once_reply.inode.nlink


@pytest.mark.parametrize("name", NAMES)
async def test_repeated_at_another_service(world, name):
    made = await world.fresh()
    d, f = await prepare(made)
    rpc, request = requests(d, f)[name]
    user = made.user()
    user.request_id = b"R" * 16
    first = await user.call(rpc, request)
    made.meta = made.new_meta()
    second = await user.call(rpc, request)
    assert first.DESCRIPTOR is second.DESCRIPTOR
    assert await check(made.engine) == []


def undone(d, f):
    """By names of `requests`: what others may have done between a request and its repeat;
    (RPC, request) each.
    """
    new = {"parent_inode_id": d, "name": b"new"}
    there = {"old_parent_inode_id": d, "old_name": b"new", "new_parent_inode_id": d}
    moved_on = [("rename", meta.RenameReq(new_name=b"elsewhere", **there))]
    moved_back = {"old_parent_inode_id": ROOT, "old_name": b"moved", "new_parent_inode_id": d}
    gone = [("unlink", meta.UnlinkReq(**new))]
    written = meta.SyncReq(inode_id=f, length_hint=hint(70, 1), has_new_data=True)
    longer = [[("set_attr", meta.SetAttrReq(inode_id=small_of(f), length=20))]]
    new_f = ("create", meta.CreateReq(parent_inode_id=d, name=b"f"))
    return {
        "create": [moved_on, gone, [*moved_on, ("mkdir", meta.MkdirReq(**new))]],
        "create-truncate": [
            [("sync", written)],
            [("unlink", meta.UnlinkReq(parent_inode_id=d, name=b"f"))],
        ],
        "mkdir": [
            moved_on,
            [("rmdir", meta.RmdirReq(**new))],
            [("remove_tree", meta.RemoveTreeReq(parent_inode_id=ROOT, name=b"d"))],
        ],
        "make_directories": [
            moved_on,
            [("remove_tree", meta.RemoveTreeReq(**new))],
            [*moved_on, ("create", meta.CreateReq(**new))],
        ],
        "symlink": [moved_on, gone, [*gone, ("create", meta.CreateReq(**new))]],
        "mknod": [moved_on, gone],
        "link": [moved_on, gone],
        "unlink": [[new_f]],
        "rmdir": [[("mkdir", meta.MkdirReq(parent_inode_id=d, name=b"empty"))]],
        "remove_tree": [[("mkdir", meta.MkdirReq(parent_inode_id=d, name=b"tree"))]],
        "rename": [[new_f], [("rename", meta.RenameReq(new_name=b"f", **moved_back))]],
        "rename-directory": [[("rename", meta.RenameReq(new_name=b"tree", **moved_back))]],
        "rename-replace": [[("mkdir", meta.MkdirReq(parent_inode_id=d, name=b"tree"))]],
        "rename-exchange": [
            [
                (
                    "rename",
                    meta.RenameReq(
                        old_parent_inode_id=d,
                        old_name=b"f",
                        new_parent_inode_id=d,
                        new_name=b"tree",
                        exchange=True,
                    ),
                )
            ]
        ],
        "open-truncate": [[("sync", written)]],
        "chmod": [[("set_attr", meta.SetAttrReq(inode_id=f, mode=0o640))]],
        "truncate": [[("sync", written)]],
        "extend": [[("set_attr", meta.SetAttrReq(inode_id=f, length=20))]],
        "set_xattr": [[("remove_xattr", meta.RemoveXattrReq(inode_id=f, name=b"user.new"))]],
        "remove_xattr": [
            [("set_xattr", meta.SetXattrReq(inode_id=f, name=b"user.old", value=b"w"))]
        ],
        "append": [[("set_attr", meta.SetAttrReq(inode_id=f, length=20))]],
        **dict.fromkeys(("empty-inline", "truncate-inline", "append-inline"), longer),
        "set_quota": [[("set_quota", meta.SetQuotaReq(inode_id=d))]],
        "move_to_trash": [[new_f]],
        "move_to_trash-tree": [[("mkdir", meta.MkdirReq(parent_inode_id=d, name=b"tree"))]],
        "lock_directory": [
            [("lock_directory", meta.LockDirectoryReq(inode_id=d, action=meta.LOCK_CLEAR))]
        ],
    }


HARMLESS = {"sync", "close", "open", "reserve_space", "stripe"} | {
    name for name in NAMES if name.startswith(("sync-", "open-i", "move-inline"))
}
"""Repeats that may take effect again: see the head of fs/meta/idempotency.py."""


def test_every_change_is_judged():
    assert set(undone(1, 2)) | HARMLESS == set(NAMES)


CASES = [(name, i) for name, cases in sorted(undone(1, 2).items()) for i in range(len(cases))]


@pytest.mark.parametrize(("name", "case"), CASES)
async def test_a_repeat_at_another_service_finds_its_outcome_whatever_others_did_since(
    world, name, case
):
    """The service died after its commit and before its reply."""
    d, f = await prepare(world)
    user, other = world.user(), world.user(client="d" * 32)
    user.request_id = b"R" * 16
    rpc, request = requests(d, f)[name]
    first = await user.call(rpc, request)
    for undoing in undone(d, f)[name][case]:
        await other.call(*undoing)
    before = await namespace(world)
    world.meta = world.new_meta()
    user.is_repeat = True
    again = await user.call(rpc, request)
    assert await namespace(world) == before
    if "inode" in first.DESCRIPTOR.fields_by_name:  # shown as it is now
        assert again.inode.inode_id == first.inode.inode_id
        again.inode.CopyFrom(first.inode)
    for reply in (first, again):
        if "directories" in reply.DESCRIPTOR.fields_by_name:  # shown as they are now
            del reply.directories[:]
    assert again == first


async def namespace(world):
    """Everything stored, but for what a new service takes for itself."""
    return {k: v for k, v in (await world.dump()).items() if not k.startswith(b"SINGinode-ids")}


REFUSED = {
    "create": Status.EXISTS,
    "mkdir": Status.EXISTS,
    "symlink": Status.EXISTS,
    "mknod": Status.EXISTS,
    "link": Status.EXISTS,
    "unlink": Status.NOT_FOUND,
    "rmdir": Status.NOT_FOUND,
    "remove_tree": Status.NOT_FOUND,
    "rename": Status.NOT_FOUND,
    "rename-directory": Status.NOT_FOUND,
    "rename-replace": Status.NOT_FOUND,
    "set_xattr": Status.EXISTS,
    "move_to_trash": Status.NOT_FOUND,
    "move_to_trash-tree": Status.NOT_FOUND,
    "lock_directory": Status.NO_LOCK,
    "remove_xattr": Status.NO_ATTRIBUTE,
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_a_repeat_was_refused_does_not_happen_later(world, name):
    """The first try lay at a service that stood still; its client was told otherwise meanwhile."""
    d, f = await prepare(world)
    user, other = world.user(), world.user(client="d" * 32)
    rpc, request = requests(d, f)[name]
    await other.call(rpc, request)  # so it cannot be done any more
    user.request_id, user.is_repeat = b"R" * 16, True
    with refused(REFUSED[name]):
        await user.call(rpc, request)
    for undoing in undone(d, f)[name][-1 if name in ("rename", "symlink") else 0]:
        await other.call(*undoing)
    before = await namespace(world)
    user.is_repeat = False
    with refused(REFUSED[name]):
        await user.call(rpc, request)
    assert await namespace(world) == before


async def test_an_open_that_comes_late_leaves_no_session_behind(world):
    """Its repeat has opened the file, and its client has closed it since:
    nobody would end that session.
    """
    _, f = await prepare(world)
    user = world.user()
    request = meta.OpenReq(inode_id=f, wants_write=True, session=session(7))
    user.request_id, user.is_repeat = b"R" * 16, True
    opened = await user.call("open", request)
    user.request_id, user.is_repeat = None, False
    report = meta.SyncReq(inode_id=f)
    await user.call("close", meta.CloseReq(sync=report, session_id=session(7).session_id))
    before = await namespace(world)
    user.request_id = b"R" * 16
    assert (await user.call("open", request)).inode == opened.inode
    assert await namespace(world) == before


async def test_a_creation_whose_repeat_found_the_file_does_not_make_it_later(world):
    user, other = world.user(), world.user(client="d" * 32)
    made = await other.create(ROOT, b"f")
    user.request_id, user.is_repeat = b"R" * 16, True
    assert (await user.create(ROOT, b"f")).inode_id == made.inode_id
    await other.unlink(ROOT, b"f")
    world.meta = world.new_meta()
    user.is_repeat = False
    assert not (await user.create_rsp(ROOT, b"f")).was_created
    assert await user.names(ROOT) == []


async def test_a_repeat_whose_first_try_wins_after_all(world, monkeypatch):
    """It succeeds between the refusal of the repeat and the record of that."""
    user, other = world.user(), world.user(client="d" * 32)
    await other.mkdir(ROOT, b"name")
    user.request_id = b"R" * 16
    made = []

    async def late(tr, caller, error, *, now_ns, tick):
        if not made:
            await other.rmdir(ROOT, b"name")
            user.is_repeat = False
            made.append(await user.mkdir(ROOT, b"name"))
        return await refuse(tr, caller, error, now_ns=now_ns, tick=tick)

    monkeypatch.setattr(runner, "refuse", late)
    user.is_repeat = True
    assert (await user.mkdir(ROOT, b"name")).inode_id == made[0].inode_id
    assert await user.names(ROOT) == [b"name"]


async def test_a_first_try_that_is_refused_leaves_nothing_to_forget(world):
    user = world.user()
    await user.mkdir(ROOT, b"d")
    before = await namespace(world)
    with refused(Status.EXISTS):
        await user.mkdir(ROOT, b"d")
    assert await namespace(world) == before


async def test_a_request_without_an_id_survives_unknown_outcomes(world):
    root = world.user()
    await root.create(ROOT, b"f")
    world.engine.faults = ScriptedFaults([Fate.UNKNOWN_COMMITTED])
    request = meta.UnlinkReq(parent_inode_id=ROOT, name=b"f")
    request.caller.uid = 0
    reply = await world.meta.service.unlink(None, request)
    world.engine.faults = None
    assert reply.removed.nlink == 0 and await root.names(ROOT) == []


async def test_one_id_for_two_methods_is_refused(world):
    root = world.user()
    await root.mkdir(ROOT, b"d")
    await root.create(ROOT, b"f")
    root.request_id = b"R" * 16
    await root.unlink(ROOT, b"f")
    with refused(Status.RPC_BAD_REQUEST):
        await root.rmdir(ROOT, b"d")
    root.request_id = None


async def test_a_truncation_is_not_repeated_over_later_writes(world):
    """The reply got lost, another client wrote, then the request came again."""
    first, other = world.user(client="1" * 32), world.user(client="2" * 32)
    f = (await first.create(ROOT, b"f")).inode_id
    await first.sync(f, length_hint=hint(100), has_new_data=True)
    first.request_id = b"T" * 16
    await first.set_attr(f, length=0)
    await other.sync(f, length_hint=hint(50, 1), has_new_data=True)
    assert (await first.set_attr(f, length=0)).file.length == 50
    assert world.chunks.truncated == [(f, 0)]


@pytest.mark.parametrize("name", ["sync", "close"])
async def test_a_report_that_comes_late_does_not_undo_a_later_change_of_times(world, name):
    """Its repeat was done at another service, and the times were set since,
    as cp -p does after its last write.
    """
    _, f = await prepare(world)
    user = world.user()
    user.request_id = world.next_request_id()
    report = meta.SyncReq(inode_id=f, length_hint=hint(150), has_new_data=True, mtime_ns=7)
    if name == "close":
        report = meta.CloseReq(sync=report, session_id=session(1).session_id)
    user.is_repeat = True
    assert (await user.call(name, report)).inode.mtime_ns == 7
    set_ = await world.user().set_attr(f, mtime_ns=5)
    user.is_repeat = False
    await user.call(name, report)
    assert await world.user().attr(f) == set_


async def test_an_error_is_final_and_leaves_nothing(world):
    root = world.user()
    await root.mkdir(ROOT, b"d")
    before = await world.dump()
    for _ in range(2):
        with pytest.raises(FsError):
            await root.unlink(ROOT, b"d")
    assert await world.dump() == before


@pytest.mark.parametrize("kind", ["create", "mkdir", "symlink", "mknod"])
@pytest.mark.parametrize("other_takes_the_name", [False, True])
async def test_made_once_though_its_name_went_before_the_outcome_was_known(
    world,
    autojump_clock,  # noqa: ARG001
    kind,
    other_takes_the_name,
):
    """A commit of unknown outcome, a rename by somebody else, a second run: still one object."""
    user, other = world.user(), world.user(client="d" * 32)
    arguments = {"symlink": (b"target",), "mknod": (pb.FIFO,)}.get(kind, ())
    await user.mkdir(ROOT, b"d")  # fetches inode ids
    world.engine.faults = ScriptedFaults([CommitFault(Fate.UNKNOWN_COMMITTED, delay_after_s=1.0)])
    async with trio.open_nursery() as nursery:
        made = []

        async def make():
            made.append(await getattr(user, kind)(ROOT, b"name", *arguments))

        nursery.start_soon(make)
        await trio.sleep(0.5)
        await other.rename(ROOT, b"name", ROOT, b"elsewhere")
        if other_takes_the_name:
            await other.create(ROOT, b"name")
    world.engine.faults = None
    names = [b"d", b"elsewhere", b"name"] if other_takes_the_name else [b"d", b"elsewhere"]
    assert await user.names(ROOT) == names
    assert (await user.lookup(ROOT, b"elsewhere")).inode_id == made[0].inode_id
