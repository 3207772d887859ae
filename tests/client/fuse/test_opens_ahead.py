"""Opens for reading that meta answers with the look-up of the name."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.opens_ahead import (
    EXPECTED_WEIGHT,
    KEPT_COUNT_MAX,
    OPENS_WEIGHT,
    THREAD_COUNT_MAX,
    WEIGHT_MAX,
    Answer,
    OpensAhead,
)
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.system_calls import THREAD_COUNT_MAX as SEEN_COUNT_MAX
from fs.client.fuse.system_calls import SystemCalls
from fs.client.vfs.looking_up import Moment
from fs.client.vfs.ports import Caller
from fs.schema.proto import meta_pb2
from tests.client.fuse.test_begun import Begun, cluster  # noqa: F401 - a fixture
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    is_watched,
    kernel,
    killed,
)
from tests.client.fuse.test_names_alone import asked_for, served  # noqa: F401 - a fixture

THREAD, INODE, WHO = 7, 100, Caller(1000, 1000)
CALL = "257 0xffffff9c 0x7f00 0x80000 0x0 0x0 0x0 0x7ffc 0x7f01"


class Calls:
    """Threads are in open(2), unless a test says otherwise."""

    def __init__(self):
        self.is_seen, self.asked = True, []

    def is_opening(self, thread_id):
        self.asked.append(thread_id)
        return self.is_seen

    def close(self):
        self.is_seen = False


def watching():
    """Return what sees every thread in open(2)."""
    ahead = OpensAhead()
    ahead.calls = Calls()
    return ahead


def open_one(ahead, thread=THREAD, flags=os.O_RDONLY):
    ahead.note_found(thread, INODE)
    return ahead.take(thread, INODE, flags, WHO)


def used_to_open():
    """Return what knows that a thread opens what it looks up, and sees it in open(2)."""
    ahead = watching()
    while not ahead.is_expected(THREAD):
        assert open_one(ahead) is None
    return ahead


def keep(ahead, thread=THREAD):
    reply = meta_pb2.InodeRsp(is_opened=True)
    reply.inode.inode_id = INODE
    ahead.keep(thread, Answer(reply, Moment(1, 0.0), WHO, 5))
    return reply


def test_who_opens_what_he_looks_up_is_expected_to_go_on_so():
    ahead = watching()
    for _ in range(EXPECTED_WEIGHT // OPENS_WEIGHT):
        assert not ahead.is_expected(THREAD)
        open_one(ahead)
    assert ahead.is_expected(THREAD)
    assert not ahead.is_expected(THREAD + 1)
    assert not ahead.is_expected(0)


def test_who_looks_up_more_than_he_opens_is_not_looked_at():
    ahead = used_to_open()
    for _ in range(WEIGHT_MAX + 1):
        ahead.note_found(THREAD, INODE)
    ahead.calls.asked.clear()
    assert not ahead.is_expected(THREAD) and not ahead.calls.asked


def test_who_opens_what_the_kernel_knows_is_not_looked_at():
    ahead = used_to_open()
    for _ in range(WEIGHT_MAX):
        ahead.note_vain(THREAD)
    ahead.note_vain(THREAD + 1)
    assert not ahead.is_expected(THREAD)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_TRUNC])
def test_an_open_to_write_is_no_reason_to_expect_one_to_read(flags):
    ahead = watching()
    for _ in range(10):
        open_one(ahead, flags=flags)
    assert not ahead.is_expected(THREAD)


def test_a_thread_in_another_call_is_answered_as_ever():
    ahead = used_to_open()
    ahead.calls.is_seen = False
    assert not ahead.is_expected(THREAD)


def test_what_meta_said_is_used_once():
    ahead = used_to_open()
    reply = keep(ahead)
    taken = ahead.take(THREAD, INODE, os.O_RDONLY, WHO)
    assert taken == Answer(reply, Moment(1, 0.0), WHO, 5)
    assert ahead.take(THREAD, INODE, os.O_RDONLY, WHO) is None


@pytest.mark.parametrize(
    "asked",
    [
        (THREAD + 1, INODE, os.O_RDONLY, WHO),
        (THREAD, INODE + 1, os.O_RDONLY, WHO),
        (THREAD, INODE, os.O_RDWR, WHO),
        (THREAD, INODE, 0x20, WHO),  # execve
        (THREAD, INODE, os.O_RDONLY, Caller(0, 0)),
    ],
)
def test_another_open_has_meta_asked(asked):
    ahead = used_to_open()
    keep(ahead)
    assert ahead.take(*asked) is None


def test_an_open_by_another_call_has_meta_asked():
    """open_by_handle_at(2) needs no name."""
    ahead = used_to_open()
    keep(ahead)
    ahead.calls.is_seen = False
    assert ahead.take(THREAD, INODE, os.O_RDONLY, WHO) is None


def test_what_is_remembered_is_bounded_and_who_opens_all_the_time_stays():
    ahead = used_to_open()
    for thread in range(1000, 1000 + 3 * THREAD_COUNT_MAX):
        open_one(ahead, thread)
        ahead.note_found(thread, INODE)
        keep(ahead, thread)
        open_one(ahead)
    assert len(ahead._weights) <= THREAD_COUNT_MAX
    assert len(ahead._last) <= THREAD_COUNT_MAX
    assert len(ahead._kept) <= KEPT_COUNT_MAX
    assert ahead.is_expected(THREAD)


# -- what /proc tells ------------------------------------------------------------------------------


OPENER = """
import os, sys
for path in sys.argv[1:]:
    os.open(path, os.O_RDONLY)
