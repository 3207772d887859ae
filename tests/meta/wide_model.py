"""What else belongs to a namespace: attributes with names, locks of files, sessions, the trash.

Plain dicts, as model.py.

Rules of the trash and of sessions are those of specs/semantics.md; the others are
Linux's.  Values of dicts in nodes are never changed, only replaced, so that a copy of the
model shares nothing that changes.

Does not: quotas (tests/meta/test_usage_model.py), the length that a dead writer left.
"""

from fs.schema.ids import TRASH_ROOT_INODE_ID
from fs.schema.status import Status
from tests.meta.model import READ, SET_GID, SET_UID, STICKY, SUPERUSER, WRITE, Model, Person

BYTE_COUNT = 9
"""Locks are on bytes 0 to 8; the last one stands for all that follow, too."""
WHOLE_FILE = range(BYTE_COUNT)


def held(node, field):
    """Return the xattrs, locks or sessions of a node; absent: nothing."""
    return getattr(node, field, {})


class WideModel(Model):
    """A namespace and what hangs on it.

    Every method returns a status or None, unless it says otherwise.
    """

    def __init__(self):
        super().__init__()
        self.marks = {}
        """(ident of directory, name) -> (ident of where it was, name, uid, is kept for long)."""

    def copy(self):
        made = super().copy()
        made.marks = dict(self.marks)
        return made

    def state(self):
        more = (
            (
                ident,
                tuple(sorted(held(node, "xattrs").items())),
                tuple(self.runs(node)),
                tuple(sorted(held(node, "sessions").items())),
            )
            for ident, node in self.nodes.items()
        )
        return super().state(), frozenset(more), frozenset(self.marks.items())

    # ---- special files -----------------------------------------------------------------------

    def mknod(self, parent, name, kind, who, mode, rdev, umask):  # noqa: PLR0917 - as mknod(2)
        status = self.make(parent, name, kind, who, mode, umask)
        if status is None and kind in {"char", "block"}:
            parent.entries[name].rdev = rdev
        return status

    def makedirs(self, parent, names, mode, umask, who=SUPERUSER):
        """Return a status or (the last directory, those that were made)."""
        status, here, missing = self._enter(parent, who), parent, list(names)
        while status is None and missing and missing[0] in here.entries:
            here = here.entries[missing.pop(0)]
            if here.kind == "symlink":
                return Status.NOT_FOUND  # all of them dangle
            status = self._enter(here, who) if missing else None
        if status is not None:
            return status
        if not missing:
            return (here, []) if here.kind == "dir" else Status.EXISTS
        top, made = here, []
        for name in missing:
            rights = (
                (mode, umask) if len(made) == len(missing) - 1 else (mode | 0o300, umask & ~0o300)
            )
            status = self.make(here, name, "dir", who, *rights)
            if status is not None:
                break
            here = here.entries[name]
            made.append(here)
        if status is None:
            return here, made
        if made:
            del top.entries[missing[0]]
        for node in made:
            del self.nodes[node.ident]
        return status

    # ---- extended attributes -----------------------------------------------------------------

    @staticmethod
    def _may_set(node, name, who):
        if not name.startswith(b"user."):
            return None if who.uid == 0 else Status.NOT_PERMITTED
        if node.kind not in {"file", "dir"}:
            return Status.NOT_PERMITTED
        if node.kind == "dir" and node.mode & STICKY and not node.is_owned_by(who):
            return Status.NOT_PERMITTED
        return None if node.allows(who, WRITE) else Status.ACCESS_DENIED

    def set_xattr(self, node, name, value, how, who=SUPERUSER):
        """`how`: set, create or replace."""
        if node is None:
            return Status.STALE
        status = self._may_set(node, name, who)
        if status is None and how == "create" and name in held(node, "xattrs"):
            status = Status.EXISTS
        if status is None and how == "replace" and name not in held(node, "xattrs"):
            status = Status.NO_ATTRIBUTE
        if status is None:
            node.xattrs = {**held(node, "xattrs"), name: value}
        return status

    def remove_xattr(self, node, name, who=SUPERUSER):
        if node is None:
            return Status.STALE
        status = self._may_set(node, name, who)
        if status is None and name not in held(node, "xattrs"):
            status = Status.NO_ATTRIBUTE
        if status is None:
            node.xattrs = {k: v for k, v in held(node, "xattrs").items() if k != name}
        return status

    @staticmethod
    def get_xattr(node, name, who=SUPERUSER):
        """Return a status or the value."""
        if node is None:
            return Status.STALE
        if name.startswith(b"trusted.") and who.uid != 0:
            return Status.NO_ATTRIBUTE
        if name.startswith(b"user."):
            if node.kind not in {"file", "dir"}:
                return Status.NO_ATTRIBUTE
            if not node.allows(who, READ):
                return Status.ACCESS_DENIED
        return held(node, "xattrs").get(name, Status.NO_ATTRIBUTE)

    @staticmethod
    def list_xattrs(node, who=SUPERUSER):
        """Return a status or the names."""
        if node is None:
            return Status.STALE
        names = set(held(node, "xattrs"))
        if who.uid != 0:
            names = {name for name in names if not name.startswith(b"trusted.")}
        names |= {b"system.posix_acl_access"} if node.acl is not None else set()
        names |= {b"system.posix_acl_default"} if node.default_acl is not None else set()
        return tuple(sorted(names))

    # ---- locks of files: who holds each byte ---------------------------------------------------

    @staticmethod
    def runs(node):
        """Return all locks: (first, kind, client, owner, last, is_write), in order."""
        found = []
        for (kind, client, owner), held_bytes in held(node, "locks").items():
            for byte, is_write in sorted(held_bytes.items()):
                if (
                    found
                    and found[-1][1:4] == (kind, client, owner)
                    and found[-1][4:] == (byte - 1, is_write)
                ):
                    found[-1] = (*found[-1][:4], byte, is_write)
                else:
                    found.append((byte, kind, client, owner, byte, is_write))
        return sorted(found)

    def lock_conflict(self, node, lock, who):
        """Return the first lock of somebody else that forbids this one, or None;
        `lock`: (kind, owner, first, last, is_write).
        """
        kind, owner, first, last, is_write = lock
        for found in () if node is None else self.runs(node):
            is_other = found[1] == kind and found[2:4] != (who.client, owner)
            if is_other and (is_write or found[5]) and found[0] <= last and first <= found[4]:
                return found
        return None

    def set_lock(self, node, lock, who, *, is_unlock):
        """Return a status or (whether it is done, the lock that forbids it)."""
        kind, owner, first, last, is_write = lock
        if node is None:
            return (True, None) if is_unlock else Status.STALE
        conflict = None if is_unlock else self.lock_conflict(node, lock, who)
        if conflict is not None and kind == "posix":
            return False, conflict
        key = (kind, who.client, owner)
        before = held(node, "locks").get(key, {})
        mine = {byte: how for byte, how in before.items() if not first <= byte <= last}
        if conflict is None and not is_unlock:
            mine |= dict.fromkeys(range(first, last + 1), is_write)
        locks = {**held(node, "locks"), key: mine}
        node.locks = {k: v for k, v in locks.items() if v}
        return conflict is None, conflict

    # ---- sessions ------------------------------------------------------------------------------

    def open(self, node, reads, writes, is_truncate, session, who=SUPERUSER):  # noqa: PLR0917 - as open(2)
        """`session`: its number, or None for what needs none."""
        if node is None:
            return Status.STALE
        if node.kind == "symlink":
            return Status.TOO_MANY_SYMLINKS
        if (writes or is_truncate) and node.kind == "dir":
            return Status.IS_DIRECTORY
        mask = (READ if reads else 0) | (WRITE if writes or is_truncate else 0)
        if not node.allows(who, mask):
            return Status.ACCESS_DENIED
        if is_truncate and node.kind == "file":
            node.length = 0
            if who.uid != 0:
                self._written(node, who)
        if session is not None:
            node.sessions = {**held(node, "sessions"), session: (who.client, writes)}
        return None

    @staticmethod
    def close(node, session, who=SUPERUSER):
        if node is None:
            return Status.STALE
        if held(node, "sessions").get(session, ("",))[0] == who.client:
            node.sessions = {k: v for k, v in node.sessions.items() if k != session}
        return None

    @staticmethod
    def _has_open(node, who):
        return node is not None and (who.client, True) in held(node, "sessions").values()

    def chmod(self, node, mode, who=SUPERUSER):
        """Who may write may take set-id bits away, as writing does;
        on a mount only the kernel can ask for that.
        """
        taken = 0 if node is None else node.mode & ~mode
        is_set_id_only = taken and node.mode == mode | taken and not taken & ~(SET_UID | SET_GID)
        if not is_set_id_only or node.kind != "file" or node.is_owned_by(who):
            return super().chmod(node, mode, who)
        if not (node.allows(who, WRITE) or self._has_open(node, who)):
            return Status.NOT_PERMITTED
        node.mode = mode if who.is_in(node.gid) else mode & ~SET_GID
        return None

    def append(self, node, length, who=SUPERUSER):
        """Who has it open for writing may, too."""
        if self._has_open(node, who):
            who = SUPERUSER
        return super().append(node, length, who)

    # ---- time goes by ----------------------------------------------------------------------------

    def collect(self):
        """Delete what has no name and nobody has open; of removed trees, all that is in them."""
        gone = [
            n for n in self.nodes.values()
            if n.nlink == 0 and (not held(n, "sessions") or getattr(n, "is_in_removed_tree", False))
        ]  # fmt: skip
        for node in gone:
            del self.nodes[node.ident]

    def end_client(self, client):
        """A client is gone: what it held is free."""
        for node in self.nodes.values():
            sessions = held(node, "sessions").items()
            node.sessions = {k: v for k, v in sessions if v[0] != client}
            node.locks = {k: v for k, v in held(node, "locks").items() if k[1] != client}
            if node.holder == client:
                node.holder = ""

    def clean(self):
        """Remove for good what was not to be kept for long."""
        for place in list(self.marks):
            self.clean_one(*place)

    def clean_one(self, ident, name):
        """Return whether a name was there and its time was over."""
        if (ident, name) not in self.marks or self.marks[ident, name][3]:
            return False
        parent = self.nodes[ident]
        holder, parent.holder = (
            parent.holder,
            "",
        )  # a lock of the directory does not bind the cleaner
        self._remove_any(parent, name)
        parent.holder = holder
        return True

    # ---- the trash -------------------------------------------------------------------------------

    @property
    def trash_root(self):
        return self.nodes.get(TRASH_ROOT_INODE_ID)

    def _may_take_away(self, directory, node, who):
        if node is self.trash_root:
            return Status.NOT_PERMITTED
        return super()._may_take_away(directory, node, who)

    def _remove_any(self, parent, name):
        """Remove what may be removed, as is known."""
        who = Person(0, 0, client=parent.holder)
        if parent.entries[name].kind == "dir":
            status = self.remove_tree(parent, name, who)
        else:
            status = self.remove(parent, name, is_rmdir=False, who=who)
        assert status is None, status

    def remove(self, parent, name, *, is_rmdir, who=SUPERUSER):
        status = super().remove(parent, name, is_rmdir=is_rmdir, who=who)
        if status is None:
            self.marks.pop((parent.ident, name), None)
        return status

    def remove_tree(self, parent, name, who=SUPERUSER):
        node = (parent.entries or {}).get(name) if parent is not None else None
        inside = list(node.below()) if node is not None else []
        status = super().remove_tree(parent, name, who)
        if status is None:
            self.marks.pop((parent.ident, name), None)
            for directory in inside:
                if directory.kind == "dir":
                    directory.is_in_removed_tree = True
                    for key in [k for k in self.marks if k[0] == directory.ident]:
                        del self.marks[key]
        return status

    def _is_in_trash(self, directory):
        while directory is not self.root:
            if directory is self.trash_root:
                return True
            directory = directory.parent
        return False

    def move_to_trash(self, parent, name, is_long, who=SUPERUSER):
        """Return a status or (what was moved, where it is now or None, its name there)."""
        status, node = self._removable(parent, name, who)
        if status is None and node.kind == "dir" and not node.is_owned_by(who):
            status = Status.NOT_PERMITTED
        if status is None and node.kind == "dir":
            status = self.forbids_removal(node, who)
        if status is not None:
            return status
        if self._is_in_trash(parent):
            self._remove_any(parent, name)
            return node, None, b""
        trash = self._users_trash(who)
        if trash is None:
            return Status.EXISTS
        free = name
        while free in trash.entries:
            free += b"?"
        del parent.entries[name]
        trash.entries[free], node.parent = node, trash
        self.marks[trash.ident, free] = (parent.ident, name, who.uid, is_long)
        return node, trash, free

    def _users_trash(self, who):
        """Return it, made if need be; None: something else stands in its place."""
        if self.trash_root is None:
            if b".trash" in self.root.entries:
                return None
            made = self._directory(self.root, b".trash", SUPERUSER, 0o755)
            self.adopt(made, TRASH_ROOT_INODE_ID)
        name = b"%d" % who.uid
        if name not in self.trash_root.entries:
            self._directory(self.trash_root, name, who, 0o700)
        trash = self.trash_root.entries[name]
        return trash if trash.kind == "dir" else None

    def _directory(self, parent, name, owner, mode):
        """Whatever the directory above says."""
        holder, sgid, default = parent.holder, parent.mode, parent.default_acl
        parent.holder, parent.mode, parent.default_acl = "", 0o777, None
        status = self.make(parent, name, "dir", owner, mode)
        assert status is None, status
        parent.holder, parent.mode, parent.default_acl = holder, sgid, default
        node = parent.entries[name]
        if sgid & 0o2000:
            node.gid = parent.gid
        return node

    def name_in_trash(self, directory, name, found):
        """Learn what a name is that stood there already."""
        directory.entries[found] = directory.entries.pop(name)
        self.marks[directory.ident, found] = self.marks.pop((directory.ident, name))

    def adopt(self, node, ident):
        self.marks = {
            (ident if at == node.ident else at, name): (
                ident if mark[0] == node.ident else mark[0],
                *mark[1:],
            )
            for (at, name), mark in self.marks.items()
        }
        super().adopt(node, ident)

    def rename(self, old, old_name, new, new_name, mode, *, who=SUPERUSER):
        source = (old.entries or {}).get(old_name) if old is not None else None
        target = (new.entries or {}).get(new_name) if new is not None else None
        status = super().rename(old, old_name, new, new_name, mode, who=who)
        if status is None and source is not target:
            marks = [
                self.marks.pop((d.ident, n), None) for d, n in ((old, old_name), (new, new_name))
            ]
            self._mark(new, new_name, marks[0] or (old.ident, old_name, who.uid, True))
            if mode == "exchange":
                self._mark(old, old_name, marks[1] or (new.ident, new_name, who.uid, True))
        return status

    def _mark(self, directory, name, mark):
        """What comes to lie in somebody's trash is marked."""
        if directory.parent is self.trash_root and directory is not self.trash_root:
            self.marks[directory.ident, name] = mark
