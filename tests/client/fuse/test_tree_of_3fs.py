"""The directory `3fs-virt` of a mount that offers it:
what programs written for 3FS do there, and what is refused.
"""

import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio
import trio.testing
from hf3fs_py_usrbio import deregister_fd, ioring, iovec, register_fd
from trio.testing import MockClock

from fs.client.fuse.mounted_paths import MountedPaths, path_inside, seen_mounts
from fs.client.vfs.hf3fs_removal import FORGET_S_MAX, names_of
from fs.client.vfs.hf3fs_segments import Opened, Segments, open_segment
from fs.client.vfs.ports import Caller
from fs.client.vfs.vfs import Vfs
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.ids import ROOT_INODE_ID, InodeId
from fs.schema.inode import InodeType
from fs.schema.proto import meta_pb2
from fs.schema.status import FsError, Status
from tests.client.fakes import FakeClock, FakeCluster, run_inline
from tests.client.user.serving import NEEDS_MOUNT, Server, eventually

OTHER_UID = 12345
ROOT = Caller(0, 0)


@pytest.fixture(scope="module", params=["direct", "libfuse"])
def server(tmp_path_factory, request):
    mount_point = tmp_path_factory.mktemp(request.param) / "mnt"
    server = Server(mount_point, f'fuse_frontend="{request.param}"', "hf3fs_tree=true")
    assert server.first_line == "ready"
    yield server
    try:
        assert server.stop()["sessions"] == 0
    finally:
        server.close()


@pytest.fixture
def mnt(server):
    yield server.mount_point
    assert list(server.mount_point.iterdir()) == []


@pytest.fixture
def rm_rf(mnt):
    return mnt / "3fs-virt/rm-rf"


def asked_of_meta(server):
    """Return what the mount has asked of meta since the last time."""
    server.process.send_signal(signal.SIGUSR1)
    return json.loads(server.process.stdout.readline())["meta"]


def make_tree(top):
    for i in range(3):
        folder = top / f"part{i}" / "deep"
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(b"x" * 5000)
        (folder / "link").symlink_to("data")
    return top


REFUSED = {
    "tree": errno.EINVAL,
    "../../tree": errno.EINVAL,
    "{mnt}": errno.EINVAL,
    "{mnt}/": errno.EINVAL,
    "{mnt}/tree/..": errno.EINVAL,
    "{mnt}/tree/../tree": errno.EINVAL,
    "{mnt}/./tree": errno.EINVAL,
    "/": errno.EINVAL,
    "{mnt}x/tree": errno.EINVAL,
    "/tree": errno.EINVAL,
    "/proc/self": errno.EINVAL,
    "{beside}": errno.EINVAL,
    "{mnt}/link": errno.EINVAL,
    "{mnt}/link/part1": errno.EINVAL,
    "{mnt}/out/tree": errno.EINVAL,
    "{mnt}/absent": errno.ENOENT,
    "{mnt}/absent/tree": errno.ENOENT,
    "{mnt}/tree/part0/deep/data/tree": errno.ENOTDIR,
    "{mnt}/3fs-virt": errno.EPERM,
    "{mnt}/3fs-virt/rm-rf": errno.EPERM,
}
"""Targets of links in rm-rf, and what making them ends with."""


def refusal(act, *args):
    """Return the errno that an act ends with; 0: it does not fail."""
    try:
        act(*args)
    except OSError as error:
        return error.errno
    return 0


def is_there(path):
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


