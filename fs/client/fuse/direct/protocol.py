"""Words of the kernel's FUSE protocol: opcodes, flags, and the layout of requests and replies.

Pure.

Source: include/uapi/linux/fuse.h of the Linux kernel; names follow it without their prefix.
All numbers are in the byte order of the machine.  This side speaks minor version 39 of protocol
7; a newer kernel adapts to that.

Does not check what requests mean, and does no I/O.
"""

from enum import IntEnum, IntFlag
from struct import Struct
from types import MappingProxyType
from typing import Final

from ....schema.inode import APPEND_ONLY, IMMUTABLE

MAJOR: Final = 7
MINOR: Final = 39
MINOR_MIN: Final = 31
"""Linux 5.4: the oldest kernel whose structures are all as written here."""

ROOT_NODE_ID: Final = 1


class Opcode(IntEnum):
    """What a request asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    TMPFILE = 51
    STATX = 52


class InitFlag(IntFlag):
    """What both sides can do; those from bit 32 on travel in `flags2`."""

    ASYNC_READ = 1 << 0
    POSIX_LOCKS = 1 << 1
    ATOMIC_O_TRUNC = 1 << 3
    EXPORT_SUPPORT = 1 << 4
    BIG_WRITES = 1 << 5
    DONT_MASK = 1 << 6
    FLOCK_LOCKS = 1 << 10
    AUTO_INVAL_DATA = 1 << 12
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    PARALLEL_DIROPS = 1 << 18
    POSIX_ACL = 1 << 20
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    HANDLE_KILLPRIV_V2 = 1 << 28
    SETXATTR_EXT = 1 << 29
    INIT_EXT = 1 << 30
    DIRECT_IO_ALLOW_MMAP = 1 << 36


class OpenFlag(IntFlag):
    """How the kernel is to treat an open file."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    CACHE_DIR = 1 << 3
    PARALLEL_DIRECT_WRITES = 1 << 6


class SetattrField(IntFlag):
    """Which fields of a SETATTR count."""

    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2
    SIZE = 1 << 3
    ATIME = 1 << 4
    MTIME = 1 << 5
    FH = 1 << 6
    ATIME_NOW = 1 << 7
    MTIME_NOW = 1 << 8
    KILL_SUIDGID = 1 << 11


NOTIFY_INVAL_INODE: Final = 2
NOTIFY_INVAL_ENTRY: Final = 3

IN_HEADER: Final = Struct("=IIQQIIIHH")
"""len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding."""
OUT_HEADER: Final = Struct("=IiQ")
"""len, negative errno, unique."""

INIT_IN: Final = Struct("=IIII")
"""major, minor, max_readahead, flags; from INIT_EXT on a second word of flags follows."""
INIT_IN_FLAGS2: Final = Struct("=I")
INIT_OUT: Final = Struct("=IIIIHHIIHHII24x")
"""major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran,
max_pages, map_alignment, flags2, max_stack_depth.
"""

