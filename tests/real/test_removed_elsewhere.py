"""A directory that one mount removes and makes again by the same name, used by another that has
just looked at it: every system call comes to the new directory, or to none if there is none.

Who holds the removed directory open, or works in it, finds nothing there, as on a local file
system.
"""

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.examples import some_of
from tests.posix.calls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

from .conftest import EMBER, scaled

pytestmark = [pytest.mark.mount, pytest.mark.slow, pytest.mark.timeout(900)]


def make(place: Path) -> None:
    """Make a directory with one of everything that a call needs."""
    d = place / "d"
    d.mkdir()
    for name in ("f", "g"):
        (d / name).write_text("found")
        os.setxattr(d / name, "user.a", b"1")
    (d / "l").symlink_to("f")
    (d / "e").mkdir()
    (d / "run").write_text("#!/bin/sh\nexit 7\n")
    (d / "run").chmod(0o755)
    (place / "f").write_text("outside")


def opened(path: Path | str, flags: int, **where: int) -> None:
    os.close(os.open(path, flags, 0o644, **where))


def read(path: Path) -> None:
    assert path.read_text() == "found"


def accessed(path: Path | str, **where: int) -> None:
    if not os.access(path, os.R_OK, **where):
        raise FileNotFoundError(path)


def gone_into(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path)
    os.chdir(before)


def executed(path: Path) -> None:
    assert subprocess.run([path], check=False).returncode == 7


CREATE, EXCLUSIVE = os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL
CALLS: dict[str, Callable[[Path, Path], object]] = {
    "open": lambda d, _: read(d / "f"),
    "open to append": lambda d, _: opened(d / "f", os.O_WRONLY | os.O_APPEND),
    "open to truncate": lambda d, _: opened(d / "f", os.O_WRONLY | os.O_TRUNC),
    "open through a link": lambda d, _: read(d / "l"),
    "open O_CREAT": lambda d, _: opened(d / "new", CREATE),
    "open O_CREAT of what is there": lambda d, _: opened(d / "f", CREATE),
    "open O_EXCL": lambda d, _: opened(d / "new", EXCLUSIVE),
    "open O_PATH": lambda d, _: opened(d / "f", os.O_PATH),
    "stat": lambda d, _: os.stat(d / "f"),
    "lstat": lambda d, _: os.lstat(d / "l"),
    "access": lambda d, _: accessed(d / "f"),
    "mkdir": lambda d, _: os.mkdir(d / "new"),
    "mknod": lambda d, _: os.mknod(d / "new", stat.S_IFREG | 0o644),
    "mkfifo": lambda d, _: os.mkfifo(d / "new"),
    "symlink": lambda d, _: os.symlink("f", d / "new"),
    "link from": lambda d, outside: os.link(d / "f", outside / "new"),
    "link to": lambda d, outside: os.link(outside / "f", d / "new"),
    "link within": lambda d, _: os.link(d / "f", d / "new"),
    "rename from": lambda d, outside: os.rename(d / "f", outside / "new"),
    "rename to": lambda d, outside: os.rename(outside / "f", d / "new"),
    "rename over": lambda d, outside: os.rename(outside / "f", d / "f"),
    "rename within": lambda d, _: os.rename(d / "f", d / "new"),
    "rename of a directory": lambda d, outside: os.rename(d / "e", outside / "new"),
    "RENAME_NOREPLACE": lambda d, outside: renameat2(f"{outside}/f", f"{d}/new", RENAME_NOREPLACE),
    "RENAME_EXCHANGE": lambda d, outside: renameat2(f"{outside}/f", f"{d}/f", RENAME_EXCHANGE),
    "unlink": lambda d, _: os.unlink(d / "f"),
    "rmdir": lambda d, _: os.rmdir(d / "e"),
    "chmod": lambda d, _: os.chmod(d / "f", 0o600),
    "chown": lambda d, _: os.chown(d / "f", 1, 1),
    "lchown": lambda d, _: os.lchown(d / "l", 1, 1),
    "utime": lambda d, _: os.utime(d / "f", (1, 1)),
    "truncate": lambda d, _: os.truncate(d / "f", 1),
    "statfs": lambda d, _: os.statvfs(d / "f"),
    "getxattr": lambda d, _: os.getxattr(d / "f", "user.a"),
    "setxattr": lambda d, _: os.setxattr(d / "f", "user.b", b"2"),
    "listxattr": lambda d, _: os.listxattr(d / "f"),
    "removexattr": lambda d, _: os.removexattr(d / "f", "user.a"),
    "readlink": lambda d, _: os.readlink(d / "l"),
    "execve": lambda d, _: executed(d / "run"),
}
TO_WHAT_IS_THERE: dict[str, Callable[[Path, Path], object]] = {
    "opendir": lambda d, _: os.listdir(d / "e"),
    "chdir": lambda d, _: gone_into(d / "e"),
}
"""These come to a removed directory that the kernel still knows, too, and find it empty."""
UNNAMED: dict[str, Callable[[Path, Path], object]] = {
    "open O_TMPFILE": lambda d, _: opened(d, os.O_WRONLY | os.O_TMPFILE),
}
"""By the direct frontend only."""

