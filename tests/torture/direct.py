"""Reads of one replica, past all cleverness of the client: what does this very target answer?"""

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from fs.schema import services
from fs.schema.read_columns import WantedRead, read_request, read_results
from fs.schema.routing import RoutingInfo
from fs.schema.status import FsError, Status

from .disk import StoredChunk


@dataclass(frozen=True, slots=True)
class Answer:
    """What a target said to a read of a whole chunk."""

    status: Status
    data: bytes = b""


def request_of(info: RoutingInfo, chunks: Sequence[StoredChunk], *, is_relaxed: bool):
    """Return a read of whole chunks under the given routing info."""
    chain_of = {m.target_id: c for c in info.chains.values() for m in c.targets}
    wanted = []
    for chunk in chunks:
        chain = chain_of[chunk.target_id]
        size = chunk.record.chunk_size_bytes
        wanted.append(
            WantedRead(chunk.inode_id, chunk.index, chain.chain_id, chain.chain_version, 0, size)
        )
    return read_request(wanted, is_relaxed=is_relaxed)


async def read(channel, request, timeout_s: float = 10.0) -> list[Answer]:
    """Send one read to one node; an error of the whole call is the answer of every chunk."""
    try:
        with trio.fail_after(timeout_s + 5):
            received = await channel.call(services.STORAGE_BATCH_READ, request, timeout_s=timeout_s)
    except FsError as error:
        return [Answer(error.status)] * len(request.lengths)
    answers, at = [], 0
    payload = bytes(received.payload)
    for result in read_results(received.message, len(request.lengths)):
        answers.append(Answer(Status(result.status), payload[at : at + result.length]))
        at += result.length
    return answers


def read_target(fleet, chunks: Sequence[StoredChunk], *, batch_count: int = 8) -> list[Answer]:
    """Read whole chunks from the targets named in them."""

    async def use(_mgmtd, channels):
        answers = []
        for first in range(0, len(chunks), batch_count):
            part = chunks[first : first + batch_count]
            node = info.node_of_target(part[0].target_id)
            channel = channels.get(node.address, node_id=node.node_id)
            answers += await read(channel, request_of(info, part, is_relaxed=True))
        return answers

    info = fleet.routing()
    return fleet.ask(use, timeout_s=120.0)
