"""Random calls of several users on a real file system against the model
of the namespace (tests/meta/model.py).

Each user is a process of its own.  Every call must have the errno that the model gives, and the
whole tree, with all attributes, must be the model's.  Run on a local file system it tells whether
the model is right; on a mount, whether EmberFS is.

Paths lead through directories only; symbolic links dangle.
"""

import errno
import json
import os
import random
import stat
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from fs.schema.status import FsError, Status
from tests.meta.model import STICKY, SUPERUSER, Model, Node, Person

from .calls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2

PROTECTED_SYMLINKS = Path("/proc/sys/fs/protected_symlinks")
NAMES = ["a", "b", "c"]
MODES = [0o755, 0o777, 0o700, 0o1777, 0o2775, 0o644, 0o666, 0o000, 0o4755]
LENGTHS = [0, 1, 100, 5000]
PEOPLE = [SUPERUSER, Person(65533, 65531, frozenset({65529})), Person(65532, 65529)]
KINDS = (
    ["create"] * 5
    + ["mkdir"] * 4
    + ["link", "unlink", "rmdir"] * 3
    + ["rename"] * 7
    + ["chmod", "truncate", "list"] * 3
    + ["symlink", "chown", "stat"]
)
FLAGS = {"replace": 0, "no_replace": RENAME_NOREPLACE, "exchange": RENAME_EXCHANGE}


class KernelModel(Model):
    """What the kernel does in another order, or by itself, before a file system is asked."""

    def make(self, parent, name, kind, who=SUPERUSER, mode=0o755, umask=0):  # noqa: PLR0917 - as mknod(2)
        # mkdir(2) takes no set-id bits
        mode = mode & (0o777 | STICKY) if kind == "dir" else mode
        return super().make(parent, name, kind, who, mode, umask)

    def link_node(self, node, parent, name, who=SUPERUSER):
        status = self._enter(parent, who)
        if status is None and name in parent.entries:
            status = Status.EXISTS
        if status is None and not self._is_linkable(node, who):
            status = Status.NOT_PERMITTED
        return status or super().link_node(node, parent, name, who)

    def _may_move(self, old, new, source, target, who):
        status = self._may_change(old, who) or self._may_take_away(old, source, who)
        status = status or self._may_change(new, who)
        if target is not None:
            status = status or self._may_take_away(new, target, who)
        return status

    def rename(self, old, old_name, new, new_name, mode, *, who=SUPERUSER):
        source = None if self._enter(old, who) else old.entries.get(old_name)
        target = None if self._enter(new, who) else new.entries.get(new_name)
        is_refused = target is not None and mode == "no_replace"
        is_missing = target is None and mode == "exchange"
        if source is not None and not self._enter(new, who) and not (is_refused or is_missing):
            if source.kind == "dir" and new in source.below():
                return Status.INVALID_ARGUMENT
            if target is not None and target.kind == "dir" and old in target.below():
                return Status.INVALID_ARGUMENT if mode == "exchange" else Status.NOT_EMPTY
        return super().rename(old, old_name, new, new_name, mode, who=who)


def _is_protected(parent: Node, link: Node, who: Person) -> bool:
    """Return whether the kernel lets a person follow no link of others here,
    as most distributions have it set.

    Source: Linux, proc(5), "protected_symlinks".
    """
    is_open_to_all = parent.mode & STICKY and parent.mode & stat.S_IWOTH
    is_of_others = link.uid not in {who.uid, parent.uid}
    return bool(is_open_to_all and is_of_others) and PROTECTED_SYMLINKS.read_text().strip() == "1"


# ---- those who act -------------------------------------------------------------------------------


def _create(path: str, mode: int) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def _list(path: str) -> list[str]:
    return sorted(os.listdir(path))


