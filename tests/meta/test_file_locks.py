"""The table of locks against a model that knows one holder set per byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fs.meta.file_locks import (
    END_MAX,
    FileLock,
    Holder,
    conflict_of,
    lock_from_pb,
    lock_to_pb,
    with_lock,
    without_client,
    without_range,
)
from fs.schema.proto.common_pb2 import FLOCK_LOCK, POSIX_LOCK

BYTES = range(16)
HOLDERS = [Holder("a", 1), Holder("a", 2), Holder("b", 1)]

locks = st.builds(
    lambda holder, kind, first, length, is_write: FileLock(
        holder, kind, first, min(first + length, BYTES[-1]), is_write
    ),
    st.sampled_from(HOLDERS),
    st.sampled_from([POSIX_LOCK, FLOCK_LOCK]),
    st.sampled_from(BYTES),
    st.integers(0, 15),
    st.booleans(),
)
steps = st.lists(st.tuples(st.sampled_from(["lock", "unlock", "die"]), locks), max_size=30)


class Model:
    """(kind, byte) -> {holder: is_write}."""

    def __init__(self):
        self.held = {}

    def _places(self, lock):
        return [(lock.kind, byte) for byte in range(lock.first, lock.last + 1)]

    def forbids(self, lock):
        return any(
            holder != lock.holder and (is_write or lock.is_write)
            for place in self._places(lock)
            for holder, is_write in self.held.get(place, {}).items()
        )

    def lock(self, lock):
        for place in self._places(lock):
            self.held.setdefault(place, {})[lock.holder] = lock.is_write

    def unlock(self, lock):
        for place in self._places(lock):
            self.held.get(place, {}).pop(lock.holder, None)

    def die(self, client_id):
        for holders in self.held.values():
            for holder in [h for h in holders if h.client_id == client_id]:
                del holders[holder]


def spread(table):
    model = Model()
    for lock in table:
        model.lock(lock)
    return {place: holders for place, holders in model.held.items() if holders}


@pytest.mark.slow
@given(steps)
def test_table_and_model_agree(steps):
    table, model = [], Model()
    for what, lock in steps:
        if what == "lock":
            conflict = conflict_of(table, lock)
            assert (conflict is not None) == model.forbids(lock)
            if conflict is None:
                table = with_lock(table, lock)
                model.lock(lock)
            else:
                assert conflict in table
                assert conflict.conflicts(lock)
        elif what == "unlock":
            table = without_range(table, lock)
            model.unlock(lock)
        else:
            table = without_client(table, lock.holder.client_id)
            model.die(lock.holder.client_id)
        assert spread(table) == {p: h for p, h in model.held.items() if h}
        assert_sound(table)


def assert_sound(table):
    """No overlap of one holder's locks, and none that could be one."""
    for i, one in enumerate(table):
        assert lock_from_pb(lock_to_pb(one)) == one
        for other in table[i + 1 :]:
            if (one.holder, one.kind) != (other.holder, other.kind):
                continue
            assert not one.overlaps(other)
            touch = one.last + 1 == other.first or other.last + 1 == one.first
            assert not touch or one.is_write != other.is_write


def test_to_the_end_of_the_file():
    whole = FileLock(HOLDERS[0], POSIX_LOCK, 0, END_MAX, is_write=True)
    left = without_range([whole], FileLock(HOLDERS[0], POSIX_LOCK, 10, END_MAX, is_write=False))
    assert [(lock.first, lock.last) for lock in left] == [(0, 9)]
