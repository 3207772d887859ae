"""Checks of access control lists: what is valid, what modes and lists do to each other,
who gets in, what is inherited.
"""

import os
import struct

from .calls import GROUP, OTHER, OTHER_GROUP, USER, Probe, check

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, NAMED, GROUP_OWNER, NAMED_GROUP, MASK, REST = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF
THIRD = 65529


def packed(*entries: tuple[int, ...], version: int = 2) -> bytes:
    """Return the value of a list; an entry is (tag, rights) or (tag, rights, id)."""
    whole = [entry if len(entry) > 2 else (*entry, NOBODY) for entry in entries]
    return struct.pack("<I", version) + b"".join(struct.pack("<HHI", *entry) for entry in whole)


def acl(  # noqa: PLR0917 - in the order of the entries that every list has
    owner: int, group: int, rest: int, mask: int | None = None, users=(), groups=()
) -> bytes:
    """Return the value of a list in the right order."""
    return packed(
        (OWNER, owner),
        *((NAMED, rights, uid) for uid, rights in users),
        (GROUP_OWNER, group),
        *((NAMED_GROUP, rights, gid) for gid, rights in groups),
        *([] if mask is None else [(MASK, mask)]),
        (REST, rest),
    )


FULL = acl(7, 5, 0, 6, [(USER, 6), (OTHER, 1)], [(GROUP, 7), (OTHER_GROUP, 4)])


def shown(p: Probe, path: str) -> None:
    """Note the mode and both lists."""
    p.stat(path)
    for name in (ACCESS, DEFAULT):
        p.t(f"{path} {name[-7:]}", os.getxattr, path, name)
    p.t(f"{path} names", lambda: sorted(os.listxattr(path)))


@check
def valid_lists(p: Probe) -> None:
    p.touch("f", 0o640)
    p.mkdir("d", 0o750)
    os.symlink("f", "l")
    os.mkfifo("p", 0o640)
    small = acl(6, 4, 0)
    values = {
        "full": FULL,
        "minimal": small,
        "mask only": acl(7, 7, 1, 2),
        "no bytes": b"",
        "no entries": packed(),
        "head": b"\2\0",
        "odd": FULL[:-1],
        "version 1": packed((OWNER, 7), (GROUP_OWNER, 0), (REST, 0), version=1),
        "no owner": packed((GROUP_OWNER, 4), (REST, 0)),
        "no group": packed((OWNER, 4), (REST, 0)),
        "no others": packed((OWNER, 7), (GROUP_OWNER, 4)),
        "no mask": acl(7, 4, 0, None, [(USER, 4)]),
        "two masks": packed((OWNER, 7), (GROUP_OWNER, 4), (MASK, 4), (MASK, 4), (REST, 0)),
        "two owners": packed((OWNER, 7), (OWNER, 7), (GROUP_OWNER, 4), (REST, 0)),
        "order": packed((GROUP_OWNER, 4), (OWNER, 7), (REST, 0)),
        "rights": packed((OWNER, 8), (GROUP_OWNER, 4), (REST, 0)),
        "tag": packed((OWNER, 7), (3, 7), (GROUP_OWNER, 4), (REST, 0)),
        "user -1": acl(7, 4, 0, 7, [(NOBODY, 4)]),
        "user twice": acl(7, 4, 0, 7, [(USER, 4), (USER, 6)]),
    }
    for path in ("f", "d", "p"):
        for label, value in values.items():
            for name in (ACCESS, DEFAULT):
                p.t(f"{path} {label} {name[-7:]}", os.setxattr, path, name, value)
                shown(p, path)
        p.t(f"{path} remove", os.removexattr, path, ACCESS)
        p.t(f"{path} remove again", os.removexattr, path, ACCESS)
        p.t(f"{path} remove default", os.removexattr, path, DEFAULT)
        shown(p, path)
    for name in (ACCESS, DEFAULT):
        p.t("link", os.setxattr, "l", name, small, follow_symlinks=False)
        p.t("link", os.getxattr, "l", name, follow_symlinks=False)
        p.t("link", os.removexattr, "l", name, follow_symlinks=False)
    p.t("create", os.setxattr, "f", ACCESS, FULL, os.XATTR_CREATE)
    p.t("create again", os.setxattr, "f", ACCESS, FULL, os.XATTR_CREATE)
    p.changes("set", "f", lambda: os.setxattr("f", ACCESS, acl(6, 4, 4, 5, [(USER, 4)])))
    p.changes("remove", "f", lambda: os.removexattr("f", ACCESS))


@check
def modes_and_lists(p: Probe) -> None:
    for value in (FULL, acl(7, 7, 1, 2), acl(6, 4, 0)):
        p.touch("f", 0o6755)
        p.t("set", os.setxattr, "f", ACCESS, value)
        shown(p, "f")
        for mode in (0o777, 0o2070, 0o700, 0):
            os.chmod("f", mode)
            shown(p, "f")
        os.chown("f", USER, GROUP)
        shown(p, "f")
        p.t("remove", os.removexattr, "f", ACCESS)
        shown(p, "f")
        os.unlink("f")


