"""Checks of who may do what: mode bits, owners, groups, sticky and set-id bits,
times, attributes.
"""

import ctypes
import os
from collections.abc import Callable

from .calls import (
    AT_FDCWD,
    GROUP,
    LIBC,
    OTHER,
    OTHER_GROUP,
    USER,
    Probe,
    check,
    renameat2,
)


@check
def chmod_rules(p: Probe) -> None:
    p.touch("f")
    os.chown("f", USER, GROUP)
    for mode in (0o7777, 0o2755, 0o4711, 0o1000, 0):
        p.t(f"root {mode:o}", os.chmod, "f", mode)
        p.stat("f")

    def owner(q: Probe) -> None:
        for mode in (0o7777, 0o2755, 0o2745, 0o4711, 0o1644, 0):
            q.t(f"owner {mode:o}", os.chmod, "f", mode)
            q.stat("f")

    p.as_user(owner)
    p.as_user(owner, gid=OTHER_GROUP)
    p.as_user(owner, gid=OTHER_GROUP, groups=(GROUP,))
    p.as_user(lambda q: q.t("stranger", os.chmod, "f", 0o777), uid=OTHER)
    p.mkdir("d")
    os.chown("d", USER, GROUP)

    def owner_of_directory(q: Probe) -> None:
        q.t("dir", os.chmod, "d", 0o7777)
        q.stat("d")

    p.as_user(owner_of_directory)
    p.as_user(owner_of_directory, gid=OTHER_GROUP)
    os.symlink("f", "l")
    p.t("through link", os.chmod, "l", 0o640)
    p.stat("f")
    p.changes("chmod", "f", lambda: os.chmod("f", 0o600))
    p.changes("same chmod", "f", lambda: os.chmod("f", 0o600))


@check
def chown_rules(p: Probe) -> None:
    for mode in (0o6777, 0o6767, 0o2644, 0o4644):
        p.touch("f", mode)
        p.t("root", os.chown, "f", USER, GROUP)
        p.stat("f")
        os.chmod("f", mode)
        p.t("nothing", os.chown, "f", -1, -1)
        p.stat("f")
        os.unlink("f")
    p.mkdir("d", 0o6777)
    p.t("dir", os.chown, "d", USER, GROUP)
    p.stat("d")
    p.touch("f", 0o6755)
    os.chown("f", USER, GROUP)
    os.chmod("f", 0o6755)

    def owner(q: Probe) -> None:
        q.t("give away", os.chown, "f", OTHER, -1)
        q.t("to self", os.chown, "f", USER, -1)
        q.stat("f")
        q.t("group not mine", os.chown, "f", -1, OTHER_GROUP + 7)
        q.t("group mine", os.chown, "f", -1, OTHER_GROUP)
        q.stat("f")
        q.t("group back", os.chown, "f", USER, GROUP)
        q.stat("f")
        q.t("nothing", os.chown, "f", -1, -1)

    p.as_user(owner, groups=(OTHER_GROUP,))
    p.as_user(lambda q: q.t("stranger", os.chown, "f", -1, GROUP), uid=OTHER)
    p.as_user(lambda q: q.t("stranger nothing", os.chown, "f", -1, -1), uid=OTHER)
    p.changes("chown", "f", lambda: os.chown("f", USER, GROUP))


def _with_groups(groups: list[int], call: Callable[..., object], *args: object) -> object:
    """Call in the name of the one user, and in this very thread, as servers do."""
    os.setgroups(groups)
    os.setegid(GROUP)
    os.seteuid(USER)
    try:
        return call(*args)
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups([])


