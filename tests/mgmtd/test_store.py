"""The manager's key map, byte for byte, and loading what was written."""
# ruff: noqa: ARG001 - a test that waits names the clock it wants

import random
from dataclasses import replace

import pytest

from fs.kv.memory import MemoryEngine
from fs.mgmtd.host_tags import HOST_PREFIX
from fs.mgmtd.lease import Candidate, LeaseRecord
from fs.mgmtd.move_book import Drain, Move, MoveBook, MoveId, MoveReason
from fs.mgmtd.settings_book import settings_key
from fs.mgmtd.store import (
    BOOK_KEY,
    FORMAT_KEY,
    LEASE_KEY,
    ROUTING_VERSION_KEY,
    BookChange,
    Change,
    Store,
    chain_key,
    drain_key,
    event_key,
    move_key,
    node_key,
    pack_lease,
    table_key,
    target_key,
    unpack_lease,
)
from fs.mgmtd.user_book import pack_user, token_key, user_key
from fs.mgmtd.watermarks import watermark_key
from fs.runtime.ports import Runtime
from fs.runtime.simulated import SimulatedClock, run_inline
from fs.schema.config import KvSection
from fs.schema.ids import ChainId, ChainTableId, NodeId, TargetId
from fs.schema.proto import common_pb2, record_pb2
from fs.schema.proto.mgmtd_pb2 import TokenPb, UserPb
from fs.schema.routing import (
    Chain,
    ChainTable,
    ChainTarget,
    LocalState,
    Node,
    PublicState,
    Role,
    Target,
)
from fs.schema.status import FsError, Status

ME = Candidate(NodeId(1), "tcp:h:1", "one")
LEASE = LeaseRecord(NodeId(1), "tcp:h:1", "one", 1, 2, 3)
NODE = Node(NodeId(7), frozenset({Role.STORAGE}), "tcp:h:7", "seven", tags={"rack": "a"})
TARGET = Target(TargetId(71), ChainId(5), NodeId(7), 2, LocalState.UPTODATE, 99, True)
CHAIN = Chain(ChainId(5), 4, (ChainTarget(TargetId(71), PublicState.LASTSRV),), (TargetId(71),))
TABLE = ChainTable(ChainTableId(1), 2, (ChainId(5),))
MOVE = Move(MoveId(3), ChainId(5), TargetId(71), TargetId(90), NodeId(7), 2, MoveReason.DRAIN)
DRAINS = frozenset({Drain(NodeId(7)), Drain(NodeId(8), 0)})
BOOK = MoveBook({MoveId(3): MOVE}, DRAINS, 4, 91, is_rebalancing=True)
CHANGE = Change(
    {7: NODE},
    {71: TARGET},
    {5: CHAIN},
    {(1, 2): TABLE},
    book=BookChange(MoveBook(), BOOK),
)


def test_keys_byte_for_byte():
    assert FORMAT_KEY == b"MGFM"
    assert LEASE_KEY == b"MGLS"
    assert ROUTING_VERSION_KEY == b"MGRV"
    assert node_key(NodeId(0x01020304)) == b"MGND\x01\x02\x03\x04"
    assert target_key(TargetId(0x0102030405060708)) == b"MGTG\x01\x02\x03\x04\x05\x06\x07\x08"
    assert chain_key(ChainId(258)) == b"MGCH\x00\x00\x01\x02"
    assert BOOK_KEY == b"MGMB"
    assert move_key(MoveId(258)) == b"MGMV\x00\x00\x00\x00\x00\x00\x01\x02"
    assert drain_key(Drain(NodeId(1))) == b"MGDR\x00\x00\x00\x01\x00\x00\x00\x00"
    assert drain_key(Drain(NodeId(1), 0)) == b"MGDR\x00\x00\x00\x01\x00\x00\x00\x01"
    assert table_key(ChainTableId(1), 2) == b"MGCT\x00\x00\x00\x01\x00\x00\x00\x02"


