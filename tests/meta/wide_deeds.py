"""More deeds, as in deeds.py: attributes, lists, locks, sessions, the trash, chains of directories;
asked of service and model alike.

A lock is (kind, owner, first byte, last byte, is_write); bytes as in wide_model.py.
"""

import random
from dataclasses import dataclass

from fs.meta import records
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta import deeds
from tests.meta.choosing import KINDS, LENGTHS, MODES, RIGHTS, Chooser
from tests.meta.deeds import DONE, KIND_OF_TYPE, Deed, Expectation, Ident, facts_of
from tests.meta.harness import session
from tests.meta.model import Acl, Person
from tests.meta.wide_model import BYTE_COUNT
from tests.posix.acl import ACCESS, DEFAULT
from tests.posix.acl import acl as packed

TYPE_OF_KIND = {kind: type_ for type_, kind in KIND_OF_TYPE.items()}
LAST_BYTE = 2**63 - 1
LOCK_KINDS = {"posix": pb.POSIX_LOCK, "flock": pb.FLOCK_LOCK}
XATTR_MODES = {"set": meta.XATTR_SET, "create": meta.XATTR_CREATE, "replace": meta.XATTR_REPLACE}
ACTIONS = {
    "lock": meta.LOCK_TAKE,
    "preempt": meta.LOCK_PREEMPT,
    "unlock": meta.LOCK_FREE,
    "clear": meta.LOCK_CLEAR,
}
SHORT_S, LONG_S = 1, 25 * 86_400
"""How long the trash keeps what is to be gone soon, and what is not."""

# ---- the service's side --------------------------------------------------------------------------


def lock_to_pb(lock) -> pb.FileLockPb:
    kind, owner, first, last, is_write = lock
    last = LAST_BYTE if last == BYTE_COUNT - 1 else last
    return pb.FileLockPb(
        kind=LOCK_KINDS[kind], owner=owner, first=first, last=last, is_write=is_write
    )


def lock_from_pb(lock: pb.FileLockPb):
    """As the model's `runs` shows it."""
    kind = next(name for name, number in LOCK_KINDS.items() if number == lock.kind)
    last = min(lock.last, BYTE_COUNT - 1)
    return lock.first, kind, lock.client_id, lock.owner, last, lock.is_write


def _set_acl(ident, acl, is_default):
    name = (DEFAULT if is_default else ACCESS).encode()
    if acl is None:
        return "remove_xattr", meta.RemoveXattrReq(inode_id=ident, name=name)
    value = packed(acl.owner, acl.group, acl.rest, acl.mask, acl.users, acl.groups)
    return "set_xattr", meta.SetXattrReq(inode_id=ident, name=name, value=value)


def _open(ident, reads, writes, is_truncate, number):
    opened = None if number is None else session(number, is_write=writes)
    return "open", meta.OpenReq(
        inode_id=ident,
        wants_read=reads,
        wants_write=writes,
        is_truncate=is_truncate,
        session=opened,
    )


def _close(ident, number):
    text = session(number).session_id
    return "close", meta.CloseReq(sync=meta.SyncReq(inode_id=ident), session_id=text)