@check
def groups_that_change(p: Probe) -> None:
    def opened(path: str) -> None:
        os.close(os.open(path, os.O_RDWR))

    def made(path: str, mode: int) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode))

    p.touch("mine")
    os.chown("mine", USER, GROUP)
    p.touch("ours", 0o660)
    os.chown("ours", OTHER, OTHER_GROUP)
    p.mkdir("d", 0o2770)
    os.chown("d", OTHER, OTHER_GROUP)
    alone, more = [GROUP], [GROUP, OTHER_GROUP]
    calls = (
        ("chown", os.chown, "mine", -1, OTHER_GROUP),
        ("chmod", os.chmod, "mine", 0o2755),
        ("open", opened, "ours"),
        ("truncate", os.truncate, "ours", 3),
        ("touch", os.utime, "ours"),
        ("create", made, "d/f", 0o2770),
        ("mkdir", os.mkdir, "d/g"),
        ("rename", os.rename, "d/f", "d/h"),
        ("listxattr", os.listxattr, "d"),
        ("unlink", os.unlink, "d/h"),
        ("rmdir", os.rmdir, "d/g"),
    )
    for label, call, *args in calls:
        for groups in (alone, more, alone):
            p.t("a look", _with_groups, groups, os.access, "mine", os.R_OK)
            p.t(f"{label} {groups}", _with_groups, groups, call, *args)
            for path in ("mine", "ours", "d/f"):
                p.stat(path)


@check
def access_by_class(p: Probe) -> None:
    for mode in (
        0o000,
        0o400,
        0o200,
        0o100,
        0o040,
        0o020,
        0o004,
        0o002,
        0o077,
        0o707,
        0o770,
        0o666,
    ):
        p.touch("f", mode, b"x")
        os.chown("f", USER, GROUP)

        def tries(q: Probe) -> None:
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
                fd = q.t(f"open {flags}", os.open, "f", flags)
                if fd is not None:
                    os.close(fd)
            q.t("truncate", os.truncate, "f", 1)
            for mask in (os.R_OK, os.W_OK, os.X_OK):
                q.note(f"access {mask}", os.access("f", mask))

        p.note("mode", oct(mode))
        p.as_user(tries)
        p.as_user(tries, uid=OTHER)
        p.as_user(tries, uid=OTHER, gid=OTHER_GROUP, groups=(GROUP,))
        p.as_user(tries, uid=OTHER, gid=OTHER_GROUP)
        os.unlink("f")


@check
def directory_rights(p: Probe) -> None:
    for mode in (0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600, 0o700):
        p.mkdir("d")
        p.touch("d/f")
        os.chown("d/f", USER, GROUP)
        os.mkdir("d/sub")
        os.chown("d", USER, GROUP)
        os.chmod("d", mode)

        def tries(q: Probe) -> None:
            q.t("list", lambda: sorted(os.listdir("d")))
            q.t("stat", lambda: os.stat("d/f").st_size)
            q.t("create", os.open, "d/new", os.O_CREAT | os.O_WRONLY)
            q.t("create existing", os.open, "d/f", os.O_CREAT | os.O_WRONLY)
            q.t("mkdir", os.mkdir, "d/newd")
            q.t("symlink", os.symlink, "x", "d/newl")
            q.t("link", os.link, "d/f", "d/newk")
            q.t("rename", os.rename, "d/f", "d/g")
            q.t("rename back", os.rename, "d/g", "d/f")
            q.t("unlink missing", os.unlink, "d/missing")
            q.t("rmdir", os.rmdir, "d/sub")
            q.t("unlink", os.unlink, "d/f")
            q.t("chdir", os.chdir, "d")

        p.note("mode", oct(mode))
        p.as_user(tries)
        os.system("rm -rf d")


