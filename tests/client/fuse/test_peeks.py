"""Whether a directory is opened to be listed, or only looked into:
as `rm -r` does, as others do.
"""

from fs.client.fuse.direct.peeks import THREAD_COUNT_MAX, Peeks


class Thread:
    """Opens directories through one mount."""

    handle_id = 0

    def __init__(self, peeks, thread_id=1):
        self.peeks = peeks
        self.thread_id = thread_id

    def open(self, inode_id, *reads):
        """Open a directory, read it so often, each time with what is said, and close it;
        return whether a peek was expected.
        """
        Thread.handle_id += 1
        handle_id = Thread.handle_id
        self.peeks.note_open(self.thread_id, inode_id, handle_id)
        is_peek = self.peeks.is_peek(handle_id)
        for has_entries in reads:
            self.peeks.note_read(handle_id, has_entries=has_entries)
            assert not self.peeks.is_peek(handle_id)
        self.peeks.note_closed(handle_id)
        return is_peek

    def remove(self, inode_id):
        """As `rm -r`."""
        is_peek = self.open(inode_id, True)
        assert not self.open(inode_id, True, False)
        return is_peek


def test_removals_of_trees_look_first():
    rm = Thread(Peeks())
    assert [rm.remove(inode_id) for inode_id in range(5)] == [False, False, True, True, True]


def test_empty_directories_say_nothing():
    rm = Thread(Peeks())
    found = []
    for inode_id in range(5):
        found.append(rm.remove(inode_id))
        rm.open(100 + inode_id, False)
    assert found == [False, False, True, True, True]


def test_a_subdirectory_is_looked_into_while_the_one_above_is_open():
    peeks = Peeks()
    rm = Thread(peeks)
    for inode_id in range(3):
        rm.open(inode_id, True)
        peeks.note_open(1, inode_id, 1000 + inode_id)
        peeks.note_read(1000 + inode_id, has_entries=True)
    assert rm.open(3, True)


def test_who_reads_on_is_shown_all():
    peeks = Peeks()
    thread = Thread(peeks)
    for inode_id in range(4):
        thread.remove(inode_id)
    assert thread.open(4, True, True, False)
    assert not thread.open(5, True, True, False)
    assert [thread.remove(inode_id) for inode_id in (6, 7, 8)] == [False, False, True]


def test_listings_are_no_peeks():
    peeks = Peeks()
    ls, again = Thread(peeks, 1), Thread(peeks, 2)
    assert not any(ls.open(inode_id, True, False) for inode_id in range(9))
    assert not any(again.open(7, True, False) for _ in range(9))


def test_each_thread_by_itself():
    peeks = Peeks()
    rm, ls = Thread(peeks, 1), Thread(peeks, 2)
    for inode_id in range(4):
        rm.remove(inode_id)
        assert not ls.open(inode_id, True, False)
    assert rm.remove(4)


def test_threads_that_are_gone_are_forgotten():
    peeks = Peeks()
    rm = Thread(peeks, 0)
    for inode_id in range(3):
        rm.remove(inode_id)
    for thread_id in range(1, THREAD_COUNT_MAX + 1):
        Thread(peeks, thread_id).open(1, True)
    assert not rm.remove(9)


def test_what_was_not_opened_here_is_no_peek():
    peeks = Peeks()
    assert not peeks.is_peek(1)
    peeks.note_read(1, has_entries=True)
    peeks.note_closed(1)