class TestOfMounts:
    pytestmark = NEEDS_MOUNT

    def test_its_directories(self, mnt, rm_rf):
        top = mnt / "3fs-virt"
        assert (stat.S_IMODE(top.stat().st_mode), stat.S_IMODE(rm_rf.stat().st_mode)) == (
            0o555,
            0o777,
        )
        assert (top.stat().st_uid, rm_rf.stat().st_uid) == (0, 0)
        assert sorted(os.listdir(top)) == ["iovs", "rm-rf"] and os.listdir(rm_rf) == []
        assert [entry.is_dir() for entry in os.scandir(top)] == [True, True]
        assert not os.listxattr(top)
        assert os.statvfs(rm_rf).f_blocks == os.statvfs(mnt).f_blocks
        # Whoever walks the mount does not come upon it.
        assert os.listdir(mnt) == []

    def test_a_link_removes_at_once_what_it_names_as_smallpond_makes_it(self, server, mnt, rm_rf):
        """By path of the mount, name and id; it falls back to removing by itself
        where that fails.
        """
        path = str(make_tree(mnt / "job" / "staging").parent)
        asked_of_meta(server)
        link = os.path.join(mnt, "3fs-virt/rm-rf", f"{os.path.basename(path)}-{uuid.uuid4()}")
        os.symlink(path, link)
        assert not os.path.exists(path)
        assert not os.path.lexists(link)
        assert os.listdir(rm_rf) == []
        asked = asked_of_meta(server)
        assert asked.count("RemoveTree") == 1 and not {"Rmdir", "Unlink"} & set(asked)

    def test_names_in_it_can_be_used_again(self, mnt, rm_rf):
        for _ in range(3):
            (rm_rf / "anything").symlink_to(make_tree(mnt / "tree"))
            assert not is_there(mnt / "tree") and not is_there(rm_rf / "anything")
        make_tree(mnt / "tree")
        command = ["ln", "-s", str(mnt / "tree"), "3fs-virt/rm-rf/"]
        subprocess.run(command, check=True, cwd=mnt)
        assert not is_there(mnt / "tree")

    def test_a_link_to_a_file_removes_that(self, mnt, rm_rf):
        (mnt / "file").write_bytes(b"data")
        with (mnt / "file").open("rb") as opened:
            (rm_rf / "anything").symlink_to(f"{mnt}//file")
            assert not is_there(mnt / "file")
            assert opened.read() == b"data"

    def test_what_is_moved_there_is_removed(self, mnt, rm_rf):
        tree = make_tree(mnt / "above" / "tree")
        subprocess.run(["mv", str(tree), str(rm_rf)], check=True)
        assert not is_there(tree)
        eventually(lambda: not is_there(rm_rf / "tree"), "the kernel still shows what is gone")
        (mnt / "above" / "file").write_bytes(b"data")
        (mnt / "above" / "file").rename(rm_rf / "other")
        eventually(lambda: not is_there(rm_rf / "other"), "the kernel still shows what is gone")
        assert os.listdir(mnt / "above") == []
        (mnt / "above").rmdir()

    def test_other_targets_are_refused(self, mnt, rm_rf, tmp_path):
        """Nothing is removed, and no link is left."""
        tree = make_tree(mnt / "tree")
        beside = make_tree(tmp_path / "tree").parent / "leads_here"
        beside.symlink_to(mnt / "tree")
        (mnt / "link").symlink_to("tree")
        (mnt / "out").symlink_to(tmp_path)
        before = sorted(mnt.rglob("*"))
        for target, error in REFUSED.items():
            where = target.format(mnt=mnt, beside=beside)
            assert refusal((rm_rf / "anything").symlink_to, where) == error, target
            assert not is_there(rm_rf / "anything")
        assert sorted(mnt.rglob("*")) == before and is_there(tmp_path / "tree/part1/deep/data")
        shutil.rmtree(tree)
        (mnt / "link").unlink()
        (mnt / "out").unlink()

    def test_who_may_not_remove_is_refused(self, mnt, rm_rf):
        """As the user that asks, whose own path it need not be."""
        tree = make_tree(mnt / "tree")
        directory = os.open(rm_rf, os.O_RDONLY | os.O_DIRECTORY)
        script = f"import os; os.symlink({str(tree)!r}, 'anything', dir_fd={directory})"

        def run():
            return subprocess.run(
                ["/usr/bin/env", "python3", "-S", "-c", script],
                pass_fds=[directory],
                user=OTHER_UID,
                group=OTHER_UID,
                extra_groups=[],
                check=False,
                capture_output=True,
                text=True,
                cwd="/",
            )

        done = run()
        assert "PermissionError: [Errno 1]" in done.stderr and is_there(tree / "part0/deep/data")
        os.chown(tree, OTHER_UID, OTHER_UID)
        assert (run().stderr, is_there(tree)) == ("", False)
        os.close(directory)

    def test_nothing_else_can_be_made_or_changed_there(self, mnt, rm_rf):
        (mnt / "file").write_bytes(b"data")
        (mnt / "link").symlink_to("file")
        top = mnt / "3fs-virt"
        refused = [
            ((rm_rf / "d").mkdir,),
            ((rm_rf / "f").touch,),
            (os.mkfifo, rm_rf / "p"),
            (os.link, mnt / "file", rm_rf / "f"),
            ((top / "anything").symlink_to, mnt / "file"),
            (rm_rf.chmod, 0o700),
            (os.utime, top),
            (os.setxattr, top, "user.a", b"b"),
            (rm_rf.rmdir,),
            (top.rmdir,),
            (rm_rf.rename, mnt / "d"),
            (top.rename, mnt / "d"),
            ((mnt / "file").rename, top / "file"),
        ]
        for act, *args in refused:
            assert refusal(act, *args) == errno.EPERM, (act, args)
        assert refusal((mnt / "link").rename, rm_rf / "link") == errno.EINVAL
        assert refusal(os.getxattr, top, "user.a") == errno.ENODATA
        with pytest.raises(FileExistsError):
            top.mkdir()
        assert sorted(os.listdir(mnt)) == ["file", "link"]
        (mnt / "file").unlink()
        (mnt / "link").unlink()

    def test_a_part_that_is_mounted_elsewhere_is_named_as_the_program_sees_it(
        self, mnt, rm_rf, tmp_path
    ):
        """What the path would mean to the daemon is another directory."""
        inner, outer = make_tree(mnt / "team" / "tree"), make_tree(mnt / "tree")
        inside = tmp_path / "seen"
        # What the program in the namespace sees at the mount is the team's directory alone.
        script = (
            f'mount --bind "{rm_rf}" "{inside}" && mount --bind "{mnt}/team" "{mnt}"'
            f' && ln -s "{mnt}/tree" "{inside}/anything"'
        )
        inside.mkdir()
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], check=True
        )
        assert is_there(outer / "part0/deep/data") and not is_there(inner)
        shutil.rmtree(outer)
        (mnt / "team").rmdir()