@check
def directory_that_is_open(p: Probe) -> None:
    p.mkdir("d")
    os.chown("d", USER, GROUP)
    for i in range(700):
        p.touch(f"d/{i:03}")

    def owner(q: Probe) -> None:
        unread, begun = (os.open("d", os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
        with os.scandir(begun) as entries:
            names = [next(entries).name]
            os.chmod("d", 0)
            q.t("list", lambda: sorted(os.listdir(unread)))
            q.t("list further", lambda: sorted(names + [entry.name for entry in entries]))
        q.t("list again", lambda: len(os.listdir(unread)))
        q.t("look up", lambda: os.stat("001", dir_fd=unread).st_size)
        q.t("open", os.open, "d", os.O_RDONLY)
        q.t("open another way", os.open, ".", os.O_RDONLY, dir_fd=unread)
        for fd in (unread, begun):
            os.close(fd)

    p.as_user(owner)


@check
def sticky_directory(p: Probe) -> None:
    p.mkdir("t", 0o1777)
    for name in ("mine", "theirs", "target"):
        p.touch(f"t/{name}", 0o666)
    p.mkdir("t/dir", 0o777)
    p.mkdir("t/owndir", 0o777)
    for name in ("mine", "owndir"):
        os.chown(f"t/{name}", USER, GROUP)
    p.mkdir("free", 0o777)

    def user(q: Probe) -> None:
        q.t("unlink theirs", os.unlink, "t/theirs")
        q.t("rename theirs", os.rename, "t/theirs", "t/x")
        q.t("rename theirs out", os.rename, "t/theirs", "free/x")
        q.t("replace theirs", os.rename, "t/mine", "t/theirs")
        q.t("exchange theirs", renameat2, "t/mine", "t/theirs", 2)
        q.t("rmdir theirs", os.rmdir, "t/dir")
        q.t("rename dir", os.rename, "t/dir", "free/dir")
        q.t("rename own dir", os.rename, "t/owndir", "free/owndir")
        q.t("rename mine", os.rename, "t/mine", "t/mine2")
        q.t("unlink mine", os.unlink, "t/mine2")
        q.t("write theirs", os.open, "t/theirs", os.O_WRONLY)

    p.as_user(user)
    os.chown("t", USER, GROUP)
    p.as_user(lambda q: q.t("owner of directory", os.unlink, "t/theirs"))


@check
def directories_of_others_move_only_with_write_access(p: Probe) -> None:
    p.mkdir("a", 0o777)
    p.mkdir("b", 0o777)
    p.mkdir("a/closed", 0o755)
    p.mkdir("a/open", 0o777)

    def user(q: Probe) -> None:
        q.t("closed within", os.rename, "a/closed", "a/closed2")
        q.t("closed", os.rename, "a/closed2", "b/closed")
        q.t("open", os.rename, "a/open", "b/open")

    p.as_user(user)


@check
def set_group_id_directory(p: Probe) -> None:
    p.mkdir("s", 0o2777)
    os.chown("s", OTHER, GROUP)
    os.chmod("s", 0o2777)

    def user(q: Probe) -> None:
        os.umask(0)
        q.t("create", lambda: os.close(os.open("s/f", os.O_CREAT | os.O_WRONLY, 0o644)))
        q.stat("s/f")
        q.t("sgid", lambda: os.close(os.open("s/g", os.O_CREAT | os.O_WRONLY, 0o2775)))
        q.stat("s/g")
        q.t("sgid no x", lambda: os.close(os.open("s/h", os.O_CREAT | os.O_WRONLY, 0o2664)))
        q.stat("s/h")
        q.t("mkdir", os.mkdir, "s/d", 0o755)
        q.stat("s/d")
        q.t("symlink", os.symlink, "x", "s/l")
        q.stat("s/l")
        q.t("fifo", os.mkfifo, "s/p", 0o2666)
        q.stat("s/p")

    p.as_user(user, gid=OTHER_GROUP)
    os.system("rm -rf s/*")
    p.as_user(user, gid=OTHER_GROUP, groups=(GROUP,))


@check
def writing_clears_set_id_bits(p: Probe) -> None:
    for mode, gid in (
        (0o6777, GROUP), (0o6766, GROUP), (0o4755, GROUP), (0o2755, GROUP), (0o2745, GROUP),
        (0o6766, OTHER_GROUP), (0o2745, OTHER_GROUP), (0o2777, OTHER_GROUP),
    ):  # fmt: skip
        for label, change in (
            ("write", lambda: os.pwrite(os.open("f", os.O_WRONLY), b"x", 0)),
            ("truncate", lambda: os.truncate("f", 1)),
            ("same truncate", lambda: os.truncate("f", 10)),
            ("open trunc", lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))),
            ("read", lambda: os.pread(os.open("f", os.O_RDONLY), 1, 0)),
            ("chgrp", lambda: os.chown("f", -1, OTHER_GROUP)),
        ):
            for owner in (OTHER, USER):
                p.touch("f", 0o666, b"0123456789")
                os.chown("f", owner, GROUP)
                os.chmod("f", mode | 0o006)
                p.as_user(lambda q, label=label, change=change: q.t(label, change), gid=gid)
                p.stat("f", label=f"{label} {mode:o} of {owner} by a user of {gid}")
                if owner != USER:
                    os.unlink("f")
            os.chmod("f", mode | 0o006)
            p.t(label, change)
            p.stat("f", label=f"{label} {mode:o} by root")
            os.unlink("f")


