"""What all parts of the vfs share: the ports, the open inodes, and how dirty bytes reach storage.

Locks of one inode, always taken in this order, each optional:
    `lock`         truncation against writing: a truncation holds it from draining to its reply, and
                   writers wait for it before they buffer anything;
    `append_lock`  one reservation at the end of the file at a time, so that records keep their
    order; `promise_lock` below a quota of bytes: no promise is asked for while what is left of one
    is given back; `report_lock`  one Sync at a time, so that this mount recognises its own steps of
    data_ver; `extend_lock`  one ExtendStripe at a time.
Buffering itself has no checkpoint and needs no lock.

Flushes run in the background.  Two flushes of one inode that touch the same chunk never overlap in
time: the later one waits for the earlier.  The bytes they hold over the whole mount are bounded by
dirty_bytes_max: a writer waits for room, and meanwhile everything buffered is sent.

A flush that fails is remembered at its inode and raised once at every open file that can write, by
the next write, fsync or close.  Its bytes are dropped.  Its outcome may be unknown, so from then on
the length is asked from the chains.  Bytes of which meta says that no quota has room for them are
dropped and told of in the same way; meta cuts them, so the length is known then.

Many programs look at the result of write but not at that of close.  So while space is tight, a
write returns only when storage has taken it, and fails itself when there is no room.
"""

from .kept import Kept


class VfsCore(Kept):
    """See module head; `shared`, `write_back`, `reports`,
    `inline_files` and `kept` are its parts.
    """
