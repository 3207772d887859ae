"""Changes of names in directories given by path:
one call each, once each, refused as a look-up would be.
"""

import pytest
import trio

from fs.client.native import EmberFs, Identity
from fs.kv.faulty import CommitFault, Fate, ScriptedFaults
from fs.schema.ids import ROOT_INODE_ID
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import CALL, refused
from tests.meta.test_event_log import logged  # noqa: F401 - a fixture
from tests.meta.test_native_names import DirectMeta


class CountingMeta(DirectMeta):
    """Counts calls; as a service of an earlier release if told,
    which does not know the fields with paths.
    """

    def __init__(self, world, *, is_old=False):
        super().__init__(world, "c" * 32)
        self.calls = []
        self.is_old = is_old

    async def call(self, method, request, *, timeout_s=None):
        self.calls.append(method.name)
        if self.is_old:
            known = type(request)()
            known.CopyFrom(request)
            for name in ("directory", "old_directory", "new_directory"):
                if name in request.DESCRIPTOR.fields_by_name:
                    known.ClearField(name)
            request = known
        return await super().call(method, request, timeout_s=timeout_s)


def client_of(world, caller, uid=0):
    return EmberFs(caller, None, runtime=world.runtime, identity=Identity(uid, uid))


async def each_once(fs):
    await fs.mkdir("/d/e")
    await (await fs.create("/d/f")).close()
    await fs.symlink("f", "/d/s")
    await fs.rename("/d/f", "/d/g")
    await fs.rename("/d/g", "/d/e/h")
    await fs.rename("/d/e/h", "/h")
    await fs.unlink("/d/s")
    await fs.rmdir("/d/e")


CALLS = ["Mkdir", "Create", "Close", "Symlink", "Rename", "Rename", "Rename", "Unlink", "Rmdir"]


async def test_a_change_takes_one_call(world):
    caller = CountingMeta(world)
    fs = client_of(world, caller)
    await fs.mkdir("/d")
    caller.calls.clear()
    await each_once(fs)
    assert caller.calls == CALLS
    assert [entry.name for entry in await fs.listdir("/")] == ["d", "h"]


async def test_a_service_of_an_earlier_release_is_told_inode_ids(world):
    caller = CountingMeta(world, is_old=True)
    fs = client_of(world, caller)
    await fs.mkdir("/d")
    caller.calls.clear()
    await each_once(fs)
    assert [name for name in caller.calls if name != "ResolvePath"] == ["Mkdir", *CALLS]
    assert caller.calls.count("ResolvePath") == 9
    assert [entry.name for entry in await fs.listdir("/")] == ["d", "h"]


async def test_what_is_gone_is_not_taken_for_an_earlier_release(
    world,
    autojump_clock,  # noqa: ARG001
):
    class RemovesFirst(CountingMeta):
        async def call(self, method, request, *, timeout_s=None):
            if method.name == "Link" and not self.calls.count("Link"):
                await client_of(world, CountingMeta(world)).unlink("/d/f")
                await trio.sleep(61)
                await world.meta.gc.step()
            return await super().call(method, request, timeout_s=timeout_s)

    caller = RemovesFirst(world)
    fs = client_of(world, caller)
    await fs.mkdir("/d")
    await (await fs.create("/d/f")).close()
    with refused(Status.STALE):
        await fs.link("/d/f", "/d/g")
    caller.calls.clear()
    await fs.mkdir("/d/e")
    assert caller.calls == ["Mkdir"]


async def test_paths_are_walked_as_by_a_look_up(world):
    fs, other = client_of(world, CountingMeta(world)), client_of(world, CountingMeta(world), 7)
    await fs.mkdir("/d")
    await fs.symlink("/d", "/to")
    await fs.mkdir("/to/../to/inside")
    assert (await fs.stat("/d/inside")).is_dir
    await fs.mkdir("/d/closed", mode=0o700)
    await (await fs.create("/d/file")).close()
    for path, status in {
        "/no/x": Status.NOT_FOUND,
        "/d/file/x": Status.NOT_DIRECTORY,
        "/d/closed/deep/x": Status.ACCESS_DENIED,
        "/d/closed/x": Status.ACCESS_DENIED,
        f"/{'n' * 256}/x": Status.NAME_TOO_LONG,
    }.items():
        with refused(status):
            await other.mkdir(path)
        with refused(status):
            await other.rename("/d/file", path)


def request_of(kind, request_id, *, is_repeat=False, **fields):
    caller = {"client_id": "c" * 32, "request_id": request_id, "is_repeat": is_repeat}
    return kind(caller=caller, **fields)


