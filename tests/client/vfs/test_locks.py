# ruff: noqa: ARG001 - pytest-trio finds the virtual clock among a test's own arguments
from functools import partial

import pytest
import trio
import trio.lowlevel

from fs.client.vfs.locks import LockWish
from fs.schema.services import META_END_LOCK_WAIT
from fs.schema.status import FsError, Status

from .conftest import ROOT


def wish(owner=1, *, is_flock=False, is_write=True, first=0, last=9):
    return LockWish(owner, is_flock, is_write, first, last, pid=owner)


async def test_two_mounts_exclude_each_other_and_see_each_others_bytes(autojump_clock, mounts):
    async with mounts(2) as (one, two):
        h1 = await one.create(b"f")
        await one.files.write(h1, 0, b"first")
        inode_id = (await one.names.lookup(1, b"f", ROOT)).inode_id
        await one.close(h1)
        h1, h2 = (await one.open(b"f")).handle_id, (await two.open(b"f")).handle_id
        assert bytes(await two.files.read(h2, 0, 9)) == b"first"
        await one.vfs.locks.lock(inode_id, wish(), wait=False)
        with pytest.raises(FsError) as e:
            await two.vfs.locks.lock(inode_id, wish(), wait=False)
        assert e.value.status is Status.LOCK_HELD
        assert (await two.vfs.locks.conflict(inode_id, wish())).pid == 0
        assert (await one.vfs.locks.conflict(inode_id, wish(owner=2))).pid == 1
        await one.files.write(h1, 0, b"other, and longer")
        await one.vfs.locks.unlock(inode_id, wish())
        await two.vfs.locks.lock(inode_id, wish(), wait=False)
        assert bytes(await two.files.read(h2, 0, 99)) == b"other, and longer"
        assert two.kernel.content == [inode_id]
        await two.vfs.locks.owner_closes(inode_id, 1, is_flock=False)
        await one.vfs.locks.lock(inode_id, wish(), wait=False)
        await one.close(h1)
        await two.close(h2)


async def test_two_that_share_a_lock_may_both_want_it_alone(autojump_clock, mounts):
    """Each waited for the other for ever."""
    async with mounts(2) as (one, two):
        h = await one.create(b"f")
        inode_id = (await one.names.lookup(1, b"f", ROOT)).inode_id
        for mount in (one, two):
            await mount.vfs.locks.lock(inode_id, wish(is_flock=True, is_write=False), wait=False)

        async def convert(mount) -> None:
            await mount.vfs.locks.lock(inode_id, wish(is_flock=True), wait=True)
            await trio.sleep(1)
            await mount.vfs.locks.owner_closes(inode_id, 1, is_flock=True)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(convert, one)
                nursery.start_soon(convert, two)
        await one.close(h)


async def test_a_wait_can_be_given_up_and_holds_nothing(autojump_clock, mounts):
    async with mounts(2) as (one, two):
        h = await one.create(b"f")
        inode_id = (await one.names.lookup(1, b"f", ROOT)).inode_id
        await one.vfs.locks.lock(inode_id, wish(), wait=False)
        with trio.move_on_after(1):
            await two.vfs.locks.lock(inode_id, wish(), wait=True)
            pytest.fail("two holders")
        await one.vfs.locks.unlock(inode_id, wish())
        await one.vfs.locks.lock(inode_id, wish(owner=7), wait=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(two.vfs.locks.lock, inode_id, wish(), wait=True))
            await trio.sleep(7)
            await one.vfs.locks.owner_closes(inode_id, 7, is_flock=False)
        assert (await one.vfs.locks.conflict(inode_id, wish())) is not None
        await one.close(h)


async def test_files_never_locked_ask_nobody(autojump_clock, mounts):
    async with mounts() as m:
        h = await m.create(b"f")
        inode_id = (await m.names.lookup(1, b"f", ROOT)).inode_id
        await m.vfs.locks.owner_closes(inode_id, 5, is_flock=False)
        await m.vfs.locks.owner_closes(inode_id, 5, is_flock=True)
        assert "SetLock" not in m.cluster.calls
        await m.vfs.locks.lock(inode_id, wish(is_flock=True, first=0, last=2**63 - 1), wait=False)
        await m.close(h)
    assert all(not locks for locks in m.cluster.locks.values())


