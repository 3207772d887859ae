"""The rules of inline files (fs/meta/inline.py), judged for one inode at a time.  Pure."""

from collections.abc import Iterator

from ..schema.proto import common_pb2 as pb
from ..schema.proto.record_pb2 import InlineRecordPb
from ..schema.status import FsError
from . import inline, records
from .damage import decoded
from .fsck_facts import Facts, Finding, Kind


def left_over_bytes(facts: Facts) -> Iterator[Finding]:
    """Yield what is wrong with an inode that is not inline:
    its bytes are elsewhere, what there is here is of before.
    """
    if facts.rows.get(records.INLINE):
        key = records.inline_key(facts.inode_id)
        text = f"{facts.text} is not inline, and has bytes in the store"
        yield Finding(
            Kind.LEFT_OVER, facts.inode_id, text, guards=(facts.seen,), writes=((key, None),)
        )


def inline_findings(facts: Facts, inode: pb.InodePb) -> Iterator[Finding]:
    """Yield what is wrong with the bytes of a file that are in the store, or should be.

    What says how many there are is the record, if it matches its checksum;
    without that nothing is certain.
    """
    part = inode.file
    if not part.is_inline:
        yield from left_over_bytes(facts)
        return
    rows = facts.rows.get(records.INLINE)
    try:
        if not rows:
            raise inline.no_bytes(inode)
        data = inline.check_bytes(facts.inode_id, decoded(InlineRecordPb, *rows[0]))
    except FsError as error:
        yield Finding(Kind.WRONG_INLINE, facts.inode_id, f"{facts.text}: {error.detail}")
        return
    said = (part.length, inode.used_bytes, part.dyn_stripe, part.has_holes)
    if said == (len(data), len(data), 0, False) and data:
        return
    corrected = pb.InodePb.FromString(inode.SerializeToString())
    inline.become_inline(corrected, len(data))
    yield Finding(
        Kind.WRONG_INLINE,
        facts.inode_id,
        f"{facts.text}: {len(data)} inline bytes; length {part.length}, space {inode.used_bytes}, "
        f"dyn_stripe {part.dyn_stripe}",
        guards=(facts.seen, rows[0]),
        writes=((facts.key, corrected.SerializeToString()),) if data else (),
    )
