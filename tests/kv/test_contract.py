"""What every engine promises (fs/kv/api.py), one test per promise."""
# ruff: noqa: ARG001 - a test that sleeps names the clock it wants

import random

import pytest
import trio

from fs.kv.api import (
    KEY_BYTES_MAX,
    TRANSACTION_AGE_S_MAX,
    VALUE_BYTES_MAX,
    VERSIONSTAMP_BYTES,
    next_key,
    prefix_end,
)
from fs.kv.faulty import CommitFault, Fate, FaultyEngine, ScriptedFaults
from fs.kv.transact import snapshot_read, transact, transact_stamped
from fs.schema.status import FsError, Status
from tests.kv.harness import int_value


async def put(engine, **pairs: bytes) -> None:
    tr = engine.transaction()
    for key, value in pairs.items():
        tr.set(key.encode(), value)
    await tr.commit()


async def read(engine, key: bytes) -> bytes | None:
    return await snapshot_read(engine, lambda tr: tr.get(key))


async def rows(engine, begin: bytes = b"", end: bytes = b"\xff", **options):
    return await snapshot_read(engine, lambda tr: tr.get_range(begin, end, **options))


async def assert_conflict(tr) -> None:
    with pytest.raises(FsError) as caught:
        await tr.commit()
    assert caught.value.status is Status.KV_CONFLICT
    assert caught.value.definite


async def test_reads_are_of_one_snapshot(lab):
    await put(lab.engine, a=b"1", b=b"1")
    tr = lab.engine.transaction()
    assert await tr.get(b"a") == b"1"
    await put(lab.engine, a=b"2", b=b"2", c=b"2")
    assert await tr.get(b"b") == b"1"
    assert await tr.get_range(b"a", b"z") == [(b"a", b"1"), (b"b", b"1")]
    assert await rows(lab.engine) == [(b"a", b"2"), (b"b", b"2"), (b"c", b"2")]
    tr.close()


async def test_snapshot_is_taken_at_the_first_read(lab):
    tr = lab.engine.transaction()
    await put(lab.engine, a=b"1")
    assert await tr.get(b"a") == b"1"
    tr.close()


async def test_read_key_written_meanwhile_conflicts(lab):
    await put(lab.engine, a=b"1")
    tr = lab.engine.transaction()
    await tr.get(b"a")
    tr.set(b"b", b"x")
    await put(lab.engine, a=b"2")
    await assert_conflict(tr)
    assert await read(lab.engine, b"b") is None


@pytest.mark.parametrize("change", ["set", "clear", "clear_range", "add", "stamp", "explicit"])
async def test_every_kind_of_write_conflicts_with_a_reader(lab, change):
    await put(lab.engine, k=bytes(8))
    tr = lab.engine.transaction()
    await tr.get(b"k")
    tr.set(b"other", b"x")
    writer = lab.engine.transaction()
    if change == "set":
        writer.set(b"k", b"1")
    elif change == "clear":
        writer.clear(b"k")
    elif change == "clear_range":
        writer.clear_range(b"j", b"l")
    elif change == "add":
        writer.atomic_add(b"k", 1)
    elif change == "stamp":
        writer.set_versionstamped_value(b"k", b"")
    else:
        writer.add_write_conflict_key(b"k")
    await writer.commit()
    await assert_conflict(tr)


async def test_unrelated_write_does_not_conflict(lab):
    tr = lab.engine.transaction()
    await tr.get(b"a")
    await tr.get_range(b"c", b"e")
    tr.set(b"x", b"1")
    await put(lab.engine, b=b"2", e=b"2", z=b"3")
    assert await tr.commit() is not None


async def test_write_skew_is_refused(lab):
    await put(lab.engine, a=b"on", b=b"on")
    first, second = lab.engine.transaction(), lab.engine.transaction()
    for tr, key in ((first, b"a"), (second, b"b")):
        assert await tr.get(b"a") == b"on"
        assert await tr.get(b"b") == b"on"
        tr.set(key, b"off")
    await first.commit()
    await assert_conflict(second)


async def test_phantom_is_refused(lab):
    tr = lab.engine.transaction()
    assert await tr.get_range(b"d/", b"d0") == []
    tr.set(b"empty", b"yes")
    await put(lab.engine, **{"d/x": b"1"})
    await assert_conflict(tr)


