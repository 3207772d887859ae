"""NoteReads: what readers may change of times of access, and nothing else."""

# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments

import random

import pytest
import trio

from fs.kv.faulty import RandomFaults
from fs.meta import records
from fs.meta.ops.note_reads import TOGETHER_MAX, time_noted
from fs.meta.service import NOTED_COUNT_MAX
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, SECOND_NS, refused


def read_of(inode, *, later_ns=1, seen_ns=None):
    """A read of an inode, so long after its time of access."""
    seen_ns = inode.atime_ns if seen_ns is None else seen_ns
    return meta.NotedReadPb(
        inode_id=inode.inode_id, atime_ns=inode.atime_ns + later_ns, atime_seen_ns=seen_ns
    )


async def note(user, *reads):
    reply = await user.call("note_reads", meta.NoteReadsReq(reads=reads))
    return list(reply.atimes_ns)


def is_like_but_for_atime(one, other):
    return [
        (field.name, value) for field, value in one.ListFields() if field.name != "atime_ns"
    ] == [(field.name, value) for field, value in other.ListFields() if field.name != "atime_ns"]


@pytest.mark.parametrize(
    ("had", "noted", "seen", "after"),
    [
        (10, 20, 10, 20),
        (10, 20, 9, 10),  # somebody has set another one
        (20, 10, 20, 100),  # by a clock that is behind: it goes forward only
        (20, 20, 20, 100),
        (10, 101, 10, 100),  # but not beyond the time of the service
        (101, 20, 101, 100),  # what lies ahead ends
        (101, 20, 100, 101),
        (100, 100, 100, 100),
        (-5, -3, -5, -3),
        (0, 1, 0, 1),
    ],
)
def test_the_time_that_is_noted(had, noted, seen, after):
    read = meta.NotedReadPb(atime_ns=noted, atime_seen_ns=seen)
    assert time_noted(100, had, read) == after


async def test_reads_of_all_kinds_are_noted_and_nothing_else_changes(any_world):
    root = any_world.user(0)
    made = [
        await root.create(ROOT, b"file"),
        await root.mkdir(ROOT, b"directory"),
        await root.symlink(ROOT, b"link", b"target"),
        await root.mknod(ROOT, b"pipe", pb.FIFO),
    ]
    directory = made[1].inode_id
    await root.create(directory, b"changes its times")
    before = [await root.attr(inode.inode_id) for inode in made]
    times = await note(root, *map(read_of, before))
    after = [await root.attr(inode.inode_id) for inode in made]
    assert times == [inode.atime_ns for inode in after] == [i.atime_ns + 1 for i in before]
    assert all(is_like_but_for_atime(*pair) for pair in zip(before, after, strict=True))


async def test_only_from_the_time_that_was_seen(root):
    f = await root.create(ROOT, b"f")
    assert await note(root, read_of(f, later_ns=5)) == [f.atime_ns + 5]
    # Again, as where a call is repeated; and from a client that has not seen it.
    assert await note(root, read_of(f, later_ns=5), read_of(f, later_ns=9)) == [f.atime_ns + 5] * 2
    set_back = await root.set_attr(f.inode_id, atime_ns=7)
    assert await note(root, read_of(f, later_ns=9)) == [7]
    assert (await root.attr(f.inode_id)) == set_back


async def test_not_beyond_the_time_of_the_service(world, root):
    f = await root.create(ROOT, b"f")
    (noted,) = await note(root, read_of(f, later_ns=10**6 * SECOND_NS))
    assert f.atime_ns < noted < world.meta.service.now_ns()
    ahead = await root.set_attr(f.inode_id, atime_ns=noted + 10**6 * SECOND_NS)
    (noted,) = await note(root, read_of(ahead, later_ns=-(10**6) * SECOND_NS))
    assert f.atime_ns < noted < world.meta.service.now_ns()


async def test_several_reads_of_one_inode_in_one_call(root):
    f = await root.create(ROOT, b"f")
    first, second = read_of(f), read_of(f, later_ns=2, seen_ns=f.atime_ns + 1)
    assert await note(root, first, second) == [f.atime_ns + 1, f.atime_ns + 2]


async def test_what_is_not_there_is_passed_over(root):
    gone, f = await root.create(ROOT, b"gone"), await root.create(ROOT, b"f")
    await root.unlink(ROOT, b"gone")
    removed = await root.attr(gone.inode_id)
    never = meta.NotedReadPb(inode_id=2**64 - 1, atime_ns=1)
    times = await note(root, never, read_of(removed), read_of(f))
    assert times == [0, removed.atime_ns + 1, f.atime_ns + 1]  # it may be open yet


async def test_a_damaged_record_stays_as_it_is(world, root):
    bad, f = await root.create(ROOT, b"bad"), await root.create(ROOT, b"f")
    key = records.inode_key(bad.inode_id)
    whole = (await world.dump())[key]
    tr = world.engine.transaction()
    tr.set(key, b"\xff")
    await tr.commit()
    assert await note(root, read_of(bad), read_of(f)) == [0, f.atime_ns + 1]
    assert (await world.dump())[key] == b"\xff"
    tr = world.engine.transaction()
    tr.set(key, whole)
    await tr.commit()


