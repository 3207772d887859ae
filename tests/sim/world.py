"""What a fault may lay hands on, the registry of faults, and the conditions under which data may be harmed.

The harm model: at any time at most one storage machine's unsynced or stored bytes are at risk (`is_covered`: another
target of each chain serves with everything acknowledged), and the network is left alone meanwhile, so that the
other one stays.  Only `cut_all` takes more; its `note_cut` tells the checkers.  So no read may ever end with
EIO or with other bytes.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from fs.schema.routing import LocalState, PublicState

from .cluster import SimCluster
from .workload import Memory


class World:
    """Given to each fault."""

    def __init__(self, cluster: SimCluster, memory: Memory) -> None:
        self.cluster = cluster
        self.memory = memory
        self.random = random.Random(f"{cluster.seed}/faults")
        self.network_random = random.Random(f"{cluster.seed}/network")
        self.counts: dict[str, int] = {}
        self.network_lock = trio.Lock()
        """Held by each fault of the network, and by what may harm data meanwhile."""

    def count(self, name: str, count: int = 1) -> None:
        """Take note that something happened."""
        if count:
            self.counts[name] = self.counts.get(name, 0) + count

    def client_names(self) -> list[str]:
        """Return the names of the clients at work."""
        return [name for name in self.cluster.clients if name.startswith("client-")]

    def some_client(self, number: int) -> str:
        """Return the name of client `number` as it lives now."""
        return next((n for n in self.client_names() if n.startswith(f"client-{number}.")), "")

    def is_covered(self, name: str) -> bool:
        """Another target of each chain serves at this moment, with everything acknowledged."""
        serving = set()
        for other in self.cluster.storages:
            process = self.cluster.processes[other]
            if other != name and process.is_running and "Storage" in process.services:
                targets = process.services["Storage"]._context.targets.targets
                serving |= {t for t, v in targets.items() if v.local_state is LocalState.UPTODATE}
        return all(
            any(m.target_id in serving and m.public_state is PublicState.SERVING for m in c.targets)
            for c in self.cluster.watch.chains.values()
        )


Fault = Callable[[World], Awaitable[None]]
MACHINE_FAULTS: Final[dict[str, tuple[Fault, int]]] = {}
NETWORK_FAULTS: Final[dict[str, tuple[Fault, int]]] = {}


def machine_fault(weight: int) -> Callable[[Fault], Fault]:
    """Register a fault of processes, disks and clocks with its usual weight."""

    def register(fault: Fault) -> Fault:
        MACHINE_FAULTS[fault.__name__] = (fault, weight)
        return fault

    return register


def network_fault(weight: int) -> Callable[[Fault], Fault]:
    """Register a fault of the network with its usual weight."""

    def register(fault: Fault) -> Fault:
        NETWORK_FAULTS[fault.__name__] = (fault, weight)
        return fault

    return register
