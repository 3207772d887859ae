"""Leases of directories: who gets one, who waits for its end and for how long,
and what becomes of it when somebody dies meanwhile.
"""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import pytest
import trio

from fs.kv.transact import transact
from fs.meta import records
from fs.meta.fsck_facts import Finding, Kind
from fs.meta.fsck_repair import LOST_AND_FOUND, repair
from fs.meta.init import check_format_record
from fs.schema.name_lease import IDLE_S, LEASE_S, TOLD_AGE_S_MAX, WAIT_S
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.record_pb2 import FormatRecordPb
from fs.schema.status import FsError, Status
from tests.meta.harness import ROOT, refused

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32


def about(seconds):
    return pytest.approx(seconds, abs=0.01)


@pytest.fixture
def one(world):
    return world.user(0, client=ONE)


@pytest.fixture
def two(world):
    return world.user(0, client=TWO)


async def leased(user, name=b"d", **fields):
    made = await user.mkdir(ROOT, name, 0o777, wants_name_lease=True, **fields)
    return made.inode_id


async def told(user, directory_id, name) -> pb.DirectoryPartPb:
    """Return what the reply to a change tells of the directory."""
    (directory,) = (await user.create_rsp(directory_id, name)).directories
    return directory.directory


async def stored(world, directory_id) -> pb.DirectoryPartPb:
    key = records.inode_key(directory_id)
    return pb.InodePb.FromString((await world.dump())[key]).directory


class Timed:
    """How long something took."""

    def __enter__(self):
        self.began_s = trio.current_time()
        return self

    def __exit__(self, *_):
        self.s = trio.current_time() - self.began_s


async def link(user, directory_id):
    return await user.link((await user.lookup(ROOT, b"f")).inode_id, directory_id, b"new")


CHANGING = {
    "create": lambda u, d: u.create(d, b"new"),
    "create by path": lambda u, _: u.call("create", meta.CreateReq(directory=b"/d", name=b"new")),
    "mkdir": lambda u, d: u.mkdir(d, b"new"),
    "make directories": lambda u, _: u.makedirs(ROOT, b"d/new/below"),
    "symlink": lambda u, d: u.symlink(d, b"new", b"x"),
    "mknod": lambda u, d: u.mknod(d, b"new", pb.FIFO),
    "link": link,
    "rename": lambda u, d: u.rename(ROOT, b"f", d, b"new"),
    "rename within": lambda u, d: u.rename(d, b"inside", d, b"new"),
    "rename onto": lambda u, d: u.rename(ROOT, b"f", d, b"inside"),
    "exchange": lambda u, d: u.rename(d, b"inside", ROOT, b"f", exchange=True),
    "exchange the other way": lambda u, d: u.rename(ROOT, b"f", d, b"inside", exchange=True),
    "unlink": lambda u, d: u.unlink(d, b"inside"),
    "rmdir": lambda u, d: u.rmdir(d, b"sub"),
    "remove a tree": lambda u, d: u.remove_tree(d, b"sub"),
    "rename out": lambda u, d: u.rename(d, b"inside", ROOT, b"outside"),
    "trash": lambda u, d: u.call(
        "move_to_trash", meta.MoveToTrashReq(parent_inode_id=d, name=b"inside")
    ),
}
LEAVING = {
    "renaming the directory": lambda u, _: u.rename(ROOT, b"d", ROOT, b"e"),
    "chmod": lambda u, d: u.set_attr(d, mode=0o755),
}


async def fill(one):
    directory_id = await leased(one)
    await one.create(directory_id, b"inside")
    await one.mkdir(directory_id, b"sub")
    await one.create(ROOT, b"f")
    return directory_id


async def test_who_makes_a_directory_is_told_of_its_lease_with_each_change(
    world, one, autojump_clock
):
    directory_id = await leased(one)
    for number in range(3):
        assert (await told(one, directory_id, b"%d" % number)).lease_client_id == ONE
        assert not (await stored(world, directory_id)).is_lease_ending
        await trio.sleep(20)


