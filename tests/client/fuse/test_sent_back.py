"""Who is told ESTALE where a directory was removed elsewhere, and who ENOENT."""

import errno
import os
import platform
import threading
import time

import pytest
import trio

from fs.client.fuse import sent_back as module
from fs.client.fuse.sent_back import RUNNING, SentBack, call_of
from fs.client.vfs.ports import Caller
from fs.schema.status import FsError, Status

GONE, ALIVE = 10, 11
ROOT = Caller(0, 0)
REST = " 0xffffff9c 0x7f00 0xffffff9c 0x7f80 0x0 0x0 0x7ffe 0x7f01"
OPENAT, MKDIR, LINKAT, RENAMEAT2 = "257", "83", "265", "316"
NOT_FOUND = FsError(Status.NOT_FOUND, "as meta says")


class Removed:
    def __init__(self):
        self.again = set()
        self.failure = None

    async def is_removed(self, inode_id, _caller):
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return inode_id == GONE

    async def is_there_again(self, _inode_id, name, _caller):
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return name in self.again


class Names:
    def __init__(self):
        self.removed = Removed()
        self.kept = set()

    def is_kept(self, parent, name):
        return (parent, name) in self.kept


class Mount:
    """A `SentBack`, and the thread that asks."""

    def __init__(self, call=OPENAT, machine="x86_64"):
        self.names = Names()
        self.sent_back = SentBack(self.names, machine)
        self.sent_back.call_of = lambda _: self.line
        self.call(call)

    def call(self, number):
        self.line = number + REST if number.isdigit() else number

    async def look_up(self, name=b"f", parent=GONE, thread_id=7):
        self.sent_back.walks.note_lookup(thread_id, (parent, name))
        number = await self.sent_back.errno_of_lookup(thread_id, parent, name, ROOT)
        return errno.errorcode[number]

    async def change(self, *parents, thread_id=7, error=NOT_FOUND):
        self.sent_back.walks.note_other(thread_id, only_walks=False)
        told = await self.sent_back.errno_of_change(thread_id, parents or (GONE,), ROOT, error)
        return errno.errorcode[told]


async def test_a_thread_is_sent_back_once_in_each_call():
    mount = Mount()
    told = [await mount.look_up() for _ in range(4)]
    assert told == ["ESTALE", "ENOENT"] * 2
    assert await mount.look_up(thread_id=8) == "ESTALE"


async def test_what_the_kernel_keeps_it_asks_for_again():
    mount = Mount()
    mount.names.kept.add((GONE, b"f"))
    assert await mount.look_up() == "ENOENT"
    mount.names.kept.clear()  # as it has let go of it
    assert await mount.look_up() == "ESTALE"
    assert await mount.look_up() == "ENOENT"


@pytest.mark.parametrize("call", ["", RUNNING, MKDIR, "266", "49", "133"])
async def test_who_does_not_walk_again_is_told_that_nothing_is_there(call, autojump_clock):  # noqa: ARG001
    mount = Mount(call)
    assert [await mount.look_up() for _ in range(3)] == ["ENOENT"] * 3


async def test_nor_is_one_sent_back_on_a_machine_whose_calls_are_not_known():
    assert await Mount(machine="riscv64").look_up() == "ENOENT"


async def test_one_that_is_not_asleep_yet_is_waited_for(autojump_clock):  # noqa: ARG001
    mount = Mount()
    lines = [RUNNING, RUNNING, OPENAT + REST]
    mount.sent_back.call_of = lambda _: lines.pop(0)
    assert await mount.look_up() == "ESTALE"
    assert lines == []


async def test_a_name_is_linked_if_it_is_there_and_made_if_not():
    mount = Mount(LINKAT)
    assert await mount.look_up(b"new") == "ENOENT"
    mount.names.removed.again.add(b"f")
    assert await mount.look_up(b"f") == "ESTALE"
    mount.names.removed.failure = FsError(Status.RPC_TIMEOUT, "late")
    assert await Mount(LINKAT).look_up(b"f") == "ENOENT"


async def test_a_name_to_be_made_by_a_descriptor_is_not_walked_to_again():
    mount = Mount(LINKAT)
    mount.names.removed.again.add(b"f")
    mount.line = LINKAT + REST.replace("0xffffff9c 0x7f80", "0x5 0x7f80")
    assert await mount.look_up(b"f") == "ENOENT"


async def test_a_change_is_walked_to_again():
    mount = Mount(MKDIR)
    told = []
    for _ in range(2):
        for _ in range(2):
            told += [await mount.look_up(b"new"), await mount.change()]
    assert told == ["ENOENT", "ESTALE", "ENOENT", "ENOENT"] * 2


async def test_one_of_two_directories_is_enough():
    mount = Mount(RENAMEAT2)
    assert await mount.change(ALIVE, GONE) == "ESTALE"
    assert await mount.change(ALIVE, GONE) == "ENOENT"


async def test_what_fails_for_another_reason_is_told():
    mount = Mount()
    assert await mount.change(ALIVE) == "ENOENT"
    assert await mount.change(ALIVE, error=FsError(Status.STALE, "the file")) == "ESTALE"
    mount.names.removed.failure = FsError(Status.RPC_TIMEOUT, "late")
    assert await mount.change() == "ENOENT"


async def test_who_is_told_of_something_else_that_is_stale_walks_again_as_well():
    mount = Mount()
    assert await mount.change(ALIVE, error=FsError(Status.STALE, "the file")) == "ESTALE"
    mount.sent_back.walks.note_lookup(7, (ALIVE, b"d"))  # of the next request
    assert mount.sent_back.walks.searches(7, "", (GONE, b"f"), may_keep=False)


async def test_what_is_asked_anew_is_forgotten_in_time():
    mount = Mount()
    for thread_id in range(3 * module.ASKED_ANEW_COUNT_MAX):
        mount.names.kept = {(GONE, b"f")}
        assert await mount.look_up(thread_id=thread_id) == "ENOENT"
    assert len(mount.sent_back._asked_anew) <= module.ASKED_ANEW_COUNT_MAX


def test_the_call_of_a_thread_that_waits_is_seen():
    reading, writing = os.pipe()
    thread = threading.Thread(target=os.read, args=(reading, 1))
    thread.start()
    number = {"x86_64": "0", "aarch64": "63"}[platform.machine()]
    try:
        while not call_of(thread.native_id).startswith(f"{number} "):
            time.sleep(0.001)
    finally:
        os.write(writing, b"x")
        thread.join()
        os.close(reading)
        os.close(writing)


def test_of_a_thread_out_of_sight_nothing_is_seen():
    assert call_of(0) == ""
