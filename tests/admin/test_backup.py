"""Backup and restore between stores of every kind; kills in the middle; writers meanwhile."""

import io
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from fs.admin import backup
from fs.admin import restore as restore_module
from fs.admin.backup import SPANS, write_backup
from fs.admin.backup_format import BackupDecoder, BackupEncoder
from fs.admin.rebase import (
    EPOCHS,
    INODE_BLOCKS,
    MOVES,
    ROUTING_VERSIONS,
    Rebase,
)
from fs.admin.restore import restore_backup
from fs.kv.buffer import KEY_END
from fs.kv.memory import MemoryEngine
from fs.kv.pause import PAUSE_KEY, PausableEngine
from fs.kv.transact import snapshot_read, transact
from fs.meta import records
from fs.meta.check import check
from fs.meta.inode_ids import NEW_STORE_BLOCK, SHARD_COUNT, block_ids
from fs.mgmtd import store as mgmtd
from fs.mgmtd.lease import LeaseRecord
from fs.mgmtd.restored import CHAIN_VERSIONS
from fs.runtime.real import RealClock
from fs.schema.proto import common_pb2
from fs.schema.proto import meta_pb2 as meta
from fs.schema.proto.backup_pb2 import BackupHeadPb
from fs.schema.proto.record_pb2 import (
    ChainRecordPb,
    MoveBookRecordPb,
    PrimaryLeaseRecordPb,
)
from fs.schema.routing import RESTORED_LOSSES
from fs.schema.status import FsError, Status
from tests.admin.stores import (
    CLUSTER,
    backup_of,
    dump,
    everything,
    fill,
    prefixes,
    restore_into,
)
from tests.kv.harness import inline_runtime
from tests.meta.harness import ROOT, World, inline_report, session

pytestmark = pytest.mark.thorough

CHANGED = {
    mgmtd.LEASE_KEY,
    mgmtd.ROUTING_VERSION_KEY,
    mgmtd.chain_key(3),
    mgmtd.BOOK_KEY,
    *map(records.inode_ids_key, range(SHARD_COUNT)),
}


NOW_NS = 1_795_000_000 * 10**9
FORMAT = mgmtd.FORMAT_KEY


@pytest.fixture
def memory():
    return MemoryEngine(RealClock())


def without(rows, keys):
    return {key: value for key, value in rows.items() if key not in keys}


def test_the_spans_cover_every_key_but_the_mark():
    for prefix in prefixes():
        inside = [begin <= prefix + b"x" < end for begin, end in SPANS]
        assert sum(inside) == (0 if prefix.startswith(b"MG") else 1), prefix
    assert SPANS[0][0] == b""
    assert SPANS[-1][1] == KEY_END


async def test_a_backup_of_any_store_restores_into_another(lab, memory):
    rows = everything()
    await fill(lab.engine, rows | {PAUSE_KEY: b"old" * 8})
    made = await backup_of(lab.engine)
    assert await restore_into(memory, made) == len(rows)
    restored = await dump(memory)
    assert without(restored, CHANGED) == without(rows, CHANGED)
    assert await dump(lab.engine) == rows | {PAUSE_KEY: b"old" * 8}


async def test_a_backup_restores_into_any_store(lab, memory):
    rows = everything(9)
    await fill(memory, rows)
    made = await backup_of(memory)
    await restore_into(lab.engine, made)
    assert without(await dump(lab.engine), CHANGED) == without(rows, CHANGED)
    lab.engine = await lab.reopen()
    assert without(await dump(lab.engine), CHANGED) == without(rows, CHANGED)


async def test_numbers_go_on_far_beyond_those_of_the_backup(memory):
    await fill(memory, everything())
    other = MemoryEngine(RealClock())
    await restore_into(other, await backup_of(memory))
    rows = await dump(other)
    ids = [records.unpack_u64(rows[records.inode_ids_key(n)]) for n in range(SHARD_COUNT)]
    assert ids == [INODE_BLOCKS + {0: 5, 31: 900}.get(n, 0) for n in range(SHARD_COUNT)]
    assert int.from_bytes(rows[mgmtd.ROUTING_VERSION_KEY], "big") > 4000 + ROUTING_VERSIONS
    chain = ChainRecordPb.FromString(rows[mgmtd.chain_key(3)]).chain
    assert (chain.chain_id, chain.chain_version) == (3, 17 + CHAIN_VERSIONS)
    assert chain.loss_count == RESTORED_LOSSES
    assert {t.public_state for t in chain.targets} == {common_pb2.OFFLINE}
    assert chain.generation > 10**18
    assert chain.restored.chain_version == 17
    assert list(chain.restored.keepers) == [9]
    lease = PrimaryLeaseRecordPb.FromString(rows[mgmtd.LEASE_KEY])
    assert lease == PrimaryLeaseRecordPb(epoch=lease.epoch)
    assert lease.epoch > 77 + EPOCHS
    book = MoveBookRecordPb.FromString(rows[mgmtd.BOOK_KEY])
    assert book.next_move_id == 3 + MOVES
    biggest_target = 0x0202020202020202
    assert book.next_target_id == biggest_target + 1 + MOVES


