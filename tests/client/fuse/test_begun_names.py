"""Changes of names and attributes that no task waits for:
they happen once, whatever becomes of the first try.
"""

import errno
import os
import stat

import pytest
import trio
import trio.testing

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode, SetattrField
from fs.client.vfs.namespace import Namespace
from fs.schema.services import (
    META_CREATE,
    META_MKDIR,
    META_OPEN,
    META_RENAME,
    META_RMDIR,
    META_SET_ATTR,
    META_SET_XATTR,
    META_SYMLINK,
    META_UNLINK,
)
from fs.schema.status import FsError, Status
from tests.client.fuse.test_begun_changes import LOST, Cluster, methods, written
from tests.client.fuse.test_direct import (  # noqa: F401 - fixtures
    is_watched,
    kernel,
    killed,
)

XATTR = b"user.a"


@pytest.fixture
def cluster():
    return Cluster()


def setattr_body(valid, mode=0, atime=0, mtime=0):
    return p.SETATTR_IN.pack(valid, 0, 0, 0, 0, atime, mtime, 0, 0, 0, 0, mode, 0, 0, 0, 0)


MKDIR = p.MKDIR_IN.pack(0o755, 0) + b"new\0"
RENAME2 = p.RENAME2_IN.pack(1, 0, 0) + b"f\0new\0"
RENAME = p.RENAME_IN.pack(1) + b"f\0new\0"
CHMOD = setattr_body(SetattrField.MODE, mode=stat.S_IFREG | 0o600)


async def made_before(kernel):  # noqa: F811
    """Make a file f and a directory d; return the inode id of the file."""
    inode_id, fh = await kernel.make(b"f")
    assert (await kernel.ask(Opcode.RELEASE, p.RELEASE_IN.pack(fh, 0, 0, 0), inode_id))[0] == 0
    assert (await kernel.ask(Opcode.MKDIR, p.MKDIR_IN.pack(0o755, 0) + b"d\0"))[0] == 0
    return inode_id


CASES = {
    "mkdir": (Opcode.MKDIR, MKDIR, META_MKDIR),
    "symlink": (Opcode.SYMLINK, b"new\0target\0", META_SYMLINK),
    "unlink": (Opcode.UNLINK, b"f\0", META_UNLINK),
    "rmdir": (Opcode.RMDIR, b"d\0", META_RMDIR),
    "rename": (Opcode.RENAME, RENAME, META_RENAME),
    "rename2": (Opcode.RENAME2, RENAME2, META_RENAME),
    "chmod": (Opcode.SETATTR, CHMOD, META_SET_ATTR),
    "setxattr": (Opcode.SETXATTR, p.SETXATTR_IN.pack(1, 0, 0, 0) + XATTR + b"\0v", META_SET_XATTR),
}


def is_made(cluster, case, inode_id):
    """Return whether a change of CASES has been made, by what there is now."""
    names = cluster.names[1]
    return {
        "mkdir": b"new" in names,
        "symlink": b"new" in names,
        "unlink": b"f" not in names,
        "rmdir": b"d" not in names,
        "rename": names.get(b"new") == inode_id and b"f" not in names,
        "rename2": names.get(b"new") == inode_id and b"f" not in names,
        "chmod": cluster.inodes[inode_id].mode == 0o600 if inode_id in cluster.inodes else False,
        "setxattr": (inode_id, XATTR) in cluster.xattrs,
    }[case]


def node_of(case, inode_id):
    return inode_id if case in {"chmod", "setxattr"} else 1


@pytest.mark.parametrize("case", CASES)
async def test_whoever_receives_the_reply_answers(kernel, cluster, case, monkeypatch):  # noqa: F811
    inode_id = await made_before(kernel)
    opcode, body, method = CASES[case]

    async def no_task(*_):
        raise AssertionError("a task does it")

    monkeypatch.setattr(Namespace, "make", no_task)
    monkeypatch.setattr(Namespace, "setattr", no_task)
    monkeypatch.setattr(Namespace, "setxattr", no_task)
    cluster.only.gate = trio.Event()
    asked = await kernel.send(opcode, body, node_of(case, inode_id))
    assert (await kernel.ask(Opcode.STATFS))[0] == 0  # meanwhile
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert cluster.only.begun[-1][0] is method
    assert not is_made(cluster, case, inode_id)
    cluster.only.gate.set()
    answered, error, _ = await kernel.receive()
    assert (answered, error) == (asked, 0)
    assert is_made(cluster, case, inode_id)
    assert not cluster.only.again


@pytest.mark.parametrize("case", CASES)
async def test_one_whose_reply_is_lost_is_asked_again_not_made_anew(kernel, cluster, case):  # noqa: F811
    inode_id = await made_before(kernel)
    opcode, body, method = CASES[case]
    cluster.only.outcomes = [LOST]
    error, _ = await kernel.ask(opcode, body, node_of(case, inode_id))
    assert error == 0
    assert is_made(cluster, case, inode_id)
    assert cluster.only.again == [(method, LOST.status)]
    before = {"mkdir": 2}.get(case, 1)  # the directory that was there already
    assert methods(cluster.only.begun).count(method) == before


@pytest.mark.parametrize("case", CASES)
async def test_one_that_is_refused_is_not_tried_again(kernel, cluster, case):  # noqa: F811
    inode_id = await made_before(kernel)
    opcode, body, method = CASES[case]
    cluster.meta_faults[method.name] = [FsError(Status.ACCESS_DENIED, "no")]
    assert await kernel.ask(opcode, body, node_of(case, inode_id)) == (errno.EACCES, b"")
    assert not is_made(cluster, case, inode_id)
    assert not cluster.meta_faults[method.name]
    assert not cluster.only.again


