"""Where one system call ends and the next begins, as far as requests show it."""

from fs.client.fuse import second_walks
from fs.client.fuse.second_walks import SecondWalks

ROOT, OLD, NEW, OTHER = 1, 10, 11, 12
T = 7
CALL = "257 0xffffff9c 0x7f00 0x0 0x0 0x0 0x0 0x7ffe 0x7f01"


def sent_back(**how):
    walks = SecondWalks()
    walks.begin(T, CALL, **how)
    return walks


def look_up(walks, *places):
    for place in places:
        walks.note_lookup(T, place)


def fails(walks, place, call=CALL, *, may_keep=False):
    """Look a name up in a directory that was removed: is it in a second walk?"""
    walks.note_lookup(T, place)
    return walks.searches(T, call, place, may_keep=may_keep)


def test_nobody_walks_again_who_was_not_sent_back():
    walks = sent_back()
    assert not walks.searches(T + 1, CALL, (OLD, b"f"), may_keep=False)
    assert not walks.changes(T + 1, CALL)


def test_who_came_by_a_descriptor_comes_to_the_same_place():
    walks = sent_back()
    assert fails(walks, (OLD, b"f"))
    assert not fails(walks, (OLD, b"f"))  # the same call once more


def test_another_call_is_no_second_walk():
    walks = sent_back()
    assert not fails(walks, (OLD, b"f"), CALL.replace("257", "262"))
    walks = sent_back()
    assert not walks.changes(T, CALL.replace("0x7f00", "0x7f80"))


def test_of_a_call_that_is_not_known_the_requests_tell():
    for known, seen in ((CALL, ""), ("", CALL), ("", "")):
        walks = SecondWalks()
        walks.begin(T, known)
        assert fails(walks, (OLD, b"f"), seen)


def test_the_new_directory_may_be_removed_as_well():
    walks = sent_back()
    # The kernel keeps the name of the old one, and asks twice.
    look_up(walks, (ROOT, b"d"), (ROOT, b"d"))
    assert fails(walks, (NEW, b"f"))


def test_it_may_be_removed_between_the_look_up_and_the_change():
    walks = sent_back()
    look_up(walks, (ROOT, b"d"), (ROOT, b"d"), (NEW, b"f"))
    walks.note_other(T, only_walks=False)
    assert walks.changes(T, CALL)


def test_a_change_ends_its_call():
    walks = sent_back()
    look_up(walks, (ROOT, b"d"), (NEW, b"f"))
    walks.note_other(T, only_walks=False)
    assert not fails(walks, (OTHER, b"f"))


def test_rights_are_asked_for_on_the_way():
    walks = sent_back()
    look_up(walks, (ROOT, b"d"))
    walks.note_other(T, only_walks=True)
    assert fails(walks, (NEW, b"f"))


def test_a_walk_searches_no_directory_twice():
    walks = sent_back()
    look_up(walks, (ROOT, b"d"), (NEW, b"f"))
    assert not fails(walks, (NEW, b"f"))
    walks = sent_back()
    look_up(walks, (ROOT, b"d"), (NEW, b"f"), (ROOT, b"e"))
    assert not fails(walks, (OTHER, b"f"))


def test_a_call_with_two_paths_walks_both():
    walks = sent_back(path_count=2)
    look_up(walks, (ROOT, b"d"), (NEW, b"f"), (ROOT, b"e"))
    assert fails(walks, (OTHER, b"f"))
    walks = sent_back(path_count=2)
    look_up(walks, (ROOT, b"d"), (NEW, b"f"), (ROOT, b"e"), (OTHER, b"f"), (ROOT, b"e"))
    assert not fails(walks, (OTHER, b"f"))


def test_of_what_the_kernel_keeps_it_asks_twice():
    walks = sent_back()
    assert fails(walks, (OLD, b"f"), may_keep=True)
    assert fails(walks, (OLD, b"f"))  # it has let go of it
    assert not fails(walks, (OLD, b"f"))
    walks = sent_back(keeps_all=True)
    assert fails(walks, (OLD, b"f"))
    assert fails(walks, (OLD, b"f"))
    assert not fails(walks, (OLD, b"f"))


def test_what_failed_ends_it():
    walks = sent_back(keeps_all=True)
    assert fails(walks, (OLD, b"f"))
    assert not fails(walks, (OTHER, b"g"))


def test_no_more_than_so_many_are_remembered():
    walks = SecondWalks()
    for thread in range(3 * second_walks.THREAD_COUNT_MAX):
        walks.begin(thread, CALL)
    assert len(walks.by_thread) <= second_walks.THREAD_COUNT_MAX
    assert walks.changes(3 * second_walks.THREAD_COUNT_MAX - 1, CALL)