async def test_what_is_locked_after_a_close_comes_after_it(autojump_clock, mounts):
    """The kernel waits for no reply to a release,
    so the next lock may come while the former one is being freed.
    """
    async with mounts() as m:
        handle_id = await m.create(b"f")
        inode_id, locks = m.files.handle(handle_id).state.inode_id, m.vfs.locks
        await locks.lock(inode_id, wish(is_flock=True), wait=False)
        await m.files.write(handle_id, 0, b"to be sent first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(locks.handle_closes, inode_id, handle_id, flock_owner=1))
            while locks.may_hold(inode_id, 1, is_flock=True):  # until it has begun
                await trio.lowlevel.checkpoint()
            await locks.lock(inode_id, wish(owner=2, is_flock=True), wait=False)
        await locks.owner_closes(inode_id, 2, is_flock=True)
        await m.close(handle_id)


async def test_locks_of_an_open_file_description_go_with_it(autojump_clock, mounts):
    """F_OFD_SETLK: the kernel tells of nothing but the last close;
    locks of processes stay with other descriptors.
    """
    async with mounts() as m:
        first = await m.create(b"f")
        second = (await m.open(b"f")).handle_id
        inode_id, locks = m.files.handle(first).state.inode_id, m.vfs.locks
        whole = wish(owner=3, first=0, last=2**63 - 1)
        await locks.lock(inode_id, wish(owner=9), wait=False, handle_id=first)
        # A process locks through one handle, frees all, and locks through the other.
        await locks.lock(inode_id, wish(owner=3, first=20, last=29), wait=False, handle_id=first)
        await locks.unlock(inode_id, whole)
        await locks.lock(inode_id, wish(owner=3, first=30, last=39), wait=False, handle_id=second)
        assert locks.may_hold_by(inode_id, first)
        await locks.handle_closes(inode_id, first)
        assert not locks.may_hold_by(inode_id, first)
        assert await locks.conflict(inode_id, wish(owner=8)) is None
        assert (await locks.conflict(inode_id, wish(owner=8, first=30, last=30))).pid == 3
        await locks.owner_closes(inode_id, 3, is_flock=False)
        await locks.handle_closes(inode_id, second)
        await m.close(first)
        await m.close(second)
    assert all(not held for held in m.cluster.locks.values())


async def test_a_lock_that_was_waited_for_while_all_others_were_freed_goes_with_its_handle(
    autojump_clock, mounts
):
    """One thread frees all, or closes the file once more, while another one waits:
    what that one gets is to be freed, too.
    """
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id = one.files.handle(handle_id).state.inode_id
        whole, locks = wish(first=0, last=2**63 - 1), one.vfs.locks
        await two.vfs.locks.lock(inode_id, wish(owner=7), wait=False)
        async with trio.open_nursery() as nursery:
            wait = partial(locks.lock, inode_id, wish(), wait=True, handle_id=handle_id)
            nursery.start_soon(wait)
            await trio.sleep(1)
            await locks.unlock(inode_id, whole)
            await two.vfs.locks.owner_closes(inode_id, 7, is_flock=False)
        assert (await two.vfs.locks.conflict(inode_id, wish())) is not None
        assert locks.may_hold(inode_id, 1, is_flock=False)
        await locks.handle_closes(inode_id, handle_id)
        assert await two.vfs.locks.conflict(inode_id, wish()) is None
        await one.close(handle_id)


async def test_a_last_close_frees_both_kinds_though_a_report_fails(
    autojump_clock, mounts, monkeypatch
):
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id, locks = one.files.handle(handle_id).state.inode_id, one.vfs.locks
        await locks.lock(inode_id, wish(), wait=False, handle_id=handle_id)
        await locks.lock(inode_id, wish(is_flock=True), wait=False, handle_id=handle_id)

        async def settle(_):
            raise FsError(Status.NO_SPACE, "full")

        with monkeypatch.context() as patch:
            patch.setattr(one.files, "settle", settle)
            with pytest.raises(FsError) as e:
                await locks.handle_closes(inode_id, handle_id, flock_owner=1)
        assert e.value.status is Status.NO_SPACE
        assert await two.vfs.locks.conflict(inode_id, wish()) is None
        assert await two.vfs.locks.conflict(inode_id, wish(is_flock=True)) is None
        await one.close(handle_id)


async def test_what_a_reopened_file_locks_is_not_freed_with_the_former_handle(
    autojump_clock, mounts, monkeypatch
):
    """The kernel gives the numbers of open file descriptions out again at once."""
    async with mounts() as m:
        handle_id = await m.create(b"f")
        inode_id, locks = m.files.handle(handle_id).state.inode_id, m.vfs.locks
        await locks.lock(inode_id, wish(), wait=False, handle_id=handle_id)
        await locks.lock(inode_id, wish(is_flock=True), wait=False, handle_id=handle_id)
        again = (await m.open(b"f")).handle_id

        async def settle(_):
            await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patch:
                patch.setattr(m.files, "settle", settle)
                nursery.start_soon(partial(locks.handle_closes, inode_id, handle_id, flock_owner=1))
                await trio.sleep(0.5)
                await locks.lock(inode_id, wish(is_flock=True), wait=False, handle_id=again)
                await locks.lock(inode_id, wish(), wait=False, handle_id=again)
        for kind in (False, True):
            assert await locks.conflict(inode_id, wish(owner=2, is_flock=kind)) is not None
        await locks.handle_closes(inode_id, again, flock_owner=1)
        for kind in (False, True):
            assert await locks.conflict(inode_id, wish(owner=2, is_flock=kind)) is None
        await m.close(handle_id)
        await m.close(again)


async def test_a_lock_waits_for_no_bytes_that_another_process_frees_itself(
    autojump_clock, mounts, monkeypatch
):
    """Each unlock sends what was written; databases that lock single records would wait
    for each other's writes.
    """
    async with mounts() as m:
        handle_id = await m.create(b"f")
        inode_id, locks = m.files.handle(handle_id).state.inode_id, m.vfs.locks
        await locks.lock(inode_id, wish(), wait=False)

        async def settle(_):
            await trio.sleep(100)

        async with trio.open_nursery() as nursery:
            monkeypatch.setattr(m.files, "settle", settle)
            nursery.start_soon(locks.unlock, inode_id, wish())
            await trio.sleep(1)
            with trio.fail_after(1):
                await locks.lock(inode_id, wish(owner=2, first=20, last=29), wait=False)
        await m.close(handle_id)


def away(count=1, status=Status.RPC_CONNECT_FAILED):
    return [FsError(status, "no meta service answers") for _ in range(count)]


@pytest.mark.parametrize("status", [Status.RPC_CONNECT_FAILED, Status.NO_SPACE])
@pytest.mark.parametrize("is_flock", [False, True])
async def test_what_could_not_be_freed_at_a_close_is_once_meta_is_back(
    autojump_clock, mounts, is_flock, status
):
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id, locks = one.files.handle(handle_id).state.inode_id, one.vfs.locks
        wanted = wish(is_flock=is_flock)
        await locks.lock(inode_id, wanted, wait=False, handle_id=handle_id)
        one.cluster.meta_faults["SetLock"] = away(3, status)
        with pytest.raises(FsError):
            await locks.handle_closes(inode_id, handle_id, flock_owner=1 if is_flock else None)
        await one.close(handle_id)
        assert await two.vfs.locks.conflict(inode_id, wish(owner=2, is_flock=is_flock)) is not None
        await trio.sleep(30)
        await two.vfs.locks.lock(inode_id, wish(owner=2, is_flock=is_flock), wait=False)
        assert not locks.may_hold(inode_id, 1, is_flock=is_flock)
        await two.vfs.locks.owner_closes(inode_id, 2, is_flock=is_flock)


async def test_some_bytes_that_could_not_be_freed_are_and_others_stay(autojump_clock, mounts):
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id, locks = one.files.handle(handle_id).state.inode_id, one.vfs.locks
        await locks.lock(inode_id, wish(first=0, last=99), wait=False, handle_id=handle_id)
        one.cluster.meta_faults["SetLock"] = away(2)
        for first in (10, 50):
            with pytest.raises(FsError):
                await locks.unlock(inode_id, wish(first=first, last=first + 9))
        await trio.sleep(60)
        for first, is_free in ((0, False), (10, True), (20, False), (50, True), (60, False)):
            found = await two.vfs.locks.conflict(inode_id, wish(owner=2, first=first, last=first))
            assert (found is None) is is_free, first
        await locks.handle_closes(inode_id, handle_id)
        await one.close(handle_id)
    assert all(not held for held in one.cluster.locks.values())


async def test_a_lock_under_a_number_that_owes_a_release_is_not_freed_with_it(
    autojump_clock, mounts
):
    """The kernel gives numbers out again: the next open file description may have the one whose
    release is late.
    """
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id, locks = one.files.handle(handle_id).state.inode_id, one.vfs.locks
        await locks.lock(inode_id, wish(is_flock=True), wait=False, handle_id=handle_id)
        one.cluster.meta_faults["SetLock"] = away(2)
        with pytest.raises(FsError):
            await locks.handle_closes(inode_id, handle_id, flock_owner=1)
        with pytest.raises(FsError) as e:
            await locks.lock(inode_id, wish(is_flock=True), wait=False, handle_id=handle_id)
        assert e.value.status is Status.RPC_CONNECT_FAILED
        await locks.lock(inode_id, wish(is_flock=True), wait=False, handle_id=handle_id)
        await trio.sleep(60)
        assert await two.vfs.locks.conflict(inode_id, wish(owner=2, is_flock=True)) is not None
        assert locks.may_hold(inode_id, 1, is_flock=True)
        await locks.handle_closes(inode_id, handle_id, flock_owner=1)
        assert await two.vfs.locks.conflict(inode_id, wish(owner=2, is_flock=True)) is None
        await one.close(handle_id)


@pytest.mark.parametrize("is_flock", [False, True])
async def test_a_lock_that_was_waited_for_is_not_freed_with_what_is_owed(
    autojump_clock, mounts, is_flock
):
    """One thread waits for a lock while another one's release under the same number fails."""
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id, locks = one.files.handle(handle_id).state.inode_id, one.vfs.locks
        wanted, others = wish(is_flock=is_flock), wish(owner=2, is_flock=is_flock)
        await two.vfs.locks.lock(inode_id, others, wait=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(locks.lock, inode_id, wanted, wait=True))
            await trio.sleep(0.1)
            one.cluster.meta_faults["SetLock"] = away()
            with pytest.raises(FsError):
                await locks.unlock(inode_id, LockWish(1, is_flock))
            await two.vfs.locks.unlock(inode_id, others)
        await trio.sleep(60)
        assert await two.vfs.locks.conflict(inode_id, others) is not None
        await locks.owner_closes(inode_id, 1, is_flock=is_flock)
        assert await two.vfs.locks.conflict(inode_id, others) is None
        await one.close(handle_id)


async def test_what_is_owed_waits_for_an_answer_that_is_late_and_spares_what_it_brings(
    autojump_clock, mounts, monkeypatch
):
    async with mounts(2) as (one, two):
        handle_id = await one.create(b"f")
        inode_id, locks = one.files.handle(handle_id).state.inode_id, one.vfs.locks
        await locks.lock(inode_id, wish(first=0, last=99), wait=False)
        ask = locks._set

        async def late(inode_id, wanted, **rest):
            reply = await ask(inode_id, wanted, **rest)
            await trio.sleep(5)
            return reply

        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patch:
                patch.setattr(locks, "_set", late)
                wanted = wish(first=10, last=19)
                nursery.start_soon(partial(locks.lock, inode_id, wanted, wait=False))
                await trio.sleep(0.1)
            one.cluster.meta_faults["SetLock"] = away()
            with pytest.raises(FsError):
                await locks.unlock(inode_id, wish(first=5, last=29))
        await trio.sleep(60)
        for first, is_free in (
            (0, False),
            (5, True),
            (10, False),
            (19, False),
            (20, True),
            (30, False),
        ):
            found = await two.vfs.locks.conflict(inode_id, wish(owner=2, first=first, last=first))
            assert (found is None) is is_free, first
        await locks.owner_closes(inode_id, 1, is_flock=False)
        await one.close(handle_id)


async def test_two_mounts_that_would_wait_crosswise(autojump_clock, mounts):
    async with mounts(2) as (one, two):
        handles = [await one.create(name) for name in (b"a", b"b")]
        a, b = [one.files.handle(h).state.inode_id for h in handles]
        answers = iter([None, None, True])  # the thread is about to wait
        await one.vfs.locks.lock(a, wish(), wait=False)
        await two.vfs.locks.lock(b, wish(), wait=False)
        async with trio.open_nursery() as nursery:
            wait = partial(one.vfs.locks.lock, b, wish(), wait=True)
            nursery.start_soon(partial(wait, is_process=lambda: next(answers)))
            await trio.sleep(1)
            with pytest.raises(FsError) as e:
                await two.vfs.locks.lock(a, wish(), wait=True, is_process=lambda: True)
            assert e.value.status is Status.DEADLOCK
            with trio.move_on_after(1):  # what an open file description waits for tells nothing
                await two.vfs.locks.lock(a, wish(), wait=True)
            await two.vfs.locks.owner_closes(b, 1, is_flock=False)
        assert one.cluster.lock_waits == {}
        await one.vfs.locks.owner_closes(a, 1, is_flock=False)
        await one.vfs.locks.owner_closes(b, 1, is_flock=False)
        for h in handles:
            await one.close(h)


async def test_on_whose_behalf_a_busy_machine_says_late(autojump_clock, mounts):
    async with mounts(2) as (one, two):
        handles = [await one.create(name) for name in (b"a", b"b")]
        a, b = [one.files.handle(h).state.inode_id for h in handles]
        answers = iter([None] * 150 + [True])
        await one.vfs.locks.lock(a, wish(), wait=False)
        await two.vfs.locks.lock(b, wish(), wait=False)
        async with trio.open_nursery() as nursery:
            wait = partial(one.vfs.locks.lock, b, wish(), wait=True)
            nursery.start_soon(partial(wait, is_process=lambda: next(answers)))
            await trio.sleep(10)
            with pytest.raises(FsError) as e, trio.fail_after(10):
                await two.vfs.locks.lock(a, wish(), wait=True, is_process=lambda: True)
            assert e.value.status is Status.DEADLOCK
            await two.vfs.locks.owner_closes(b, 1, is_flock=False)
        assert one.cluster.lock_waits == {}
        for inode_id, h in zip((a, b), handles, strict=True):
            await one.vfs.locks.owner_closes(inode_id, 1, is_flock=False)
            await one.close(h)


@pytest.mark.parametrize("away_s", [0, 20])
async def test_a_wait_that_was_given_up_counts_no_longer(
    autojump_clock, mounts, monkeypatch, away_s
):
    """Also when no service has heard so at first; who gave up is not kept for long."""
    async with mounts(2) as (one, two):
        h = await one.create(b"f")
        inode_id = one.files.handle(h).state.inode_id
        await one.vfs.locks.lock(inode_id, wish(), wait=False)
        locks, call = two.vfs.locks, two.vfs.locks._core.call
        back_s = trio.current_time() + 1 + away_s

        async def may_be_away(method, request, **rest):
            if trio.current_time() >= 0.9 and method is META_END_LOCK_WAIT:
                while trio.current_time() < back_s:
                    await trio.sleep(15)
                    raise FsError(Status.RPC_TIMEOUT, "away")
            return await call(method, request, **rest)

        monkeypatch.setattr(locks._core, "call", may_be_away)
        with trio.move_on_after(1):
            await locks.lock(inode_id, wish(), wait=True, is_process=lambda: True)
        assert trio.current_time() < 3
        assert bool(one.cluster.lock_waits) == bool(away_s)
        await trio.sleep(60)
        assert one.cluster.lock_waits == {}
        await one.vfs.locks.owner_closes(inode_id, 1, is_flock=False)
        await one.close(h)