async def test_who_may_not_read_notes_nothing(root, alice, bob):
    made = {
        mode: await alice.create((await root.mkdir(ROOT, b"%o" % mode, 0o777)).inode_id, b"f", mode)
        for mode in (0o600, 0o604, 0o601, 0o602, 0o000)
    }
    changed = {}
    for mode, f in made.items():
        changed[mode] = await note(bob, read_of(f)) == [f.atime_ns + 1]
    assert changed == {0o600: False, 0o604: True, 0o601: True, 0o602: False, 0o000: False}
    assert await note(alice, read_of(made[0o000])) == [made[0o000].atime_ns + 1]
    searched = await alice.mkdir((await root.mkdir(ROOT, b"d", 0o777)).inode_id, b"d", 0o711)
    assert await note(bob, read_of(searched)) == [searched.atime_ns]


async def test_many_in_one_call(world, root):
    made = [await root.create(ROOT, b"%d" % number) for number in range(2 * TOGETHER_MAX + 3)]
    times = await note(root, *map(read_of, made))
    assert times == [inode.atime_ns + 1 for inode in made]
    too_many = [read_of(made[0])] * (NOTED_COUNT_MAX + 1)
    with refused(Status.RPC_BAD_REQUEST):
        await note(root, *too_many)
    assert await note(root) == []


async def test_it_is_nobodys_without_a_caller(world):
    with refused(Status.RPC_BAD_REQUEST):
        await world.serve("note_reads", meta.NoteReadsReq())


async def test_no_change_of_names_is_lost_by_it(world, root):
    """A directory has its other times and its link count elsewhere:
    a record that was read before they changed must not undo that.
    """
    d = await root.mkdir(ROOT, b"d")
    await note(root, read_of(d))
    await root.mkdir(d.inode_id, b"e")
    between = await root.attr(d.inode_id)
    await note(root, read_of(between))
    after = await root.attr(d.inode_id)
    assert after.nlink == 3 and after.atime_ns == between.atime_ns + 1
    assert (after.mtime_ns, after.ctime_ns) == (between.mtime_ns, between.ctime_ns)


async def test_a_leased_directory_keeps_its_lease(world, root):
    d = await root.mkdir(ROOT, b"d", wants_name_lease=True)
    assert d.directory.lease_client_id == root.client
    stranger = world.user(0, client="d" * 32)
    await note(stranger, read_of(d))
    assert (await root.attr(d.inode_id)).directory.lease_client_id == root.client


@pytest.mark.parametrize("seed", range(4))
async def test_conflicts_and_unknown_outcomes(world, root, autojump_clock, seed):
    made = [await root.create(ROOT, b"%d" % number) for number in range(8)]
    world.engine.faults = RandomFaults(
        random.Random(seed), conflict=0.3, unknown_committed=0.2, unknown_lost=0.2
    )
    for later in range(1, 20):
        reads = [read_of(f, later_ns=later, seen_ns=f.atime_ns + later - 1) for f in made]
        assert await note(root, *reads) == [f.atime_ns + later for f in made]
    world.engine.faults = None


async def test_a_file_that_very_many_read_can_be_changed(world, root, autojump_clock):
    """The first report moves its time; all others find that moved, and write nothing."""
    seen = await root.create(ROOT, b"hot")
    commits = world.engine.commit_count
    async with trio.open_nursery() as nursery:
        for number in range(1000):
            user = world.user(0, client=f"{number:032x}")
            nursery.start_soon(note, user, read_of(seen, later_ns=number + 1))
        for number in range(50):
            await root.set_attr(seen.inode_id, mode=0o600 + number % 2)
    assert world.engine.commit_count - commits == 51
    after = await root.attr(seen.inode_id)
    assert after.mode & 0o777 == 0o601 and after.atime_ns > seen.atime_ns


@pytest.mark.parametrize("noted", [-(2**63), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("seen", [-(2**63), -1, 0, 2**63 - 1])
async def test_times_of_any_kind_harm_nothing(world, root, noted, seen):
    f = await root.create(ROOT, b"f")
    ids = f.inode_id, 0, 1, 2**63, 2**64 - 1
    reads = [meta.NotedReadPb(inode_id=i, atime_ns=noted, atime_seen_ns=seen) for i in ids]
    times = await note(root, *reads)
    assert times[0] == f.atime_ns and times[1] == times[3] == times[4] == 0
    assert await root.attr(f.inode_id) == f
    await root.set_attr(f.inode_id, atime_ns=seen)
    (after,) = await note(root, reads[0])
    if seen < noted <= 0:
        assert after == noted
    else:
        assert f.ctime_ns < after < world.meta.service.now_ns()
