"""Inodes and directory entries in the layout of the kernel's replies,
and SETATTR requests as the vfs takes them.  Pure.
"""

import os
from typing import NamedTuple

from ....schema.config import ClientSection
from ....schema.inode import Inode
from ...noted_reads import NotedReads
from ...vfs.access_times import with_reads
from ...vfs.changing_attributes import AttrChange
from ...vfs.known import Shown
from ...vfs.listed_file import ListedFile
from ..answers import (
    BLOCK_BYTES,
    IO_BLOCK_BYTES,
    STAT_BLOCK_BYTES,
    clamp_time_ns,
    used_blocks,
)
from . import protocol as p
from .protocol import SetattrField

_S = 1_000_000_000
_TYPE_SHIFT = 12
"""From the type bits of st_mode to the type of a directory entry, as in dirent.h."""
_ABSENT = bytes(p.ENTRY_OUT.size)
_PADDING = [bytes(p.padded(count) - count) for count in range(p.NAME_ALIGNMENT)]
"""Behind a name, by what is left of its length."""
_MODE_MASK = 0o7777
_SIGN_BIT, _WRAP = 1 << 63, 1 << 64
_U64 = _WRAP - 1
_MODE, _UID, _GID, _SIZE, _FH = (
    int(field)  # flags of the enum take 2 us each time that one is looked at
    for field in (
        SetattrField.MODE,
        SetattrField.UID,
        SetattrField.GID,
        SetattrField.SIZE,
        SetattrField.FH,
    )
)
_ATIME, _MTIME = int(SetattrField.ATIME), int(SetattrField.MTIME)
_ATIME_NOW, _MTIME_NOW = int(SetattrField.ATIME_NOW), int(SetattrField.MTIME_NOW)
_ATIMES, _MTIMES = _ATIME | _ATIME_NOW, _MTIME | _MTIME_NOW


def _timeout(seconds: float) -> tuple[int, int]:
    whole = int(seconds)
    return whole, int((seconds - whole) * _S)


class ListedTimes(NamedTuple):
    """For how long what a listing says may be used: seconds, and nanoseconds."""

    attr: tuple[int, int]
    directory: tuple[int, int]
    usable: tuple[int, int]
    """Of a name that may be used for as long as its attributes."""
    other: tuple[int, int]


