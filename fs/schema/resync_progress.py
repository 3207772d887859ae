"""How far a target has been brought up to date: a part of routing info.  Pure."""

from dataclasses import dataclass

from .ids import TargetId
from .proto import common_pb2 as pb


@dataclass(frozen=True, slots=True)
class ResyncProgress:
    """How far a target has been brought up to date, as its predecessor last said."""

    target_id: TargetId
    chain_version: int
    chunks_done: int = 0
    chunks_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    elapsed_s: float = 0.0
    eta_s: float = 0.0
    """0: not known yet."""


def resync_to_pb(progress: ResyncProgress) -> pb.ResyncProgressPb:
    """Return the wire form."""
    return pb.ResyncProgressPb(
        target_id=progress.target_id,
        chain_version=progress.chain_version,
        chunks_done=progress.chunks_done,
        chunks_total=progress.chunks_total,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        elapsed_s=progress.elapsed_s,
        eta_s=progress.eta_s,
    )


def resync_from_pb(message: pb.ResyncProgressPb) -> ResyncProgress:
    """Inverse of `resync_to_pb`."""
    return ResyncProgress(
        TargetId(message.target_id),
        message.chain_version,
        message.chunks_done,
        message.chunks_total,
        message.bytes_done,
        message.bytes_total,
        message.elapsed_s,
        message.eta_s,
    )
