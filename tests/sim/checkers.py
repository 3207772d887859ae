"""What must hold during a run and at its end, one checker per property; each raises AssertionError."""

import trio

from fs.chunkengine.factory import memory_engine
from fs.client.native import EmberFs
from fs.meta.check import check as check_namespace
from fs.meta.check import load

from .cluster import CLUSTER_ID, SimCluster
from .recovered import is_linearizable_across
from .workload import INITIAL, Memory

LOOK_INTERVAL_S = 0.05


async def observe(cluster: SimCluster) -> None:
    """Look all the time: one primary at most; who names a routing version names its one content."""
    while True:
        acting = cluster.acting
        assert len(acting) <= 1, f"two primaries act: {acting}"
        for name in cluster.storages:
            service = cluster.processes[name].services.get("Storage")
            info = service._context.routing.info if service is not None else None
            if info is not None and info.routing_version:
                known = cluster.watch.chain_history.get(info.routing_version)
                assert info.chains == known, (name, info.routing_version, info.chains, known)
        await trio.sleep(LOOK_INTERVAL_S)


def check_registers(memory: Memory) -> None:
    """Every register's history is linearizable, between cuts."""
    for slot, history in memory.histories.items():
        cuts = [
            (cut.time_s, cut.synced_s[slot[0]] if cut.with_power else cut.time_s)
            for cut in memory.cuts
        ]
        assert is_linearizable_across(history, INITIAL, cuts), (
            f"register {slot} is not linearizable: {history}"
        )


def check_contests(memory: Memory) -> None:
    """An exclusive creation has at most one winner, unless power was lost while it was contested."""
    for name, winners in memory.winners.items():
        began_s, ended_s = float(name.split("-")[-1]), max(time_s for _, time_s in winners)
        if not any(cut.with_power and began_s <= cut.time_s <= ended_s for cut in memory.cuts):
            assert len(winners) == 1, f"{name} was created exclusively by {winners}"


async def check_trees(fs: EmberFs, memory: Memory) -> None:
    """Each client's directory holds exactly what its operations left there."""
    for number, tree in memory.trees.items():
        home = f"/home-{number}"
        names = [f"{home}/{entry.name}" for entry in await fs.listdir(home)]
        assert sorted(names) == sorted(tree), (number, names, sorted(tree))
        for name, content in tree.items():
            assert await fs.read_file(name) == content, f"{name} has other content"


async def check_metadata(cluster: SimCluster) -> None:
    """The namespace contradicts itself nowhere."""
    problems = await check_namespace(cluster.kv)
    assert not problems, problems


async def wait_collected(cluster: SimCluster, timeout_s: float = 300) -> set[int]:
    """Wait until garbage collection has freed all that was removed; return the inodes that exist."""
    with trio.move_on_after(timeout_s):
        while True:
            contents = await load(cluster.kv)
            if not contents.gc_files and not contents.gc_directories and not contents.truncations:
                await trio.sleep(5)
                return set(contents.inodes)
            await trio.sleep(1)
    raise AssertionError(f"garbage is not collected: {contents.gc_files} {contents.gc_directories}")


def check_replicas(cluster: SimCluster, inode_ids: set[int] | None) -> int:
    """All targets of a chain hold the same chunks with the same content; return how many chunks there are.

    With `inode_ids`: no chunk belongs to a file that does not exist.
    Reads the disks of processes that have been killed before, as a later process would find them.
    """
    states = {}
    for node_id, disk in cluster.disks.items():
        engine = memory_engine(
            disk,
            cluster_id=CLUSTER_ID,
            node_id=node_id,
            section=cluster.processes[cluster.node_name(node_id)].config.storage,
        )
        for target_id in cluster.targets_of(node_id):
            chunks, after = {}, b""
            while page := engine.list_chunks(target_id, after=after):
                chunks.update(
                    {c.chunk_id: (c.commit_ver, c.length, c.checksum, c.pending_ver) for c in page}
                )
                after = page[-1].chunk_id.pack()
            for chunk_id in chunks:  # what the digests stand for is really there
                engine.read_whole(target_id, chunk_id)
            states[target_id] = chunks
        engine.close()
    count = 0
    for chain_id, members in cluster.chains.items():
        first, *rest = (states[target_id] for target_id, _ in members)
        for other in rest:
            assert first == other, f"chain {chain_id} diverged: {first.items() ^ other.items()}"
        assert all(pending == 0 for *_, pending in first.values()), f"chain {chain_id}: pending"
        if inode_ids is not None:
            leaked = [str(c) for c in first if c.inode_id not in inode_ids]
            assert not leaked, f"chain {chain_id}: chunks of no file: {leaked}"
        count += len(first)
    return count
