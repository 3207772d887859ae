"""A checkpoint in 8 shards, saved and loaded through the rings of a mount, next to the disk's own direct I/O and to the same on ext4.

Without PyTorch's help: 2 processes write 4 files each in pieces of 1 MiB, close them (which makes them durable), and the folder is
renamed into place.  Where PyTorch is installed, also `torch.distributed.checkpoint` over `emberfs.torch.checkpoint`, in one process.  Page
caches are dropped before loading, so it needs root.  What was loaded is compared.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from emberfs.batch import BatchClient, Transfer
from emberfs.opening import open_client
from emberfs.publish import make_partial_folder, publish_folder
from xxhash import xxh3_64_hexdigest

from fs.app.progress import Progress

from .batch import Spent, daemon_pid
from .cluster import fresh_cluster
from .command import bench_command
from .machine import direct_reads, direct_writes
from .table import Row
from .workloads import MIB, drop_page_cache

SHARDS = 8
PROCESSES = 2
PIECES_PER_BATCH = 32
REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is saved, and for how long the disk is measured."""

    shard_mib: int
    seconds: float

    @property
    def mib(self) -> int:
        """All shards together."""
        return self.shard_mib * SHARDS


QUICK = Sizes(shard_mib=32, seconds=2.0)
FULL = Sizes(shard_mib=512, seconds=10.0)


def _move(act: Callable[[list[Transfer]], Any], file: Any, view: memoryview) -> None:
    for begin in range(0, len(view), PIECES_PER_BATCH * MIB):
        end = min(begin + PIECES_PER_BATCH * MIB, len(view))
        act([Transfer(file, at, view[at : at + MIB]) for at in range(begin, end, MIB)])


def _content(view: memoryview, shard: int) -> None:
    """Fill with what no two MiB of all shards have in common, quickly."""
    block = os.urandom(MIB)
    for at in range(0, len(view), MIB):
        view[at : at + MIB] = block
        view[at : at + 8] = (shard * len(view) + at).to_bytes(8, "little")


def _client(folder: Path, shard_mib: int) -> tuple[BatchClient, memoryview]:
    client = open_client(str(folder))
    return client, client.allocate(shard_mib * MIB).view


def save_shards(
    folder: Path, shards: list[int], shard_mib: int, gate: Any
) -> tuple[list[str], float, float]:
    """Write files; return their checksums, when it began and when it ended."""
    client, view = _client(folder, shard_mib)
    sums, took = [], 0.0
    with client:
        gate.wait()
        began = time.monotonic()
        for shard in shards:
            filling = time.monotonic()
            _content(view, shard)  # what a training has in its memory anyway
            sums.append(xxh3_64_hexdigest(view))
            took += time.monotonic() - filling
            with client.open(str(folder / f"shard-{shard}"), "x") as file:
                _move(client.write, file, view)
    return sums, began, time.monotonic() - took


def load_shards(
    folder: Path, shards: list[int], shard_mib: int, gate: Any
) -> tuple[list[str], float, float]:
    """Read files; return as `save_shards`."""
    client, view = _client(folder, shard_mib)
    sums, took = [], 0.0
    with client:
        gate.wait()
        began = time.monotonic()
        for shard in shards:
            with client.open(str(folder / f"shard-{shard}")) as file:
                _move(client.read, file, view)
            comparing = time.monotonic()
            sums.append(xxh3_64_hexdigest(view))
            took += time.monotonic() - comparing
    return sums, began, time.monotonic() - took


def in_processes(function: Any, folder: Path, sizes: Sizes) -> tuple[dict[int, str], float]:
    """Run in all processes at once; return the checksums of the shards, and the seconds of the slowest."""
    with multiprocessing.get_context("spawn").Manager() as manager:
        gate = manager.Barrier(PROCESSES)
        shares = [list(range(number, SHARDS, PROCESSES)) for number in range(PROCESSES)]
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            arguments = [(folder, share, sizes.shard_mib, gate) for share in shares]
            results = pool.starmap(function, arguments, chunksize=1)
    sums = {s: d for share, (digests, *_) in zip(shares, results, strict=True) for s, d in zip(share, digests, strict=True)}  # fmt: skip
    return sums, max(end for *_, end in results) - min(began for _, began, _ in results)


