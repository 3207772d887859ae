"""Inodes as pyfuse3 wants them."""

import pyfuse3

from ...schema.config import ClientSection
from ...schema.inode import Inode
from ..vfs.changing_attributes import AttrChange
from .answers import clamp_time_ns, used_blocks


def entry_attributes(
    inode: Inode, section: ClientSection, age_s: float = 0.0
) -> pyfuse3.EntryAttributes:
    """Return the attributes of an inode, which meta told `age_s` ago,
    with what is left of the cache times that its kind may have.
    """
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode.inode_id
    entry.st_mode = inode.st_mode
    entry.st_nlink = inode.nlink
    entry.st_uid = inode.uid
    entry.st_gid = inode.gid
    entry.st_rdev = inode.rdev
    entry.st_size = inode.length
    entry.st_blocks = used_blocks(inode)
    entry.st_atime_ns = inode.atime_ns
    entry.st_mtime_ns = inode.mtime_ns
    entry.st_ctime_ns = inode.ctime_ns
    if inode.file is not None:
        entry.st_blksize = inode.file.layout.chunk_size_bytes
    usual_s = section.dir_entry_timeout_s if inode.is_dir else section.entry_timeout_s
    entry.attr_timeout = max(0.0, section.attr_timeout_s - age_s)
    entry.entry_timeout = max(0.0, usual_s - age_s)
    return entry


def attr_change(attributes: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields) -> AttrChange:
    """Return what a setattr request asks for."""
    return AttrChange(
        mode=attributes.st_mode & 0o7777 if fields.update_mode else None,
        uid=attributes.st_uid if fields.update_uid else None,
        gid=attributes.st_gid if fields.update_gid else None,
        length=attributes.st_size if fields.update_size else None,
        atime_ns=clamp_time_ns(attributes.st_atime_ns) if fields.update_atime else None,
        mtime_ns=clamp_time_ns(attributes.st_mtime_ns) if fields.update_mtime else None,
    )
