# ruff: noqa: ARG001 - the clock fixture acts by being asked for
"""Damaged copies: repaired from another replica, never from anything else."""

import pytest
import trio

from fs.chunkengine.books import StuckError
from fs.schema.ids import ChunkId
from fs.schema.status import FsError, Status
from fs.storage import damage, scrub

from .cluster import CHUNK, INODE, content, open_caller, open_cluster

pytestmark = pytest.mark.thorough

WORDS = b"words" * 10_000
CHUNK_ID = ChunkId(INODE, 0)


def flip(cluster, node_id, at=20_000):
    for file_id in cluster.nodes[node_id].disk.files:
        cluster.nodes[node_id].disk.flip_bit(file_id, at)


async def found_at(client, node_id, *, is_passed_on=True):
    """What a node says of its own copy, or, not passed on, what it tells a client."""
    ((status, data),) = await client.read_attempt(
        node_id, [(0, 0, len(WORDS))], is_passed_on=is_passed_on
    )
    return Status.OK if data == WORDS else status


async def test_a_damaged_copy_is_repaired_after_it_was_read(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        before = content(cluster, 1)
        flip(cluster, 1)
        flip(cluster, 3)
        assert await found_at(client, 1) is Status.CHECKSUM_MISMATCH
        assert await found_at(client, 3) is Status.CHECKSUM_MISMATCH
        await trio.sleep(3)
        assert [await found_at(client, n) for n in (1, 2, 3)] == [Status.OK] * 3
        assert {content(cluster, n) for n in cluster.nodes} == {before}
        assert not cluster.nodes[1].target.damaged
        await cluster.nodes[1].kill()
        await cluster.start_node(1)
        await cluster.wait_all_serving()
        assert await found_at(client, 1) is Status.OK
        await client.write(0, b"next")
        assert {content(cluster, n)[0] for n in cluster.nodes} == {2}


class LosesAll:
    """A source whose power losses take everything that may be taken."""

    def choice(self, shares):
        return min(shares)

    def random(self):
        return 0.5

    def randint(self, low, _high):
        return low


async def test_what_counts_as_repaired_survives_a_power_loss(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        node = cluster.nodes[2]
        await node.target.disk.sync()
        flip(cluster, 2)
        assert await found_at(client, 2) is Status.CHECKSUM_MISMATCH
        with trio.fail_after(5):
            while node.target.damaged:  # noqa: ASYNC110 - seen only by looking
                await trio.sleep(0.001)
        await node.kill()
        node.disk.power_loss(LosesAll())
        await cluster.start_node(2)
        await cluster.wait_all_serving()
        assert await found_at(client, 2) is Status.OK


async def test_damage_done_between_a_repair_and_its_flush_is_not_forgotten(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        flip(cluster, 2)
        assert await found_at(client, 2) is Status.CHECKSUM_MISMATCH
        target = cluster.nodes[2].target
        flush, seen = target.disk.sync, []

        async def damaged_meanwhile():
            if target.repaired_count and not seen:
                flip(cluster, 2, at=CHUNK + 20_000)  # a repair takes another block
                seen.append(await found_at(client, 2))
            await flush()

        target.disk.sync = damaged_meanwhile
        await trio.sleep(damage.RETRY_INTERVAL_S / 2)
        assert seen == [Status.CHECKSUM_MISMATCH]
        assert target.repaired_count == 2
        assert not target.damaged
        assert await found_at(client, 2) is Status.OK


async def test_what_could_not_be_flushed_is_tried_again(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        flip(cluster, 2)
        assert await found_at(client, 2) is Status.CHECKSUM_MISMATCH
        target = cluster.nodes[2].target
        flush, is_refused = target.disk.sync, [True]

        async def sync():
            if is_refused[0]:
                raise FsError(Status.NO_SPACE, "the flush finds no room")
            await flush()

        target.disk.sync = sync
        await trio.sleep(damage.RETRY_INTERVAL_S / 2)
        assert target.repaired_count == 1
        assert target.damaged
        is_refused[0] = False
        await trio.sleep(damage.RETRY_INTERVAL_S)
        assert not target.damaged


async def test_what_no_replica_has_is_not_made_up(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        for node_id in cluster.nodes:
            flip(cluster, node_id)
            assert await found_at(client, node_id) is Status.CHECKSUM_MISMATCH
        await trio.sleep(2 * damage.RETRY_INTERVAL_S)
        for node_id in cluster.nodes:
            assert await found_at(client, node_id) is Status.CHECKSUM_MISMATCH
            assert await found_at(client, node_id, is_passed_on=False) is Status.CHUNK_DAMAGED
            assert cluster.nodes[node_id].target.damaged
        await client.write(0, WORDS)
        await trio.sleep(2 * damage.RETRY_INTERVAL_S)
        assert not cluster.nodes[1].target.damaged


async def test_what_a_disk_gives_again_is_damaged_no_more(mock_clock):
    """All copies could not be read for a while, say while a controller was reset:
    that is no loss for ever.
    """
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        for node_id in cluster.nodes:
            flip(cluster, node_id)
            assert await found_at(client, node_id) is Status.CHECKSUM_MISMATCH
        await trio.sleep(2 * damage.RETRY_INTERVAL_S)
        assert await found_at(client, 1, is_passed_on=False) is Status.CHUNK_DAMAGED
        flip(cluster, 2)  # back to what it was
        await trio.sleep(2 * scrub.PASS_S_MIN)
        for node_id in cluster.nodes:
            assert await client.read(0, node_id=node_id) == WORDS
            assert not cluster.nodes[node_id].target.damaged


async def test_a_node_without_descriptors_has_no_damage_and_its_disk_has_not_failed(mock_clock):
    """Also where no replica has any: the chunk is whole, and is read as soon as there are some."""

    def refuse(name):
        if name == "read":
            raise FsError(Status.OUT_OF_RESOURCES, "injected")

    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        for node in cluster.nodes.values():
            node.disk.on_step = refuse
        for node_id, node in cluster.nodes.items():
            status = await found_at(client, node_id, is_passed_on=False)
            assert status is Status.OUT_OF_RESOURCES
            assert not node.target.damaged
            assert not node.target.disk.is_failed
        for node in cluster.nodes.values():
            node.disk.on_step = None
        for node_id in cluster.nodes:
            assert await found_at(client, node_id, is_passed_on=False) is Status.OK


@pytest.mark.parametrize("error", [FsError(Status.OUT_OF_RESOURCES, "injected"), MemoryError()])
async def test_the_last_whole_copy_is_not_given_up_by_a_node_without_descriptors(mock_clock, error):
    """Reread without any it counted as bad, and where no other target had the bytes, as lost:
    so it was marked.
    """

    def refuse(name):
        if name == "read":
            raise error

    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        flip(cluster, 2)
        node = cluster.nodes[1]
        node.disk.on_step = refuse
        await trio.sleep(2 * scrub.BEGIN_AFTER_S)
        assert not node.target.damaged
        damage.note_damage(node.target, CHUNK_ID, "by somebody else's word")
        await trio.sleep(2 * damage.RETRY_INTERVAL_S)
        node.disk.on_step = None
        assert not node.target.lost_count
        assert await found_at(client, 1) is Status.OK
        await trio.sleep(2 * damage.RETRY_INTERVAL_S)
        assert not node.target.damaged
        assert await found_at(client, 2) is Status.OK


async def test_the_scrub_finds_damage_that_nobody_reads(mock_clock):
    async with open_cluster(2) as cluster, open_caller(cluster) as client:
        for index in range(5):
            await client.write(0, WORDS, index)
        flip(cluster, 2)
        await trio.sleep(scrub.BEGIN_AFTER_S / 2)
        assert cluster.nodes[2].target.checksum_error_count == 0
        await trio.sleep(scrub.BEGIN_AFTER_S)
        assert cluster.nodes[2].target.checksum_error_count >= 1
        assert await found_at(client, 2) is Status.OK


async def test_a_read_of_a_bad_copy_is_answered_within_the_same_request(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        for index in range(4):
            await client.write(0, b"%d" % index * 30_000, index)
        flip(cluster, 2)
        ios = [(index, 10_000, 20_000) for index in range(4)]
        found = await client.read_attempt(2, ios)
        assert found == [(Status.OK, b"%d" % index * 20_000) for index in range(4)]
        target = cluster.nodes[2].target
        assert target.read_elsewhere_count == len(target.damaged) == target.checksum_error_count > 0
        await trio.sleep(5)
        assert not target.damaged
        assert await client.read_attempt(2, ios, is_passed_on=True) == found


async def test_a_replica_out_of_reach_leaves_hope(mock_clock):
    """The client is not told that the bytes are lost while somebody who may have them is silent."""
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        flip(cluster, 1)
        flip(cluster, 2)
        cluster.is_frozen = True
        cluster.network.block("node-1", "node-3")
        assert await found_at(client, 1, is_passed_on=False) is Status.CHECKSUM_MISMATCH
        cluster.network.heal()
        assert await found_at(client, 1, is_passed_on=False) is Status.OK


async def test_a_wait_for_the_books_is_no_damage(mock_clock):
    async with open_cluster(1) as cluster, open_caller(cluster) as client:
        await client.write(0, WORDS)
        node = cluster.nodes[1]

        def stuck(*_arguments, **_options):
            raise StuckError(Status.IO_ERROR, "a call does not return")

        for name in ("read_cached", "read_cached_rows", "read_cached_row"):
            setattr(node.engine, name, stuck)
        assert await found_at(client, 1, is_passed_on=False) is Status.OK
        assert not node.target.damaged
        assert not node.target.checksum_error_count