async def test_a_repeat_is_answered_by_what_was_done_wherever_its_path_leads_by_then(world):
    service = world.meta.service
    fs = client_of(world, CountingMeta(world))
    await fs.mkdir("/d")
    one = {"name": b"x", "mode": 0o755, "directory": b"/d"}
    first = await service.mkdir(CALL, request_of(meta.MkdirReq, b"1" * 16, **one))
    await fs.rename("/d", "/moved")
    again = request_of(meta.MkdirReq, b"1" * 16, is_repeat=True, **one)
    assert (await service.mkdir(CALL, again)).inode.inode_id == first.inode.inode_id
    await fs.mkdir("/d")  # another one
    again = request_of(meta.MkdirReq, b"1" * 16, is_repeat=True, **one)
    assert (await service.mkdir(CALL, again)).inode.inode_id == first.inode.inode_id
    assert await fs.listdir("/d") == []
    await fs.rmdir("/d")
    # One of which nothing was done is refused for good, also its first try that comes late.
    for is_repeat in (True, False):
        two = request_of(meta.MkdirReq, b"2" * 16, is_repeat=is_repeat, **one)
        with refused(Status.NOT_FOUND):
            await service.mkdir(CALL, two)
        if is_repeat:
            await fs.mkdir("/d")
    assert await fs.listdir("/d") == []


async def test_the_path_wins_over_the_inode_id(world):
    fs = client_of(world, CountingMeta(world))
    await fs.mkdir("/d")
    both = {"name": b"x", "mode": 0o755, "directory": b"/d", "parent_inode_id": ROOT_INODE_ID}
    await world.meta.service.mkdir(CALL, request_of(meta.MkdirReq, b"1" * 16, **both))
    assert [entry.name for entry in await fs.listdir("/d")] == ["x"]
    move = {"old_parent_inode_id": ROOT_INODE_ID, "old_name": b"d", "new_name": b"e"}
    fields = move | {"new_directory": b"/d/.."}
    reply = await world.meta.service.rename(CALL, request_of(meta.RenameReq, b"2" * 16, **fields))
    assert not reply.directories  # of no use to who gives a path


async def test_what_was_done_counts_though_its_path_went_before_the_outcome_was_known(
    world,
    autojump_clock,  # noqa: ARG001
):
    """A commit of unknown outcome, the directory renamed by somebody else,
    a second run of the very same try.
    """
    fs, other = client_of(world, CountingMeta(world)), client_of(world, CountingMeta(world))
    await fs.mkdir("/d")  # fetches inode ids
    world.engine.faults = ScriptedFaults([CommitFault(Fate.UNKNOWN_COMMITTED, delay_after_s=1.0)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fs.mkdir, "/d/x")
        await trio.sleep(0.5)
        await other.rename("/d", "/moved")
    world.engine.faults = None
    assert [entry.name for entry in await fs.listdir("/moved")] == ["x"]


@pytest.mark.parametrize("is_repeat", [True, False])
async def test_no_event_names_a_directory_that_was_not_changed(
    logged,  # noqa: F811
    autojump_clock,  # noqa: ARG001
    is_repeat,
):
    world, events = logged
    service, fs = world.meta.service, client_of(world, CountingMeta(world))
    made = await fs.mkdir("/d")
    one = {"name": b"x", "mode": 0o755, "directory": b"/d"}
    if is_repeat:
        await service.mkdir(CALL, request_of(meta.MkdirReq, b"1" * 16, **one))
        await fs.rename("/d", "/moved")
        await fs.mkdir("/d")
        await service.mkdir(CALL, request_of(meta.MkdirReq, b"1" * 16, is_repeat=True, **one))
    else:
        fault = CommitFault(Fate.UNKNOWN_COMMITTED, delay_after_s=1.0)
        world.engine.faults = ScriptedFaults([fault])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.mkdir, CALL, request_of(meta.MkdirReq, b"1" * 16, **one))
            await trio.sleep(0.5)
            await fs.rename("/d", "/moved")
            await fs.mkdir("/d")
        world.engine.faults = None
    assert await fs.listdir("/d") == []
    found = [event for event in await events() if event.get("name") == "x"]
    assert [event.get("parent") for event in found] == [made.inode_id, None][: 1 + is_repeat]
    assert [event.get("parent_path") for event in found[1:]] == ["/d"][:is_repeat]


async def test_a_change_that_takes_its_own_path_away_is_done_once(
    world,
    autojump_clock,  # noqa: ARG001
):
    fs = client_of(world, CountingMeta(world))
    await fs.mkdir("/d")
    await fs.symlink(".", "/d/self")
    world.engine.faults = ScriptedFaults([CommitFault(Fate.UNKNOWN_COMMITTED)])
    await fs.unlink("/d/self/self")
    world.engine.faults = None
    assert await fs.listdir("/d") == []