async def test_who_does_not_want_one_gets_none(world, one):
    made = await one.mkdir(ROOT, b"d")
    assert not made.directory.lease_client_id
    assert not (await told(one, made.inode_id, b"f")).lease_client_id
    nameless = world.user(0, client="")
    made = await nameless.mkdir(ROOT, b"e", wants_name_lease=True)
    assert not made.directory.lease_client_id


@pytest.mark.parametrize("kind", CHANGING)
async def test_who_changes_a_name_waits_once_for_the_end_of_anothers_lease(
    world, one, two, kind, autojump_clock
):
    directory_id = await fill(one)
    with Timed() as timed:
        await CHANGING[kind](two, directory_id)
    assert timed.s == about(WAIT_S)
    assert not (await stored(world, directory_id)).lease_client_id
    with Timed() as timed:
        await two.create(directory_id, b"more")
        assert not (await told(one, directory_id, b"ours")).lease_client_id
    assert timed.s == 0.0
    leases = world.meta.service.name_leases
    assert (leases.ended_count, leases.waited_count) == (1, 1)


@pytest.mark.parametrize("kind", CHANGING)
async def test_its_own_client_never_waits(world, one, kind, autojump_clock):
    directory_id = await fill(one)
    with Timed() as timed:
        await CHANGING[kind](one, directory_id)
    assert timed.s == 0.0
    assert (await told(one, directory_id, b"more")).lease_client_id == ONE


@pytest.mark.parametrize("kind", LEAVING)
async def test_who_leaves_the_names_alone_does_not_wait_and_leaves_the_lease(
    world, one, two, kind, autojump_clock
):
    directory_id = await fill(one)
    with Timed() as timed:
        await LEAVING[kind](two, directory_id)
    assert timed.s == 0.0
    assert (await stored(world, directory_id)).lease_client_id == ONE


async def test_who_removes_the_directory_with_all_below_it_does_not_wait(
    world, one, two, autojump_clock
):
    """Garbage collection takes the names away without asking anybody,
    so nothing renews the lease from then on.
    """
    directory_id = await fill(one)
    below = await one.mkdir(directory_id, b"below", wants_name_lease=True)
    with Timed() as timed:
        await two.remove_tree(ROOT, b"d")
    assert timed.s == 0.0
    assert not (await stored(world, directory_id)).lease_client_id
    await world.meta.gc.step()
    assert not (await stored(world, below.inode_id)).lease_client_id


async def test_what_is_refused_ends_no_lease(world, one, two, autojump_clock):
    directory_id = await fill(one)
    bob = world.user(1000, client=TWO)
    await one.set_attr(directory_id, mode=0o755)
    with Timed() as timed:
        with refused(Status.ACCESS_DENIED):
            await bob.create(directory_id, b"new")
        with refused(Status.EXISTS):
            await two.mkdir(directory_id, b"sub")
        with refused(Status.NOT_FOUND):
            await two.rename(ROOT, b"absent", directory_id, b"new")
        with refused(Status.NOT_FOUND):
            await two.unlink(directory_id, b"absent")
        with refused(Status.ACCESS_DENIED):
            await bob.unlink(directory_id, b"inside")
        with refused(Status.NOT_DIRECTORY):
            await two.rmdir(directory_id, b"inside")
        assert (await two.create(directory_id, b"inside")).inode_id
    assert timed.s == 0.0
    assert (await stored(world, directory_id)).lease_client_id == ONE


async def test_nobody_waits_for_a_lease_that_was_not_renewed_for_long(
    world, one, two, autojump_clock
):
    directory_id = await leased(one)
    await one.create(directory_id, b"f")
    await trio.sleep(IDLE_S + 0.1)
    with Timed() as timed:
        await two.create(directory_id, b"new")
    assert timed.s == 0.0
    assert not (await stored(world, directory_id)).lease_client_id
    leases = world.meta.service.name_leases
    assert (leases.ended_count, leases.waited_count) == (1, 0)


