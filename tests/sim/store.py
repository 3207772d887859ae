"""The store of a simulated cluster, which watches what the managers write into it.

Checked at every commit, so no change between two looks is missed:
    - the routing version grows, by one; an epoch of the lease never falls, and names one process;
    - a chain's version never falls, grows by one with every change of its
      members, and the members are legal;
    - a chain or node changes only together with the routing version;
    - a file is inline exactly while its bytes are there, all of them.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fs.kv.buffer import Mutations
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.mgmtd import store as keys
from fs.mgmtd.chain_state import is_legal
from fs.mgmtd.lease import LeaseRecord
from fs.mgmtd.move_book import Move, unpack_move
from fs.mgmtd.settings_book import SETTINGS_PREFIX
from fs.schema.ids import ChainId, ChunkId
from fs.schema.proto import common_pb2, record_pb2
from fs.schema.routing import Chain, chain_from_pb


@dataclass
class RoutingWatch:
    """What has been published so far."""

    routing_version: int = 0
    chains: dict[ChainId, Chain] = field(default_factory=dict)
    lease: LeaseRecord = field(default_factory=LeaseRecord)
    chain_history: dict[int, dict[ChainId, Chain]] = field(default_factory=dict)
    """All chains by routing version."""
    node_of: dict[int, int] = field(default_factory=dict)
    """By target, also of those that are gone."""
    targets: set[int] = field(default_factory=set)
    """Those that exist."""
    moves: dict[int, Move] = field(default_factory=dict)
    """Under way."""
    move_counts: Counter[str] = field(default_factory=Counter)
    """Moves begun, by reason."""
    back_in_order_count: int = 0
    """How often all members of a chain came to serve in its preferred order."""
    settings: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By role: the newest version that is kept, and its text."""
    settings_generation: int = 0
    """Versions of settings are given again after a restore."""
    settings_given: set[tuple[int, int, str]] = field(default_factory=set)
    """Roles, versions and texts that were ever kept."""
    settings_before: set[tuple[int, int, str]] = field(default_factory=set)
    """Those before the last restore: who lived on has them until he hears of the others."""
    versions: dict[int, dict[ChunkId, int]] = field(default_factory=dict)
    """By target: the committed versions seen while it served."""

    def forget_versions(self, node_id: int) -> None:
        """A node's disk has lost something: its targets' versions may be older now."""
        for target_id in [t for t in self.versions if self.node_of.get(t) == node_id]:
            del self.versions[target_id]

    def see(self, points: list[tuple[bytes, bytes | None]]) -> None:
        """Take in one commit; raises AssertionError."""
        written = {key: value for key, value in points if key.startswith(b"MG")}
        if not written:
            return
        self.see_places(written)
        if keys.LEASE_KEY in written:
            self._see_lease(keys.unpack_lease(written[keys.LEASE_KEY]))
        chains = {
            chain.chain_id: chain
            for key, value in written.items()
            if key.startswith(keys.CHAIN_PREFIX) and value is not None
            for chain in [chain_from_pb(record_pb2.ChainRecordPb.FromString(value).chain)]
        }
        version = written.get(keys.ROUTING_VERSION_KEY)
        if version is None:
            assert not chains, f"chains change without the routing version: {chains}"
            return
        # A commit of unknown outcome is made again: the same version with the same content.
        number = int.from_bytes(version, "big")
        known = self.chain_history.get(number)
        self.chains = {**self.chains, **chains}
        if known is not None:
            assert number == self.routing_version, f"{number} after {self.routing_version}"
            assert known == self.chains, f"routing version {number} names two contents"
            return
        assert number == self.routing_version + 1, f"{number} after {self.routing_version}"
        for chain in chains.values():
            self._see_chain(chain)
        self.routing_version = number
        self.chain_history[number] = self.chains

    def see_places(self, written: Mapping[bytes, bytes | None]) -> None:
        """Take in where targets are, and what is being moved; a target stays where it is."""
        for key, value in written.items():
            if key.startswith(keys.TARGET_PREFIX) and value is not None:
                target = record_pb2.TargetRecordPb.FromString(value).target
                self.targets.add(target.target_id)
                old = self.node_of.setdefault(target.target_id, target.node_id)
                assert old == target.node_id, f"target {target.target_id} on {old} and {target}"
            elif key.startswith(keys.TARGET_PREFIX):
                self.targets.discard(int.from_bytes(key[len(keys.TARGET_PREFIX) :], "big"))
            if key.startswith(keys.MOVE_PREFIX):
                move_id = int.from_bytes(key[len(keys.MOVE_PREFIX) :], "big")
                if value is None:
                    self.moves.pop(move_id, None)
                else:
                    self._see_move(unpack_move(value))
            if key.startswith(SETTINGS_PREFIX) and value is not None:
                one = record_pb2.SettingsRecordPb.FromString(value).settings
                kept = (one.version, one.text)
                self.settings_given.add((one.role, *kept))
                self.settings[one.role] = max(self.settings.get(one.role, (0, "")), kept)

    def _see_move(self, move: Move) -> None:
        if move.move_id not in self.moves:
            self.move_counts[move.reason.name] += 1
        self.moves[move.move_id] = move

    def _see_lease(self, record: LeaseRecord) -> None:
        old = self.lease
        assert record.epoch >= old.epoch, f"lease epoch falls: {record} after {old}"
        if record.epoch == old.epoch and record.node_id:
            same = (record.node_id, record.incarnation) == (old.node_id, old.incarnation)
            assert same, f"one epoch, two owners: {record} after {old}"
        self.lease = record

    def _see_chain(self, chain: Chain) -> None:
        assert is_legal(chain), chain
        last = self.chain_history.get(self.routing_version, {}).get(chain.chain_id)
        if last is None or last == chain:
            return
        step = chain.chain_version - last.chain_version
        # Beyond all that was noted.
        is_settled = last.restored is not None and chain.restored is None
        assert step == 1 or (is_settled and step > 0), f"{chain} after {last}"
        is_reached = chain.serving == chain.preferred_order != last.serving
        self.back_in_order_count += is_reached and len(last.preferred_order) > 1

    def begin_again(self, store: "WatchedStore") -> None:
        """The managers' records were restored: numbers go on far beyond all that was given out."""
        rows = store.dump()
        version = int.from_bytes(rows[keys.ROUTING_VERSION_KEY], "big")
        assert version > self.routing_version, (version, self.routing_version)
        self.routing_version = version
        self.lease = keys.unpack_lease(rows.get(keys.LEASE_KEY))
        self.chains = {
            chain.chain_id: chain
            for key, value in rows.items()
            if key.startswith(keys.CHAIN_PREFIX)
            for chain in [chain_from_pb(record_pb2.ChainRecordPb.FromString(value).chain)]
        }
        self.chain_history[version] = self.chains
        self.settings_generation += 1
        self.settings_before |= self.settings_given
        self.look_at_places(rows)

    def look_at_places(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Begin anew with where targets are, what is being moved and what is set."""
        for known in (self.node_of, self.targets, self.moves, self.settings):
            known.clear()
        self.see_places(rows)

    def go_back(self, routing_version: int, lease: LeaseRecord, *, seen_version: int) -> None:
        """After a power loss: what anybody has seen must be there still;
        the rest is as never written.
        """
        assert routing_version >= seen_version, (
            f"a power loss took routing versions {routing_version + 1} to {seen_version}"
        )
        self.routing_version = routing_version
        self.lease = lease
        self.chain_history = {
            v: chains for v, chains in self.chain_history.items() if v <= routing_version
        }
        self.chains = self.chain_history[routing_version]


class WatchedStore(MemoryEngine):
    """A MemoryEngine under watch."""

    watch: RoutingWatch | None = None

    on_truncation: Callable[[], None] | None = None
    """Called at each commit that begins a truncation."""

    inline_count = 0
    """Files that became inline, or got other bytes there."""

    moved_count = 0
    """Files whose bytes were moved to a chunk."""

    def apply(self, version: int, mutations: Mutations) -> None:
        before = self._inline_of(mutations)
        super().apply(version, mutations)
        self._see_inline(before, self._inline_of(mutations))
        if self.on_truncation is not None and any(
            key.startswith(records.TRUNCATION) and value is not None
            for key, value in mutations.points
        ):
            self.on_truncation()
        if self.watch is not None:
            self.watch.see(list(mutations.points))

    def _inline_of(self, mutations: Mutations) -> dict[bytes, tuple[bytes | None, bytes | None]]:
        """Return inode and inline bytes of what a commit is about, by the number of the inode."""
        kinds = {records.INODE, records.INLINE}
        numbers = {key[4:] for key, _ in mutations.points if key[:4] in kinds}
        return {
            n: (self.current(records.INODE + n), self.current(records.INLINE + n)) for n in numbers
        }

    def _see_inline(
        self,
        before: Mapping[bytes, tuple[bytes | None, bytes | None]],
        after: Mapping[bytes, tuple[bytes | None, bytes | None]],
    ) -> None:
        for number, (stored, row) in after.items():
            part = common_pb2.InodePb.FromString(stored or b"").file
            data = record_pb2.InlineRecordPb.FromString(row or b"").data
            assert part.is_inline is (row is not None), f"{number.hex()}: {part} with {row}"
            if row is not None:
                is_whole = 0 < len(data) == part.length and part.dyn_stripe == 0
                assert is_whole, f"{number.hex()}: {part} with {len(data)} bytes"
                self.inline_count += row != before[number][1]
            elif before[number][1] is not None and stored is not None and part.length:
                assert part.dyn_stripe and part.truncate_pending, f"{number.hex()}: {part}"
                self.moved_count += 1

    def lose_power(self, source: random.Random, seen_version: int) -> None:
        """Lose unsynced commits; `seen_version` is the newest routing version
        that anybody acted on.
        """
        self.power_loss(source)
        if self.watch is not None:
            self.watch.go_back(
                int.from_bytes(self.current(keys.ROUTING_VERSION_KEY) or b"", "big"),
                keys.unpack_lease(self.current(keys.LEASE_KEY)),
                seen_version=seen_version,
            )
            self.watch.look_at_places(self.dump())
