"""The conflict window against a list of everything that was ever written."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedList

from fs.kv.conflicts import SCAN_MAX, WINDOW_S, ConflictWindow

keys = st.binary(max_size=2)
ranges = st.tuples(keys, keys)
commits = st.lists(st.tuples(st.lists(keys, max_size=4), st.lists(ranges, max_size=2)), max_size=20)


class Everything:
    def __init__(self):
        self.log = []

    def add(self, version, written_keys, written_ranges):
        self.log.append((version, written_keys, written_ranges))

    def check(self, read_version, read_keys, read_ranges):
        def inside(key, bounds):
            return bounds[0] <= key < bounds[1]

        for version, written_keys, written_ranges in self.log:
            if version <= read_version:
                continue
            for key in written_keys:
                if key in read_keys or any(inside(key, bounds) for bounds in read_ranges):
                    return False
            for bounds in written_ranges:
                if any(inside(key, bounds) for key in read_keys):
                    return False
                if any(max(bounds[0], b) < min(bounds[1], e) for b, e in read_ranges):
                    return False
        return True


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(commits, st.lists(keys, max_size=3), st.lists(ranges, max_size=3), st.data())
def test_check_equals_looking_at_everything(history, read_keys, read_ranges, data):
    window, everything = ConflictWindow(0), Everything()
    read_ranges = [bounds for bounds in read_ranges if bounds[0] < bounds[1]]
    for version, (written_keys, drawn_ranges) in enumerate(history, start=1):
        written_ranges = [bounds for bounds in drawn_ranges if bounds[0] < bounds[1]]
        window.add(version, float(version) / 100, written_keys, written_ranges)
        everything.add(version, written_keys, written_ranges)
        read_version = data.draw(st.integers(0, version))
        assert window.check(read_version, read_keys, read_ranges) is everything.check(
            read_version, read_keys, read_ranges
        )


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_long_histories_use_the_index_and_stay_exact(source):
    window, everything = ConflictWindow(0), Everything()
    for version in range(1, 4 * SCAN_MAX):
        written = [b"%05d" % source.randrange(3000) for _ in range(source.randint(0, 2))]
        window.add(version, version / 100, written, [])
        everything.add(version, written, [])
        if version % 16 == 0:
            start = source.randrange(3000)
            bounds = (b"%05d" % start, b"%05d" % (start + source.randint(1, 30)))
            read_version = source.randint(window.horizon, version)
            assert window.check(read_version, [], [bounds]) is everything.check(
                read_version, [], [bounds]
            )


def test_old_commits_are_forgotten_by_age():
    window = ConflictWindow(0)
    for version in range(1, 101):
        window.add(version, float(version), [b"%d" % version], [(b"a", b"b")])
    assert 100 - WINDOW_S - 2 <= window.horizon <= 100 - WINDOW_S
    assert window.point_count == 100 - window.horizon
    assert not window.check(window.horizon, [b"100"], [])
    assert window.check(window.horizon, [b"1"], [])


def test_a_snapshot_as_old_as_allowed_can_still_be_judged():
    window = ConflictWindow(0)
    for step in range(1000):
        window.add(step + 1, step * 0.05, [b"k"], [])
        age_steps = min(step, int(5.0 / 0.05))
        assert window.horizon <= step + 1 - age_steps


def test_the_window_is_bounded_whatever_the_rate():
    window = ConflictWindow(0, points_max=100, ranges_max=10)
    for version in range(1, 1001):
        window.add(version, 0.0, [b"%d" % version], [(b"a", b"b")])
        assert window.point_count <= 100
    assert window.horizon >= 990
    window.add(1001, 0.0, [b"%d" % i for i in range(1000)], [])
    assert window.point_count <= 1000
    assert window.horizon == 1001


def test_forgotten_keys_leave_no_trace():
    window = ConflictWindow(0)
    for version in range(1, 5000):
        window.add(version, version * 0.01, [b"%d" % version], [])
        if version % 700 == 0:
            window.check(window.horizon, [], [(b"x", b"y")])  # builds the index
    kept = [key for stretch in window._stretches for key in stretch.version_of]
    assert len(kept) == window.point_count < 700


def test_a_window_that_is_full_forgets_some_and_not_half():
    """A snapshot that is young stays good, and no commit takes long to forget what others wrote."""
    window = ConflictWindow(0, points_max=1600)
    for version in range(1, 1001):
        window.add(version, 0.0, [b"%d %d" % (version, i) for i in range(8)], [])
        assert window.point_count <= 1600
        assert version - window.horizon >= min(version, 1600 // 8 * 7 // 8)
    assert not window.check(window.horizon, [b"1000 0"], [])
    assert not window.check(
        window.horizon, [], [(b"%d " % (window.horizon + 1), b"%d!" % (window.horizon + 1))]
    )
    assert window.check(window.horizon, [b"1 0"], [])


@pytest.mark.parametrize("ranges_max", [3, 1000])
def test_histories_of_many_stretches_stay_exact(ranges_max):
    source = random.Random(ranges_max)
    window, everything = ConflictWindow(0, points_max=3000, ranges_max=ranges_max), Everything()

    def bounds():
        start = source.randrange(300)
        return b"%03d" % start, b"%03d" % (start + source.randint(1, 9))

    now_s = 0.0
    for version in range(1, 1500):
        now_s += source.choice((0.01, 0.03))
        written = [b"%03d" % source.randrange(300) for _ in range(source.randrange(4))]
        cleared = [bounds()] if source.random() < 0.02 else []
        window.add(version, now_s, written, cleared)
        everything.add(version, written, cleared)
        if version % 8 == 0:
            read_version = source.randint(max(window.horizon, version - 100), version)
            read = [b"%03d" % source.randrange(300)], [bounds()][: source.randrange(2)]
            assert window.check(read_version, *read) is everything.check(read_version, *read)
    assert window.horizon > 0


def test_no_conflict_is_missed_after_memory_was_short_for_the_index(monkeypatch):
    """The set of keys had them, their order had not, and they were never added to that any more."""
    window = ConflictWindow(0)
    for version in range(1, SCAN_MAX + 10):
        window.add(version, 0.0, [b"k%05d" % version], [])
        window.check(0, [], [(b"x", b"y")])
    last = SCAN_MAX + 10
    window.add(last, 0.0, [b"last"], [])

    def refuse(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as short:
        short.setattr(SortedList, "add", refuse)
        with pytest.raises(MemoryError):
            window.check(1, [], [(b"last", b"m")])
    assert not window.check(1, [], [(b"last", b"m")])
    assert window.check(1, [], [(b"m", b"n")])
