"""What somebody does to the namespace, asked of the service and of the model alike;
both answers have one form.

A deed names objects by inode id, as requests do.  Its answer is a status, or (`done`, what it
says): of a reader all attributes it saw; of a change which object it made, moved or removed, and
where an append begins.  What a change says of attributes is not compared: a repeated request may
be answered with those of now.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fs.schema.proto import common_pb2 as pb
from fs.schema.proto import meta_pb2 as meta
from fs.schema.status import FsError, Status
from tests.meta.harness import hint
from tests.meta.model import Acl, Model, Person

KIND_OF_TYPE = {
    pb.FILE: "file",
    pb.DIRECTORY: "dir",
    pb.SYMLINK: "symlink",
    pb.FIFO: "fifo",
    pb.SOCKET: "socket",
    pb.CHAR_DEVICE: "char",
    pb.BLOCK_DEVICE: "block",
}

DONE = "done"


@dataclass(frozen=True)
class Deed:
    """One call."""

    kind: str
    who: Person
    args: tuple

    def __str__(self):
        return f"{self.kind}{self.args} by {self.who.uid}"


def facts_of(inode):
    """What `Node.facts` is of the model's."""
    kind = KIND_OF_TYPE[inode.type]
    target = bytes(inode.symlink_target)
    plain = (kind, inode.mode, inode.uid, inode.gid, inode.nlink, inode.file.length, target)
    default = None
    if inode.directory.HasField("default_acl"):
        whole = inode.directory.default_acl
        mask = whole.mask if whole.HasField("mask") else None
        group, users, groups = _entries(whole)
        default = Acl(whole.owner, group, whole.other, mask, users, groups)
    acl = _entries(inode.acl) if inode.HasField("acl") else None
    return (*plain, inode.rdev, acl, default, inode.directory.lock_client_id)


def _entries(acl):
    users, groups = (tuple((e.id, e.rights) for e in named) for named in (acl.users, acl.groups))
    return acl.group, users, groups


# ---- the service's side: the request of a deed, and what its reply says --------------------------

READERS = {"lookup", "attr", "list"}


QUIET = READERS | {"get_xattr", "list_xattrs", "find_lock"}
"""Deeds that change nothing, also those of wide_deeds.py."""


def request_of(deed):
    """Return (name of the RPC, request)."""
    return _REQUESTS[deed.kind](*deed.args)


def _create(parent, name, mode, is_exclusive, is_truncate, umask=0):  # noqa: PLR0917 - as a deed says it
    return "create", meta.CreateReq(
        parent_inode_id=parent,
        name=name,
        mode=mode,
        is_exclusive=is_exclusive,
        is_truncate=is_truncate,
        umask=umask,
    )


def _rename(old, old_name, new, new_name, mode):
    flags = {} if mode == "replace" else {mode: True}
    return "rename", meta.RenameReq(
        old_parent_inode_id=old,
        old_name=old_name,
        new_parent_inode_id=new,
        new_name=new_name,
        **flags,
    )


def _set_attr(**fields):
    return "set_attr", meta.SetAttrReq(**{k: v for k, v in fields.items() if v is not None})


_REQUESTS: dict[str, Callable] = {
    "lookup": lambda parent, name: (
        "lookup",
        meta.LookupReq(parent_inode_id=parent, name=name),
    ),
    "attr": lambda ident: ("get_attr", meta.GetAttrReq(inode_id=ident)),
    "list": lambda ident: ("list", meta.ListReq(inode_id=ident, with_inodes=True)),
    "create": _create,
    "mkdir": lambda parent, name, mode, umask=0: (
        "mkdir",
        meta.MkdirReq(parent_inode_id=parent, name=name, mode=mode, umask=umask),
    ),
    "symlink": lambda parent, name, target: (
        "symlink",
        meta.SymlinkReq(parent_inode_id=parent, name=name, target=target),
    ),
    "link": lambda ident, parent, name: (
        "link",
        meta.LinkReq(inode_id=ident, parent_inode_id=parent, name=name),
    ),
    "unlink": lambda parent, name: (
        "unlink",
        meta.UnlinkReq(parent_inode_id=parent, name=name),
    ),
    "rmdir": lambda parent, name: ("rmdir", meta.RmdirReq(parent_inode_id=parent, name=name)),
    "remove_tree": lambda parent, name: (
        "remove_tree",
        meta.RemoveTreeReq(parent_inode_id=parent, name=name),
    ),
    "rename": _rename,
    "chmod": lambda ident, mode: _set_attr(inode_id=ident, mode=mode),
    "chown": lambda ident, uid, gid: _set_attr(inode_id=ident, uid=uid, gid=gid),
    "truncate": lambda ident, length: _set_attr(inode_id=ident, length=length),
    "append": lambda ident, length: (
        "reserve_append",
        meta.ReserveAppendReq(inode_id=ident, length=length),
    ),
}


def said(deed, reply):
    """Return the answer that a reply gives."""
    kind = deed.kind
    if kind in {"lookup", "attr"}:
        return DONE, reply.inode.inode_id, facts_of(reply.inode)
    if kind == "list":
        assert not reply.has_more, "a page holds more names than these directories have"
        return DONE, tuple(_listed(entry) for entry in reply.entries)
    if kind == "create":
        return DONE, reply.inode.inode_id, reply.was_created
    if kind in {"mkdir", "symlink", "link"}:
        return DONE, reply.inode.inode_id
    if kind in {"unlink", "rmdir", "remove_tree"}:
        return DONE, reply.removed.inode_id
    if kind == "rename":
        return DONE, reply.moved.inode_id, reply.replaced.inode_id
    if kind == "append":
        return DONE, reply.offset
    return (DONE,)


