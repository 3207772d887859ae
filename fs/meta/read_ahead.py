"""What an operation will certainly read, known from its request alone:
so that it is read in one go.

On a store elsewhere (fs/kv/remote.py, fs/kv/foundationdb.py) each read that waits for the one
before costs a way there and back.  A request names the directory, the name and the request id; all
else follows from what these lead to.

Does not check anything: a request that will be refused may name what it likes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from google.protobuf.message import Message

from ..schema.ids import TRASH_ROOT_INODE_ID
from ..schema.inode import NAME_BYTES_MAX
from ..schema.proto import common_pb2 as pb
from ..schema.proto import meta_pb2 as meta
from ..schema.proto.record_pb2 import DentryRecordPb
from . import records
from .context import SESSION_ID_BYTES, Caller


def _named(parent_id: int, name: bytes) -> Iterator[bytes]:
    yield records.inode_key(parent_id)
    if len(name) <= NAME_BYTES_MAX:  # a longer one is refused, and need not fit into a key
        yield records.dentry_key(parent_id, name)


def _remembered(caller: Caller) -> Iterator[bytes]:
    yield records.idempotency_key(caller.client_id, caller.request_id)


def _of_name(_caller: Caller, request: Any) -> Iterator[bytes]:
    yield from _named(request.parent_inode_id, request.name)


def _of_change(caller: Caller, request: Any) -> Iterator[bytes]:
    yield records.USAGE_EPOCH_KEY
    yield from _remembered(caller)
    yield from _of_name(caller, request)
    yield from directory_keys(request.parent_inode_id)  # for fs/meta/told.py


def _of_mkdir(caller: Caller, request: meta.MkdirReq) -> Iterator[bytes]:
    yield from _of_change(caller, request)
    if request.wants_name_lease:
        yield records.FORMAT_KEY


def _of_trash(caller: Caller, request: meta.MoveToTrashReq) -> Iterator[bytes]:
    yield from _of_change(caller, request)
    yield records.dentry_key(TRASH_ROOT_INODE_ID, b"%d" % caller.uid)


def _of_link(caller: Caller, request: meta.LinkReq) -> Iterator[bytes]:
    yield from _remembered(caller)
    yield from _of_name(caller, request)
    yield records.inode_key(request.inode_id)
    yield from directory_keys(request.parent_inode_id)


def _of_rename(caller: Caller, request: meta.RenameReq) -> Iterator[bytes]:
    yield records.USAGE_EPOCH_KEY
    yield from _remembered(caller)
    yield from _named(request.old_parent_inode_id, request.old_name)
    yield from _named(request.new_parent_inode_id, request.new_name)
    yield from directory_keys(request.old_parent_inode_id)
    if request.new_parent_inode_id != request.old_parent_inode_id:
        yield from directory_keys(request.new_parent_inode_id)


def _of_set_attr(caller: Caller, request: meta.SetAttrReq) -> Iterator[bytes]:
    if request.HasField("length"):
        yield records.USAGE_EPOCH_KEY
    yield from _remembered(caller)
    yield records.inode_key(request.inode_id)


def _of_open(caller: Caller, request: meta.OpenReq) -> Iterator[bytes]:
    yield records.inode_key(request.inode_id)
    if request.is_truncate or request.HasField("session"):
        yield from _remembered(caller)
    if request.wants_write or request.is_truncate:
        yield records.USAGE_EPOCH_KEY
    if request.takes_inline and request.wants_read:
        yield records.inline_key(request.inode_id)


def _of_attributes(_caller: Caller, request: meta.GetAttrReq) -> Iterator[bytes]:
    if request.takes_inline:  # else a single read
        yield records.inode_key(request.inode_id)
        yield records.inline_key(request.inode_id)


def _of_listing(_caller: Caller, request: meta.ListReq) -> Iterator[bytes]:
    if request.wants_directory:  # else a single read
        yield records.inode_key(request.inode_id)
        yield from directory_keys(request.inode_id)


def _of_path(caller: Caller, request: meta.MakeDirectoriesReq) -> Iterator[bytes]:
    yield records.USAGE_EPOCH_KEY
    yield from _remembered(caller)
    yield records.inode_key(request.parent_inode_id)


def _of_content(_caller: Caller, request: Any) -> Iterator[bytes]:
    yield records.inode_key(request.inode_id)
    yield records.USAGE_EPOCH_KEY


def _of_report(caller: Caller, request: meta.SyncReq) -> Iterator[bytes]:
    yield from _remembered(caller)
    yield from _of_content(caller, request)
    if request.HasField("inline_data"):
        yield records.FORMAT_KEY
        yield records.INLINE_BYTES_KEY


def _of_append(caller: Caller, request: meta.ReserveAppendReq) -> Iterator[bytes]:
    yield from _remembered(caller)
    yield from _of_content(caller, request)


def _of_close(caller: Caller, request: meta.CloseReq) -> Iterator[bytes]:
    if request.sync.has_new_data or request.sync.HasField("length_hint"):
        yield from _of_report(caller, request.sync)


def _of_prune(_caller: Caller, request: meta.PruneSessionsReq) -> Iterator[bytes]:
    for ended in request.sessions:
        yield records.inode_key(ended.inode_id)
        if len(ended.session_id) == SESSION_ID_BYTES:  # another one is refused
            yield records.file_session_key(ended.inode_id, ended.session_id)


KEYS: Final[dict[type[Message], Callable[[Caller, Any], Iterator[bytes]]]] = {
    meta.GetAttrReq: _of_attributes,
    meta.ListReq: _of_listing,
    meta.LookupReq: _of_name,
    meta.CreateReq: _of_change,
    meta.MkdirReq: _of_mkdir,
    meta.MakeDirectoriesReq: _of_path,
    meta.MknodReq: _of_change,
    meta.SymlinkReq: _of_change,
    meta.LinkReq: _of_link,
    meta.UnlinkReq: _of_change,
    meta.RmdirReq: _of_change,
    meta.RemoveTreeReq: _of_change,
    meta.MoveToTrashReq: _of_trash,
    meta.RenameReq: _of_rename,
    meta.SetAttrReq: _of_set_attr,
    meta.OpenReq: _of_open,
    meta.SyncReq: _of_report,
    meta.CloseReq: _of_close,
    meta.PruneSessionsReq: _of_prune,
    meta.ReserveAppendReq: _of_append,
    meta.ReserveSpaceReq: _of_content,
}


def request_keys(caller: Caller, request: Message) -> Iterator[bytes]:
    """Yield the keys that an operation reads before anything else;
    none where it begins with a single read.
    """
    keys = KEYS.get(type(request))
    if keys is not None:
        yield from keys(caller, request)


def object_keys(dentries: Iterable[DentryRecordPb]) -> Iterator[bytes]:
    """Yield where the objects behind names are kept, with all that directories have more."""
    for dentry in dentries:
        yield records.inode_key(dentry.inode_id)
        if dentry.type == pb.DIRECTORY:
            yield from directory_keys(dentry.inode_id)


def name_keys(dentry: DentryRecordPb | None, parent_id: int, name: bytes) -> Iterator[bytes]:
    """Yield where the object behind a name that may go is kept,
    and whether it is its home (fs/meta/homes.py).
    """
    if dentry is not None:
        yield from object_keys([dentry])
        if dentry.type != pb.DIRECTORY:
            yield records.link_key(dentry.inode_id, parent_id, name)


def directory_keys(inode_id: int) -> tuple[bytes, bytes]:
    """Return where a directory keeps what its inode record lacks."""
    return records.directory_times_key(inode_id), records.subdirectory_count_key(inode_id)
