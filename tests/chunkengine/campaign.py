"""Runs many seeds of a trial in several processes, with a progress bar, and adds up what came out."""

import logging
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

Trial = Callable[[int, Path], Counter[str]]
"""Takes a seed and an empty directory; returns counts; raises if something is wrong."""

CHUNK = 200
"""Seeds handed to the pool at a time and process."""


def run_campaign(
    trial: Trial, first: int, count: int, jobs: int, what: str, *, place: Path | None = None
) -> Counter[str]:
    """Run seeds first .. first + count - 1; print failures and the sums; the count `FAILED` tells."""
    total: Counter[str] = Counter()
    began = time.perf_counter()
    seeds = list(range(first, first + count))
    with (
        Progress(console=Console(stderr=True)) as bar,
        ProcessPoolExecutor(jobs, max_tasks_per_child=CHUNK) as pool,
    ):
        task = bar.add_task(what, total=count)
        waiting = {pool.submit(guarded, trial, seed, place) for seed in seeds[: jobs * 4]}
        rest = iter(seeds[jobs * 4 :])
        while waiting:
            done = next(as_completed(waiting))
            waiting.remove(done)
            seed, outcome, trouble = done.result()
            if trouble:
                print(f"seed {seed} FAILED:\n{trouble}", flush=True)
            total += outcome
            bar.advance(task)
            following = next(rest, None)
            if following is not None:
                waiting.add(pool.submit(guarded, trial, following, place))
    took = time.perf_counter() - began
    sums = ", ".join(f"{name} {number}" for name, number in sorted(total.items()))
    print(f"{count} {what} in {took:.0f} s: {sums}")
    return total


def guarded(trial: Trial, seed: int, place: Path | None) -> tuple[int, Counter[str], str]:
    """Run one seed in a directory of its own; a failure is returned as text."""
    logging.disable(logging.CRITICAL)
    directory = Path(tempfile.mkdtemp(prefix="ember-campaign-", dir=place))
    try:
        return seed, trial(seed, directory), ""
    except Exception:  # noqa: BLE001 - reported by the caller, the next seed runs
        return seed, Counter({"FAILED": 1}), traceback.format_exc()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
