"""Checks of every call that takes a path: at the limits of names and paths, through loops,
below what is no directory.
"""

import os
import stat
from collections.abc import Callable

from .calls import OTHER, USER, Probe, check, renameat2

NAME_MAX, PATH_MAX = 255, 4095


def go_and_return(path: str) -> None:
    """Go somewhere and come back, however far it was."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path)
        os.fchdir(here)
    finally:
        os.close(here)


BY_PATH: dict[str, Callable[[str], object]] = {
    "stat": lambda path: os.stat(path) and None,
    "lstat": lambda path: os.lstat(path) and None,
    "access": lambda path: os.access(path, os.F_OK),
    "readlink": os.readlink,
    "list": os.listdir,
    "chdir": go_and_return,
    "open": lambda path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)),
    "open for writing": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)),
    "open nofollow": lambda path: os.close(os.open(path, os.O_NOFOLLOW | os.O_NONBLOCK)),
    "open as directory": lambda path: os.close(os.open(path, os.O_DIRECTORY)),
    "truncate": lambda path: os.truncate(path, 0),
    "chmod": lambda path: os.chmod(path, 0o700),
    "chown": lambda path: os.chown(path, USER, -1),
    "lchown": lambda path: os.lchown(path, OTHER, -1),
    "utime": lambda path: os.utime(path, ns=(1, 2)),
    "lutime": lambda path: os.utime(path, ns=(1, 2), follow_symlinks=False),
    "set attribute": lambda path: os.setxattr(path, "user.a", b"1"),
    "get attribute": lambda path: os.getxattr(path, "user.none"),
    "link from": lambda path: os.link(path, "from-here", follow_symlinks=False),
    "rename from": lambda path: os.rename(path, "from-here"),
    "exchange from": lambda path: renameat2(path, "there", 2),
    "rmdir": os.rmdir,
    "unlink": os.unlink,
}
MAKERS: dict[str, Callable[[str], object]] = {
    "create": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)),
    "create anew": lambda path: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0)),
    "mkdir": os.mkdir,
    "mkfifo": os.mkfifo,
    "mknod": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "symlink": lambda path: os.symlink("x", path),
    "link to": lambda path: os.link("there", path),
    "rename to": lambda path: os.rename("there", path),
    "exchange to": lambda path: renameat2("there", path, 2),
}
ALL = BY_PATH | MAKERS


def _each(p: Probe, path: str, label: str, calls: dict[str, Callable[[str], object]]) -> None:
    """Make each call, with a file `there` at hand, and note what it did to what lies here."""
    for name, call in calls.items():
        if not os.path.lexists("there") and os.access(".", os.W_OK):
            p.touch("there")
        p.t(f"{name} {label}", call, path)
        here = sorted(os.listdir("."))
        p.note(f"{name} {label} leaves", [n if len(n) < 50 else len(n) for n in here])
        if "from-here" in here and os.access(".", os.W_OK):
            os.rename("from-here", path)


def _made_and_removed(p: Probe, path: str, label: str) -> None:
    """Make something of each kind at a path, use it, and remove it."""
    for name, call in MAKERS.items():
        if not os.path.lexists("there"):
            p.touch("there")
        p.t(f"{name} {label}", call, path)
        p.stat(path, label=f"{name} {label} made")
        if name == "mkdir":
            p.t(f"list {label}", os.listdir, path)
            p.t(f"rename directory {label}", os.rename, path, "d")
            p.t(f"rename directory back {label}", os.rename, "d", path)
            p.t(f"rmdir {label}", os.rmdir, path)
            continue
        p.t(f"chmod {label}", os.chmod, path, 0o640)
        p.t(f"lchown {label}", os.lchown, path, USER, USER)
        p.t(f"link {label}", os.link, path, "k", follow_symlinks=False)
        p.t(f"rename {label}", os.rename, path, "moved")
        p.t(f"rename back {label}", os.rename, "moved", path)
        p.stat(path, label=f"{name} {label} again")
        p.t(f"unlink {label}", os.unlink, path)
        p.t(f"unlink link {label}", os.unlink, "k")


@check
def names_of_every_length(p: Probe) -> None:
    for length in (NAME_MAX - 1, NAME_MAX):
        _made_and_removed(p, "n" * length, f"{length}")
    _made_and_removed(p, "ü" * 127, "254 bytes")
    for label, path in (
        ("name too long", "n" * 256),
        ("name too long by bytes", "ü" * 128),
        ("below a name too long", "n" * 256 + "/x"),
        ("name too long below nothing", "missing/" + "n" * 256),
        ("name too long below a file", "there/" + "n" * 256),
    ):
        _each(p, path, label, ALL)


def _path_of(length: int, top: str) -> str:
    """Make directories below `top` so that a path of exactly that many bytes can be made."""
    path = top
    os.mkdir(top)
    while length - len(path) > NAME_MAX + 1:
        step = min(200, length - len(path) - 3)
        path += "/" + "d" * step
        os.mkdir(path)
    return path + "/" + "e" * (length - len(path) - 1)


@check
def paths_of_every_length(p: Probe) -> None:
    path = _path_of(PATH_MAX, "deep")
    p.note("length", len(path))
    _made_and_removed(p, path, "4095")
    _each(p, path + "x", "path too long", ALL)
    _each(p, "x" * 5000, "one long word", ALL)


@check
def loops_and_chains_of_links(p: Probe) -> None:
    os.symlink("loop-b", "loop-a")
    os.symlink("loop-a", "loop-b")
    os.symlink("self/x", "self")
    readers = dict(BY_PATH)
    for name in (
        "rename from",
        "link from",
        "exchange from",
        "unlink",
        "rmdir",
        "lchown",
        "lutime",
    ):
        del readers[name]
    for path in ("loop-a", "self"):
        _each(p, path, path, readers)
        _each(
            p, path, path, {n: MAKERS[n] for n in MAKERS if n not in {"rename to", "exchange to"}}
        )
    for path in ("loop-a/x", "self/x", "loop-b/"):
        _each(p, path, path, ALL)
    os.mkdir("real")
    previous = "real"
    for i in range(42):
        os.symlink(previous, f"l{i:02}")
        previous = f"l{i:02}"
    for number in (38, 39, 40):
        for name, call in MAKERS.items():
            p.touch("there")
            p.t(f"{name} through {number}", call, f"l{number}/{name.replace(' ', '-')}")
    p.note("made", sorted(os.listdir("real")))


@check
def what_is_no_directory_leads_nowhere(p: Probe) -> None:
    p.touch("file")
    os.mkfifo("fifo")
    os.mknod("socket", stat.S_IFSOCK | 0o777)
    os.mknod("device", stat.S_IFCHR | 0o777, os.makedev(1, 3))
    os.symlink("file", "link")
    os.symlink("missing", "dangling")
    for kind in ("file", "fifo", "socket", "device", "link", "dangling", "missing"):
        _each(p, f"{kind}/x", f"below {kind}", ALL)
    for kind in ("file", "fifo", "link", "dangling"):
        for name, call in ALL.items():
            p.touch("there")
            before = os.path.lexists("from-here")
            p.t(f"{name} {kind} with slash", call, f"{kind}/")
            p.note("moved", (before, os.path.lexists("from-here"), os.path.lexists(kind)))
    _each(p, "", "empty", ALL)
    _each(p, "/proc/version", "other device", {n: ALL[n] for n in ("link from", "rename from")})
    _each(p, "/proc/x", "other device", {n: MAKERS[n] for n in ("link to", "rename to")})
    _each(p, "/proc/x/y", "nothing there", {n: MAKERS[n] for n in ("link to", "rename to")})