NUMBER = "0123abcd-0000-4000-8000-00000000000"
REFUSED_NAMES = {
    f"{NUMBER}": errno.EINVAL,
    "anything": errno.EINVAL,
    f"{NUMBER}F": errno.EINVAL,
    f"{NUMBER}1.b0": errno.ENOTSUP,
    f"{NUMBER}1.b9999999999": errno.EINVAL,
    f"{NUMBER}1.b-1": errno.EINVAL,
    f"{NUMBER}1.b4096.r8": errno.ENOTSUP,
    f"{NUMBER}1.r0": errno.ENOTSUP,
    f"{NUMBER}1.w128.ph.t10.f10": errno.ENOTSUP,
    "submit-ios": errno.EINVAL,
}
"""Names of links in iovs, and what making them ends with."""


@pytest.fixture
def iovs(mnt):
    yield mnt / "3fs-virt/iovs"
    assert os.listdir(mnt / "3fs-virt/iovs") == []


@pytest.fixture
def segment():
    segment = SharedMemory(size=64 << 10, create=True)
    yield segment
    segment.close()
    with suppress(FileNotFoundError):
        segment.unlink()


def open_segments(server):
    """Return how many segments the daemon has open."""
    found = 0
    for fd in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(fd.readlink()).startswith("/dev/shm/")
    return found


def as_other(script, directory):
    """Run a script of Python as another user, who knows a directory by a descriptor."""
    return subprocess.run(
        [sys.executable, "-S", "-c", f"import os; iovs = {directory}\n" + script],
        pass_fds=[directory],
        user=OTHER_UID,
        group=OTHER_UID,
        extra_groups=[],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
    )