async def test_what_changes_nothing_renews_no_lease(world, one, two, autojump_clock):
    """Else a lease could be in force of a directory that has not changed for so long
    that nobody waits for it.
    """
    directory_id = await leased(one)
    await one.create(directory_id, b"f")
    assert not (await told(one, directory_id, b"f")).is_lease_ending
    await trio.sleep(TOLD_AGE_S_MAX + 0.1)
    again = await told(one, directory_id, b"f")
    assert (again.lease_client_id, again.is_lease_ending) == (ONE, True)
    assert not (await stored(world, directory_id)).is_lease_ending
    assert not (await told(one, directory_id, b"g")).is_lease_ending


async def test_while_somebody_waits_nothing_renews_the_lease_and_all_wait(
    world, one, two, autojump_clock
):
    directory_id = await leased(one)
    ends = {}

    async def add(user, name):
        await user.create(directory_id, name)
        ends[name] = trio.current_time()

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, two, b"two")
        await trio.sleep(WAIT_S / 2)
        nursery.start_soon(add, world.user(0, client=THREE), b"three")
        assert (await told(one, directory_id, b"one")).is_lease_ending
        assert trio.current_time() == began_s + WAIT_S / 2, "its own client goes on"
    assert ends[b"two"] == ends[b"three"] == began_s + WAIT_S


async def test_a_service_that_dies_meanwhile_leaves_the_wait_to_whoever_comes_next(
    world, one, two, autojump_clock
):
    directory_id = await leased(one)
    with trio.move_on_after(WAIT_S / 2):
        await two.create(directory_id, b"new")
    assert (await stored(world, directory_id)).is_lease_ending
    assert (await told(one, directory_id, b"f")).is_lease_ending
    world.meta = world.new_meta()
    with Timed() as timed:
        await two.create(directory_id, b"new")
    assert timed.s == about(WAIT_S)
    assert not (await stored(world, directory_id)).lease_client_id
    assert sorted(await one.names(directory_id)) == [b"f", b"new"]


async def test_two_services_wait_side_by_side(world, one, two, autojump_clock):
    directory_id = await leased(one)
    other = world.new_meta().service
    request = meta.CreateReq(parent_inode_id=directory_id, name=b"three", caller=two.caller())
    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.create, directory_id, b"two")
            nursery.start_soon(other.create, None, request)
    assert timed.s == about(WAIT_S)
    assert sorted(await one.names(directory_id)) == [b"three", b"two"]


async def test_two_clients_that_move_into_each_others_directories_do_not_block_each_other(
    world, one, two, autojump_clock
):
    first, second = await leased(one, b"1"), await leased(two, b"2")
    for user, directory_id in ((one, first), (two, second)):
        for number in range(4):
            await user.create(directory_id, b"%s-%d" % (user.client[:1].encode(), number))

    async def move(user, source, target):
        for number in range(4):
            name = b"%s-%d" % (user.client[:1].encode(), number)
            await user.rename(source, name, target, name)

    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(move, one, first, second)
            nursery.start_soon(move, two, second, first)
    assert timed.s == about(WAIT_S)
    assert [len(await one.names(d)) for d in (first, second)] == [4, 4]


async def test_a_lease_that_a_loss_of_power_has_brought_back_unmarked_is_waited_for_again(
    world, one, two, autojump_clock
):
    directory_id = await leased(one)
    key = records.inode_key(directory_id)
    before = (await world.dump())[key]

    async def put_back(tr):
        tr.set(key, before)

    with Timed() as timed:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.create, directory_id, b"new")
            await trio.sleep(WAIT_S / 2)
            await transact(world.engine, put_back, runtime=world.runtime)
            assert not (await told(one, directory_id, b"f")).is_lease_ending
    assert timed.s == about(2 * WAIT_S)


