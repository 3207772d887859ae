"""What random system calls are about: paths of every shape, modes, flags, lengths, times;
calls as JSON can carry them.

Nothing is called here: `side_by_side` does that, on both sides.
"""

import os
import random
import stat

from .calls import RENAME_EXCHANGE, RENAME_NOREPLACE
from .people import PEOPLE

LONG, TOO_LONG = "n" * 255, "n" * 256
NAMES = ["a", "b", "c", "d"]
ODD_PATHS = [
    "",
    ".",
    "..",
    "/",
    "//",
    "a/.",
    "a/..",
    "b/",
    "c//d",
    "./a",
    LONG,
    TOO_LONG,
    "a/" * 2100,
]
MODES = [
    0o755,
    0o777,
    0o777,
    0o777,
    0o666,
    0o666,
    0o700,
    0o1777,
    0o2775,
    0o2757,
    0o6755,
    0o4777,
    0o644,
    0o666,
    0o600,
    0o000,
]
LENGTHS = [0, 1, 100, 5000, 70_000, (1 << 20) + 1, (1 << 32) + 3]
FLAGS = [
    os.O_CREAT,
    os.O_EXCL,
    os.O_TRUNC,
    os.O_APPEND,
    os.O_DIRECTORY,
    os.O_NOFOLLOW,
    os.O_SYNC,
]
TIMES_NS = [-5_000_000_001, 0, 1_000_000_001, 2**31 * 10**9 + 7, 2**33 * 10**9 + 999_999_999]
ATTRIBUTES = ["user.a", "user.b", "user." + "x" * 250, "user.", "nothing.a", "user." + "x" * 251]
SLOTS = 4
MOSTLY = 0.9
ON_SLOTS = {"read", "write", "seek", "ftruncate", "fchmod", "fchown", "fstat", "fsync", "close"}


