"""Programs written for 3FS: what its connectors do with a ring, done on an EmberFS mount."""

import errno
import os
import random
import shutil
import threading
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory

import pytest
from hf3fs_fuse.fuse import get_mount_point
from hf3fs_fuse.io import (
    IorPriority,
    deregister_fd,
    extract_mount_point,
    force_fsync,
    hardlink,
    ioring,
    make_ioring,
    make_iovec,
    punch_hole,
    read_file,
    register_fd,
)

from tests.client.user.serving import NEEDS_MOUNT

pytestmark = NEEDS_MOUNT
PAGE = 16 * 1024
ENTRIES = 8


@pytest.fixture(scope="module")
def mnt(mount_point):
    return str(mount_point)


class Store:
    """Pages of a file, as a cache of a serving engine keeps them."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self.fd, PAGE * 100)
        register_fd(self.fd)
        mount = extract_mount_point(path)
        self.segments = [SharedMemory(size=PAGE * ENTRIES, create=True) for _ in range(2)]
        self.rings = [
            make_ioring(mount, ENTRIES, for_read=for_read, timeout=1, numa=-1)
            for for_read in (True, False)
        ]
        self.iovs = [make_iovec(segment, mount) for segment in self.segments]
        for segment in self.segments:
            segment.unlink()

    def read(self, offsets, size):
        for i, offset in enumerate(offsets):
            self.rings[0].prepare(self.iovs[0][i * size : (i + 1) * size], True, self.fd, offset)
        done = self.rings[0].submit().wait(
            min_results=len(offsets), timeout=timedelta(seconds=100)
        )  # fmt: skip
        bytes_ = [
            bytes(self.segments[0].buf[i * size : (i + 1) * size]) for i in range(len(offsets))
        ]
        return [item.result for item in done], bytes_

    def write(self, offsets, pages):
        size = len(pages[0])
        for i, (offset, page) in enumerate(zip(offsets, pages, strict=True)):
            self.segments[1].buf[i * size : (i + 1) * size] = page
            self.rings[1].prepare(self.iovs[1][i * size : (i + 1) * size], False, self.fd, offset)
        done = self.rings[1].submit().wait(min_results=len(pages), timeout=timedelta(seconds=100))
        return [item.result for item in done]

    def close(self):
        deregister_fd(self.fd)
        os.close(self.fd)
        del self.rings
        del self.iovs
        for segment in self.segments:
            segment.close()


def test_a_page_store(mnt):
    rng = random.Random(2)
    store = Store(f"{mnt}/pages")
    pages = {i * PAGE: rng.randbytes(PAGE) for i in rng.sample(range(100), 24)}
    places = list(pages)
    for i in range(0, 24, ENTRIES):
        batch = places[i : i + ENTRIES]
        assert store.write(batch, [pages[p] for p in batch]) == [PAGE] * ENTRIES
    os.fsync(store.fd)
    rng.shuffle(places)
    for i in range(0, 24, ENTRIES):
        batch = places[i : i + ENTRIES]
        assert store.read(batch, PAGE) == ([PAGE] * ENTRIES, [pages[p] for p in batch])
    store.close()


def test_stores_in_threads(mnt):
    failures = []

    def work(number):
        try:
            store = Store(f"{mnt}/pages-{number}")
            page = bytes([number]) * PAGE
            for _ in range(10):
                assert store.write([PAGE], [page]) == [PAGE]
                assert store.read([PAGE], PAGE) == ([PAGE], [page])
            store.close()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.fixture
def segment():
    segment = SharedMemory(size=4 * PAGE, create=True)
    yield segment
    segment.close()
    segment.unlink()


def test_what_comes_back_is_what_was_handed_in(mnt, segment):
    with open(f"{mnt}/file", "wb") as file:
        file.write(b"0123456789")
    iov = make_iovec(segment, mnt, 0, -1)
    ring = make_ioring(mnt, 4, True, -4, IorPriority.HIGH, timedelta(milliseconds=20))
    fd = os.open(f"{mnt}/file", os.O_RDONLY)
    register_fd(fd)
    things = [object(), object()]
    ring.prepare(iov[:4], True, fd, 3, userdata=things[0])
    ring.prepare(iov[4:][:100], True, fd, 8, userdata=things[1])
    done = ring.submit().wait(min_results=2)
    assert {(item.result, item.userdata) for item in done} == {(4, things[0]), (2, things[1])}
    first = next(item for item in done if item.userdata is things[0])
    assert bytes(memoryview(first)) == b"3456" == segment.buf[:4]
    assert len(memoryview(iov)) == 4 * PAGE
    iov[10:13] = b"abc"
    assert segment.buf[10:13] == b"abc"
    assert iov[11] == ord("b")
    assert ring.wait(timeout=timedelta(0)) == []
    deregister_fd(fd)
    os.close(fd)


def test_what_is_refused(mnt, segment, tmp_path):
    path = f"{mnt}/refused"
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    elsewhere = os.open(tmp_path, os.O_RDONLY)
    iov = make_iovec(segment, mnt, block_size=PAGE)
    reads, writes = make_ioring(mnt, 1), make_ioring(mnt, 1, for_read=False)

    def refused(number, act, *args):
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            act(*args)
        assert failed.value.errno == number

    refused(errno.EBADF, register_fd, elsewhere)
    refused(errno.EBADF, register_fd, 10_000)  # not open
    assert extract_mount_point(str(tmp_path)) is None
    refused(errno.EOPNOTSUPP, get_mount_point, tmp_path)
    refused(errno.EBADF, reads.prepare, iov[:10], True, fd, 0)
    register_fd(fd)
    refused(errno.EINVAL, register_fd, fd)
    refused(errno.EINVAL, reads.prepare, iov[:10], False, fd, 0)
    refused(errno.EINVAL, reads.prepare, iov[PAGE - 1 : PAGE + 1], True, fd, 0)
    refused(errno.EACCES, writes.prepare, iov[:10], False, fd, 0)
    reads.prepare(iov[:10], True, fd, 0)
    refused(errno.EAGAIN, reads.prepare, iov[:10], True, fd, 0)
    with pytest.raises(ValueError, match="step"):
        iov[::2]
    deregister_fd(fd)
    deregister_fd(fd)
    os.close(fd)
    os.close(elsewhere)


def test_what_is_refused_is_told_by_name(mnt, segment):
    path = f"{mnt}/named"
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    iov = make_iovec(segment, mnt, block_size=PAGE)
    reads, writes = make_ioring(mnt, 1), make_ioring(mnt, 1, for_read=False)

    def refused(said, named, act, *args):
        with pytest.raises(OSError, match=said) as failed:
            act(*args)
        assert failed.value.filename == named

    refused(rf"descriptor {fd} is not registered", path, reads.prepare, iov[:10], True, fd, 0)
    register_fd(fd)
    refused("bytearray in place of", mnt, reads.prepare, bytearray(9), True, fd, 0)
    refused("offset -1", mnt, reads.prepare, iov[:10], True, fd, -1)
    refused("read=True on .* for_read=False", mnt, writes.prepare, iov[:10], True, fd, 0)
    refused("10 to 20010 .* block of 16384", mnt, reads.prepare, iov[10:20010], True, fd, 0)
    refused(rf"descriptor {fd} .* reading", path, writes.prepare, iov[:10], False, fd, 0)
    reads.prepare(iov[:10], True, fd, 0)
    refused("no room: .* 0 of 1 are under way", mnt, reads.prepare, iov[:10], True, fd, 0)
    refused("a hole from 5 to 5", path, punch_hole, fd, [5], [5])
    with pytest.raises(TypeError, match=r"timeout=5 of wait is no datetime\.timedelta"):
        reads.wait(timeout=5)
    assert repr(iov[10:20010]) == "<iovec of 20000 bytes at 10>"
    (done,) = reads.submit().wait(min_results=1)
    assert repr(done) == "<iovec of 10 bytes at 0, result 0>"
    assert repr(writes).startswith("<ioring for writes over <Ior of 1 entries")
    deregister_fd(fd)
    os.close(fd)


def test_a_child_goes_on_with_what_its_parent_has_made(mnt):
    store = Store(f"{mnt}/parents")
    page = bytes([7]) * PAGE
    assert store.write([0], [page]) == [PAGE]
    store.rings[0].prepare(store.iovs[0][:PAGE], True, store.fd, 0)  # the parent's to hand in
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert store.rings[0].submit().wait(min_results=1) == []
            assert store.read([0], PAGE) == ([PAGE], [page])
            assert store.write([PAGE], [page]) == [PAGE]
            store.rings[0].close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [item.result for item in store.rings[0].submit().wait(min_results=1)] == [PAGE]
    assert store.read([PAGE], PAGE) == ([PAGE], [page])
    store.close()


def test_holes_and_the_rest_of_the_module(mnt, segment):
    path = f"{mnt}/rest"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    content = random.Random(9).randbytes(3 << 20)
    os.pwrite(fd, content, 0)
    assert force_fsync(fd) == 0
    punch_hole(fd, [1 << 20], [2 << 20])
    hardlink(path, f"{path}-2")
    expected = content[: 1 << 20] + bytes(1 << 20) + content[2 << 20 :]
    assert read_file(fn=f"{path}-2") == expected
    blocks = []
    read_file(path, mnt, block_size=1 << 20, off=5, cb=lambda d, o: blocks.append((o, bytes(d))))
    assert [offset for offset, _ in blocks] == [5, 5 + (1 << 20), 5 + (2 << 20)]
    assert b"".join(data for _, data in blocks) == expected[5:]
    offsets = []
    wishes = iter([2 << 20, 1 << 20, True])
    read_file(path, mnt, 4096, 0, None, lambda _, o: offsets.append(o) or next(wishes))
    assert offsets == [0, 2 << 20, 1 << 20]
    punch_hole(path, [0], [4096])
    expected = bytes(4096) + expected[4096:]
    assert read_file(path, block_size=4096) == expected
    assert get_mount_point(path) == extract_mount_point(path) == mnt
    assert ioring.size_for_entries(10) > 0
    register_fd(fd)
    iov, ring = make_iovec(segment, mnt), make_ioring(mnt, 2, True, 0, None, None, -1, 2)
    ring.prepare(iov[:10], True, fd, 1 << 20).prepare(iov[:10], True, fd, 5000)
    assert sorted(item.result for item in ring.submit().wait(min_results=2)) == [-errno.ENODATA, 10]
    deregister_fd(fd)
    os.close(fd)


def test_a_mount_offers_no_tree_unless_told_to(mnt):
    """A folder of that name leads some programs to 3FS's own library;
    and a link must delete nothing.
    """
    assert not os.path.lexists(f"{mnt}/3fs-virt")
    os.makedirs(f"{mnt}/3fs-virt/rm-rf")
    os.symlink(f"{mnt}/3fs-virt", f"{mnt}/3fs-virt/rm-rf/link")
    assert os.listdir(f"{mnt}/3fs-virt/rm-rf") == ["link"]
    shutil.rmtree(f"{mnt}/3fs-virt")