class Replies:
    """Makes replies with the cache times of one mount,
    and the times of access that its reads have given.
    """

    def __init__(self, section: ClientSection, reads: NotedReads) -> None:
        self._section, self._reads = section, reads
        self._attr = _timeout(section.attr_timeout_s)
        self._directory = _timeout(section.dir_entry_timeout_s)
        self._name = _timeout(section.entry_timeout_s)
        self._negative = _timeout(section.negative_timeout_s)

    def attr(self, inode: Inode) -> bytes:
        """Return the reply to GETATTR and SETATTR."""
        return p.ATTR_OUT.pack(*self._attr, 0) + self._attributes(inode)

    def told(self, inode: Inode, left_s: float) -> bytes:
        """Return the reply to GETATTR with attributes that may be used for `left_s`."""
        return p.ATTR_OUT.pack(*_timeout(left_s), 0) + self._attributes(inode)

    def statx(self, inode: Inode, left_s: float) -> bytes:
        """Return the reply to STATX with attributes that may be used for `left_s`."""
        if self._reads.found:
            inode = with_reads(self._reads, inode)
        return p.STATX_OUT.pack(*_timeout(left_s), 0) + _statx(inode)

    def entry(self, inode: Inode) -> bytes:
        """Return the reply to LOOKUP and to what makes names."""
        return self._entry(inode, self._directory if inode.is_dir else self._name, self._attr)

    def entry_shown(self, shown: Shown) -> bytes:
        """Return the reply to LOOKUP with what the kernel shows already,
        to be used for nothing else.
        """
        time_s, time_ns = divmod(shown.mtime_ns, _S)
        return p.ENTRY_OUT.pack(shown.inode_id, 0, 0, 0, 0, 0) + p.ATTR.pack(
            shown.inode_id,
            shown.length,
            -(-shown.length // BLOCK_BYTES),
            *[time_s & _U64] * 3,
            *[time_ns] * 3,
            shown.st_mode,
            1,
            shown.uid,
            shown.gid,
            0,
            IO_BLOCK_BYTES,
            0,
        )

    def entry_listed(self, told: ListedFile, age_s: float) -> bytes:
        """Return the reply to LOOKUP with what a listing told `age_s` ago of a regular file."""
        if self._reads.found:
            told = with_reads(self._reads, told)
        entry = direntplus_of_file(told, 0, b"", self.listed_times(age_s), may_use=True)
        return entry[: p.ENTRY_OUT.size + p.ATTR.size]

    def listed_times(self, age_s: float) -> ListedTimes:
        """Return for how long what READDIRPLUS says may be used, where meta told it `age_s` ago."""
        section = self._section
        valid_s = (
            section.attr_timeout_s,
            section.dir_entry_timeout_s,
            section.listed_timeout_s,
            section.entry_timeout_s,
        )
        return ListedTimes(*(_timeout(max(0.0, longest_s - age_s)) for longest_s in valid_s))

    def _entry(
        self, inode: Inode, name_timeout: tuple[int, int], attr_timeout: tuple[int, int]
    ) -> bytes:
        (valid_s, valid_ns), (attr_s, attr_ns) = name_timeout, attr_timeout
        node_id = inode.inode_id
        head = p.ENTRY_OUT.pack(node_id, 0, valid_s, attr_s, valid_ns, attr_ns)
        return head + self._attributes(inode)

    def _attributes(self, inode: Inode) -> bytes:
        if self._reads.found:
            inode = with_reads(self._reads, inode)
        return p.ATTR.pack(*_attr_fields(inode))

    def no_entry(self) -> bytes:
        """Return the reply to LOOKUP that lets the kernel remember that a name is not there."""
        valid_s, valid_ns = self._negative
        head = p.ENTRY_OUT.pack(0, 0, valid_s, 0, valid_ns, 0)
        return head + bytes(p.ATTR.size)


def _attr_fields(inode: Inode) -> tuple[int, ...]:
    # What these say `used_blocks` and `Inode.length` do, too: here without a call each.
    file = inode.file
    if file is None:
        length = taken = len(inode.symlink_target)
        block_bytes = IO_BLOCK_BYTES
    else:
        length, block_bytes = file.length, file.layout.chunk_size_bytes
        taken = inode.used_bytes if file.has_holes else length
    atime_s, atime_ns = divmod(inode.atime_ns, _S)
    mtime_s, mtime_ns = divmod(inode.mtime_ns, _S)
    ctime_s, ctime_ns = divmod(inode.ctime_ns, _S)
    return (
        inode.inode_id,
        length,
        -(-taken // STAT_BLOCK_BYTES),
        atime_s & _U64,
        mtime_s & _U64,
        ctime_s & _U64,
        atime_ns,
        mtime_ns,
        ctime_ns,
        inode.st_mode,
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.rdev,
        block_bytes,
        0,
    )


def _statx(inode: Inode) -> bytes:
    # Records of before times of making were kept say 0, and then there is none.
    mask = p.STATX_BASIC | (p.STATX_BTIME if inode.btime_ns else 0)
    times = (inode.atime_ns, inode.btime_ns, inode.ctime_ns, inode.mtime_ns)
    return p.STATX.pack(
        mask,
        _io_block_bytes(inode),
        0,
        inode.nlink,
        inode.uid,
        inode.gid,
        inode.st_mode,
        inode.inode_id,
        inode.length,
        used_blocks(inode),
        0,
        *(part for time_ns in times for part in divmod(time_ns, _S)),
        os.major(inode.rdev),
        os.minor(inode.rdev),
        0,
        0,
    )


def _io_block_bytes(inode: Inode) -> int:
    return inode.file.layout.chunk_size_bytes if inode.file is not None else IO_BLOCK_BYTES


def dirent(node_id: int, cookie: int, name: bytes, st_mode: int) -> bytes:
    """Return an entry of a READDIR reply; `cookie` is where the next reading begins."""
    head = p.DIRENT.pack(node_id, cookie, len(name), st_mode >> _TYPE_SHIFT)
    return head + name + _PADDING[len(name) % p.NAME_ALIGNMENT]


def direntplus(
    inode: Inode, cookie: int, name: bytes, times: ListedTimes, *, may_use: bool
) -> bytes:
    """Return an entry of a READDIRPLUS reply; `may_use`:
    the name may be used for as long as its attributes, if it is of no directory.
    """
    if inode.is_dir:
        valid_s, valid_ns = times.directory
    else:
        valid_s, valid_ns = times.usable if may_use else times.other
    attr_s, attr_ns = times.attr
    inode_id, name_bytes, st_mode = inode.inode_id, len(name), inode.st_mode
    head = p.DIRENTPLUS.pack(
        inode_id,
        0,
        valid_s,
        attr_s,
        valid_ns,
        attr_ns,
        *_attr_fields(inode),
        inode_id,
        cookie,
        name_bytes,
        st_mode >> _TYPE_SHIFT,
    )
    return head + name + _PADDING[name_bytes % p.NAME_ALIGNMENT]


def direntplus_bytes(name: bytes) -> int:
    """Return the size of an entry of a READDIRPLUS reply."""
    return p.DIRENTPLUS.size + len(name) + len(_PADDING[len(name) % p.NAME_ALIGNMENT])


def direntplus_of_file(
    told: ListedFile, cookie: int, name: bytes, times: ListedTimes, *, may_use: bool
) -> bytes:
    """As `direntplus`, of a regular file."""
    (
        inode_id,
        st_mode,
        uid,
        gid,
        nlink,
        length,
        mtime_ns,
        ctime_ns,
        atime_ns,
        stored_bytes,
        chunk_bytes,
        *_,
    ) = told
    valid_s, valid_ns = times.usable if may_use else times.other
    attr_s, attr_ns = times.attr
    mtime_s, mtime_ns = divmod(mtime_ns, _S)
    ctime_s, ctime_ns = divmod(ctime_ns, _S)
    atime_s, atime_ns = divmod(atime_ns, _S)
    name_bytes = len(name)
    head = p.DIRENTPLUS.pack(
        inode_id,
        0,
        valid_s,
        attr_s,
        valid_ns,
        attr_ns,
        inode_id,
        length,
        -(-stored_bytes // STAT_BLOCK_BYTES),
        atime_s & _U64,
        mtime_s & _U64,
        ctime_s & _U64,
        atime_ns,
        mtime_ns,
        ctime_ns,
        st_mode,
        nlink,
        uid,
        gid,
        0,
        chunk_bytes,
        0,
        inode_id,
        cookie,
        name_bytes,
        st_mode >> _TYPE_SHIFT,
    )
    return head + name + _PADDING[name_bytes % p.NAME_ALIGNMENT]


def dot_direntplus(node_id: int, cookie: int, name: bytes, st_mode: int) -> bytes:
    """Return "." or ".." for READDIRPLUS: without attributes,
    which the kernel does not take for these.
    """
    return _ABSENT + bytes(p.ATTR.size) + dirent(node_id, cookie, name, st_mode)


def attr_change(body: bytes) -> tuple[AttrChange, int | None]:
    """Return what a SETATTR asks for, and the open file that it was asked of."""
    fields = p.SETATTR_IN.unpack_from(body)
    valid, _, fh, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = fields
    change = AttrChange(
        mode=mode & _MODE_MASK if valid & _MODE else None,
        uid=uid if valid & _UID else None,
        gid=gid if valid & _GID else None,
        length=size if valid & _SIZE else None,
        atime_ns=_time_ns(atime, atime_ns) if valid & _ATIMES == _ATIME else None,
        mtime_ns=_time_ns(mtime, mtime_ns) if valid & _MTIMES == _MTIME else None,
        atime_now=valid & _ATIME_NOW != 0,
        mtime_now=valid & _MTIME_NOW != 0,
    )
    return change, fh if valid & _FH else None


def _time_ns(seconds: int, nanoseconds: int) -> int:
    signed_s = seconds - _WRAP if seconds & _SIGN_BIT else seconds
    return clamp_time_ns(signed_s * _S + nanoseconds)


def statfs(
    capacity_bytes: int, free_bytes: int, inode_count: int, free_inodes: int, name_bytes_max: int
) -> bytes:
    """Return the reply to STATFS."""
    free_blocks = free_bytes // BLOCK_BYTES
    return p.STATFS_OUT.pack(
        capacity_bytes // BLOCK_BYTES,
        free_blocks,
        free_blocks,
        inode_count + free_inodes,
        free_inodes,
        BLOCK_BYTES,
        name_bytes_max,
        BLOCK_BYTES,
        0,
    )
