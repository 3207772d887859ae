"""Many seeds: on several processes, resumable, with a summary of what was run and what fired.

The resume file holds one JSON line per finished seed; seeds that it names are not run again.
"""

import gc
import json
import logging
import resource
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .scenario import WORK_S, run_seed

SEEDS_PER_PROCESS: Final = 40
"""Then a fresh interpreter, since nothing is collected during a run.

By a new pool, for one that replaces its processes may wait for ever for a
replacement (CPython issue 115634).
"""

MEMORY_BYTES_MAX: Final = 4 << 30
GATE_FAULT_COUNT: Final = 10
GATE_OP_COUNT: Final = 200


@dataclass(frozen=True)
class How:
    """How each seed is run; the same for all seeds of a resume file."""

    work_s: float = WORK_S
    only: tuple[str, ...] = ()
    is_dense: bool = False
    is_history: bool = False

    def options(self) -> str:
        """Return the command-line options that say the same."""
        parts = [f"--seconds {self.work_s:g}"]
        if self.only:
            parts.append(f"--only {' '.join(self.only)}")
        if self.is_dense:
            parts.append("--dense")
        if self.is_history:
            parts.append("--histories")
        return " ".join(parts)


@dataclass
class Outcome:
    """What became of one seed."""

    seed: int
    error: str = ""
    """Empty: everything held."""
    digest: str = ""
    simulated_s: float = 0.0
    event_count: int = 0
    op_count: int = 0
    longest_op_s: float = 0.0
    live_s: float = 0.0
    chunk_count: int = 0
    cpu_s: float = 0.0
    shape: str = ""
    fault_counts: dict[str, int] = field(default_factory=dict)
    direct_write_count: int = 0
    inline_count: int = 0
    moved_count: int = 0

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Read a line of a resume file."""
        return cls(**json.loads(line))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def where(error: BaseException) -> str:
    """Return where an error came from, the checkers if possible, and its first line."""
    first = next(leaves(error))
    frames = [f for f in traceback.extract_tb(first.__traceback__) if "site-packages" not in f[0]]
    ours = [f for f in frames if "tests/sim" in f.filename.replace("\\", "/")]
    frame = frames[-1] if isinstance(first, AssertionError) or not ours else ours[-1]
    brief = str(first).split("\n")[0][:200]
    return f"{frame.name}: {type(first).__name__}: {brief}"


def try_seed(seed: int, how: How) -> Outcome:
    """Run one seed; whatever goes wrong is in the outcome."""
    logging.disable(logging.CRITICAL)
    if not gc.get_freeze_count():
        # A collection before each run is enough, and of what runs have left.
        gc.collect()
        gc.freeze()
        gc.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
    began_s = time.process_time()
    try:
        result = run_seed(
            seed,
            work_s=how.work_s,
            only=how.only,
            is_dense=how.is_dense,
            is_history=how.is_history,
        )
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - it is what is looked for
        return Outcome(seed, error=where(error), cpu_s=time.process_time() - began_s)
    shape = result.shape
    return Outcome(
        seed,
        digest=result.digest,
        simulated_s=result.simulated_s,
        event_count=result.event_count,
        op_count=result.register_op_count if how.is_history else result.op_count,
        longest_op_s=result.longest_op_s,
        live_s=result.live_s,
        chunk_count=result.chunk_count,
        cpu_s=time.process_time() - began_s,
        shape=f"{len(shape.roles)}c{shape.storage_count}s{shape.replica_count}r",
        fault_counts=result.fault_counts,
        direct_write_count=result.direct_write_count,
        inline_count=result.inline_count,
        moved_count=result.moved_count,
    )


def known(resume: Path | None) -> dict[int, Outcome]:
    """Return the outcomes of a resume file, by seed."""
    if resume is None or not resume.exists():
        return {}
    outcomes = [Outcome.from_line(line) for line in resume.read_text().splitlines() if line]
    return {outcome.seed: outcome for outcome in outcomes}


def run_many(
    seeds: Iterable[int], how: How, *, jobs: int = 1, resume: Path | None = None
) -> list[Outcome]:
    """Run seeds that the resume file does not name; return the outcomes of all, in order."""
    wanted = list(seeds)
    done = known(resume)
    left = [seed for seed in wanted if seed not in done]
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("seeds", total=len(wanted), completed=len(wanted) - len(left))
        for outcome in _outcomes(left, how, jobs):
            done[outcome.seed] = outcome
            if resume is not None:
                with resume.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            if outcome.error:
                replay = f"ember sim {outcome.seed} {how.options()}"
                progress.console.print(f"FAILED {outcome.error}; replay: {replay}", markup=False)
            progress.advance(task)
    return [done[seed] for seed in wanted]


def _outcomes(seeds: Sequence[int], how: How, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes as they come."""
    step = jobs * SEEDS_PER_PROCESS
    for start in range(0, len(seeds), step):
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            block = [pool.submit(try_seed, seed, how) for seed in seeds[start : start + step]]
            for future in as_completed(block):
                yield future.result()


def summary(outcomes: Sequence[Outcome]) -> str:
    """Say what was run, in lines."""
    good = [o for o in outcomes if not o.error]
    failed = [o.seed for o in outcomes if o.error]
    hours = sum(o.simulated_s for o in good) / 3600
    cpu_s = sum(o.cpu_s for o in good) or 1.0
    events = sum(o.event_count for o in good)
    fired, seeds_of = Counter[str](), Counter[str]()
    for outcome in good:
        fired.update(outcome.fault_counts)
        seeds_of.update(k for k, v in outcome.fault_counts.items() if v)
    lines = [f"{len(good)} passed, {len(failed)} failed {failed or ''}"]
    lines.append(
        f"{hours:.2f} simulated hours in {cpu_s:.0f} processor s"
        f" ({hours * 3600 / cpu_s:.0f} simulated s per s), {events} events"
        f" ({events / cpu_s:.0f} per s), {sum(o.op_count for o in good)} operations"
    )
    if good:
        faults = [sum(o.fault_counts.values()) for o in good]
        below = [
            o.op_count < GATE_OP_COUNT or count < GATE_FAULT_COUNT
            for o, count in zip(good, faults, strict=True)
        ]
        lines.append(
            f"per seed: {min(o.op_count for o in good)} to {max(o.op_count for o in good)} "
            "operations,"
            f" {min(faults)} to {max(faults)} faults, longest operation"
            f" {max(o.longest_op_s for o in good):.1f} s, live again after at most"
            f" {max(o.live_s for o in good):.1f} s; below the gate"
            f" ({GATE_OP_COUNT} operations, {GATE_FAULT_COUNT} faults): {sum(below)}"
        )
    direct = [o.direct_write_count for o in good if o.direct_write_count]
    lines.append(f"{sum(direct)} versions written past the page cache, in {len(direct)} seeds")
    inline = [o.inline_count for o in good if o.inline_count]
    moved = sum(o.moved_count for o in good)
    lines.append(
        f"{sum(inline)} times bytes inline, in {len(inline)} seeds, {moved} moved from there"
    )
    lines += [f"  {name}: {fired[name]} in {seeds_of[name]} seeds" for name in sorted(fired)]
    return "\n".join(lines)
