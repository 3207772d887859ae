"""The remote engine beyond the contract: outcomes over a broken way, bounded memory,
hostile requests.
"""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import random

import pytest
import trio
from google.protobuf.message import DecodeError

from fs.kv import remote_server
from fs.kv.api import KEY_BYTES_MAX, TRANSACTION_AGE_S_MAX, VALUE_BYTES_MAX
from fs.kv.buffer import WriteBuffer
from fs.kv.memory import MemoryEngine
from fs.kv.remote_server import (
    SNAPSHOT_AGE_S_MAX,
)
from fs.kv.remote_wire import KEYS_PER_READ_MAX, pack_commit, unpack_commit
from fs.kv.transact import snapshot_read, transact
from fs.rpc.transport_memory import DelayRange
from fs.runtime.real import RealClock
from fs.schema.proto import kv_pb2
from fs.schema.services import KV_COMMIT, KV_READ
from fs.schema.status import FsError, Status
from tests.kv.harness import Served, inline_runtime, int_value


@pytest.fixture
async def served(nursery):
    made = Served(MemoryEngine(RealClock()))
    await made.start(nursery)
    yield made
    made.kill()


async def expect(status: Status, awaitable) -> FsError:
    with pytest.raises(FsError) as caught:
        await awaitable
    assert caught.value.status is status, caught.value
    return caught.value


async def put(engine, **pairs: bytes) -> None:
    tr = engine.transaction()
    for key, value in pairs.items():
        tr.set(key.encode(), value)
    await tr.commit()


# ---- round trips -------------------------------------------------------------------------------


async def test_a_commit_of_blind_writes_is_one_round_trip(autojump_clock, served):
    async with served.client() as engine:
        await put(engine, a=b"1")  # connects
        served.network.delay = DelayRange(1.0, 1.0)
        began_s = trio.current_time()
        await put(engine, a=b"2")
        assert trio.current_time() - began_s == pytest.approx(2.0, abs=0.1)


async def test_a_read_only_transaction_costs_its_reads(autojump_clock, served):
    async with served.client() as engine:
        await put(engine, a=b"1")
        served.network.delay = DelayRange(1.0, 1.0)
        began_s = trio.current_time()
        tr = engine.transaction()
        assert await tr.get(b"a") == b"1"
        tr.set(b"own", b"2")
        assert await tr.get(b"own") == b"2"  # asks nobody
        tr.close()
        assert trio.current_time() - began_s == pytest.approx(2.0, abs=0.1)


async def test_many_keys_are_one_round_trip_per_64(autojump_clock, served):
    async with served.client() as engine:
        keys = [b"%03d" % i for i in range(130)]
        await put(engine, **{key.decode(): key for key in keys[::2]})
        served.network.delay = DelayRange(0.5, 0.5)
        began_s = trio.current_time()
        tr = engine.transaction()
        found = await tr.get_many(keys)
        assert trio.current_time() - began_s == pytest.approx(3.0, abs=0.1)
        assert found == [key if i % 2 == 0 else None for i, key in enumerate(keys)]


async def test_long_ranges_come_in_parts_that_fit(autojump_clock, served):
    async with served.client() as engine:
        expected = [b"k%03d" % i for i in range(250)]
        for part in range(0, 250, 50):
            tr = engine.transaction()
            for key in expected[part : part + 50]:
                tr.set(key, bytes(VALUE_BYTES_MAX if part < 150 else 100))
            await tr.commit()
        for reverse in (False, True):
            for limit in (0, 130, 101):
                rows = await snapshot_read(
                    engine,
                    lambda tr, limit=limit, reverse=reverse: tr.get_range(
                        b"", b"\xff", limit=limit, reverse=reverse
                    ),
                )
                wanted = expected[::-1] if reverse else expected
                assert [key for key, _ in rows] == (wanted[:limit] if limit else wanted)


# ---- outcomes ----------------------------------------------------------------------------------