FROM: dict[str, Callable[[int, str], object]] = {
    "open": lambda fd, _: opened("f", os.O_RDONLY, dir_fd=fd),
    "open O_CREAT": lambda fd, _: opened("new", CREATE, dir_fd=fd),
    "open O_CREAT of what was there": lambda fd, _: opened("f", CREATE, dir_fd=fd),
    "stat": lambda fd, _: os.stat("f", dir_fd=fd),
    "access": lambda fd, _: accessed("f", dir_fd=fd),
    "mkdir": lambda fd, _: os.mkdir("new", dir_fd=fd),
    "mknod": lambda fd, _: os.mknod("new", stat.S_IFREG | 0o644, dir_fd=fd),
    "mkfifo": lambda fd, _: os.mkfifo("new", dir_fd=fd),
    "symlink": lambda fd, _: os.symlink("f", "new", dir_fd=fd),
    "link from": lambda fd, outside: os.link("f", f"{outside}/new", src_dir_fd=fd),
    "link to": lambda fd, outside: os.link(f"{outside}/f", "new", dst_dir_fd=fd),
    "link to what is there": lambda fd, outside: os.link(f"{outside}/f", "g", dst_dir_fd=fd),
    "rename from": lambda fd, outside: os.rename("f", f"{outside}/new", src_dir_fd=fd),
    "rename to": lambda fd, outside: os.rename(f"{outside}/f", "new", dst_dir_fd=fd),
    "rename within": lambda fd, _: os.rename("f", "new", src_dir_fd=fd, dst_dir_fd=fd),
    "unlink": lambda fd, _: os.unlink("f", dir_fd=fd),
    "rmdir": lambda fd, _: os.rmdir("e", dir_fd=fd),
    "chmod": lambda fd, _: os.chmod("f", 0o600, dir_fd=fd),
    "chown": lambda fd, _: os.chown("f", 1, 1, dir_fd=fd),
    "utime": lambda fd, _: os.utime("f", (1, 1), dir_fd=fd),
    "readlink": lambda fd, _: os.readlink("l", dir_fd=fd),
}
"""By a descriptor of the directory."""
SHOWN = {"stat", "access"}
"""Those to which the kernel shows, for a second, what it has from a listing."""

