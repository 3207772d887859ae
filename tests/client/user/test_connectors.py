"""The calls that connectors of serving engines make of `hf3fs_fuse`,
one after the other as they make them.

What each of them imports, passes, and takes from what comes back was read from their published
code: SGLang's HiCache client, vLLM's connector, LMCache's connector, a safetensors writer that
polls, fastsafetensors' reader.  Their own tensors and graphics memory are left out.
"""

import ctypes
import datetime as dt
import errno
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory

import pytest
from hf3fs_fuse.io import (
    deregister_fd,
    extract_mount_point,
    ioring,
    iovec,
    make_ioring,
    make_iovec,
    register_fd,
)

from tests.client.user.serving import NEEDS_MOUNT

pytestmark = NEEDS_MOUNT
PAGE = 16 << 10
ENTRIES = 8


@pytest.fixture(scope="module")
def mnt(mount_point):
    return str(mount_point)


class PageStore:
    """SGLang's and vLLM's client: one file of pages,
    a ring and a segment each for reads and for writes.
    """

    def __init__(self, path, timeout_s):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.file, PAGE * 64)
        register_fd(self.file)
        self.mount = extract_mount_point(path)
        self.shm_r = SharedMemory(size=PAGE * ENTRIES, create=True)
        self.shm_w = SharedMemory(size=PAGE * ENTRIES, create=True)
        self.ior_r = make_ioring(self.mount, ENTRIES, for_read=True, timeout=1, numa=-1)
        self.ior_w = make_ioring(self.mount, ENTRIES, for_read=False, timeout=1, numa=-1)
        self.iov_r = make_iovec(self.shm_r, self.mount)
        self.iov_w = make_iovec(self.shm_w, self.mount)
        self.shm_r.unlink()
        self.shm_w.unlink()
        self.wait = {"timeout": dt.timedelta(seconds=timeout_s)} if timeout_s else {}

    def move(self, ring, iov, offsets, is_read):
        current = 0
        for offset in offsets:
            ring.prepare(iov[current : current + PAGE], is_read, self.file, offset)
            current += PAGE
        done = ring.submit().wait(min_results=len(offsets), **self.wait)
        return [one.result for one in done]

    def write(self, offsets, pages):
        for number, page in enumerate(pages):
            self.shm_w.buf[number * PAGE : (number + 1) * PAGE] = page
        return self.move(self.ior_w, self.iov_w, offsets, is_read=False)

    def read(self, offsets):
        results = self.move(self.ior_r, self.iov_r, offsets, is_read=True)
        return results, bytes(self.shm_r.buf[: len(offsets) * PAGE])

    def close_as_sglang(self):
        deregister_fd(self.file)
        os.close(self.file)
        del self.ior_r
        del self.ior_w
        del self.iov_r
        del self.iov_w
        self.shm_r.close()
        self.shm_w.close()

    def close_as_vllm(self):
        for name in ("iov_r", "iov_w", "ior_r", "ior_w"):
            setattr(self, name, None)
        self.shm_r.close()
        self.shm_w.close()
        deregister_fd(self.file)
        os.close(self.file)


def test_importing_the_names_imports_shared_memory():
    """SGLang's client says `multiprocessing.shared_memory`, and imports `multiprocessing` alone:
    3FS's module does the rest.
    """
    program = "import multiprocessing, hf3fs_fuse.io; multiprocessing.shared_memory.SharedMemory"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("first", ["hf3fs_fuse.io", "hf3fs_py_usrbio"])
def test_the_module_of_cpp_has_its_name_in_the_other_one(first):
    """A writer of safetensors imports it from there, and does without 3FS if it is missing."""
    program = f"import {first}; from hf3fs_fuse.io import h3fio; h3fio.ioring, h3fio.iovec"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_programs_own_copy_of_the_names_stands_on_our_module(tmp_path):
    package = tmp_path / "hf3fs_fuse"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "io.py").write_text("from hf3fs_py_usrbio import register_fd")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import hf3fs_fuse.io"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_store_of_pages(mnt, engine):
    rng = random.Random(engine)
    store = PageStore(f"{mnt}/{engine}", 100 if engine == "sglang" else 0)
    assert store.mount == mnt
    offsets = [place * PAGE for place in rng.sample(range(64), ENTRIES)]
    pages = [rng.randbytes(PAGE) for _ in offsets]
    assert store.write(offsets, pages) == [PAGE] * ENTRIES
    os.fsync(store.file)
    assert store.read(offsets) == ([PAGE] * ENTRIES, b"".join(pages))
    assert store.write([0], [bytes(PAGE)]) == [PAGE]
    assert store.read([0]) == ([PAGE], bytes(PAGE))
    getattr(store, f"close_as_{engine}")()
    with open(f"{mnt}/{engine}", "rb") as file:
        assert all(
            os.pread(file.fileno(), PAGE, offset) == page
            for offset, page in zip(offsets, pages, strict=True)
            if offset
        )


