"""One target of a storage process: what is in memory about it.

Invariant: `LocalTarget.unsettled` names every chunk with an update inside or a leftover
pending version, from before the update is forwarded until it is committed or dropped here.  A
read that finds its chunk not in it may return the committed version: whatever any reader saw
of the chunk before, is committed here.

Which chain a target is in, and what its local state becomes, is decided in targets.py.
"""

from dataclasses import dataclass, field

import trio

from ..chunkengine.format import target_prefix
from ..rpc.api import UnderWay
from ..schema.ids import ChunkId, TargetId
from ..schema.proto import common_pb2
from ..schema.routing import LocalState
from ..schema.standing import Standing
from ..schema.status import FsError, Status
from .channels import ChannelTable
from .chunk_locks import ChunkLocks
from .disk import Disk
from .finished_cuts import FinishedCuts
from .inflight import InFlight
from .local_state import Hold, Step


@dataclass(slots=True)
class ResyncProgress:
    """Counters of the last or present resync of this target's successor."""

    transferred_count: int = 0
    transferred_bytes: int = 0
    removed_count: int = 0
    skipped_count: int = 0
    failed_count: int = 0
    successor_id: int = 0
    chain_version: int = 0
    began_s: float = 0.0
    """trio time."""
    is_running: bool = False
    compared_bytes: int = 0
    """Of the chunks done with, here, whether they had to be transferred or not."""
    suspect_count: int = 0
    damaged_count: int = 0
    """Handed over without bytes, since nobody has them."""

    def summary(self) -> str:
        """Return for people what was done."""
        told = (
            f"{self.transferred_count} chunks transferred ({self.transferred_bytes} bytes), "
            f"{self.removed_count} removed, {self.skipped_count} as they were"
        )
        rest = (self.failed_count, "failed"), (self.damaged_count, "handed over as damaged")
        return ", ".join([told, *(f"{count} {words}" for count, words in rest if count)])

    def report(self, total_bytes: int, now_s: float) -> common_pb2.ResyncProgressPb:
        """Return what the heartbeat says of it; how long it takes is guessed from the bytes
        of our own target.

        Args:
            total_bytes: that our target takes on its disk, blocks included.
            now_s: trio time.
        """
        done = self.transferred_count + self.removed_count + self.skipped_count
        elapsed_s = now_s - self.began_s
        share = min(1.0, self.compared_bytes / total_bytes) if total_bytes else 0.0
        return common_pb2.ResyncProgressPb(
            target_id=self.successor_id,
            chain_version=self.chain_version,
            chunks_done=done,
            chunks_total=max(done, round(done / share)) if share else done,
            bytes_done=self.compared_bytes,
            bytes_total=max(total_bytes, self.compared_bytes),
            elapsed_s=elapsed_s,
            eta_s=elapsed_s * (1 - share) / share if share else 0.0,
        )


@dataclass(slots=True, eq=False)
class LocalTarget:
    """One target of this node."""

    target_id: TargetId
    disk: Disk
    local_state: LocalState = LocalState.OFFLINE
    hold: Hold = Hold.STARTING
    trouble: str = ""
    """Why it is OFFLINE, for people."""
    flushed_by: str = ""
    """Incarnation of the process that stopped in order before this one,
    having made everything durable.
    """
    disk_loss_count: int = 0
    """How often its disk, when it was opened, lacked what had been committed."""
    awaits_settling: bool = False
    """It came back while its chain, which was restored, had no truth,
    or while another store was there, or none; it keeps all that it knows until then.
    """
    standing: Standing | None = None
    """The last version of its chain under which it served, as its disk says durably."""
    watermark: int = 0
    """As its disk has it durably (watermarks.py); 0: not known."""
    told_watermark: int = 0
    """What was told of it by a disk that had more than its own has,
    as far as the manager says; 0: by none.
    """
    locks: ChunkLocks = field(default_factory=ChunkLocks)
    channels: ChannelTable = field(default_factory=ChannelTable)
    inflight: InFlight = field(default_factory=InFlight)
    unsettled: dict[ChunkId, None] = field(default_factory=dict)
    remove_locks: ChunkLocks = field(default_factory=ChunkLocks)
    note_turn: trio.Lock = field(default_factory=trio.Lock)
    """Held while notes of updates are stored that no commit brings along."""
    sync_done_version: int = 0
    """Chain version under which this target's resync was completed."""
    resynced_version: int = 0
    """Chain version under which this target brought its successor up to date."""
    pending_step: Step = Step.STAY
    """RELOAD or PROMOTE: being carried out by Storage."""
    epoch: int = 1
    """Sent with what this target forwards; grows after every attempt of unknown outcome."""
    epoch_seen: tuple[int, int] = (0, 0)
    """The highest (chain version, epoch) that the predecessor sent."""
    unanswered_since_s: float = 0.0
    """Since when (trio time) calls to the successor have been waiting without any answer;
    0: they are not.
    """
    heard_s: float = 0.0
    """When the predecessor last said anything, in trio time."""
    forwards: dict[TargetId, set[UnderWay]] = field(default_factory=dict)
    """Calls to successors in flight; they are given up
    when their callee stops being our successor.
    """
    cuts: FinishedCuts = field(default_factory=FinishedCuts)
    used_bytes: int = 0
    read_bytes: int = 0
    """Read for clients, since the start."""
    written_bytes: int = 0
    """Of updates of clients and of the predecessor, since the start."""
    scrub_pass_count: int = 0
    """Since the start, as the next."""
    scrubbed_bytes: int = 0
    checksum_error_count: int = 0
    difference_count: int = 0
    """Chunks of which the successor had more, less or other content with nothing under way."""
    repaired_count: int = 0
    lost_count: int = 0
    """Chunks that were found to be whole on no target of the chain."""
    read_elsewhere_count: int = 0
    """Reads of bad copies here that another replica answered."""
    damaged: dict[ChunkId, float] = field(default_factory=dict)
    """Chunks whose copy here is to be repaired (damage.py), and when to try next, in trio time;
    see UNTIL_FLUSHED.
    """
    progress: ResyncProgress = field(default_factory=ResyncProgress)

    key_prefix: bytes = field(init=False)
    """What the names of its chunks begin with on its disk."""

    def __post_init__(self) -> None:
        self.key_prefix = target_prefix(self.target_id)

    def admit_epoch(self, chain_version: int, epoch: int) -> None:
        """Let an update of the predecessor pass unless a later attempt has voided it.

        Raises:
            FsError: SUPERSEDED_UPDATE.
        """
        if (chain_version, epoch) < self.epoch_seen:
            raise FsError(
                Status.SUPERSEDED_UPDATE, f"target {self.target_id}: epoch {epoch} is over"
            )
        self.epoch_seen = (chain_version, epoch)
