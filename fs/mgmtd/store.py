"""What the manager persists: its key map, its records, and the one way to write them.

Key map (every key begins with `MG`, but for the history: a backup reads those at once; numbers
big-endian; tested byte for byte):

    MGFM                              FormatRecordPb          written once
    MGLS                              PrimaryLeaseRecordPb    who may write all the others
    MGRV                              8 bytes big-endian      routing version
    MGND + node id (4)                NodeRecordPb
    MGTG + target id (8)              TargetRecordPb          where it lives; not what
                                      its node says of it
    MGCH + chain id (4)               ChainRecordPb
    MGCT + table id (4) + version (4) ChainTablePb
    MGMB                              MoveBookRecordPb
    MGMV + move id (8)                MoveRecordPb
    MGDR + node id (4) + disk (4)     DrainRecordPb           disk: index + 1, 0 for the whole node
    MGUS + uid (4)                    UserRecordPb
    MGTK + token id (8)               uid (4)                 whose a token is
    MGCF + role (1) + version (8)     SettingsRecordPb        the newest SETTINGS_KEPT of each role
    MGHT + host name                  HostTagsRecordPb
    MGWM + target id (8)              WatermarkRecordPb
    RTEV + event id (8)               RoutingEventPb          history (history.py);
                                      the oldest make room

Invariants:
    - Every write validates the lease in its own transaction: owner and epoch as when the writer
      became primary. So there is one writer, which computes values beforehand and writes them
      blindly, and repeating a transaction whose outcome is unknown is harmless.
    - A change of anything in the routing info carries a larger routing
      version in the same transaction.
    - What is written is durable before anybody acts on it: nodes, clients and chunks
      on disks remember version numbers, so a number that a power loss took back must
      not be given to something else.

Format version 1.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from ..kv.api import KeyValue, KvEngine, Transaction, next_key, prefix_end
from ..kv.tally import Tally
from ..kv.transact import snapshot_read, transact
from ..runtime.ports import Runtime
from ..schema.config import KvSection
from ..schema.ids import ChainId, ChainTableId, NodeId, TargetId
from ..schema.proto import common_pb2, record_pb2
from ..schema.proto.mgmtd_pb2 import RoutingEventPb, UserPb
from ..schema.proto.record_pb2 import WatermarkRecordPb
from ..schema.routing import (
    Chain,
    ChainTable,
    LocalState,
    Node,
    RoutingInfo,
    Target,
    chain_from_pb,
    chain_to_pb,
    node_from_pb,
    node_to_pb,
    target_from_pb,
    target_to_pb,
)
from ..schema.status import FsError, Status
from .damage import decoded, readable, readable_values, version_in
from .host_tags import HOST_PREFIX, HostTags
from .lease import Candidate, LeaseRecord, is_owned
from .move_book import (
    Drain,
    MoveBook,
    MoveId,
    pack_book,
    pack_drain,
    pack_move,
    unpack_book,
    unpack_drain,
    unpack_move,
)
from .settings_book import SETTINGS_PREFIX, SettingsBook, settings_key, unpack_settings
from .user_book import USER_PREFIX, UserBook, only_token, token_key, unpack_user, user_key
from .watermarks import WATERMARK_PREFIX, unpack_watermarks, watermark_key

T = TypeVar("T")

FORMAT_VERSION: Final = 1
PAGE_COUNT: Final = 1000

FORMAT_KEY: Final = b"MGFM"
LEASE_KEY: Final = b"MGLS"
ROUTING_VERSION_KEY: Final = b"MGRV"
NODE_PREFIX: Final = b"MGND"
TARGET_PREFIX: Final = b"MGTG"
CHAIN_PREFIX: Final = b"MGCH"
TABLE_PREFIX: Final = b"MGCT"
BOOK_KEY: Final = b"MGMB"
MOVE_PREFIX: Final = b"MGMV"
DRAIN_PREFIX: Final = b"MGDR"
EVENT_PREFIX: Final = b"RTEV"
KEY_BEGINNINGS: Final = (b"MG", EVENT_PREFIX)
"""Of all that managers keep; nobody else's keys begin so."""

