"""Runs many seeds of a trial in several processes, with a progress bar,
and adds up what came out.
"""

import logging
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

Trial = Callable[[int, Path], Counter[str]]
"""Takes a seed and an empty directory; returns counts; raises if something is wrong."""

CHUNK = 200
"""Seeds that a process runs before a fresh one takes over, with a new pool:
one that replaces its processes may wait for ever for a replacement (CPython issue 115634).
"""


def run_campaign(
    trial: Trial, first: int, count: int, jobs: int, what: str, *, place: Path | None = None
) -> Counter[str]:
    """Run seeds first .. first + count - 1; print failures and the sums;
    the count `FAILED` tells.
    """
    total: Counter[str] = Counter()
    began = time.perf_counter()
    seeds = range(first, first + count)
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=count)
        for start in range(0, count, jobs * CHUNK):
            with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
                block = seeds[start : start + jobs * CHUNK]
                waiting = [pool.submit(guarded, trial, seed, place) for seed in block]
                for done in as_completed(waiting):
                    seed, outcome, trouble = done.result()
                    if trouble:
                        print(f"seed {seed} FAILED:\n{trouble}", flush=True)
                    total += outcome
                    bar.advance(task)
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
