"""What is judged over all directories together: loops, usage, the number of inodes.  Pure.

Memory: some 400 bytes for each directory; files are summed up at their homes.

Invariants checked: following parents leads from every directory to the root or to a removed
one; usage of a directory that is not in a removed tree is the sum over all below; the counters
of inodes and of inline bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ..schema.ids import GC_ROOT_INODE_ID, ROOT_INODE_ID
from ..schema.proto import common_pb2 as pb
from . import records
from .fsck_counts import Counter, put_right
from .fsck_facts import Facts, Finding, Kind, Row
from .usage import usage_of
from .usage_sum import NOTHING, Usage

_KINDS: Final = (records.KIND_BYTES, records.KIND_FILES, records.KIND_DIRECTORIES)


@dataclass(slots=True)
class _Directory:
    parent_id: int | None
    """None: it was removed."""
    stored: Usage


def stored_usage(facts: Facts) -> Usage:
    """Return the counters of a directory."""
    values = {key[12:]: value for key, value in facts.rows.get(records.USAGE, ())}
    return Usage(*(records.unpack_count(values.get(kind)) for kind in _KINDS))


@dataclass(slots=True)
class Tree:
    """All directories, gathered one by one."""

    directories: dict[int, _Directory] = field(default_factory=dict)
    own: dict[int, Usage] = field(default_factory=dict)
    """What lies in a directory itself."""
    inode_count: int = 0
    inline_bytes: int = 0

    def add(self, facts: Facts) -> None:
        """Take in one inode."""
        inode = facts.inode
        if inode is None:
            return
        self.inode_count += facts.inode_id != GC_ROOT_INODE_ID
        self.inline_bytes += inode.file.length if inode.file.is_inline else 0
        home_id = inode.home_inode_id
        if inode.type == pb.DIRECTORY:
            parent_id = inode.directory.parent_inode_id if inode.nlink else None
            self.directories[facts.inode_id] = _Directory(parent_id, stored_usage(facts))
            is_counted = inode.nlink and facts.inode_id != ROOT_INODE_ID
            home_id = inode.directory.parent_inode_id if is_counted else 0
        if home_id:
            self.own[home_id] = self.own.get(home_id, NOTHING) + usage_of(inode)

    def findings(self, singletons: dict[bytes, bytes]) -> Iterator[Finding]:
        """Yield what is wrong, after all inodes were taken in."""
        if not {ROOT_INODE_ID, GC_ROOT_INODE_ID} <= self.directories.keys():
            yield Finding(Kind.NO_ROOT, ROOT_INODE_ID, "the root or the GC root is missing")
            return
        order, loops = self._from_root()
        for inode_id in loops:
            text = f"directory {inode_id:#x}: its ancestors form a loop"
            yield Finding(Kind.LOOP, inode_id, text)
        epoch = (records.USAGE_EPOCH_KEY, singletons.get(records.USAGE_EPOCH_KEY))
        yield from self._usage(order, epoch)
        for kind, key, counted, what in (
            (Kind.WRONG_INODE_COUNT, records.INODE_COUNT_KEY, self.inode_count, "inodes"),
            (Kind.WRONG_INLINE_BYTES, records.INLINE_BYTES_KEY, self.inline_bytes, "inline bytes"),
        ):
            stored = records.unpack_count(singletons.get(key))
            if stored != counted:
                yield Finding(
                    kind, ROOT_INODE_ID, f"counter of {what} {stored}, {counted} {what}",
                    exists=(records.FORMAT_KEY,),
                    **put_right([Counter(key, stored, counted)]),
                )  # fmt: skip

    def _from_root(self) -> tuple[list[int], list[int]]:
        """Return the directories below the root, parents before children, and those of loops."""
        order: list[int] = [ROOT_INODE_ID]
        settled: dict[int, bool] = {ROOT_INODE_ID: True, GC_ROOT_INODE_ID: False}
        loops: list[int] = []
        for inode_id in self.directories:
            path: list[int] = []
            on_path: set[int] = set()
            here: int | None = inode_id
            while here is not None and here not in settled and here not in on_path:
                path.append(here)
                on_path.add(here)
                known = self.directories.get(here)
                here = known.parent_id if known else None
            is_below = here is not None and settled.get(here, False)
            if here is not None and here in on_path:
                loops.append(inode_id)
            settled |= dict.fromkeys(path, is_below)
            if is_below:
                order.extend(reversed(path))
        return order, loops

    def _usage(self, order: list[int], epoch: Row) -> Iterator[Finding]:
        totals: dict[int, Usage] = {}
        for inode_id in reversed(order):
            total = totals.pop(inode_id, NOTHING) + self.own.get(inode_id, NOTHING)
            known = self.directories[inode_id]
            if total != known.stored:
                yield _wrong_usage(inode_id, known.stored, total, epoch)
            if inode_id != ROOT_INODE_ID and known.parent_id is not None:
                above = totals.get(known.parent_id, NOTHING)
                # Itself counts at its parent, in what lies there.
                totals[known.parent_id] = above + total


def _wrong_usage(inode_id: int, stored: Usage, counted: Usage, epoch: Row) -> Finding:
    keys = [records.usage_key(inode_id, kind) for kind in _KINDS]
    return Finding(
        Kind.WRONG_USAGE,
        inode_id,
        f"directory {inode_id:#x}: counted as {stored}, holds {counted}",
        exists=(records.inode_key(inode_id),),
        **put_right(list(map(Counter, keys, _numbers(stored), _numbers(counted))), epoch),
    )


def _numbers(usage: Usage) -> tuple[int, int, int]:
    return usage.byte_count, usage.file_count, usage.directory_count