class TestOfSegments:
    pytestmark = NEEDS_MOUNT

    @pytest.mark.parametrize(
        "number", [str(uuid.uuid4()), uuid.uuid4().hex], ids=["dashes", "plain"]
    )
    @pytest.mark.parametrize("block", ["", ".b4096"])
    def test_a_link_registers_until_it_is_removed(self, server, iovs, segment, number, block):
        target = f"/dev/shm/{segment.name}"
        link = iovs / f"{number}{block}"
        link.symlink_to(target)
        segment.unlink()  # as programs do at once
        assert os.readlink(link) == target and os.listdir(iovs) == [link.name]
        found = link.lstat()
        assert stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o400
        assert (found.st_uid, found.st_size) == (os.getuid(), len(target))
        assert open_segments(server) == 1
        assert refusal(link.symlink_to, target) == errno.EEXIST
        link.unlink()
        assert not is_there(link) and refusal(link.unlink) == errno.ENOENT
        eventually(lambda: open_segments(server) == 0, "it stays open")

    def test_what_is_no_segment_of_the_user_is_refused(self, iovs, tmp_path):
        place = Path("/dev/shm")
        link, name = iovs / f"{NUMBER}1", f"emberfs-test-{os.getpid()}"
        own, others = place / f"{name}-own", place / f"{name}-others"
        empty, pipe, loose = (place / f"{name}-{what}" for what in ("empty", "pipe", "link"))
        (tmp_path / "file").write_bytes(b"data")
        try:
            own.write_bytes(b"data")
            others.write_bytes(b"data")
            os.chown(others, OTHER_UID, OTHER_UID)
            empty.write_bytes(b"")
            os.mkfifo(pipe)
            loose.symlink_to(own)
            for name, error in REFUSED_NAMES.items():
                assert refusal((iovs / name).symlink_to, own) == error, name
            for target, error in {
                others: errno.EACCES,
                empty: errno.EINVAL,
                pipe: errno.EINVAL,
                loose: errno.EINVAL,
                place / "absent": errno.ENOENT,
                tmp_path / "file": errno.EINVAL,
                place: errno.EINVAL,
                f"{place}/../shm/{own.name}": errno.EINVAL,
                f"{place}/.": errno.EINVAL,
                f"{place}/..": errno.EINVAL,
                own.name: errno.EINVAL,
                f"/dev/shm//{own.name}": errno.EINVAL,
            }.items():
                assert refusal(link.symlink_to, target) == error, target
            link.symlink_to(own)
            # A UUID names one segment, however it is written.
            other = iovs / f"{UUID(link.name).hex}.b4096"
            assert refusal(other.symlink_to, own) == errno.EEXIST
            assert refusal(link.rename, iovs / f"{NUMBER}2") == errno.EPERM
            assert refusal(os.link, link, iovs / f"{NUMBER}3") in (errno.EPERM, errno.EXDEV)
            link.unlink()
        finally:
            for path in (own, others, empty, pipe, loose):
                path.unlink(missing_ok=True)

    def test_it_is_there_for_its_user_alone(self, iovs, segment):
        link = iovs / f"{NUMBER}1"
        link.symlink_to(f"/dev/shm/{segment.name}")
        directory = os.open(iovs, os.O_RDONLY | os.O_DIRECTORY)
        done = as_other(
            f"""
for act in (os.lstat, os.readlink, os.unlink):
    try:
        act({link.name!r}, dir_fd=iovs)
    except FileNotFoundError:
        print("absent")
fd = os.open("/dev/shm/emberfs-test-of-other", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 4096)
os.symlink("/dev/shm/emberfs-test-of-other", {link.name!r}, dir_fd=iovs)
print(os.readlink({link.name!r}, dir_fd=iovs), os.lstat({link.name!r}, dir_fd=iovs).st_uid)
os.unlink("/dev/shm/emberfs-test-of-other")
""",
            directory,
        )
        assert done.stdout.splitlines() == [
            *["absent"] * 3,
            f"/dev/shm/emberfs-test-of-other {OTHER_UID}",
        ], done.stderr
        assert os.readlink(link) == f"/dev/shm/{segment.name}"
        os.close(directory)
        link.unlink()

    @pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
    def test_it_goes_with_the_process_that_made_it(self, server, iovs, segment, end):
        """By whichever thread; also where a child lives on."""
        target = f"/dev/shm/{segment.name}"
        links = [str(iovs / f"{NUMBER}{i}") for i in range(3)]
        script = f"""
import os, sys, threading
for link in {links!r}:
    thread = threading.Thread(target=os.symlink, args=({target!r}, link))
    thread.start()
    thread.join()
if not os.fork():
    os.close(1)
    sys.stdin.read()
    os._exit(0)
print(len(os.listdir({str(iovs)!r})), flush=True)
{end}
"""
        with subprocess.Popen(
            [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.read() == b"3\n"
            eventually(lambda: os.listdir(iovs) == [], "what it registered stays")
            process.stdin.close()
        eventually(lambda: open_segments(server) == 0, "it stays open")

    @pytest.mark.parametrize("server", ["direct"], indirect=True)
    def test_a_ring_moves_what_is_registered_as_3fs_own_module_has_it(self, mnt, iovs, segment):
        """A link, the C++ module's constructors, slices of what they return;
        the segment and then the link go early.
        """
        number, data = str(uuid.uuid4()), os.urandom(32 << 10)
        (mnt / "file").write_bytes(data)
        link = iovs / f"{number}.b16384"
        link.symlink_to(os.path.normpath(f"/dev/shm/{segment.name}"))
        iov = iovec(segment.buf, number, str(mnt), 16384, -1)
        segment.unlink()
        link.unlink()
        fd = os.open(mnt / "file", os.O_RDWR)
        register_fd(fd)
        ring = ioring(str(mnt), 8, True, 0, None, None, -1, 0)
        for start in (0, 16384):
            ring.prepare(iov[start : start + 16384], True, fd, start)
        done = ring.submit().wait(min_results=2)
        assert [one.result for one in done] == [16384] * 2 and segment.buf[: 32 << 10] == data
        assert refusal(ring.prepare, iov[8192:24576], True, fd, 0) == errno.EINVAL
        segment.buf[:4] = b"back"
        out = ioring(str(mnt), 8, False)
        assert out.prepare(iov[:4], False, fd, 0).submit().wait(min_results=1)[0].result == 4
        deregister_fd(fd)
        os.close(fd)
        assert (mnt / "file").read_bytes() == b"back" + data[4:]
        assert refusal(iovec, segment.buf, number, str(mnt)) == errno.ENOENT
        (mnt / "file").unlink()

    @pytest.mark.parametrize("server", ["direct"], indirect=True)
    def test_others_do_not_get_it(self, mnt, iovs, segment):
        number = str(uuid.uuid4())
        (iovs / number).symlink_to(f"/dev/shm/{segment.name}")
        assert refusal(iovec, segment.buf, number, str(mnt), 4096) == errno.EINVAL
        assert refusal(iovec, bytes(len(segment.buf) + 1), number, str(mnt)) == errno.EINVAL
        assert len(iovec(segment.buf[:100], number, str(mnt))) == 100
        directory = os.open(iovs, os.O_RDONLY | os.O_DIRECTORY)
        done = as_other(
            f"""
import sys
sys.path[:0] = {sys.path!r}
from emberfs.ring import RingClient
from uuid import UUID
with RingClient(f"/proc/self/fd/{{iovs}}") as client:
    client.segment(UUID({number!r}).bytes)
""",
            directory,
        )
        assert "[Errno 2]" in done.stderr
        os.close(directory)
        (iovs / number).unlink()


async def test_no_user_has_more_than_his_share(nursery):
    opened = []

    def open_segment(_path, _uid, _bytes_max, thread_id):
        opened.append(os.memfd_create("segment"))
        return Opened(opened[-1], 1, thread_id, os.pidfd_open(thread_id))

    section = ClientSection(hf3fs_segments_max=2)
    core = SimpleNamespace(section=section, spawn=nursery.start_soon)
    segments = Segments(core, open_segment)

    async def register(uid):
        name = str(uuid.uuid4()).encode()
        await segments.register(InodeId(len(opened)), name, b"/dev/shm/a", uid, os.getpid())
        return name

    names = [await register(1) for _ in range(2)]
    with pytest.raises(FsError, match="hf3fs_segments_max"):
        await register(1)
    segments.drop(names[0], 1)
    with pytest.raises(FsError):
        segments.drop(names[1], 2)
    await register(1)
    for uid in (2, 2, 3, 3, 4, 4):
        await register(uid)
    with pytest.raises(FsError, match="all have 8"):
        await register(5)
    for uid in range(1, 5):
        for name in segments.names(uid):
            segments.drop(name, uid)
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks  # nobody watches a process that has nothing registered


def test_a_mount_that_is_out_of_descriptors_blames_itself(monkeypatch):
    """And not what the program has named."""

    def refuse(*_args):
        raise OSError(errno.EMFILE, "no descriptors")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert refusal(open_segment, b"/dev/shm/absent", 0, 1, os.getpid()) == errno.EMFILE
    monkeypatch.undo()
    monkeypatch.setattr(os, "lstat", refuse)
    assert refusal(open_segment, b"/dev/shm/absent", 0, 1, os.getpid()) == errno.EMFILE


async def test_so_does_one_that_cannot_look_where_a_path_leads(monkeypatch):
    places = MountedPaths(0, None)

    def refuse(_path):
        raise OSError(errno.EMFILE, "no descriptors")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OSError, match="no descriptors"):
        await places.path_inside(b"/mnt/x", os.getpid())
    monkeypatch.undo()
    with pytest.raises(FsError, match="not on this mount"):
        await places.path_inside(b"/mnt/x", os.getpid())


async def test_of_two_links_of_one_name_one_is_made(nursery):
    """Both are opened before either is registered."""
    count = 0

    def open_segment(_path, _uid, _bytes_max, thread_id):
        nonlocal count
        count += 1
        return Opened(os.memfd_create("segment"), 1, thread_id, os.pidfd_open(thread_id))

    core = SimpleNamespace(section=ClientSection(), spawn=nursery.start_soon)
    segments, ended = Segments(core, open_segment), []

    async def register(inode_id):
        try:
            await segments.register(inode_id, f"{NUMBER}1".encode(), b"/dev/shm/a", 1, os.getpid())
            ended.append(Status.OK)
        except FsError as error:
            ended.append(error.status)

    async with trio.open_nursery() as both:
        both.start_soon(register, InodeId(1))
        both.start_soon(register, InodeId(2))
    assert (sorted(ended), count) == ([Status.OK, Status.EXISTS], 2)
    segments.drop(f"{NUMBER}1".encode(), 1)


async def test_a_process_ends_when_the_machine_has_no_more_threads(nursery, monkeypatch):
    """Its segments are closed all the same, and nobody else is harmed."""
    fd = os.memfd_create("segment")
    program = await trio.lowlevel.open_process(["sleep", "600"])

    def open_segment(*_):
        return Opened(fd, 1, program.pid, os.pidfd_open(program.pid))

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    core = SimpleNamespace(section=ClientSection(), spawn=nursery.start_soon)
    segments = Segments(core, open_segment)
    await segments.register(InodeId(1), f"{NUMBER}1".encode(), b"/dev/shm/a", 1, program.pid)
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refuse)
    program.kill()
    await program.wait()
    with trio.fail_after(60):
        while segments.names(1):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


