"""Checks of names: making, removing, renaming, linking, listing, and the errors of all these."""

import ctypes
import itertools
import os
import stat

from .calls import LIBC, OTHER, RENAME_EXCHANGE, RENAME_NOREPLACE, Probe, check, renameat2

LONG = "n" * 255
TOO_LONG = "n" * 256


@check
def open_errors(p: Probe) -> None:
    p.touch("f", content=b"x")
    p.mkdir("d")
    os.symlink("f", "to-f")
    os.symlink("nowhere", "dangling")
    os.symlink("loop2", "loop1")
    os.symlink("loop1", "loop2")
    for label, path, flags in (
        ("missing", "m", os.O_RDONLY),
        ("below a file", "f/x", os.O_RDONLY),
        ("create below a file", "f/x", os.O_CREAT | os.O_WRONLY),
        ("create in nothing", "m/x", os.O_CREAT | os.O_WRONLY),
        ("excl on file", "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        ("excl on dir", "d", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        ("excl on link", "to-f", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        ("excl on dangling", "dangling", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        ("creat on dir", "d", os.O_CREAT | os.O_WRONLY),
        ("creat on dir rdonly", "d", os.O_CREAT | os.O_RDONLY),
        ("write dir", "d", os.O_WRONLY),
        ("rdwr dir", "d", os.O_RDWR),
        ("trunc dir", "d", os.O_RDONLY | os.O_TRUNC),
        ("read dir", "d", os.O_RDONLY),
        ("directory on file", "f", os.O_RDONLY | os.O_DIRECTORY),
        ("directory on link", "to-f", os.O_RDONLY | os.O_DIRECTORY),
        ("nofollow", "to-f", os.O_RDONLY | os.O_NOFOLLOW),
        ("path nofollow", "to-f", os.O_PATH | os.O_NOFOLLOW),
        ("loop", "loop1", os.O_RDONLY),
        ("creat loop", "loop1", os.O_CREAT | os.O_WRONLY),
        ("creat through link", "to-f", os.O_CREAT | os.O_WRONLY),
        ("creat through dangling", "dangling", os.O_CREAT | os.O_WRONLY),
        ("long", LONG, os.O_CREAT | os.O_WRONLY),
        ("too long", TOO_LONG, os.O_CREAT | os.O_WRONLY),
        ("lookup too long", TOO_LONG + "/x", os.O_RDONLY),
        ("slash after file", "f/", os.O_RDONLY),
        ("create with slash", "new/", os.O_CREAT | os.O_WRONLY),
        ("rdonly trunc", "f", os.O_RDONLY | os.O_TRUNC),
    ):
        p.t(label, os.open, path, flags, 0o644)
    p.stat("f")
    p.note("listing", sorted(os.listdir(".")))


@check
def modes_of_new_things(p: Probe) -> None:
    for mask in (0o000, 0o022, 0o077, 0o777):
        os.umask(mask)
        fd = os.open(f"f{mask}", os.O_CREAT | os.O_RDWR, 0o6777)
        p.stat(fd, label=f"fstat {mask}")
        os.mkdir(f"d{mask}", 0o3777)
        p.stat(f"d{mask}")
        os.mkfifo(f"p{mask}", 0o666)
        p.stat(f"p{mask}")
        os.symlink("x", f"l{mask}")
        p.stat(f"l{mask}")
        os.mknod(f"n{mask}", stat.S_IFREG | 0o4777)
        p.stat(f"n{mask}")
        os.close(fd)


@check
def read_only_mode_binds_others_only(p: Probe) -> None:
    p.mkdir("d", 0o777)

    def user(q: Probe) -> None:
        fd = q.t("create 0444 for writing", os.open, "d/f", os.O_CREAT | os.O_WRONLY, 0o444)
        q.t("write", os.write, fd, b"data")
        q.t("truncate by descriptor", os.ftruncate, fd, 2)
        q.t("truncate by path", os.truncate, "d/f", 1)
        q.t("again", os.open, "d/f", os.O_WRONLY)
        q.t("creat again", os.open, "d/f", os.O_CREAT | os.O_WRONLY, 0o644)
        q.t("read", os.open, "d/f", os.O_RDONLY)
        os.close(fd)
        q.stat("d/f")
        fd = q.t("create 0 for both", os.open, "d/g", os.O_CREAT | os.O_RDWR, 0)
        q.t("write", os.write, fd, b"data")
        q.t("pread", os.pread, fd, 10, 0)
        q.t("fsync", os.fsync, fd)
        q.t("open", os.open, "d/g", os.O_RDONLY)

    p.as_user(user)


@check
def mknod_types(p: Probe) -> None:
    for label, kind, dev in (
        ("reg", stat.S_IFREG, 0),
        ("zero", 0, 0),
        ("fifo", stat.S_IFIFO, 0),
        ("sock", stat.S_IFSOCK, 0),
        ("chr", stat.S_IFCHR, os.makedev(1, 3)),
        ("blk", stat.S_IFBLK, os.makedev(7, 200)),
        ("dir", stat.S_IFDIR, 0),
        ("lnk", stat.S_IFLNK, 0),
    ):
        p.t(label, os.mknod, label, kind | 0o640, dev)
        p.stat(label)
        p.t(f"{label} again", os.mknod, label, kind | 0o640, dev)
    p.note("rdev", (os.lstat("chr").st_rdev, os.lstat("blk").st_rdev, os.lstat("reg").st_rdev))
    p.t("open socket", os.open, "sock", os.O_RDONLY)

    def user(q: Probe) -> None:
        q.t("chr", os.mknod, "pub/c", stat.S_IFCHR | 0o600, 259)
        q.t("fifo", os.mknod, "pub/p", stat.S_IFIFO | 0o600)

    p.mkdir("pub", 0o777)
    p.as_user(user)


@check
def mkdir_and_rmdir(p: Probe) -> None:
    p.t("mkdir", os.mkdir, "d")
    p.t("again", os.mkdir, "d")
    p.t("slash", os.mkdir, "e/")
    p.t("in nothing", os.mkdir, "x/y")
    p.touch("f")
    p.t("on file", os.mkdir, "f")
    p.t("below file", os.mkdir, "f/d")
    p.t("dot", os.mkdir, ".")
    p.t("dotdot", os.mkdir, "d/..")
    p.t("too long", os.mkdir, TOO_LONG)
    os.symlink("nowhere", "dangling")
    p.t("on dangling", os.mkdir, "dangling")
    os.mkdir("d/sub")
    p.stat("d")
    p.t("rmdir full", os.rmdir, "d")
    p.t("rmdir dot", os.rmdir, "d/sub/.")
    p.t("rmdir dotdot", os.rmdir, "d/sub/..")
    p.t("rmdir file", os.rmdir, "f")
    p.t("rmdir link", os.rmdir, "dangling")
    p.t("rmdir missing", os.rmdir, "missing")
    p.t("rmdir", os.rmdir, "d/sub")
    p.stat("d")
    p.t("rmdir", os.rmdir, "d")
    p.t("long", os.mkdir, LONG)
    p.t("rmdir long", os.rmdir, LONG)


@check
def removed_directory(p: Probe) -> None:
    os.mkdir("d")
    fd = os.open("d", os.O_RDONLY)
    os.rmdir("d")
    p.stat(fd, label="fstat")
    p.t("list", os.listdir, fd)
    p.t("create in", os.open, "f", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
    p.t("mkdir in", os.mkdir, "f", dir_fd=fd)
    p.t("lookup in", os.stat, "f", dir_fd=fd)
    p.t("dotdot", lambda: os.stat("..", dir_fd=fd).st_ino == os.stat(".").st_ino)
    p.t("chmod", os.fchmod, fd, 0o700)
    p.t("fsync", os.fsync, fd)


@check
def unlink_errors(p: Probe) -> None:
    p.touch("f")
    os.mkdir("d")
    os.symlink("d", "l")
    p.t("missing", os.unlink, "m")
    p.t("dir", os.unlink, "d")
    p.t("below file", os.unlink, "f/x")
    p.t("too long", os.unlink, TOO_LONG)
    p.t("slash", os.unlink, "f/")
    p.t("link", os.unlink, "l")
    p.t("file", os.unlink, "f")
    p.t("again", os.unlink, "f")
    p.note("listing", sorted(os.listdir(".")))


@check
def unlinked_open_file(p: Probe) -> None:
    fd = os.open("f", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, b"abc")
    p.t("unlink", os.unlink, "f")
    p.stat(fd, label="fstat")
    p.t("write", os.write, fd, b"def")
    p.t("read", os.pread, fd, 10, 0)
    p.t("chmod", os.fchmod, fd, 0o600)
    p.t("truncate", os.ftruncate, fd, 4)
    p.t("fsync", os.fsync, fd)
    p.t("utime", os.utime, fd, ns=(1, 2))
    p.stat(fd, label="fstat")
    p.t("read", os.pread, fd, 10, 0)
    again = p.t("reopen", os.open, f"/proc/self/fd/{fd}", os.O_RDWR)
    if again is not None:
        p.t("read again", os.pread, again, 10, 0)
        os.close(again)
    p.t("read", os.pread, fd, 10, 0)
    p.t("link back", os.link, f"/proc/self/fd/{fd}", "g", follow_symlinks=True)
    p.t("create same name", os.open, "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    p.stat("f")
    p.t("read", os.pread, fd, 10, 0)


@check
def rename_over_open_file(p: Probe) -> None:
    p.touch("a", content=b"aaa")
    p.touch("b", content=b"bbbb")
    a, b = os.open("a", os.O_RDWR), os.open("b", os.O_RDWR)
    os.pwrite(b, b"BB", 0)
    p.t("rename", os.rename, "a", "b")
    p.t("read new", os.pread, a, 10, 0)
    p.t("read old", os.pread, b, 10, 0)
    p.t("write old", os.pwrite, b, b"zz", 3)
    p.stat(a, label="new")
    p.stat(b, label="old")
    os.close(b)
    p.stat("b")
    with open("b", "rb") as file:
        p.note("content", file.read())


@check
def rename_matrix(p: Probe) -> None:
    """A directory serves until a call has succeeded in it:
    what was refused has left it as it was, or the next calls differ.
    """
    numbers = itertools.count()

    def fresh() -> str:
        directory = f"w{next(numbers)}"
        os.mkdir(directory)
        os.chdir(directory)
        p.touch("f", content=b"f")
        p.touch("f2", content=b"f2")
        os.link("f", "f-link")
        os.mkdir("d")
        os.mkdir("d-full")
        p.touch("d-full/x")
        os.mkdir("d-empty")
        os.symlink("f", "l")
        os.symlink("nowhere", "l2")
        os.mkfifo("p")
        os.chdir("..")
        return directory

    directory = ""
    kinds = ("f", "f2", "f-link", "d", "d-full", "d-empty", "l", "l2", "p", "missing", "f/x", "m/x")
    for flags in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
        for old in ("f", "f-link", "d", "d-full", "l", "missing", "f/x"):
            for new in (*kinds, "d-full/y", "d/sub", "."):
                directory = directory or fresh()
                os.chdir(directory)
                p.t(f"{old} -> {new} flags {flags}", renameat2, old, new, flags)
                directory = directory if p.was_refused else ""
                p.note("listing", sorted((n, os.lstat(n).st_nlink) for n in os.listdir(".")))
                os.chdir("..")


@check
def rename_special(p: Probe) -> None:
    os.makedirs("a/b/c")
    p.touch("f")
    p.t("into itself", os.rename, "a", "a/b/x")
    p.t("into own child", os.rename, "a", "a/b")
    p.t("onto parent", os.rename, "a/b/c", "a/b")
    p.t("exchange with ancestor", renameat2, "a", "a/b", RENAME_EXCHANGE)
    p.t("dot", os.rename, "a/.", "x")
    p.t("dotdot", os.rename, "a/b/..", "x")
    p.t("to dot", os.rename, "a/b", "a/.")
    p.t("too long", os.rename, "f", TOO_LONG)
    p.t("long", os.rename, "f", LONG)
    p.t("back", os.rename, LONG, "f")
    p.t("file with slash", os.rename, "f/", "g")
    p.t("to slash", os.rename, "f", "g/")
    p.t("dir to slash", os.rename, "a", "z/")
    p.t("both flags", renameat2, "f", "g", RENAME_NOREPLACE | RENAME_EXCHANGE)
    p.t("unknown flags", renameat2, "f", "g", 64)
    p.t("move dir", os.rename, "z/b/c", "c")
    p.stat("z/b")
    p.stat("c")
    p.t("dotdot is here", lambda: os.stat("c/..").st_ino == os.stat(".").st_ino)
    p.t("other device", os.rename, "f", "/proc/f")


@check
def links(p: Probe) -> None:
    p.touch("f", content=b"x")
    os.mkdir("d")
    os.symlink("f", "l")
    os.symlink("nowhere", "dangling")
    p.t("link", os.link, "f", "g")
    p.stat("g")
    p.t("exists", os.link, "f", "g")
    p.t("dir", os.link, "d", "e")
    p.t("missing", os.link, "m", "n")
    p.t("to missing dir", os.link, "f", "m/n")
    p.t("below file", os.link, "f", "g/n")
    p.t("symlink itself", os.link, "l", "l2", follow_symlinks=False)
    p.stat("l2")
    p.stat("l")
    p.t("dangling", os.link, "dangling", "h", follow_symlinks=False)
    p.t("too long", os.link, "f", TOO_LONG)
    p.t("fifo", os.mkfifo, "p")
    p.t("link fifo", os.link, "p", "p2")
    p.changes("link moves ctime", "f", lambda: os.link("f", "k"))
    p.changes("unlink moves ctime", "f", lambda: os.unlink("k"))
    p.changes("link moves parent", ".", lambda: os.link("f", "k"))


@check
def symlinks(p: Probe) -> None:
    for label, target, name in (
        ("plain", "t", "a"),
        ("empty", "", "b"),
        ("exists", "t", "a"),
        ("long", "t" * 4095, "c"),
        ("too long target", "t" * 4096, "d"),
        ("too long name", "t", TOO_LONG),
        ("below link", "t", "a/x"),
        ("slash", "t", "s/"),
    ):
        p.t(label, os.symlink, target, name)
    p.stat("a")
    p.t("readlink", os.readlink, "a")
    p.t("readlink long", lambda: len(os.readlink("c")))
    p.touch("f")
    p.t("readlink file", os.readlink, "f")
    p.t("readlink missing", os.readlink, "m")
    p.t("lchown", os.lchown, "a", OTHER, OTHER)
    p.stat("a")
    p.t("lutimes", os.utime, "a", ns=(5, 6), follow_symlinks=False)
    p.note("mtime", os.lstat("a").st_mtime_ns)
    p.t("chmod through dangling", os.chmod, "a", 0o600)
    previous = "f"
    for i in range(45):
        os.symlink(previous, f"chain{i}")
        previous = f"chain{i}"
    p.t("40 links", lambda: os.stat("chain39").st_size)
    p.t("41 links", lambda: os.stat("chain40").st_size)


@check
def listing(p: Probe) -> None:
    names = sorted([f"name{i:04}" for i in range(1500)] + ["ü", "\udcff", " ", "a\nb"])
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644))
    p.note("all", sorted(os.listdir(".")) == names)
    with os.scandir(".") as entries:
        seen = []
        for entry in entries:
            seen.append(entry.name)
            if entry.name.endswith(("3", "7")):
                os.unlink(entry.name)
    p.note("unlinking while listing", (sorted(seen) == names, len(os.listdir("."))))
    os.mkdir("sub")
    os.symlink("x", "link")
    os.mkfifo("fifo")
    with os.scandir(".") as entries:
        kinds = {
            e.name: (e.is_dir(follow_symlinks=False), e.is_symlink(), e.is_file())
            for e in entries
            if not e.name.startswith("name")
        }
    p.note("kinds", sorted(kinds.items()))
    with os.scandir(".") as entries:
        p.note("inode numbers", all(e.inode() == os.lstat(e.name).st_ino for e in entries))
    p.t("of a file", os.listdir, "fifo")


@check
def telldir(p: Probe) -> None:
    LIBC.opendir.restype = ctypes.c_void_p
    LIBC.readdir.restype = ctypes.c_void_p
    for name in (LIBC.readdir, LIBC.telldir, LIBC.rewinddir, LIBC.closedir):
        name.argtypes = [ctypes.c_void_p]
    LIBC.telldir.restype = ctypes.c_long
    LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]

    def next_name(directory: int) -> bytes:
        entry = LIBC.readdir(directory)
        return ctypes.string_at(entry + 19) if entry else b""

    for i in range(900):
        os.mkdir(f"{i:03}")
    directory = LIBC.opendir(b".")
    places = []
    while name := next_name(directory):
        places.append((LIBC.telldir(directory), name))
    p.note("count", len(places))
    good = 0
    for (before, _), (_, name) in list(itertools.pairwise(places))[::37]:
        LIBC.seekdir(directory, before)
        good += next_name(directory) == name
    p.note("found again", good)
    LIBC.rewinddir(directory)
    for (before, _), (_, name) in list(itertools.pairwise(places))[::-37]:
        LIBC.seekdir(directory, before)
        good += next_name(directory) == name
        LIBC.rewinddir(directory)
    p.note("found again from the beginning", good)
    os.mkdir("new")
    LIBC.rewinddir(directory)
    again = []
    while name := next_name(directory):
        again.append(name)
    p.note("after rewinding", len(again))
    LIBC.closedir(directory)


