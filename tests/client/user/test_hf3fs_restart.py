"""Rings of programs written for 3FS outlive mount daemons:
an engine makes them once, and keeps them for weeks.
"""

import errno
import os
from array import array
from multiprocessing.shared_memory import SharedMemory

import pytest
from emberfs.ring import RingClient
from hf3fs_fuse.io import deregister_fd, make_ioring, make_iovec, register_fd

from tests.client.user.serving import NEEDS_MOUNT, Server

pytestmark = NEEDS_MOUNT
PAGE = 16 << 10
ENTRIES = 4


class Store:
    """As LMCache's client: a ring and a segment each way for ever, a descriptor for each call."""

    def __init__(self, mount):
        self.mount = mount
        self.segment = SharedMemory(size=PAGE, create=True)
        self.iov = make_iovec(self.segment, mount)
        self.segment.unlink()
        self.reader = make_ioring(mount, ENTRIES, for_read=True)
        self.writer = make_ioring(mount, ENTRIES, for_read=False)

    def move(self, ring, fd, *, is_read):
        ring.prepare(self.iov[:PAGE], is_read, fd, 0)
        return [one.result for one in ring.submit().wait(min_results=1)]

    def file(self, name, ring, *, is_read):
        fd = os.open(f"{self.mount}/{name}", os.O_RDWR | os.O_CREAT)
        try:
            register_fd(fd)
            try:
                return self.move(ring, fd, is_read=is_read)
            finally:
                deregister_fd(fd)
        finally:
            os.close(fd)

    def put(self, name, page):
        self.segment.buf[:] = page
        return self.file(name, self.writer, is_read=False)

    def get(self, name):
        self.segment.buf[:] = bytes(PAGE)
        return self.file(name, self.reader, is_read=True), bytes(self.segment.buf)

    def close(self):
        for ring in (self.reader, self.writer):
            ring.close()
        del self.iov
        self.segment.close()


def refuse(call, number):
    with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
        call()
    assert failed.value.errno == number, failed.value


def test_rings_and_memory_go_on_once_the_mount_is_served_again(tmp_path):
    mount, page = str(tmp_path / "mnt"), os.urandom(PAGE)
    server = Server(tmp_path / "mnt")
    try:
        store = Store(mount)
        assert store.put("before", page) == [PAGE]
        kept = os.open(f"{mount}/kept", os.O_RDWR | os.O_CREAT)
        register_fd(kept)
        under_way = store.writer
        for _ in range(2):
            under_way.prepare(store.iov[:PAGE], False, kept, 0)
        server.stop()
        refuse(under_way.submit, errno.ENOTCONN)  # said once, of what was on the ring
        refuse(lambda: store.move(store.reader, kept, is_read=True), errno.ENOTCONN)
        refuse(lambda: store.move(store.writer, kept, is_read=False), errno.ENOTCONN)
        server = Server(tmp_path / "mnt")
        assert store.put("after", page) == [PAGE]
        assert store.get("after") == ([PAGE], page)
        assert store.writer.wait(min_results=2) == []  # what was dropped does not come back
        refuse(lambda: store.move(store.reader, kept, is_read=True), errno.ENOTCONN)
        assert store.get("after") == ([PAGE], page)
        refuse(lambda: deregister_fd(kept), errno.ENOTCONN)
        refuse(lambda: os.close(kept), errno.ENOTCONN)
        store.close()
    finally:
        server.close()


def test_a_ring_that_nothing_was_on_goes_on_without_a_word(tmp_path):
    """The descriptor that is registered first finds out that the daemon is another one."""
    mount, page = str(tmp_path / "mnt"), os.urandom(PAGE)
    server = Server(tmp_path / "mnt")
    try:
        store = Store(mount)
        assert store.put("before", page) == [PAGE]
        assert store.get("before") == ([PAGE], page)
        server.stop()
        server = Server(tmp_path / "mnt")
        assert store.put("after", page) == [PAGE]
        assert store.get("after") == ([PAGE], page)
        store.reader.close()
        fd = os.open(f"{mount}/after", os.O_RDWR)
        register_fd(fd)
        refuse(lambda: store.move(store.reader, fd, is_read=True), errno.EBADF)  # closed is closed
        deregister_fd(fd)
        os.close(fd)
        store.close()
    finally:
        server.close()


def test_a_ring_that_was_closed_after_its_loss_stays_closed(tmp_path):
    mount = str(tmp_path / "mnt")
    server = Server(tmp_path / "mnt")
    try:
        store = Store(mount)
        fd = os.open(f"{mount}/f", os.O_RDWR | os.O_CREAT)
        register_fd(fd)
        store.reader.prepare(store.iov[:PAGE], True, fd, 0)
        server.stop()
        refuse(store.reader.submit, errno.ENOTCONN)
        store.reader.close()
        refuse(lambda: deregister_fd(fd), errno.ENOTCONN)
        refuse(lambda: os.close(fd), errno.ENOTCONN)
        server = Server(tmp_path / "mnt")
        fd = os.open(f"{mount}/f", os.O_RDWR | os.O_CREAT)
        register_fd(fd)
        refuse(lambda: store.move(store.reader, fd, is_read=True), errno.EBADF)
        deregister_fd(fd)
        os.close(fd)
        store.close()
    finally:
        server.close()


def test_a_full_ring_of_a_daemon_that_has_gone_says_so(tmp_path):
    server = Server(tmp_path / "mnt")
    try:
        client = RingClient(tmp_path / "mnt")
        ring = client.ring(2)
        ring.put(0, 0, 0, 1, 1, 1, 1, 0)
        ring.put(1, 0, 0, 1, 1, 1, 1, 0)
        refuse(lambda: ring.put(2, 0, 0, 1, 1, 1, 1, 0), errno.EAGAIN)
        server.stop()
        refuse(ring.submit, errno.ENOTCONN)
        refuse(lambda: ring.put(2, 0, 0, 1, 1, 1, 1, 0), errno.ENOTCONN)
        refuse(lambda: ring.put_columns([array("Q", [0])] * 8), errno.ENOTCONN)
        client.close()
    finally:
        server.close()
