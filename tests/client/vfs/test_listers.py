"""Who is shown attributes with names, and who names alone."""

import pytest

from fs.client.vfs.listers import (
    COUNTED_S,
    LEFT_COUNT_MIN,
    LISTING_COUNT_MAX,
    NAMES_PER_LOOKUP,
    THREAD_COUNT_MAX,
    TRIED_AGAIN_COUNT,
    TRIED_COUNT,
    Listers,
    Shows,
)

THREAD, DIRECTORY = 7, 100


def tried(listers, thread=THREAD, directory=DIRECTORY, now_s=0.0):
    """Show the first reply to a thread."""
    assert listers.shows(thread, is_first=True) is Shows.FIRST
    listers.note_shown(thread, directory, TRIED_COUNT, now_s)


def look_up(listers, count, directory=DIRECTORY, now_s=0.0):
    for _ in range(count):
        listers.note_found(directory, now_s)


def test_who_looks_up_what_it_was_shown_first_is_shown_attributes():
    listers = Listers()
    tried(listers)
    look_up(listers, TRIED_COUNT)
    assert listers.shows(THREAD, is_first=False) is Shows.ATTRIBUTES
    assert listers.shows(THREAD, is_first=True) is Shows.ATTRIBUTES


@pytest.mark.parametrize("found_count", range(TRIED_COUNT))
def test_who_does_not_is_shown_names(found_count):
    listers = Listers()
    tried(listers)
    look_up(listers, found_count)
    assert listers.shows(THREAD, is_first=False) is Shows.NAMES
    assert listers.shows(THREAD, is_first=True) is Shows.NAMES


def test_the_only_file_of_a_directory_is_enough():
    listers = Listers()
    listers.note_shown(THREAD, DIRECTORY, 1, 0.0)
    look_up(listers, 1)
    assert listers.shows(THREAD, is_first=True) is Shows.ATTRIBUTES


def test_names_that_cost_less_than_their_look_ups_are_shown_with_attributes():
    listers = Listers()
    tried(listers)
    listers.note_shown(THREAD, DIRECTORY, 100 - TRIED_COUNT, 0.0)
    look_up(listers, 100 // NAMES_PER_LOOKUP - 1)
    assert listers.shows(THREAD, is_first=True) is Shows.NAMES
    look_up(listers, 1)
    assert listers.shows(THREAD, is_first=True) is Shows.ATTRIBUTES


def test_look_ups_after_a_second_tell_nothing():
    listers = Listers()
    tried(listers)
    look_up(listers, TRIED_COUNT, now_s=COUNTED_S * 1.01)
    assert listers.shows(THREAD, is_first=True) is Shows.NAMES
    assert not listers.is_looked_at(DIRECTORY)


def test_look_ups_of_other_threads_count_for_who_has_listed():
    """`find | xargs`: what its names are for, the other end knows."""
    listers = Listers()
    tried(listers)
    tried(listers, thread=8, directory=200)
    look_up(listers, TRIED_COUNT, directory=200)
    assert listers.shows(THREAD, is_first=True) is Shows.NAMES
    assert listers.shows(8, is_first=True) is Shows.ATTRIBUTES


def test_it_is_tried_again_now_and_then_at_the_beginning_of_a_directory():
    listers = Listers()
    tried(listers)
    look_up(listers, TRIED_COUNT)
    for _ in range(TRIED_AGAIN_COUNT):
        for _ in range(3):  # as often as a request is looked at
            assert listers.shows(THREAD, is_first=True) is Shows.ATTRIBUTES
        listers.note_begun(THREAD)
        assert listers.shows(THREAD, is_first=False) is Shows.ATTRIBUTES
    tried(listers)
    assert listers.shows(THREAD, is_first=False) is Shows.NAMES


def test_of_another_process_namespace_nothing_is_learnt():
    listers = Listers()
    assert listers.shows(0, is_first=True) is Shows.ATTRIBUTES


def test_files_are_looked_through_while_many_are_left():
    listers = Listers()
    listers.note_shown(THREAD, DIRECTORY, LEFT_COUNT_MIN + 1, 0.0)
    assert not listers.is_looked_through(DIRECTORY, 0.0)
    look_up(listers, 1)
    assert listers.is_looked_through(DIRECTORY, COUNTED_S)
    assert not listers.is_looked_through(DIRECTORY, COUNTED_S * 1.01)
    look_up(listers, 1)
    assert not listers.is_looked_through(DIRECTORY, 0.0)


def test_what_is_remembered_is_bounded():
    listers = Listers()
    for number in range(1, 3 * max(THREAD_COUNT_MAX, LISTING_COUNT_MAX)):
        listers.note_shown(number, number, 2, 0.0)
    assert len(listers._threads) == THREAD_COUNT_MAX
    assert len(listers._listings) == LISTING_COUNT_MAX
    assert listers.shows(1, is_first=True) is Shows.FIRST