WORKER = """
import errno, json, os, stat, sys
os.chdir(sys.argv[1])
os.stat("f")
print("there", flush=True)
sys.stdin.readline()
calls = {
    "open": lambda: os.open("f", os.O_RDONLY),
    "create": lambda: os.open("new", os.O_WRONLY | os.O_CREAT),
    "stat": lambda: os.stat("f"),
    "mkdir": lambda: os.mkdir("new"),
    "mknod": lambda: os.mknod("new", stat.S_IFREG | 0o644),
    "symlink": lambda: os.symlink("f", "new"),
    "link": lambda: os.link("f", "new"),
    "rename": lambda: os.rename("f", "new"),
    "unlink": lambda: os.unlink("f"),
    "rmdir": lambda: os.rmdir("e"),
    "chmod": lambda: os.chmod("f", 0o600),
    "readlink": lambda: os.readlink("l"),
}
told = {}
for name, call in calls.items():
    for _ in range(3):
        try:
            call()
            word = "done"
        except OSError as error:
            word = errno.errorcode[error.errno]
        told.setdefault(name, []).append(word)
print(json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def second_mount(cluster, tmp_path_factory):
    mount = tmp_path_factory.mktemp("second")
    cluster.ember("mount", mount, "--dir", cluster.directory)
    yield mount
    subprocess.run([EMBER, "umount", mount, "--dir", cluster.directory], check=True, timeout=60)


@pytest.fixture
def other(second_mount, place) -> Path:
    """The same directory by the second mount, with a directory `d` in it, and a file outside."""
    make(place)
    return second_mount / place.name


@pytest.fixture
def by_pyfuse3(cluster, second_mount) -> None:
    """Have the second mount served by the other frontend."""
    config_dir = cluster.directory / "config"
    (config,) = [c for c in config_dir.glob("mount-*.toml") if str(second_mount) in c.read_text()]
    for old, new in (("direct", "libfuse"), ("libfuse", "direct")):
        text = config.read_text()
        config.write_text(text.replace(f'frontend = "{old}"', f'frontend = "{new}"'))
        cluster.kill(config.stem)
        while not os.path.ismount(second_mount):  # its successor is there
            time.sleep(0.1)
        if new == "libfuse":
            yield


def told(act: Callable[..., object], *args: object) -> str:
    """Return what a program is told of a call, empty: it is done."""
    try:
        act(*args)
    except FileNotFoundError:
        return "ENOENT"
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""


def look(d: Path) -> None:
    for name in ("f", "g", "l", "e", "run"):
        os.lstat(d / name)


SEEN: dict[str, Callable[[Path], object]] = {
    "names": look,
    "names by a listing": os.listdir,
    "directory": os.stat,
}
"""What the kernel knows of by its programs."""


def make_again(place: Path) -> None:
    """Remove a directory, and make it again by the same name."""
    shutil.rmtree(place / "d")
    make(place)


def come_to_the_new_one(place: Path, other: Path, call: str, seen: str) -> None:
    """Call, and expect what the same call does where nothing is removed."""
    act = (CALLS | UNNAMED)[call]
    (place / "twin").mkdir()
    make(place / "twin")
    act(place / "twin" / "d", place / "twin")
    SEEN[seen](other / "d")
    make_again(place)
    act(other / "d", other)
    for where in (".", "d"):
        names = set(os.listdir(place / "twin" / where))
        assert set(os.listdir(place / where)) - {"twin"} == names, (call, where)


CASES = [(call, "names") for call in CALLS | UNNAMED]
MORE_CASES = [(call, seen) for call in CALLS | UNNAMED for seen in SEEN if seen != "names"]


@pytest.mark.parametrize(("call", "seen"), CASES + some_of(MORE_CASES, 15))
def test_a_call_comes_to_the_new_directory(other, place, call, seen):
    come_to_the_new_one(place, other, call, seen)


@pytest.mark.usefixtures("by_pyfuse3")
def test_so_it_does_by_pyfuse3(second_mount, place):
    for call in CALLS:
        here = place / call
        here.mkdir()
        make(here)
        come_to_the_new_one(here, second_mount / place.name / call, call, "names")


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("call", TO_WHAT_IS_THERE)
def test_a_call_comes_to_a_directory(other, place, call, seen):
    SEEN[seen](other / "d")
    make_again(place)
    TO_WHAT_IS_THERE[call](other / "d", other)


def test_a_call_finds_nothing_in_what_is_removed_for_good(other, place):
    for call, act in (CALLS | UNNAMED).items():
        look(other / "d")
        shutil.rmtree(place / "d")
        assert [told(act, other / "d", other) for _ in range(2)] == ["ENOENT"] * 2, call
        make(place)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_PATH], ids=["open", "O_PATH"])
@pytest.mark.parametrize("seen", SEEN)
def test_a_descriptor_leads_to_the_removed_one(other, place, flags, seen):
    SEEN[seen](other / "d")
    for name, call in FROM.items():
        if seen == "names by a listing" and name in SHOWN:
            continue
        fd = os.open(other / "d", flags | os.O_DIRECTORY)
        try:
            make_again(place)
            numbers = [told(call, fd, f"{other}") for _ in range(3)]
            assert numbers == ["ENOENT"] * 3, name
            assert os.fstat(fd).st_ino != os.stat(place / "d").st_ino
        finally:
            os.close(fd)
        SEEN[seen](other / "d")


def test_who_came_by_a_descriptor_comes_by_the_path_next(other, place):
    look(other / "d")
    fd = os.open(other / "d", os.O_RDONLY | os.O_DIRECTORY)
    make_again(place)
    with pytest.raises(FileNotFoundError):
        os.stat("f", dir_fd=fd)
    os.stat(other / "d" / "f")
    os.close(fd)


def test_an_open_listing_goes_on(other, place):
    with os.scandir(other / "d") as listing:
        first = next(listing)
        make_again(place)
        assert {first.name, *(entry.name for entry in listing)} == {"f", "g", "l", "e", "run"}


def test_who_works_in_the_removed_one_finds_nothing(other, place):
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, other / "d"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout.readline() == "there\n"
        make_again(place)
        told = json.loads(worker.communicate("\n")[0])
    assert told == {name: ["ENOENT"] * 3 for name in told}


def replace(place: Path) -> None:
    """Have another directory in the place of `d`, where there is one all the time."""
    (place / "next").mkdir()
    while True:
        number = told((place / "next").rename, place / "d")
        if number == "":
            return
        assert number == "ENOTEMPTY"


def made_and_removed(d: Path, tag: str) -> Iterator[Callable[[], object]]:
    path = d / tag
    yield lambda: opened(path, EXCLUSIVE)
    yield path.unlink
    yield path.mkdir
    yield path.rmdir
    yield lambda: path.symlink_to("x")
    yield path.unlink
    yield lambda: os.path.lexists(path) and pytest.fail("there")
    yield lambda: None
    yield lambda: opened(path, CREATE)
    yield path.unlink


def test_one_after_the_other_is_found_by_each_call(other, place):
    """Also by a thread that does the same thing again."""
    shutil.rmtree(place / "d")
    (place / "d").mkdir()
    os.stat(other / "d")
    for turn in range(scaled(4, 40)):
        acts = list(made_and_removed(other / "d", "x"))
        for begin in range(0, len(acts), 2):
            replace(place)
            acts[begin]()
            acts[begin + 1]()
        assert os.listdir(place / "d") == [], turn


def test_no_program_hears_of_it_however_often_it_happens(other, place):
    shutil.rmtree(place / "d")
    (place / "d").mkdir()
    failures, is_over = [], threading.Event()

    def work(tag: str) -> None:
        while not is_over.is_set():
            for act in made_and_removed(other / "d", tag):
                try:
                    act()
                except FileNotFoundError:
                    pass  # twice in one call
                except FileExistsError:
                    pass  # made by one whose removal came upon that
                except OSError as error:
                    failures.append(error)

    threads = [threading.Thread(target=work, args=(tag,)) for tag in "abc"]
    for thread in threads:
        thread.start()
    for _ in range(scaled(60, 600)):
        (place / "next").mkdir(exist_ok=True)
        with suppress(OSError):
            (place / "next").rename(place / "d")
    is_over.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_socket_is_bound_to_a_name_or_to_none(other, place, monkeypatch):
    """bind(2) never walks again, so it may find nothing."""
    look(other / "d")
    make_again(place)
    monkeypatch.chdir(other)
    with socket.socket(socket.AF_UNIX) as bound, suppress(FileNotFoundError):
        bound.bind("d/socket")
