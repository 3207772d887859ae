"""Recovery of a storage node that missed writes:
how fast it is brought up to date, and who does the work.

`python -m benchmarks.recovery [--full] [--dir DIRECTORY]`; needs root and fio.

Five nodes, chains of three, which the manager brings back into their preferred order first.  One
process is killed, everything is overwritten without it, and it is started again; the clock runs
from its start until every chain is complete.  Who read how much is told by `/proc/PID/io`.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import trio
from msgspec import structs

from fs.app.terminal.progress import Progress
from fs.client.connect import Client
from fs.runtime.config_file import read_config, write_config
from fs.schema.routing import PublicState

from .cluster import PATIENCE_S, Nodes, ember, fresh_cluster
from .command import bench_command
from .storage import (
    FULL,
    QUICK,
    REPLICA_COUNT,
    Sizes,
    StorageLoad,
    buffered_mib_s,
    storage_client,
)
from .table import Row
from .workloads import MIB

NODE_COUNT = 5
CHAIN_COUNT = 20
"""Twelve targets a node: enough for every pair of nodes to share three chains."""

ROTATE_AFTER_S = 2.0
"""Of chains; a cluster that is not measured leaves them alone for a minute."""

WRITE_GOAL = 0.8
"""Of a third of local writes; recovery is held against half of it."""


def _is_in_order(chains: list[Any]) -> bool:
    return _is_complete(chains) and all(chain["is_in_order"] for chain in chains)


def _is_complete(chains: list[Any]) -> bool:
    return bool(chains) and all(chain["is_complete"] for chain in chains)


async def _all_serve(client: Client) -> None:
    """Wait until every member of every chain serves, as a client is told:
    each `ember status` is a process of its own.
    """
    info = client.routing.info
    while any(
        member.public_state is not PublicState.SERVING
        for chain in info.chains.values()
        for member in chain.targets
    ):
        info = await client.routing.wait_newer(info.routing_version)


async def recover(directory: Path, parent: Path, sizes: Sizes) -> list[Row]:
    """Kill, overwrite, restart, wait."""
    nodes = Nodes(directory)
    await trio.to_thread.run_sync(nodes.wait, _is_in_order)
    async with storage_client(directory) as client:
        load = StorageLoad(client, directory, sizes)
        await load.writes(load.big, load.sequential(MIB), MIB)
        pids = nodes.pids()
        lost = max(pids)
        os.kill(pids.pop(lost), signal.SIGKILL)
        await trio.to_thread.run_sync(nodes.wait, lambda chains: not _is_complete(chains))
        load = StorageLoad(client, directory, sizes)  # which knows the processes that are left
        await load.writes(load.big, load.sequential(MIB), MIB)
        goal = WRITE_GOAL * buffered_mib_s(parent, sizes) / REPLICA_COUNT
        before, began = nodes.io_bytes("rchar"), time.perf_counter()
        with nodes.started_by_hand(lost):
            with trio.fail_after(PATIENCE_S):
                await _all_serve(client)
            took = time.perf_counter() - began
            after = nodes.io_bytes("rchar")
    shares = [after[name] - before[name] for name in before]
    moved_mib = sizes.file_mib * REPLICA_COUNT / NODE_COUNT
    return [
        Row(
            "brought up to date (of the idle write goal)", moved_mib / took, "MiB/s", goal, goal=0.5
        ),
        Row("until every chain is complete", took, "s"),
        Row("survivors' reading, largest / mean", max(shares) * len(shares) / sum(shares), "x"),
    ]


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Bring up a cluster and measure."""
    progress.step("recovery: starting a cluster")
    sized = ("--nodes", str(NODE_COUNT), "--chains", str(CHAIN_COUNT), "--no-restart")
    with fresh_cluster(parent, *sized) as (directory, _):
        ember("down", "--dir", str(directory))
        path = directory / "config" / "control.toml"
        config = read_config(path)
        mgmtd = structs.replace(config.mgmtd, rotate_after_s=ROTATE_AFTER_S)
        write_config(path, structs.replace(config, mgmtd=mgmtd))
        ember("up", "--dir", str(directory), "--until", str(os.getpid()), *sized)
        progress.step("recovery: one node is killed, missed and brought up to date")
        return trio.run(recover, directory, directory.parent, sizes)


if __name__ == "__main__":
    sys.exit(bench_command("recovery", __doc__, (QUICK, FULL), measure))
