"""The event log: what each change says, what is kept, and that nothing ever waits for it."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import json
import os

import pytest
import trio

from fs.meta.event_log import EventLog
from fs.runtime.simulated import simulated_runtime
from fs.schema.config import MetaSection, ProcessConfig
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import Status
from tests.meta.harness import ROOT, World, hint, refused, session

CLIENT = "c" * 32


def read(directory) -> list[dict]:
    return [
        json.loads(line)
        for path in sorted(directory.iterdir(), key=lambda p: -p.stat().st_mtime_ns)
        for line in path.read_text().splitlines()
    ]


@pytest.fixture
async def logged(open_lab, tmp_path, nursery, autojump_clock):
    """A world with an event log, and a function that returns the events so far."""
    world = World(await open_lab(), event_log_directory=str(tmp_path / "log"))
    await world.initialise()
    nursery.start_soon(world.meta.service.events.run)

    async def events() -> list[dict]:
        await trio.sleep(1)
        return read(tmp_path / "log")

    return world, events


async def test_each_change_of_names_is_a_line(logged, autojump_clock):
    world, events = logged
    user = world.user(1000, 1001)
    await world.user().set_attr(ROOT, mode=0o777)
    d = (await user.mkdir(ROOT, b"d")).inode_id
    f = (await user.create(d, b"f\xff", wants_write=True, session=session(1))).inode_id
    await user.close(f, session(1).session_id, length_hint=hint(5), has_new_data=True)
    await user.create(d, b"f\xff", wants_write=True, session=session(2))
    await user.open(f, wants_write=True, session=session(3))
    await user.open(f, wants_read=True)
    await user.symlink(d, b"s", b"target")
    await user.mknod(d, b"p", pb.FIFO)
    await user.link(f, d, b"g")
    await user.rename(d, b"g", ROOT, b"h")
    await user.rename(d, b"s", d, b"p")
    await user.set_attr(f, mode=0o600)
    await user.set_attr(f, length=2)
    await user.set_attr(f, mtime_ns=1)
    await user.unlink(d, b"p")
    await user.unlink(d, b"f\xff")
    request = meta.LockDirectoryReq(inode_id=d, action=meta.LOCK_TAKE)
    await user.call("lock_directory", request)
    value = meta.SetXattrReq(inode_id=d, name=b"ember.lock", value=b"unlock")
    await user.call("set_xattr", value)
    await user.call("set_xattr", meta.SetXattrReq(inode_id=d, name=b"user.x", value=b"1"))
    await user.call("remove_xattr", meta.RemoveXattrReq(inode_id=d, name=b"user.x"))
    trash = meta.MoveToTrashReq(parent_inode_id=ROOT, name=b"h", expire_s=60)
    await user.call("move_to_trash", trash)
    await user.remove_tree(ROOT, b"d")
    await world.user().set_quota(ROOT, 10**9, 0)
    await trio.sleep(61)
    await world.meta.trash.step()
    found = await events()
    kinds = [event["event"] for event in found]
    assert kinds == [
        *("set_attr", "mkdir", "create", "close_write", "open_write", "open_write", "symlink"),
        *("mknod", "link", "rename", "rename", "set_attr", "truncate", "remove", "remove"),
        *("lock", "lock", "set_xattr", "remove_xattr", "trash", "remove", "quota", "expire"),
    ]
    made = found[2]
    assert (made["inode"], made["parent"], made["name"]) == (f, d, "f\\xff")
    assert (made["uid"], made["gid"], made["client"]) == (1000, 1001, CLIENT)
    assert len(bytes.fromhex(made["request"])) == 16 and made["writes"]
    assert found[3]["length"] == 5 and found[6]["target"] == "target"
    assert found[7]["type"] == "fifo" and found[8]["nlink"] == 2
    assert (found[9]["name"], found[9]["to_parent"], found[9]["to_name"]) == ("g", ROOT, "h")
    assert found[10]["replaced"] and not found[9]["replaced"]
    assert found[11]["new_mode"] == 0o600 and found[12]["length"] == 2
    assert [event["nlink"] for event in found[13:15]] == [0, 1]
    assert [event["action"] for event in found[15:17]] == ["lock", "unlock"]
    assert found[20]["recursive"] and found[21]["bytes_max"] == 10**9
    assert found[22]["name"] == "h" and found[22]["due_ns"] == found[19]["due_ns"]
    times = [event["time_ns"] for event in found]
    assert times == sorted(times)


async def test_mode_and_owner_that_come_with_a_report_are_told_as_others(logged, autojump_clock):
    world, events = logged
    user = world.user()
    before = await user.create(ROOT, b"f", wants_write=True, session=session(1))
    owner = meta.OwnerReportPb(mode=0o755, gid=7, set_ns=before.ctime_ns, mode_seen=before.mode)
    await user.sync(before.inode_id, has_new_data=True, length_hint=hint(5), owner=owner)
    await user.sync(before.inode_id, has_new_data=True, length_hint=hint(5), owner=owner)
    _, changed = await events()  # the second one came too late
    assert (changed["event"], changed["inode"]) == ("set_attr", before.inode_id)
    assert (changed["new_mode"], changed["new_gid"]) == (0o755, 7)
    assert "new_uid" not in changed


async def test_what_came_with_a_report_that_a_quota_refuses_is_not_told(logged, autojump_clock):
    world, events = logged
    root = world.user()
    before = await root.create(ROOT, b"f", wants_write=True, session=session(1))
    await root.set_quota(ROOT, 100, 0)
    owner = meta.OwnerReportPb(mode=0o755, set_ns=before.ctime_ns, mode_seen=before.mode)
    for _ in range(2):  # the second one is answered with the outcome of the first
        root.request_id = b"r" * 16
        with refused(Status.QUOTA_EXCEEDED):
            await root.sync(before.inode_id, has_new_data=True, length_hint=hint(101), owner=owner)
    assert (await root.attr(before.inode_id)).mode == before.mode
    assert "set_attr" not in [event["event"] for event in await events()]


async def test_files_that_are_gone_are_told(logged, autojump_clock):
    world, events = logged
    root = world.user()
    f = (await root.create(ROOT, b"f")).inode_id
    await root.unlink(ROOT, b"f")
    await trio.sleep(61)
    await world.meta.gc.step()
    last = (await events())[-1]
    assert (last["event"], last["inode"]) == ("gc", f)


async def test_what_is_refused_or_changes_nothing_is_not_logged(logged, autojump_clock):
    world, events = logged
    root = world.user()
    await root.mkdir(ROOT, b"d")
    with refused(Status.EXISTS):
        await root.mkdir(ROOT, b"d")
    await root.list(ROOT)
    assert [event["event"] for event in await events()] == ["mkdir"]


async def test_a_repeat_is_a_second_line_of_the_same_request(logged, autojump_clock):
    world, events = logged
    user = world.user()
    user.request_id = b"r" * 16
    one = await user.mkdir(ROOT, b"d")
    user.is_repeat = True
    assert (await user.mkdir(ROOT, b"d")).inode_id == one.inode_id
    first, second = await events()
    assert first["request"] == second["request"] == (b"r" * 16).hex()


def log_of(directory, queue_count_max=100, **config) -> EventLog:
    section = MetaSection(event_log_directory=str(directory), **config)
    runtime = simulated_runtime(None, 1)
    return EventLog(ProcessConfig(meta=section), runtime, queue_count_max=queue_count_max)


async def test_old_files_make_room_for_new_ones(tmp_path, nursery, autojump_clock):
    log = log_of(tmp_path, event_log_bytes_max=4096, event_log_file_count=3)
    nursery.start_soon(log.run)
    for number in range(300):
        log.note({"event": "test", "number": number, "text": "x" * 100})
        if number % 10 == 9:
            await trio.sleep(1)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sorted(sizes) == ["events-0.1.jsonl", "events-0.2.jsonl", "events-0.jsonl"]
    assert max(sizes.values()) < 4096 + 10 * 200
    newest = (tmp_path / "events-0.jsonl").read_text().splitlines()
    assert json.loads(newest[-1])["number"] == 299


async def test_a_full_queue_drops_and_tells_how_many(tmp_path, nursery, autojump_clock):
    log = log_of(tmp_path, queue_count_max=5)
    for number in range(12):
        log.note({"event": "test", "number": number})
    nursery.start_soon(log.run)
    await trio.sleep(1)
    told, *kept = read(tmp_path)
    assert (told["event"], told["count"]) == ("dropped", 7)
    assert [event["number"] for event in kept] == list(range(5))


async def test_a_disk_that_fails_costs_lines_only(tmp_path, nursery, autojump_clock):
    in_the_way = tmp_path / "log"
    in_the_way.write_text("a file where the directory should be")
    log = log_of(in_the_way)
    nursery.start_soon(log.run)
    for number in range(3):
        log.note({"event": "test", "number": number})
    await trio.sleep(1)
    os.unlink(in_the_way)
    log.note({"event": "test", "number": 3})
    await trio.sleep(1)
    told, kept = read(in_the_way)
    assert (told["count"], kept["number"]) == (3, 3)


async def test_what_is_queued_is_written_at_the_end(tmp_path, autojump_clock):
    log = log_of(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        await trio.sleep(1)
        log.note({"event": "test"})
        nursery.cancel_scope.cancel()
    assert len(read(tmp_path)) == 1


async def test_it_is_off_by_default(world, root):
    assert not world.meta.service.events.is_on
    await root.mkdir(ROOT, b"d")
    await world.meta.service.events.run()