async def test_absent_key_that_appears_conflicts(lab):
    tr = lab.engine.transaction()
    assert await tr.get(b"a") is None
    tr.set(b"b", b"1")
    await put(lab.engine, a=b"1")
    await assert_conflict(tr)


async def test_blind_writes_never_conflict(lab):
    first, second = lab.engine.transaction(), lab.engine.transaction()
    first.set(b"a", b"1")
    second.set(b"a", b"2")
    await second.commit()
    await first.commit()
    assert await read(lab.engine, b"a") == b"1"


async def test_snapshot_reads_do_not_conflict(lab):
    await put(lab.engine, a=b"1", b=b"1")
    tr = lab.engine.transaction()
    assert await tr.get(b"a", snapshot=True) == b"1"
    assert len(await tr.get_range(b"a", b"c", snapshot=True)) == 2
    tr.set(b"x", b"1")
    await put(lab.engine, a=b"2", b=b"2")
    await tr.commit()


async def test_many_keys_are_as_many_gets(lab):
    await put(lab.engine, a=b"1", b=b"1", n=bytes(8))
    tr = lab.engine.transaction()
    tr.set(b"own", b"2")
    tr.clear(b"b")
    tr.atomic_add(b"n", 3)
    await put(lab.engine, late=b"1")
    assert await tr.get_many([]) == []
    found = await tr.get_many([b"a", b"b", b"absent", b"own", b"n", b"a"])
    assert found == [b"1", None, None, b"2", (3).to_bytes(8, "little"), b"1"]
    assert await tr.get_many([b"a", b"snap"], snapshot=True) == [b"1", None]
    await put(lab.engine, snap=b"2")
    assert await tr.get_many([b"late", b"snap"], snapshot=True) == [b"1", None]
    unhurt = lab.engine.transaction()
    await unhurt.get_many([b"a"], snapshot=True)
    unhurt.set(b"x", b"1")
    await put(lab.engine, absent=b"2")
    await unhurt.commit()
    await assert_conflict(tr)


async def test_explicit_read_conflicts(lab):
    for add in (
        lambda tr: tr.add_read_conflict_key(b"k"),
        lambda tr: tr.add_read_conflict_range(b"j", b"l"),
    ):
        tr = lab.engine.transaction()
        add(tr)
        tr.set(b"x", b"1")
        await put(lab.engine, k=b"1")
        await assert_conflict(tr)


@pytest.mark.parametrize("reverse", [False, True])
async def test_limit_cut_range_conflicts_only_on_what_was_looked_at(lab, reverse):
    await put(lab.engine, a=b"1", b=b"1", c=b"1", d=b"1")
    seen = [b"d", b"c"] if reverse else [b"a", b"b"]

    async def attempt(changed: bytes):
        tr = lab.engine.transaction()
        found = await tr.get_range(b"a", b"z", limit=2, reverse=reverse)
        assert [key for key, _ in found] == seen
        tr.set(b"zz", b"1")
        writer = lab.engine.transaction()
        writer.set(changed, b"2")
        await writer.commit()
        return tr

    unseen = b"bb" if reverse else b"bbb"
    await (await attempt(unseen)).commit()
    writer = lab.engine.transaction()
    writer.clear(unseen)
    await writer.commit()
    inside = b"ca" if reverse else b"aa"
    await assert_conflict(await attempt(inside))
    writer = lab.engine.transaction()
    writer.clear(inside)
    await writer.commit()
    await assert_conflict(await attempt(seen[-1]))


async def test_ranges_in_both_directions(lab):
    expected = [(b"k%03d" % i, b"%d" % i) for i in range(50)]
    tr = lab.engine.transaction()
    for key, value in expected:
        tr.set(key, value)
    tr.set(b"j", b"before")
    tr.set(b"l", b"after")
    await tr.commit()
    assert await rows(lab.engine, b"k", b"l") == expected
    assert await rows(lab.engine, b"k", b"l", reverse=True) == expected[::-1]
    assert await rows(lab.engine, b"k", b"l", limit=7) == expected[:7]
    assert await rows(lab.engine, b"k", b"l", limit=7, reverse=True) == expected[:-8:-1]
    assert await rows(lab.engine, b"k010", b"k012") == expected[10:12]
    assert await rows(lab.engine, b"k010", b"k012", reverse=True) == expected[11:9:-1]
    assert await rows(lab.engine, b"k2", b"k1") == []
    assert await rows(lab.engine, b"k010", next_key(b"k010")) == expected[10:11]
    assert await rows(lab.engine, b"k01", prefix_end(b"k01")) == expected[10:20]