def _listed(entry):
    facts = facts_of(entry.inode) if entry.HasField("inode") else None
    return bytes(entry.name), entry.inode_id, facts


async def write(user, ident, length, truncate_ver):
    """Let chunks take the first bytes of a file that was opened under a truncate version,
    and report them.
    """
    chunks = user.world.chunks
    await chunks.before_write()
    chunks.lengths[ident] = max(chunks.lengths.get(ident, 0), length)
    await user.sync(ident, length_hint=hint(length, truncate_ver), has_new_data=True)
    return (DONE,)


async def ask(user, deed):
    """Let a user (tests/meta/harness.py) do it; return the answer."""
    if deed.kind == "write":
        return await write(user, *deed.args)
    name, request = request_of(deed)
    try:
        return said(deed, await user.call(name, request))
    except FsError as error:
        return error.status


# ---- the model's side ----------------------------------------------------------------------------


class Expectation:
    """What the model answers; objects that it made and nobody has named yet are learned
    from what was seen.

    It changes the model as the deed does.
    """

    def __init__(self, model: Model, deed: Deed):
        self.model = model
        self.deed = deed
        self.answer = getattr(self, f"_{deed.kind}")(*deed.args)

    def agrees(self, seen):
        """Compare with what was seen; `seen` None: nobody knows."""
        if seen is None:
            return True
        if isinstance(seen, Status) or isinstance(self.answer, Status):
            return seen is self.answer
        learned: dict = {}
        if not self._agree(self.answer, seen, learned):
            return False
        for node, ident in learned.items():
            self.model.adopt(node, ident)
        return True

    def _agree(self, mine, found, learned):
        if isinstance(mine, Ident):
            return self._is(mine.node, found, learned)
        if not isinstance(mine, tuple) or not isinstance(found, tuple):
            return mine == found
        return len(mine) == len(found) and all(
            self._agree(one, other, learned) for one, other in zip(mine, found, strict=True)
        )

    def _is(self, node, found, learned):
        if node is None:
            return found == 0
        if node.ident > 0 or found in self.model.nodes:
            return node.ident == found
        if found in learned.values() and learned.get(node) != found:
            return False
        return learned.setdefault(node, found) == found

    def _node(self, ident):
        return self.model.nodes.get(ident)

    def _at(self, parent, name):
        directory = self._node(parent)
        return directory.entries.get(name) if directory is not None and directory.entries else None

    # Each returns a status or a tuple like the one `said` returns.

    def _lookup(self, parent, name):
        status, node = self.model.lookup(self._node(parent), name, self.deed.who)
        return status or (DONE, Ident(node), node.facts())

    def _attr(self, ident):
        node = self._node(ident)
        return Status.STALE if node is None else (DONE, Ident(node), node.facts())

    def _list(self, ident):
        status, entries, is_searchable = self.model.list(self._node(ident), self.deed.who)
        if status is not None:
            return status
        return DONE, tuple(
            (name, Ident(node), node.facts() if is_searchable else None) for name, node in entries
        )

    def _create(self, parent, name, mode, is_exclusive, is_truncate, umask=0):  # noqa: PLR0917 - as the deed says it
        before = self._at(parent, name)
        how = {"is_exclusive": is_exclusive, "is_truncate": is_truncate}
        status = self.model.create(self._node(parent), name, self.deed.who, mode, umask, **how)
        return status or (DONE, Ident(self._at(parent, name)), before is None)

    def _mkdir(self, parent, name, mode, umask=0):
        status = self.model.make(self._node(parent), name, "dir", self.deed.who, mode, umask)
        return status or (DONE, Ident(self._at(parent, name)))

    def _symlink(self, parent, name, target):
        status = self.model.make(self._node(parent), name, "symlink", self.deed.who, 0o777)
        if status is not None:
            return status
        made = self._at(parent, name)
        made.target = target
        return DONE, Ident(made)

    def _link(self, ident, parent, name):
        node = self._node(ident)
        status = self.model.link_node(node, self._node(parent), name, self.deed.who)
        return status or (DONE, Ident(node))

    def _unlink(self, parent, name):
        return self._remove(parent, name, is_rmdir=False)

    def _rmdir(self, parent, name):
        return self._remove(parent, name, is_rmdir=True)

    def _remove(self, parent, name, *, is_rmdir):
        node = self._at(parent, name)
        directory = self._node(parent)
        status = self.model.remove(directory, name, is_rmdir=is_rmdir, who=self.deed.who)
        return status or (DONE, Ident(node))

    def _remove_tree(self, parent, name):
        node = self._at(parent, name)
        status = self.model.remove_tree(self._node(parent), name, self.deed.who)
        return status or (DONE, Ident(node))

    def _rename(self, old, old_name, new, new_name, mode):
        source, target = self._at(old, old_name), self._at(new, new_name)
        status = self.model.rename(
            self._node(old), old_name, self._node(new), new_name, mode, who=self.deed.who
        )
        replaced = None if source is target else target
        return status or (DONE, Ident(source), Ident(replaced))

    def _chmod(self, ident, mode):
        return self.model.chmod(self._node(ident), mode, self.deed.who) or (DONE,)

    def _chown(self, ident, uid, gid):
        return self.model.chown(self._node(ident), uid, gid, self.deed.who) or (DONE,)

    def _truncate(self, ident, length):
        return self.model.truncate(self._node(ident), length, self.deed.who) or (DONE,)

    def _write(self, ident, length, *_how):
        return self.model.write(self._node(ident), length, self.deed.who) or (DONE,)

    def _append(self, ident, length):
        node = self._node(ident)
        offset = 0 if node is None else node.length
        return self.model.append(node, length, self.deed.who) or (DONE, offset)


@dataclass(frozen=True)
class Ident:
    """An object in an answer of the model; None: there is none."""

    node: object
