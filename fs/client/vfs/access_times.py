"""Attributes with the times of access that reads of this mount have given them.  Pure.

Whoever shows attributes to the kernel shows them so: meta is told of reads later, and what
is kept of its replies is older.
"""

from dataclasses import replace
from typing import overload

from ...schema.inode import Inode
from ..noted_reads import NotedReads
from .listed_file import ListedFile


@overload
def with_reads(reads: NotedReads, told: Inode) -> Inode: ...
@overload
def with_reads(reads: NotedReads, told: ListedFile) -> ListedFile: ...
def with_reads(reads: NotedReads, told: Inode | ListedFile) -> Inode | ListedFile:
    """Return what was told, with what has been read since."""
    atime_ns = reads.shown_ns(told.inode_id, told.atime_ns)
    if atime_ns == told.atime_ns:
        return told
    if isinstance(told, ListedFile):
        return told._replace(atime_ns=atime_ns)
    return replace(told, atime_ns=atime_ns)
