# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Random faults under load: linearizability of chunk registers, equal replicas at the end,
and what was called durable is.
"""

import os
import random
from itertools import product

import pytest
import trio

from fs.schema import services
from fs.schema.read_columns import WantedRead, read_request, read_results
from fs.schema.status import FsError, Status
from tests.examples import some_of

from .cluster import CHAIN, CHUNK, INODE, content, open_caller, open_cluster

pytestmark = pytest.mark.thorough

SEEDS = range(1, 1 + int(os.environ.get("EMBER_STORAGE_SEEDS", "3")))
CASES = some_of(product(SEEDS, [2, 3, 5]), 5 * len(SEEDS) // 3)
CHUNK_COUNT = 2
LOAD_S = 12.0
CACHED_SHARE = 0.6
"""Of reads."""
RANGED_SHARE = 0.4
"""Of writes: by two ranges."""
VALUE_BYTES = 16
"""All that a chunk ever holds: a read of so much is whole, one of more is short."""


class History:
    """What clients saw, per chunk: (start, end, kind, value, version)."""

    def __init__(self):
        self.operations = {index: [] for index in range(CHUNK_COUNT)}
        self.durable = dict.fromkeys(range(CHUNK_COUNT), 0)
        """The newest version of each chunk whose writer was told that it is."""
        self.durable_count = 0

    def check(self):
        return sum(self._check_chunk(index, ops) for index, ops in self.operations.items())

    def _check_chunk(self, index, operations):
        version_of = {}
        for _, _, _, value, version in operations:
            if value is not None:
                assert version_of.setdefault(value, version) == version, (
                    f"chunk {index}: {value} took effect as {version_of[value]} and {version}"
                )
        versions = set(version_of.values())
        assert len(versions) == len(version_of), f"chunk {index}: one version, two values"
        # A version seen by an operation that had ended bounds every operation that began later.
        ended = sorted(operations, key=lambda op: op[1])
        floor, position = 0, 0
        for start, _, kind, value, version in sorted(operations, key=lambda op: op[0]):
            while position < len(ended) and ended[position][1] < start:
                floor = max(floor, ended[position][4])
                position += 1
            limit = floor + 1 if kind == "write" else floor
            assert version >= limit, (
                f"chunk {index}: {kind} {value} at {start}: {version} < {limit}"
            )
        return len(operations)


async def run_writer(cluster, seed, number, history, until_s):
    rng = random.Random(seed * 100 + number)
    async with open_caller(cluster, f"writer-{number}") as client:
        count = 0
        while trio.current_time() < until_s:
            index = rng.randrange(CHUNK_COUNT)
            count += 1
            value = f"{number:04}{count:012}".encode()
            start = trio.current_time()
            request = client.write_request(0, value, index)
            request.is_durable = rng.random() < 0.5
            if rng.random() < RANGED_SHARE:
                cut = rng.randint(1, VALUE_BYTES - 1)
                request.range_offsets.extend((0, cut))
                request.range_lengths.extend((cut, VALUE_BYTES - cut))
            reply = await client.update(request, value, retry_s=200.0)
            if reply.is_durable:
                history.durable[index] = max(history.durable[index], reply.update_ver)
                history.durable_count += 1
            history.operations[index].append(
                (start, trio.current_time(), "write", value, reply.update_ver)
            )
            await trio.sleep(rng.random() * 0.1)


async def run_reader(cluster, seed, number, history, until_s):
    rng = random.Random(seed * 200 + number)
    async with open_caller(cluster, f"reader-{number}") as client:
        while trio.current_time() < until_s:
            index = rng.randrange(CHUNK_COUNT)
            # Any node, also one that the client wrongly believes to serve.
            node_id = rng.choice(sorted(cluster.nodes))
            start = trio.current_time()
            try:
                length = rng.choice([CHUNK, VALUE_BYTES])
                value, version = await read_version(client, node_id, index, length)
            except FsError:
                await trio.sleep(0.02)
                continue
            history.operations[index].append((start, trio.current_time(), "read", value, version))
            await trio.sleep(rng.random() * 0.05)


async def read_version(client, node_id, index, length=CHUNK):
    """Read at a node under the chain version that this very node knows: the test of fencing."""
    routing = client.cluster.nodes[node_id].routing.info
    version = routing.chain(CHAIN).chain_version
    request = read_request([WantedRead(INODE, index, CHAIN, version, 0, length)])
    received = await client.channel(node_id).call(
        services.STORAGE_BATCH_READ, request, timeout_s=2.0
    )
    (result,) = read_results(received.message, 1)
    if result.status == Status.CHUNK_NOT_FOUND:
        return None, 0
    if result.status:
        raise FsError(Status(result.status), result.detail)
    return bytes(received.payload), result.commit_ver


async def make_faults(cluster, rng, until_s):
    faults = ["kill", "kill", "start", "start", "cut", "isolate", "heal", "reset", "slow"]
    while trio.current_time() < until_s:
        await trio.sleep(rng.expovariate(1.5))
        node = cluster.nodes[rng.choice(sorted(cluster.nodes))]
        other = cluster.nodes[rng.choice(sorted(cluster.nodes))]
        fault = rng.choice(faults)
        if fault == "kill" and node.is_alive:
            await node.kill()
        elif fault == "start" and not node.is_alive:
            await cluster.start_node(node.node_id)
        elif fault == "cut":
            cluster.cut_off.add(node.node_id)
        elif fault == "isolate":
            cluster.cut_off.add(node.node_id)
            cluster.network.partition(
                [node.name], [n.name for n in cluster.nodes.values() if n is not node]
            )
        elif fault == "heal":
            heal(cluster)
        elif fault == "reset" and other is not node:
            cluster.network.reset(node.name, other.name)
        elif fault == "slow":
            cluster.delivery_delay_s = rng.choice([0.01, 0.1, 0.5])


def heal(cluster):
    cluster.cut_off.clear()
    cluster.network.heal()
    for node in cluster.nodes.values():
        if node.is_alive:
            node.routing.deliver(cluster.info)


async def recover(cluster):
    heal(cluster)
    cluster.delivery_delay_s = 0.02
    for node in cluster.nodes.values():
        if not node.is_alive:
            await cluster.start_node(node.node_id)
    await cluster.wait_all_serving()


async def cut_power(cluster, rng):
    """All machines at once; they are missed in any order."""
    nodes = list(cluster.nodes.values())
    rng.shuffle(nodes)
    for node in nodes:
        await node.kill()
        node.disk.power_loss(rng)
    for node in nodes:
        await cluster.wait_judged(node.node_id)
    await recover(cluster)


@pytest.mark.parametrize(("seed", "node_count"), CASES)
async def test_random_faults(mock_clock, seed, node_count):
    rng = random.Random(seed * 10 + node_count)
    history = History()
    async with open_cluster(
        node_count, seed=seed, forward_timeout_s=3.0, block_bytes=(4096, 16384)[seed % 2]
    ) as cluster:
        until_s = trio.current_time() + LOAD_S
        for node in cluster.nodes.values():
            node.disk.is_cached = lambda: rng.random() < CACHED_SHARE
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(run_writer, cluster, seed, number, history, until_s)
            for number in range(2):
                nursery.start_soon(run_reader, cluster, seed, number, history, until_s)
            await make_faults(cluster, rng, until_s)
            await recover(cluster)
        await run_writer(cluster, seed, 3, history, trio.current_time() + rng.random())
        await cut_power(cluster, rng)
        for index, version in history.durable.items():
            for node_id in cluster.nodes:
                assert (content(cluster, node_id, index) or (0,))[0] >= version, (index, version)
        async with open_caller(cluster, "final") as client:
            for index in range(CHUNK_COUNT):
                await client.write(0, b"final-----------", index)
        for index in range(CHUNK_COUNT):
            copies = {content(cluster, node_id, index) for node_id in cluster.nodes}
            assert len(copies) == 1, copies
    assert history.check() > 20
    assert history.durable_count > 5