def restored_at(now_ns, block, version, epoch):
    """What a restore makes of three counters."""
    rebase = Rebase(now_ns)
    block_row = rebase.row(records.inode_ids_key(7), records.pack_u64(block))
    version_row = rebase.row(mgmtd.ROUTING_VERSION_KEY, version.to_bytes(8, "big"))
    for key, value in (
        (mgmtd.LEASE_KEY, mgmtd.pack_lease(LeaseRecord(epoch=epoch))),
        (FORMAT, b""),
    ):
        assert rebase.row(key, value) is None
    lease = mgmtd.unpack_lease(dict(rebase.last_rows())[mgmtd.LEASE_KEY])
    return records.unpack_u64(block_row), int.from_bytes(version_row, "big"), lease.epoch


def test_a_backup_that_is_restored_again_gives_no_number_again():
    counters = (NEW_STORE_BLOCK + 5, 4000, 77)
    once = restored_at(NOW_NS, *counters)
    again = restored_at(NOW_NS + 10**9, *counters)  # the cluster has gone on for a second
    assert all(a + 100 < b for a, b in zip(once, again, strict=True))
    behind = restored_at(NOW_NS - 10**15, *again)  # by a clock that is late
    assert all(a < b for a, b in zip(again, behind, strict=True))
    late = restored_at(NOW_NS + 80 * 365 * 86_400 * 10**9, *counters)
    assert block_ids(SHARD_COUNT - 1, late[0] + INODE_BLOCKS)


async def test_a_store_without_metadata_of_files_gets_none(memory):
    rows = {k: v for k, v in everything().items() if k.startswith(b"MG")}
    await fill(memory, rows)
    other = MemoryEngine(RealClock())
    await restore_into(other, await backup_of(memory))
    assert (await dump(other)).keys() == rows.keys()


async def expect(status: Status, awaitable) -> str:
    with pytest.raises(FsError) as caught:
        await awaitable
    assert caught.value.status is status, caught.value
    return caught.value.detail


async def test_a_store_that_holds_anything_is_left_as_it_is(memory):
    await fill(memory, everything())
    made = await backup_of(memory)
    other = MemoryEngine(RealClock())
    await fill(other, {b"zzzz": b"1"})
    await expect(Status.KV_NOT_EMPTY, restore_into(other, made))
    assert await dump(other) == {b"zzzz": b"1"}
    await expect(Status.KV_NOT_EMPTY, restore_into(memory, made))
    again = MemoryEngine(RealClock())
    await restore_into(again, made)
    await expect(Status.KV_NOT_EMPTY, restore_into(again, made))


async def test_nothing_and_another_cluster_are_not_backed_up(memory):
    await expect(Status.KV_BAD_FORMAT, backup_of(memory))
    await fill(memory, everything())
    detail = await expect(Status.KV_BAD_FORMAT, backup_of(memory, cluster_id="b"))
    assert CLUSTER in detail


async def test_records_of_a_newer_release_are_refused(memory):
    encoder = BackupEncoder()
    head = BackupHeadPb(cluster_id="c", release="9.9", meta_format=records.FORMAT_VERSION + 1)
    made = encoder.head(head) + encoder.end()
    assert "release 9.9" in await expect(Status.BAD_BACKUP, restore_into(memory, made))
    assert await dump(memory) == {}


async def test_a_damaged_record_does_not_end_a_restore_with_a_bug(memory):
    """What `ember fsck` can put right is restored as it is; without the others, which are named,
    nobody could say who has the newest data.
    """
    ids = records.inode_ids_key(3)
    await fill(memory, everything() | {ids: b"\xff" * 9})
    other = MemoryEngine(RealClock())
    await restore_into(other, await backup_of(memory))
    assert (await dump(other))[ids] == b"\xff" * 9
    chain = ChainRecordPb()
    chain.chain.chain_id = 3
    chain.chain.targets.add(target_id=1)  # in no state
    book = MoveBookRecordPb(next_move_id=2**64 - 1).SerializeToString()
    for key, value in (
        (mgmtd.chain_key(3), b"\xff"),
        (mgmtd.chain_key(3), chain.SerializeToString()),
        (mgmtd.LEASE_KEY, b"\xff"),
        (mgmtd.BOOK_KEY, b"\xff"),
        (mgmtd.BOOK_KEY, book),
        (mgmtd.ROUTING_VERSION_KEY, b"\xff" * 9),
        (mgmtd.ROUTING_VERSION_KEY, b""),
    ):
        damaged = MemoryEngine(RealClock())
        await fill(damaged, everything() | {key: value})
        other = MemoryEngine(RealClock())
        assert repr(key) in await expect(
            Status.KV_DAMAGED, restore_into(other, await backup_of(damaged))
        )
    for key in (records.FORMAT_KEY, mgmtd.FORMAT_KEY):
        damaged = MemoryEngine(RealClock())
        await fill(damaged, everything() | {key: b"\xff"})
        assert repr(key) in await expect(Status.KV_DAMAGED, backup_of(damaged))