def measure_bare(mounted: Path, sizes: Sizes) -> tuple[float, float]:
    """Save and load a checkpoint; return the MiB/s of each."""
    target = mounted / "checkpoint"
    partial_folder = make_partial_folder(target)
    saved, save_s = in_processes(save_shards, Path(partial_folder), sizes)
    began = time.monotonic()
    publish_folder(partial_folder, target, overwrite=False)
    save_s += time.monotonic() - began
    drop_page_cache()
    loaded, load_s = in_processes(load_shards, target, sizes)
    assert loaded == saved, "what was loaded is not what was saved"
    return sizes.mib / save_s, sizes.mib / load_s


def measure_torch(mounted: Path, sizes: Sizes) -> tuple[float, float]:
    """Save and load by torch.distributed.checkpoint; return the MiB/s of each."""
    import torch  # noqa: PLC0415 - where it is
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415
    from emberfs.torch.checkpoint import CheckpointReader, CheckpointWriter  # noqa: PLC0415

    def connect() -> BatchClient:
        return open_client(str(mounted))

    numbers = sizes.shard_mib * MIB // 4
    state = {f"shard-{n}": torch.rand(numbers) for n in range(SHARDS)}
    path = mounted / "torch-checkpoint"
    began = time.monotonic()
    dcp.save(state, storage_writer=CheckpointWriter(path, connect=connect))
    save_s = time.monotonic() - began
    drop_page_cache()
    loaded = {name: torch.zeros(numbers) for name in state}
    began = time.monotonic()
    dcp.load(loaded, storage_reader=CheckpointReader(path, connect=connect))
    load_s = time.monotonic() - began
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    return sizes.mib / save_s, sizes.mib / load_s


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure the disk, and the checkpoint."""
    progress.step("checkpoint: starting a cluster")
    with (
        tempfile.NamedTemporaryFile(prefix="ember-checkpoint-", dir=parent) as local,
        tempfile.TemporaryDirectory(prefix="ember-checkpoint-", dir=parent) as beside,
        fresh_cluster(parent) as (_, mounted),
    ):
        progress.step("checkpoint: the disk alone")
        local.truncate(max(256, sizes.shard_mib) * MIB)
        path = Path(local.name)
        written = direct_writes(path, MIB, sizes.seconds, is_random=False)
        read = direct_reads(path, MIB, sizes.seconds, is_random=False)
        progress.step(f"checkpoint: {sizes.mib:,} MiB saved and loaded in a plain directory")
        local_save, local_load = measure_bare(Path(beside), sizes)
        shutil.rmtree(Path(beside, "checkpoint"))
        progress.step(f"checkpoint: {sizes.mib:,} MiB saved and loaded")
        with Spent([daemon_pid(mounted)]) as spent:
            save, load = measure_bare(mounted, sizes)
        rows = [
            Row("save, 8 shards, durable (of disk / 3)", save, "MiB/s", written / REPLICAS),
            Row("  the same (of the same program on the local disk / 3)", save, "MiB/s", local_save / REPLICAS),
            Row("load, cold (of disk)", load, "MiB/s", read),
            Row("  the same (of the same program on the local disk)", load, "MiB/s", local_load),
            Row("  processor of the mount daemon, both", spent.seconds[0] * 1024 / sizes.mib / 2, "s/GiB"),
        ]  # fmt: skip
        if find_spec("torch") is None:
            sys.stderr.write(
                "ember: no figures of torch.distributed.checkpoint: pip install emberfs[torch]\n"
            )
            return rows
        progress.step("checkpoint: the same by torch.distributed.checkpoint, one process")
        save, load = measure_torch(mounted, sizes)
        return [
            *rows,
            Row("torch: save (of disk / 3)", save, "MiB/s", written / REPLICAS),
            Row("torch: load, cold (of disk)", load, "MiB/s", read),
        ]


if __name__ == "__main__":
    sys.exit(bench_command("checkpoint", __doc__, (QUICK, FULL), measure))
