"""What is said of one inode and its chunks, without a cluster; tests/real/test_fsck.py has one."""

import pytest

from fs.admin.fsck import Check
from fs.admin.fsck_chunks import DEAD_SESSION_NS, ChunkRules, Cluster, list_all
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.fsck_facts import ChunkRun, Facts, Kind
from fs.runtime.simulated import SimulatedClock, simulated_runtime
from fs.runtime.sorter import Sorter
from fs.schema.ids import ChainId, TargetId
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto.record_pb2 import FileSessionRecordPb, GcRecordPb
from fs.schema.routing import Chain, ChainTable, ChainTarget, PublicState, RoutingInfo

SIZE = 65536
INODE = 0x5000
NOW_NS = 10**18
FIRST = 2
"""The chain of chunk 0."""


def cluster(*chain_ids: int, living=frozenset({"alive"})) -> Cluster:
    info = RoutingInfo(
        1, "c",
        chains={c: Chain(c, 1, (), ()) for c in chain_ids or (1, 2, 3)},
        chain_tables={(1, 1): ChainTable(1, 1, (1, 2, 3))},
    )  # fmt: skip
    return Cluster(None, info, living, NOW_NS)


def facts(*runs: ChunkRun, length=3 * SIZE, nlink=1, stripe=3, **part) -> Facts:
    inode = pb.InodePb(inode_id=INODE, type=pb.FILE, nlink=nlink)
    layout = pb.LayoutPb(table_id=1, table_version=1, chunk_size_bytes=SIZE, stripe_size=stripe)
    part = {"dyn_stripe": stripe} | part
    inode.file.MergeFrom(pb.FilePartPb(length=length, layout=layout, **part))
    rows = {records.INODE: [(records.inode_key(INODE), inode.SerializeToString())]}
    return Facts(INODE, rows=rows, inode=inode, chunk_runs=list(runs))


def kinds(found: Facts, where=None, *, is_complete=True) -> list[Kind]:
    rules = ChunkRules(where or cluster(), is_complete=is_complete)
    return [finding.kind for finding in rules.judge(found)]


def run(first=0, last=0, chain=1) -> ChunkRun:
    return ChunkRun(1001, chain, first, last)


def gc(*, has_file: bool) -> tuple[bytes, bytes]:
    record = GcRecordPb(inode_id=INODE, file=pb.FilePartPb() if has_file else None)
    return b"GCFI", record.SerializeToString()


def with_session(found: Facts, client: str, age_ns: int) -> Facts:
    record = FileSessionRecordPb(session_id="s", client_id=client, created_ns=NOW_NS - age_ns)
    found.rows[records.FILE_SESSION] = [(b"INOS", record.SerializeToString())]
    return found


async def test_targets_that_do_not_serve_are_mentioned():
    away = cluster()
    away.info.chains[1] = Chain(
        ChainId(1), 1, (ChainTarget(TargetId(1001), PublicState.OFFLINE),), (TargetId(1001),)
    )
    (notice,) = await list_all(away, Sorter())
    assert (notice.kind, notice.is_notice) == (Kind.NOT_LOOKED_AT, True)
    assert "target 1001 of chain 1" in notice.line()


def test_a_file_with_its_chunks_is_right():
    assert kinds(facts(run(0, 2), run(1, 1, chain=2))) == []
    assert kinds(facts(run(), length=0)) == []  # a writer has not reported its length yet
    assert kinds(facts(length=0)) == []


def test_chunks_of_nobody():
    assert kinds(Facts(INODE, chunk_runs=[run(), run(1, 9)])) == [Kind.ORPHAN_CHUNK] * 2
    link = pb.InodePb(inode_id=INODE, type=pb.SYMLINK, nlink=1)
    assert kinds(Facts(INODE, inode=link, chunk_runs=[run()])) == [Kind.ORPHAN_CHUNK]


@pytest.mark.parametrize("has_file", [True, False])
def test_chunks_that_are_being_removed_are_no_finding(has_file):
    assert kinds(Facts(INODE, gc=[gc(has_file=has_file)], chunk_runs=[run()])) == []
    removed = facts(run(0, 9), nlink=0)
    removed.gc.append(gc(has_file=False))
    assert kinds(removed) == []


@pytest.mark.parametrize(
    ("length", "last", "is_beyond"),
    [
        (0, 0, False), (0, 1, True), (1, 1, True), (SIZE, 0, False), (SIZE, 1, True),
        (SIZE + 1, 1, False), (3 * SIZE, 2, False), (3 * SIZE, 3, True),
    ],
)  # fmt: skip
def test_chunks_beyond_the_end(length, last, is_beyond):
    expected = [Kind.CHUNK_BEYOND_END] if is_beyond else []
    assert kinds(facts(run(0, last), length=length)) == expected


def test_nothing_lies_beyond_the_end_while_somebody_writes_or_cuts():
    assert kinds(facts(run(0, 9), truncate_pending=True)) == []
    assert kinds(with_session(facts(run(0, 9)), "alive", 0)) == []


def test_the_repair_of_what_lies_beyond_is_a_truncation_unless_somebody_opens_the_file():
    (finding,) = ChunkRules(cluster(), is_complete=True).judge(facts(run(0, 9), truncate_ver=4))
    writes = dict(finding.writes)
    changed = pb.InodePb.FromString(writes[records.inode_key(INODE)])
    assert (changed.file.truncate_pending, changed.file.truncate_ver) == (True, 5)
    assert changed.file.length == 3 * SIZE
    assert records.truncation_key(INODE) in writes
    ((begin, end),) = finding.empty
    assert begin <= records.file_session_key(INODE, "any") < end