# ---- kills -------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


class KilledEngine:
    """A store whose user is killed at the n-th commit: before it, or after it took effect."""

    def __init__(self, inner, n: int, *, is_after: bool) -> None:
        self.inner, self.left, self.is_after = inner, n, is_after

    def transaction(self):
        tr = self.inner.transaction()
        commit = tr.commit

        async def killed():
            self.left -= 1
            if self.left == 0 and not self.is_after:
                raise Killed
            await commit()
            if self.left == 0:
                raise Killed

        return _With(tr, killed)

    async def sync(self):
        await self.inner.sync()


class _With:
    def __init__(self, tr, commit):
        self._tr, self.commit = tr, commit

    def __getattr__(self, name):
        return getattr(self._tr, name)


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_restore_killed_anywhere_is_refused_by_services_and_runs_again(memory, is_after):
    rows = everything(40)
    await fill(memory, rows)
    made = await backup_of(memory)
    for n in range(1, 100):
        other = MemoryEngine(RealClock())
        decoder = BackupDecoder(io.BytesIO(made).read, "test")
        killed = KilledEngine(other, n, is_after=is_after)
        try:
            await restore_backup(killed, inline_runtime(), decoder)
        except Killed:
            left = await dump(other)
            is_whole = without(left, CHANGED) == without(rows, CHANGED)
            assert is_whole or not left or await is_refused(other)
            if is_whole:
                continue
        else:
            break
        await restore_into(other, made)
        assert without(await dump(other), CHANGED) == without(rows, CHANGED)
    assert n > 4, "too few commits to be killed at"


async def is_refused(engine) -> bool:
    """Both services say so, and a backup too."""
    world = World(engine)
    detail = await expect(Status.KV_BAD_FORMAT, world.initialise())
    assert "unfinished restore" in detail
    manager = mgmtd.Store(engine, inline_runtime(), world.config.kv, CLUSTER)
    assert "unfinished restore" in await expect(Status.KV_BAD_FORMAT, manager.load())
    await expect(Status.KV_BAD_FORMAT, backup_of(engine))
    return True


async def test_of_two_restores_into_one_store_the_earlier_one_writes_nothing_more(memory):
    await fill(memory, everything(40))
    made, other = await backup_of(memory), MemoryEngine(RealClock())
    marks = await restore_module._claim(other, inline_runtime(), CLUSTER)
    await restore_into(other, made)
    whole = await dump(other)
    late = [(b"INODlate", b"1")]
    await expect(Status.BUSY, restore_module._store(other, inline_runtime(), marks, late))
    await expect(Status.BUSY, restore_module._finish(other, inline_runtime(), marks, Rebase(0)))
    assert await dump(other) == whole