def _tree(path: str) -> dict[str, list]:
    found = {}
    for name in _list(path):
        below = f"{path}/{name}"
        at = os.lstat(below)
        target = os.readlink(below) if stat.S_ISLNK(at.st_mode) else ""
        size = at.st_size if stat.S_ISREG(at.st_mode) else 0
        facts = [stat.S_IFMT(at.st_mode), stat.S_IMODE(at.st_mode), at.st_uid, at.st_gid]
        found[below] = [*facts, at.st_nlink, size, target, at.st_ino, at.st_ctime_ns]
        if stat.S_ISDIR(at.st_mode):
            found |= _tree(below)
    return found


CALLS: dict[str, Callable] = {
    "create": _create,
    "mkdir": os.mkdir,
    "symlink": lambda path: os.symlink("x", path),
    "link": lambda path, new: os.link(path, new, follow_symlinks=False),
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "rename": renameat2,
    "chmod": os.chmod,
    "chown": os.lchown,
    "truncate": os.truncate,
    "list": _list,
    "stat": lambda path: os.lstat(path) and None,
    "tree": _tree,
}


class Actor:
    """A process that has become somebody and makes calls in a directory."""

    def __init__(
        self, who: Person, directory: Path, calls: dict[str, Callable], *, is_root: bool = False
    ) -> None:
        """Make calls of a table; with `is_root` the directory is the root of all paths."""
        self._calls = calls
        self._is_root = is_root
        asked, self._ask = os.pipe()
        self._told, tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._serve(who, directory, asked, tell)
            except BaseException:  # noqa: BLE001 - a child of fork must not return
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(asked)
        os.close(tell)
        self._answers = os.fdopen(self._told)

    def _serve(self, who: Person, directory: Path, asked: int, tell: int) -> None:
        os.close(self._ask)
        os.chdir(directory)
        if self._is_root:
            os.chroot(".")
        os.umask(0)
        os.setgroups(sorted(who.groups))
        os.setresgid(who.gid, who.gid, who.gid)
        os.setresuid(who.uid, who.uid, who.uid)
        with os.fdopen(asked) as questions, os.fdopen(tell, "w", buffering=1) as answers:
            for line in questions:
                kind, *args = json.loads(line)
                try:
                    answer = [0, self._calls[kind](*args)]
                except OSError as error:
                    answer = [error.errno, None]
                answers.write(json.dumps(answer) + "\n")

    def call(self, kind: str, *args) -> tuple[int, object]:
        """Return (errno, result)."""
        os.write(self._ask, (json.dumps([kind, *args]) + "\n").encode())
        number, result = json.loads(self._answers.readline())
        return number, result

    def close(self) -> None:
        os.close(self._ask)
        self._answers.close()
        os.waitpid(self._pid, 0)


# ---- both sides ----------------------------------------------------------------------------------


