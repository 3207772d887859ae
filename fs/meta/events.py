r"""What the event log says of a change: one flat record, from its request and its reply.  Pure.

Fields of every record: event, inode, uid, gid, client, request (hexadecimal; the same on every try
of one request).  Others as they apply: parent, name, and what the makers below add.  Names are
text: bytes that are not UTF-8 are written as \xNN.  specs/events.md lists them all.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from ..schema.proto import common_pb2 as pb
from ..schema.proto import meta_pb2 as meta
from ..schema.proto.record_pb2 import GcRecordPb
from . import records
from .context import Caller
from .ops.lock_directory import ACTIONS, LOCK_ATTRIBUTE

Event = dict[str, object]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _type(inode: pb.InodePb) -> str:
    return pb.InodeTypePb.Name(inode.type).lower()


def _parent(key: str, inode_id: int, path: bytes) -> Event:
    """Return the directory of a name; of a repeat, which looks for none,
    only the path that it was asked for by.
    """
    return {key: inode_id} if inode_id else {f"{key}_path": _text(path)}


def _place(request: Any) -> Event:
    path = getattr(request, "directory", b"")
    return _parent("parent", request.parent_inode_id, path) | {"name": _text(request.name)}


def _made(event: str) -> Callable[[Any, Any], Event]:
    return lambda request, reply: {
        "event": event,
        "inode": reply.inode.inode_id,
        **_place(request),
        "mode": reply.inode.mode,
    }


def _make_directories(
    request: meta.MakeDirectoriesReq, reply: meta.MakeDirectoriesRsp
) -> Event | None:
    if not reply.made_inode_ids:
        return None
    return {
        "event": "makedirs",
        "inode": reply.inode.inode_id,
        "parent": request.parent_inode_id,
        "path": _text(request.path),
        "mode": reply.inode.mode,
        "made": " ".join(map(str, reply.made_inode_ids)),
    }


def _create(request: meta.CreateReq, reply: meta.CreateRsp) -> Event | None:
    if reply.was_created:
        return _made("create")(request, reply) | {"writes": request.wants_write}
    opened = _open_write(request, reply)
    return None if opened is None else opened | _place(request)


def _open_write(request: meta.OpenReq | meta.CreateReq, reply: Any) -> Event | None:
    if not (request.wants_write or request.is_truncate):
        return None
    return {
        "event": "open_write",
        "inode": reply.inode.inode_id,
        "truncates": request.is_truncate,
    }


def _symlink(request: meta.SymlinkReq, reply: meta.InodeRsp) -> Event:
    return _made("symlink")(request, reply) | {"target": _text(request.target)}


def _mknod(request: meta.MknodReq, reply: meta.InodeRsp) -> Event:
    return _made("mknod")(request, reply) | {"type": _type(reply.inode)}


def _link(request: meta.LinkReq, reply: meta.InodeRsp) -> Event:
    return _made("link")(request, reply) | {"nlink": reply.inode.nlink}


def _removed(inode: pb.InodePb, *, is_tree: bool) -> Event:
    return {
        "event": "remove",
        "inode": inode.inode_id,
        "type": _type(inode),
        "nlink": inode.nlink,
        "recursive": is_tree,
    }


def _remove(request: Any, reply: meta.RemoveRsp) -> Event:
    is_tree = isinstance(request, meta.RemoveTreeReq)
    return _removed(reply.removed, is_tree=is_tree) | _place(request)


def _trash(request: meta.MoveToTrashReq, reply: meta.MoveToTrashRsp) -> Event:
    if not reply.trash_inode_id:
        is_tree = reply.moved.type == pb.DIRECTORY
        return _removed(reply.moved, is_tree=is_tree) | _place(request)
    return {
        "event": "trash",
        "inode": reply.moved.inode_id,
        **_place(request),
        "to_parent": reply.trash_inode_id,
        "to_name": _text(reply.trash_name),
        "due_ns": reply.due_ns,
    }


def _rename(request: meta.RenameReq, reply: meta.RenameRsp) -> Event:
    return {
        "event": "rename",
        "inode": reply.moved.inode_id,
        **_parent("parent", request.old_parent_inode_id, request.old_directory),
        "name": _text(request.old_name),
        **_parent("to_parent", request.new_parent_inode_id, request.new_directory),
        "to_name": _text(request.new_name),
        "exchange": request.exchange,
        "replaced": 0 if request.exchange else reply.replaced.inode_id,
        "whiteout": reply.whiteout_inode_id,
    }


def _close(request: meta.CloseReq, reply: meta.InodeRsp) -> Event | None:
    if not request.session_id:
        return None
    return {
        "event": "close_write",
        "inode": request.sync.inode_id,
        "length": reply.inode.file.length,
    }


_ATTRIBUTES: Final = ("mode", "uid", "gid", "iflags")


def _set_attr(request: meta.SetAttrReq, reply: meta.InodeRsp) -> Event | None:
    # "uid" and "gid" alone are the caller's.
    changed: Event = {
        f"new_{name}": getattr(reply.inode, name) for name in _ATTRIBUTES if request.HasField(name)
    }
    if request.HasField("length"):
        return {
            "event": "truncate",
            "inode": request.inode_id,
            "length": request.length,
            **changed,
        }
    return {"event": "set_attr", "inode": request.inode_id, **changed} if changed else None


def _sync(request: meta.SyncReq, reply: meta.InodeRsp) -> Event | None:
    """What a report has set of mode and owner is told as if it had been asked for by itself."""
    if reply.owner_outcome != meta.OWNER_SET:
        return None
    asked = {field.name for field, _ in request.owner.ListFields()}
    changed: Event = {
        f"new_{name}": getattr(reply.inode, name) for name in _ATTRIBUTES if name in asked
    }
    return {"event": "set_attr", "inode": request.inode_id, **changed}


def _set_quota(request: meta.SetQuotaReq, _reply: meta.SetQuotaRsp) -> Event:
    quota = request.quota
    return {
        "event": "quota",
        "inode": request.inode_id,
        "bytes_max": quota.bytes_max,
        "inodes_max": quota.inodes_max,
    }


def _lock_directory(request: meta.LockDirectoryReq, _reply: meta.InodeRsp) -> Event:
    (action,) = (text for text, number in ACTIONS.items() if number == request.action)
    return {"event": "lock", "inode": request.inode_id, "action": _text(action)}


def _set_xattr(request: meta.SetXattrReq, _reply: meta.SetXattrRsp) -> Event:
    if request.name == LOCK_ATTRIBUTE:
        return {"event": "lock", "inode": request.inode_id, "action": _text(request.value)}
    return _xattr("set_xattr", request)


def _remove_xattr(request: meta.RemoveXattrReq, _reply: meta.RemoveXattrRsp) -> Event:
    return _xattr("remove_xattr", request)


def _xattr(event: str, request: meta.SetXattrReq | meta.RemoveXattrReq) -> Event:
    return {"event": event, "inode": request.inode_id, "name": _text(request.name)}


_MAKERS: Final[dict[type[Message], Callable[[Any, Any], Event | None]]] = {
    meta.CreateReq: _create,
    meta.MkdirReq: _made("mkdir"),
    meta.MakeDirectoriesReq: _make_directories,
    meta.SymlinkReq: _symlink,
    meta.MknodReq: _mknod,
    meta.LinkReq: _link,
    meta.UnlinkReq: _remove,
    meta.RmdirReq: _remove,
    meta.RemoveTreeReq: _remove,
    meta.MoveToTrashReq: _trash,
    meta.RenameReq: _rename,
    meta.OpenReq: _open_write,
    meta.CloseReq: _close,
    meta.SyncReq: _sync,
    meta.SetAttrReq: _set_attr,
    meta.SetXattrReq: _set_xattr,
    meta.RemoveXattrReq: _remove_xattr,
    meta.SetQuotaReq: _set_quota,
    meta.LockDirectoryReq: _lock_directory,
}


def event_of(caller: Caller, request: Message, reply: Message) -> Event | None:
    """Return the record of a request that was done; None when it is no change that is logged."""
    maker = _MAKERS.get(type(request))
    event = None if maker is None else maker(request, reply)
    if event is None:
        return None
    return event | {
        "uid": caller.uid,
        "gid": caller.gid,
        "client": caller.client_id,
        "request": caller.request_id.hex(),
    }


def expiry_event(key: bytes) -> Event:
    """Return the record of a name that was removed from the trash because its time was over."""
    due_ns, parent_id, name = records.trash_parts(key)
    return {"event": "expire", "parent": parent_id, "name": _text(name), "due_ns": due_ns}


def gc_event(record: GcRecordPb) -> Event:
    """Return the record of a file whose chunks have been removed."""
    return {
        "event": "gc",
        "inode": record.inode_id,
        "uid": record.uid,
        "gid": record.gid,
        "length": record.file.length,
        "removed_ns": record.removed_ns,
    }