def test_values_byte_for_byte():
    assert pack_lease(LEASE).hex() == (
        "08011207" + b"tcp:h:1".hex() + "1a03" + b"one".hex()
        + "210100000000000000" + "290200000000000000" + "3003"
    )  # fmt: skip
    assert unpack_lease(pack_lease(LEASE)) == LEASE
    assert unpack_lease(None) == LeaseRecord()
    pairs = dict(CHANGE.records())
    assert pairs[chain_key(ChainId(5))].hex() == "0a0d080510041a0408471002220147"
    assert pairs[table_key(ChainTableId(1), 2)].hex() == "080110021a0105"
    assert pairs[target_key(TargetId(71))].hex() == "0a080847100518072002"
    assert pairs[move_key(MoveId(3))].hex() == "0a1008031005184720" + "5a28073002380240" + "01"
    assert pairs[drain_key(Drain(NodeId(8), 0))].hex() == "0a0408081001"
    assert pairs[BOOK_KEY].hex() == "0804105b1801"


async def store_with_lease(engine=None, cluster_id="test"):
    clock = SimulatedClock()
    engine = engine or MemoryEngine(clock)
    runtime = Runtime(clock, None, run_inline, random.Random(1))
    store = Store(engine, runtime, KvSection(), cluster_id)
    await store.elect(lambda _: LEASE)
    return engine, store


async def test_what_was_written_is_loaded(autojump_clock, store_engine):
    _, store = await store_with_lease(store_engine)
    await store.write(ME, 3, 17, CHANGE.records())
    loaded = await store.load()
    info = loaded.info
    assert loaded.book == BOOK
    assert info.routing_version == 17
    assert info.cluster_id == "test"
    assert info.is_bootstrapping
    assert info.nodes == {7: NODE}
    assert info.targets == {71: Target(TargetId(71), ChainId(5), NodeId(7), 2)}  # no soft state
    assert info.chains == {5: CHAIN}
    assert info.chain_tables == {(1, 2): TABLE}
    assert bool(CHANGE)
    assert not Change()


async def test_what_is_gone_is_not_loaded(autojump_clock, store_engine):
    _, store = await store_with_lease(store_engine)
    await store.write(ME, 3, 17, CHANGE.records())
    change = Change(
        removed_nodes=frozenset({NodeId(7)}),
        removed_targets=frozenset({TargetId(71)}),
        book=BookChange(BOOK, MoveBook(next_move_id=4)),
    )
    assert change
    await store.write(ME, 3, 18, change.records())
    loaded = await store.load()
    assert (loaded.info.nodes, loaded.info.targets) == ({}, {})
    assert loaded.book == MoveBook(next_move_id=4)


async def test_more_records_than_one_page_are_loaded(autojump_clock, store_engine):
    _, store = await store_with_lease(store_engine)
    targets = {TargetId(t): Target(TargetId(t), ChainId(0), NodeId(1), 0) for t in range(1, 2501)}
    await store.write(ME, 3, 1, Change(targets=targets).records())
    assert list((await store.load()).info.targets.values()) == list(targets.values())


async def test_the_store_of_another_cluster_is_refused(autojump_clock, store_engine):
    engine, store = await store_with_lease(store_engine)
    await store.load()
    _, other = await store_with_lease(engine, "another")
    with pytest.raises(FsError) as caught:
        await other.load()
    assert caught.value.status is Status.KV_BAD_FORMAT
    assert "another" in caught.value.detail


async def test_a_power_loss_takes_back_nothing_that_was_written(autojump_clock):
    """Nodes and chunks remember version numbers:
    one that was given away names one content for ever.
    """
    engine, store = await store_with_lease()
    await store.load()
    await store.write(ME, 3, 17, CHANGE.records())
    assert engine.synced_version == engine.version
    await store.elect(lambda record: replace(record, epoch=4))
    assert engine.synced_version == engine.version


async def damage(engine, values: dict[bytes, bytes]) -> None:
    tr = engine.transaction()
    for key, value in values.items():
        tr.set(key, value)
    await tr.commit()


