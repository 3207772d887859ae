"""The namespace as it should be, in plain dicts:
what each operation answers, and what is there afterwards.

Rules are those of Linux, written down once more without a look at how EmberFS does it; nothing of
fs/meta is used.  Methods return a status, None for success.  Every object has a number, `ident`:
objects that the model makes get negative ones, until `adopt` says which inode it is.  Nothing is
forgotten: what has no name any more can still be asked for, as by somebody who has it open.

Does not: times, quotas (tests/meta/test_usage_model.py), sessions, what garbage collection deletes.
"""

from dataclasses import dataclass

from fs.schema.ids import ROOT_INODE_ID
from fs.schema.status import Status

READ, WRITE, SEARCH = 4, 2, 1
SET_UID, SET_GID, STICKY, GROUP_RUNS = 0o4000, 0o2000, 0o1000, 0o010


@dataclass(frozen=True)
class Person:
    """Somebody who acts."""

    uid: int
    gid: int
    groups: frozenset[int] = frozenset()
    client: str = "c" * 32

    def is_in(self, gid):
        return gid == self.gid or gid in self.groups


SUPERUSER = Person(0, 0)


@dataclass(frozen=True)
class Acl:
    """A whole access control list."""

    owner: int
    group: int
    rest: int
    mask: int | None = None
    users: tuple = ()
    groups: tuple = ()

    def entries(self):
        """What the mode does not say; None: nothing."""
        return None if self.mask is None else (self.group, self.users, self.groups)

    def mode(self):
        return self.owner << 6 | (self.group if self.mask is None else self.mask) << 3 | self.rest


class Node:
    """An object: a directory has entries, anything else a name count; a file has a length."""

    def __init__(self, kind, parent=None, ident=ROOT_INODE_ID, mode=0o755):
        self.kind = kind
        self.ident = ident
        self.entries = {} if kind == "dir" else None
        self.parent = parent
        self.nlink = 0
        self.mode = mode
        self.uid = self.gid = 0
        self.length = 0
        self.target = b""
        self.rdev = 0
        self.acl = None
        """What the access list has beyond the mode:
        (rights of the group, ((uid, rights), ...), ((gid, rights), ...)).
        """
        self.default_acl = None
        """A directory's, whole: an Acl."""
        self.holder = ""
        """The client that has locked the directory."""

    def below(self):
        yield self
        for child in (self.entries or {}).values():
            yield from child.below()

    def link_count(self):
        """What stat says."""
        if self.kind != "dir":
            return self.nlink
        return 2 + sum(n.kind == "dir" for n in self.entries.values()) if self.nlink else 0

    def facts(self):
        """All attributes but times; what decides how the object answers."""
        return (
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            self.link_count(),
            self.length,
            self.target,
            self.rdev,
            self.acl,
            self.default_acl,
            self.holder,
        )

    def allows(self, who, mask):
        if who.uid == 0:
            return not mask & SEARCH or self.kind == "dir" or bool(self.mode & 0o111)
        if who.uid == self.uid:
            granted = self.mode >> 6
        elif self.acl is not None:
            return self._lists(who, mask)
        elif who.is_in(self.gid):
            granted = self.mode >> 3
        else:
            granted = self.mode
        return granted & mask == mask

    def _lists(self, who, wanted):
        """acl(5): the entry of the user decides, else any one of those of his groups,
        each under the mask.
        """
        group, users, groups = self.acl
        for uid, rights in users:
            if uid == who.uid:
                return rights & self.mode >> 3 & wanted == wanted
        found = [rights for gid, rights in groups if who.is_in(gid)]
        if who.is_in(self.gid):
            found.append(group)
        if not found:
            return self.mode & wanted == wanted
        return any(rights & self.mode >> 3 & wanted == wanted for rights in found)

    def is_owned_by(self, who):
        return who.uid in {0, self.uid}