async def test_reads_see_own_writes(lab):
    await put(lab.engine, a=b"1", b=b"1", c=b"1", d=b"1")
    tr = lab.engine.transaction()
    tr.set(b"a", b"2")
    tr.clear(b"b")
    tr.set(b"bb", b"2")
    tr.clear_range(b"c", b"e")
    tr.set(b"d", b"3")
    assert await tr.get(b"a") == b"2"
    assert await tr.get(b"b") is None
    assert await tr.get(b"c") is None
    expected = [(b"a", b"2"), (b"bb", b"2"), (b"d", b"3")]
    assert await tr.get_range(b"", b"\xff") == expected
    assert await tr.get_range(b"", b"\xff", reverse=True, limit=2) == expected[:0:-1]
    await tr.commit()
    assert await rows(lab.engine) == expected


async def test_clear_range_of_many_rows(lab):
    tr = lab.engine.transaction()
    for i in range(1000):
        tr.set(b"k%04d" % i, b"x")
    await tr.commit()
    tr = lab.engine.transaction()
    tr.clear_range(b"k0100", b"k0900")
    tr.set(b"k0500", b"kept")
    await tr.commit()
    found = await rows(lab.engine)
    assert len(found) == 201
    assert (b"k0500", b"kept") in found


async def test_atomic_add_does_not_conflict_and_adds_up(lab):
    first, second = lab.engine.transaction(), lab.engine.transaction()
    first.atomic_add(b"n", 5)
    second.atomic_add(b"n", -7)
    second.atomic_add(b"n", 1)
    await second.commit()
    await first.commit()
    assert int_value(await read(lab.engine, b"n")) == -1


async def test_atomic_add_is_seen_and_mixes_with_sets(lab):
    tr = lab.engine.transaction()
    tr.atomic_add(b"n", 2)
    assert int_value(await tr.get(b"n")) == 2
    tr.set(b"m", (40).to_bytes(8, "little"))
    tr.atomic_add(b"m", 2)
    tr.clear(b"gone")
    tr.atomic_add(b"gone", 1)
    await tr.commit()
    assert [int_value(value) for _, value in await rows(lab.engine)] == [1, 42, 2]


async def test_atomic_max_does_not_conflict_and_keeps_the_larger(lab):
    def number(value: int) -> bytes:
        return value.to_bytes(8, "little")

    first, second, third = (lab.engine.transaction() for _ in range(3))
    first.atomic_max(b"n", number(700))
    second.atomic_max(b"n", number(3))
    second.atomic_max(b"n", number(1025))
    assert await second.get(b"n", snapshot=True) == number(1025)
    third.atomic_max(b"n", number(3))
    third.set(b"m", number(2)[:2])
    third.atomic_max(b"m", number(1))
    third.clear(b"gone")
    third.atomic_max(b"gone", number(5))
    for tr in (second, first, third):
        await tr.commit()
    assert [int_value(value) for _, value in await rows(lab.engine)] == [5, 2, 1025]
    reader = lab.engine.transaction()
    reader.atomic_max(b"n", number(1024))
    assert int_value(await reader.get(b"n")) == 1025
    assert [int_value(value) for _, value in await reader.get_range(b"m", b"o")] == [2, 1025]
    reader.close()


async def test_atomic_add_wraps_at_64_bits(lab):
    tr = lab.engine.transaction()
    tr.set(b"n", (2**63 - 1).to_bytes(8, "little"))
    tr.atomic_add(b"n", 1)
    await tr.commit()
    assert int_value(await read(lab.engine, b"n")) == -(2**63)


async def test_versionstamps_grow_strictly_also_across_reopening(lab):
    stamps = []
    for attempt in range(6):
        if attempt == 3:
            await lab.reopen()

        async def write(tr):
            tr.set_versionstamped_value(b"value", b"<", b">")
            tr.set_versionstamped_key(b"log/", b"/end", b"x")

        _, stamp = await transact_stamped(lab.engine, write, runtime=lab.runtime)
        assert stamp is not None
        assert len(stamp) == VERSIONSTAMP_BYTES
        stamps.append(stamp)
        assert await read(lab.engine, b"value") == b"<" + stamp + b">"
    assert stamps == sorted(set(stamps))
    assert [key for key, _ in await rows(lab.engine, b"log/", b"log0")] == [
        b"log/" + stamp + b"/end" for stamp in stamps
    ]


