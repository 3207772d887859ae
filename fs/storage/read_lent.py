"""The usual part of a batch of large reads, lent:
its caller reads what the page cache holds out of our data files.

The reply has the checksums that the chunk engine keeps.  A caller that finds bytes which do not
match asks again, and wants nothing lent.  Then they are read here, and whatever is wrong with them
is met by those who mend it (read_path.py).

Two cases besides:
    - Large reads that nobody waits for yet come as ranges even where the disk has yet to read them,
      to a caller who does that himself.
    - Some of what is read here is matched by its caller, too, and asked for again in the same way
      (`may_leave_matching`).

Concurrency: no checkpoint between the look at our places in the chains and the
reply, so nothing can come in.
"""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Final

from ..chunkengine.checksum import CHECKSUM_BYTES
from ..chunkengine.read_values import LentRows
from ..rpc.api import Call, FileRange, Reply
from ..schema.proto import storage_pb2
from ..schema.status import FsError
from .context import StorageContext
from .read_at_once import RowsWanted
from .read_ios import INLINE_BYTES_MAX

ROW_BYTES_MIN: Final = 64 * 1024
"""Of a row, on average: each is a system call of the caller's, and a range of the reply."""

NUMBERS_BYTES_MAX: Final = 64
"""Of a reply's message for each row, beside checksums:
a length and a version, and a share of what begins their columns.
"""


def lend_rows(
    context: StorageContext, call: Call, rows: RowsWanted
) -> Reply[storage_pb2.BatchReadRsp] | None:
    """Return a reply that lends all rows; None: they are to be read here, and nothing is done.

    Raises:
        FsError: LEASE_EXPIRED.
    """
    takes, count = call.takes_ranges, len(rows.chains)
    if (
        takes is None
        or rows.size < count * ROW_BYTES_MIN
        or not rows.want_checksums
        or rows.fills_cache
        or not takes(rows.size, count, 0)
    ):
        return None
    lent, is_direct = _lent(rows), False
    if not lent and call.takes_direct and rows.size > INLINE_BYTES_MAX:
        lent, is_direct = _lent(rows, is_direct=True), True
    if not lent:
        return None
    is_given = False
    try:
        context.check_lease()
        reply = _reply_of(rows, lent)
        assert not isinstance(reply.message, bytes)
        reply.is_direct = is_direct
        is_given = takes(rows.size, count, reply.message.ByteSize())
    finally:
        if not is_given:
            _give_back(lent)
    if not is_given:
        return None
    rows.count_bytes()
    return reply


def may_leave_matching(call: Call, rows: RowsWanted) -> bool:
    """Return whether rows that are all read past the page cache may come
    with their stored checksums, for their caller to match them.

    So it is where ranges of them might be lent: then he knows such a reply, and it is no
    longer than a message may be.
    """
    takes, count = call.takes_ranges, len(rows.chains)
    block_bytes = rows.targets[0].disk.engine.checksum_block_bytes  # 0 where the disk was refused
    if takes is None or not rows.want_checksums or rows.fills_cache or not block_bytes:
        return False
    checksum_bytes = rows.size // block_bytes * CHECKSUM_BYTES
    return takes(rows.size, count, checksum_bytes + count * NUMBERS_BYTES_MAX)


def _lent(rows: RowsWanted, *, is_direct: bool = False) -> list[tuple[Sequence[int], LentRows]]:
    """Return what each disk lends, and the positions that it is of;
    none: one of them lends nothing.
    """
    found: list[tuple[Sequence[int], LentRows]] = []
    block_bytes = 0
    for disk, positions in rows.by_disk(range(len(rows.chains))).items():
        try:
            lend = partial(disk.engine.lend_rows, is_direct=is_direct)
            lent = disk.run_inline(lend, rows.keys, rows.rows.some(positions))
        except FsError:  # whoever asks the disk next says so
            lent = None
        except BaseException:  # no memory
            _give_back(found)
            raise
        if lent is not None:
            found.append((positions, lent))
            block_bytes = block_bytes or lent.block_bytes
        if lent is None or lent.block_bytes != block_bytes:
            _give_back(found)
            return []
    return found


def _reply_of(
    rows: RowsWanted, found: Sequence[tuple[Sequence[int], LentRows]]
) -> Reply[storage_pb2.BatchReadRsp]:
    by_position = [
        (position, *row)
        for positions, lent in found
        for position, *row in zip(
            positions, lent.ranges, lent.versions, lent.checksums, strict=True
        )
    ]
    if len(found) > 1:
        by_position.sort(key=itemgetter(0))
    _, ranges, versions, checksums = zip(*by_position, strict=True)
    message = storage_pb2.BatchReadRsp(
        lengths=rows.rows.lengths,
        commit_vers=versions,
        block_bytes=found[0][1].block_bytes,
        block_checksums=b"".join(checksums),
    )
    return Reply(message, (), partial(_give_back, found), [FileRange(*one) for one in ranges])


def _give_back(found: Sequence[tuple[Sequence[int], LentRows]]) -> None:
    for _, lent in found:
        lent.give_back()