class Model:
    """What POSIX says, in plain dicts.  Every method returns a status or None."""

    def __init__(self):
        self.root = Node("dir")
        self.root.parent, self.root.nlink = self.root, 1
        self.nodes = {self.root.ident: self.root}
        self._last_ident = 0

    def copy(self):
        """Return an equal one that shares nothing with this."""
        made = type(self).__new__(type(self))
        made._last_ident = self._last_ident
        made.nodes = {}
        for ident, node in self.nodes.items():
            twin = made.nodes[ident] = Node.__new__(type(node))
            twin.__dict__.update(node.__dict__)
        for node in made.nodes.values():
            if node.entries is not None:
                node.entries = {k: made.nodes[n.ident] for k, n in node.entries.items()}
                node.parent = made.nodes[node.parent.ident]
        made.root = made.nodes[self.root.ident]
        return made

    def state(self):
        """Return what tells this from a model that would ever answer otherwise."""
        return frozenset(
            (
                ident,
                node.mode,
                node.uid,
                node.gid,
                node.nlink,
                node.length,
                (node.acl, node.default_acl, node.holder),
                frozenset((k, n.ident) for k, n in node.entries.items()) if node.entries else None,
            )
            for ident, node in self.nodes.items()
        )

    def directories(self):
        return [node for node in self.root.below() if node.kind == "dir"]

    def adopt(self, node, ident):
        """Learn which inode an object is."""
        del self.nodes[node.ident]
        node.ident = ident
        self.nodes[ident] = node

    # ---- rules that several operations share -------------------------------------------------

    @staticmethod
    def _enter(directory, who):
        if directory is None:
            return Status.STALE
        if directory.kind != "dir":
            return Status.NOT_DIRECTORY
        if directory.nlink == 0:
            return Status.NOT_FOUND
        return None if directory.allows(who, SEARCH) else Status.ACCESS_DENIED

    @staticmethod
    def _may_change(directory, who):
        if not directory.allows(who, WRITE | SEARCH):
            return Status.ACCESS_DENIED
        return None if directory.holder in {"", who.client} else Status.NO_LOCK

    @staticmethod
    def _may_take_away(directory, node, who):
        if directory.mode & STICKY and not (node.is_owned_by(who) or directory.is_owned_by(who)):
            return Status.NOT_PERMITTED
        return None

    @staticmethod
    def _written(node, who):
        """Content that changes no longer runs as somebody else;
        a lock of old is left by those in its group.
        """
        node.mode &= ~SET_UID
        if node.mode & GROUP_RUNS or not (who.uid == 0 or who.is_in(node.gid)):
            node.mode &= ~SET_GID

    # ---- reading -----------------------------------------------------------------------------

    def lookup(self, parent, name, who=SUPERUSER):
        """Return (status, node)."""
        status = self._enter(parent, who)
        if status is None and name not in parent.entries:
            status = Status.NOT_FOUND
        return status, None if status else parent.entries[name]

    def list(self, directory, who=SUPERUSER):
        """Return (status, [(name, node)], whether the attributes are seen, too)."""
        if directory is None:
            status = Status.STALE
        elif directory.kind != "dir":
            status = Status.NOT_DIRECTORY
        else:
            status = None if directory.allows(who, READ) else Status.ACCESS_DENIED
        if status is not None:
            return status, [], False
        return None, sorted(directory.entries.items()), directory.allows(who, SEARCH)

    # ---- names -------------------------------------------------------------------------------

    def make(self, parent, name, kind, who=SUPERUSER, mode=0o755, umask=0):  # noqa: PLR0917 - as mknod(2)
        status = self._enter(parent, who)
        if status is None and name in parent.entries:
            status = Status.EXISTS
        status = status or self._may_change(parent, who)
        if status is not None:
            return status
        if kind in {"char", "block"} and who.uid != 0:
            return Status.NOT_PERMITTED
        inherited = None if kind == "symlink" else parent.default_acl
        mode &= 0o7777 if inherited else 0o7777 & ~umask
        self._last_ident -= 1
        node = Node(kind, parent, self._last_ident, mode)
        node.uid, node.gid, node.nlink = who.uid, who.gid, 1
        if parent.mode & SET_GID:
            node.gid = parent.gid
            runs_as_group = mode & (SET_GID | GROUP_RUNS) == SET_GID | GROUP_RUNS
            if kind == "dir":
                node.mode |= SET_GID
            elif runs_as_group and who.uid != 0 and not who.is_in(parent.gid):
                node.mode &= ~SET_GID
        if inherited is not None:
            self._inherit(node, inherited)
        self.nodes[node.ident] = parent.entries[name] = node
        return None

    @staticmethod
    def _inherit(node, default):
        """A directory's default list, for a new object;
        nothing is granted that the mode does not ask for.
        """
        node.mode &= ~0o777 | default.mode()
        node.acl = default.entries()
        if default.mask is None:
            node.acl = None
        if node.kind == "dir":
            node.default_acl = default

    def create(
        self, parent, name, who=SUPERUSER, mode=0o644, umask=0, *, is_exclusive, is_truncate=False
    ):
        """open(O_CREAT), neither to read nor to write; the file is what stands there then."""
        status = self._enter(parent, who)
        if status is not None:
            return status
        node = parent.entries.get(name)
        if node is None:
            return self.make(parent, name, "file", who, mode, umask)
        if is_exclusive:
            return Status.EXISTS
        if node.kind == "dir":
            return Status.IS_DIRECTORY
        if node.kind != "file":
            return Status.EXISTS
        return self.truncate(node, 0, who) if is_truncate else None

    def link(self, parent, name, new_parent, new_name):
        node = parent.entries.get(name)
        if node is None:
            return Status.NOT_FOUND
        return self.link_node(node, new_parent, new_name)

    def link_node(self, node, parent, name, who=SUPERUSER):
        status = self._enter(parent, who)
        if status is None and name in parent.entries:
            status = Status.EXISTS
        status = status or self._may_change(parent, who)
        if status is not None:
            return status
        if node is None:
            return Status.STALE
        if node.kind == "dir" or not self._is_linkable(node, who):
            return Status.NOT_PERMITTED
        if node.nlink == 0:
            return Status.NOT_FOUND
        parent.entries[name] = node
        node.nlink += 1
        return None

    @staticmethod
    def _is_linkable(node, who):
        runs_as_other = node.mode & SET_UID or (node.mode & SET_GID and node.mode & GROUP_RUNS)
        is_plain = node.kind == "file" and not runs_as_other
        return node.is_owned_by(who) or (is_plain and node.allows(who, READ | WRITE))

    def _removable(self, parent, name, who):
        status, node = self.lookup(parent, name, who)
        status = status or self._may_change(parent, who)
        return status or self._may_take_away(parent, node, who), node

    def remove(self, parent, name, *, is_rmdir, who=SUPERUSER):
        status, node = self._removable(parent, name, who)
        if status is not None:
            return status
        if is_rmdir and node.kind != "dir":
            return Status.NOT_DIRECTORY
        if is_rmdir and node.entries:
            return Status.NOT_EMPTY
        if not is_rmdir and node.kind == "dir":
            return Status.IS_DIRECTORY
        del parent.entries[name]
        node.nlink -= 1
        return None

    def forbids_removal(self, top, who):
        """Return why somebody may not remove all that lies in a tree, or None."""
        waiting = [top]
        while who.uid and waiting:
            directory = waiting.pop()
            if not directory.entries:
                continue
            if not (directory.is_owned_by(who) or directory.allows(who, WRITE | SEARCH)):
                return Status.ACCESS_DENIED
            for _, child in sorted(directory.entries.items()):
                status = self._may_take_away(directory, child, who)
                if status is not None:
                    return status
                if child.kind == "dir":
                    waiting.append(child)
        return None

    def remove_tree(self, parent, name, who=SUPERUSER):
        status, node = self._removable(parent, name, who)
        if status is not None:
            return status
        if node.kind != "dir":
            return Status.NOT_DIRECTORY
        if not node.is_owned_by(who):
            return Status.NOT_PERMITTED
        status = self.forbids_removal(node, who)
        if status is not None:
            return status
        for directory in [n for n in node.below() if n.kind == "dir"]:
            directory.nlink = 0
            for child in directory.entries.values():
                if child.kind != "dir":
                    child.nlink -= 1
        del parent.entries[name]
        return None

    def rename(self, old, old_name, new, new_name, mode, *, who=SUPERUSER):
        status = self._enter(old, who) or self._enter(new, who)
        if status is not None:
            return status
        source, target = old.entries.get(old_name), new.entries.get(new_name)
        if source is None or (target is None and mode == "exchange"):
            return Status.NOT_FOUND
        if target is not None and mode == "no_replace":
            return Status.EXISTS
        if source is target:
            return None
        status = self._may_move(old, new, source, target, who)
        status = status or self._judge(old, new, source, target, mode=mode, who=who)
        if status is not None:
            return status
        if mode == "exchange":
            old.entries[old_name], target.parent = target, old
        else:
            if target is not None:
                target.nlink -= 1
            del old.entries[old_name]
        new.entries[new_name], source.parent = source, new
        return None

    def _may_move(self, old, new, source, target, who):
        status = self._may_change(old, who) or self._may_change(new, who)
        status = status or self._may_take_away(old, source, who)
        if target is not None:
            status = status or self._may_take_away(new, target, who)
        return status

    @staticmethod
    def _judge(old, new, source, target, *, mode, who):
        if target is not None and mode != "exchange":
            if source.kind == "dir" and target.kind != "dir":
                return Status.NOT_DIRECTORY
            if source.kind != "dir" and target.kind == "dir":
                return Status.IS_DIRECTORY
        if old is not new:
            turned = [source, target] if mode == "exchange" else [source]
            if any(n.kind == "dir" and not n.allows(who, WRITE) for n in turned):
                return Status.ACCESS_DENIED
        if source.kind == "dir" and new in source.below():
            return Status.INVALID_ARGUMENT
        if mode == "exchange" and target.kind == "dir" and old in target.below():
            return Status.INVALID_ARGUMENT
        if mode != "exchange" and target is not None and target.entries:
            return Status.NOT_EMPTY
        return None

    # ---- attributes and lengths --------------------------------------------------------------

    def chmod(self, node, mode, who=SUPERUSER):
        if node is None:
            return Status.STALE
        if not node.is_owned_by(who):
            return Status.NOT_PERMITTED
        if who.uid != 0 and not who.is_in(node.gid):
            mode &= ~SET_GID
        node.mode = mode
        return None

    def chown(self, node, uid, gid, who=SUPERUSER):
        """None: stays as it is."""
        if node is None:
            return Status.STALE
        is_own = who.uid == node.uid
        may_uid = uid is None or (is_own and uid == node.uid)
        may_gid = gid is None or (is_own and (gid == node.gid or who.is_in(gid)))
        if who.uid != 0 and not (may_uid and may_gid):
            return Status.NOT_PERMITTED
        if node.kind != "dir":
            self._written(node, who)
        node.uid = node.uid if uid is None else uid
        node.gid = node.gid if gid is None else gid
        return None

    def set_acl(self, node, acl, who=SUPERUSER, *, is_default):
        """setfacl; None removes a list."""
        if node is None:
            return Status.STALE
        if node.kind == "symlink":
            return Status.NOT_SUPPORTED
        if is_default and node.kind != "dir":
            return None if acl is None else Status.ACCESS_DENIED
        if not node.is_owned_by(who):
            return Status.NOT_PERMITTED
        if is_default:
            node.default_acl = acl
            return None
        node.acl = None
        if acl is not None:
            node.acl = acl.entries()
            return self.chmod(node, node.mode & ~0o777 | acl.mode(), who)
        return None

    def lock_directory(self, directory, action, who=SUPERUSER):
        """`action`: lock, preempt, unlock or clear."""
        status = self._enter(directory, who)
        if status is not None:
            return status
        if not directory.allows(who, WRITE):
            return Status.ACCESS_DENIED
        by_force = action in {"preempt", "clear"}
        if (by_force or directory.mode & STICKY) and not directory.is_owned_by(who):
            return Status.NOT_PERMITTED
        if not by_force and directory.holder not in {"", who.client}:
            return Status.NO_LOCK
        directory.holder = who.client if action in {"lock", "preempt"} else ""
        return None

    def truncate(self, node, length, who=SUPERUSER):
        status = self._regular(node)
        if status is None and not node.allows(who, WRITE):
            status = Status.ACCESS_DENIED
        if status is None:
            node.length = length
            if who.uid != 0:
                self._written(node, who)
        return status

    def append(self, node, length, who=SUPERUSER):
        """Reserve room at the end; where it begins is the length before."""
        status = self._regular(node)
        if status is None and not (who.uid == node.uid or node.allows(who, WRITE)):
            status = Status.ACCESS_DENIED
        if status is None:
            node.length += length
        return status

    def write(self, node, length, who=SUPERUSER):
        """Write the first `length` bytes and report them;
        whoever does has opened the file for it.
        """
        status = self._regular(node)
        if status is None:
            node.length = max(node.length, length)
            if who.uid != 0:
                self._written(node, who)
        return status

    @staticmethod
    def _regular(node):
        if node is None:
            return Status.STALE
        if node.kind == "dir":
            return Status.IS_DIRECTORY
        return None if node.kind == "file" else Status.NOT_REGULAR