@pytest.mark.parametrize("ahead_s", [-3600.0, -(IDLE_S - 2), IDLE_S - 2])
async def test_clocks_of_services_may_differ(world, one, two, ahead_s, autojump_clock):
    """What matters is that nobody adds a name sooner than WAIT_S after the last renewal;
    a clock that is behind has him wait, at most.
    """
    directory_id = await leased(one)
    other = world.new_meta().service
    clock = other._runtime.clock
    wall_ns = clock.wall_ns
    clock.wall_ns = lambda: wall_ns() + int(ahead_s * 1e9)
    request = meta.CreateReq(parent_inode_id=directory_id, name=b"new", caller=two.caller())
    with Timed() as timed:
        await other.create(None, request)
    assert timed.s == about(WAIT_S)


async def test_a_repeat_is_told_what_is_so_by_then(world, one, two, autojump_clock):
    directory_id = await leased(one)
    one.request_id = world.next_request_id()
    assert (await told(one, directory_id, b"f")).lease_client_id == ONE
    await two.create(directory_id, b"new")
    one.is_repeat = True
    assert not (await told(one, directory_id, b"f")).lease_client_id


async def test_the_making_of_a_directory_repeated_tells_whether_it_was_changed(
    world, one, autojump_clock
):
    one.request_id = world.next_request_id()
    made = await one.mkdir(ROOT, b"d", wants_name_lease=True)
    assert made.ctime_ns == made.btime_ns
    one.is_repeat = True
    assert (await one.mkdir(ROOT, b"d", wants_name_lease=True)).ctime_ns == made.btime_ns
    await world.user(0, client=ONE).create(made.inode_id, b"f")
    assert (await one.mkdir(ROOT, b"d", wants_name_lease=True)).ctime_ns > made.btime_ns


async def set_format(world, version):
    record = FormatRecordPb(format_version=version, cluster_id="emberfs", what="meta")

    async def put(tr):
        tr.set(records.FORMAT_KEY, record.SerializeToString())

    await transact(world.engine, put, runtime=world.runtime)


async def test_a_store_of_an_earlier_format_has_no_leases(world, one):
    await set_format(world, records.LEASED_FORMAT - 1)
    assert not (await told(one, await leased(one), b"f")).lease_client_id
    await set_format(world, records.LEASED_FORMAT)
    assert (await told(one, await leased(one, b"e"), b"f")).lease_client_id == ONE


def test_services_that_know_of_no_leases_do_not_serve_such_a_store(monkeypatch):
    stored = FormatRecordPb(format_version=records.FORMAT_VERSION, cluster_id="emberfs")
    assert check_format_record(stored.SerializeToString(), "emberfs")
    monkeypatch.setattr(records, "FORMAT_VERSION", records.LEASED_FORMAT - 1)
    with pytest.raises(FsError, match="format 5, this release knows 4"):
        check_format_record(stored.SerializeToString(), "emberfs")


async def test_a_repair_takes_a_lease_away(world, one, two, autojump_clock):
    folder = await leased(one, LOST_AND_FOUND)
    orphan = (await one.create(ROOT, b"f")).inode_id
    key = records.dentry_key(ROOT, b"f")

    async def lose(tr):
        tr.clear(key)

    await transact(world.engine, lose, runtime=world.runtime)
    stored_inode = (await world.dump())[records.inode_key(orphan)]
    guards = ((records.inode_key(orphan), stored_inode),)
    finding = Finding(Kind.ORPHAN_INODE, orphan, "lost", guards=guards, is_adoption=True)
    assert await repair(world.engine, world.runtime, finding)
    assert not (await stored(world, folder)).lease_client_id
    assert await one.names(folder) == [b"%x" % orphan]

    async def count(tr):  # the next round of the check would
        tr.atomic_add(records.usage_key(folder, records.KIND_FILES), 1)

    await transact(world.engine, count, runtime=world.runtime)


def test_who_waits_waits_for_longer_than_the_lease_lasts():
    assert WAIT_S >= LEASE_S * 1.1
    assert IDLE_S >= TOLD_AGE_S_MAX + LEASE_S + 8