"""
"""Waits in each open until somebody opens the pipe for writing."""
NATIVE = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"}, reason="no numbers of this machine's calls"
)


@pytest.fixture
def opener_of(tmp_path):
    """Return a function that starts a program which waits in open(2) of pipes, by their names."""
    started = []

    def start(*names):
        for name in names:
            os.mkfifo(tmp_path / name)
        command = [sys.executable, "-I", "-S", "-c", OPENER, *names]
        started.append(subprocess.Popen(command, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def see(calls, process):
    """Wait until a program is seen in open(2), for long enough to wait there for the pipe."""
    until, seen_count = time.monotonic() + 60, 0
    while seen_count < 3:
        assert time.monotonic() < until
        seen_count = seen_count + 1 if calls.is_opening(process.pid) else 0
        time.sleep(0.05)


@NATIVE
def test_a_thread_in_open_is_seen_as_long_as_it_lives(opener_of):
    calls, process = SystemCalls(), opener_of("a")
    see(calls, process)
    assert list(calls._files) == [process.pid]
    process.kill()
    process.wait()
    assert not calls.is_opening(process.pid) and not calls._files


@NATIVE
def test_the_file_of_a_thread_that_has_ended_is_opened_anew(opener_of):
    """Its number may be another thread's by now."""
    calls, before, process = SystemCalls(), opener_of("a"), opener_of("b")
    see(calls, before)
    see(calls, process)
    os.close(calls._files.pop(process.pid))
    calls._files[process.pid] = calls._files.pop(before.pid)
    before.kill()
    before.wait()
    assert calls.is_opening(process.pid)
    calls.close()
    assert not calls._files


def test_a_thread_that_waits_for_something_else_opens_nothing():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"it runs\n")
        process.stdin.flush()
        process.stdout.readline()
        calls = SystemCalls()
        assert not calls.is_opening(process.pid)
        process.communicate()
    calls.close()