_REQUESTS = {
    "mknod": lambda parent, name, kind, mode, rdev, umask: (
        "mknod",
        meta.MknodReq(
            parent_inode_id=parent,
            name=name,
            type=TYPE_OF_KIND[kind],
            mode=mode,
            rdev=rdev,
            umask=umask,
        ),
    ),
    "set_xattr": lambda ident, name, value, how: (
        "set_xattr",
        meta.SetXattrReq(inode_id=ident, name=name, value=value, mode=XATTR_MODES[how]),
    ),
    "get_xattr": lambda ident, name: ("get_xattr", meta.GetXattrReq(inode_id=ident, name=name)),
    "list_xattrs": lambda ident: ("list_xattrs", meta.ListXattrsReq(inode_id=ident)),
    "remove_xattr": lambda ident, name: (
        "remove_xattr",
        meta.RemoveXattrReq(inode_id=ident, name=name),
    ),
    "set_acl": _set_acl,
    "set_lock": lambda ident, lock, is_unlock: (
        "set_lock",
        meta.SetLockReq(inode_id=ident, lock=lock_to_pb(lock), is_unlock=is_unlock),
    ),
    "find_lock": lambda ident, lock: (
        "find_lock_conflict",
        meta.FindLockConflictReq(inode_id=ident, lock=lock_to_pb(lock)),
    ),
    "lock_directory": lambda ident, action: (
        "lock_directory",
        meta.LockDirectoryReq(inode_id=ident, action=ACTIONS[action]),
    ),
    "open": _open,
    "close": _close,
    "trash": lambda parent, name, is_long: (
        "move_to_trash",
        meta.MoveToTrashReq(
            parent_inode_id=parent, name=name, expire_s=LONG_S if is_long else SHORT_S
        ),
    ),
    "makedirs": lambda parent, names, mode, umask: (
        "make_directories",
        meta.MakeDirectoriesReq(
            parent_inode_id=parent, path=b"/".join(names), mode=mode, umask=umask
        ),
    ),
}


def _said(deed, reply):
    kind = deed.kind
    if kind == "mknod":
        return DONE, reply.inode.inode_id
    if kind == "get_xattr":
        return DONE, reply.value
    if kind == "list_xattrs":
        return DONE, tuple(reply.names)
    if kind == "set_lock":
        return DONE, reply.is_done, _conflict(reply)
    if kind == "find_lock":
        return DONE, _conflict(reply)
    if kind == "trash":
        return DONE, reply.moved.inode_id, reply.trash_inode_id, reply.trash_name
    if kind == "makedirs":
        return DONE, reply.inode.inode_id, tuple(reply.made_inode_ids)
    if kind == "open" and _only_reads(*deed.args):
        return DONE, reply.inode.inode_id, facts_of(reply.inode)
    return (DONE,)


def _only_reads(_ident, _reads, writes, is_truncate, number):
    """Return whether an open leaves nothing behind:
    then it tells what the file is, as a look-up does.
    """
    return not writes and not is_truncate and number is None


def _conflict(reply):
    return lock_from_pb(reply.conflict) if reply.HasField("conflict") else None


async def _clean(world, directory_id, name):
    """Let the cleaner come across what it has read of one name in the trash,
    at a time that may be long ago.
    """
    marks = {
        records.trash_parts(key)[1:]: key for key in await world.dump() if key[:4] == records.TRASH
    }
    key = marks.get((directory_id, name))
    return DONE, key is not None and await world.meta.service.expire(key)


async def _read(user, ident):
    """Note a read of whatever is there: of that the model shows nothing."""
    try:
        seen = await user.attr(ident)
    except FsError:
        seen = pb.InodePb(inode_id=ident)
    one = meta.NotedReadPb(inode_id=ident, atime_ns=seen.atime_ns + 1, atime_seen_ns=seen.atime_ns)
    await user.call("note_reads", meta.NoteReadsReq(reads=[one]))
    return (DONE,)


async def ask(user, deed):
    """As deeds.ask."""
    if deed.kind == "read":
        return await _read(user, *deed.args)
    if deed.kind == "clean":
        return await _clean(user.world, *deed.args)
    if deed.kind not in _REQUESTS:
        return await deeds.ask(user, deed)
    name, request = _REQUESTS[deed.kind](*deed.args)
    try:
        return _said(deed, await user.call(name, request))
    except FsError as error:
        return error.status


# ---- the model's side ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TrashName:
    """A name in the trash, which has a time at its end if the plain one was taken."""

    directory: object
    name: bytes