@check
def listing_without_search(p: Probe) -> None:
    p.mkdir("d", 0o755)
    p.touch("d/one")
    os.mkdir("d/two")
    os.chmod("d", 0o744)
    p.mkdir("x", 0o711)
    p.touch("x/f")

    def user(q: Probe) -> None:
        q.t("names", lambda: sorted(os.listdir("d")))
        q.t("stat", os.stat, "d/one")
        q.t("open", os.open, "d/one", os.O_RDONLY)
        q.t("list x", os.listdir, "x")
        q.t("open x/f", os.open, "x/f", os.O_RDONLY)
        q.t("create in d", os.open, "d/n", os.O_CREAT | os.O_WRONLY)

    p.as_user(user)


@check
def times_of_directories(p: Probe) -> None:
    os.mkdir("d")
    p.touch("f")
    for label, call in (
        ("create", lambda: os.close(os.open("d/f", os.O_CREAT | os.O_WRONLY))),
        ("open existing", lambda: os.close(os.open("d/f", os.O_CREAT | os.O_WRONLY))),
        ("excl", lambda: os.open("d/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        ("mkdir", lambda: os.mkdir("d/d")),
        ("symlink", lambda: os.symlink("x", "d/l")),
        ("mkfifo", lambda: os.mkfifo("d/p")),
        ("link", lambda: os.link("f", "d/k")),
        ("rename in", lambda: os.rename("f", "d/f2")),
        ("rename within", lambda: os.rename("d/f2", "d/f3")),
        ("rename out", lambda: os.rename("d/f3", "f")),
        ("unlink", lambda: os.unlink("d/f")),
        ("rmdir", lambda: os.rmdir("d/d")),
        ("chmod", lambda: os.chmod("d", 0o700)),
        ("nothing", lambda: len(os.listdir("d"))),
    ):
        p.changes(label, "d", call)
