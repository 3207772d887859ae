"""Who is shown attributes with names, and who names alone."""

import pytest

from fs.client.vfs.listers import (
    ALIKE_COUNT,
    COUNTED_S,
    LEFT_COUNT_MIN,
    LISTING_COUNT_MAX,
    NAMES_PER_LOOKUP,
    PROGRAM_COUNT_MAX,
    THREAD_COUNT_MAX,
    TRIED_AGAIN_COUNT,
    TRIED_COUNT,
    TRUSTED_COUNT,
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


def run(listers, thread, *, wants):
    """Have a thread that is tried list a directory, and look it up if it wants attributes."""
    tried(listers, thread, thread)
    if wants:
        look_up(listers, TRIED_COUNT, thread)
        assert listers.shows(thread, is_first=False) is Shows.ATTRIBUTES


def of_programs(*names):
    """Return listers for whom thread N is of program `names[N % len(names)]`."""
    listers = Listers()
    listers.program_of = lambda thread: names[thread % len(names)]
    return listers


def test_threads_of_a_program_whose_last_ones_wanted_attributes_get_them_at_once():
    listers = of_programs("du")
    for thread in range(1, ALIKE_COUNT + 1):
        run(listers, thread, wants=True)
    next_one = ALIKE_COUNT + 1
    for thread in range(next_one, next_one + TRUSTED_COUNT):
        for is_first in (True, True, False):  # as often as a request is looked at
            assert listers.shows(thread, is_first=is_first) is Shows.ATTRIBUTES
    run(listers, next_one + TRUSTED_COUNT, wants=True)
    assert listers.shows(next_one + TRUSTED_COUNT + 1, is_first=True) is Shows.ATTRIBUTES


@pytest.mark.parametrize("other", range(1, ALIKE_COUNT))
def test_one_that_does_not_want_them_is_enough_to_have_all_tried_again(other):
    listers = of_programs("python3")
    for thread in range(ALIKE_COUNT + 1):
        run(listers, thread + 1, wants=thread != other)
    assert listers.shows(99, is_first=True) is Shows.FIRST


def test_a_program_that_has_changed_is_found_by_the_one_that_is_tried():
    listers = of_programs("ls")
    for thread in range(1, ALIKE_COUNT + 1):
        run(listers, thread, wants=True)
    for thread in range(100, 100 + TRUSTED_COUNT):
        assert listers.shows(thread, is_first=True) is Shows.ATTRIBUTES
    run(listers, 200, wants=False)
    for thread in range(300, 310):
        run(listers, thread, wants=False)


def test_each_program_is_judged_by_itself_and_those_without_a_name_not_at_all():
    listers = of_programs("du", "find", "")
    for thread in range(3, 3 + 3 * (ALIKE_COUNT + 1)):
        program = thread % 3
        if program == 0 and thread >= 3 + 3 * ALIKE_COUNT:
            assert listers.shows(thread, is_first=True) is Shows.ATTRIBUTES
        else:
            run(listers, thread, wants=program != 1)


def test_a_thread_that_is_tried_again_and_wants_still_keeps_its_program():
    listers = of_programs("backup")
    run(listers, 1, wants=True)
    for _ in range(ALIKE_COUNT - 1):
        for _ in range(TRIED_AGAIN_COUNT):
            listers.note_begun(1)
        run(listers, 1, wants=True)
    assert listers.shows(2, is_first=True) is Shows.ATTRIBUTES


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
    listers.program_of = str
    for number in range(1, 3 * max(THREAD_COUNT_MAX, LISTING_COUNT_MAX)):
        listers.note_shown(number, number, 2, 0.0)
    assert len(listers._programs) == PROGRAM_COUNT_MAX
    assert len(listers._threads) == THREAD_COUNT_MAX
    assert len(listers._listings) == LISTING_COUNT_MAX
    assert listers.shows(1, is_first=True) is Shows.FIRST
