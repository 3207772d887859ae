from .cluster import CHUNK, content, open_caller, open_cluster


async def test_a_write_reaches_every_replica(mock_clock):
    async with open_cluster(3) as cluster, open_caller(cluster) as client:
        reply = await client.write(0, b"hello")
        assert (reply.update_ver, reply.commit_ver, reply.chunk_length) == (1, 1, 5)
        await client.write(3, b"LOOP")
        for node_id in cluster.nodes:
            assert content(cluster, node_id) == (2, 0, b"helLOOP")
            assert await client.read(node_id=node_id) == b"helLOOP"