@check
def who_may_set_lists(p: Probe) -> None:
    p.touch("f", 0o2775)
    p.mkdir("d", 0o2775)
    for path in ("f", "d"):
        os.chown(path, USER, GROUP)
        os.chmod(path, 0o2775)

        def tries(q: Probe, path: str = path) -> None:
            for name in (ACCESS, DEFAULT):
                q.t("set", os.setxattr, path, name, FULL)
                q.t("get", os.getxattr, path, name)
                q.t("remove", os.removexattr, path, name)
                q.stat(path)

        p.as_user(tries, uid=OTHER)
        p.as_user(tries)
        p.as_user(tries, gid=OTHER_GROUP)


@check
def access_by_list(p: Probe) -> None:
    users = [
        (USER, GROUP, ()),
        (OTHER, THIRD, ()),
        (OTHER, GROUP, ()),
        (THIRD, GROUP, ()),
        (THIRD, OTHER_GROUP, ()),
        (THIRD, OTHER_GROUP, (GROUP,)),
        (THIRD, THIRD, ()),
    ]
    lists = [
        acl(0, 7, 7, 7),
        acl(7, 0, 7, 7, [(OTHER, 4)]),
        acl(7, 0, 0, 7, [(OTHER, 6)], [(OTHER_GROUP, 2)]),
        acl(7, 4, 0, 7, [(OTHER, 0)], [(OTHER_GROUP, 2)]),
        acl(7, 4, 6, 4, [(OTHER, 6), (THIRD, 2)], [(OTHER_GROUP, 6)]),
        acl(7, 6, 6, 2, [], [(OTHER_GROUP, 4), (GROUP, 4)]),
        acl(7, 7, 0, 1, [(OTHER, 7)]),
    ]
    for value in lists:
        p.touch("f", 0o600, b"x")
        p.mkdir("d")
        p.touch("d/x", 0o666)
        for path in ("f", "d"):
            os.chown(path, USER, GROUP)
            os.setxattr(path, ACCESS, value)

        def tries(q: Probe) -> None:
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
                fd = q.t(f"open {flags}", os.open, "f", flags)
                if fd is not None:
                    os.close(fd)
            q.t("truncate", os.truncate, "f", 1)
            for mask in (os.R_OK, os.W_OK, os.X_OK):
                q.note(f"access {mask}", [os.access(path, mask) for path in ("f", "d")])
            q.t("list", os.listdir, "d")
            q.t("search", lambda: os.stat("d/x").st_size)
            q.t("make", lambda: os.close(os.open("d/new", os.O_CREAT | os.O_WRONLY)))
            q.t("remove", os.unlink, "d/new")
            q.t("user attribute", os.getxattr, "f", "user.none")

        for uid, gid, groups in users:
            p.note("as", (uid, gid, groups))
            p.as_user(tries, uid=uid, gid=gid, groups=groups)
        os.system("rm -rf f d")


@check
def inherited_lists(p: Probe) -> None:
    for value in (FULL, acl(7, 7, 7), acl(5, 4, 1), acl(7, 7, 1, 6, [], [(GROUP, 7)])):
        p.mkdir("d", 0o777)
        os.setxattr("d", DEFAULT, value)

        def makes(q: Probe) -> None:
            for umask in (0, 0o077):
                os.umask(umask)
                for mode in (0o777, 0o640, 0o4755):
                    q.t("file", lambda m=mode: os.close(os.open("d/f", os.O_CREAT | os.O_RDWR, m)))
                    q.t("directory", os.mkdir, "d/s", mode)
                    q.t("below", os.mkdir, "d/s/s", mode)
                    q.t("fifo", os.mkfifo, "d/p", mode)
                    q.t("node", os.mknod, "d/n", mode | 0o100000)
                    q.t("link", os.symlink, "x", "d/l")
                    q.stat("d/l")
                    for path in ("d/f", "d/s", "d/s/s", "d/p", "d/n"):
                        shown(q, path)
                    os.system("rm -rf d/*")

        makes(p)
        p.as_user(makes)
        os.umask(0o022)
        os.system("rm -rf d")


@check
def lists_move_with_names(p: Probe) -> None:
    p.mkdir("d")
    os.setxattr("d", DEFAULT, FULL)
    p.touch("f", 0o640)
    os.rename("f", "d/f")
    shown(p, "d/f")
    p.touch("d/g", 0o640)
    shown(p, "d/g")
    os.link("d/g", "g")
    shown(p, "g")
    os.open("g", os.O_WRONLY | os.O_TRUNC)
    shown(p, "g")