@pytest.fixture
def proc(tmp_path):
    """Stands for /proc: this process has one number; add threads by `shows`."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name:\tpython\nNSpid:\t77\nThreads:\t1\n")
    return tmp_path


def shows(proc, thread_id, text):
    (proc / str(thread_id)).mkdir(exist_ok=True)
    (proc / str(thread_id) / "syscall").write_text(text + "\n")


@pytest.mark.parametrize(
    ("text", "machine", "is_seen"),
    [
        (CALL, "x86_64", True),
        (CALL.replace("257", "56", 1), "aarch64", True),
        (CALL, "aarch64", False),
        (CALL, "riscv64", False),
        ("2 0x7f00 0x80000 0x0 0x0 0x0 0x0 0x7ffc 0x7f01", "x86_64", True),
        ("2 0x7f00 0x80001 0x0 0x0 0x0 0x0 0x7ffc 0x7f01", "x86_64", False),
        ("437 0xffffff9c 0x7f00 0x7f08 0x18 0x0 0x0 0x7ffc 0x7f01", "x86_64", False),
        ("304 0x3 0x7f00 0x80000 0x0 0x0 0x0 0x7ffc 0x7f01", "x86_64", False),  # by a handle
        ("262 0xffffff9c 0x7f00 0x7f08 0x0 0x0 0x0 0x7ffc 0x7f01", "x86_64", False),
        ("257 0xffffff9c 0x7f00 0x80000 0x0 0x0 0x0 0x0 0x0", "x86_64", False),  # of a ring
        ("-1 0x7ffc 0x7f01", "x86_64", False),
        ("running", "x86_64", False),
        ("257", "x86_64", False),
        ("", "x86_64", False),
        *(
            (CALL.replace("0x80000", hex(flags)), "x86_64", not flags)
            for flags in (
                os.O_RDONLY,
                os.O_WRONLY,
                os.O_RDWR,
                os.O_ACCMODE,
                os.O_CREAT,
                os.O_TRUNC,
                os.O_DIRECTORY,
                os.O_NOATIME,
                os.O_NONBLOCK,
                os.O_PATH,
                os.O_TMPFILE,
            )
        ),
    ],
)
def test_a_call_that_does_nothing_but_open_for_reading_is_known(proc, text, machine, is_seen):
    shows(proc, THREAD, text)
    calls = SystemCalls(machine, proc)
    assert calls.is_opening(THREAD) is is_seen
    calls.close()


def test_few_files_stay_open(proc):
    calls, before = SystemCalls("x86_64", proc), len(list(Path("/proc/self/fd").iterdir()))
    for thread in range(SEEN_COUNT_MAX + 10):
        shows(proc, thread, CALL)
        assert calls.is_opening(thread)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + SEEN_COUNT_MAX
    calls.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_thread_that_is_out_of_sight_is_tried_once(proc):
    """As all of other users are where /proc hides them: it says that there are none."""
    calls = SystemCalls("x86_64", proc)
    assert not calls.is_opening(THREAD)
    shows(proc, THREAD, CALL)
    shows(proc, THREAD + 1, CALL)
    assert not calls.is_opening(THREAD)
    assert calls.is_opening(THREAD + 1)
    calls.close()


@pytest.mark.parametrize(
    ("status", "is_seen"),
    [
        ("NSpid:\t77\n", True),
        ("NSpid:\t77\t1\n", False),  # /proc is of a namespace further out
        ("Name:\tpython\n", True),  # a kernel without namespaces
        (None, False),  # there is no /proc
    ],
)
def test_nothing_is_seen_where_proc_tells_of_another_namespace(proc, status, is_seen):
    shows(proc, THREAD, CALL)
    if status is None:
        (proc / "self" / "status").unlink()
    else:
        (proc / "self" / "status").write_text(status)
    calls = SystemCalls("x86_64", proc)
    assert calls.is_opening(THREAD) is is_seen
    calls.close()


# -- on a mount ------------------------------------------------------------------------------------


@pytest.fixture
def opener(kernel, served):  # noqa: F811, ARG001
    """The kernel, asked by threads that open what they look up."""
    ahead = kernel.server._operations.opens_ahead
    ahead.calls, ahead.weight_expected = Calls(), 0
    return kernel


async def forget(kernel, inode_id, count=1):  # noqa: F811
    await kernel.send(Opcode.FORGET, p.FORGET_IN.pack(count), inode_id)
    assert (await kernel.ask(Opcode.STATFS))[0] == 0  # it is not answered


async def new_file(kernel, name=b"f"):  # noqa: F811
    """Make a file that the kernel does not know by now."""
    inode_id, fh = await kernel.make(name)
    assert (await kernel.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0), inode_id))[0] == 0
    await forget(kernel, inode_id)
    return inode_id


async def look_up(kernel, name=b"f", pid=THREAD):  # noqa: F811
    error, reply = await kernel.ask(Opcode.LOOKUP, name + b"\0", pid=pid)
    assert error == 0
    return p.ENTRY_OUT.unpack_from(reply)[0]


async def open_it(kernel, inode_id, flags=os.O_RDONLY, pid=THREAD):  # noqa: F811
    error, reply = await kernel.ask(Opcode.OPEN, p.OPEN_IN.pack(flags, 0), inode_id, pid=pid)
    assert error == 0
    return p.OPEN_OUT.unpack_from(reply)[0]


def ahead_count(kernel):  # noqa: F811
    return kernel.vfs._core.opened_ahead_count


async def test_the_open_of_a_file_that_is_new_to_the_kernel_costs_one_call_of_meta(
    opener,
    served,  # noqa: F811
):
    for name in (b"f", b"g", b"h"):
        inode_id = await new_file(opener, name)
        assert await look_up(opener, name) == inode_id
        fh = await open_it(opener, inode_id)
        await opener.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0), inode_id)
    assert [request.opens for request in asked_for(served, "Lookup")] == [True] * 3
    assert not asked_for(served, "Open")
    assert ahead_count(opener) == 3


async def test_what_the_kernel_knows_is_looked_up_alone_and_opened_anew(opener, served):  # noqa: F811
    """Somebody may hold it, and open it without a look-up."""
    inode_id = await new_file(opener)
    for _ in range(3):
        assert await look_up(opener) == inode_id
        fh = await open_it(opener, inode_id)
        await opener.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0), inode_id)
    assert [request.opens for request in asked_for(served, "Lookup")] == [True, False, False]
    assert len(asked_for(served, "Open")) == 2
    await forget(opener, inode_id, 3)
    await look_up(opener)
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 2


async def test_what_is_held_is_asked_for_after_a_call_that_failed(opener):
    """O_PATH; then open("f/x") looks f up, and fails; what is held is opened: it may have heard
    meanwhile that another mount has closed the file.
    """
    inode_id, calls = await new_file(opener), opener.server._operations.opens_ahead.calls
    calls.is_seen = False
    await look_up(opener)
    calls.is_seen = True
    await look_up(opener)
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 0


async def test_what_is_held_by_another_name_is_asked_for(opener, served, cluster):  # noqa: F811
    """Another mount has given the file a new name, which does not tell that it is known."""
    inode_id, calls = await new_file(opener), opener.server._operations.opens_ahead.calls
    calls.is_seen = False
    await look_up(opener)
    calls.is_seen = True
    cluster.names[1][b"g"] = cluster.names[1].pop(b"f")
    assert await look_up(opener, b"g") == inode_id
    assert asked_for(served, "Lookup")[-1].opens
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 0


async def test_what_is_kept_is_not_of_an_inode_that_the_kernel_has_come_to_know_anew(opener):
    """As of a thread that died after its look-up."""
    inode_id, calls = await new_file(opener), opener.server._operations.opens_ahead.calls
    await look_up(opener)
    await forget(opener, inode_id)
    calls.is_seen = False
    await look_up(opener, pid=THREAD + 1)
    calls.is_seen = True
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 0


async def test_an_earlier_release_of_meta_is_asked_to_open(opener, served, cluster):  # noqa: F811
    cluster.opens_ahead = False
    inode_id = await new_file(opener)
    await look_up(opener)
    await open_it(opener, inode_id)
    assert len(asked_for(served, "Open")) == 1


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
async def test_an_open_for_writing_asks_meta(opener, flags):
    inode_id = await new_file(opener)
    await look_up(opener)
    await open_it(opener, inode_id, flags)
    assert ahead_count(opener) == 0


async def test_what_this_mount_has_changed_since_is_asked_for(opener):
    inode_id = await new_file(opener)
    await look_up(opener)
    opener.vfs._core.changes.note_inode(inode_id)
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 0


async def test_a_file_that_this_mount_has_removed_since_is_asked_for(opener):
    inode_id = await new_file(opener)
    await look_up(opener)
    assert (await opener.ask(Opcode.UNLINK, b"f\0", pid=THREAD + 1))[0] == 0
    await opener.ask(Opcode.OPEN, p.OPEN_IN.pack(os.O_RDONLY, 0), inode_id, pid=THREAD)
    assert ahead_count(opener) == 0


async def test_the_file_of_another_thread_is_asked_for(opener):
    inode_id = await new_file(opener)
    await look_up(opener)
    await open_it(opener, inode_id, pid=THREAD + 1)
    assert ahead_count(opener) == 0


async def test_what_is_looked_up_once_more_is_asked_for(opener):
    """By a task, too, after which the first answer is not used."""
    inode_id = await new_file(opener)
    await look_up(opener)
    opener.server._tracer.sample_rate = 1.0
    await look_up(opener)
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 0


async def test_where_the_kernel_keeps_names_meta_is_asked_to_open(opener):
    """Who comes by a name that it keeps looks nothing up."""
    opener.server._operations._keeps_names = True
    inode_id = await new_file(opener)
    await look_up(opener)
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 0


async def test_a_look_up_by_a_task_opens_nothing(opener, served):  # noqa: F811
    opener.server._tracer.sample_rate = 1.0
    inode_id = await new_file(opener)
    await look_up(opener)
    await open_it(opener, inode_id)
    assert ahead_count(opener) == 0
    assert not any(request.opens for request in asked_for(served, "Lookup"))
