"""Random sequences of 200 operations with restarts:
the engine against a model that is a plain dictionary.

    python -m tests.chunkengine.sequences [--count N] [--seed S] [--jobs J]

After every operation one chunk is compared, every twenty and after each restart all of
them: content, ranges, versions, lists, the last chunk of a file, used bytes.  A restart is
a clean one or a process kill.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

from fs.chunkengine.engine import DiskEngine
from fs.chunkengine.read_values import ReadIo
from fs.chunkengine.simulated_disk import SimulatedDisk, SimulatedMetaStore
from fs.schema.ids import TargetId
from fs.schema.status import Status

from .campaign import run_campaign
from .crash import FullWorkload, check_disk_of, open_on
from .workload import Damaged, read, size, undo_count

OPERATIONS = 200
RESTART_SHARE = 0.03


def run_seed(seed: int, _directory: Path | None = None) -> Counter[str]:
    """Run one sequence; return what was done."""
    rng, disk, workload = random.Random(seed), SimulatedDisk(), FullWorkload(seed)
    engine = open_on(disk)
    for number in range(OPERATIONS):
        if rng.random() < RESTART_SHARE:
            is_clean = rng.random() < 0.5
            if is_clean:
                engine.close()
                assert undo_count(SimulatedMetaStore(disk)) == 0
            else:
                disk.crash()
            engine = open_on(disk)
            workload.counts["restarts"] += 1
            workload.check_after_crash(engine, is_power_loss=False)
            compare_all(engine, workload)
        workload.step(engine)
        compare(engine, workload, rng.choice(workload.chunks), rng)
        if number % 20 == 0:
            compare_all(engine, workload)
    engine.close()
    check_disk_of(disk)
    return workload.counts + Counter(sequences=1)


def compare(engine: DiskEngine, workload: FullWorkload, chunk, rng: random.Random) -> None:
    """One chunk: its content, its state, a range of it."""
    model = workload.models[chunk]
    found = read(engine, chunk)
    assert found == model.content, (chunk, size(found), size(model.content))
    state = engine.get(*chunk)
    if state is None:
        assert (model.content, model.pending) == (None, None)
        return
    assert state.commit_ver == model.version
    assert state.pending_ver == (model.pending[0] if model.pending else 0)
    if isinstance(model.content, bytes):
        offset, length = rng.randint(0, len(model.content) + 10), rng.randint(0, 50_000)
        buffer = memoryview(bytearray(length))
        (done,) = engine.read_batch([ReadIo(*chunk, offset, length, buffer)])
        assert done.status == Status.OK
        assert bytes(buffer[: done.length]) == model.content[offset : offset + length]


def compare_all(engine: DiskEngine, workload: FullWorkload) -> None:
    """Everything there is, by every way to ask."""
    models = workload.models
    there = {c for c, model in models.items() if model.content is not None or model.pending}
    for chunk in workload.chunks:
        assert read(engine, chunk) == models[chunk].content
    for target in (TargetId(1), TargetId(2)):
        mine = sorted(chunk_id for t, chunk_id in there if t == target)
        assert [state.chunk_id for state in engine.list_chunks(target)] == mine
        assert [s.chunk_id for s in engine.list_chunks(target, limit=1)] == mine[:1]
        if mine:
            after = engine.list_chunks(target, after=mine[0].pack())
            assert [state.chunk_id for state in after] == mine[1:]
        for inode in (7, 9):
            of_file = [c for c in mine if c.inode_id == inode]
            assert [s.chunk_id for s in engine.list_file(target, inode)] == of_file
            filled = [c for c in of_file if length_of(models[target, c].content)]
            last = engine.last_chunk(target, inode)
            assert (last.chunk_id if last else None) == (filled[-1] if filled else None)
        assert (engine.used_bytes(target) > 0) == any(
            models[target, c].content or (models[target, c].pending or (0, b""))[1] for c in mine
        ) or any(isinstance(models[target, c].content, Damaged) for c in mine)


def length_of(content: object) -> int:
    return content.length if isinstance(content, Damaged) else len(content or b"")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chunkengine.sequences")
    parser.add_argument("--count", type=int, default=2000, help="sequences")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    outcome = run_campaign(run_seed, arguments.seed, arguments.count, arguments.jobs, "sequences")
    return 1 if outcome["FAILED"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