async def test_nobody_there_is_definite(autojump_clock, served):
    async with served.client() as engine:
        await put(engine, a=b"1")
        served.kill()
        await trio.sleep(0.1)
        tr = engine.transaction()
        tr.set(b"a", b"2")
        error = await expect(Status.KV_UNREACHABLE, tr.commit())
        assert error.definite
        await expect(Status.KV_UNREACHABLE, engine.transaction().get(b"a"))
    assert served.engine.dump() == {b"a": b"1"}


@pytest.mark.parametrize("moment_s", [0.5, 1.5])
async def test_a_way_cut_during_commit_leaves_the_outcome_unknown(autojump_clock, served, moment_s):
    """Cut while the request travels: it did not happen; while the reply does: it did.

    Nobody here can tell.
    """
    async with served.client("user") as engine:
        await put(engine, a=b"1")
        served.network.delay = DelayRange(1.0, 1.0)
        tr = engine.transaction()
        tr.set(b"a", b"2")

        async def cut() -> None:
            await trio.sleep(moment_s)
            served.network.reset("user", "kv")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            error = await expect(Status.KV_COMMIT_UNKNOWN, tr.commit())
        assert not error.definite
        assert served.engine.dump()[b"a"] == (b"1" if moment_s < 1 else b"2")


async def test_a_way_cut_during_a_read_is_only_a_retry(autojump_clock, served):
    async with served.client("user") as engine:
        await put(engine, a=b"1")
        served.network.delay = DelayRange(1.0, 1.0)

        async def cut() -> None:
            await trio.sleep(1.5)
            served.network.reset("user", "kv")
            served.network.delay = DelayRange()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            await expect(Status.KV_UNAVAILABLE, engine.transaction().get(b"a"))
        assert await snapshot_read(engine, lambda tr: tr.get(b"a")) == b"1"


async def test_silence_ends_with_the_deadline(autojump_clock, served):
    async with served.client("user") as engine:
        await put(engine, a=b"1")
        served.network.block("user", "kv")
        began_s = trio.current_time()
        tr = engine.transaction()
        tr.set(b"a", b"2")
        await expect(Status.KV_COMMIT_UNKNOWN, tr.commit())
        assert trio.current_time() - began_s == pytest.approx(TRANSACTION_AGE_S_MAX, abs=0.1)


async def test_a_snapshot_does_not_outlive_its_server(autojump_clock, served, nursery):
    """Versions go on after a restart, so only the epoch tells an old snapshot from a new one."""
    async with served.client() as engine:
        await put(engine, a=b"1")
        reader, writer, blind = (engine.transaction() for _ in range(3))
        for tr in (reader, writer):
            assert await tr.get(b"a") == b"1"
        writer.set(b"b", b"1")
        blind.set(b"c", b"1")
        served.kill()
        await trio.sleep(0.1)
        await served.start(nursery)
        await expect(Status.KV_TOO_OLD, reader.get(b"a"))
        await expect(Status.KV_TOO_OLD, writer.commit())
        await blind.commit()
        assert served.engine.dump() == {b"a": b"1", b"c": b"1"}

        async def again(tr):
            tr.set(b"b", await tr.get(b"a"))

        await transact(engine, again, runtime=inline_runtime())


async def test_sync_outlasts_a_restart(autojump_clock, served, nursery):
    async with served.client() as engine:
        await put(engine, a=b"1")
        served.kill()
        async with trio.open_nursery() as waiting:
            waiting.start_soon(engine.sync)
            await trio.sleep(3)
            await served.start(nursery)
        assert served.engine.synced_version == 1


async def test_sync_gives_up(autojump_clock, served):
    async with served.client() as engine:
        served.kill()
        began_s = trio.current_time()
        await expect(Status.KV_UNREACHABLE, engine.sync())
        assert 9 < trio.current_time() - began_s < 15
        await engine.aclose()  # does not hang and does not fail


async def test_a_machine_that_started_anew_may_have_lost_commits(autojump_clock, served, nursery):
    async with served.client() as engine:
        await put(engine, a=b"1")
        served.kill()
        served.engine.power_loss(random.Random(1))
        served.boot += 1
        await served.start(nursery)
        await expect(Status.IO_ERROR, engine.sync())
        await expect(Status.IO_ERROR, engine.run())  # which ends the process
        await expect(Status.IO_ERROR, put(engine, a=b"2"))
    async with served.client() as engine:
        await put(engine, a=b"3")