Record = tuple[bytes, bytes | None]
"""A key and its new value; None: it is cleared."""


def node_key(node_id: NodeId) -> bytes:
    """Return the key of a node record."""
    return NODE_PREFIX + node_id.to_bytes(4, "big")


def target_key(target_id: TargetId) -> bytes:
    """Return the key of a target record."""
    return TARGET_PREFIX + target_id.to_bytes(8, "big")


def chain_key(chain_id: ChainId) -> bytes:
    """Return the key of a chain record."""
    return CHAIN_PREFIX + chain_id.to_bytes(4, "big")


def table_key(table_id: ChainTableId, table_version: int) -> bytes:
    """Return the key of one version of a chain table."""
    return TABLE_PREFIX + table_id.to_bytes(4, "big") + table_version.to_bytes(4, "big")


def move_key(move_id: MoveId) -> bytes:
    """Return the key of a move."""
    return MOVE_PREFIX + move_id.to_bytes(8, "big")


def drain_key(drain: Drain) -> bytes:
    """Return the key of a drain."""
    disk = 0 if drain.disk_index is None else drain.disk_index + 1
    return DRAIN_PREFIX + drain.node_id.to_bytes(4, "big") + disk.to_bytes(4, "big")


def event_key(event_id: int) -> bytes:
    """Return the key of an event of the history."""
    return EVENT_PREFIX + event_id.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class BookChange:
    """The book of moves before and after."""

    before: MoveBook
    after: MoveBook

    def records(self) -> list[Record]:
        """Return what to write."""
        old, new = self.before, self.after
        return [
            (BOOK_KEY, pack_book(new)),
            *((move_key(m), None) for m in old.moves if m not in new.moves),
            *((move_key(m), pack_move(v)) for m, v in new.moves.items() if old.moves.get(m) != v),
            *((drain_key(d), None) for d in old.drains - new.drains),
            *((drain_key(d), pack_drain(d)) for d in new.drains - old.drains),
        ]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything the manager persists, but for the lease."""

    info: RoutingInfo
    book: MoveBook
    users: UserBook = field(default_factory=UserBook)
    settings: SettingsBook = field(default_factory=SettingsBook)
    host_tags: HostTags = field(default_factory=HostTags)
    last_event_id: int = 0
    """Of the history; 0: it has not begun."""
    watermarks: Mapping[TargetId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """New values of parts of the routing info and of the book of moves; what is not named stays."""

    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    targets: Mapping[TargetId, Target] = field(default_factory=dict)
    chains: Mapping[ChainId, Chain] = field(default_factory=dict)
    chain_tables: Mapping[tuple[ChainTableId, int], ChainTable] = field(default_factory=dict)

    removed_nodes: frozenset[NodeId] = frozenset()
    removed_targets: frozenset[TargetId] = frozenset()
    book: BookChange | None = None

    def __bool__(self) -> bool:
        set_ = self.nodes or self.targets or self.chains or self.chain_tables
        return bool(set_ or self.removed_nodes or self.removed_targets or self.book)

    def records(self) -> list[Record]:
        """Return what to write."""
        return [
            *((node_key(n), None) for n in self.removed_nodes),
            *((target_key(t), None) for t in self.removed_targets),
            *(self.book.records() if self.book else ()),
            *((node_key(n.node_id), _pack_node(n)) for n in self.nodes.values()),
            *((target_key(t.target_id), _pack_target(t)) for t in self.targets.values()),
            *((chain_key(c.chain_id), _pack_chain(c)) for c in self.chains.values()),
            *(
                (table_key(t.table_id, t.table_version), _pack_table(t))
                for t in self.chain_tables.values()
            ),
        ]


class Store:
    """The manager's part of the key-value store, for one manager process."""

    def __init__(
        self, engine: KvEngine, runtime: Runtime, section: KvSection, cluster_id: str
    ) -> None:
        self._engine = engine
        self._runtime = runtime
        self._section = section
        self._cluster_id = cluster_id
        self.tally = Tally()

    async def write(
        self, me: Candidate, epoch: int, routing_version: int, records: Sequence[Record]
    ) -> None:
        """Write the records and the routing version in one transaction, if the lease is still ours.

        Raises:
            FsError: LEASE_LOST (nothing written); what `transact` gives up with, or a failed flush
                (outcome unknown).
        """
        version: Record = (ROUTING_VERSION_KEY, routing_version.to_bytes(8, "big"))
        await self.write_apart(me, epoch, [version, *records])

    async def write_apart(self, me: Candidate, epoch: int, records: Sequence[Record]) -> None:
        """As `write`, for what is no part of the routing info."""

        async def body(tr: Transaction) -> None:
            record = await _lease(tr)
            if not is_owned(record, me, epoch):
                raise FsError(
                    Status.LEASE_LOST, f"epoch {epoch}, now {record.epoch} of node {record.node_id}"
                )
            for key, value in records:
                if value is None:
                    tr.clear(key)
                else:
                    tr.set(key, value)

        await self._transact(body)
        await self._engine.sync()

    async def elect(
        self, choose: Callable[[LeaseRecord], LeaseRecord]
    ) -> tuple[LeaseRecord, LeaseRecord]:
        """Read the lease record, write what `choose` makes of it; return both.

        `choose` may be called several times, also on a record it has produced itself.
        """

        async def body(tr: Transaction) -> tuple[LeaseRecord, LeaseRecord]:
            before = await _lease(tr)
            after = choose(before)
            if after != before:
                tr.set(LEASE_KEY, pack_lease(after))
            return before, after

        before, after = await self._transact(body)
        if after != before:
            await self._engine.sync()
        return before, after

    async def load(self) -> Loaded:
        """Read everything at one snapshot; only the owner of the lease may rely on it.

        Raises:
            FsError: KV_BAD_FORMAT when another program or a newer release wrote here;
                KV_DAMAGED: a record without which nothing can be decided.
        """

        async def body(tr: Transaction) -> Loaded:
            stored = await tr.get(FORMAT_KEY)
            if stored is None:
                tr.set(FORMAT_KEY, self._format())
            else:
                self._check_format(stored)
            return await read_all(tr, self._cluster_id)

        return await self._transact(body)

    @property
    def trouble(self) -> str:
        """What is wrong with the store that this is in; see `KvEngine.trouble`."""
        return self._engine.trouble

    async def events(self, before_event_id: int, count: int) -> list[RoutingEventPb]:
        """Return at most `count` events of the history, the newest first.

        Args:
            before_event_id: only older ones; 0: from the newest.
            count: at least 1.

        Raises:
            FsError: as `snapshot_read`.
        """
        return await snapshot_read(self._engine, lambda tr: read_events(tr, before_event_id, count))

    async def find_tokens(self, token_ids: Sequence[bytes]) -> list[UserPb]:
        """Return the user of each token with this token alone, an empty one where there is none.

        Also managers that do not reign may ask.

        Raises:
            FsError: as `snapshot_read`.
        """

        async def find(tr: Transaction, token_id: bytes) -> UserPb:
            uid = await tr.get(token_key(token_id), snapshot=True)
            if not uid:
                return UserPb()
            key = USER_PREFIX + uid
            value = await tr.get(key, snapshot=True)
            found = readable([(key, value)] if value else (), unpack_user)
            tokens = [only_token(user, t) for user in found for t in user.tokens]
            return next((user for user in tokens if user.tokens[0].token_id == token_id), UserPb())

        async def body(tr: Transaction) -> list[UserPb]:
            return [await find(tr, token_id) for token_id in token_ids]

        return await snapshot_read(self._engine, body)

    async def _transact(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        return await transact(
            self._engine,
            body,
            runtime=self._runtime,
            retry_time_s_max=self._section.retry_time_s_max,
            tally=self.tally,
        )

    def _format(self) -> bytes:
        return record_pb2.FormatRecordPb(
            format_version=FORMAT_VERSION, cluster_id=self._cluster_id, what="mgmtd"
        ).SerializeToString(deterministic=True)

    def _check_format(self, value: bytes) -> None:
        if value == self._format():
            return
        found = decoded(FORMAT_KEY, value, record_pb2.FormatRecordPb.FromString)
        raise FsError(
            Status.KV_BAD_FORMAT,
            f"{found.what} format {found.format_version} of cluster {found.cluster_id},"
            f" expected {FORMAT_VERSION} of {self._cluster_id}",
        )


async def read_all(tr: Transaction, cluster_id: str) -> Loaded:
    """Read everything that managers persist, but for the lease; raises FsError(KV_DAMAGED)."""
    nodes = await _all(tr, NODE_PREFIX, _unpack_node, lambda n: node_key(n.node_id))
    targets = await _all(tr, TARGET_PREFIX, _unpack_target, lambda t: target_key(t.target_id))
    chains = await _all(tr, CHAIN_PREFIX, _unpack_chain, lambda c: chain_key(c.chain_id))
    tables = await _all(
        tr, TABLE_PREFIX, _unpack_table, lambda t: table_key(t.table_id, t.table_version)
    )
    moves = await _all(tr, MOVE_PREFIX, unpack_move, lambda m: move_key(m.move_id))
    drains = await _all(tr, DRAIN_PREFIX, unpack_drain, drain_key)
    watermarks = await _rows(tr, WATERMARK_PREFIX)
    for key, value in watermarks:
        decoded(
            key, value, WatermarkRecordPb.FromString, lambda w: watermark_key(TargetId(w.target_id))
        )
    stored_book = await tr.get(BOOK_KEY)
    book = replace(
        MoveBook() if stored_book is None else decoded(BOOK_KEY, stored_book, unpack_book),
        moves={m.move_id: m for m in moves},
        drains=frozenset(drains),
    )
    stored_version = await tr.get(ROUTING_VERSION_KEY)
    if stored_version is None and chains:  # nodes and mounts know of later ones, and heed no other
        raise FsError(Status.KV_DAMAGED, f"record {ROUTING_VERSION_KEY!r} is missing")
    info = RoutingInfo(
        0 if stored_version is None else version_in(ROUTING_VERSION_KEY, stored_version),
        cluster_id,
        is_bootstrapping=True,
        nodes={n.node_id: n for n in nodes},
        targets={t.target_id: t for t in targets},
        chains={c.chain_id: c for c in chains},
        chain_tables={(t.table_id, t.table_version): t for t in tables},
    )
    users = readable(await _rows(tr, USER_PREFIX), unpack_user, lambda u: user_key(u.uid))
    newest = await tr.get_range(EVENT_PREFIX, prefix_end(EVENT_PREFIX), limit=1, reverse=True)
    # Of the key: a damaged event must not have the history begin anew.
    last_event_id = int.from_bytes(newest[0][0][len(EVENT_PREFIX) :], "big") if newest else 0
    return Loaded(
        info,
        book,
        UserBook({u.uid: u for u in users}),
        await read_settings(tr),
        HostTags.unpacked(
            readable_values(await _rows(tr, HOST_PREFIX), record_pb2.HostTagsRecordPb)
        ),
        last_event_id,
        unpack_watermarks([value for _, value in watermarks]),
    )


async def read_settings(tr: Transaction) -> SettingsBook:
    """Read the settings that are kept for roles."""
    rows = await _rows(tr, SETTINGS_PREFIX)
    kept = readable(rows, unpack_settings, lambda s: settings_key(s.role, s.version))
    return SettingsBook.of(kept, [key for key, _ in rows])


async def read_events(tr: Transaction, before_event_id: int, count: int) -> list[RoutingEventPb]:
    """Return at most `count` events, the newest first;
    older than `before_event_id` unless it is 0.
    """
    end = event_key(before_event_id) if before_event_id else prefix_end(EVENT_PREFIX)
    rows = await tr.get_range(EVENT_PREFIX, end, limit=count, reverse=True)
    return readable(rows, RoutingEventPb.FromString)


def event_records(event: RoutingEventPb, kept_count: int) -> list[Record]:
    """Return what to write for a new event, with which the one that is too many goes."""
    records: list[Record] = [
        (event_key(event.event_id), event.SerializeToString(deterministic=True))
    ]
    if event.event_id > kept_count:
        records.append((event_key(event.event_id - kept_count), None))
    return records


async def _rows(tr: Transaction, prefix: bytes) -> list[KeyValue]:
    begin, end = prefix, prefix_end(prefix)
    rows: list[KeyValue] = []
    while True:
        page = await tr.get_range(begin, end, limit=PAGE_COUNT)
        rows.extend(page)
        if len(page) < PAGE_COUNT:
            return rows
        begin = next_key(page[-1][0])


async def _all(
    tr: Transaction, prefix: bytes, unpack: Callable[[bytes], T], key_of: Callable[[T], bytes]
) -> list[T]:
    return [decoded(key, value, unpack, key_of) for key, value in await _rows(tr, prefix)]


async def _lease(tr: Transaction) -> LeaseRecord:
    value = await tr.get(LEASE_KEY)
    return LeaseRecord() if value is None else decoded(LEASE_KEY, value, unpack_lease)


def pack_lease(record: LeaseRecord) -> bytes:
    """Return the persisted form."""
    return record_pb2.PrimaryLeaseRecordPb(
        node_id=record.node_id,
        address=record.address,
        incarnation=record.incarnation,
        start_ns=record.start_ns,
        end_ns=record.end_ns,
        epoch=record.epoch,
    ).SerializeToString(deterministic=True)


def unpack_lease(value: bytes | None) -> LeaseRecord:
    """Inverse of `pack_lease`; the record of nobody when it was never written."""
    if value is None:
        return LeaseRecord()
    pb = record_pb2.PrimaryLeaseRecordPb.FromString(value)
    return LeaseRecord(
        NodeId(pb.node_id), pb.address, pb.incarnation, pb.start_ns, pb.end_ns, pb.epoch
    )


def _pack_node(node: Node) -> bytes:
    return record_pb2.NodeRecordPb(node=node_to_pb(node)).SerializeToString(deterministic=True)


def _unpack_node(value: bytes) -> Node:
    return node_from_pb(record_pb2.NodeRecordPb.FromString(value).node)


def _pack_target(target: Target) -> bytes:
    pb = target_to_pb(target)
    pb.local_state = common_pb2.LOCAL_NONE  # soft: heard again from its node
    for soft in ("used_bytes", "low_space", "resync", "is_slow", "trouble", "has_old_image"):
        pb.ClearField(soft)
    return record_pb2.TargetRecordPb(target=pb).SerializeToString(deterministic=True)


def _unpack_target(value: bytes) -> Target:
    target = target_from_pb(record_pb2.TargetRecordPb.FromString(value).target)
    if target.local_state is not LocalState.OFFLINE:
        raise ValueError(f"{target}: that is heard from its node, and never stored")
    return target


def _pack_chain(chain: Chain) -> bytes:
    return record_pb2.ChainRecordPb(chain=chain_to_pb(chain)).SerializeToString(deterministic=True)


def _unpack_chain(value: bytes) -> Chain:
    return chain_from_pb(record_pb2.ChainRecordPb.FromString(value).chain)


def _pack_table(table: ChainTable) -> bytes:
    return common_pb2.ChainTablePb(
        table_id=table.table_id, table_version=table.table_version, chain_ids=table.chain_ids
    ).SerializeToString(deterministic=True)


def _unpack_table(value: bytes) -> ChainTable:
    pb = common_pb2.ChainTablePb.FromString(value)
    chain_ids: Iterable[int] = pb.chain_ids
    return ChainTable(
        ChainTableId(pb.table_id), pb.table_version, tuple(ChainId(c) for c in chain_ids)
    )
