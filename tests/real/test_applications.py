"""Real applications on the mount of a real cluster: what people do all day must just work."""

import contextlib
import fcntl
import mmap
import os
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from .conftest import IS_FULL, run, scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(600)]


def test_git_whole_life(place, library_tree):
    repository = place / "repository"
    run("cp", "-r", library_tree, repository)
    run("git", "init", "-q", "-b", "main", ".", cwd=repository)
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    run("git", *identity, "add", "-A", cwd=repository)
    run("git", *identity, "commit", "-q", "-m", "all of it", cwd=repository)
    run("git", "gc", "-q", cwd=repository)
    run("git", "clone", "-q", repository, place / "clone")
    run("git", "fsck", "--full", "--strict", cwd=place / "clone")
    run("diff", "-r", "--exclude=.git", library_tree, place / "clone")
    assert run("git", "status", "--porcelain", cwd=repository) == ""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite(place, journal):
    path = place / "data.db"
    row_count = scaled(10_000, 10_000)
    with sqlite3.connect(path) as db:
        assert db.execute(f"pragma journal_mode={journal}").fetchone() == (journal,)
        db.execute("create table t (id integer primary key, value text)")
    for begin in range(0, row_count, 2000):
        with sqlite3.connect(path) as db:
            db.executemany(
                "insert into t values (?, ?)",
                ((i, f"value {i}" * 5) for i in range(begin, begin + 2000)),
            )
        db.close()
    db = sqlite3.connect(path)
    assert db.execute("select count(*), sum(id) from t").fetchone() == (
        row_count,
        row_count * (row_count - 1) // 2,
    )
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()