async def test_read_only_commit_is_free_and_never_conflicts(lab):
    await put(lab.engine, a=b"1")
    tr = lab.engine.transaction()
    await tr.get(b"a")
    await put(lab.engine, a=b"2")
    assert await tr.commit() is None


@pytest.mark.parametrize(
    ("act", "status"),
    [
        (lambda tr: tr.clear_range(b"a", b"k" * (KEY_BYTES_MAX + 2)), Status.KV_KEY_TOO_LARGE),
        (lambda tr: tr.set(b"k" * (KEY_BYTES_MAX + 1), b""), Status.KV_KEY_TOO_LARGE),
        (lambda tr: tr.clear(b"k" * (KEY_BYTES_MAX + 1)), Status.KV_KEY_TOO_LARGE),
        (lambda tr: tr.set(b"k", bytes(VALUE_BYTES_MAX + 1)), Status.KV_VALUE_TOO_LARGE),
        (
            lambda tr: tr.set_versionstamped_value(b"k", bytes(VALUE_BYTES_MAX)),
            Status.KV_VALUE_TOO_LARGE,
        ),
        (
            lambda tr: [tr.set(b"%03d" % i, bytes(VALUE_BYTES_MAX)) for i in range(101)],
            Status.KV_TRANSACTION_TOO_LARGE,
        ),
    ],
)
async def test_limits_are_definite_errors(lab, act, status):
    tr = lab.engine.transaction()
    with pytest.raises(FsError) as caught:
        act(tr)
    assert caught.value.status is status
    assert caught.value.definite
    tr.close()
    assert await rows(lab.engine) == []


async def test_largest_key_and_value_are_accepted(lab):
    key, value = b"k" * KEY_BYTES_MAX, bytes(VALUE_BYTES_MAX)
    tr = lab.engine.transaction()
    tr.set(key, value)
    await tr.commit()
    assert await rows(lab.engine) == [(key, value)]


async def test_old_transaction_is_refused(lab, autojump_clock):
    await put(lab.engine, a=b"1")
    reader, writer = lab.engine.transaction(), lab.engine.transaction()
    for tr in (reader, writer):
        await tr.get(b"a")
    writer.set(b"b", b"1")
    await trio.sleep(TRANSACTION_AGE_S_MAX + 0.1)
    for act in (reader.get(b"b"), writer.commit()):
        with pytest.raises(FsError) as caught:
            await act
        assert caught.value.status is Status.KV_TOO_OLD
    assert await read(lab.engine, b"b") is None


async def test_young_transaction_survives_many_other_commits(lab, autojump_clock):
    await put(lab.engine, mine=b"1")
    tr = lab.engine.transaction()
    assert await tr.get(b"mine") == b"1"
    for i in range(45):
        await put(lab.engine, mine=b"%d" % i, mine2=b"%d" % i)
        await trio.sleep(0.1)
    assert await tr.get(b"mine2") is None
    tr.set(b"result", b"2")
    with pytest.raises(FsError) as caught:
        await tr.commit()
    assert caught.value.status is Status.KV_CONFLICT  # it did look at mine2
    tr = lab.engine.transaction()
    assert await tr.get(b"mine") == b"44"
    for i in range(45):
        await put(lab.engine, mine2=b"later %d" % i)
        await trio.sleep(0.1)
    assert await tr.get(b"mine2", snapshot=True) == b"44"
    tr.set(b"mine", b"2")
    await tr.commit()


async def test_everything_is_there_after_reopening(lab):
    await put(lab.engine, a=b"1", b=b"2")
    tr = lab.engine.transaction()
    tr.clear(b"a")
    tr.atomic_add(b"n", 3)
    await tr.commit()
    before = await rows(lab.engine)
    await lab.reopen()
    assert await rows(lab.engine) == before
    assert [key for key, _ in before] == [b"b", b"n"]


async def test_cancelled_commit_did_not_happen(lab):
    tr = lab.engine.transaction()
    tr.set(b"a", b"1")
    with trio.CancelScope() as scope:
        scope.cancel()
        await tr.commit()
    assert scope.cancelled_caught
    assert await read(lab.engine, b"a") is None