MOUNTINFO = rb"""20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw
30 20 0:50 / /mnt/a\040b rw - fuse.ember emberfs:x rw
31 20 0:50 /team /work rw - fuse.ember emberfs:x rw
32 30 0:60 / /mnt/a\040b/on/top rw - tmpfs tmpfs rw
33 20 0:50 / /below rw - fuse.ember emberfs:x rw
34 33 0:61 / /below rw - tmpfs tmpfs rw
35 20 0:50 / /later/shadowed rw - fuse.ember emberfs:x rw
36 20 0:62 / /later rw - tmpfs tmpfs rw
37 20 0:50 /gone//deleted /gone rw - fuse.ember emberfs:x rw
"""
OURS = "0:50"


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        (b"/mnt/a b/x/y", b"/x/y"),
        (b"//mnt/a b//x/", b"/x"),
        (b"/work/x", b"/team/x"),
        (b"/mnt/a b/on/x", b"/on/x"),
        (b"/mnt/a b/on/topless", b"/on/topless"),
        (b"/mnt/a b/on/top/x", None),
        (b"/mnt/a b/on/top", None),
        (b"/mnt/a b", None),
        (b"/work/", None),
        (b"/workx/x", None),
        (b"/below/x", None),
        (b"/later/shadowed/x", None),
        (b"/gone/x", None),
        (b"/", None),
        (b"/x", None),
    ],
)
def test_where_a_path_leads_is_told_by_the_mounts_that_are_seen(path, inside):
    if inside is None:
        with pytest.raises(FsError, match=r"not on this mount|is mounted"):
            path_inside(path, seen_mounts(MOUNTINFO), OURS)
    else:
        assert path_inside(path, seen_mounts(MOUNTINFO), OURS) == inside