class Company:
    """The model of a directory, the directory, and those who act on both."""

    def __init__(self, directory: Path, source: random.Random) -> None:
        self.source = source
        self.model = KernelModel()
        self.model.root.mode = 0o777
        directory.chmod(0o777)
        self._inodes: dict[int, int] = {}
        self._ctimes: dict[int, int] = {}
        self.actors = {who: Actor(who, directory, CALLS) for who in PEOPLE}

    def run(self, count: int) -> None:
        try:
            for number in range(count):
                self.step()
                if number % 5 == 0:
                    self.compare()
            self.compare()
        finally:
            for actor in reversed(self.actors.values()):  # later ones hold pipes of earlier ones
                actor.close()

    def step(self) -> None:
        choose = self.source.choice
        kind, who = choose(KINDS), choose(PEOPLE)
        directories = self.model.directories()
        here, there, name, other = (
            choose(directories),
            choose(directories),
            choose(NAMES),
            choose(NAMES),
        )
        path, new_path = self.path(here, name), self.path(there, other)
        extra: dict[str, Sequence] = {
            "create": (choose(MODES),),
            "mkdir": (choose(MODES[:5]),),
            "chmod": (choose(MODES),),
            "chown": choose([(65533, -1), (0, 0), (-1, 65529)]),
            "truncate": (choose(LENGTHS),),
        }
        mode = choose(["replace"] * 3 + ["no_replace", "exchange"])
        if kind == "rename":
            args = (path, new_path, FLAGS[mode])
            status = self.reach(here, who) or self.reach(there, who)
            status = status or self.model.rename(here, name, there, other, mode, who=who)
        elif kind == "link":
            args = (path, new_path)
            status = self.reach(here, who) or self._link(here, name, there, other, who)
        elif kind == "list":
            path = self.path(here)
            args = (path,)
            status = self.reach(here.parent, who) if here is not self.model.root else None
            status = status or self.model.list(here, who)[0]
        else:
            args = (path, *extra.get(kind, ()))
            status = self.reach(here, who) or self.change(kind, here, name, who, *args[1:])
        number, _ = self.actors[who].call(kind, *args)
        expected = 0 if status is None else FsError(status).errno
        assert number == expected, (
            f"{kind}{args} by {who.uid}: {errno.errorcode.get(number, number)},"
            f" the model says {errno.errorcode.get(expected, expected)}"
        )

    def _link(self, here: Node, name: str, there: Node, other: str, who: Person) -> Status | None:
        status, node = self.model.lookup(here, name, who)
        return status or self.reach(there, who) or self.model.link_node(node, there, other, who)

    def change(self, kind: str, here: Node, name: str, who: Person, *args) -> Status | None:
        """Do on the model what concerns one name."""
        model = self.model
        if kind == "create":
            return model.create(here, name, who, *args, is_exclusive=True)
        if kind in {"mkdir", "symlink"}:
            mode = args or (0o777,)
            return model.make(here, name, {"mkdir": "dir"}.get(kind, kind), who, *mode)
        if kind in {"unlink", "rmdir"}:
            return model.remove(here, name, is_rmdir=kind == "rmdir", who=who)
        status, node = model.lookup(here, name, who)
        if status is not None or kind == "stat":
            return status
        if kind == "chown":
            uid, gid = (None if i < 0 else i for i in args)
            return model.chown(node, uid, gid, who)
        if node.kind == "symlink":  # it is followed, and dangles
            return Status.ACCESS_DENIED if _is_protected(here, node, who) else Status.NOT_FOUND
        return getattr(model, kind)(node, *args, who)

    def reach(self, directory: Node, who: Person) -> Status | None:
        """Return what stops somebody on the way to what is in a directory."""
        above = [directory]
        while above[-1] is not self.model.root:
            above.append(above[-1].parent)
        return next((s for d in reversed(above) if (s := self.model._enter(d, who))), None)

    def path(self, directory: Node, name: str = "") -> str:
        parts = [name] if name else []
        while directory is not self.model.root:
            entries = directory.parent.entries
            parts.append(next(k for k, n in entries.items() if n is directory))
            directory = directory.parent
        return "/".join([".", *reversed(parts)])

    def compare(self) -> None:
        """The whole tree, with all attributes; times never go back."""
        number, found = self.actors[SUPERUSER].call("tree", ".")
        assert number == 0
        expected = dict(self._expected(self.model.root))
        assert found.keys() == expected.keys()
        for path, (*facts, inode, ctime_ns) in found.items():
            node = expected[path]
            assert facts == self._facts(node), (path, facts, self._facts(node))
            assert self._inodes.setdefault(node.ident, inode) == inode, path
            assert self._ctimes.get(inode, 0) <= ctime_ns, path
            self._ctimes[inode] = ctime_ns

    def _expected(self, directory: Node):
        for name, node in directory.entries.items():
            yield self.path(directory, name), node
            if node.kind == "dir":
                yield from self._expected(node)

    @staticmethod
    def _facts(node: Node) -> list:
        kind, mode, uid, gid, nlink, length, *_ = node.facts()
        type_ = {"dir": stat.S_IFDIR, "file": stat.S_IFREG, "symlink": stat.S_IFLNK}[kind]
        return [type_, mode, uid, gid, nlink, length, "x" if kind == "symlink" else ""]