async def test_use_after_the_end_is_a_bug(lab):
    tr = lab.engine.transaction()
    tr.set(b"a", b"1")
    await tr.commit()
    with pytest.raises(AssertionError):
        tr.set(b"a", b"2")
    with pytest.raises(AssertionError):
        await tr.get(b"a")
    with pytest.raises(AssertionError):
        await tr.commit()
    tr.close()


async def test_sync_returns(lab):
    await put(lab.engine, a=b"1")
    with trio.fail_after(60):
        await lab.engine.sync()
        await lab.engine.sync()


@pytest.mark.parametrize(
    ("fate", "is_there"), [(Fate.UNKNOWN_COMMITTED, True), (Fate.UNKNOWN_LOST, False)]
)
async def test_unknown_outcome_both_ways(lab, fate, is_there):
    engine = FaultyEngine(lab.engine, ScriptedFaults([fate]))
    tr = engine.transaction()
    tr.set(b"a", b"1")
    with pytest.raises(FsError) as caught:
        await tr.commit()
    assert caught.value.status is Status.KV_COMMIT_UNKNOWN
    assert not caught.value.definite
    assert (await read(lab.engine, b"a") is not None) is is_there


async def test_retry_loop_ends_once_with_an_idempotency_record(lab, autojump_clock):
    fates = [Fate.CONFLICT, Fate.UNKNOWN_LOST, CommitFault(delay_before_s=0.2), Fate.OK]
    for fate in [*fates, Fate.UNKNOWN_COMMITTED]:
        engine = FaultyEngine(lab.engine, ScriptedFaults([fate, Fate.CONFLICT]))
        request_id = fate.value.encode() if isinstance(fate, Fate) else b"slow"

        async def withdraw(tr, request_id=request_id):
            if (done := await tr.get(b"done/" + request_id)) is not None:
                return done
            balance = int(await tr.get(b"balance") or b"100") - 10
            tr.set(b"balance", b"%d" % balance)
            tr.set(b"done/" + request_id, b"%d" % balance)
            return b"%d" % balance

        reply = await transact(engine, withdraw, runtime=lab.runtime)
        assert reply == await read(lab.engine, b"balance")
    assert await read(lab.engine, b"balance") == b"50"


async def test_bank_keeps_its_money(lab, autojump_clock):
    accounts = [b"account/%d" % i for i in range(8)]
    tr = lab.engine.transaction()
    for account in accounts:
        tr.set(account, b"100")
    await tr.commit()

    async def teller(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(15):
            payer, payee = source.sample(accounts, 2)

            async def transfer(tr, payer=payer, payee=payee, source=source):
                paid = int(await tr.get(payer))
                await trio.sleep(source.random() / 1000)
                received = int(await tr.get(payee))
                amount = source.randint(0, paid)
                tr.set(payer, b"%d" % (paid - amount))
                tr.set(payee, b"%d" % (received + amount))

            await transact(lab.engine, transfer, runtime=lab.runtime, retry_time_s_max=1000)

    async def auditor() -> None:
        for _ in range(30):
            held = await rows(lab.engine, b"account/", b"account0")
            assert sum(int(value) for _, value in held) == 800
            await trio.sleep(0.002)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(auditor)
        for seed in range(6):
            nursery.start_soon(teller, seed)
    assert sum(int(value) for _, value in await rows(lab.engine)) == 800


async def test_cycle_stays_one_cycle(lab, autojump_clock):
    """Each node names the next; swapping neighbours keeps one ring unless isolation fails."""
    count = 12
    tr = lab.engine.transaction()
    for i in range(count):
        tr.set(b"%02d" % i, b"%02d" % ((i + 1) % count))
    await tr.commit()

    async def swapper(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(12):
            start = b"%02d" % source.randrange(count)

            async def swap(tr, start=start):
                second = await tr.get(start)
                await trio.lowlevel.checkpoint()
                third = await tr.get(second)
                await trio.lowlevel.checkpoint()
                fourth = await tr.get(third)
                tr.set(start, third)
                tr.set(third, second)
                tr.set(second, fourth)

            await transact(lab.engine, swap, runtime=lab.runtime, retry_time_s_max=1000)

    async with trio.open_nursery() as nursery:
        for seed in range(6):
            nursery.start_soon(swapper, seed)
    ring = dict(await rows(lab.engine))
    node, seen = b"00", []
    while node not in seen:
        seen.append(node)
        node = ring[node]
    assert node == b"00"
    assert len(seen) == count
