"""Usage, quotas, promised bytes, fences and recounting:
the cases that random operations do not reach.
"""

import pytest
import trio

from fs.kv.faulty import Fate, ScriptedFaults
from fs.kv.transact import transact
from fs.meta import quota, records
from fs.meta.check import check
from fs.meta.init import initialise
from fs.meta.promises import SHARE
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, hint, refused, session

MIB = 1 << 20


async def numbers(user, inode_id):
    found = (await user.usage(inode_id)).directory.usage
    return found.bytes, found.files, found.directories


async def xattr(user, inode_id, name):
    return (await user.call("get_xattr", meta.GetXattrReq(inode_id=inode_id, name=name))).value


async def count_keys(world, prefix):
    return len(await world.engine.transaction().get_range(prefix, prefix + b"\xff"))


async def forget_count(world):
    """Leave the store as an older release did, which counted nothing."""

    async def forget(tr):
        tr.clear(records.USAGE_STATE_KEY)

    await transact(world.engine, forget, runtime=world.runtime)


# -- what is shown ---------------------------------------------------------------------------------


async def test_attributes_show_usage_and_quota(root, alice):
    made = await root.mkdir(ROOT, b"d")
    await root.mkdir(made.inode_id, b"e")
    file = await root.create(made.inode_id, b"f")
    await root.sync(file.inode_id, length_hint=hint(7), has_new_data=True)
    assert await xattr(alice, made.inode_id, b"ember.usage.bytes") == b"7"
    assert await xattr(alice, made.inode_id, b"ember.usage.files") == b"1"
    assert await xattr(alice, made.inode_id, b"ember.usage.directories") == b"1"
    assert await xattr(alice, ROOT, b"ember.usage.directories") == b"2"
    await root.set_quota(made.inode_id, 0, 50)
    assert await xattr(alice, made.inode_id, b"ember.quota.inodes") == b"50"
    for inode_id, name in (
        (made.inode_id, b"ember.quota.bytes"),
        (made.inode_id, b"ember.nonsense"),
        (file.inode_id, b"ember.usage.bytes"),
    ):
        with refused(Status.NO_ATTRIBUTE, "ENODATA"):
            await xattr(alice, inode_id, name)
    with refused(Status.NOT_SUPPORTED):
        request = meta.SetXattrReq(inode_id=made.inode_id, name=b"ember.usage.bytes", value=b"1")
        await root.call("set_xattr", request)
    await root.set_attr(made.inode_id, mode=0o711)
    with refused(Status.ACCESS_DENIED):
        await alice.usage(made.inode_id)
    with refused(Status.NOT_DIRECTORY):
        await root.usage(file.inode_id)


async def test_limits_above_are_listed_nearest_first(root):
    outer = await root.mkdir(ROOT, b"outer")
    inner = await root.mkdir(outer.inode_id, b"inner")
    await root.set_quota(outer.inode_id, 100, 0)
    await root.set_quota(inner.inode_id, 0, 10)
    reply = await root.usage(inner.inode_id)
    assert [entry.path for entry in reply.limiting] == [b"/outer/inner", b"/outer"]
    listed = await root.call("list_quotas", meta.ListQuotasReq(entry_count_max=1))
    assert [entry.path for entry in listed.entries] == [b"/outer"] and listed.has_more
    after = meta.ListQuotasReq(after_inode_id=listed.entries[0].inode_id)
    listed = await root.call("list_quotas", after)
    assert [entry.path for entry in listed.entries] == [b"/outer/inner"] and not listed.has_more
    await root.set_quota(inner.inode_id, 0, 0)
    assert not (await root.usage(inner.inode_id)).directory.HasField("quota")


async def test_only_root_changes_quotas(root, alice):
    made = await root.mkdir(ROOT, b"d")
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await alice.set_quota(made.inode_id, 1, 1)
    with refused(Status.NOT_PERMITTED):
        await alice.call("list_quotas", meta.ListQuotasReq())
    file = await root.create(ROOT, b"f")
    with refused(Status.NOT_DIRECTORY):
        await root.set_quota(file.inode_id, 1, 1)
    with refused(Status.INVALID_ARGUMENT):
        await root.set_quota(made.inode_id, 2**63, 0)


