"""Circles of owners that wait: every state of a small world,
and random large ones against a search of another kind.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.meta.file_locks import FileLock, Holder, conflict_of, with_lock, without_range
from fs.meta.lock_cycles import OWNER_COUNT_MAX, CycleSearch, LockWait
from fs.schema.proto.common_pb2 import POSIX_LOCK

OWNERS = (Holder("a", 1), Holder("a", 2), Holder("b", 1))
FILES = (10, 11)


def lock(owner, first=0, last=0, *, is_write=True):
    return FileLock(owner, POSIX_LOCK, first, last, is_write)


def closes_circle(wait, tables, waits):
    search = CycleSearch(wait.lock, tables.get(wait.inode_id, ()))
    while search.owners:
        asked = [one for one in waits if one.lock.holder in search.owners]
        search.step(asked, {one.inode_id: tables.get(one.inode_id, ()) for one in asked})
    return search.is_found


def never_ends(owner, tables, waits):
    """Let everybody who does not wait, or no longer, free what he holds:
    who is left then waits forever.
    """
    tables, waits = dict(tables), list(waits)
    while True:
        stuck = {
            one.lock.holder
            for one in waits
            if conflict_of(tables.get(one.inode_id, ()), one.lock) is not None
        }
        left = {i: [held for held in table if held.holder in stuck] for i, table in tables.items()}
        if left == tables:
            return owner in stuck
        tables = left


def freeze(tables, waits):
    return tuple(tuple(tables[i]) for i in FILES), frozenset(waits)


def steps(tables, waits):
    """All that can happen next, with owners of one thread each:
    (tables, waits), after a check of what is told of new waits.
    """
    waiting = {one.lock.holder: one for one in waits}
    for owner in OWNERS:
        if owner in waiting:
            wait = waiting[owner]
            yield tables, waits - {wait}  # a signal
            if conflict_of(tables[wait.inode_id], wait.lock) is None:
                granted = with_lock(tables[wait.inode_id], wait.lock)
                yield tables | {wait.inode_id: granted}, waits - {wait}
            continue
        for inode_id in FILES:
            freed = without_range(tables[inode_id], lock(owner))
            if freed != tables[inode_id]:
                yield tables | {inode_id: freed}, waits
            for is_write in (False, True):
                wanted = lock(owner, is_write=is_write)
                if conflict_of(tables[inode_id], wanted) is None:
                    yield tables | {inode_id: with_lock(tables[inode_id], wanted)}, waits
                    continue
                wait = LockWait(1, inode_id, wanted)
                is_told = closes_circle(wait, tables, waits)
                assert is_told == never_ends(owner, tables, [*waits, wait]), (tables, waits, wait)
                if not is_told:
                    yield tables, waits | {wait}


@pytest.mark.thorough
def test_in_a_small_world_exactly_the_waits_that_never_end_are_told():
    """Three owners of two clients, two files, locks for reading and writing:
    each state that there can be.
    """
    empty = {i: [] for i in FILES}
    seen, queue = {freeze(empty, ())}, [(empty, frozenset())]
    told = 0
    while queue:
        tables, waits = queue.pop()
        assert not any(never_ends(owner, tables, waits) for owner in OWNERS)
        for found in steps(tables, waits):
            key = freeze(*found)
            if key not in seen:
                seen.add(key)
                queue.append(found)
        told += any(
            closes_circle(LockWait(1, i, lock(owner)), tables, waits)
            for owner in OWNERS
            for i in FILES
            if owner not in {one.lock.holder for one in waits}
        )
    assert len(seen) > 500
    assert told > 50


owners = st.builds(Holder, st.sampled_from("ab"), st.integers(1, 6))
ranges = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
locks = st.builds(
    lambda owner, places, is_write: lock(owner, *places, is_write=is_write),
    owners,
    ranges,
    st.booleans(),
)
wait_lists = st.lists(st.builds(LockWait, st.integers(1, 9), st.integers(0, 4), locks), max_size=12)


@given(st.lists(st.tuples(st.integers(0, 4), locks), max_size=30), wait_lists, wait_lists)
def test_a_search_finds_what_following_every_wait_finds(wanted, waits, asked):
    """Owners with many waits, ranges that overlap in part:
    every way from holder to holder is a way.
    """
    tables = {i: [] for i in range(5)}
    for inode_id, held in wanted:
        if conflict_of(tables[inode_id], held) is None:
            tables[inode_id] = with_lock(tables[inode_id], held)

    def reached(wait, path):
        return any(
            held.holder == goal
            or (
                held.holder not in path
                and any(
                    reached(one, path | {held.holder})
                    for one in waits
                    if one.lock.holder == held.holder
                )
            )
            for held in tables[wait.inode_id]
            if held.conflicts(wait.lock)
        )

    for wait in asked[:4]:
        goal = wait.lock.holder
        assert closes_circle(wait, tables, waits) == reached(wait, frozenset())


def test_the_work_is_bounded():
    """A long row of owners, each waiting for the next one, the last for the first."""

    def row(count):
        holders = [Holder("a", number) for number in range(count)]
        tables = {number: [lock(holder)] for number, holder in enumerate(holders)}
        waits = [LockWait(1, n + 1, lock(holder)) for n, holder in enumerate(holders[:-1])]
        by_owner = {one.lock.holder: one for one in waits}
        search, looked = CycleSearch(lock(holders[-1]), tables[0]), 0
        while search.owners:
            looked += len(search.owners)
            asked = [by_owner[owner] for owner in search.owners if owner in by_owner]
            search.step(asked, tables)
        return search.is_found, looked

    assert row(OWNER_COUNT_MAX) == (True, OWNER_COUNT_MAX - 1)
    assert row(OWNER_COUNT_MAX + 2) == (False, OWNER_COUNT_MAX)