def test_many_mounts_on_top_of_each_other_are_walked_once():
    """Any user may make a hundred thousand; looked through for each of them they took minutes,
    in which nobody was served.
    """
    count, began_s = 20_000, time.monotonic()
    lines = [b"20 1 8:1 / / rw - ext4 x rw", b"100 20 0:70 / /mnt rw - tmpfs t rw"]
    lines += [b"%d %d 0:70 / /mnt rw - tmpfs t rw" % (n, n - 1) for n in range(101, count)]
    lines.append(b"%d %d 0:50 / /mnt/m rw - fuse.ember e rw" % (count, count - 1))
    assert path_inside(b"/mnt/m/x", seen_mounts(b"\n".join(lines)), OURS) == b"/x"
    assert time.monotonic() - began_s < 4.0


def test_a_program_whose_root_is_no_mount_is_understood():
    """As after chroot(2): what lies above is not to be seen."""
    seen = seen_mounts(b"30 20 0:50 / /data rw - fuse.ember emberfs:x rw\n")
    assert path_inside(b"/data/x", seen, OURS) == b"/x"
    with pytest.raises(FsError):
        path_inside(b"/x", seen, OURS)


def test_paths_that_nothing_is_removed_by():
    for path in (b"", b"a", b"./a", b"/a/../b", b"/./a", b"/a/.", b"/.."):
        with pytest.raises(FsError):
            names_of(path)
    with pytest.raises(FsError):
        names_of(b"/" + b"a/" * 2048)
    assert names_of(b"//a/b.c//...") == [b"a", b"b.c", b"..."]