async def test_explicit_conflicts_count_from_before_the_first_read(autojump_clock, served):
    async with served.client() as one, served.client() as two:
        await put(one, a=b"1")
        await put(two, k=b"1")
        tr = one.transaction()
        tr.add_read_conflict_key(b"k")
        await put(two, k=b"2")
        assert await tr.get(b"k") == b"2"
        tr.set(b"x", b"1")
        await expect(Status.KV_CONFLICT, tr.commit())


async def test_explicit_conflicts_of_a_stranger_succeed_at_the_second_try(autojump_clock, served):
    """A process that has never heard of the store knows no version; the first refusal tells it."""
    async with served.client() as one, served.client() as two:
        for _ in range(3):
            await put(one, k=b"1")

        async def body(tr):
            tr.add_read_conflict_key(b"k")
            tr.set(b"x", b"1")

        await transact(two, body, runtime=inline_runtime())
    assert served.engine.dump()[b"x"] == b"1"


# ---- bounded memory ----------------------------------------------------------------------------


async def test_ended_transactions_hold_nothing(autojump_clock, served):
    async with served.client() as engine:
        for i in range(300):
            tr = engine.transaction()
            await tr.get(b"a")
            if i % 3:
                tr.set(b"a", b"%d" % i)
                await tr.commit()
            tr.close()
        assert served.service.snapshot_count <= 1


async def test_abandoned_transactions_are_bounded_and_expire(autojump_clock, served, monkeypatch):
    snapshot_count_max = 200
    monkeypatch.setattr(remote_server, "SNAPSHOTS_PER_CLIENT_MAX", snapshot_count_max)
    async with served.client() as engine:
        abandoned = []
        for i in range(700):
            tr = engine.transaction()
            await tr.get(b"a")
            abandoned.append(tr)
            if i % 100 == 0:
                await put(engine, a=b"%d" % i)
        assert served.service.snapshot_count <= snapshot_count_max
        await expect(Status.KV_TOO_OLD, abandoned[0].get(b"a"))
        await abandoned[-1].get(b"a")
        await trio.sleep(SNAPSHOT_AGE_S_MAX + 2)
        assert served.service.snapshot_count == 0
        await put(engine, a=b"fine")


async def test_snapshots_go_with_their_connection(autojump_clock, served):
    async with served.client() as stays:
        kept = stays.transaction()
        await kept.get(b"a")
        async with served.client() as engine:
            abandoned = [engine.transaction() for _ in range(100)]
            for tr in abandoned:
                await tr.get(b"a")
            assert served.service.snapshot_count == 101
        await trio.sleep(1)
        assert served.service.snapshot_count == 1
        await kept.get(b"b")


# ---- what no honest peer sends -----------------------------------------------------------------


def commit_request(**fields) -> kv_pb2.KvCommitReq:
    return kv_pb2.KvCommitReq(**fields)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (commit_request(writes=[{"key": b"\xff/version", "value": b"9"}]), Status.RPC_BAD_REQUEST),
        (commit_request(writes=[{"key": b"\xff\xff"}]), Status.RPC_BAD_REQUEST),
        (commit_request(cleared=[{"begin": b"", "end": b"\xff\xff"}]), Status.RPC_BAD_REQUEST),
        (commit_request(cleared=[{"begin": b"\xff/", "end": b"\xff0"}]), Status.RPC_BAD_REQUEST),
        (commit_request(stamped_keys=[{"prefix": b"\xff/"}]), Status.RPC_BAD_REQUEST),
        (commit_request(conflict_keys=[b"\xff/version"]), Status.RPC_BAD_REQUEST),
        (commit_request(has_read=True, read_keys=[b"\xff"]), Status.RPC_BAD_REQUEST),
        (commit_request(read_keys=[b"a"], conflict_keys=[b"a"]), Status.RPC_BAD_REQUEST),
        (
            commit_request(writes=[{"key": b"a", "stamped": {}}, {"key": b"a", "added": 1}]),
            Status.RPC_BAD_REQUEST,
        ),
        (commit_request(writes=[{"key": b"k" * (KEY_BYTES_MAX + 1)}]), Status.KV_KEY_TOO_LARGE),
        (
            commit_request(writes=[{"key": b"k", "value": bytes(VALUE_BYTES_MAX + 1)}]),
            Status.KV_VALUE_TOO_LARGE,
        ),
        (
            commit_request(writes=[{"key": b"%d" % i, "value": bytes(99_999)} for i in range(101)]),
            Status.KV_TRANSACTION_TOO_LARGE,
        ),
        (commit_request(has_read=True, epoch=1, conflict_keys=[b"a"]), Status.KV_TOO_OLD),
    ],
)
async def test_hostile_commits_are_refused(autojump_clock, served, request_, status):
    async with served.client() as engine:
        reply = await engine.call(KV_COMMIT, request_, Status.KV_COMMIT_UNKNOWN)
        assert reply.status == status, reply
        assert served.engine.dump() == {}


