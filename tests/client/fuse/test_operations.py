# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
import errno
import logging
import random
import signal
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pyfuse3
import pytest
import trio
from trio.testing import MockClock

from fs.client.fuse.answers import errno_of
from fs.client.fuse.attributes import attr_change, entry_attributes
from fs.client.fuse.killed import KilledCallers, is_killed, is_told_to_end
from fs.client.fuse.operations import Operations
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema.config import ClientSection
from fs.schema.status import FsError, Status
from tests.client.fakes import FakeClock, FakeCluster, run_inline


def test_what_the_mount_cannot_have_is_enomem_and_no_bug(caplog):
    lacks = [MemoryError(), OSError(errno.EMFILE, "full"), RuntimeError("can't start new thread")]
    of_tasks = ExceptionGroup("tasks", [MemoryError(), FsError(Status.RPC_TIMEOUT, "late")])
    for lack in [*lacks, of_tasks]:
        assert errno_of(lack, "read", 7) == errno.ENOMEM
    assert caplog.text.count("lacks something") == 4 and "bug" not in caplog.text
    of_tasks = ExceptionGroup("tasks", [MemoryError(), KeyError("found")])
    for bug in (RuntimeError("other"), OSError(errno.EBADF, "closed"), of_tasks):
        assert errno_of(bug, "read", 7) == errno.EIO
    assert caplog.text.count("bug in read") == 3


CTX = SimpleNamespace(pid=1, uid=0, gid=0, umask=0o022)


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)


@pytest.fixture
def cluster():
    return FakeCluster(FakeClock())


@pytest.fixture
def operations(cluster):
    def make(**settings):
        runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))
        section = ClientSection(**settings)
        return Operations(Vfs(cluster.meta(), cluster.store(), runtime, section), runtime)

    return make


async def test_every_handler_of_pyfuse3_is_there(operations):
    left_to_the_kernel = {"poll", "init", "stacktrace"}
    names = {n for n in vars(pyfuse3.Operations) if callable(getattr(pyfuse3.Operations, n))}
    names = {n for n in names if not n.startswith("_")} - left_to_the_kernel
    assert names <= set(vars(Operations)), names - set(vars(Operations))
    assert operations() is not None


async def test_operating_errors_become_their_errno(operations):
    with pytest.raises(pyfuse3.FUSEError) as e:
        await operations().lookup(1, b"missing", CTX)
    assert e.value.errno == errno.ENOENT
    with pytest.raises(pyfuse3.FUSEError) as e:
        await operations().read(99, 0, 1)
    assert e.value.errno == errno.EBADF
    with pytest.raises(pyfuse3.FUSEError) as e:
        await operations().rename(1, b"a", 1, b"b", 8, CTX)
    assert e.value.errno == errno.EINVAL


@pytest.mark.parametrize("bug", [AssertionError("broken"), ValueError("broken, too")])
async def test_a_bug_is_eio_with_a_traceback(operations, cluster, caplog, bug):
    cluster.meta_faults["GetAttr"] = [bug]
    with pytest.raises(pyfuse3.FUSEError) as e:
        await operations().getattr(1, CTX)
    assert e.value.errno == errno.EIO
    assert "broken" in caplog.text


async def test_unusual_failures_are_logged_and_usual_ones_are_not(operations, cluster, caplog):
    caplog.set_level(logging.INFO)
    cluster.meta_faults["GetAttr"] = [FsError(Status.KV_UNAVAILABLE, "node 7")]
    with pytest.raises(pyfuse3.FUSEError):
        await operations().getattr(1, CTX)
    assert "node 7" in caplog.text
    caplog.clear()
    with pytest.raises(pyfuse3.FUSEError):
        await operations().lookup(1, b"missing", CTX)
    assert caplog.text == ""


async def test_negative_entries_are_cached_only_when_asked_for(operations):
    missing = await operations(negative_timeout_s=2.0).lookup(1, b"missing", CTX)
    assert (missing.st_ino, missing.entry_timeout) == (0, 2.0)


