"""Which fault comes next, on whom, and for how long: drawn from a seed.  Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to be made."""

    kind: str
    victim: str
    """The process, or the node, that it happens to."""
    duration_s: float = 0.0
    amount: int = 0
    """Percent of packets, chunks to damage, kbit/s: what the kind says."""
    peer: str = ""
    """The other end of a partial partition."""

    def __str__(self) -> str:
        more = [f"{self.victim}-{self.peer}" if self.peer else self.victim]
        more += [f"{self.duration_s:.1f} s"] if self.duration_s else []
        more += [str(self.amount)] if self.amount else []
        return f"{self.kind} {', '.join(more)}"


KINDS: Final = (
    "kill", "stop", "long_stop", "full", "flip", "isolate", "one_way", "half", "apart", "loss",
    "narrow", "reset", "slow_disk", "wipe", "disk_error", "rolling",
)  # fmt: skip
NETWORK: Final = ("isolate", "one_way", "half", "apart", "loss", "narrow", "reset")
DISK_OF_LOOP: Final = ("full", "slow_disk", "disk_error")
"""Kinds that need a disk of their own below the storage process."""
OF_MOUNT: Final = ("apart",)
"""Kinds that concern the mount daemon alone."""
WEIGHTS: Final = {"kill": 5, "stop": 3, "flip": 2, "reset": 2}

RANGES_S: Final = {
    "stop": (0.5, 4.0),
    "long_stop": (8.0, 20.0),
    "full": (8.0, 15.0),
    "isolate": (2.0, 15.0),
    "one_way": (2.0, 15.0),
    "half": (2.0, 15.0),
    "apart": (10.0, 40.0),
    "loss": (5.0, 15.0),
    "narrow": (5.0, 12.0),
    "slow_disk": (8.0, 15.0),
    "disk_error": (1.0, 4.0),
}
LOSS_PERCENT: Final = (5, 30)
FLIP_COUNT: Final = (1, 20)
KBIT_PER_S: Final = (1000, 4000)


def draw(
    generator: random.Random,
    *,
    storages: Sequence[str],
    loop_node: str,
    others: Sequence[str],
    mount: str = "",
    only: Sequence[str] = (),
) -> Fault:
    """Draw one fault.

    Args:
        generator: the only source of chance.
        storages: names of the storage processes.
        loop_node: the one whose disk is a loop device, empty: none is.
        others: names of managers and metadata services.
        mount: name of the mount daemon, empty: it is spared.
        only: the kinds to choose from, empty: all.
    """
    kinds = [
        k
        for k in only or KINDS
        if (loop_node or k not in DISK_OF_LOOP) and (mount or k not in OF_MOUNT)
    ]
    kind = generator.choices(kinds, [WEIGHTS.get(k, 1) for k in kinds])[0]
    duration_s = generator.uniform(*RANGES_S[kind]) if kind in RANGES_S else 0.0
    amount, peer = 0, ""
    anybody = [*storages, *others]
    victim = generator.choice(list(storages))
    match kind:
        case "kill":
            victim = generator.choice([*anybody, mount] if mount else anybody)
        case "stop" | "reset" | "one_way" | "loss":
            victim = generator.choice(anybody)
        case "half":
            peer = generator.choice([name for name in anybody if name != victim])
        case "apart":
            peer = mount
        case "full" | "slow_disk" | "disk_error":
            victim = loop_node
        case "rolling":
            victim = "all"
    match kind:
        case "loss":
            amount = generator.randint(*LOSS_PERCENT)
        case "flip":
            amount = generator.randint(*FLIP_COUNT)
        case "narrow":
            amount = generator.randint(*KBIT_PER_S)
    return Fault(kind, victim, duration_s, amount, peer)
