"""chmod, chown, utimes, default layouts: who may, and what else changes."""

import pytest

from fs.meta.context import OpContext
from fs.meta.inodes import stamp_directory
from fs.schema.proto.common_pb2 import LayoutPb
from fs.schema.status import Status
from tests.meta.harness import ROOT, SECOND_NS, hint, refused


@pytest.fixture
async def open_dir(root):
    return (await root.mkdir(ROOT, b"open", 0o777)).inode_id


async def test_asking_for_nothing_changes_nothing_of_others(root, alice):
    """Found by tests/meta/fuzz.py: it advanced the ctime of whatever id was named."""
    d = (await root.mkdir(ROOT, b"d", 0o700)).inode_id
    before = await root.attr(d)
    await alice.set_attr(d)
    await alice.set_attr(d, has_open_file=True, length_hint=hint(5))
    assert await root.attr(d) == before
    assert (await root.set_attr(d)).ctime_ns > before.ctime_ns


async def test_chmod(root, alice, bob, open_dir):
    f = await alice.create(open_dir, b"f")
    changed = await alice.set_attr(f.inode_id, mode=0o4755)
    assert changed.mode == 0o4755 and changed.ctime_ns > f.ctime_ns
    assert changed.mtime_ns == f.mtime_ns
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await bob.set_attr(f.inode_id, mode=0o777)
    await root.set_attr(f.inode_id, gid=500)
    assert (await alice.set_attr(f.inode_id, mode=0o2755)).mode == 0o755
    assert (await root.set_attr(f.inode_id, mode=0o2755)).mode == 0o2755


async def test_who_may_write_may_take_set_id_bits_away_and_nothing_else(root, alice, bob, open_dir):
    f = (await alice.create(open_dir, b"f", 0o6777)).inode_id
    for mode in (0o777, 0o4777):
        await root.set_attr(f, mode=0o6777)
        assert (await bob.set_attr(f, mode=mode)).mode == mode
    for mode in (0o6777, 0o6776, 0o7777, 0o776):
        await root.set_attr(f, mode=0o6777)
        with refused(Status.NOT_PERMITTED, "EPERM"):
            await bob.set_attr(f, mode=mode)
    await root.set_attr(f, mode=0o6775)
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await bob.set_attr(f, mode=0o775)


@pytest.mark.parametrize(
    ("who", "fields", "is_allowed"),
    [
        ("root", {"uid": 5, "gid": 6}, True),
        ("alice", {"uid": 5}, False),
        ("alice", {"uid": 1000}, True),
        ("alice", {"gid": 2000}, True),
        ("alice", {"gid": 1000}, True),
        ("alice", {"gid": 500}, False),
        ("alice", {"uid": 1000, "gid": 500}, False),
        ("bob", {"gid": 1001}, False),
        ("bob", {"uid": 1001}, False),
        ("bob", {"uid": 1000}, False),
    ],
)
async def test_chown(root, alice, bob, open_dir, who, fields, is_allowed):  # noqa: PLR0917 - fixtures
    f = (await alice.create(open_dir, b"f", 0o6755)).inode_id
    caller = {"root": root, "alice": alice, "bob": bob}[who]
    if not is_allowed:
        with refused(Status.NOT_PERMITTED, "EPERM"):
            await caller.set_attr(f, **fields)
        return
    changed = await caller.set_attr(f, **fields)
    assert changed.uid == fields.get("uid", 1000) and changed.gid == fields.get("gid", 1000)
    assert changed.mode == 0o755  # a program must not run as its new owner


@pytest.mark.parametrize(("who", "mode"), [("root", 0o2666), ("alice", 0o666)])
async def test_a_chown_with_what_a_kernel_left_of_the_mode(root, alice, open_dir, who, mode):
    """Linux's FUSE leaves set-group-id where the group may not run it, whoever asks."""
    f = (await alice.create(open_dir, b"f")).inode_id
    await root.set_attr(f, gid=500)
    await root.set_attr(f, mode=0o6666)
    caller = {"root": root, "alice": alice}[who]
    changed = await caller.set_attr(f, gid=1000, mode=0o2666)
    assert (changed.mode, changed.gid) == (mode, 1000)


async def test_chown_of_a_directory_keeps_setgid(root, open_dir):
    await root.set_attr(open_dir, mode=0o2755)
    assert (await root.set_attr(open_dir, uid=1000)).mode == 0o2755


async def test_utimes(alice, bob, open_dir):
    f = (await alice.create(open_dir, b"f", 0o646)).inode_id
    back = await alice.set_attr(f, atime_ns=1, mtime_ns=-2)
    assert (back.atime_ns, back.mtime_ns) == (1, -2) and back.ctime_ns > 1
    with refused(Status.NOT_PERMITTED, "EPERM"):
        await bob.set_attr(f, mtime_ns=5)
    assert (await bob.set_attr(f, mtime_now=True, atime_now=True)).mtime_ns > 1
    await alice.set_attr(f, mode=0o644)
    with refused(Status.ACCESS_DENIED, "EACCES"):
        await bob.set_attr(f, mtime_now=True)


async def test_directory_times_survive_and_move_on(root):
    d = (await root.mkdir(ROOT, b"d")).inode_id
    await root.set_attr(d, mtime_ns=123)
    assert (await root.attr(d)).mtime_ns == 123
    await root.set_attr(d, mode=0o700)
    assert (await root.attr(d)).mtime_ns == 123
    await root.mkdir(d, b"sub")
    after = await root.attr(d)
    assert after.mtime_ns == after.ctime_ns > 123 and after.nlink == 3 and after.mode == 0o700


async def test_directory_times_do_not_go_back(world, root):
    """Changes of names do not conflict: of two that overlap the earlier one may commit last."""
    d = await root.mkdir(ROOT, b"d")
    trs = [world.engine.transaction() for _ in range(2)]
    for tr, now_s in zip(trs, (2_000_000_001, 2_000_000_002), strict=True):
        ctx = OpContext(None, now_s * SECOND_NS, world.config.meta, None, None)
        await stamp_directory(tr, ctx, d)
    for tr in reversed(trs):
        await tr.commit()
    after = await root.attr(d.inode_id)
    assert after.mtime_ns == after.ctime_ns == 2_000_000_002 * SECOND_NS
    await root.mkdir(d.inode_id, b"by a service whose clock is behind")
    assert (await root.attr(d.inode_id)).ctime_ns == after.ctime_ns + 1


async def test_default_layout(root, alice, open_dir):
    layout = LayoutPb(table_id=1, chunk_size_bytes=1 << 17, stripe_size=3)
    with refused(Status.NOT_PERMITTED):
        await alice.set_attr(open_dir, default_layout=layout)
    await root.set_attr(open_dir, default_layout=layout)
    made = await alice.create(open_dir, b"f")
    assert made.file.layout.chunk_size_bytes == 1 << 17 and made.file.layout.stripe_size == 3
    with refused(Status.NOT_DIRECTORY):
        await root.set_attr(made.inode_id, default_layout=layout)
    with refused(Status.INVALID_ARGUMENT):
        await root.set_attr(open_dir, default_layout=LayoutPb(table_id=1))


async def test_nothing_changes_when_a_part_is_refused(alice, open_dir):
    f = await alice.create(open_dir, b"f")
    with refused(Status.NOT_PERMITTED):
        await alice.set_attr(f.inode_id, mode=0o777, uid=7, length=10)
    assert await alice.attr(f.inode_id) == f
