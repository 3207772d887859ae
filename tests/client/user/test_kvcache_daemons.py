"""A KV cache outlives mount daemons: calls of the time fail, the next ones go on,
and nobody believes durable what may not be.
"""

import errno
import os
import threading
from contextlib import suppress

import pytest
from emberfs.kvcache_format import key_digest
from emberfs.kvcache_search import Search
from emberfs.posix import PosixClient, PosixFile

from tests.client.user.kvcache_work import check, key, opened, put
from tests.client.user.serving import NEEDS_MOUNT, Server


class MortalFile(PosixFile):
    client: "Mortal"
    born = 0

    def descriptor(self):
        self.client.live(self.born)
        return super().descriptor()

    def close(self):
        was_open = self._descriptor >= 0
        with suppress(OSError):
            super().close()
        if was_open:
            self.client.live(self.born)


class Mortal(PosixClient):
    """As on a mount whose daemon dies: what was open is ENOTCONN for ever,
    what is opened while it is served is good.
    """

    def __init__(self):
        super().__init__(0)
        self.generation = 0
        self.is_served = True
        self.closed_count = 0

    def live(self, born):
        if not self.is_served or born != self.generation:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def open(self, path, mode="r"):
        self.live(self.generation)
        file = MortalFile(path, mode, self._files.discard)
        file.client, file.born = self, self.generation
        self._files.add(file)
        return file

    def die(self, *, is_served):
        self.generation += 1
        self.is_served = is_served


def started(folder):
    client = Mortal()
    cache = opened(folder, connect=lambda: client)
    assert put(cache, range(70)) == 70  # in two segments
    return cache, client


CALLS = {
    "get": lambda cache: check(cache, [1, 65, 99]) == [1, 65],
    "put": lambda cache: put(cache, [2, 100, 101]) == 2,
    "contains": lambda cache: cache.contains([key(3), key(99)]) == [True, False],
    "delete": lambda cache: cache.delete([key(3), key(65), key(99)]) == 2,
    "collect": lambda cache: cache.collect().segment_count == 0,
    "refresh": lambda cache: cache.refresh() is None,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_each_call_goes_on_once_the_mount_is_served(tmp_path, call):
    cache, client = started(tmp_path)
    client.die(is_served=True)
    assert call(cache)
    assert check(cache, [1, 66]) == [1, 66]
    assert put(cache, [200]) == 1
    with pytest.raises(OSError, match="may not survive"):
        cache.sync()
    cache.sync()
    cache.close()
    assert not client._files


@pytest.mark.parametrize("call", [CALLS[name] for name in ("get", "put", "delete", "refresh")])
def test_while_nobody_serves_calls_fail_at_once_and_lose_nothing(tmp_path, call):
    cache, client = started(tmp_path)
    client.die(is_served=False)
    for _ in range(3):
        with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
            call(cache)
        assert failed.value.errno == errno.ENOTCONN
    client.is_served = True
    assert check(cache, range(70)) == list(range(70))
    with pytest.raises(OSError, match="may not survive"):
        cache.close()
    assert not client._files


def test_who_has_put_nothing_is_told_of_no_loss(tmp_path):
    started(tmp_path)[0].close()
    client = Mortal()
    with opened(tmp_path, connect=lambda: client) as cache:
        assert check(cache, [5]) == [5]
        client.die(is_served=True)
        assert check(cache, [6]) == [6]
        cache.sync()
        client.die(is_served=False)  # closing what was only read is no failure


def test_threads_open_it_anew_once(tmp_path):
    cache, client = started(tmp_path)
    client.die(is_served=True)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(check(cache, range(70)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(70))] * 8
    assert cache.stats.segment_count == 2
    with suppress(OSError):
        cache.close()
    assert not client._files


def test_a_thread_that_is_still_in_what_was_lost_finds_its_blocks_all_the_same(tmp_path):
    """Another one has opened the folder anew meanwhile:
    between looking blocks up and reading them.
    """
    cache, client = started(tmp_path)
    entered, found = [], []

    def read(segments):
        entered.append(segments)
        if len(entered) == 1:
            client.die(is_served=True)
            assert check(cache, [66]) == [66]
        search = Search([key_digest(key(5))], [memoryview(bytearray(cache.block_bytes))])
        cache._search(segments, search)
        found.append(search.found)

    cache._opened.do(read)
    assert found == [[True]]
    assert len(set(map(id, entered))) == 2
    assert entered[0].is_closed
    with pytest.raises(OSError, match="may not survive"):
        cache.close()
    assert not client._files


@pytest.mark.parametrize("puts", [False, True])
def test_a_loss_is_told_once_but_for_what_was_still_being_put_then(tmp_path, puts):
    cache, client = started(tmp_path)

    def act(_segments):
        client.die(is_served=True)
        assert check(cache, [66]) == [66]  # as another thread, which opens the folder anew
        with pytest.raises(OSError, match="may not survive"):
            cache.sync()

    cache._opened.do(act, puts=puts)
    if puts:
        with pytest.raises(OSError, match="may not survive"):
            cache.sync()
    cache.sync()
    cache.close()
    assert not client._files


def test_a_thread_whose_cache_another_closes_is_told_so(tmp_path):
    cache, _ = started(tmp_path)

    def read(segments):
        cache.close()
        cache._search(
            segments, Search([key_digest(key(5))], [memoryview(bytearray(cache.block_bytes))])
        )

    with pytest.raises(OSError, match="is closed") as failed:
        cache._opened.do(read)
    assert failed.value.errno == errno.EBADF


def test_a_child_that_cannot_begin_leaves_alone_what_is_its_parents(tmp_path):
    cache, client = started(tmp_path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            client.is_served = False
            for _ in range(2):
                with pytest.raises(OSError):  # noqa: PT011
                    put(cache, [300])
            client.is_served = True
            assert put(cache, [300]) == 1
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert put(cache, [301]) == 1
    cache.refresh()
    assert check(cache, [300, 301, 69]) == [300, 301, 69]
    assert len(list(tmp_path.iterdir())) == 3
    cache.close()


@pytest.mark.slow
@pytest.mark.mount
@pytest.mark.skipif(*NEEDS_MOUNT[1].args, **NEEDS_MOUNT[1].kwargs)
def test_on_a_mount_that_is_served_by_another(tmp_path):
    """Over rings; the model of the cluster goes with its daemon, so all blocks are misses then."""
    folder = tmp_path / "mnt" / "kv"
    server = Server(tmp_path / "mnt")
    try:
        cache = opened(folder)
        iov = cache.allocate(1)
        assert put(cache, [1, 2]) == 2
        server.close()
        for _ in range(2):
            # The mount point is bare: that its files are missing there says nothing of the blocks.
            with pytest.raises(OSError) as failed:  # noqa: PT011 - the number is looked at
                check(cache, [1, 2])
            assert failed.value.errno == errno.ENOTCONN
        server = Server(tmp_path / "mnt")
        folder.mkdir()
        assert check(cache, [1, 2]) == []
        assert put(cache, [1]) == 1
        assert cache.get_into([key(1)], [iov.view]) == [True]
        with pytest.raises(OSError, match="may not survive"):
            cache.sync()
        cache.sync()
        cache.close()
        assert server.stop()["sessions"] == 0
    finally:
        server.close()
