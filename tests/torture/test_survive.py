"""The load's judgement of what is left when a mount has died, on files in memory;
and what counts as a leftover.
"""

import errno

import pytest

from tests.torture.content import BLOCK_BYTES
from tests.torture.fleet import is_leftover
from tests.torture.load import FileLoad, Log, WrongContentError, step
from tests.torture.survive import MountDiedError

pytestmark = pytest.mark.thorough

FACTS = (3, 0, 100, 77)


class MemoryFiles:
    """Files whose mount can die: from `deadline` calls on everything fails;
    the next mount shows what was synced.
    """

    def __init__(self):
        self.now, self.synced = {}, {}
        self.calls_left = 10**9
        self.is_applied = False
        """The call that meets the death takes effect."""

    def _call(self, change=lambda: None):
        self.calls_left -= 1
        if self.calls_left < 0:
            if self.calls_left == -1 and self.is_applied:
                change()
            raise OSError(errno.ENOTCONN, "dead")
        change()

    def _put(self, name, offset, data):
        file = self.now.setdefault(name, bytearray())
        self.synced.setdefault(name, b"")
        file.extend(bytes(max(0, offset - len(file))))
        file[offset : offset + len(data)] = data

    def write(self, name, offset, data):
        self._call(lambda: self._put(name, offset, data))

    def append(self, name, data):
        self._call(lambda: self._put(name, len(self.now.get(name, b"")), data))

    def read(self, name, offset, length):
        self._call()
        return bytes(self.now[name][offset : offset + length])

    def sync(self, name):
        self._call(lambda: self.synced.update({name: bytes(self.now[name])}))

    def length(self, name):
        self._call()
        return len(self.now[name])

    def _move(self, old, new):
        for files in (self.now, self.synced):
            files[new] = files.pop(old)

    def rename(self, old, new):
        self._call(lambda: self._move(old, new))

    def _remove(self, name):
        del self.now[name], self.synced[name]

    def unlink(self, name):
        self._call(lambda: self._remove(name))

    def names(self):
        self._call()
        return sorted(self.now)

    def forget(self, name):
        pass

    def require_alive(self):
        if self.calls_left < 0:
            raise MountDiedError

    def wait_next(self):
        self.calls_left = 10**9
        self.now = {name: bytearray(data) for name, data in self.synced.items()}


class Notes(Log):
    """A log in memory."""

    def __init__(self):
        self.op_count, self.longest_s, self.deaths = 0, 0.0, 0

    def put(self, **fields):
        self.deaths += "dead" in fields


def run(seed, spoil=None, *, is_applied=False):
    """Work for a while, die in the middle of something,
    let the next mount show what `spoil` leaves.
    """
    files, log = MemoryFiles(), Notes()
    load = FileLoad(files, seed, log)
    for _ in range(60):
        step(load, log)
    files.is_applied, files.calls_left = is_applied, seed % 3
    if spoil is not None:
        wait_next = files.wait_next
        files.wait_next = lambda: (wait_next(), spoil(files))
    while not log.deaths:
        step(load, log)
    return load, files


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_what_a_death_may_take_is_accepted(seed, is_applied):
    load, files = run(seed, is_applied=is_applied)
    for _ in range(30):
        load.step()  # it goes on, with other files
    assert load.finish()["files"] == len(files.names())


def lose_a_name(files):
    """Two, since one could be that of an unlink under way."""
    del files.now[min(files.now)], files.now[max(files.now)]


def lose_synced_bytes(files):
    name = max(files.now, key=lambda n: len(files.now[n]))
    files.now[name][:BLOCK_BYTES] = bytes(BLOCK_BYTES)


def lose_length(files):
    name = max(files.now, key=lambda n: len(files.now[n]))
    del files.now[name][-BLOCK_BYTES:]


@pytest.mark.parametrize("spoil", [lose_a_name, lose_synced_bytes, lose_length])
def test_what_a_death_must_not_take_is_found(spoil):
    with pytest.raises(WrongContentError, match=r"names|lost synced write|expected version"):
        run(5, spoil)


@pytest.mark.parametrize(
    ("others", "is_left"),
    [
        ((3, 4, 100, 77), True),
        ((3, 0, 100, 78), False),
        ((2, 3, 90, 66), True),
        ((2, 0, 90, 66), False),
        ((1, 3, 90, 66), False),
        (None, False),
    ],
)
def test_only_pending_versions_are_leftovers(others, is_left):
    assert is_leftover({1: FACTS, 2: others}) is is_left


def test_a_chunk_that_was_never_committed_is_a_leftover():
    assert is_leftover({1: (0, 1, 0, 0), 2: None})
