# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Updates of which a replica tells whoever asked before it commits (decision 0119),
where the commit does not come at once.
"""

import pytest
import trio

from fs.chunkengine.books import StuckError
from fs.schema.status import Status

from .cluster import content, open_caller, open_cluster


def stick_once(monkeypatch, node):
    """Have the books of a disk be taken for longer than the event loop waits, once:
    when it wants to commit.
    """
    engine, asked = node.engine, []
    real = engine.commit

    def commit(*args, **options):
        asked.append(args)
        if len(asked) == 1:
            raise StuckError(Status.IO_ERROR, "a call does not return")
        return real(*args, **options)

    monkeypatch.setattr(engine, "commit", commit)
    return asked


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_commit_that_cannot_have_the_books_in_time_is_made_nevertheless(
    mock_clock, monkeypatch, node_id
):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        asked = stick_once(monkeypatch, cluster.nodes[node_id])
        version = cluster.chain.chain_version
        await client.write(0, b"first")
        await client.write(5, b", second")
        await trio.sleep(1.0)
        assert len(asked) == 3
        assert cluster.chain.chain_version == version, "nobody had to leave"
        assert {content(cluster, n) for n in cluster.nodes} == {(2, 0, b"first, second")}
        assert not any(node.target.unsettled for node in cluster.nodes.values())
