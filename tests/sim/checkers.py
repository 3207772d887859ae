"""What must hold at the end of a run, one checker per property; each raises AssertionError with what is wrong."""

import trio

from fs.chunkengine.factory import memory_engine
from fs.client.native import EmberFs
from fs.meta.check import check as check_namespace
from fs.meta.check import load

from .cluster import CLUSTER_ID, SimCluster
from .linearizable import is_linearizable
from .workload import INITIAL, Memory


def check_registers(memory: Memory) -> None:
    """Every register's history is linearizable."""
    for slot, history in memory.histories.items():
        assert is_linearizable(history, INITIAL), f"register {slot} is not linearizable: {history}"


def check_contests(memory: Memory) -> None:
    """An exclusive creation has at most one winner."""
    for name, winners in memory.winners.items():
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


async def wait_collected(cluster: SimCluster, timeout_s: float = 300) -> None:
    """Wait until garbage collection has freed all that was removed: nothing is under way any more."""
    with trio.move_on_after(timeout_s):
        while True:
            contents = await load(cluster.kv)
            if not contents.gc_files and not contents.gc_directories:
                await trio.sleep(5)
                return
            await trio.sleep(1)
    raise AssertionError(f"garbage is not collected: {contents.gc_files} {contents.gc_directories}")


def check_replicas(cluster: SimCluster) -> int:
    """All targets of a chain hold the same chunks with the same content; return how many chunks there are.

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
            states[target_id] = chunks
        engine.close()
    count = 0
    for chain_id, members in cluster.chains.items():
        first, *rest = (states[target_id] for target_id, _ in members)
        for other in rest:
            assert first == other, f"chain {chain_id} diverged: {first.items() ^ other.items()}"
        assert all(pending == 0 for *_, pending in first.values()), f"chain {chain_id}: pending"
        count += len(first)
    return count
