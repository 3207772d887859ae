import ctypes
import fcntl
import json
import mmap
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="no /dev/fuse"),
]
SERVER = Path(__file__).parent / "serve_fakes.py"
ROOT_FOLDER = Path(__file__).parents[3]


class Server:
    def __init__(self, mount_point, *settings):
        self.mount_point = mount_point
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), str(mount_point), *settings],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT_FOLDER}:{ROOT_FOLDER}/fs/client/user"},
        )
        self.first_line = self.process.stdout.readline().strip()

    def stop(self):
        """Ask for an orderly end; return what the model holds afterwards."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        output, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, output
        return json.loads(output)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
            subprocess.run(
                ["umount", "-l", str(self.mount_point)], check=False, capture_output=True
            )


@pytest.fixture(params=["direct", "libfuse"])
def serve(tmp_path, request):
    servers = []
    frontend = f'fuse_frontend="{request.param}"'

    def start(*settings, name="mnt", frontends=("direct", "libfuse")):
        if request.param not in frontends:
            pytest.skip(f"{request.param} has no hook for this")
        mount_point = tmp_path / name
        mount_point.mkdir()
        servers.append(Server(mount_point, frontend, *settings))
        assert servers[-1].first_line == "ready"
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def mnt(serve):
    server = serve()
    yield server.mount_point
    report = server.stop()
    assert report["sessions"] == 0
    assert not server.mount_point.is_mount()


def test_copied_trees_are_equal(mnt, tmp_path):
    source = tmp_path / "source"
    rng = random.Random(1)
    for i in range(5):
        folder = source / f"d{i}" / "deep"
        folder.mkdir(parents=True)
        for j, size in enumerate((0, 1, 4095, 70_000, 1_200_000)):
            (folder / f"f{j}").write_bytes(rng.randbytes(size))
        (folder / "link").symlink_to("f1")
        os.link(folder / "f2", folder / "hard")
        (folder / "f3").chmod(0o640)
    subprocess.run(["cp", "-a", str(source), str(mnt)], check=True)
    subprocess.run(["diff", "-r", "--no-dereference", str(source), str(mnt / "source")], check=True)
    for path in source.rglob("*"):
        ours, theirs = (mnt / "source" / path.relative_to(source)).lstat(), path.lstat()
        assert (ours.st_mode, ours.st_nlink) == (theirs.st_mode, theirs.st_nlink), path
        if path.is_file():
            assert (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns), path
    subprocess.run(["rm", "-r", str(mnt / "source")], check=True)
    assert list(mnt.iterdir()) == []


def test_mmap_shared_writes_reach_the_file(mnt):
    path = mnt / "m"
    path.write_bytes(bytes(3 * 4096))
    with path.open("r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[5000:5005] = b"hello"
        m.flush()
        assert os.pread(f.fileno(), 5, 5000) == b"hello"
        m[0:3] = b"end"
    assert path.read_bytes()[:3] == b"end"
    assert path.read_bytes()[5000:5005] == b"hello"


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite(mnt, journal):
    with sqlite3.connect(mnt / "db") as db:
        db.execute(f"pragma journal_mode={journal}")
        db.execute("create table t(a integer primary key, b blob)")
        for i in range(10):
            db.execute("insert into t values(?, ?)", (i, bytes([i]) * 9000))
            db.commit()
        db.execute("delete from t where a % 3 = 0")
    db.close()
    with sqlite3.connect(mnt / "db") as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        assert [a for (a,) in db.execute("select a from t order by a")] == [1, 2, 4, 5, 7, 8]
    db.close()


def test_appending_processes_lose_and_tear_nothing(mnt):
    script = "for i in $(seq 200); do echo $1-$i >> $2; done"
    running = [subprocess.Popen(["sh", "-c", script, "sh", tag, str(mnt / "log")]) for tag in "ab"]
    assert [p.wait(timeout=60) for p in running] == [0, 0]
    lines = (mnt / "log").read_text().splitlines()
    for tag in "ab":
        mine = [line for line in lines if line.startswith(tag)]
        assert mine == [f"{tag}-{i}" for i in range(1, 201)]
    assert len(lines) == 400


def test_append_through_one_descriptor(mnt):
    with (mnt / "log").open("ab") as f:
        for i in range(100):
            f.write(b"%03d\n" % i)
            f.flush()
            assert os.fstat(f.fileno()).st_size == 4 * (i + 1)
    assert (mnt / "log").read_bytes() == b"".join(b"%03d\n" % i for i in range(100))


def rename_flags(old, new, flags):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def test_rename_flags(mnt):
    (mnt / "a").write_text("A")
    (mnt / "b").write_text("B")
    with pytest.raises(FileExistsError):
        rename_flags(mnt / "a", mnt / "b", 1)
    rename_flags(mnt / "a", mnt / "b", 2)
    assert ((mnt / "a").read_text(), (mnt / "b").read_text()) == ("B", "A")
    with (mnt / "b").open() as f:
        (mnt / "a").rename(mnt / "b")
        assert f.read() == "A"
        assert os.fstat(f.fileno()).st_nlink == 0
    assert (mnt / "b").read_text() == "B"


def test_unlinked_open_file(mnt):
    with (mnt / "f").open("w+b") as f:
        f.write(b"still here")
        f.flush()
        (mnt / "f").unlink()
        assert not (mnt / "f").exists()
        f.seek(0)
        assert f.read() == b"still here"
        f.truncate(5)
        assert os.fstat(f.fileno()).st_size == 5


def test_xattrs(mnt):
    path = mnt / "f"
    path.write_text("x")
    os.setxattr(path, "user.color", b"blue")
    assert os.getxattr(path, "user.color") == b"blue"
    assert os.listxattr(path) == ["user.color"]
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.color", b"red", os.XATTR_CREATE)
    with pytest.raises(OSError, match="No data"):
        os.setxattr(path, "user.none", b"red", os.XATTR_REPLACE)
    os.removexattr(path, "user.color")
    assert os.listxattr(path) == []


def test_special_files_and_times(mnt):
    os.mkfifo(mnt / "p")
    assert (mnt / "p").is_fifo()
    old_umask = os.umask(0o027)
    try:
        (mnt / "f").touch()
        (mnt / "d").mkdir()
    finally:
        os.umask(old_umask)
    assert ((mnt / "f").stat().st_mode, (mnt / "d").stat().st_mode) == (0o100640, 0o040750)
    with (mnt / "f").open("wb") as f:
        f.write(b"data")
        f.flush()
        os.utime(f.fileno(), ns=(10**18 + 1, 10**18 + 2))
    found = (mnt / "f").stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (10**18 + 1, 10**18 + 2)
    assert os.statvfs(mnt).f_namemax == 255
    with pytest.raises(OSError, match="too long"):
        (mnt / ("x" * 256)).touch()
    (mnt / "d" / "child").touch()
    with pytest.raises(OSError, match="not empty"):
        (mnt / "d").rmdir()


@pytest.mark.slow
def test_a_directory_of_thousands_of_entries(mnt):
    for i in range(3_000):
        os.mknod(mnt / f"{i:05}", 0o100644)
    with os.scandir(mnt) as found:
        names = [entry.name for entry in found]
    assert names == [f"{i:05}" for i in range(3_000)]
    removed = set()
    with os.scandir(mnt) as found:
        for index, entry in enumerate(found):
            if index % 8 == 0:  # removing while listing
                os.unlink(entry.path)
                removed.add(entry.name)
    assert len(removed) == 375
    assert sorted(os.listdir(mnt)) == sorted(set(names) - removed)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_file_operations(mnt, seed):
    rng, twin = random.Random(seed), bytearray()
    fds = [os.open(mnt / "f", os.O_RDWR | os.O_CREAT)]
    for _ in range(250):
        action = rng.choice(["write", "write", "read", "read", "trunc", "sync", "open", "mmap"])
        offset, count = rng.randrange(3_000_000), rng.randrange(1, 300_000)
        fd = rng.choice(fds)
        if action == "write":
            data = rng.randbytes(count)
            twin.extend(bytes(max(0, offset - len(twin))))
            twin[offset : offset + count] = data
            assert os.pwrite(fd, data, offset) == count
        elif action == "read":
            assert os.pread(fd, count, offset) == twin[offset : offset + count]
        elif action == "trunc":
            length = rng.randrange(3_000_000)
            os.ftruncate(fd, length)
            twin = twin[:length] + bytes(max(0, length - len(twin)))
        elif action == "sync":
            os.fsync(fd)
        elif action == "mmap" and offset + count < len(twin):
            with mmap.mmap(fd, len(twin)) as m:
                m[offset : offset + 100] = twin[offset : offset + 100] = rng.randbytes(100)
        elif action == "open":
            os.close(fds.pop(0))
            fds += [
                os.open(mnt / "f", os.O_RDWR) for _ in range(rng.choice([1, 2])) if len(fds) < 3
            ]
            fds = fds or [os.open(mnt / "f", os.O_RDWR)]
        assert os.fstat(fds[0]).st_size == len(twin)
    for fd in fds:
        os.close(fd)
    assert (mnt / "f").read_bytes() == twin


def test_a_busy_mount_is_detached_and_nothing_is_lost(serve):
    server = serve()
    fd = os.open(server.mount_point / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"written and not closed")
    report = server.stop()
    assert (report["sessions"], report["lengths"]) == (0, {"f": 22})
    assert not server.mount_point.is_mount()
    for call in (os.fsync, os.close):
        with pytest.raises(OSError, match="not connected"):
            call(fd)


def test_a_bug_ends_the_daemon_and_leaves_no_dead_mount(tmp_path, monkeypatch):
    monkeypatch.setenv("INJECT_BUG", "1")
    server = Server(tmp_path)
    assert server.first_line == "ready"
    try:
        with pytest.raises(OSError, match=r"."), (tmp_path / "f").open("wb") as f:
            f.write(b"x")
        server.process.communicate(timeout=120)
        assert server.process.returncode != 0
        assert not tmp_path.is_mount()
        assert list(tmp_path.iterdir()) == []
    finally:
        server.close()


def test_unmount_from_outside_ends_the_daemon(serve):
    server = serve()
    (server.mount_point / "f").write_text("x")
    subprocess.run(["umount", str(server.mount_point)], check=True)
    assert server.wait()["lengths"] == {"f": 1}


def test_bad_mount_points_are_refused(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "f").touch()
    for bad in (tmp_path / "missing", full, full / "f", Path("/proc")):
        server = Server(bad)
        server.process.communicate(timeout=120)
        assert server.first_line.startswith("error: BAD_MOUNT_POINT"), server.first_line
        assert server.process.returncode == 1


def test_attributes_expire(serve):
    server = serve("attr_timeout_s=0.2", "durable_close=false")
    path = server.mount_point / "f"
    path.write_text("x")
    assert path.stat().st_size == 1
    time.sleep(0.3)
    assert path.stat().st_size == 1
    server.stop()


LOCKER = """
import fcntl, signal, sys
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
file = open(sys.argv[1], "r+")
print("asks", flush=True)
signal.alarm(1)
try:
    fcntl.lockf(file, fcntl.LOCK_EX)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_wait_for_a_lock_is_interrupted_by_a_signal(serve):
    server = serve(frontends=["direct"])
    path = server.mount_point / "f"
    with path.open("w+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 5)
        done = subprocess.run(
            [sys.executable, "-c", LOCKER, str(path)], capture_output=True, timeout=60, check=True
        )
        assert done.stdout.split() == [b"asks", b"interrupted"]
        fcntl.lockf(file, fcntl.LOCK_UN)
        subprocess.run(["flock", "-n", "-x", str(path), "true"], check=True)
    server.stop()


def test_a_listing_saves_the_lookups_of_its_entries(serve):
    server = serve(frontends=["direct"])
    for i in range(300):
        os.close(os.open(server.mount_point / f"f{i}", os.O_CREAT | os.O_WRONLY))
    with os.scandir(server.mount_point) as entries:
        sizes = [entry.stat().st_size for entry in entries]
    assert len(sizes) == 300
    calls = server.stop()["calls"]
    assert calls["Lookup"] - 300 < 30, calls  # 300 when they were made


def test_fallocate(serve):
    server = serve(frontends=["direct"])
    libc = ctypes.CDLL(None, use_errno=True)
    keep, punch, zero = 1, 2, 16
    with (server.mount_point / "f").open("w+b", buffering=0) as f:
        os.posix_fallocate(f.fileno(), 0, 3 << 20)
        assert os.fstat(f.fileno()).st_size == 3 << 20
        f.write(b"x" * (3 << 20))

        def fallocate(mode, offset, length):
            long = ctypes.c_longlong
            return libc.fallocate(f.fileno(), mode, long(offset), long(length))

        assert fallocate(punch | keep, 4096, 2 << 20) == 0
        assert fallocate(zero, (3 << 20) - 10, 20) == 0
        f.seek(0)
        data = f.read()
        assert len(data) == (3 << 20) + 10
        assert data.strip(b"x") == bytes(2 << 20) + b"x" * ((1 << 20) - 4106) + bytes(20)
        assert fallocate(punch, 0, 1) == -1
    server.stop()


def test_holes_are_found(serve):
    server = serve(frontends=["direct"])
    with (server.mount_point / "f").open("w+b", buffering=0) as f:
        f.seek(5 << 20)
        f.write(b"data")
        assert os.lseek(f.fileno(), 0, os.SEEK_DATA) == 5 << 20
        assert os.lseek(f.fileno(), 5 << 20, os.SEEK_HOLE) == (5 << 20) + 4
        assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 0
        with pytest.raises(OSError, match="No such device or address"):
            os.lseek(f.fileno(), 6 << 20, os.SEEK_DATA)
    server.stop()


def test_ranges_are_copied_by_the_mount(serve):
    server = serve(frontends=["direct"])
    with (
        (server.mount_point / "a").open("w+b", buffering=0) as a,
        (server.mount_point / "b").open("w+b", buffering=0) as b,
    ):
        a.write(b"0123456789")
        a.truncate(6 << 20)
        assert os.pread(b.fileno(), 20, 0) == b""
        done = 0
        while done < 6 << 20:
            done += os.copy_file_range(a.fileno(), b.fileno(), (6 << 20) - done, done, done)
        assert os.pread(b.fileno(), 20, 0) == b"0123456789" + bytes(10)
        assert os.fstat(b.fileno()).st_size == 6 << 20
        # Copied by the kernel, zeros would be data.
        with pytest.raises(OSError, match="No such device or address"):
            os.lseek(b.fileno(), 1 << 20, os.SEEK_DATA)
    server.stop()


def test_locks_of_open_file_descriptions(serve):
    """F_OFD_SETLK, which LMDB and SQLite's forks use:
    it goes with the last descriptor, not with any.
    """
    server = serve(frontends=["direct"])
    path = server.mount_point / "f"
    path.touch()
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    held, other = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    os.close(os.dup(held))
    fcntl.fcntl(held, F_OFD_SETLK, whole)
    os.close(os.dup(held))
    with pytest.raises(BlockingIOError):
        fcntl.fcntl(other, F_OFD_SETLK, whole)
    os.close(held)
    # The kernel tells of the last close when it has nothing better to do.
    fcntl.fcntl(other, F_OFD_SETLKW, whole)
    os.close(other)
    server.stop()


F_OFD_SETLK, F_OFD_SETLKW = 37, 38


FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, IMMUTABLE = (
    0x40086602,
    0x801C581F,
    0x401C5820,
    0x10,
)


def test_flags_of_lsattr(serve):
    server = serve(frontends=["direct"])
    (server.mount_point / "f").touch()
    with (server.mount_point / "f").open() as f:
        flags = bytearray(8)
        fcntl.ioctl(f, 0x80086601, flags)
        assert flags == bytes(8)
        with pytest.raises(OSError, match="Inappropriate ioctl"):
            fcntl.ioctl(f, 0x5401, bytearray(64))
        longer = bytearray(b"?" * 28)
        fcntl.ioctl(f, FS_IOC_FSGETXATTR, longer)
        assert longer == bytes(28)
        for flags in (0, IMMUTABLE):
            # Newer kernels ask for the longer form before they pass this on.
            fcntl.ioctl(f, FS_IOC_SETFLAGS, struct.pack("q", flags))
        fcntl.ioctl(f, FS_IOC_FSSETXATTR, struct.pack("28x"))
        for xflags, flags in ((0x10, 0x20), (0x18, 0x30), (0, 0)):  # append-only, immutable too
            fcntl.ioctl(f, FS_IOC_FSSETXATTR, struct.pack("I24x", xflags))
            assert fcntl.ioctl(f, FS_IOC_FSGETXATTR, bytes(28)) == struct.pack("I24x", xflags)
            assert fcntl.ioctl(f, 0x80086601, bytes(8)) == struct.pack("q", flags)
        with pytest.raises(OSError, match="not supported"):
            fcntl.ioctl(f, FS_IOC_FSSETXATTR, struct.pack("I24x", 0x80))  # left out by dump
    server.stop()


def test_flags_of_chattr_move_the_ctime_that_the_kernel_has_kept(serve):
    server = serve("attr_timeout_s=3600.0", frontends=["direct"])
    with (server.mount_point / "f").open("wb") as f:
        for request in (FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR):
            before = os.fstat(f.fileno())
            fcntl.ioctl(f, request, bytes(28))
            assert os.fstat(f.fileno()).st_ctime_ns > before.st_ctime_ns
    server.stop()


def test_what_is_held_without_being_open_keeps_its_attributes(serve):
    """The service of the fakes forgets at once what has lost its last name."""
    mnt = serve("attr_timeout_s=0.0").mount_point
    (mnt / "f").write_bytes(b"four")
    (mnt / "replaced").write_bytes(b"five!")
    (mnt / "link").symlink_to("anywhere")
    os.mkfifo(mnt / "pipe", 0o640)
    (mnt / "d").mkdir()
    path_only = os.O_PATH | os.O_NOFOLLOW
    held = {name: os.open(mnt / name, path_only) for name in ("f", "replaced", "link", "d")}
    held["pipe"] = os.open(mnt / "pipe", os.O_RDWR)
    before = {name: os.fstat(fd) for name, fd in held.items()}
    for name in ("f", "link", "pipe"):
        (mnt / name).unlink()
    (mnt / "new").touch()
    (mnt / "new").rename(mnt / "replaced")
    (mnt / "d").rmdir()
    for name, fd in held.items():
        found = os.fstat(fd)
        assert found.st_nlink == 0, name
        same = ("st_ino", "st_mode", "st_size", "st_uid", "st_mtime_ns")
        assert all(getattr(found, key) == getattr(before[name], key) for key in same), name
    os.write(held["pipe"], b"x")
    assert os.read(held["pipe"], 1) == b"x"
    for fd in held.values():
        os.close(fd)