async def test_a_removed_directory_takes_its_quota_along(world, root, autojump_clock):  # noqa: ARG001
    made = await root.mkdir(ROOT, b"d")
    await root.set_quota(made.inode_id, 1, 1)
    await root.rmdir(ROOT, b"d")
    assert not (await root.call("list_quotas", meta.ListQuotasReq())).entries
    await trio.sleep(100)
    await world.meta.gc.step()
    assert await count_keys(world, records.QUOTA) == 0


# -- moves -----------------------------------------------------------------------------------------


async def test_a_tree_moves_with_all_it_holds(root):
    a, b = await root.mkdir(ROOT, b"a"), await root.mkdir(ROOT, b"b")
    tree = await root.mkdir(a.inode_id, b"tree")
    deep = await root.mkdir(tree.inode_id, b"deep")
    file = await root.create(deep.inode_id, b"f")
    await root.set_attr(file.inode_id, length=10)
    await root.set_quota(b.inode_id, 0, 2)
    with refused(Status.QUOTA_EXCEEDED, "EDQUOT"):
        await root.rename(a.inode_id, b"tree", b.inode_id, b"tree")
    assert await numbers(root, a.inode_id) == (10, 1, 2)
    await root.set_quota(b.inode_id, 10, 3)
    await root.rename(a.inode_id, b"tree", b.inode_id, b"tree")
    assert await numbers(root, a.inode_id) == (0, 0, 0)
    assert await numbers(root, b.inode_id) == (10, 1, 2)
    assert await numbers(root, ROOT) == (10, 1, 4)


async def test_moves_inside_a_full_quota_are_free(root):
    top = await root.mkdir(ROOT, b"top")
    a, b = await root.mkdir(top.inode_id, b"a"), await root.mkdir(top.inode_id, b"b")
    await root.create(a.inode_id, b"f")
    await root.set_quota(top.inode_id, 0, 3)
    with refused(Status.QUOTA_EXCEEDED):
        await root.create(a.inode_id, b"g")
    await root.rename(a.inode_id, b"f", b.inode_id, b"f")
    await root.rename(top.inode_id, b"a", b.inode_id, b"a")
    assert await numbers(root, b.inode_id) == (0, 1, 1)


async def test_the_cache_of_another_service_notices_a_move(world, root):
    """Two services: what one moves, the other must not count at the old place."""
    a, b = await root.mkdir(ROOT, b"a"), await root.mkdir(ROOT, b"b")
    tree = await root.mkdir(a.inode_id, b"tree")
    first, second = world.meta, world.new_meta()
    await root.create(tree.inode_id, b"f1")
    world.meta = second
    await root.rename(a.inode_id, b"tree", b.inode_id, b"tree")
    world.meta = first
    await root.create(tree.inode_id, b"f2")
    assert await numbers(root, a.inode_id) == (0, 0, 0)
    assert await numbers(root, b.inode_id) == (0, 2, 1)


async def test_changes_below_a_tree_cannot_keep_it_from_moving(world, root, autojump_clock):  # noqa: ARG001
    """Each run of the move meets a new file below until the fence makes those wait."""
    a = await root.mkdir(ROOT, b"a")
    tree = await root.mkdir(a.inode_id, b"tree")
    other, made_count, is_moved = world.user(client="d" * 32), 0, False

    async def make():
        nonlocal made_count
        while not is_moved:
            made_count += 1
            await other.create(tree.inode_id, b"%d" % made_count)
            await trio.sleep(0.01)

    before = world.engine.transaction

    def slow_transaction():
        inner = before()
        get_many = inner.get_many

        async def slow(keys, *, snapshot=False):
            found = await get_many(keys, snapshot=snapshot)
            if not snapshot and records.usage_key(tree.inode_id, b"b") in keys:
                await trio.sleep(0.3)
            return found

        return _Slow(inner, slow)

    world.engine.transaction = slow_transaction
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(make)
        await trio.sleep(0.1)
        await root.rename(a.inode_id, b"tree", ROOT, b"moved")
        is_moved = True
    world.engine.transaction = before
    assert (await numbers(root, a.inode_id)) == (0, 0, 0)
    assert (await numbers(root, tree.inode_id)) == (0, made_count, 0)
    assert await count_keys(world, records.USAGE_FENCE) == 0


class _Slow:
    """A transaction with another `get_many`."""

    def __init__(self, inner, get_many):
        self._inner = inner
        self.get_many = get_many

    def __getattr__(self, name):
        return getattr(self._inner, name)


