# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Where a storage process has no memory, or no thread, for what it does by itself,
it goes on serving, and does that later.
"""

from itertools import product

import pytest
import trio

from fs.chunkengine.engine import DiskEngine
from fs.rpc.buffer_pool import BufferPool
from fs.storage import failed_disks, resync, storage, watermarks
from tests.examples import some_of

from .cluster import content, open_caller, open_cluster
from .test_failed_disks import empty, fill, wait_failed
from .test_resync import assert_equal
from .test_resync import fill as fill_chunks

pytestmark = pytest.mark.thorough

ERRORS = [MemoryError("injected"), RuntimeError("can't start new thread")]


class Lacking:
    """A function that fails so often, and is what it was then."""

    def __init__(self, monkeypatch, place, name, error):
        self.left = 3
        real = getattr(place, name)

        def function(*args, **more):
            if self.left:
                self.left -= 1
                raise error
            return real(*args, **more)

        monkeypatch.setattr(place, name, function)


@pytest.mark.parametrize(
    ("what", "error"),
    some_of(product(["space", "sync", "list_chunks", "compact"], ERRORS), 5),
)
async def test_what_a_disk_is_asked_in_the_background_is_asked_later(
    mock_clock, monkeypatch, what, error
):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        lacking = Lacking(monkeypatch, DiskEngine, what, error)
        await trio.sleep(600.0)
        assert lacking.left < 3
        await client.write(0, b"after-")
        assert {content(cluster, n)[2] for n in cluster.nodes} == {b"after-"}


@pytest.mark.parametrize("what", [(BufferPool, "acquire"), (resync, "transfer"), (resync, "merge")])
async def test_a_replica_is_brought_up_to_date_later(mock_clock, monkeypatch, what):
    """Buffers for that are the largest that a storage process asks for by itself."""
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await fill_chunks(client, range(6))
        await cluster.nodes[2].kill()
        await cluster.wait_states({1: "SERVING", 2: "OFFLINE"})
        for index in range(6):
            await client.write(0, b"changed", index)
        monkeypatch.setattr(resync, "takes_groups", lambda *_: what[0] is BufferPool)
        lacking = Lacking(monkeypatch, *what, MemoryError("injected"))
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert not lacking.left
        assert_equal(cluster, range(6))


@pytest.mark.parametrize(
    "step",
    [(storage, "commit_pending"), (storage, "load_updates"), (watermarks, "note_watermarks")],
)
async def test_who_served_alone_serves_again(mock_clock, monkeypatch, step):
    """Its step was taken for done, and nobody would have it taken again
    before the chain changed.
    """
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        await cluster.nodes[1].kill()
        lacking = Lacking(monkeypatch, *step, MemoryError("injected"))
        await cluster.start_node(1)
        await cluster.wait_all_serving()
        assert not lacking.left
        await client.write(0, b"after-")
        assert content(cluster, 1)[2] == b"after-"


@pytest.mark.parametrize("step", ["reopen", "bring back"])
@pytest.mark.parametrize("error", ERRORS)
async def test_a_failed_disk_returns_with_its_targets(mock_clock, monkeypatch, step, error):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, b"before")
        node = cluster.nodes[1]
        fill(node)
        await wait_failed(cluster, [1])
        looks_after = node.storage._failed_disks
        if step == "reopen":
            lacking = Lacking(monkeypatch, looks_after, "_reopen", error)
        else:
            lacking = Lacking(monkeypatch, failed_disks, "load_standing", error)
        empty(node)
        await cluster.wait_all_serving()
        assert not lacking.left