async def test_a_cut_backup_from_a_pipe_never_becomes_a_store(memory):
    """It cannot be verified first: so what was written of it stays refused."""
    await fill(memory, everything(40))
    made = await backup_of(memory)
    for length in (len(made) - 1, len(made) // 2):
        other = MemoryEngine(RealClock())
        await expect(Status.BAD_BACKUP, restore_into(other, made[:length]))
        assert await is_refused(other)


async def test_a_backup_that_cannot_be_written_is_an_error(memory):
    await fill(memory, everything(40))

    async def full(_made: bytes) -> None:
        raise OSError(28, "No space left on device")

    head = BackupHeadPb(cluster_id=CLUSTER)
    with pytest.raises(OSError, match="No space"):
        await write_backup(memory, inline_runtime(), full, head=head)


# ---- while the cluster works -------------------------------------------------------------------


async def churn(world, number: int) -> None:
    """Change names, links, lengths and directories for ever."""
    user = world.user(0, client=f"{number:032x}")
    with suppress(FsError):  # held up for longer than it tries: enough was changed before
        await churn_on(user, number)


async def churn_on(user, number: int) -> None:
    for n in range(10_000):
        directory = await user.mkdir(ROOT, f"d{number}-{n}".encode())
        made = await user.create(directory.inode_id, b"f", session=session(n))
        await user.link(made.inode_id, ROOT, f"l{number}-{n}".encode())
        await user.set_attr(made.inode_id, length=1000 + n)
        await user.rename(directory.inode_id, b"f", ROOT, f"r{number}-{n}".encode())
        if n % 3 == 0:
            await user.unlink(ROOT, f"l{number}-{n}".encode())
        await user.rmdir(ROOT, f"d{number}-{n}".encode())


async def test_a_backup_while_others_write_shows_one_state(lab, memory):
    world = World(PausableEngine(lab.engine, RealClock()))
    await world.initialise()
    before = 0
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(churn, world, number)
        while before < 300:
            await trio.sleep(0.01)
            before = len(await dump(lab.engine))
        made = await backup_of(lab.engine, may_pause=True, cluster_id="emberfs")
        nursery.cancel_scope.cancel()
    row_count = await restore_into(memory, made)
    assert row_count >= before
    assert await check(memory) == []


async def test_control_pages_of_many_states_are_no_backup(memory, monkeypatch):
    """What the test above looks for is there to be found:
    without one state the namespace does not fit together.
    """

    class Fuzzy:
        version = 0

        async def page(self, begin, end, *, is_whole=False):
            await trio.sleep(0.002)
            limit = 0 if is_whole else 100
            return await snapshot_read(memory, lambda tr: tr.get_range(begin, end, limit=limit))

    @asynccontextmanager
    async def open_fuzzy(*_, **__):
        yield Fuzzy()

    monkeypatch.setattr(backup, "open_snapshot", open_fuzzy)
    world = World(memory)
    await world.initialise()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(churn, world, number)
        while len(await dump(memory)) < 1000:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.001)
        made = await backup_of(memory, cluster_id="emberfs")
        nursery.cancel_scope.cancel()
    other = MemoryEngine(RealClock())
    await restore_into(other, made)
    assert await check(other)


async def test_bytes_that_are_moved_after_a_restore_have_a_number_that_storage_has_not_seen(memory):
    """It may remember truncations that were made since the backup,
    and does nothing for those before.
    """
    world = World(memory, inline_bytes_max=4096)
    await world.initialise()
    root = world.user()
    made = [
        await root.create(ROOT, b"%d" % n, wants_write=True, session=session(n)) for n in (1, 2)
    ]
    await root.sync(made[0].inode_id, **inline_report(b"bytes"))
    before = [await root.attr(inode.inode_id) for inode in made]
    restored = World(MemoryEngine(RealClock()), inline_bytes_max=4096)
    await restore_into(restored.engine, await backup_of(memory, cluster_id="emberfs"))
    gone_on, root = root, restored.user()
    after = [await root.attr(inode.inode_id) for inode in made]
    for old, new in zip(before, after, strict=True):
        assert new.file.truncate_ver > 2**32
        old.file.truncate_ver = new.file.truncate_ver
    assert after == before
    asked = meta.ExtendStripeReq(inode_id=made[0].inode_id, dyn_stripe_min=1)
    await root.call("extend_stripe", asked)
    assert restored.chunks.filled == [(made[0].inode_id, b"bytes")]
    assert await check(restored.engine) == []
    # Also of a file that had no bytes in the backup, whose bytes have been moved since.
    asked.inode_id, numbers = made[1].inode_id, []
    for user in gone_on, root:
        known = (await user.attr(asked.inode_id)).file
        await user.sync(asked.inode_id, **inline_report(b"later", truncate_ver=known.truncate_ver))
        numbers.append((await user.call("extend_stripe", asked)).inode.file.truncate_ver)
    assert restored.chunks.filled[1:] == [(asked.inode_id, b"later")]
    assert numbers[1] > numbers[0] > 0


async def test_a_cut_that_was_done_before_the_backup_is_not_done_again_after_the_restore(memory):
    """Only its mark is taken away: of what is behind the end since nobody knows."""
    world = World(memory)
    await world.initialise()
    root = world.user()
    made = await root.create(ROOT, b"cut", wants_write=True, session=session(1))
    key = records.inode_key(made.inode_id)

    async def leave_half_done(tr):
        inode = common_pb2.InodePb.FromString(await tr.get(key))
        inode.file.truncate_pending, inode.file.truncate_ver, inode.file.cut_ver = True, 7, 7
        tr.set(key, inode.SerializeToString())
        tr.set(records.truncation_key(made.inode_id), records.pack_u64(1))

    await transact(memory, leave_half_done, runtime=world.runtime)
    restored = World(MemoryEngine(RealClock()))
    await restore_into(restored.engine, await backup_of(memory, cluster_id="emberfs"))
    await restored.meta.service.driver.finish_truncation(made.inode_id)
    part = (await restored.user().attr(made.inode_id)).file
    assert (part.truncate_pending, restored.chunks.truncated) == (False, [])
    assert part.truncate_ver > 2**32