async def test_no_directory_leaves_a_removed_tree(root):
    tree = await root.mkdir(ROOT, b"tree")
    inner = await root.mkdir(tree.inode_id, b"inner")
    await root.mkdir(inner.inode_id, b"x")
    await root.create(inner.inode_id, b"f")
    await root.remove_tree(ROOT, b"tree")
    with refused(Status.NOT_FOUND):
        await root.rename(inner.inode_id, b"x", ROOT, b"x")
    await root.rename(inner.inode_id, b"f", ROOT, b"f")
    assert await numbers(root, ROOT) == (0, 1, 0)


# -- near the limit --------------------------------------------------------------------------------


async def test_many_at_once_never_exceed_a_limit(world, root, monkeypatch):
    """Far from the limit nobody conflicts; the mark stops those who still believe it to be far."""
    monkeypatch.setitem(quota._MARGINS, records.KIND_INODES, 12)
    made = await root.mkdir(ROOT, b"d")
    await root.set_quota(made.inode_id, 0, 50)
    refused_count = 0

    async def make(number):
        nonlocal refused_count
        user = world.user(client=f"{number:032x}")
        for i in range(20):
            try:
                await user.create(made.inode_id, b"%d-%d" % (number, i))
            except FsError as error:
                assert error.status is Status.QUOTA_EXCEEDED  # noqa: PT017 - success is an outcome too
                refused_count += 1

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(make, number)
    assert await numbers(root, made.inode_id) == (0, 50, 0)
    assert refused_count == 50
    assert await count_keys(world, records.QUOTA_NEAR) == 1
    for entry in (await root.list(made.inode_id)).entries[:30]:
        await root.unlink(made.inode_id, entry.name)
    await root.create(made.inode_id, b"again")
    assert await count_keys(world, records.QUOTA_NEAR) == 0


