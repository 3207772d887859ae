"""Who served when: what the disk of a target that served remembers of its chain,
to be found out after a restore.  Pure.

Versions of a chain grow, but a restored manager begins again at those of its backup.  So a version
counts within its *generation*, the time of the last restore.
"""

from dataclasses import dataclass

from .ids import ChainId, TargetId
from .proto import common_pb2 as pb


@dataclass(frozen=True, slots=True)
class Standing:
    """One version of a chain, and who kept its newest data then."""

    chain_id: ChainId
    generation: int
    """Wall time of the restore that began it, in ns; 0: none has been."""
    chain_version: int
    keepers: tuple[TargetId, ...]
    """Those that served, else the last that did."""
    joining: TargetId | None = None
    """Who was being brought up to date, and may have served next."""
    birth_ns: int = 0
    """Wall time at which the first chains of its store were made:
    tells one store from another; 0: not known.
    """

    @property
    def heirs(self) -> tuple[TargetId, ...]:
        """From whom those descend that kept the newest data of any later version."""
        return self.keepers if self.joining is None else (*self.keepers, self.joining)

    def is_of_other_store(self, birth_ns: int) -> bool:
        """Return whether it was noted under chains of another store than the one
        that was born then; not where one is not known.
        """
        return bool(self.birth_ns and birth_ns) and self.birth_ns != birth_ns

    @property
    def age_key(self) -> tuple[int, int]:
        """Of two standings in one chain, the later one has the larger key."""
        return self.generation, self.chain_version


def standing_to_pb(standing: Standing) -> pb.StandingPb:
    """Return the wire form, which is also that of disks."""
    return pb.StandingPb(
        chain_id=standing.chain_id,
        generation=standing.generation,
        chain_version=standing.chain_version,
        keepers=standing.keepers,
        joining=standing.joining or 0,
        birth_ns=standing.birth_ns,
    )


def standing_from_pb(message: pb.StandingPb) -> Standing:
    """Inverse of `standing_to_pb`."""
    keepers = tuple(TargetId(t) for t in message.keepers)
    joining = TargetId(message.joining) if message.joining else None
    return Standing(
        ChainId(message.chain_id),
        message.generation,
        message.chain_version,
        keepers,
        joining,
        message.birth_ns,
    )
