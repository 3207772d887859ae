"""What must hold during a run and at its end, one checker per property;
each raises AssertionError.
"""

from collections.abc import Callable
from typing import Any

import trio

from fs.chunkengine.factory import memory_engine
from fs.client.native import EmberFs
from fs.meta.check import check as check_namespace
from fs.meta.check import load
from fs.schema.ids import ChainId
from fs.schema.routing import Chain

from .cluster import CLUSTER_ID, SimCluster
from .recovered import is_linearizable_across
from .workload import GIVEN_UP, INITIAL, MOUNTED, Abandoned, Memory

LOOK_INTERVAL_S = 0.05
LEASE_LOOKS = 4
"""Looks between two at the leases."""
SETTINGS_LOOKS = 4
"""Looks between two at what processes were told to set."""
VERSION_LOOKS = 20
"""Looks between two at all the versions."""


class Observer:
    """Looks all the time.

    One primary at most; who names a routing version names its one content; the committed version of
    a chunk falls on no target that goes on serving; nothing is an assertion that failed inside a
    service.  Counts what only looking shows.
    """

    def __init__(self, cluster: SimCluster, memory: Memory, count: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.memory = memory
        self.count = count
        self._acting = ""
        self._chain_versions: dict[int, int] = {}
        self._had_lease: dict[str, bool] = {}
        self._last_info: dict[str, Any] = {}
        self._last_chains: dict[ChainId, Chain] = {}
        self._settings: dict[tuple[int, int], str] = {}
        """By role and version, as any process had them."""
        self._settings_generation = 0

    async def run(self) -> None:
        """Look until cancelled; raises AssertionError."""
        look_count = 0
        while True:
            self._look_at_managers()
            if look_count % SETTINGS_LOOKS == 0:
                self._look_at_settings()
            for name in self.cluster.storages:
                service = self.cluster.processes[name].services.get("Storage")
                if service is not None:
                    self._look_at_routing(name, service)
                    if look_count % LEASE_LOOKS == 0:
                        self._look_at_lease(name, service)
                    if look_count % VERSION_LOOKS == 0:
                        self._look_at_versions(name, service)
            self._look_at_chains()
            assert not self.cluster.bugs, self.cluster.bugs
            look_count += 1
            await trio.sleep(LOOK_INTERVAL_S)

    def _look_at_managers(self) -> None:
        acting = self.cluster.acting
        assert len(acting) <= 1, f"two primaries act: {acting}"
        if acting and acting[0] != self._acting:
            if self._acting:
                self.count("mgmtd_failover")
            self._acting = acting[0]

    def _look_at_settings(self) -> None:
        if self._settings_generation != self.cluster.watch.settings_generation:
            self._settings_generation = self.cluster.watch.settings_generation
            self._settings.clear()
        for name, process in self.cluster.processes.items():
            if process.settings is None or process.life.is_over:
                continue
            for role, stored in process.settings._stored.items():
                if (role, stored.version, stored.text) in self.cluster.watch.settings_before:
                    continue  # `wait_settings` asks whether it hears of the others
                known = self._settings.setdefault((role, stored.version), stored.text)
                assert known == stored.text, (
                    f"{name}: version {stored.version} of {role.name} is {stored.text!r}, was "
                    f"{known!r}"
                )

    def _look_at_lease(self, name: str, service: Any) -> None:
        has_lease = service._context.lease.is_valid()
        if self._had_lease.get(name) and not has_lease:
            self.count("lease_expiry")
        self._had_lease[name] = has_lease

    def _look_at_routing(self, name: str, service: Any) -> None:
        info = service._context.routing.info
        if info.routing_version and info is not self._last_info.get(name):
            self._last_info[name] = info
            known = self.cluster.watch.chain_history.get(info.routing_version)
            assert info.chains == known, (name, info.routing_version, info.chains, known)

    def _look_at_versions(self, name: str, service: Any) -> None:
        context = service._context
        if not context.lease.is_valid():
            return
        for place in context.targets.places():
            target = place.target
            if not place.can_read:
                continue
            known = self.cluster.watch.versions.setdefault(target.target_id, {})
            for inode_id in sorted(self.memory.shared_inode_ids):
                for state in target.disk.engine.list_file(target.target_id, inode_id):
                    assert state.commit_ver >= known.get(state.chunk_id, 0), (
                        f"{name}: {state.chunk_id} fell from {known[state.chunk_id]} to "
                        f"{state.commit_ver}"
                    )
                    known[state.chunk_id] = state.commit_ver

    def _look_at_chains(self) -> None:
        if self.cluster.watch.chains is self._last_chains:
            return
        self._last_chains = self.cluster.watch.chains
        for chain_id, chain in self._last_chains.items():
            before = self._chain_versions.get(chain_id, 0)
            if before and chain.chain_version > before and self.memory.update_count:
                self.count("reconfiguration_during_write")
            self._chain_versions[chain_id] = chain.chain_version


def check_registers(memory: Memory) -> None:
    """Every register's history is linearizable, between cuts."""
    for slot, history in memory.histories.items():
        cuts = [(cut.time_s, cut.synced_s[slot[0]]) for cut in memory.cuts]
        assert is_linearizable_across(history, INITIAL, cuts, memory.kept), (
            f"register {slot} is not linearizable: {history}"
        )


def check_mounts(memory: Memory) -> None:
    """What is written between open and close, and read after an open,
    is as if it were done in one step.
    """
    for path, history in memory.mounts.ops.items():
        cuts = [(cut.time_s, cut.synced_s[path]) for cut in memory.cuts]
        assert is_linearizable_across(history, MOUNTED, cuts), (
            f"{path} through mounts is not linearizable: {history}"
        )


def check_given_up(memory: Memory) -> None:
    """No buffer of a begun read was touched after the read had been given up."""
    for buffer in memory.given_up:
        assert buffer == GIVEN_UP, bytes(buffer[:64])


def check_contests(memory: Memory) -> None:
    """An exclusive creation has at most one winner,
    unless power was lost while it was contested.
    """
    for name, winners in memory.winners.items():
        began_s, ended_s = float(name.split("-")[-1]), max(time_s for _, time_s in winners)
        if not any(began_s <= cut.time_s <= ended_s for cut in memory.cuts):
            assert len(winners) == 1, f"{name} was created exclusively by {winners}"


async def check_trees(fs: EmberFs, memory: Memory) -> None:
    """Each client's directory holds exactly what its operations left there."""
    for home, tree in memory.trees.items():
        names = [f"{home}/{entry.name}" for entry in await fs.listdir(home)]
        assert sorted(names) == sorted(tree), (home, names, sorted(tree))
        for name, content in tree.items():
            assert await fs.read_file(name) == content, f"{name} has other content"
    for left in memory.abandoned:
        if left.power_cut_count == memory.power_cut_count:
            await _check_abandoned(fs, left)


async def touch_leftovers(fs: EmberFs, memory: Memory) -> None:
    """Read the shared files and remove what dead clients have left.

    A pending version whose client has died waits for whoever needs the chunk next
    (craq.md); afterwards none may be left.
    """
    for path in memory.synced_s:
        await fs.read_file(path)
    for entry in await fs.listdir("/"):
        home = f"/{entry.name}"
        if home.startswith("/home-") and home not in memory.trees:
            await fs.remove_tree(home)


async def _check_abandoned(fs: EmberFs, left: Abandoned) -> None:
    """What a dead client had finished is there;
    of what was under way, anything between before and after.
    """
    found = {f"{left.home}/{entry.name}" for entry in await fs.listdir(left.home)}
    op = left.under_way
    after = op.applied_to(left.tree) if op is not None else left.tree
    is_write = op is not None and op.kind == "write"
    allowed = [set(left.tree), set(after)]
    assert found in allowed, (left.home, found, allowed)
    tree = after if found == set(after) else left.tree
    for name, content in tree.items():
        if is_write and name == op.name:
            continue
        is_moved = op is not None and op.kind == "rename" and name in {op.name, op.new_name}
        wanted = {content, left.tree.get(name), after.get(name)} if is_moved else {content}
        assert await fs.read_file(name) in wanted, f"{name} has other content"


async def check_metadata(cluster: SimCluster) -> None:
    """The namespace contradicts itself nowhere."""
    problems = await check_namespace(cluster.kv)
    assert not problems, problems


async def wait_collected(cluster: SimCluster, timeout_s: float = 300) -> set[int]:
    """Wait until garbage collection has freed all that was removed;
    return the inodes that may have chunks.
    """
    with trio.move_on_after(timeout_s):
        while True:
            contents = await load(cluster.kv)
            if not contents.gc_files and not contents.gc_directories and not contents.truncations:
                await trio.sleep(5)
                return {n for n, inode in contents.inodes.items() if not inode.file.is_inline}
            await trio.sleep(1)
    raise AssertionError(f"garbage is not collected: {contents.gc_files} {contents.gc_directories}")


def check_replicas(cluster: SimCluster, inode_ids: set[int] | None) -> int:
    """All targets of a chain hold the same chunks with the same content;
    return how many chunks there are.

    With `inode_ids`: no chunk belongs to a file that does not exist, or is inline.
    Reads the disks of processes that have been killed before, as a later process would find them.
    """
    states = {}
    for node_id, disk in cluster.disks.items():
        engine = memory_engine(
            disk,
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            section=cluster.processes[cluster.node_name(node_id)].config.storage,
        )
        for target_id in engine.target_ids():
            chunks, after = {}, b""
            while page := engine.list_chunks(target_id, after=after):
                chunks.update(
                    {c.chunk_id: (c.commit_ver, c.length, c.checksum, c.pending_ver) for c in page}
                )
                after = page[-1].chunk_id.pack()
            for chunk_id, (commit_ver, *_) in chunks.items():
                # What the digests stand for is really there.  A target that a move gave up
                # in the middle of its resync may hold versions that were never committed;
                # one of a chain may not (below).
                if commit_ver:
                    engine.read_whole(target_id, chunk_id)
            states[target_id] = chunks
        engine.close()
    count = 0
    for chain_id, chain in cluster.watch.chains.items():
        first, *rest = (states[member.target_id] for member in chain.targets)
        for other in rest:
            assert first == other, f"chain {chain_id} diverged: {first.items() ^ other.items()}"
        assert all(pending == 0 for *_, pending in first.values()), f"chain {chain_id}: pending"
        if inode_ids is not None:
            leaked = [str(c) for c in first if c.inode_id not in inode_ids]
            assert not leaked, f"chain {chain_id}: chunks of no file: {leaked}"
        count += len(first)
    return count
