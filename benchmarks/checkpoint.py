"""A checkpoint in 8 shards, saved and loaded through the rings of a mount,
next to the disk's own direct I/O, bare processes, and the same on ext4.

Without PyTorch's help: 2 processes write 4 files each in pieces of 1 MiB, a file by one call, close
them (which makes them durable), and the folder is renamed into place.  That takes space that was
not used before, so it is compared with new local files of the same disk (`disk.py`).  Then the
checkpoint is removed, and once storage has its space at hand another one is saved, which is
compared with a local file that is written over; how much of it was space not used before stands
below.  It is loaded into memory that was used before, as the memory is into which disk and fio
read; the first one is loaded into new memory, whose pages are taken meanwhile.  Where PyTorch is
installed, also `torch.distributed.checkpoint` over `emberfs.torch.checkpoint`, in one process.
Page caches are dropped before loading, so it needs root.  What was loaded is compared; making it up
and comparing it is no part of any figure.
"""

import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from emberfs.batch import BatchClient, Transfer
from emberfs.opening import open_client
from emberfs.publish import make_partial_folder, publish_folder
from xxhash import xxh3_64_hexdigest

from fs.app.terminal.progress import Progress

from . import bare
from .cluster import PATIENCE_S, Nodes, ember, fresh_cluster
from .command import bench_command
from .disk import held_bytes, new_file_mib_s, read_mib_s, rounds_of, written_over_mib_s
from .fio import Large, LargeBlocks, large_blocks
from .machine import TOUCHED_COPIES, touch_memory
from .table import Row
from .used import Meter, Used
from .workloads import MIB, drop_page_cache

SHARDS = 8
PROCESSES = 2
REPLICAS = 3
GOAL = 0.8
"""Of the disk."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is saved."""

    shard_mib: int

    @property
    def mib(self) -> int:
        """All shards together."""
        return self.shard_mib * SHARDS


QUICK = Sizes(shard_mib=32)
FULL = Sizes(shard_mib=512)


def _move(act: Callable[[list[Transfer]], Any], file: Any, view: memoryview) -> None:
    act([Transfer(file, at, view[at : at + MIB]) for at in range(0, len(view), MIB)])


def _content(view: memoryview, shard: int) -> None:
    """Fill with what no two MiB of all shards have in common, quickly."""
    block = os.urandom(MIB)
    for at in range(0, len(view), MIB):
        view[at : at + MIB] = block
        view[at : at + 8] = (shard * len(view) + at).to_bytes(8, "little")


def _client(folder: Path, shard_mib: int) -> tuple[BatchClient, memoryview]:
    client = open_client(str(folder))
    return client, client.allocate(shard_mib * MIB).view


class Part(NamedTuple):
    """What one process has done."""

    sums: list[str]
    """Checksums of its shards."""
    began: float
    took: float
    """Seconds."""
    used: float
    """Processor seconds."""