def vfs_of(cluster):
    runtime = Runtime(cluster.clock, None, run_inline, random.Random(1))
    section = ClientSection(hf3fs_tree=True)
    return Vfs(cluster.meta(), cluster.store(), runtime, section)


@pytest.fixture
def cluster():
    return FakeCluster(FakeClock())


@pytest.fixture
def autojump_clock():
    return MockClock(autojump_threshold=0)


async def make(cluster, name):
    request = meta_pb2.MkdirReq(parent_inode_id=ROOT_INODE_ID, name=name, mode=0o755)
    return (await cluster.meta().call(services.META_MKDIR, request)).inode.inode_id


async def test_what_the_root_really_has_of_that_name_is_hidden(cluster):
    """Also where another mount has made it: the kernel would go by what a listing shows."""
    vfs = vfs_of(cluster)
    other_id, _ = await make(cluster, b"other"), await make(cluster, b"3fs-virt")
    expected = [(b"3fs-virt", vfs.tree.lookup(ROOT_INODE_ID, b"3fs-virt", ROOT).inode_id)]
    expected.append((b"other", other_id))
    handle_id = vfs.directories.opendir(ROOT_INODE_ID, ROOT)
    page = await vfs.directories.readdir(handle_id, 0)
    assert [(found.name, found.inode.inode_id) for found in page] == expected
    page = vfs.directories.readdir_now(handle_id, 0, 100)
    assert [(found.name, found.inode.inode_id) for found in page] == expected


class Places:
    def __init__(self):
        self.asked = []

    async def path_inside(self, path, _thread_id):
        return path

    async def forget_name(self, parent, name):
        self.asked.append((parent, name))
        await trio.sleep_forever()


async def test_a_kernel_that_is_slow_to_forget_is_not_waited_for(
    cluster,
    autojump_clock,  # noqa: ARG001 - found by its name
):
    """Whoever moves something out of that directory into rm-rf keeps the one,
    and waits for the other, which who is answered here holds.
    """
    vfs = vfs_of(cluster)
    await make(cluster, b"tree")
    places = Places()
    vfs.tree.removal.attach(places)
    where = vfs.tree.lookup(
        InodeId(vfs.tree.lookup(ROOT_INODE_ID, b"3fs-virt", ROOT).inode_id), b"rm-rf", ROOT
    )
    began_s = trio.current_time()
    link = await vfs.tree.symlink(where.inode_id, b"a", b"/tree", ROOT, 1)
    assert (link.type, link.symlink_target) == (InodeType.SYMLINK, b"/tree")
    assert trio.current_time() == began_s + FORGET_S_MAX
    assert places.asked == [(ROOT_INODE_ID, b"tree")] and b"tree" not in cluster.names[1]


async def test_a_change_whose_outcome_is_unknown_is_told_so(cluster):
    vfs = vfs_of(cluster)
    await make(cluster, b"tree")
    vfs.tree.removal.attach(Places())
    cluster.meta_faults["RemoveTree"] = [FsError(Status.RPC_TIMEOUT, "no answer")]
    with pytest.raises(FsError, match="no answer"):
        await vfs.tree.removal.remove_path(b"/tree", ROOT, 1)
