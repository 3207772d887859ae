"""A mount of a directory: the kernel calls it 1, the file system by its own number."""

import errno
import socket

import pytest

from fs.client.fuse.direct import protocol as p
from fs.client.fuse.direct.protocol import Opcode
from fs.client.fuse.direct.subtree import SubtreeDevice
from fs.schema.ids import InodeId

ROOT, OTHER = 0x1234, 0x77


@pytest.fixture
def kernel():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    device = SubtreeDevice(theirs.detach(), 1 << 17, root=InodeId(ROOT))
    with ours:
        yield ours, device
    device.close()


def asked(kernel, opcode, node_id, body):
    ours, device = kernel
    size = p.IN_HEADER.size + len(body)
    ours.send(p.IN_HEADER.pack(size, opcode, 5, node_id, 0, 0, 1, 0, 0) + body)
    rows, request = device.receive_now(1)
    assert not rows
    return request


@pytest.mark.parametrize(("told", "meant"), [(1, ROOT), (OTHER, OTHER)])
def test_requests_name_the_directory_by_its_own_number(kernel, told, meant):
    request = asked(kernel, Opcode.LOOKUP, told, b"name\0")
    assert (request.node_id, request.body) == (meant, b"name\0")


@pytest.mark.parametrize("opcode", [Opcode.RENAME, Opcode.RENAME2])
@pytest.mark.parametrize(("told", "meant"), [(1, ROOT), (OTHER, OTHER)])
def test_so_do_both_ends_of_a_rename(kernel, opcode, told, meant):
    make = p.RENAME_IN.pack if opcode is Opcode.RENAME else lambda i: p.RENAME2_IN.pack(i, 1, 0)
    request = asked(kernel, opcode, 1, make(told) + b"a\0b\0")
    assert (request.node_id, request.body) == (ROOT, make(meant) + b"a\0b\0")


def test_what_only_looks_like_its_number_stays(kernel):
    body = p.LINK_IN.pack(1) + b"a\0"
    assert asked(kernel, Opcode.LINK, OTHER, body).body == body


@pytest.mark.parametrize(
    ("name", "meant", "told"), [(b"..", ROOT, 1), (b"..", OTHER, OTHER), (b"x", ROOT, ROOT)]
)
def test_what_lies_above_is_told_as_the_kernel_knows_it(kernel, name, meant, told):
    ours, device = kernel
    request = asked(kernel, Opcode.LOOKUP, OTHER, name + b"\0")
    device.reply(request.unique, (p.RENAME_IN.pack(meant), b"rest"))
    assert ours.recv(1000)[p.OUT_HEADER.size :] == p.RENAME_IN.pack(told) + b"rest"
    assert not device._asked_above


def test_the_root_of_the_file_system_is_never_told(kernel):
    """Above what lies outside, as where root opens any inode by a handle: the kernel would take it
    for the directory that is mounted, which has the same number there.
    """
    ours, device = kernel
    request = asked(kernel, Opcode.LOOKUP, OTHER, b"..\0")
    device.reply(request.unique, (p.RENAME_IN.pack(1), b"rest"))
    assert ours.recv(1000) == p.OUT_HEADER.pack(p.OUT_HEADER.size, -errno.ESTALE, request.unique)
    assert not device._asked_above


def test_a_lookup_that_fails_is_forgotten(kernel):
    request = asked(kernel, Opcode.LOOKUP, OTHER, b"..\0")
    kernel[1].reply_error(request.unique, 2)
    assert not kernel[1]._asked_above


@pytest.mark.parametrize(("meant", "told"), [(ROOT, 1), (OTHER, OTHER)])
def test_notices_name_it_as_the_kernel_does(kernel, meant, told):
    ours, device = kernel
    device.notify(p.NOTIFY_INVAL_ENTRY, p.NOTIFY_INVAL_ENTRY_OUT.pack(meant, 1, 0) + b"x\0")
    message = ours.recv(1000)
    assert p.NOTIFY_INVAL_ENTRY_OUT.unpack_from(message, p.OUT_HEADER.size) == (told, 1, 0)