NO_ROLE = record_pb2.NodeRecordPb()
NO_ROLE.node.node_id = 7
NO_ROLE.node.roles.append(99)
HEARD = record_pb2.TargetRecordPb()
HEARD.target.target_id = 71
HEARD.target.local_state = common_pb2.ONLINE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (node_key(NodeId(7)), NO_ROLE.SerializeToString()),
        (target_key(TargetId(71)), HEARD.SerializeToString()),
    ],
)
async def test_what_a_record_cannot_say_is_damage_too(autojump_clock, key, value):
    """It was a bad request, and a bug, of a manager that read it."""
    engine, store = await store_with_lease()
    await store.write(ME, 3, 17, CHANGE.records())
    await damage(engine, {key: value})
    with pytest.raises(FsError) as caught:
        await store.load()
    assert caught.value.status is Status.KV_DAMAGED
    assert repr(key) in caught.value.detail


@pytest.mark.parametrize("value", [None, b"", b"\0" * 7, b"\xff" * 8])
async def test_a_routing_version_never_goes_back_by_damage(autojump_clock, value):
    """Nodes and mounts heed only later ones than they know; behind the last one there is none."""
    engine, store = await store_with_lease()
    await store.write(ME, 3, 17, CHANGE.records())
    tr = engine.transaction()
    if value is None:
        tr.clear(ROUTING_VERSION_KEY)
    else:
        tr.set(ROUTING_VERSION_KEY, value)
    await tr.commit()
    with pytest.raises(FsError, match=r"KV_DAMAGED.*MGRV"):
        await store.load()


async def test_an_emptied_record_of_settings_is_damaged(autojump_clock):
    engine, store = await store_with_lease()
    await damage(engine, {settings_key(2, 4): b""})
    assert (await store.load()).settings.lost == {2: 4}


@pytest.mark.parametrize("value", [b"\xff", b""])
@pytest.mark.parametrize(
    "key",
    [
        node_key(NodeId(7)),
        target_key(TargetId(71)),
        chain_key(ChainId(5)),
        table_key(ChainTableId(1), 2),
        move_key(MoveId(3)),
        drain_key(Drain(NodeId(7))),
        watermark_key(TargetId(71)),
    ],
)
async def test_a_damaged_record_that_is_needed_is_named(autojump_clock, key, value):
    """The manager ended with an error of decoding, which names nothing, again and again."""
    engine, store = await store_with_lease()
    await store.write(ME, 3, 17, CHANGE.records())
    await damage(engine, {key: value})
    with pytest.raises(FsError) as caught:
        await store.load()
    assert caught.value.status is Status.KV_DAMAGED
    assert repr(key) in caught.value.detail


async def test_a_damaged_lease_is_named(autojump_clock):
    engine, store = await store_with_lease()
    await damage(engine, {LEASE_KEY: b"\xff"})
    with pytest.raises(FsError, match=r"KV_DAMAGED.*MGLS"):
        await store.elect(lambda _: LEASE)


async def test_a_manager_does_without_damaged_users_tags_settings_and_history(
    autojump_clock, caplog
):
    engine, store = await store_with_lease()
    await store.write(ME, 3, 17, CHANGE.records())
    users = [UserPb(uid=uid, tokens=[TokenPb(token_id=b"%d" % uid)]) for uid in (5, 6)]
    host = record_pb2.HostTagsRecordPb()
    host.host.host_name = "h"
    await damage(engine, {
        user_key(5): pack_user(users[0]),
        user_key(6): b"\xff",
        token_key(b"5"): (5).to_bytes(4, "big"),
        token_key(b"6"): (6).to_bytes(4, "big"),
        HOST_PREFIX + b"h": host.SerializeToString(),
        HOST_PREFIX + b"i": b"\xff",
        settings_key(1, 1): b"\xff",
        event_key(9): b"\xff",
    })  # fmt: skip
    loaded = await store.load()
    assert list(loaded.users.users) == [5]
    assert set(loaded.host_tags.hosts) == {"h"}
    assert not loaded.settings.versions
    assert loaded.last_event_id == 9 and await store.events(0, 5) == []
    assert [user.uid for user in await store.find_tokens([b"5", b"6"])] == [5, 0]
    told = [record.getMessage() for record in caplog.records]
    assert all(any(repr(key) in line for line in told) for key in (user_key(6), settings_key(1, 1)))
