"""Names: checking them, finding, storing and removing dentries within a transaction."""

from ..kv.api import Transaction
from ..schema.inode import NAME_BYTES_MAX
from ..schema.proto import common_pb2 as pb
from ..schema.proto import meta_pb2 as meta
from ..schema.proto.record_pb2 import DentryRecordPb
from ..schema.status import FsError, Status
from . import records
from .damage import dentry_record


def check_name(name: bytes) -> None:
    """Raise FsError(INVALID_ARGUMENT or NAME_TOO_LONG) unless `name` can be one path component."""
    if not name or b"/" in name or b"\x00" in name:
        raise FsError(Status.INVALID_ARGUMENT, f"name {name!r}")
    if len(name) > NAME_BYTES_MAX:
        raise FsError(Status.NAME_TOO_LONG, f"{len(name)} bytes, at most {NAME_BYTES_MAX}")


def told(name: bytes, parent_id: int) -> str:
    """Return a name and where it is, for people."""
    return f"{name.decode(errors='backslashreplace')!r} in directory {parent_id:#x}"


def is_dot(name: bytes) -> bool:
    """Return whether `name` is `.` or `..`, which are never stored."""
    return name in (b".", b"..")


async def find_dentry(
    tr: Transaction, parent_id: int, name: bytes, *, snapshot: bool = False
) -> DentryRecordPb | None:
    """Return the dentry of a name, or None."""
    key = records.dentry_key(parent_id, name)
    value = await tr.get(key, snapshot=snapshot)
    return None if value is None else dentry_record(key, value)


async def load_dentry(
    tr: Transaction, parent_id: int, name: bytes, *, snapshot: bool = False
) -> DentryRecordPb:
    """Return the dentry of a name; raises FsError(NOT_FOUND)."""
    found = await find_dentry(tr, parent_id, name, snapshot=snapshot)
    if found is None:
        raise FsError(Status.NOT_FOUND, told(name, parent_id))
    return found


async def require_expected(
    tr: Transaction,
    request: meta.OpenReq | meta.LinkReq | meta.SetAttrReq | meta.SetXattrReq | meta.RemoveXattrReq,
) -> None:
    """Raise FsError(STALE) if a request says by which name its inode was found,
    and that leads elsewhere by now.
    """
    if not request.expected_name:
        return
    parent_id, name = request.expected_parent_inode_id, request.expected_name
    dentry = await find_dentry(tr, parent_id, name)
    if dentry is None or dentry.inode_id != request.inode_id:
        raise FsError(
            Status.STALE, f"{name!r} in {parent_id:#x} is not inode {request.inode_id:#x}"
        )


def require_same(name: bytes, found_inode_id: int, wanted_inode_id: int) -> None:
    """Raise FsError(NOT_FOUND) unless a name leads to the wanted inode; 0: to whatever it leads."""
    if wanted_inode_id and wanted_inode_id != found_inode_id:
        what = f"{name!r} leads to {found_inode_id:#x}, not {wanted_inode_id:#x}"
        raise FsError(Status.NOT_FOUND, what)


def store_dentry(
    tr: Transaction,
    parent_id: int,
    name: bytes,
    inode: pb.InodePb,
    *,
    trash: pb.TrashMarkPb | None = None,
) -> None:
    """Let a name lead to an inode; `trash`: it lies in the trash, for so long."""
    record = DentryRecordPb(inode_id=inode.inode_id, type=inode.type, trash=trash)
    tr.set(records.dentry_key(parent_id, name), record.SerializeToString())
    if trash is not None:
        tr.set(records.trash_key(trash.due_ns, parent_id, name), b"")


def clear_dentry(tr: Transaction, parent_id: int, name: bytes) -> None:
    """Remove a name."""
    tr.clear(records.dentry_key(parent_id, name))


async def is_empty(tr: Transaction, directory_id: int) -> bool:
    """Return whether a directory has no names; conflicts with any that is added."""
    begin, end = records.dentry_prefix(directory_id), records.dentry_end(directory_id)
    return not await tr.get_range(begin, end, limit=1)
