"""Where a file has data again: the least of what its chains say,
also of chains that this client knew nothing of.
"""

import random
from dataclasses import replace

import pytest

from fs.client.storage_client import StorageClient
from fs.rpc.api import Received
from fs.runtime.ports import Runtime
from fs.schema import services
from fs.schema.config import ClientSection
from fs.schema.proto import storage_pb2 as pb

from .fakes import FakeClock, run_inline
from .test_routing_math import THREE, ref
from .test_unsynced import Routing


class Nodes:
    """Storage nodes by what they say of each chain;
    those of earlier releases do not say how far they looked.
    """

    def __init__(self, answers):
        self.answers = answers
        self.asked = set()

    async def call(self, _node_id, method, request, **_options):
        assert method is services.STORAGE_QUERY_LAST_CHUNK
        results = []
        for query in request.queries:
            assert query.is_next_wanted and query.first_index == 7
            self.asked.add(query.chain_id)
            last, following = self.answers.get(query.chain_id, (None, 0))
            results.append(
                pb.LastChunkResultPb(
                    has_chunk=last is not None, chunk_index=last or 0, next_index=following
                )
            )
        return Received(pb.QueryLastChunkRsp(results=results))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([], None),
        ([(6, 0)], None),
        ([(90, 40)], 40),
        ([(90, 40), (30, 30), (2, 0)], 30),
        ([(90, 40), (90, 0)], 7),
        ([(6, 40)], 40),  # one in doubt, behind the last that is committed
        ([(None, 40), (90, 50)], 40),
    ],
)
async def test_the_least_counts(autojump_clock, told, expected):  # noqa: ARG001
    runtime = Runtime(FakeClock(), None, run_inline, random.Random(1))
    store = StorageClient(
        "c",
        channels=None,
        routing=Routing(THREE),
        mgmtd=None,
        runtime=runtime,
        section=ClientSection(),
    )
    file = ref()
    chain_ids = sorted(THREE.chains)[: file.layout.stripe_size]
    store._nodes = Nodes(dict(zip(chain_ids, told, strict=False)))
    assert await store.next_data(replace(file, dyn_stripe=1), 7) == expected
    assert len(store._nodes.asked) == file.layout.stripe_size
