"""How often an operation asks the store and waits for it:
what decides its time on a store elsewhere.

Counted on the remote engine, where each wait is one request; on FoundationDB the waits are the
same, and the first one includes the read version.
"""

import pytest

from fs.kv.pause import PausableEngine
from fs.kv.remote import RemoteEngine
from fs.runtime.real import RealClock
from fs.schema.config import MetaSection
from fs.schema.proto import meta_pb2 as meta
from fs.schema.services import KV_COMMIT, KV_READ
from tests.kv.harness import CHOSEN_KIND, Lab
from tests.meta.harness import ROOT, World, hint, inline_report, session

pytestmark = pytest.mark.skipif(
    CHOSEN_KIND not in {"", "remote"}, reason="counts the requests of the remote engine"
)


@pytest.fixture(params=["plain", "pausable"])
async def counted(request, tmp_path, nursery, monkeypatch):
    """A world on a remote store, and a function that runs a call and returns its (reads, commits).

    Heeding what holds up changes, as on FoundationDB, must cost nothing.
    """
    asked = []
    call = RemoteEngine.call

    async def counting_call(self, method, *arguments):
        asked.append(method)
        return await call(self, method, *arguments)

    monkeypatch.setattr(RemoteEngine, "call", counting_call)
    lab = Lab("remote", tmp_path / "kv", nursery)
    engine = await lab.open()
    world = World(PausableEngine(engine, RealClock()) if request.param == "pausable" else engine)
    await world.initialise()

    async def cost(awaitable) -> tuple[int, int]:
        asked.clear()
        await awaitable
        return asked.count(KV_READ), asked.count(KV_COMMIT)

    yield world, cost
    await lab.close()


async def test_what_each_call_costs(counted):
    world, cost = counted
    user = world.user()
    d = (await user.mkdir(ROOT, b"d")).inode_id
    e = (await user.mkdir(ROOT, b"e")).inode_id
    f = (await user.create(d, b"f")).inode_id
    many = [(await user.mkdir(e, b"%d" % i)).inode_id for i in range(20)]
    await world.meta.gc.step()  # the first begins to count ticks
    assert await cost(user.create(d, b"new")) == (1, 1)
    assert await cost(user.mkdir(d, b"sub")) == (1, 1)
    assert await cost(user.symlink(d, b"to", b"there")) == (1, 1)
    assert await cost(user.link(f, d, b"second")) == (1, 1)
    assert await cost(user.lookup(d, b"f")) == (2, 0)
    assert await cost(user.attr(f)) == (1, 0)
    assert await cost(user.attr(d)) == (2, 0)
    assert await cost(user.open(f, wants_write=True, session=session(1))) == (1, 1)
    assert await cost(user.close(f, session(1).session_id, length_hint=hint(5))) == (2, 1)
    assert await cost(user.set_attr(f, mode=0o600)) == (1, 1)
    assert await cost(user.rename(d, b"f", d, b"g")) == (2, 1)
    # The home of what is replaced goes: another of its names is looked for.
    assert await cost(user.rename(d, b"new", d, b"g")) == (3, 1)
    assert await cost(user.unlink(d, b"g")) == (2, 1)
    assert await cost(user.rmdir(d, b"sub")) == (3, 1)
    assert await cost(user.list(e)) == (2, 0)
    assert await cost(user.list(e, with_inodes=True)) == (4, 0)
    assert await cost(user.list(e, with_directories=True)) == (4, 0)
    # The directory itself goes with the first read.
    assert await cost(user.list(e, with_inodes=True, wants_directory=True)) == (4, 0)
    request = meta.BatchGetAttrReq(inode_ids=[ROOT, d, e, *many])
    assert await cost(user.call("batch_get_attr", request)) == (2, 0)
    await user.create(d, b"f")
    request = meta.MoveToTrashReq(parent_inode_id=d, name=b"f")
    await cost(user.call("move_to_trash", request))  # makes the trash
    request.name = b"second"
    assert await cost(user.call("move_to_trash", request)) == (2, 1)
    await user.remove_tree(ROOT, b"e")
    reads, _ = await cost(world.meta.gc.step())
    # For both lanes, the tick, and the count of what waits; not one more for each of the twenty.
    assert reads <= 22


async def test_what_inline_files_cost(counted):
    world, cost = counted
    world.meta.adopt(MetaSection(inline_bytes_max=4096))
    user = world.user()
    files = [
        (await user.create(ROOT, name, wants_write=True, session=session(n))).inode_id
        for n, name in enumerate((b"a", b"b"))
    ]
    await world.meta.gc.step()
    assert await cost(user.sync(files[0], **inline_report(b"bytes"))) == (2, 1)
    assert await cost(user.sync(files[1], **inline_report(b"more"))) == (2, 1)
    asked = {"wants_read": True, "takes_inline": True}
    assert await cost(user.open(files[0], **asked)) == (1, 0)
    request = meta.GetAttrReq(inode_id=files[0], takes_inline=True)
    assert await cost(user.call("get_attr", request)) == (1, 0)
    both = meta.BatchResolvePathReq(paths=[b"/a", b"/b"], **asked)
    walks = meta.BatchResolvePathReq(paths=[b"/a", b"/b"])
    walked, _ = await cost(user.call("batch_resolve_path", walks))
    assert await cost(user.call("batch_resolve_path", both)) == (walked + 1, 0)
    both.payload_bytes_max = 4096
    assert await cost(user.call("batch_resolve_path", both)) == (walked + 1, 0)
    many = meta.BatchGetAttrReq(inode_ids=files, payload_bytes_max=4096)
    assert await cost(user.call("batch_get_attr", many)) == (2, 0)
