"""What both frontends answer where a directory was removed elsewhere;
`test_sent_back` says who is told what.
"""

import errno
import os
import stat
from types import SimpleNamespace

import pyfuse3
import pytest

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode

from .test_direct import cluster, is_watched, kernel, killed  # noqa: F401
from .test_operations import operations  # noqa: F401

CALL = "257 0xffffff9c 0x7f00 0x0 0x0 0x0 0x0 0x7ffe 0x7f01"
REGULAR, SOCKET = stat.S_IFREG | 0o644, stat.S_IFSOCK | 0o644
CHANGES = {
    Opcode.CREATE: p.CREATE_IN.pack(os.O_CREAT | os.O_WRONLY, REGULAR, 0, 0) + b"x\0",
    Opcode.MKDIR: p.MKDIR_IN.pack(0o755, 0) + b"x\0",
    Opcode.MKNOD: p.MKNOD_IN.pack(REGULAR, 0, 0, 0) + b"x\0",
    Opcode.SYMLINK: b"x\0target\0",
    Opcode.UNLINK: b"x\0",
    Opcode.RMDIR: b"x\0",
    Opcode.RENAME2: p.RENAME2_IN.pack(1, 0, 0) + b"x\0y\0",
}


def remove(cluster, inode_id):  # noqa: F811
    """As another mount does."""
    name = next(n for n, i in cluster.names[1].items() if i == inode_id)
    for kept in (cluster.names[1].pop(name), inode_id):
        cluster.names.pop(kept, None)
        cluster.inodes.pop(kept, None)


async def removed(kernel, cluster):  # noqa: F811
    """Return a directory that is gone, though the kernel still knows it."""
    _, reply = await kernel.ask(Opcode.MKDIR, p.MKDIR_IN.pack(0o755, 0) + b"d\0")
    inode_id = p.ENTRY_OUT.unpack_from(reply)[0]
    kernel.vfs._core.leased.adopt(0)  # of which nobody knows more than meta
    remove(cluster, inode_id)
    kernel.server._operations.sent_back.call_of = lambda _: CALL
    return inode_id


async def told(kernel, opcode, body, node_id, count=2):  # noqa: F811
    return [(await kernel.ask(opcode, body, node_id))[0] for _ in range(count)]


async def test_a_look_up_is_sent_back_once_in_each_call(kernel, cluster):  # noqa: F811
    gone = await removed(kernel, cluster)
    numbers = await told(kernel, Opcode.LOOKUP, b"x\0", gone, 4)
    assert numbers == [errno.ESTALE, errno.ENOENT] * 2


@pytest.mark.parametrize("opcode", CHANGES, ids=lambda opcode: opcode.name)
async def test_so_is_a_change(kernel, cluster, opcode):  # noqa: F811
    gone = await removed(kernel, cluster)
    assert await told(kernel, opcode, CHANGES[opcode], gone) == [errno.ESTALE, errno.ENOENT]


async def test_a_thread_of_an_unknown_call_is_not(kernel, cluster):  # noqa: F811
    gone = await removed(kernel, cluster)
    kernel.server._operations.sent_back.call_of = lambda _: ""
    assert await told(kernel, Opcode.LOOKUP, b"x\0", gone) == [errno.ENOENT] * 2


async def test_nor_is_who_binds_a_socket(kernel, cluster):  # noqa: F811
    gone = await removed(kernel, cluster)
    body = p.MKNOD_IN.pack(SOCKET, 0, 0, 0) + b"x\0"
    assert await told(kernel, Opcode.MKNOD, body, gone) == [errno.ENOENT] * 2


async def test_the_new_directory_may_be_removed_in_the_same_call(kernel, cluster):  # noqa: F811
    first, second = await removed(kernel, cluster), await removed(kernel, cluster)
    assert await told(kernel, Opcode.LOOKUP, b"x\0", first, 1) == [errno.ESTALE]
    assert await told(kernel, Opcode.LOOKUP, b"d\0", 1, 1) == [errno.ENOENT]
    assert await told(kernel, Opcode.LOOKUP, b"x\0", second, 1) == [errno.ENOENT]
    # So much for that call.
    assert await told(kernel, Opcode.LOOKUP, b"x\0", second, 1) == [errno.ESTALE]


async def test_what_is_refused_for_a_listed_name_is_walked_to_again(kernel, cluster):  # noqa: F811
    gone = await removed(kernel, cluster)
    kernel.server._operations.sent_back.call_of = lambda _: ""
    assert await told(kernel, Opcode.OPEN, p.OPEN_IN.pack(os.O_RDONLY, 0), gone, 1) == [
        errno.ESTALE
    ]
    kernel.server._operations.sent_back.call_of = lambda _: CALL
    numbers = await told(kernel, Opcode.LOOKUP, b"x\0", gone, 3)
    assert numbers == [errno.ENOENT, errno.ENOENT, errno.ESTALE]


async def test_a_change_in_what_is_not_removed_is_told_as_it_is(kernel, cluster):  # noqa: F811
    assert await told(kernel, Opcode.UNLINK, b"x\0", 1) == [errno.ENOENT] * 2
    assert "GetAttr" not in cluster.calls[1:]


async def test_pyfuse3_tells_the_same(operations, cluster):  # noqa: F811
    ops = operations()
    ctx = SimpleNamespace(pid=1, uid=0, gid=0, umask=0)
    made = await ops.mkdir(1, b"d", 0o755, ctx)
    ops._vfs._core.leased.adopt(0)
    remove(cluster, made.st_ino)
    ops.sent_back.call_of = lambda _: CALL

    async def number(act, *args):
        with pytest.raises(pyfuse3.FUSEError) as refused:
            await act(made.st_ino, *args, ctx)
        return refused.value.errno

    for act, args in (
        (ops.lookup, (b"x",)),
        (ops.create, (b"x", 0o644, os.O_CREAT | os.O_WRONLY)),
        (ops.mkdir, (b"x", 0o755)),
        (ops.mknod, (b"x", REGULAR, 0)),
        (ops.symlink, (b"x", b"target")),
        (ops.unlink, (b"x",)),
        (ops.rmdir, (b"x",)),
        (ops.rename, (b"x", 1, b"y", 0)),
    ):
        ops.sent_back.walks.by_thread.clear()
        assert [await number(act, *args) for _ in range(2)] == [errno.ESTALE, errno.ENOENT], act
    assert await number(ops.mknod, b"x", SOCKET, 0) == errno.ENOENT