class _Timer:
    """Clock and processor time, but for what is left out."""

    def __init__(self) -> None:
        self._began = self._now()
        self._left_out = 0.0, 0.0

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.monotonic(), time.process_time()

    def _since(self, before: tuple[float, float]) -> tuple[float, float]:
        now = self._now()
        return now[0] - before[0], now[1] - before[1]

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Do not count a block."""
        before = self._now()
        yield
        took, used = self._since(before)
        self._left_out = self._left_out[0] + took, self._left_out[1] + used

    def part(self, sums: list[str]) -> Part:
        """Return what has been counted until now."""
        took, used = self._since(self._began)
        return Part(sums, self._began[0], took - self._left_out[0], used - self._left_out[1])


def _begin(gate: Any) -> None:
    """Wait until all processes are ready, and until the one
    that measures has noted what has been used so far.
    """
    gate.wait()
    gate.wait()


def _use(client: BatchClient, view: memoryview, path: Path) -> None:
    """Have memory filled once by who fills it later, out of a file of nothing but holes,
    which goes again.
    """
    path.touch()
    os.truncate(path, len(view))
    with client.open(str(path)) as file:
        _move(client.read, file, view)
    path.unlink()


def save_shards(folder: Path, shards: list[int], shard_mib: int, gate: Any) -> Part:
    """Write files."""
    client, view = _client(folder, shard_mib)
    sums = []
    with client:
        _begin(gate)
        timer = _Timer()
        for shard in shards:
            with timer.leaving_out():
                _content(view, shard)  # what a training has in its memory anyway
                sums.append(xxh3_64_hexdigest(view))
            with client.open(str(folder / f"shard-{shard}"), "x") as file:
                _move(client.write, file, view)
    return timer.part(sums)


def load_shards(folder: Path, shards: list[int], shard_mib: int, gate: Any) -> Part:
    """Read files, all into the same memory, whose pages the first one takes."""
    return _load_shards(folder, shards, shard_mib, gate, is_used=False)


def load_shards_again(folder: Path, shards: list[int], shard_mib: int, gate: Any) -> Part:
    """Read files as a program that has loaded others before: into memory that has its pages."""
    return _load_shards(folder, shards, shard_mib, gate, is_used=True)


def _load_shards(
    folder: Path, shards: list[int], shard_mib: int, gate: Any, *, is_used: bool
) -> Part:
    client, view = _client(folder, shard_mib)
    sums = []
    with client:
        if is_used:
            _use(client, view, folder / f"blank-{shards[0]}")
        _begin(gate)
        timer = _Timer()
        for shard in shards:
            with client.open(str(folder / f"shard-{shard}")) as file:
                _move(client.read, file, view)
            with timer.leaving_out():
                sums.append(xxh3_64_hexdigest(view))
    return timer.part(sums)


def in_processes(
    function: Any, folder: Path, sizes: Sizes, meter: Meter
) -> tuple[dict[int, str], float, Used]:
    """Run in all processes at once; return the checksums of the shards, the seconds of the slowest,
    and what was used from when all were ready.
    """
    with multiprocessing.get_context("spawn").Manager() as manager:
        gate = manager.Barrier(PROCESSES + 1, timeout=PATIENCE_S)
        shares = [list(range(number, SHARDS, PROCESSES)) for number in range(PROCESSES)]
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            arguments = [(folder, share, sizes.shard_mib, gate) for share in shares]
            results = pool.starmap_async(function, arguments, chunksize=1)
            gate.wait()
            with meter.used() as used:
                gate.wait()
                parts = results.get()
    sums = {
        s: d
        for share, part in zip(shares, parts, strict=True)
        for s, d in zip(share, part.sums, strict=True)
    }
    took = max(part.began + part.took for part in parts) - min(part.began for part in parts)
    used.program = sum(part.used for part in parts)
    return sums, took, used


class Paces(NamedTuple):
    """MiB/s of a save and of a load, and processor seconds for each GB."""

    save: float
    load: float
    save_used: Used
    load_used: Used

    def rows(self, name: str, written: float, read: float, fio: LargeBlocks) -> list[Row]:
        """Return the rows of both, next to what the disk does."""
        return [
            Row(
                f"{name}save, 8 shards, durable (of a new local file / 3)",
                self.save,
                "MiB/s",
                written / REPLICAS,
                goal=GOAL,
                used=self.save_used,
                fio=fio.mib_s(Large.NEW, REPLICAS),
            ),
            Row(
                f"{name}load, cold (of disk)",
                self.load,
                "MiB/s",
                read,
                goal=GOAL,
                used=self.load_used,
                fio=fio.mib_s(Large.READ),
            ),
        ]


def measure_bare(mounted: Path, sizes: Sizes, meter: Meter, load: Any = load_shards) -> Paces:
    """Save and load a checkpoint; `load` is what loading processes do."""
    target = mounted / "checkpoint"
    partial_folder = make_partial_folder(target)
    saved, save_s, save_used = in_processes(save_shards, Path(partial_folder), sizes, meter)
    with meter.used() as publish_used:
        began = time.monotonic()
        publish_folder(partial_folder, target, overwrite=False)
        save_s += time.monotonic() - began
    save_used.add(publish_used)
    drop_page_cache()
    loaded, load_s, load_used = in_processes(load, target, sizes, meter)
    assert loaded == saved, "what was loaded is not what was saved"
    return _paces(sizes, save_s, load_s, save_used, load_used)


def _paces(sizes: Sizes, save_s: float, load_s: float, *used: Used) -> Paces:
    each = [one.per_gb(sizes.mib * MIB) for one in used]
    return Paces(sizes.mib / save_s, sizes.mib / load_s, *each)


def save_again(mounted: Path, cluster: Path, sizes: Sizes, meter: Meter) -> tuple[Paces, float]:
    """Save another checkpoint when storage has the space of the first, which is removed,
    and load it into memory used before; also return how much of it was new space, in percent.
    """
    asked = REPLICAS * sizes.mib * MIB
    nodes = Nodes(cluster)
    ember("admin", "config", "change", "meta", "meta.gc_delay_s=1", "--dir", str(cluster))
    left = nodes.used_bytes() - asked
    shutil.rmtree(mounted / "checkpoint")
    nodes.wait_until(lambda: nodes.used_bytes() <= left)
    before = held_bytes(cluster / "data")
    paces = measure_bare(mounted, sizes, meter, load_shards_again)
    return paces, max(0, held_bytes(cluster / "data") - before) / asked * 100


def measure_torch(mounted: Path, sizes: Sizes, meter: Meter) -> Paces:
    """Save and load by torch.distributed.checkpoint."""
    import torch  # noqa: PLC0415 - where it is
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415
    from emberfs.torch.checkpoint import CheckpointReader, CheckpointWriter  # noqa: PLC0415

    def connect() -> BatchClient:
        return open_client(str(mounted))

    numbers = sizes.shard_mib * MIB // 4
    state = {f"shard-{n}": torch.rand(numbers) for n in range(SHARDS)}
    path = mounted / "torch-checkpoint"
    with meter.used() as save_used:
        began = time.monotonic()
        dcp.save(state, storage_writer=CheckpointWriter(path, connect=connect))
        save_s = time.monotonic() - began
    drop_page_cache()
    loaded = {name: torch.zeros(numbers) for name in state}
    with meter.used() as load_used:
        began = time.monotonic()
        dcp.load(loaded, storage_reader=CheckpointReader(path, connect=connect))
        load_s = time.monotonic() - began
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    return _paces(sizes, save_s, load_s, save_used, load_used)


def measure(sizes: Sizes, parent: Path | None, progress: Progress) -> list[Row]:
    """Measure the disk, and the checkpoint."""
    progress.step("checkpoint: using memory for the first time")
    touch_memory(TOUCHED_COPIES * sizes.mib * MIB)
    progress.step("checkpoint: starting a cluster")
    with (
        tempfile.TemporaryDirectory(prefix="ember-checkpoint-", dir=parent) as beside,
        large_blocks(Path(beside)) as fio,
        fresh_cluster(parent) as (directory, mounted),
    ):
        progress.step("checkpoint: the disk alone")
        path, mib = Path(beside, "disk"), REPLICAS * sizes.mib
        written = statistics.median(new_file_mib_s(path, mib) for _ in range(rounds_of(sizes.mib)))
        read = read_mib_s(path)
        over = statistics.median(written_over_mib_s(path) for _ in range(rounds_of(sizes.mib)))
        path.unlink()
        for _ in range(rounds_of(sizes.mib)):
            fio.measure(*Large)
        progress.step(f"checkpoint: {sizes.mib:,} MiB saved and loaded in a plain directory")
        there = measure_bare(Path(beside), sizes, Meter())
        shutil.rmtree(Path(beside, "checkpoint"))
        progress.step(f"checkpoint: {sizes.mib:,} MiB saved and loaded")
        meter = Meter(directory)
        here = measure_bare(mounted, sizes, meter)
        progress.step("checkpoint: the same once that is removed")
        again, grown = save_again(mounted, directory, sizes, meter)
        beside_row = bare.write_row(path, sizes.mib, written / REPLICAS)
        over_row = bare.write_row(path, sizes.mib, over / REPLICAS, is_over=True)
        rows = [
            *here.rows("", written, read, fio),
            beside_row,
            bare.limited_row("save", here.save, beside_row),
            Row(
                "save after the removal of another (of a local file written over / 3)",
                again.save,
                "MiB/s",
                over / REPLICAS,
                goal=GOAL,
                used=again.save_used,
                fio=fio.mib_s(Large.OVER, REPLICAS),
            ),
            Row("  on space not used before", grown, "%"),
            Row(
                "load, cold, into memory used before (of disk)",
                again.load,
                "MiB/s",
                read,
                goal=GOAL,
                used=again.load_used,
                fio=fio.mib_s(Large.READ),
            ),
            over_row,
            bare.limited_row("save after the removal of another", again.save, over_row),
            Row(
                "save (of the same program on the local disk / 3)",
                here.save,
                "MiB/s",
                there.save / REPLICAS,
            ),
            Row(
                "  that program alone, processor",
                there.save_used.total,
                "s/GB",
                used=there.save_used,
            ),
            Row(
                "load, cold (of the same program on the local disk)", here.load, "MiB/s", there.load
            ),
            Row(
                "  that program alone, processor",
                there.load_used.total,
                "s/GB",
                used=there.load_used,
            ),
        ]
        if find_spec("torch") is None:
            sys.stderr.write(
                "ember: no figures of torch.distributed.checkpoint: pip install emberfs[torch]\n"
            )
            return rows
        progress.step("checkpoint: the same by torch.distributed.checkpoint, one process")
        by_torch = measure_torch(mounted, sizes, meter)
        rows += by_torch.rows("torch: ", written, read, fio)
        return [*rows, bare.limited_row("torch: save", by_torch.save, beside_row)]


if __name__ == "__main__":
    sys.exit(bench_command("checkpoint", __doc__, (QUICK, FULL), measure))