async def test_a_name_whose_change_was_refused_is_known_again_after_the_next_one(kernel, cluster):  # noqa: F811
    """A refusal counted as a reply that is yet to come:
    neither the name nor the directory was known any more, ever.
    """
    mkdir = p.MKDIR_IN.pack(0o755, 0)
    _, reply = await kernel.ask(Opcode.MKDIR, mkdir + b"here\0")
    directory_id = p.ENTRY_OUT.unpack_from(reply)[0]
    for wanted in (0, errno.EEXIST, errno.EEXIST):
        assert (await kernel.ask(Opcode.MKDIR, mkdir + b"x\0", directory_id))[0] == wanted
    rename = p.RENAME_IN.pack(directory_id) + b"missing\0y\0"
    assert (await kernel.ask(Opcode.RENAME, rename, directory_id))[0] == errno.ENOENT
    known = kernel.vfs._core.leased._directories[directory_id]
    assert (known.open_count, known.under_way) == (0, {})
    assert (await kernel.ask(Opcode.RMDIR, b"x\0", directory_id))[0] == 0
    before = cluster.calls.count("Lookup")
    assert (await kernel.ask(Opcode.LOOKUP, b"x\0", directory_id))[0] == errno.ENOENT
    assert cluster.calls.count("Lookup") == before
    assert known.left_ctime_ns


@pytest.mark.parametrize("case", CASES)
async def test_without_a_connection_a_task_does_it(kernel, cluster, case):  # noqa: F811
    inode_id = await made_before(kernel)
    opcode, body, _ = CASES[case]
    cluster.only.is_connected = False
    assert (await kernel.ask(opcode, body, node_of(case, inode_id)))[0] == 0
    assert is_made(cluster, case, inode_id)


@pytest.mark.parametrize("case", CASES)
async def test_the_end_of_the_mount_waits_for_what_was_begun(kernel, cluster, case):  # noqa: F811
    inode_id = await made_before(kernel)
    opcode, body, _ = CASES[case]
    cluster.only.gate = trio.Event()
    await kernel.send(opcode, body, node_of(case, inode_id))
    await trio.testing.wait_all_tasks_blocked(0.01)
    kernel.unmount()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not kernel.served.is_set()
    cluster.only.gate.set()
    with trio.fail_after(60):
        await kernel.served.wait()
    assert is_made(cluster, case, inode_id)


@pytest.mark.parametrize("opcode", [Opcode.UNLINK, Opcode.RENAME])
async def test_what_lost_its_last_name_by_anothers_change_is_kept_for_who_has_it_open(
    kernel,  # noqa: F811
    cluster,
    opcode,
):
    """The name was another file's when this mount looked last."""
    inode_id, _ = await written(kernel, b"f")
    await kernel.make(b"g")
    names = cluster.names[1]
    names[b"other"] = names.pop(b"f")  # by another mount
    body = b"other\0" if opcode is Opcode.UNLINK else p.RENAME_IN.pack(1) + b"g\0other\0"
    before = len(cluster.calls)
    assert await kernel.ask(opcode, body) == (0, b"")
    assert META_OPEN.name in cluster.calls[before:]
    state = kernel.vfs._core.states[inode_id]
    assert state.keep_session in cluster.sessions[inode_id]


async def test_times_that_go_with_a_report_need_neither_meta_nor_a_task(kernel, cluster):  # noqa: F811
    inode_id, _ = await written(kernel, b"f")
    body = setattr_body(SetattrField.ATIME | SetattrField.MTIME, atime=5, mtime=6)
    before = len(cluster.calls)
    error, reply = await kernel.ask(Opcode.SETATTR, body, inode_id)
    assert error == 0
    assert not {"SetAttr", "Sync"} & set(cluster.calls[before:])
    assert methods(cluster.only.begun) == [META_CREATE]
    shown = p.ATTR.unpack_from(reply, p.ATTR_OUT.size)
    assert shown[3:5] == (5, 6)
    assert kernel.vfs._core.states[inode_id].set_times is not None


async def test_who_may_only_set_times_to_now_does_so(kernel, cluster):  # noqa: F811
    inode_id = await made_before(kernel)
    cluster.meta_faults["SetAttr"] = [FsError(Status.NOT_PERMITTED, "not the owner")] * 2
    body = setattr_body(SetattrField.ATIME | SetattrField.MTIME, atime=5, mtime=6)
    assert (await kernel.ask(Opcode.SETATTR, body, inode_id))[0] == 0
    assert cluster.inodes[inode_id].mtime_ns != 6_000_000_000
    assert not cluster.meta_faults["SetAttr"]
    assert cluster.calls.count("SetAttr") == 3


async def test_an_xattr_with_a_condition_takes_a_task(kernel, cluster):  # noqa: F811
    inode_id = await made_before(kernel)
    create_only = p.SETXATTR_IN.pack(1, os.XATTR_CREATE, 0, 0) + XATTR + b"\0v"
    assert (await kernel.ask(Opcode.SETXATTR, create_only, inode_id))[0] == 0
    assert (await kernel.ask(Opcode.SETXATTR, create_only, inode_id))[0] == errno.EEXIST
    assert META_SET_XATTR not in methods(cluster.only.begun)