def test_virtual_environment(place):
    environment = place / "venv"
    run(sys.executable, "-m", "venv", environment, *([] if IS_FULL else ["--without-pip"]))
    # the package comes from what is installed here: no network is needed
    wheelhouse = place / "src"
    wheelhouse.mkdir()
    (wheelhouse / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (wheelhouse / "backend.py").write_text(BACKEND)
    python = environment / "bin" / "python"
    pip = [python, "-m", "pip"] if IS_FULL else [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "-q", "--no-index", wheelhouse)
    assert run(python, "-c", "import ember_sample; print(ember_sample.answer)") == "42\n"


BACKEND = """
import os, zipfile
NAME = "ember_sample-1.0"
def build_wheel(directory, config_settings=None, metadata_directory=None):
    file_name = NAME + "-py3-none-any.whl"
    info = NAME + ".dist-info/"
    files = {
        "ember_sample.py": "answer = 42\\n",
        info + "METADATA": "Metadata-Version: 2.1\\nName: ember_sample\\nVersion: 1.0\\n",
        info + "WHEEL": (
            "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\n"
            "Tag: py3-none-any\\n"
        ),
    }
    record = "".join(name + ",,\\n" for name in files) + info + "RECORD,,\\n"
    with zipfile.ZipFile(os.path.join(directory, file_name), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(info + "RECORD", record)
    return file_name
"""


def test_compile_and_run(place):
    (place / "main.c").write_text(
        '#include <stdio.h>\nint square(int);\nint main(void){printf("%d\\n", square(7));return '
        "0;}\n"
    )
    (place / "square.c").write_text("int square(int x){return x*x;}\n")
    (place / "Makefile").write_text(
        "prog: main.o square.o\n\tcc -o $@ $^\n%.o: %.c\n\tcc -O2 -c $<\n"
    )
    run("make", "-s", cwd=place)
    assert run("./prog", cwd=place) == "49\n"
    assert "up to date" in run("make", cwd=place)


def describe(root: Path) -> dict:
    """Return everything tar promises to preserve, by relative path."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        key = str(path.relative_to(root))
        content = b""
        if path.is_symlink():
            content = os.readlink(path).encode()
        elif path.is_file():
            content = path.read_bytes()
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        links = 0 if stat.S_ISDIR(status.st_mode) else status.st_nlink
        found[key] = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            size,
            status.st_mtime_ns,
            links,
            content,
        )
    return found


def test_tar_preserves_everything(place, tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "plain").write_bytes(os.urandom(100_000))
    (source / "plain").chmod(0o4751)
    os.link(source / "plain", source / "sub" / "hard")
    (source / "soft").symlink_to("sub/hard")
    (source / "dangling").symlink_to("no/where")
    os.mkfifo(source / "fifo", 0o622)
    os.chown(source / "plain", 1234, 2345)
    (source / "plain").chmod(0o4751)
    (source / "sub").chmod(0o2770)
    for path in [source / "plain", source / "fifo", source / "sub"]:
        os.utime(path, ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
    run("tar", "-C", source, "--format=posix", "-cpf", tmp_path / "in.tar", ".")
    inside = place / "inside"
    inside.mkdir()
    run("tar", "-C", inside, "-xpf", tmp_path / "in.tar", "--same-owner")
    assert describe(inside) == describe(source)
    run("tar", "-C", inside, "--format=posix", "-cpf", place / "out.tar", ".")
    back = tmp_path / "back"
    back.mkdir()
    run("tar", "-C", back, "-xpf", place / "out.tar", "--same-owner")
    assert describe(back) == describe(source)


def test_rsync_twice_transfers_nothing(place, library_tree):
    command = ("rsync", "-a", "--out-format=%n", f"{library_tree}/", f"{place}/copy/")
    assert len(run(*command).splitlines()) > 200
    assert run(*command) == ""
    assert run("rsync", "-a", "-c", "--out-format=%n", f"{library_tree}/", f"{place}/copy/") == ""


def test_mmap_read_and_shared_write(place):
    path = place / "mapped"
    content = bytearray(os.urandom(3_000_000))
    path.write_bytes(content)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert mapped[:] == content
        for offset in (0, 4095, 1_048_570, 2_999_990):
            mapped[offset : offset + 10] = content[offset : offset + 10] = b"0123456789"
        mapped.flush()
        with path.open("rb") as other:
            assert other.read() == content
    assert path.read_bytes() == content


def test_shell_pipeline_with_many_processes(place):
    script = (
        "for i in $(seq 50); do (echo line $i >> log; mv log log.tmp; mv log.tmp log); done; wc "
        "-l < log"
    )
    assert run("sh", "-c", script, cwd=place).strip() == "50"


def test_commands_on_odd_names(place):
    names = ["-dash", "new\nline", "sp ace", "ü" * 100, "\udcff\udcfe", "a" * 255]
    for name in names:
        (place / name).write_text(repr(name))
    assert sorted(os.listdir(place)) == sorted(names)
    for name in names:
        assert (place / name).read_text() == repr(name)
        (place / name).unlink()
    with pytest.raises(OSError, match="too long"):
        (place / ("a" * 256)).touch()


def test_fsync_by_dd(place):
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={place}/z", "bs=1M", "count=16", "conv=fsync", "status=none"],
        check=True,
    )
    assert (place / "z").stat().st_size == 16 << 20


COUNTER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None)
for _ in range(int(sys.argv[2])):
    db.execute("begin immediate")
    db.execute("insert into t (value) select coalesce(max(value), 0) + 1 from t")
    db.execute("commit")
"""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_of_several_processes(place, journal):
    path, count = place / "data.db", scaled(5, 100)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"pragma journal_mode={journal}")
        db.execute("create table t (value integer unique)")
    command = [sys.executable, "-c", COUNTER, path, str(count)]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(subprocess.Popen(command)) for _ in range(3)]
        assert [writer.wait() for writer in writers] == [0, 0, 0]
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("select count(*), max(value) from t").fetchone() == (3 * count, 3 * count)
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    "options",
    [
        ("--ioengine=mmap", "--fsync=64"),
        ("--ioengine=io_uring", "--iodepth=8", "--direct=1"),
        ("--ioengine=psync", "--bs_unaligned=1", "--bsrange=512-200k"),
    ],
    ids=["mmap", "io_uring", "unaligned"],
)
def test_fio_verifies(place, options):
    base = ("--name=t", f"--directory={place}", "--rw=randwrite", "--bs=16k", "--numjobs=2")
    sizes = (f"--size={scaled(1, 32)}M", "--fallocate=none", "--thread", "--verify_state_save=0")
    run("fio", *base, *sizes, "--verify=crc32c", "--verify_fatal=1", *options)