async def test_a_commit_from_the_future_is_refused(autojump_clock, served):
    async with served.client() as engine:
        await put(engine, a=b"1")
        request = commit_request(
            has_read=True, epoch=engine.store.epoch, read_version=2**60, conflict_keys=[b"a"]
        )
        reply = await engine.call(KV_COMMIT, request, Status.KV_COMMIT_UNKNOWN)
        assert reply.status == Status.RPC_BAD_REQUEST


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (kv_pb2.KvReadReq(is_first=True, ended_ids=range(5000)), Status.RPC_BAD_REQUEST),
        (kv_pb2.KvReadReq(transaction_id=5, keys=[b"a"]), Status.KV_TOO_OLD),
        (kv_pb2.KvReadReq(is_first=True, keys=[b"\xff/format"]), Status.RPC_BAD_REQUEST),
        (
            kv_pb2.KvReadReq(is_first=True, keys=[b"k" * (KEY_BYTES_MAX + 1)]),
            Status.KV_KEY_TOO_LARGE,
        ),
        (
            kv_pb2.KvReadReq(is_first=True, keys=[b"a"] * (KEYS_PER_READ_MAX + 1)),
            Status.RPC_BAD_REQUEST,
        ),
        (
            kv_pb2.KvReadReq(
                is_first=True, scan=kv_pb2.KvScanPb(range={"begin": b"", "end": b"\xff\xff"})
            ),
            Status.RPC_BAD_REQUEST,
        ),
    ],
)
async def test_hostile_reads_are_refused(autojump_clock, served, request_, status):
    async with served.client() as engine:
        await expect(status, engine.call(KV_READ, request_, Status.KV_UNAVAILABLE))
        await put(engine, a=b"1")


async def test_beginning_twice_is_refused(autojump_clock, served):
    async with served.client() as engine:
        request = kv_pb2.KvReadReq(transaction_id=1 << 40, is_first=True)
        await engine.call(KV_READ, request, Status.KV_UNAVAILABLE)
        await expect(Status.RPC_BAD_REQUEST, engine.call(KV_READ, request, Status.KV_UNAVAILABLE))


async def test_backward_and_empty_ranges_are_empty(autojump_clock, served):
    async with served.client() as engine:
        await put(engine, a=b"1")
        for number, (begin, end) in enumerate([(b"z", b"a"), (b"", b""), (b"\xff", b"\xff")]):
            scan = kv_pb2.KvScanPb(range={"begin": begin, "end": end})
            request = kv_pb2.KvReadReq(transaction_id=1000 + number, is_first=True, scan=scan)
            reply = await engine.call(KV_READ, request, Status.KV_UNAVAILABLE)
            assert not reply.rows
            assert not reply.has_more


def mutated(message: bytes, source: random.Random) -> bytes:
    data = bytearray(message)
    for _ in range(source.randint(1, 2)):
        at = source.randrange(len(data))
        match source.randrange(8):
            case 0 | 1 | 2 | 3 | 4 | 5:
                data[at] ^= 1 << source.randrange(8)
            case 6:
                del data[at:]
            case _:
                data[at:at] = source.randbytes(source.randint(1, 5))
        data = data or bytearray(b"\0")
    return bytes(data)


