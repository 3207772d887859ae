"""Real applications on the mount of a real cluster: what people do all day must just work."""

import mmap
import os
import sqlite3
import stat
import subprocess
import sys
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
        info + "WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
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
        '#include <stdio.h>\nint square(int);\nint main(void){printf("%d\\n", square(7));return 0;}\n'
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
    assert len(run(*command).splitlines()) > 300
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
    script = "for i in $(seq 50); do (echo line $i >> log; mv log log.tmp; mv log.tmp log); done; wc -l < log"
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