GETATTR_IN: Final = Struct("=IIQ")
"""flags, unused, fh."""
STATX_IN: Final = Struct("=IIQII")
"""flags, unused, fh, flags of statx(2), fields that are wanted.

It comes where a program asks when a file was made.
"""
STATX_OUT: Final = Struct("=QII16x")
"""attr_valid, attr_valid_nsec, unused; then STATX."""
STATX: Final = Struct("=IIQIIIH2xQQQQqI4xqI4xqI4xqI4xIIII112x")
"""mask, blksize, attributes, nlink, uid, gid, mode, ino, size, blocks, attributes that are known;
seconds and nanoseconds of atime, btime, ctime and mtime; rdev and dev, major and minor each.
"""
STATX_BASIC: Final = 0x7FF
STATX_BTIME: Final = 0x800
"""Fields of the mask: what stat(2) has, and when the file was made."""
SETATTR_IN: Final = Struct("=IIQQQQQQIIIIIIII")
"""valid, unused, fh, size, lock_owner, atime, mtime, ctime, atimensec, mtimensec, ctimensec, mode,
unused, uid, gid, unused.
"""
MKNOD_IN: Final = Struct("=IIII")
"""mode, rdev, umask, unused."""
MKDIR_IN: Final = Struct("=II")
"""mode, umask."""
RENAME_IN: Final = Struct("=Q")
"""new parent."""
RENAME2_IN: Final = Struct("=QII")
"""new parent, flags, unused."""
LINK_IN: Final = Struct("=Q")
"""node to link."""
OPEN_IN: Final = Struct("=II")
"""flags, open flags."""
CREATE_IN: Final = Struct("=IIII")
"""flags, mode, umask, open flags."""
RELEASE_IN: Final = Struct("=QIIQ")
"""fh, flags, release flags, lock owner."""
FLUSH_IN: Final = Struct("=QIIQ")
"""fh, unused, unused, lock owner."""
READ_IN: Final = Struct("=QQIIQII")
"""fh, offset, size, read flags, lock owner, flags, unused."""
WRITE_IN: Final = Struct("=QQIIQII")
"""fh, offset, size, write flags, lock owner, flags, unused; then the bytes.

The flags are those that the descriptor has by now: fcntl changes them without a request.
"""
WRITE_CACHE: Final = 1
"""Write flag: pages that programs have changed through maps;
the open file is any one by which the inode is mapped.
"""
WRITE_KILL_SUIDGID: Final = 4
"""Write flag: set-id bits are to go first.

Set only for what passes the page cache; elsewhere the kernel does it itself.
"""
FSYNC_IN: Final = Struct("=QII")
"""fh, flags (1: data only), unused."""
SETXATTR_IN: Final = Struct("=IIII")
"""size of the value, flags, flags of the extended form, unused; then name, zero byte, value."""
GETXATTR_IN: Final = Struct("=II")
"""size of the caller's buffer (0: asks for the size), unused; then the name."""
LK_IN: Final = Struct("=QQQQIIII")
"""fh, owner, first byte, last byte, type (F_RDLCK, F_WRLCK, F_UNLCK), pid, flags, unused."""
LK_OUT: Final = Struct("=QQII")
"""first byte, last byte, type, pid."""
LK_FLOCK: Final = 1
"""Flag of LK_IN: a lock of flock(2)."""
RELEASE_FLOCK_UNLOCK: Final = 2
"""Release flag: the open file description holds a lock of flock(2)."""
LSEEK_IN: Final = Struct("=QQII")
"""fh, offset, whence, unused."""
LSEEK_OUT: Final = Struct("=Q")
"""offset."""
IOCTL_IN: Final = Struct("=QIIQII")
"""fh, flags, command, argument, bytes sent along, bytes wanted back."""
IOCTL_OUT: Final = Struct("=iIII")
"""result, flags, two counts that stay 0; then the bytes wanted back."""
IOC_GETFLAGS: Final = 0x80086601
IOC_SETFLAGS: Final = 0x40086602
"""What lsattr(1) and chattr(1) send, as on 64-bit machines;
their argument is 4 bytes all the same.
"""
IOC_FLAGS: Final = Struct("=I")
IOC_FSGETXATTR: Final = 0x801C581F
IOC_FSSETXATTR: Final = 0x401C5820
"""The same in a longer form.  Linux 6.13 and later ask for it before they pass on IOC_SETFLAGS."""
FSXATTR: Final = Struct("=IIIII8x")
"""xflags, extent size hint, extent count, project id, another hint: see ioctl_xfs_fsgetxattr(2)."""
XFLAGS: Final = MappingProxyType({0x8: IMMUTABLE, 0x10: APPEND_ONLY})
"""Flags of an inode by what they are in the longer form."""
FALLOCATE_IN: Final = Struct("=QQQII")
"""fh, offset, length, mode, unused."""
COPY_FILE_RANGE_IN: Final = Struct("=QQQQQQQ")
"""fh, offset, node to copy to, its fh, its offset, length, flags."""
ACCESS_IN: Final = Struct("=II")
"""mask, unused."""
INTERRUPT_IN: Final = Struct("=Q")
"""unique of the request that is to end."""
FORGET_IN: Final = Struct("=Q")
"""count of lookups."""
BATCH_FORGET_IN: Final = Struct("=II")
"""count of what follows, unused."""
FORGET_ONE: Final = Struct("=QQ")
"""node, count of lookups."""

ATTR: Final = Struct("=QQQQQQIIIIIIIIII")
"""ino, size, blocks, atime, mtime, ctime, atimensec, mtimensec, ctimensec, mode, nlink, uid, gid,
rdev, blksize, flags.
"""
ENTRY_OUT: Final = Struct("=QQQQII")
"""node, generation, entry_valid, attr_valid, entry_valid_nsec, attr_valid_nsec; then ATTR."""
ATTR_OUT: Final = Struct("=QII")
"""attr_valid, attr_valid_nsec, unused; then ATTR."""
OPEN_OUT: Final = Struct("=QIi")
"""fh, open flags, backing id."""
WRITE_OUT: Final = Struct("=II")
"""bytes written, unused."""
STATFS_OUT: Final = Struct("=QQQQQIIII24x")
"""blocks, bfree, bavail, files, ffree, bsize, namelen, frsize, unused."""
GETXATTR_OUT: Final = Struct("=II")
"""size, unused."""
DIRENT: Final = Struct("=QQII")
"""ino, offset of the next, length of the name, type; then the name, padded to 8 bytes."""
DIRENTPLUS: Final = Struct("=QQQQIIQQQQQQIIIIIIIIIIQQII")
"""ENTRY_OUT, ATTR and DIRENT; then the name, padded to 8 bytes."""
NOTIFY_INVAL_INODE_OUT: Final = Struct("=Qqq")
"""node, offset (negative: attributes only), length (0: to the end)."""
NOTIFY_INVAL_ENTRY_OUT: Final = Struct("=QII")
"""node of the directory, length of the name, flags; then the name and a zero byte."""

NAME_ALIGNMENT: Final = 8


def padded(count: int) -> int:
    """Return `count` rounded up to the alignment of directory entries."""
    return -(-count // NAME_ALIGNMENT) * NAME_ALIGNMENT