class ThreadStore:
    """LMCache's client: one for each thread, files of one block each,
    read and written by the piece that fits.
    """

    SIZE = 3 * PAGE

    def __init__(self, mount):
        name = f"3FSClient_{os.getpid()}_{threading.get_ident()}"
        self.shm_read = SharedMemory(name=f"{name}_rd", size=self.SIZE, create=True)
        self.shm_write = SharedMemory(name=f"{name}_wt", size=self.SIZE, create=True)
        self.iov_read = make_iovec(shm=self.shm_read, hf3fs_mount_point=mount, numa=-1)
        self.iov_write = make_iovec(shm=self.shm_write, hf3fs_mount_point=mount, numa=-1)
        self.ior_read = make_ioring(mount, 256, for_read=True, timeout=200, numa=-1)
        self.ior_write = make_ioring(mount, 256, for_read=False, timeout=200, numa=-1)

    def put(self, path, content):
        fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        register_fd(fd)
        for start in range(0, len(content), self.SIZE):
            piece = content[start : start + self.SIZE]
            self.shm_write.buf[: len(piece)] = piece
            self.ior_write.prepare(self.iov_write[: len(piece)], False, fd, start)
            assert self.ior_write.submit().wait(min_results=1)[0].result == len(piece)
        os.rename(f"{path}.tmp", path)
        deregister_fd(fd)
        os.close(fd)

    def get(self, path, length):
        fd = os.open(path, os.O_RDONLY)
        register_fd(fd)
        buffer = memoryview(bytearray(length))
        done = 0
        while done < length:
            wanted = min(self.SIZE, length - done)
            self.ior_read.prepare(self.iov_read[:wanted], True, fd, done)
            count = self.ior_read.submit().wait(min_results=1)[0].result
            buffer[done : done + count] = self.shm_read.buf[:count]
            done += max(count, 0)
            if count != wanted:
                break
        deregister_fd(fd)
        os.close(fd)
        return bytes(buffer[:done])

    def close(self):
        del self.ior_read, self.ior_write, self.iov_read, self.iov_write
        for shm in (self.shm_read, self.shm_write):
            shm.close()
            shm.unlink()


def test_files_by_clients_of_threads(mnt):
    assert extract_mount_point(mnt) == mnt
    assert extract_mount_point("/tmp") is None

    def work(number):
        store = ThreadStore(mnt)
        content = random.Random(number).randbytes(PAGE * 7 + number)
        store.put(f"{mnt}/block-{number}", content)
        found = store.get(f"{mnt}/block-{number}", len(content))
        short = store.get(f"{mnt}/block-{number}", len(content) + 100)
        store.close()
        return found == short == content

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))


def test_a_writer_that_polls(mnt):
    size = 8 * PAGE
    shm = SharedMemory(name=f"hf3fs-iovs-{os.getpid()}", create=True, size=size)
    iov = make_iovec(shm, mnt, block_size=0, numa=-1)
    buffer = memoryview(iov.iov)
    ring = make_ioring(mnt, 100 << 10, for_read=False, io_depth=-1, numa=-1)
    shm.unlink()
    fd = os.open(f"{mnt}/tensors", os.O_WRONLY | os.O_CREAT | os.O_SYNC)
    register_fd(fd)
    content = random.Random(4).randbytes(size)
    for start in range(0, size, PAGE):
        buffer[start : start + PAGE] = content[start : start + PAGE]
        what = [start, PAGE]
        ring.prepare(iov[start : start + PAGE], False, fd, start, userdata=what)
    handed_in, results = ring.submit(), []
    while len(results) < size // PAGE:
        results += handed_in.wait(max_results=1000, min_results=0, timeout=dt.timedelta(seconds=0))
        time.sleep(0.01)
    assert [one.result for one in results] == [one.userdata[1] for one in results]
    os.truncate(fd, size - 1)
    deregister_fd(fd)
    os.close(fd)
    with open(f"{mnt}/tensors", "rb") as file:
        assert file.read() == content[:-1]


def test_a_reader_of_weights(mnt):
    content = random.Random(6).randbytes(5 * PAGE + 77)
    with open(f"{mnt}/weights", "wb") as file:
        file.write(content)
    shm = SharedMemory(size=4 * PAGE, create=True)
    iov = make_iovec(shm, mnt)
    shm.unlink()
    ring = make_ioring(mnt, 4, for_read=True, io_depth=0)
    address = ctypes.addressof((ctypes.c_char * len(shm.buf)).from_buffer(shm.buf))
    fd = os.open(f"{mnt}/weights", os.O_RDONLY)
    register_fd(fd)
    found = b""
    for start in (0, 4 * PAGE):
        for number in range(4):
            place = slice(number * PAGE, (number + 1) * PAGE)
            ring.prepare(iov[place], True, fd, start + place.start)
        done = ring.submit().wait(min_results=4)
        found += ctypes.string_at(address, sum(one.result for one in done))
    assert found == content
    deregister_fd(fd)
    os.close(fd)


def test_how_results_are_counted_out(mnt):
    """As 3FS: no more than asked for; one at most, and at once, where nothing was asked for."""
    with open(f"{mnt}/counted", "wb") as file:
        file.write(bytes(PAGE))
    shm = SharedMemory(size=PAGE, create=True)
    fd = os.open(f"{mnt}/counted", os.O_RDONLY)
    register_fd(fd, flags=0)
    with make_iovec(shm, mnt) as iov, make_ioring(mnt, 4) as ring:
        assert isinstance(iov, iovec)
        assert isinstance(ring.ior, ioring)
        assert (ring.entries, iov[10:20].base_off) == (4, 10)
        assert ring.wait() == []
        for number in range(4):
            ring.prepare(iov[number : number + 1], True, fd, number, number)
        ring.submit()
        first = ring.wait(min_results=2)
        assert len(first) == 2
        while len(first) < 3:
            more = ring.wait()
            assert len(more) <= 1
            first += more
        first += ring.wait(min_results=1, max_results=10)
        assert sorted(one.userdata for one in first) == [0, 1, 2, 3]
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            ring.prepare(iov[:1], True, fd + 1000, 0)
        assert failed.value.errno == errno.EBADF
    deregister_fd(fd)
    os.close(fd)
    shm.unlink()