async def test_names_of_files_are_asked_for_at_every_open(operations):
    made = operations()
    directory = await made.mkdir(1, b"d", 0o777, CTX)
    node = await made.mknod(1, b"f", stat.S_IFREG | 0o666, 0, CTX)
    assert (directory.entry_timeout, node.entry_timeout) == (1.0, 0.0)
    assert (directory.st_mode, node.st_mode) == (0o040755, 0o100644)
    await made.forget([(directory.st_ino, 1), (node.st_ino, 7), (4711, 1)])


def test_attributes_are_translated_exactly(cluster):
    inode = cluster.add(CTX, 1, b"x", cluster.inodes[1].type.SYMLINK, 0o777, symlink_target=b"abc")
    entry = entry_attributes(inode, ClientSection())
    assert (entry.st_ino, entry.st_size, entry.st_mode) == (inode.inode_id, 3, 0o120777)
    assert (entry.st_mtime_ns, entry.st_ctime_ns) == (inode.mtime_ns, inode.ctime_ns)
    fields = SimpleNamespace(
        update_mode=True,
        update_uid=False,
        update_gid=True,
        update_size=False,
        update_atime=False,
        update_mtime=True,
    )
    change = attr_change(entry, fields)
    assert (change.mode, change.uid, change.gid, change.length) == (0o777, None, 0, None)
    assert (change.atime_ns, change.mtime_ns) == (None, inode.mtime_ns)
    entry.st_mtime_ns = 10**19
    assert attr_change(entry, fields).mtime_ns == 2**63 - 1


async def test_a_request_without_effect_ends_when_its_caller_was_killed(
    operations, cluster, autojump_clock
):
    made = operations()
    killed = set()
    made.killed = KilledCallers(cluster.clock.monotonic_s, killed.__contains__)
    outcomes = []

    async def ask(thread_id):
        with pytest.raises(pyfuse3.FUSEError) as e:
            await made.lookup(1, b"missing", SimpleNamespace(pid=thread_id, uid=0, gid=0, umask=0))
        outcomes.append((thread_id, e.value.errno))

    gate = cluster.meta_gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.killed.run)
        nursery.start_soon(ask, 7)
        nursery.start_soon(ask, 8)
        await trio.sleep(5)
        assert outcomes == []
        killed.add(7)
        await trio.sleep(2.5)
        assert outcomes == [(7, errno.EINTR)]
        gate.set()
        await trio.sleep(0.1)
        assert outcomes == [(7, errno.EINTR), (8, errno.ENOENT)]
        nursery.cancel_scope.cancel()


def test_signs_of_death_are_read_from_proc():
    child = subprocess.Popen(["sleep", "60"])
    assert not is_killed(child.pid)
    assert not is_told_to_end(child.pid)
    child.kill()
    child.wait()
    assert not is_killed(child.pid)  # gone
    assert not is_told_to_end(child.pid)


@pytest.mark.parametrize(
    ("waiting", "blocked", "is_ending", "is_deadly"),
    [
        ([], [], False, False),
        ([signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGTSTP], [], False, False),
        ([signal.SIGALRM, signal.SIGINT], [], True, False),
        ([signal.SIGTERM], [], True, False),
        ([signal.SIGTERM], [signal.SIGTERM], False, False),
        ([signal.SIGKILL], [], True, True),
    ],
)
def test_signals_that_ask_a_program_to_end_are_told_from_others(
    monkeypatch, waiting, blocked, is_ending, is_deadly
):
    def bits(numbers):
        return f"{sum(1 << n - 1 for n in numbers):016x}"

    text = f"Name:\tx\nSigPnd:\t{bits([])}\nShdPnd:\t{bits(waiting)}\nSigBlk:\t{bits(blocked)}\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert (is_told_to_end(7), is_killed(7)) == (is_ending, is_deadly)