@check
def setting_times(p: Probe) -> None:
    now = (1 << 30) - 1
    omit = (1 << 30) - 2

    class Spec(ctypes.Structure):
        _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]

    def utimens(path: str, atime: tuple[int, int], mtime: tuple[int, int]) -> None:
        pair = (Spec * 2)(Spec(*atime), Spec(*mtime))
        if LIBC.utimensat(AT_FDCWD, path.encode(), pair, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def times(q: Probe, path: str, began: int) -> None:
        found = os.stat(path)
        recent = [value >= began for value in (found.st_atime_ns, found.st_mtime_ns)]
        fixed = [
            None if value >= began else value for value in (found.st_atime_ns, found.st_mtime_ns)
        ]
        q.note("times", (recent, fixed))

    began = 1_600_000_000_000_000_000
    p.touch("f", 0o666)
    os.chown("f", USER, GROUP)
    cases = (
        ("both", (1, 999_999_999), (2, 5)),
        ("omit a", (0, omit), (3, 0)),
        ("omit m", (4, 0), (0, omit)),
        ("omit both", (0, omit), (0, omit)),
        ("now both", (0, now), (0, now)),
        ("now a", (0, now), (5, 0)),
        ("now m", (6, 0), (0, now)),
        ("before 1970", (-5, 7), (-1, 0)),
        ("far", (2**33, 1), (2**33, 2)),
        ("bad", (0, 1_000_000_000), (0, 0)),
    )

    def tries(q: Probe) -> None:
        for label, atime, mtime in cases:
            q.t(label, utimens, "f", atime, mtime)
            times(q, "f", began)

    tries(p)
    p.as_user(tries)
    p.as_user(tries, uid=OTHER)
    os.chmod("f", 0o644)
    p.as_user(tries, uid=OTHER)
    os.chmod("f", 0o444)
    p.as_user(tries)
    p.changes("utime", "f", lambda: os.utime("f", ns=(1, 10**19)))
    os.mkdir("d")
    p.t("directory", utimens, "d", (7, 7), (8, 8))
    times(p, "d", began)


@check
def times_of_files(p: Probe) -> None:
    p.touch("f", content=b"0123456789")
    fd = os.open("f", os.O_RDWR)
    for label, call in (
        ("write", lambda: os.pwrite(fd, b"x", 0)),
        ("empty write", lambda: os.pwrite(fd, b"", 0)),
        ("truncate shorter", lambda: os.truncate("f", 5)),
        ("truncate longer", lambda: os.truncate("f", 50)),
        ("truncate same", lambda: os.truncate("f", 50)),
        ("ftruncate same", lambda: os.ftruncate(fd, 50)),
        ("open trunc", lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))),
        ("open trunc empty", lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))),
        ("chmod", lambda: os.chmod("f", 0o600)),
        ("rename", lambda: os.rename("f", "g") or os.rename("g", "f")),
        ("read", lambda: os.pread(fd, 10, 0)),
        ("fsync", lambda: os.fsync(fd)),
        ("close a reader", lambda: os.close(os.open("f", os.O_RDONLY))),
        ("close a writer", lambda: os.close(os.open("f", os.O_WRONLY))),
    ):
        p.changes(label, "f", call)
    os.pwrite(fd, b"more", 0)
    os.utime("f", ns=(1, 2))
    os.close(fd)
    p.note("explicit time stays after close", os.stat("f").st_mtime_ns)


