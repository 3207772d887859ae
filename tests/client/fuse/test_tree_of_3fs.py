"""The directory `3fs-virt` of a mount that offers it: what programs written for 3FS do there, and what is refused."""

import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import uuid

import pytest
import trio
from trio.testing import MockClock

from fs.client.fuse.mounted_paths import path_inside, seen_mounts
from fs.client.vfs.hf3fs_removal import FORGET_S_MAX, names_of
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
        assert os.listdir(top) == ["rm-rf"] and os.listdir(rm_rf) == []
        assert [entry.is_dir() for entry in os.scandir(top)] == [True]
        assert not os.listxattr(top)
        assert os.statvfs(rm_rf).f_blocks == os.statvfs(mnt).f_blocks
        # Whoever walks the mount does not come upon it.
        assert os.listdir(mnt) == []

    def test_a_link_removes_at_once_what_it_names_as_smallpond_makes_it(self, server, mnt, rm_rf):
        """By path of the mount, name and id; it falls back to removing by itself where that fails."""
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
        os.chdir(mnt)
        try:
            subprocess.run(["ln", "-s", str(mnt / "tree"), "3fs-virt/rm-rf/"], check=True)
        finally:
            os.chdir("/")
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
    expected = [(b"3fs-virt", vfs.tree.lookup(ROOT_INODE_ID, b"3fs-virt").inode_id)]
    expected.append((b"other", other_id))
    handle_id = vfs.directories.opendir(ROOT_INODE_ID, Caller(0, 0))
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
    """Whoever moves something out of that directory into rm-rf keeps the one, and waits for the other, which who is answered here holds."""
    vfs = vfs_of(cluster)
    await make(cluster, b"tree")
    places = Places()
    vfs.tree.removal.attach(places)
    where = vfs.tree.lookup(InodeId(vfs.tree.lookup(ROOT_INODE_ID, b"3fs-virt").inode_id), b"rm-rf")
    began_s = trio.current_time()
    link = await vfs.tree.symlink(where.inode_id, b"a", b"/tree", Caller(0, 0), 1)
    assert (link.type, link.symlink_target) == (InodeType.SYMLINK, b"/tree")
    assert trio.current_time() == began_s + FORGET_S_MAX
    assert places.asked == [(ROOT_INODE_ID, b"tree")] and b"tree" not in cluster.names[1]


async def test_a_change_whose_outcome_is_unknown_is_told_so(cluster):
    vfs = vfs_of(cluster)
    await make(cluster, b"tree")
    vfs.tree.removal.attach(Places())
    cluster.meta_faults["RemoveTree"] = [FsError(Status.RPC_TIMEOUT, "no answer")]
    with pytest.raises(FsError, match="no answer"):
        await vfs.tree.removal.remove_path(b"/tree", Caller(0, 0), 1)