class WideExpectation(Expectation):
    """What the model answers to these deeds, too."""

    def _agree(self, mine, found, learned):
        if not isinstance(mine, TrashName):
            return super()._agree(mine, found, learned)
        plain = mine.name.rstrip(b"?")
        if mine.name == found:
            return True
        if mine.name == plain or not found.startswith(plain + b"."):
            return False
        self.model.name_in_trash(mine.directory, mine.name, found)
        return True

    def _mknod(self, parent, name, kind, mode, rdev, umask):  # noqa: PLR0917 - as mknod(2)
        place = self._node(parent)
        status = self.model.mknod(place, name, kind, self.deed.who, mode, rdev, umask)
        return status or (DONE, Ident(self._at(parent, name)))

    def _set_xattr(self, ident, name, value, how):
        return self.model.set_xattr(self._node(ident), name, value, how, self.deed.who) or (DONE,)

    def _get_xattr(self, ident, name):
        found = self.model.get_xattr(self._node(ident), name, self.deed.who)
        return found if isinstance(found, Status) else (DONE, found)

    def _list_xattrs(self, ident):
        found = self.model.list_xattrs(self._node(ident), self.deed.who)
        return found if isinstance(found, Status) else (DONE, found)

    def _remove_xattr(self, ident, name):
        return self.model.remove_xattr(self._node(ident), name, self.deed.who) or (DONE,)

    def _set_acl(self, ident, acl, is_default):
        node = self._node(ident)
        return self.model.set_acl(node, acl, self.deed.who, is_default=is_default) or (DONE,)

    def _set_lock(self, ident, lock, is_unlock):
        found = self.model.set_lock(self._node(ident), lock, self.deed.who, is_unlock=is_unlock)
        return found if isinstance(found, Status) else (DONE, *found)

    def _find_lock(self, ident, lock):
        return DONE, self.model.lock_conflict(self._node(ident), lock, self.deed.who)

    def _lock_directory(self, ident, action):
        return self.model.lock_directory(self._node(ident), action, self.deed.who) or (DONE,)

    def _open(self, ident, *how):
        refused = self.model.open(self._node(ident), *how, self.deed.who)
        if refused is None and _only_reads(ident, *how):
            return self._attr(ident)
        return refused or (DONE,)

    def _close(self, ident, number):
        return self.model.close(self._node(ident), number, self.deed.who) or (DONE,)

    @staticmethod
    def _read(_ident):
        return (DONE,)

    def _trash(self, parent, name, is_long):
        found = self.model.move_to_trash(self._node(parent), name, is_long, self.deed.who)
        if isinstance(found, Status):
            return found
        node, trash, free = found
        return DONE, Ident(node), Ident(trash), TrashName(trash, free)

    def _clean(self, directory_id, name):
        return DONE, self.model.clean_one(directory_id, name)

    def _makedirs(self, parent, names, mode, umask):
        found = self.model.makedirs(self._node(parent), names, mode, umask, self.deed.who)
        if isinstance(found, Status):
            return found
        last, made = found
        return DONE, Ident(last), tuple(Ident(node) for node in made)


# ---- choosing ------------------------------------------------------------------------------------

ONE, OTHER = "c" * 32, "d" * 32
PEOPLE = [
    Person(0, 0, client=ONE),
    Person(0, 0, client=OTHER),
    Person(1000, 1000, frozenset({2000}), ONE),
    Person(1001, 2000, client=OTHER),
]
WIDE_KINDS = [
    *KINDS, *RIGHTS, "remove_tree",
    *["mknod", "set_xattr", "set_xattr", "get_xattr", "list_xattrs", "remove_xattr"],
    *["set_acl"] * 4, *["set_lock"] * 5, *["find_lock"] * 2, *["lock_directory"] * 2,
    *["open"] * 4, *["close"] * 3, *["trash"] * 4, *["makedirs"] * 3, *["read"] * 3,
]  # fmt: skip
XATTR_NAMES = [b"user.a", b"user.b", b"trusted.t", b"security.s"]
UMASKS = [0, 0o022, 0o077, 0o777]
ACLS = [
    None,
    Acl(7, 5, 5),
    Acl(7, 5, 0, 7, ((1000, 7), (1001, 4))),
    Acl(6, 0, 4, 6, ((1001, 7),), ((2000, 5),)),
    Acl(7, 7, 7, 0, (), ((1000, 7),)),
    Acl(0, 7, 7, 5, ((1000, 0),), ((2000, 7),)),
]


