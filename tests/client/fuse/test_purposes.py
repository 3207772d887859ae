"""What look-ups are for, guessed from what the same thread did before."""

import pytest

from fs.client.fuse.direct import purposes
from fs.client.fuse.direct.purposes import Purposes


class Thread:
    """Looks names up, and says which guesses were right."""

    def __init__(self, purposes, thread_id=1):
        self.purposes = purposes
        self.thread_id = thread_id

    def look(self, name):
        return self.purposes.is_removal(self.thread_id, (5, name))

    def stat(self, name):
        return not self.look(name)

    def remove(self, name):
        guess = self.look(name)
        self.purposes.note_removal(self.thread_id, (5, name))
        return guess

    def replace(self, old, new):
        guesses = self.look(old), self.look(new)
        self.purposes.note_removal(self.thread_id, (5, old), (5, new))
        return all(guesses)


@pytest.fixture
def thread():
    return Thread(Purposes())


def of(number):
    return b"%d" % number


def test_who_removes_goes_on_to_remove(thread):
    assert [thread.remove(of(i)) for i in range(5)] == [False, False, True, True, True]


def test_who_only_looks_is_never_taken_for_one_who_removes(thread):
    assert all(thread.stat(of(i)) for i in range(5))


def test_who_begins_to_look_again_is_taken_for_it_twice(thread):
    for number in range(5):
        thread.remove(of(number))
    assert [thread.stat(of(i)) for i in range(5)] == [False, False, True, True, True]
    assert [thread.remove(of(i)) for i in range(5)] == [False, False, False, True, True]


def test_who_does_both_in_turn_is_known_for_it(thread):
    guesses = [(thread.stat(of(i)), thread.remove(of(i))) for i in range(5)]
    assert guesses[2:] == [(True, True)] * 3


def test_of_who_does_three_things_in_turn_nothing_is_expected(thread):
    for number in range(6):
        assert thread.stat(of(number))
        assert thread.stat(of(number))
        assert not thread.remove(of(number))


def test_who_moves_one_file_onto_another_again_and_again_is_known_for_it(thread):
    guesses = [thread.replace(b"new", b"name") for _ in range(5)]
    assert guesses[2:] == [True] * 3


def test_a_new_thread_is_taken_to_do_what_the_last_one_did():
    one = Purposes()
    for number in range(3):
        Thread(one, 7).remove(of(number))
    assert Thread(one, 8).remove(b"x")
    for number in range(3, 6):
        Thread(one, 8).stat(of(number))
    assert Thread(one, 9).stat(b"x")
    assert Thread(one, 7).remove(b"y"), "it knows better"


def test_threads_that_do_something_else_at_once_are_told_apart():
    one = Purposes()
    removing, looking = Thread(one, 7), Thread(one, 8)
    guesses = [(removing.remove(of(i)), looking.stat(of(i))) for i in range(6)]
    assert guesses[2:] == [(True, True)] * 4


def test_what_a_thread_removes_without_having_looked_it_up_tells_nothing(thread):
    thread.purposes.note_removal(1, (5, b"a"))
    assert thread.stat(b"b")
    thread.purposes.note_removal(1, (5, b"a"))
    assert thread.stat(b"c")


def test_only_so_many_threads_are_remembered(monkeypatch):
    monkeypatch.setattr(purposes, "THREAD_COUNT_MAX", 2)
    one = Purposes()
    for number in range(5):
        Thread(one, number).remove(b"a")
    assert len(one._threads) == 2