async def test_mutated_requests_never_end_in_a_bug(autojump_clock, served):
    """2,000 damaged messages: each is refused or carried out;
    none touches reserved keys or raises anything else.
    """
    buffer = WriteBuffer()
    buffer.clear_range(b"c", b"d")
    buffer.set(b"a", b"1")
    buffer.atomic_add(b"n", 3)
    buffer.set_versionstamped_value(b"s", b"<", b">")
    buffer.set_versionstamped_key(b"log/", b"", b"x")
    buffer.add_write_conflict_key(b"w")
    commit = pack_commit(buffer).SerializeToString()
    scan = kv_pb2.KvScanPb(range={"begin": b"a", "end": b"z"}, row_count_max=3)
    read = kv_pb2.KvReadReq(transaction_id=1, is_first=True, keys=[b"a", b"b"], scan=scan)
    source = random.Random(11)
    call = _Call()
    outcomes = {True: 0, False: 0}
    for _ in range(2000):
        try:
            if source.random() < 0.5:
                request = kv_pb2.KvCommitReq.FromString(mutated(commit, source))
                reply = await served.service.commit(call, request)
                outcomes[not reply.status] += 1
            else:
                request = kv_pb2.KvReadReq.FromString(mutated(read.SerializeToString(), source))
                await served.service.read(call, request)
                outcomes[True] += 1
        except FsError:
            outcomes[False] += 1
        except DecodeError:
            continue  # the server refuses it before the service sees it
    assert min(outcomes.values()) > 100
    assert all(key < b"\xff" for key in served.engine.dump())


class _Call:
    class peer:  # noqa: N801 - stands for Call.peer
        client_id = "hostile"


# ---- the wire ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_buffer_survives_the_wire(seed):
    source = random.Random(seed)
    buffer = WriteBuffer()
    for _ in range(30):
        key = b"%02d" % source.randrange(40)
        match source.randrange(9):
            case 0 | 1:
                buffer.set(key, source.randbytes(4))
            case 2:
                buffer.clear(key)
            case 3:
                buffer.clear_range(key, key + b"~" * source.randint(0, 2))
            case 4:
                if key not in buffer.points:
                    buffer.atomic_add(key, source.choice([-(2**63), 2**63 - 1, 5]))
            case 5:
                buffer.set_versionstamped_value(b"s" + key, b"<", b">")
            case 6:
                buffer.set_versionstamped_key(key, b"/", b"v")
            case 7:
                buffer.add_write_conflict_key(key)
            case _:
                buffer.add_read_key(key)
                buffer.add_read_range(key, key + b"z")
    request = kv_pb2.KvCommitReq.FromString(pack_commit(buffer).SerializeToString())
    other = unpack_commit(request)
    stamp, store = b"0123456789", {b"%02d" % i: bytes(8) for i in range(0, 40, 3)}
    assert other.mutations(stamp, store.get) == buffer.mutations(stamp, store.get)
    assert other.read_keys == buffer.read_keys
    assert other.read_ranges == buffer.read_ranges


async def test_what_frees_space_and_what_troubles_the_store_is_told(
    autojump_clock, served, monkeypatch
):
    buffer = WriteBuffer()
    buffer.is_freeing = True
    assert unpack_commit(pack_commit(buffer)).mutations(bytes(10), lambda _: None).is_freeing
    async with served.client() as engine:
        await put(engine, a=b"1")
        assert not engine.trouble
        monkeypatch.setattr(type(served.engine), "trouble", "full")
        assert await engine.transaction().get(b"a") == b"1"
        assert engine.trouble == "full"
        monkeypatch.undo()
        assert await engine.transaction().get(b"a") == b"1"
        assert not engine.trouble, "also where no commit has come between"


def test_adds_that_left_64_bits_wrap_as_they_would_here():
    buffer = WriteBuffer()
    for _ in range(3):
        buffer.atomic_add(b"n", 2**63 - 1)
    other = unpack_commit(pack_commit(buffer))
    assert not other.is_freeing
    expected = buffer.mutations(bytes(10), lambda _: None)
    assert other.mutations(bytes(10), lambda _: None) == expected
    assert int_value(expected.points[0][1]) == 2**63 - 3