MAPPER = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    while mapped[0] != 1:
        time.sleep(0.01)
    mapped[4096:4101] = b"hello"
    mapped[1] = 1
"""


def test_a_map_shared_by_two_processes(place):
    path = place / "mapped"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        with subprocess.Popen([sys.executable, "-c", MAPPER, path]) as other:
            mapped[0] = 1
            assert other.wait(60) == 0
        assert mapped[1] == 1
        assert mapped[4096:4101] == b"hello"
    assert path.read_bytes()[4096:4101] == b"hello"


def test_what_changes_a_program_takes_its_privileges(place):
    program, nobody = place / "program", {"user": 65534, "group": 65534, "extra_groups": []}
    shutil.copyfile("/bin/true", program)
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_DIRECT):
        program.chmod(0o6777)
        os.setxattr(program, "security.capability", bytes.fromhex("0100000200200000" + "00" * 12))
        run("ls", "-l", place)  # what it shows is kept for a while
        directory = os.open(place, os.O_RDONLY)  # nobody could not search the path
        code = f"import os; os.write(os.open('program', {flags}, dir_fd={directory}), b'x')"
        run("/usr/bin/python3", "-c", code, pass_fds=[directory], **nobody)
        os.close(directory)
        assert stat.S_IMODE(program.stat().st_mode) == 0o777
        assert "security.capability" not in os.listxattr(program)
    # What counts is who writes, not who opened.
    program.chmod(0o6777)
    with program.open("ab") as file:
        command = ("/usr/bin/python3", "-c", f"import os; os.write({file.fileno()}, b'x')")
        run(*command, pass_fds=[file.fileno()], **nobody)
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o777


def test_immutable_by_chattr(place):
    path = place / "fixed"
    path.write_text("as it is")
    run("chattr", "+i", path)
    try:
        assert run("lsattr", path).split()[0].count("i") == 1
        for refused in (path.unlink, lambda: path.open("a"), lambda: path.rename(place / "other")):
            with pytest.raises(PermissionError):
                refused()
    finally:
        run("chattr", "-i", path)
    assert path.read_text() == "as it is"


def test_locks_are_free_as_soon_as_who_held_them_closes(place):
    (place / "lock").touch()
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    for take in (
        lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda fd: fcntl.fcntl(fd, 37, whole),  # F_OFD_SETLK
    ):
        waiting = [os.open(place / "lock", os.O_RDWR) for _ in range(20)]
        for fd, following in pairwise(waiting):
            take(fd)
            with pytest.raises(BlockingIOError):
                take(following)
            os.close(fd)
        take(waiting[-1])
        os.close(waiting[-1])


def test_a_disk_image(place):
    image, mounted = place / "image", place / "mounted"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    run("mkfs.ext4", "-q", "-F", image)
    mounted.mkdir()
    run("mount", "-o", "loop", image, mounted)
    try:
        for i in range(50):
            (mounted / str(i)).write_bytes(os.urandom(20_000))
        content = describe(mounted)
    finally:
        run("umount", mounted)
    run("e2fsck", "-f", "-n", image)
    run("mount", "-o", "loop,ro", image, mounted)
    try:
        assert describe(mounted) == content
    finally:
        run("umount", mounted)


def test_layer_of_an_overlay(place, tmp_path):
    lower, merged = place / "lower", tmp_path / "merged"
    for path in (lower / "d", merged, tmp_path / "upper", tmp_path / "work"):
        path.mkdir(parents=True)
    (lower / "kept").write_text("low")
    (lower / "d" / "gone").write_text("low")
    layers = f"lowerdir={lower},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    run("mount", "-t", "overlay", "overlay", "-o", layers, merged)
    try:
        with (merged / "kept").open("a") as file:
            file.write(" and high")
        shutil.rmtree(merged / "d")
        assert (merged / "kept").read_text() == "low and high"
        assert os.listdir(merged) == ["kept"]
    finally:
        run("umount", merged)
    assert (lower / "kept").read_text() == "low"
    assert (lower / "d" / "gone").exists()