class Calls:
    """Random calls, each a name and arguments that JSON can carry."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self.there: list[str] = []
        """Paths that exist; half of the calls are about one of them, or a name in one."""
        self.open_slots: list[int] = []
        """Of who calls next."""
        self._kinds = sorted(k for k in dir(self) if k.startswith("do_"))

    def one(self) -> list:
        """Return a call."""
        call = getattr(self, self._source.choice(self._kinds))()
        if call[0] in ON_SLOTS and not self.open_slots and self._source.random() < MOSTLY:
            return self.do_open()
        return call

    def _path(self) -> str:
        """Return a path of one to four names, sometimes an odd one."""
        choose, chance = self._source.choice, self._source.random
        if chance() < 0.05:
            return choose(ODD_PATHS)
        path = choose(self.there) if self.there and chance() < 0.7 else ""
        if path and chance() < 0.3:
            path += f"/{choose(NAMES)}"
        path = path or "/".join(choose(NAMES) for _ in range(choose([1, 1, 1, 2, 2, 3])))
        if chance() < 0.06:
            path = choose(
                [f"{path}/", f"{path}/.", f"{path}/..", f"../{path}", path.replace("/", "//")]
            )
        return path

    def _pick(self, values: list):
        return self._source.choice(values)

    def _slot(self) -> int:
        if self.open_slots and self._source.random() < MOSTLY:
            return self._source.choice(self.open_slots)
        return self._source.randrange(SLOTS)

    def _owner(self) -> tuple[int, int]:
        """Return who is to own; not (-1, -1), which moves the time of change of a local file,
        and nothing here.
        """
        uid = self._pick([-1, 0, *(who.uid for who in PEOPLE)])
        gids = [0, 65529, *(who.gid for who in PEOPLE)]
        return uid, self._pick(gids if uid == -1 else [-1, *gids])

    def do_open(self) -> list:
        flags = self._pick([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        if self._source.random() < 0.5:
            flags |= os.O_CREAT
        while self._source.random() < 0.3:
            flags |= self._pick(FLAGS)
        at = self._slot() if self._source.random() < 0.1 else None
        return ["open", self._source.randrange(SLOTS), self._path(), flags, self._pick(MODES), at]

    do_open_again = do_open_often = do_open

    def do_close(self) -> list:
        return ["close", self._slot()]

    def do_read(self) -> list:
        return [
            "read",
            self._slot(),
            self._pick([1, 5000, 200_000]),
            self._pick([-1, 0, 7, 1 << 20]),
        ]

    def do_write(self) -> list:
        length = self._pick([0, 1, 4096, 70_001])
        offset = self._pick([-1, -1, 0, 5000, 1 << 20, 1 << 32])
        return ["write", self._slot(), length, offset, self._source.randrange(256)]

    do_write_again = do_write

    def do_seek(self) -> list:
        return ["seek", self._slot(), self._pick([-1, 0, 10, 1 << 21]), self._pick([0, 1, 2])]

    def do_ftruncate(self) -> list:
        return ["ftruncate", self._slot(), self._pick([-1, *LENGTHS])]

    def do_fchmod(self) -> list:
        return ["fchmod", self._slot(), self._pick(MODES)]

    def do_fchown(self) -> list:
        return ["fchown", self._slot(), *self._owner()]

    def do_fstat(self) -> list:
        return ["fstat", self._slot()]

    def do_fsync(self) -> list:
        return ["fsync", self._slot()]

    def do_mkdir(self) -> list:
        return ["mkdir", self._path(), self._pick(MODES)]

    do_mkdir_again = do_mkdir_often = do_mkdir

    def do_mkdirat(self) -> list:
        return ["mkdirat", self._slot(), self._path(), self._pick(MODES)]

    def do_mknod(self) -> list:
        kind = self._pick([stat.S_IFSOCK, stat.S_IFREG, stat.S_IFREG, 0])
        return ["mknod", self._path(), kind | self._pick(MODES)]

    def do_symlink(self) -> list:
        return ["symlink", self._pick([self._path(), "/" + self._path(), "m" * 4000]), self._path()]

    do_symlink_again = do_symlink

    def do_readlink(self) -> list:
        return ["readlink", self._path()]

    def do_link(self) -> list:
        return ["link", self._path(), self._path(), self._pick([True, False])]

    do_link_again = do_link

    def do_unlink(self) -> list:
        return ["unlink", self._path()]

    def do_rmdir(self) -> list:
        return ["rmdir", self._path()]

    def do_rename(self) -> list:
        flags = self._pick(
            [0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_NOREPLACE | RENAME_EXCHANGE]
        )
        return ["rename", self._path(), self._path(), flags]

    do_rename_again = do_rename_often = do_rename

    def do_chmod(self) -> list:
        return ["chmod", self._path(), self._pick(MODES)]

    def do_chown(self) -> list:
        return ["chown", self._path(), *self._owner(), self._pick([True, False])]

    def do_truncate(self) -> list:
        return ["truncate", self._path(), self._pick([-1, *LENGTHS])]

    def do_times(self) -> list:
        follow = self._pick([True, False])
        return ["times", self._path(), self._pick(TIMES_NS), self._pick(TIMES_NS), follow]

    def do_futimens(self) -> list:
        return ["times", self._slot(), self._pick(TIMES_NS), self._pick(TIMES_NS), True]

    def do_now(self) -> list:
        return ["now", self._path(), self._pick([True, False])]

    def do_access(self) -> list:
        return ["access", self._path(), self._source.randrange(8), self._pick([True, False])]

    def do_stat(self) -> list:
        return ["stat", self._path(), self._pick([True, False])]

    def do_list(self) -> list:
        return ["list", self._path()]

    def do_setxattr(self) -> list:
        flags = self._pick([0, 0, os.XATTR_CREATE, os.XATTR_REPLACE])
        return ["setxattr", self._path(), self._pick(ATTRIBUTES), self._pick([0, 1, 100]), flags]

    def do_getxattr(self) -> list:
        return ["getxattr", self._path(), self._pick(ATTRIBUTES)]

    def do_removexattr(self) -> list:
        return ["removexattr", self._path(), self._pick(ATTRIBUTES)]

    def do_umask(self) -> list:
        return ["umask", self._pick([0, 0, 0, 0o022])]