def test_a_chain_that_is_not_the_files():
    assert kinds(facts(run(chain=3), stripe=2)) == [Kind.MISPLACED_CHUNK]


def test_a_chain_or_table_that_does_not_exist():
    assert kinds(facts(run()), cluster(1, 2)) == [Kind.NO_CHAIN]
    found = facts(run())
    found.inode.file.layout.table_version = 7
    assert kinds(found) == [Kind.NO_CHAIN]


def test_a_file_without_chunks_is_mentioned_if_all_targets_were_looked_at():
    assert kinds(facts()) == [Kind.NO_CHUNKS]
    assert kinds(facts(), is_complete=False) == []


def test_sessions_of_clients_that_are_long_gone():
    old = DEAD_SESSION_NS + 1
    assert kinds(with_session(facts(run()), "gone", old)) == [Kind.DEAD_SESSION]
    assert kinds(with_session(facts(run()), "alive", old)) == []
    assert kinds(with_session(facts(run()), "gone", DEAD_SESSION_NS - 1)) == []
    assert kinds(with_session(facts(run()), "gone", old), cluster(living=None)) == []


async def test_a_suspect_that_cannot_be_looked_at_again_is_only_mentioned():
    check = Check(MemoryEngine(SimulatedClock()), simulated_runtime(None, 1))
    (suspect,) = ChunkRules(cluster(), is_complete=True).judge(Facts(INODE, chunk_runs=[run()]))
    told = await check._confirmed(cluster(), suspect)  # whose routing info knows no such target
    assert (told.kind, told.is_notice, told.is_repairable) == (Kind.NOT_LOOKED_AT, True, False)
    assert suspect.text in told.text


def serving(*chain_ids: int) -> Cluster:
    """Chain n has target 1000 + n at its head, and another one."""
    made = cluster()
    for c in chain_ids:
        ids = (TargetId(1000 + c), TargetId(2000 + c))
        members = tuple(ChainTarget(t, PublicState.SERVING) for t in ids)
        made.info.chains[c] = Chain(ChainId(c), 1, members, ids)
    return made


def held(chain: int, byte_count: int, count: int = 1, target: int | None = None) -> ChunkRun:
    return ChunkRun(target or 1000 + chain, chain, chain - 1, chain - 1, count, byte_count)


ALL = serving(1, 2, 3)


def test_a_file_that_takes_what_it_says_is_right():
    whole = [held(c, SIZE) for c in (1, 2, 3)]
    assert kinds(facts(*whole), ALL) == []
    holes = facts(*whole[:2], has_holes=True)
    holes.inode.used_bytes = 2 * SIZE
    assert kinds(holes, ALL) == []
    assert kinds(facts(*whole, held(1, 7, target=2001)), ALL) == []  # heads are asked
    assert kinds(facts(held(1, SIZE), length=10, stripe=1), ALL) == []  # cut within the chunk


def test_a_file_that_takes_other_space_than_it_says():
    found = facts(held(1, SIZE), held(2, 10))
    assert kinds(found, ALL) == [Kind.WRONG_SPACE]
    (finding,) = ChunkRules(ALL, is_complete=True).judge(found)
    changed = pb.InodePb.FromString(dict(finding.writes)[records.inode_key(INODE)])
    assert (changed.file.has_holes, changed.used_bytes, finding.space) == (
        True,
        SIZE + 10,
        SIZE + 10,
    )
    assert finding.guards == (found.seen,)
    ((begin, end),) = finding.empty
    assert begin <= records.file_session_key(INODE, "any") < end
    too_little = facts(*[held(c, SIZE) for c in (1, 2, 3)], has_holes=True)
    assert kinds(too_little, ALL) == [Kind.WRONG_SPACE]
    only_said = facts(has_holes=True)
    only_said.inode.used_bytes = SIZE
    assert kinds(only_said, ALL) == [Kind.NO_CHUNKS, Kind.WRONG_SPACE]


def test_nothing_is_said_of_space_that_is_not_known():
    assert kinds(facts(), ALL) == [Kind.NO_CHUNKS]  # lost, or one hole
    assert kinds(facts(held(1, 5, count=4097)), ALL) == []
    assert kinds(facts(held(1, 5)), serving(1, 2)) == []
    assert kinds(facts(held(1, 5), truncate_pending=True), ALL) == []
    assert kinds(with_session(facts(held(1, 5)), "alive", 0), ALL) == []


def test_an_inline_file_has_no_chunks():
    assert kinds(facts(length=99, dyn_stripe=0, is_inline=True)) == []
    left = facts(run(chain=FIRST), length=99, dyn_stripe=0, is_inline=True)
    (finding,) = ChunkRules(cluster(), is_complete=True).judge(left)
    assert finding.kind is Kind.MISPLACED_CHUNK
    assert "metadata store" in finding.line()
    assert finding.guards == (left.seen,), "it may have been moved to its chunk since"


def test_an_inline_file_whose_bytes_are_being_moved_may_have_a_chunk():
    moving = {"dyn_stripe": 0, "is_inline": True, "truncate_pending": True}
    assert kinds(facts(run(chain=FIRST), length=99, **moving)) == []
    assert kinds(facts(run(chain=FIRST - 1), length=99, **moving)) == [Kind.MISPLACED_CHUNK]