@check
def attributes(p: Probe) -> None:
    p.touch("f", 0o644)
    os.mkdir("d")
    os.symlink("f", "l")
    os.mkfifo("p")
    big = b"v" * 3000
    for path in ("f", "d", "p"):
        p.t(f"{path} get missing", os.getxattr, path, "user.a")
        p.t(f"{path} set", os.setxattr, path, "user.a", b"1")
        p.t(f"{path} create existing", os.setxattr, path, "user.a", b"2", os.XATTR_CREATE)
        both = os.XATTR_CREATE | os.XATTR_REPLACE
        p.t(f"{path} create and replace existing", os.setxattr, path, "user.a", b"2", both)
        p.t(f"{path} create and replace missing", os.setxattr, path, "user.b", b"2", both)
        p.t(f"{path} kept", os.getxattr, path, "user.a")
        p.t(f"{path} replace missing", os.setxattr, path, "user.b", b"2", os.XATTR_REPLACE)
        p.t(f"{path} replace", os.setxattr, path, "user.a", big, os.XATTR_REPLACE)
        p.t(f"{path} get", os.getxattr, path, "user.a")
        p.t(f"{path} empty", os.setxattr, path, "user.e", b"")
        p.t(f"{path} get empty", os.getxattr, path, "user.e")
        p.t(f"{path} list", lambda path=path: sorted(os.listxattr(path)))
        p.t(f"{path} remove", os.removexattr, path, "user.a")
        p.t(f"{path} remove again", os.removexattr, path, "user.a")
        p.t(f"{path} trusted", os.setxattr, path, "trusted.t", b"x")
        p.t(f"{path} no namespace", os.setxattr, path, "plain", b"x")
        p.t(f"{path} bare", os.setxattr, path, "user.", b"x")
        p.t(f"{path} long", os.setxattr, path, "user." + "n" * 250, b"x")
        p.t(f"{path} too long", os.setxattr, path, "user." + "n" * 251, b"x")
    p.t("link", os.setxattr, "l", "user.a", b"1", follow_symlinks=False)
    p.changes("set", "f", lambda: os.setxattr("f", "user.z", b"1"))

    def user(q: Probe) -> None:
        q.t("get", os.getxattr, "f", "user.z")
        q.t("set", os.setxattr, "f", "user.z", b"1")
        q.t("remove", os.removexattr, "f", "user.z")
        q.t("trusted", os.setxattr, "f", "trusted.z", b"1")
        q.t("get trusted", os.getxattr, "f", "trusted.t")
        q.t("list", lambda: sorted(os.listxattr("f")))

    p.as_user(user)
    os.chmod("f", 0o600)
    p.as_user(user)
    os.chmod("f", 0o666)
    p.as_user(user)


@check
def who_owns_new_things(p: Probe) -> None:
    p.mkdir("pub", 0o777)

    def user(q: Probe) -> None:
        q.t("file", lambda: os.close(os.open("pub/f", os.O_CREAT | os.O_WRONLY, 0o644)))
        q.t("dir", os.mkdir, "pub/d")
        q.t("link", os.symlink, "x", "pub/l")
        for name in ("f", "d", "l"):
            q.stat(f"pub/{name}")
        q.t("hard link", os.link, "pub/f", "pub/k")
        q.t("statvfs", lambda: os.statvfs("pub").f_namemax)

    p.as_user(user)
    p.as_user(lambda q: q.t("unlink in theirs", os.unlink, "pub/d/x"), uid=OTHER)
