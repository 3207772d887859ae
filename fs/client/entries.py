"""What the native client hands out and is told:
identities, entries of directories, usage, entries of the trash.  Pure.
"""

import os
from dataclasses import dataclass
from typing import Self

from ..schema.inode import Inode
from ..schema.proto import common_pb2, meta_pb2


@dataclass(frozen=True, slots=True)
class Identity:
    """On whose behalf a client acts."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of_process(cls) -> Self:
        """Return the identity of this process."""
        return cls(os.geteuid(), os.getegid(), tuple(os.getgroups()))

    def caller(self) -> common_pb2.CallerPb:
        """Return a fresh request header."""
        return common_pb2.CallerPb(uid=self.uid, gid=self.gid, groups=self.groups)


@dataclass(frozen=True, slots=True)
class DirEntry:
    """One name of a directory, with the attributes of what it names."""

    name: str
    inode: Inode


@dataclass(frozen=True, slots=True)
class FoundPath:
    """One path of a tree, with the attributes of what it names."""

    path: str
    inode: Inode


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """What lies below a directory, itself not counted, and the limits set there."""

    path: str
    """Empty when it is longer than a path may be."""
    byte_count: int
    file_count: int
    """All that is no directory."""
    directory_count: int
    bytes_max: int
    """0: no limit."""
    inodes_max: int
    """On files and directories together; 0: no limit."""
    damage: str = ""
    """What is damaged in the records of this directory; then nothing else is known."""


def usage_from_pb(message: meta_pb2.DirectoryUsagePb) -> DirectoryUsage:
    """Return the usage of one directory."""
    usage, quota = message.usage, message.quota
    return DirectoryUsage(
        os.fsdecode(message.path),
        usage.bytes,
        usage.files,
        usage.directories,
        quota.bytes_max,
        quota.inodes_max,
        message.damage,
    )


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """A name in one's trash."""

    name: str
    """There; what it was called before is the end of `path`."""
    path: str
    """Where it was; empty when that was longer than a path may be."""
    removed_ns: int
    due_ns: int
    """When it is removed for good, since the epoch; 0: it was made there and stays."""
    is_dir: bool
    place: tuple[int, bytes]
    """(directory in the trash, name)."""
    origin: tuple[int, bytes]
    """(directory, name) from where it was moved."""


def trash_entry_from_pb(directory_id: int, entry: meta_pb2.DentryPb) -> TrashEntry:
    """Return a name in the directory `directory_id` of the trash."""
    mark = entry.trash
    return TrashEntry(
        os.fsdecode(entry.name),
        os.fsdecode(mark.path),
        mark.removed_ns,
        mark.due_ns,
        entry.type == common_pb2.DIRECTORY,
        (directory_id, entry.name),
        (mark.parent_inode_id, mark.name),
    )
