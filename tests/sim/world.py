"""What a fault may lay hands on, the registry of faults,
and the conditions under which data may be harmed.

The harm model: at any time at most one storage machine's unsynced or stored bytes are at risk
(`is_covered`: another target of each chain serves with everything acknowledged), and the network is
left alone meanwhile, so that the other one stays.  Only `cut_all` takes more; its `note_cut` tells
the checkers.  So no read may ever end with EIO or with other bytes.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from fs.schema.ids import ChainId
from fs.schema.routing import LocalState, PublicState

from .cluster import SimCluster
from .workload import Memory

HEARD_S_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class Backup:
    """What the managers knew at some time."""

    rows: dict[bytes, bytes]
    members: frozenset[tuple[int, int]]
    """Chain id, target id."""


class World:
    """Given to each fault."""

    def __init__(self, cluster: SimCluster, memory: Memory) -> None:
        self.cluster = cluster
        self.memory = memory
        self.random = random.Random(f"{cluster.seed}/faults")
        self.network_random = random.Random(f"{cluster.seed}/network")
        self.operator_random = random.Random(f"{cluster.seed}/operator")
        self.counts: dict[str, int] = {}
        self.network_lock = trio.Lock()
        """Held by each fault of the network, and by what may harm data meanwhile."""
        self.changing: set[int] = set()
        """Chains whose members an operator is changing: one that serves may be told to stop."""
        self.has_harmed = False
        """A disk has lost or changed something."""
        self.backups: list[Backup] = []
        """Of the history that goes on, oldest first."""
        self.has_settings = False
        """Something was set for a role."""

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

    def up_to_date(self, *, but: str = "") -> set[int]:
        """Return the targets of running processes that hold everything acknowledged."""
        found: set[int] = set()
        for name in self.cluster.storages:
            process = self.cluster.processes[name]
            if name != but and process.is_running and "Storage" in process.services:
                targets = process.services["Storage"]._context.targets.targets
                found |= {t for t, v in targets.items() if v.local_state is LocalState.UPTODATE}
        return found

    def is_covered(self, name: str) -> bool:
        """Another target of each chain serves at this moment, with everything acknowledged,
        and is not about to leave.
        """
        leaving = {move.leaving for move in self.cluster.watch.moves.values()}
        staying = self.up_to_date(but=name) - leaving
        is_covered = not self.changing and all(
            any(m.target_id in staying and m.public_state is PublicState.SERVING for m in c.targets)
            for c in self.cluster.watch.chains.values()
        )
        self.has_harmed = self.has_harmed or is_covered
        return is_covered

    async def wait_heard(self, name: str) -> None:
        """Wait until the managers know of a storage process's last start.

        Until then they take its targets for serving ones, and a chain may be left
        with what the machine still has.
        """
        process = self.cluster.processes[name]
        with trio.move_on_after(HEARD_S_MAX):
            while True:
                service = process.services.get("Storage")
                if service is not None and service._context.lease.is_valid():
                    return
                await trio.sleep(0.1)
        raise AssertionError(f"{name}: no lease {HEARD_S_MAX:g} s after its start")

    def may_change(self, chain_id: int) -> bool:
        """An operator may tell a member to stop: what a disk has lost is known
        to the managers, or restored.
        """
        there = self.up_to_date()
        members = self.cluster.watch.chains[ChainId(chain_id)].targets
        return not self.has_harmed or all(m.target_id in there for m in members)


Fault = Callable[[World], Awaitable[None]]
MACHINE_FAULTS: Final[dict[str, tuple[Fault, int]]] = {}
NETWORK_FAULTS: Final[dict[str, tuple[Fault, int]]] = {}
OPERATOR_FAULTS: Final[dict[str, tuple[Fault, int]]] = {}
NAMED_FAULTS: Final[dict[str, tuple[Fault, int]]] = {}
"""Happen only where they are asked for by name:
the others' weather would change with each kind that is added.
"""


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


def operator_fault(weight: int) -> Callable[[Fault], Fault]:
    """Register something that operators do to live chains with its usual weight."""

    def register(fault: Fault) -> Fault:
        OPERATOR_FAULTS[fault.__name__] = (fault, weight)
        return fault

    return register


def named_fault(fault: Fault) -> Fault:
    """Register a fault that happens only where it is asked for by name."""
    NAMED_FAULTS[fault.__name__] = (fault, 1)
    return fault
