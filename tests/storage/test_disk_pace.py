"""When a disk counts as slow."""

from fs.storage.disk_pace import CALL_COUNT_MIN, MIB, WINDOW_COUNT, DiskPace


def window(pace, duration_s, byte_count=4096, call_count=10):
    for _ in range(call_count):
        pace.note(duration_s, byte_count)
    return pace.end_window()


def usual(duration_s=0.01):
    pace = DiskPace()
    for _ in range(20):
        assert not window(pace, duration_s)
    return pace


def test_far_above_its_usual_for_long_enough_is_slow():
    pace = usual()
    changes = [window(pace, 0.5) for _ in range(WINDOW_COUNT + 3)]
    assert changes.index(True) == WINDOW_COUNT - 1
    assert changes.count(True) == 1
    assert pace.is_slow
    assert pace.usual_s < 0.02
    assert [window(pace, 0.01) for _ in range(WINDOW_COUNT)][-1]
    assert not pace.is_slow


def test_a_hiccup_is_not_slow():
    pace = usual()
    for _ in range(10):
        assert not window(pace, 0.5)
        assert not window(pace, 0.01)
    assert not pace.is_slow


def test_what_is_quick_enough_is_not_slow_whatever_it_was():
    pace = usual(0.0001)
    assert not any(window(pace, 0.2) for _ in range(20))


def test_a_disk_that_always_was_like_that_is_not_slow():
    pace = usual(0.2)
    assert not any(window(pace, 1.0) for _ in range(20))


def test_large_calls_may_take_longer():
    pace = usual()
    assert not any(window(pace, 1.0, 64 * MIB) for _ in range(20))
    assert any(window(pace, 1.0, MIB) for _ in range(20))


def test_a_call_that_does_many_things_may_take_longer():
    pace = usual()
    for part_count, is_slow in ((64, False), (1, True)):
        for _ in range(WINDOW_COUNT):
            for _ in range(10):
                pace.note(0.01 * 64, 64 * 4096, part_count)
            pace.end_window()
        assert pace.is_slow is is_slow


def test_between_slow_and_not_the_judgement_stands():
    pace = usual()
    assert any(window(pace, 0.5) for _ in range(5))
    assert not any(window(pace, 0.2) for _ in range(20))
    assert pace.is_slow


def test_an_idle_disk_is_not_judged():
    pace = usual()
    assert not any(window(pace, 9.0, call_count=CALL_COUNT_MIN - 1) for _ in range(20))


def test_flushes_are_judged_one_by_one_and_by_their_bytes():
    pace = DiskPace(call_count_min=1)
    for _ in range(5):
        assert not window(pace, 0.5, 100 * MIB, call_count=1)
    assert [window(pace, 30.0, 30 * MIB, call_count=1) for _ in range(3)] == [False, False, True]
