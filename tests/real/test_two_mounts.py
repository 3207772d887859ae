"""Two mounts of one cluster: close-to-open, and appends from both that lose nothing."""

import fcntl
import hashlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emberfs.rereading import BLOCK_BYTES, Rereader
from emberfs.ring import RingClient
from emberfs.rows import Rows

from .conftest import scaled
from .visibility import Trials

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]

APPENDER = """
import os, sys
path, tag, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
for i in range(count):
    line = f"{tag} {i} {'x' * (i % 97)}\\n".encode()
    assert os.write(fd, line) == len(line)
    if i % 50 == 49:
        os.fsync(fd)
os.close(fd)
"""


COUNTER = """
import fcntl, os, sys
path, how, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
take = {"flock": fcntl.flock, "posix": fcntl.lockf}[how]
fd = os.open(path, os.O_RDWR)
for _ in range(count):
    take(fd, fcntl.LOCK_EX)
    number = int(os.pread(fd, 20, 0))
    os.pwrite(fd, b"%019d" % (number + 1), 0)
    take(fd, fcntl.LOCK_UN)
"""


HOLDER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
{"flock": fcntl.flock, "posix": fcntl.lockf}[sys.argv[2]](fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(100)
"""


CROSSWISE = """
import errno, fcntl, os, struct, sys
first, second, command = sys.argv[1], sys.argv[2], getattr(fcntl, sys.argv[3])
one, two = os.open(first, os.O_RDWR), os.open(second, os.O_RDWR)
whole = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
fcntl.fcntl(one, command, whole)
print("held", flush=True)
sys.stdin.readline()
try:
    fcntl.fcntl(two, command, whole)
except OSError as error:
    print("told" if error.errno == errno.EDEADLK else error, flush=True)
else:
    print("had", flush=True)
"""


@pytest.fixture(scope="module")
def second_mount(cluster, tmp_path_factory):
    mount = tmp_path_factory.mktemp("second")
    cluster.ember("mount", mount, "--dir", cluster.directory)
    yield mount
    cluster.ember("umount", mount, "--dir", cluster.directory)


def test_what_one_closes_the_other_opens(second_mount, place):
    other = second_mount / place.name
    for turn in range(scaled(100, 1000)):
        writer, reader = (place, other) if turn % 2 else (other, place)
        content = hashlib.sha256(str(turn).encode()).digest() * (turn % 700 + 1)
        with (writer / "shared").open("wb") as file:
            file.write(content)
        with (reader / "shared").open("rb") as file:
            assert file.read() == content, turn
        assert (reader / "shared").stat().st_size == len(content)


def test_what_one_closes_or_syncs_the_other_sees(second_mount, place):
    trials = Trials((place, second_mount / place.name), random.Random(5))
    trials.run(scaled(200, 10_000))


def test_what_nobody_closed_or_synced_is_missed_at_times(second_mount, place):
    """The trials above would notice a mount that forgets to report."""
    trials = Trials((place, second_mount / place.name), random.Random(6), ends=False)
    trials.run(30)
    assert trials.failures


def test_replacement_by_rename_is_seen(second_mount, place):
    other = second_mount / place.name
    for turn in range(50):
        (place / "next").write_text(f"content {turn}")
        (place / "next").rename(place / "current")
        assert (other / "current").read_text() == f"content {turn}"


def test_overwrite_in_place_is_seen_after_close(second_mount, place):
    other = second_mount / place.name
    size = 3_000_000
    (place / "data").write_bytes(bytes(size))
    assert (other / "data").read_bytes() == bytes(size)
    with (place / "data").open("r+b") as file:
        file.seek(1_500_000)
        file.write(b"changed")
    with (other / "data").open("rb") as file:
        file.seek(1_500_000)
        assert file.read(7) == b"changed"


def test_two_appenders_lose_no_record(second_mount, place):
    count = scaled(500, 5000)
    children = [
        subprocess.Popen([sys.executable, "-c", APPENDER, root / "log", tag, str(count)])
        for tag, root in (("a", place), ("b", second_mount / place.name))
    ]
    assert [child.wait(200) for child in children] == [0, 0]
    lines = (place / "log").read_text().splitlines()
    expected = [f"{tag} {i} {'x' * (i % 97)}" for tag in "ab" for i in range(count)]
    assert sorted(lines) == sorted(expected)
    for tag in "ab":
        own = [int(line.split()[1]) for line in lines if line.startswith(tag)]
        assert own == sorted(own), "records of one appender keep their order"


def _create_exclusively(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def test_exclusive_creation_has_one_winner(second_mount, place):
    other = second_mount / place.name
    with ThreadPoolExecutor(2) as pool:
        for turn in range(20):
            name = f"lock{turn}"
            won = list(pool.map(_create_exclusively, [str(place / name), str(other / name)]))
            assert sorted(won) == [False, True]


@pytest.mark.parametrize("how", ["flock", "posix"])
def test_locks_exclude_over_mounts(second_mount, place, how):
    count = scaled(40, 400)
    (place / how).write_text(f"{0:019}")
    paths = [place / how, second_mount / place.name / how] * 2
    counters = [
        subprocess.Popen([sys.executable, "-c", COUNTER, str(path), how, str(count)])
        for path in paths
    ]
    assert [counter.wait(timeout=200) for counter in counters] == [0] * len(paths)
    assert int((place / how).read_text()) == count * len(paths)


@pytest.mark.parametrize("how", ["flock", "posix"])
def test_a_killed_holder_frees_its_lock(second_mount, place, how):
    (place / "killed").write_text("x")
    take = {"flock": fcntl.flock, "posix": fcntl.lockf}[how]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(second_mount / place.name / "killed"), how],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    with (place / "killed").open("r+") as file:
        with pytest.raises(BlockingIOError):
            take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.kill()
        holder.communicate()
        take(file, fcntl.LOCK_EX)


def _crosswise(paths, others, command):
    """Two programs, each with one of the files locked; the first begins to wait for the other's."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", CROSSWISE, *map(str, pair), command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for pair in (paths, others)
    ]
    for one in programs:
        assert one.stdout.readline() == "held\n"
    programs[0].stdin.write("\n")
    programs[0].stdin.flush()
    time.sleep(1)
    programs[1].stdin.write("\n")
    programs[1].stdin.flush()
    return programs


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_who_would_wait_for_itself_is_told(second_mount, place, is_elsewhere):
    took_s = []
    for turn in range(3):
        names = [f"cross{turn}a", f"cross{turn}b"]
        for name in names:
            (place / name).write_text("x")
        there = second_mount / place.name if is_elsewhere else place
        paths, others = [place / n for n in names], [there / n for n in reversed(names)]
        first, second = _crosswise(paths, others, "F_SETLKW")
        began_s = time.monotonic()
        assert second.communicate(timeout=60)[0] == "told\n"
        took_s.append(time.monotonic() - began_s)
        assert first.communicate(timeout=60)[0] == "had\n"
    # At once, not when somebody asks again; each of them may meet a busy machine.
    assert min(took_s) < 4