async def test_far_from_the_limit_growth_does_not_conflict(world, root):
    made = await root.mkdir(ROOT, b"d")
    await root.set_quota(made.inode_id, 0, 10**9)
    world.engine.faults = ScriptedFaults()

    async def make(number):
        await world.user(client=f"{number:032x}").create(made.inode_id, b"%d" % number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(make, number)
    assert world.engine.faults.commit_count == 20
    world.engine.faults = None


# -- promised bytes --------------------------------------------------------------------------------


async def metered(root, bytes_max):
    made = await root.mkdir(ROOT, b"q")
    await root.set_quota(made.inode_id, bytes_max, 0)
    return made.inode_id


async def write_open(user, parent, name, number=1):
    fields = {"session": session(number), "wants_write": True}
    return await user.create_rsp(parent, name, **fields)


async def test_without_a_quota_nobody_asks(root):
    reply = await write_open(root, ROOT, b"f")
    assert reply.HasField("is_metered") and not reply.is_metered
    assert not (await root.reserve(reply.inode.inode_id, 10**9)).is_metered
    assert (await root.attr(reply.inode.inode_id)).file.charged_length == 0


async def test_a_promise_counts_and_is_settled_at_close(root):
    parent = await metered(root, 1000 * MIB)
    reply = await write_open(root, parent, b"f")
    inode_id = reply.inode.inode_id
    assert reply.is_metered and reply.inode.file.charged_length == MIB
    assert await numbers(root, parent) == (MIB, 1, 0)
    more = await root.reserve(inode_id, 10 * MIB)
    assert more.inode.file.charged_length == 20 * MIB
    assert (await root.attr(inode_id)).file.length == 0
    await root.close(inode_id, session(1).session_id, length_hint=hint(3), has_new_data=True)
    assert await numbers(root, parent) == (3, 1, 0)


async def test_a_promise_is_refused_when_it_does_not_fit(root):
    parent = await metered(root, 100)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    await root.reserve(inode_id, 100)
    with refused(Status.QUOTA_EXCEEDED, "EDQUOT"):
        await root.reserve(inode_id, 101)
    assert (await root.reserve(inode_id, 50)).inode.file.charged_length == 100
    with refused(Status.INVALID_ARGUMENT):
        await root.close(inode_id, session(1).session_id)
        await root.reserve(inode_id, 100)


async def test_near_the_limit_nobody_gets_more_than_he_asked_for(root):
    parent = await metered(root, SHARE + 10)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    assert (await root.reserve(inode_id, 10)).inode.file.charged_length == 11
    assert (await root.reserve(inode_id, 12)).inode.file.charged_length == 12


async def test_another_writer_keeps_the_promise(root):
    parent = await metered(root, 1000)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    await root.open(inode_id, session=session(2), wants_write=True)
    await root.reserve(inode_id, 500)
    await root.close(inode_id, session(1).session_id)
    assert await numbers(root, parent) == (507, 1, 0)
    await root.close(inode_id, session(2).session_id)
    assert await numbers(root, parent) == (0, 1, 0)


async def end_settled(user, inode_id, number):
    request = meta.PruneSessionsReq(is_settled=True)
    request.sessions.add(inode_id=inode_id, session_id=session(number).session_id)
    await user.call("prune_sessions", request)


async def test_the_last_settled_session_gives_the_promise_back(root):
    parent = await metered(root, 1000)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    await root.open(inode_id, session=session(2), wants_write=True)
    await root.reserve(inode_id, 500)
    await end_settled(root, inode_id, 1)
    assert await numbers(root, parent) == (507, 1, 0)
    await end_settled(root, inode_id, 2)
    assert await numbers(root, parent) == (0, 1, 0)
    assert (await root.attr(inode_id)).file.charged_length == 0


async def test_the_last_settled_session_cuts_what_was_refused(world, root):
    made = await root.mkdir(ROOT, b"q")
    inode_id = (await write_open(root, made.inode_id, b"f")).inode.inode_id
    other = world.user(client="e" * 32)
    await other.open(inode_id, session=session(2), wants_write=True)
    await root.set_quota(made.inode_id, 20, 0)
    with refused(Status.QUOTA_EXCEEDED):
        await root.sync(inode_id, length_hint=hint(30), has_new_data=True)
    assert (await root.attr(inode_id)).file.is_end_refused
    await end_settled(root, inode_id, 1)
    assert not (await root.attr(inode_id)).file.truncate_pending
    await end_settled(other, inode_id, 2)
    assert (await root.attr(inode_id)).file.truncate_pending


async def test_the_session_of_a_dead_client_gives_its_promise_back(world, root):
    parent = await metered(root, 1000)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    await root.reserve(inode_id, 500)
    world.chunks.lengths[inode_id] = 20
    assert await world.meta.service.end_session(inode_id, session(1).session_id, "c" * 32)
    assert await numbers(root, parent) == (20, 1, 0)


async def test_a_truncation_voids_promises(root):
    parent = await metered(root, 1000)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    await root.reserve(inode_id, 500)
    await root.set_attr(inode_id, length=10)
    assert await numbers(root, parent) == (507, 1, 0)
    await root.set_attr(inode_id, length=0)
    assert await numbers(root, parent) == (0, 1, 0)
    with refused(Status.QUOTA_EXCEEDED):
        await root.set_attr(inode_id, length=1001)


async def test_an_append_must_fit(root):
    parent = await metered(root, 100)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    assert (await root.append(inode_id, 60)).offset == 0
    with refused(Status.QUOTA_EXCEEDED):
        await root.append(inode_id, 41)
    assert (await root.append(inode_id, 40)).offset == 60


@pytest.mark.parametrize("found_by", ["sync", "close", "death"])
async def test_bytes_written_before_there_was_a_limit_are_refused_and_cut(world, root, found_by):
    made = await root.mkdir(ROOT, b"q")
    inode_id = (await write_open(root, made.inode_id, b"f")).inode.inode_id
    await root.sync(inode_id, length_hint=hint(10), has_new_data=True)
    await root.set_quota(made.inode_id, 20, 0)
    world.chunks.lengths[inode_id] = 30
    report = {"length_hint": hint(30), "has_new_data": True}
    if found_by == "sync":
        with refused(Status.QUOTA_EXCEEDED):
            await root.sync(inode_id, **report)
        await root.close(inode_id, session(1).session_id)
    elif found_by == "close":
        with refused(Status.QUOTA_EXCEEDED):
            await root.close(inode_id, session(1).session_id, **report)
    else:
        await world.meta.service.end_session(inode_id, session(1).session_id, "c" * 32)
        await world.meta.service.driver.finish_truncation(inode_id)
    after = await root.attr(inode_id)
    assert (after.file.length, after.file.truncate_pending) == (10, False)
    assert world.chunks.truncated == [(inode_id, 10)]
    assert await count_keys(world, records.FILE_SESSION) == 0
    assert await numbers(root, made.inode_id) == (10, 1, 0)


async def test_a_file_without_a_name_counts_nowhere(root):
    parent = await metered(root, 100)
    inode_id = (await write_open(root, parent, b"f")).inode.inode_id
    await root.reserve(inode_id, 100)
    await root.unlink(parent, b"f")
    assert await numbers(root, parent) == (0, 0, 0)
    assert not (await root.reserve(inode_id, 10**6)).is_metered
    await root.close(inode_id, session(1).session_id, length_hint=hint(500), has_new_data=True)
    assert await numbers(root, parent) == (0, 0, 0)


# -- recounting ------------------------------------------------------------------------------------


async def spoil(world):
    """Make the records what a release that did not count would have left."""
    tr = world.engine.transaction()
    for prefix in (records.USAGE, records.LINK):
        tr.clear_range(prefix, prefix + b"\xff")
    for key, value in await tr.get_range(records.INODE, records.INODE + b"\xff"):
        inode = pb.InodePb.FromString(value)
        inode.home_inode_id = 0
        tr.set(key, inode.SerializeToString())
    await tr.commit()


async def grow(root):
    for i in range(3):
        made = await root.mkdir(ROOT, b"d%d" % i)
        inner = await root.mkdir(made.inode_id, b"inner")
        for j in range(3):
            file = await root.create(inner.inode_id, b"f%d" % j)
            await root.set_attr(file.inode_id, length=10 * j)
            await root.link(file.inode_id, made.inode_id, b"g%d" % j)
            await root.link(file.inode_id, ROOT, b"h%d%d" % (i, j))
    removed = await root.lookup(made.inode_id, b"inner")
    await root.mkdir(removed.inode_id, b"below")
    await root.remove_tree(made.inode_id, b"inner")


async def test_what_an_older_release_left_is_counted(world, root, monkeypatch):
    monkeypatch.setattr("fs.meta.recount.PAGE_COUNT", 4)
    await grow(root)
    await spoil(world)
    assert await check(world.engine)
    await forget_count(world)
    await world.initialise()
    assert await check(world.engine) == []
    found = await numbers(root, ROOT)
    await world.initialise()
    assert await numbers(root, ROOT) == found


async def test_the_faster_of_two_recounts_stands(world, root):
    await grow(root)
    await spoil(world)
    await forget_count(world)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(world.initialise)
    assert await check(world.engine) == []


async def test_a_recount_that_is_interrupted_begins_anew(world, root):
    await grow(root)
    await spoil(world)
    await forget_count(world)
    with trio.CancelScope() as scope:
        world.engine.faults = _CancelAt(scope, 4)
        await initialise(
            world.engine, runtime=world.runtime, cluster_id="emberfs", config=world.config.meta
        )
    assert scope.cancelled_caught
    world.engine.faults = None
    await world.initialise()
    assert await check(world.engine) == []


class _CancelAt(ScriptedFaults):
    """Cancels at a commit."""

    def __init__(self, scope, number):
        super().__init__([Fate.OK] * number)
        self._scope, self._number = scope, number

    def next_commit(self):
        fault = super().next_commit()
        if self.commit_count == self._number:
            self._scope.cancel()
        return fault


async def test_the_check_finds_wrong_counters_and_homes(world, root):
    made = await root.mkdir(ROOT, b"d")
    file = await root.create(made.inode_id, b"f")
    await root.link(file.inode_id, ROOT, b"g")

    async def change(spoil_it):
        tr = world.engine.transaction()
        undo = await spoil_it(tr)
        await tr.commit()
        found = await check(world.engine)
        tr = world.engine.transaction()
        undo(tr)
        await tr.commit()
        return found

    async def counter(tr):
        key = records.usage_key(made.inode_id, records.KIND_FILES)
        tr.atomic_add(key, 1)
        return lambda tr: tr.atomic_add(key, -1)

    async def link_record(tr):
        key = records.link_key(file.inode_id, ROOT, b"g")
        tr.clear(key)
        return lambda tr: tr.set(key, b"")

    async def home(tr):
        key = records.inode_key(file.inode_id)
        value = await tr.get(key)
        inode = pb.InodePb.FromString(value)
        inode.home_inode_id = ROOT
        tr.set(key, inode.SerializeToString())
        return lambda tr: tr.set(key, value)

    async def stray(tr):
        key = records.usage_key(0x7777, records.KIND_FILES)
        tr.set(key, records.pack_count(0))
        return lambda tr: tr.clear(key)

    for spoil_it, word in (
        (counter, "counted as"),
        (link_record, "home"),
        (home, "home"),
        (stray, "does not exist"),
    ):
        found = await change(spoil_it)
        assert found and word in " ".join(found), spoil_it