class WideChooser(Chooser):
    """Draws these deeds, too."""

    def __init__(self, source: random.Random, kinds: list[str]) -> None:
        super().__init__(source, kinds)
        self._session_count = 0
        self._sessions: list[tuple[int, int]] = [(1, 0)]

    def deed(self, who: Person) -> Deed:
        kind = self._source.choice(self._kinds)
        drawn = getattr(self, f"_{kind}", None)
        if drawn is not None:
            return Deed(kind, who, drawn())
        plain = Chooser(self._source, [kind])
        plain.directories, plain.files = self.directories, self.files
        return plain.deed(who)

    def learn(self, deed: Deed, answer: object) -> None:
        super().learn(deed, answer)
        if isinstance(answer, tuple) and len(answer) > 1:
            for ident, kind in self._spoken_of(deed, answer):
                if kind not in {"dir", "file", None} and ident not in self.files:
                    self.files.append(ident)

    def _known(self) -> int:
        choose = self._source.choice
        return choose([choose(self.directories), *(choose(self.files or [1]) for _ in range(2))])

    def _place(self) -> tuple[int, bytes]:
        names = [b"a", b"b", b"c"] * 4 + [b".trash", b"0", b"1000"]
        return self._source.choice(self.directories), self._source.choice(names)

    def _mknod(self):
        choose = self._source.choice
        kind = choose(["fifo", "socket", "char", "block", "file"])
        rdev = choose([0, 0x103])
        return *self._place(), kind, choose(MODES), rdev, choose(UMASKS)

    def _mkdir(self):
        return *self._place(), self._source.choice(MODES), self._source.choice(UMASKS)

    def _create(self):
        choose = self._source.choice
        return (
            *self._place(),
            choose(MODES),
            choose([True, False]),
            choose([True, False]),
            choose(UMASKS),
        )

    def _makedirs(self):
        choose = self._source.choice
        names = tuple(choose([b"a", b"b", b"c"]) for _ in range(choose([1, 2, 3, 4])))
        return choose(self.directories), names, choose(MODES), choose(UMASKS)

    def _set_xattr(self):
        choose = self._source.choice
        return self._known(), choose(XATTR_NAMES), choose([b"", b"1"]), choose(list(XATTR_MODES))

    def _get_xattr(self):
        return self._known(), self._source.choice(XATTR_NAMES)

    def _list_xattrs(self):
        return (self._known(),)

    _remove_xattr = _get_xattr
    _read = _list_xattrs

    def _set_acl(self):
        return self._known(), self._source.choice(ACLS), self._source.choice([False, False, True])

    def _lock(self):
        choose = self._source.choice
        kind = choose(["posix", "posix", "flock"])
        first = 0 if kind == "flock" else choose(range(BYTE_COUNT))
        last = BYTE_COUNT - 1 if kind == "flock" else choose(range(first, BYTE_COUNT))
        return kind, choose([1, 2]), first, last, choose([True, False])

    def _set_lock(self):
        return self._known(), self._lock(), self._source.random() < 0.3

    def _find_lock(self):
        return self._known(), self._lock()

    def _lock_directory(self):
        actions = ["lock", "preempt", "unlock", "unlock", "clear"]
        return self._source.choice(self.directories), self._source.choice(actions)

    def _open(self):
        choose = self._source.choice
        reads, writes, is_truncate = (
            choose([True, False]),
            choose([True, False]),
            choose([True, False]),
        )
        number = None
        if writes or choose([True, False]):
            self._session_count += 1
            number = self._session_count
        ident = self._known()
        if number is not None:
            self._sessions.append((ident, number))
        return ident, reads, writes, is_truncate, number

    def _close(self):
        return self._source.choice(self._sessions[-12:])

    def _trash(self):
        return *self._place(), self._source.choice([True, False])

    def _truncate(self):
        return self._known(), self._source.choice(LENGTHS)
