"""The bytes of inline files, as replies of the metadata service bring them;
see specs/decisions/0149-inline-files.md.  Pure.
"""

from typing import Protocol

from xxhash import xxh3_64_intdigest

from ..schema.inode import FilePart
from ..schema.proto import common_pb2, meta_pb2
from ..schema.status import FsError, Status


class BringsBytes(Protocol):
    """A reply that tells of an inode, and may bring the bytes of an inline file."""

    @property
    def inode(self) -> common_pb2.InodePb:
        """As it was when the bytes were read."""
        ...

    @property
    def inline_data(self) -> bytes:
        """All bytes; empty: none are brought, for an inline file has at least one."""
        ...

    @property
    def inline_checksum(self) -> int:
        """Their xxh3-64."""
        ...


def brought_bytes(reply: BringsBytes) -> bytes | None:
    """Return all bytes of the file that a reply tells of; None: it brings none.

    Raises:
        FsError: CHECKSUM_MISMATCH: they are not what was written.
    """
    inode = reply.inode
    data = reply.inline_data
    if not data or not inode.file.is_inline:
        return None
    if len(data) != inode.file.length or xxh3_64_intdigest(data) != reply.inline_checksum:
        what = f"inode {inode.inode_id:#x}: {len(data)} bytes from the metadata service"
        raise FsError(Status.CHECKSUM_MISMATCH, what)
    return data


def add_bytes(report: meta_pb2.SyncReq, data: bytes, part: FilePart) -> None:
    """Make a report one of `data` as all that a file holds from now on,
    to be taken only while it is as `part` says.
    """
    report.has_new_data = True
    report.inline_data, report.inline_checksum = data, xxh3_64_intdigest(data)
    report.inline_data_ver = part.data_ver
    hint = meta_pb2.LengthHintPb(length=len(data), truncate_ver=part.truncate_ver)
    report.length_hint.CopyFrom(hint)
