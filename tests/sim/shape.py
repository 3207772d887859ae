"""What a simulated cluster is made of, drawn from its seed."""

import random
from dataclasses import dataclass
from typing import Final, Self

from fs.schema.routing import Role

MANAGER_COUNT: Final = 3
META_COUNT: Final = 2
CLIENT_COUNT: Final = 3
HISTORY_CLIENT_COUNT: Final = 5
STORAGE_ID_BASE: Final = 100
CHAIN_COUNT_MAX: Final = 4
WIDE_SHARE: Final = 0.2
VOLLEY_COUNTS: Final = (0, 0, 6, 20)
DIRECT_BYTES_MIN: Final = (0, 4096, 4096, 4096, 65536)
"""Whole pages are written past the page cache, so 4096 means all that can be;
chunks have 64 KiB.
"""
INLINE_BYTES: Final = (0, 300, 65536, 65536)
"""Longest file that is kept in the metadata store;
with few bytes, files move out of it all the time.
"""
BOTH: Final = frozenset({Role.MGMTD, Role.META})


@dataclass(frozen=True)
class Shape:
    """Processes and chains."""

    roles: dict[str, frozenset[Role]]
    """Of each control process."""
    storage_count: int
    replica_count: int
    chain_count: int
    think_s: float
    """Mean pause of a client between two operations."""
    disk_pause_s_max: float = 0.002
    resync_bytes_per_s_max: int = 0
    """0: no limit; else resync takes seconds although there are few chunks."""
    replace_after_s: float = 600.0
    """A target offline for so long is replaced by another one."""
    move_stall_s: float = 120.0
    rotate_after_s: float = 60.0
    """Chains return to their preferred order after so long; with 2 s even between two faults."""
    client_count: int = CLIENT_COUNT
    is_history: bool = False
    """Registers only, by more clients that hardly pause: for long histories."""

    direct_write_bytes_min: int = 0
    """New versions of so many bytes are written past the page cache; 0: none."""

    inline_bytes_max: int = 0
    """Files of up to so many bytes are kept in the metadata store."""

    is_wide: bool = False
    """Registers in many chunks, each written for a while and then only read."""

    volley_count: int = 0
    """Registers that clients often write at the same time, so that groups of writes come about;
    0: they write one after the other.
    """

    @classmethod
    def draw(cls, seed: int, *, is_dense: bool = False, is_history: bool = False) -> Self:
        """Draw the shape of a seed's cluster.

        Args:
            seed: of the run.
            is_dense: clients hardly pause.
            is_history: they are five, and work on registers only.
        """
        source = random.Random(f"{seed}/shape")
        storage_count = source.randint(3, 6)
        counts = {n: w for n, w in {1: 1, 2: 8, 3: 14, 4: 6, 5: 1}.items() if n <= storage_count}
        (replica_count,) = source.choices([*counts], weights=[*counts.values()])
        return cls(
            roles=_roles(are_shared=source.random() < 0.5),
            storage_count=storage_count,
            replica_count=replica_count,
            chain_count=min(storage_count, CHAIN_COUNT_MAX),
            think_s=_think_s(source, is_dense=is_dense, is_history=is_history),
            disk_pause_s_max=source.choice([0.002, 0.002, 0.002, 0.02, 0.1]),
            resync_bytes_per_s_max=source.choice([0, 0, 300_000, 100_000]),
            replace_after_s=source.choice([600.0, 5.0]),
            move_stall_s=source.choice([120.0, 10.0]),
            rotate_after_s=source.choice([60.0, 2.0]),
            client_count=HISTORY_CLIENT_COUNT if is_history else CLIENT_COUNT,
            is_history=is_history,
            direct_write_bytes_min=random.Random(f"{seed}/direct").choice(DIRECT_BYTES_MIN),
            inline_bytes_max=random.Random(f"{seed}/inline").choice(INLINE_BYTES),
            is_wide=not is_history and random.Random(f"{seed}/wide").random() < WIDE_SHARE,
            volley_count=0
            if is_history
            else random.Random(f"{seed}/volleys").choice(VOLLEY_COUNTS),
        )


def _think_s(source: random.Random, *, is_dense: bool, is_history: bool) -> float:
    if is_dense:
        return 0.05
    return 0.12 if is_history else source.choice([0.2, 0.3, 0.5])


def _roles(*, are_shared: bool) -> dict[str, frozenset[Role]]:
    """Managers and metadata services in processes of their own, or as many as possible together."""
    roles = {
        f"mgmtd-{i}": BOTH if are_shared and i <= META_COUNT else frozenset({Role.MGMTD})
        for i in range(1, MANAGER_COUNT + 1)
    }
    if not are_shared:
        roles |= {f"meta-{i}": frozenset({Role.META}) for i in range(1, META_COUNT + 1)}
    return roles
