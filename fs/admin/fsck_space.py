"""The space that a file takes: what its inode says (st_blocks), and what its chunks hold.

Nothing but what people are shown rests on it; usage and quotas go by lengths.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ..kv.api import prefix_end
from ..meta import records
from ..meta.content import note_used
from ..meta.fsck_facts import Facts, Finding, Kind
from ..rpc.api import Channels
from ..schema.ids import ChainId, TargetId
from ..schema.proto import common_pb2 as pb
from ..schema.routing import RoutingInfo
from .chunks import listed_chunks

COUNTED_MAX: Final = 4096
"""Of a file with more chunks than that on one chain the rest is taken to be like the beginning:
nothing is said of it.
"""


def space_said(inode: pb.InodePb) -> int:
    """Return how many bytes a file takes as its inode has it."""
    return inode.used_bytes if inode.file.has_holes else inode.file.length


def wrong_space(
    info: RoutingInfo, chains: Sequence[int], facts: Facts, inode: pb.InodePb
) -> Iterator[Finding]:
    """Yield what is wrong with the space of a file that nobody writes or cuts;
    a suspicion until its chunks are counted again.

    A file without any chunk whose every byte should be there is not put
    right: it may have lost them.
    """
    heads = _heads(info, chains)
    runs = [run for run in facts.chunk_runs if heads.get(run.chain_id) == run.target_id]
    is_counted = all(run.chunk_count <= COUNTED_MAX for run in runs)
    if len(heads) < len(chains) or not is_counted or not (runs or inode.file.has_holes):
        return
    found = sum(run.byte_count for run in runs)
    if min(found, inode.file.length) == space_said(inode):
        return
    changed = pb.InodePb.FromString(inode.SerializeToString())
    note_used(changed, found)
    sessions = records.file_session_prefix(facts.inode_id)
    yield Finding(
        Kind.WRONG_SPACE,
        facts.inode_id,
        f"{facts.text}: takes {space_said(inode)} of its {inode.file.length} bytes, its chunks "
        f"hold {found}",
        guards=(facts.seen,),
        empty=((sessions, prefix_end(sessions)),),
        writes=((facts.key, changed.SerializeToString()),),
        space=found,
    )


async def space_of(
    channels: Channels, info: RoutingInfo, chains: Sequence[int], inode_id: int
) -> int:
    """Return how many bytes the chunks of a file hold now.

    Raises:
        FsError: a target does not answer.
    """
    found = 0
    for target_id in _heads(info, chains).values():
        async for chunk in listed_chunks(channels, info, target_id, inode_id=inode_id):
            found += chunk.length if chunk.commit_ver else 0
    return found


def _heads(info: RoutingInfo, chains: Sequence[int]) -> dict[int, TargetId]:
    """Return the head of each of these chains that has one."""
    known = [info.chains[ChainId(c)] for c in chains if c in info.chains]
    return {chain.chain_id: chain.serving[0] for chain in known if chain.serving}