def test_open_file_descriptions_that_wait_crosswise_wait(second_mount, place):
    """As on any Linux file system: nobody can tell whether one of them will be freed."""
    names = ["described-a", "described-b"]
    for name in names:
        (place / name).write_text("x")
    paths = [place / n for n in names]
    others = [second_mount / place.name / n for n in reversed(names)]
    first, second = _crosswise(paths, others, "F_OFD_SETLKW")
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(timeout=7)
    second.kill()
    second.communicate()
    assert first.communicate(timeout=60)[0] == "had\n"


def test_a_listed_name_is_opened_as_what_it_is_now(second_mount, place):
    other = second_mount / place.name
    for turn in range(30):
        (place / "listed").write_text(f"old {turn}")
        with os.scandir(other) as entries:
            assert [entry.stat().st_size for entry in entries if entry.name == "listed"]
        (place / "new").write_text(f"new {turn}")
        (place / "new").rename(place / "listed")
        assert (other / "listed").read_text() == f"new {turn}"
    os.listdir(other)
    [entry.stat() for entry in os.scandir(other)]
    (place / "listed").unlink()
    with pytest.raises(FileNotFoundError):
        (other / "listed").read_text()


def test_a_listed_link_leads_to_where_it_leads_now(second_mount, place):
    other = second_mount / place.name
    for turn in range(30):
        (place / f"target{turn}").write_text(f"{turn}")
        (place / "new").symlink_to(f"target{turn}")
        (place / "new").rename(place / "latest")
        assert (other / "latest").read_text() == f"{turn}"
        assert (other / "latest").readlink().name == f"target{turn}"
        with os.scandir(other) as entries:
            assert [e.stat(follow_symlinks=False).st_ino for e in entries if e.is_symlink()]


@pytest.mark.parametrize("flags", [os.O_PATH, os.O_RDONLY])
@pytest.mark.parametrize("new_name", ["x/e", "y/d"])
def test_a_directory_that_is_held_is_used_on_after_it_was_moved_elsewhere(
    second_mount, place, flags, new_name
):
    for directory in ("x/d/s", "y"):
        (place / directory).mkdir(parents=True)
    (place / "x" / "d" / "f").write_text("text")
    held = os.open(place / "x" / "d", flags)
    below = os.open("f", os.O_PATH, dir_fd=held)
    other = second_mount / place.name
    (other / "x" / "d").rename(other / new_name)
    for _ in range(2):
        assert os.fstat(held).st_nlink == 3
        assert os.fstat(below).st_size == 4
        assert os.stat("..", dir_fd=held).st_ino
        os.close(os.open("f", os.O_RDONLY, dir_fd=held))
        time.sleep(1.2)  # names of directories are cached for a second
    os.rename("f", "g", src_dir_fd=held, dst_dir_fd=held)
    os.rmdir("s", dir_fd=held)
    assert os.listdir(other / new_name) == ["g"]
    os.close(below)
    os.close(held)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("there")])
def test_a_name_made_on_one_mount_is_there_on_the_one_that_has_made_the_directory(
    second_mount, place, make
):
    """That one knows which names are absent, for as long
    as it makes others there itself (decision 0152).
    """
    for number in range(5):
        own = place / f"{number}"
        own.mkdir()
        is_over = threading.Event()

        def work(own=own, is_over=is_over):
            for other in itertools.count():
                (own / f"{other}").touch()
                os.path.lexists(own / "new")  # asked for all the time, and mostly absent
                if is_over.is_set():
                    return

        worker = threading.Thread(target=work)
        worker.start()
        try:
            time.sleep(0.05)
            make(second_mount / place.name / own.name / "new")
            assert os.path.lexists(own / "new")
        finally:
            is_over.set()
            worker.join()


def test_a_hole_punched_on_one_mount_is_zeros_on_the_other(second_mount, place):
    content = os.urandom(5_000_000)
    (place / "holed").write_bytes(content)
    subprocess.run(
        ["fallocate", "--punch-hole", "-o", "100000", "-l", "4000000", place / "holed"], check=True
    )
    expected = content[:100_000] + bytes(4_000_000) + content[4_100_000:]
    assert (second_mount / place.name / "holed").read_bytes() == expected
    with (place / "holed").open("r+b") as file:
        file.seek(2_000_000)
        file.write(b"again")
    assert (second_mount / place.name / "holed").read_bytes()[2_000_000:2_000_005] == b"again"


def test_who_opens_reads_what_another_mount_closed_also_out_of_the_cache(cluster, second_mount):
    here, there = cluster.mount / "again", second_mount / "again"
    size, row = 2 * BLOCK_BYTES, 64 << 10
    buffer = memoryview(bytearray(size))
    begins = list(range(0, size, row))
    with RingClient(cluster.mount) as client:
        for turn in range(4):
            there.write_bytes(bytes([turn]) * size)
            with client.open(str(here)) as file:
                rereader = Rereader(client, [file])
                rows = Rows([file] * len(begins), begins, [row] * len(begins), begins)
                for _ in range(3):
                    assert rereader.read(rows, buffer) == rows.sizes
                    assert buffer == bytes([turn]) * size
                assert rereader.is_cached
