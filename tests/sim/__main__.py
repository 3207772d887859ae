"""Run simulated clusters.

    python -m tests.sim SEED [--trace] [--seconds S] [--only FAULT ...] [--dense] [--log LEVEL]
    python -m tests.sim [FIRST] --count N [--jobs J] [--resume FILE] ...

One seed: its line, or what is broken.  Many: progress, the failing seeds, a
summary.  Exit code 1 if a seed failed.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

from .campaign import How, run_many, summary
from .scenario import WORK_S, run_seed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ember sim", description="run simulated clusters")
    parser.add_argument("seed", type=int, nargs="?", default=1, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument(
        "--resume", type=Path, help="file of outcomes; seeds in it are not run again"
    )
    parser.add_argument("--seconds", type=float, default=WORK_S, help="simulated seconds of work")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of fault, default all")
    parser.add_argument("--dense", action="store_true", help="clients hardly pause")
    parser.add_argument("--histories", action="store_true", help="5 clients, registers only")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--log", default="critical", help="log level of the services")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    how = How(arguments.seconds, tuple(arguments.only), arguments.dense, arguments.histories)
    if arguments.count > 1 or arguments.resume is not None:
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        outcomes = run_many(seeds, how, jobs=arguments.jobs, resume=arguments.resume)
        print(summary(outcomes))
        return 1 if any(outcome.error for outcome in outcomes) else 0
    logging.basicConfig(level=arguments.log.upper(), format="%(name)s: %(message)s")
    began_s = time.process_time()
    result = run_seed(
        arguments.seed,
        work_s=how.work_s,
        only=how.only,
        is_dense=how.is_dense,
        is_history=how.is_history,
    )
    if arguments.trace:
        print("\n".join(result.lines))
    faults = " ".join(f"{k}={v}" for k, v in sorted(result.fault_counts.items()))
    print(
        f"seed {result.seed}: ok, trace {result.digest}, {result.op_count} operations,"
        f" longest {result.longest_op_s:.1f} s, {result.chunk_count} chunks,"
        f" {result.direct_write_count} written past the page cache,"
        f" {result.inline_count} times bytes inline, {result.moved_count} moved from there,"
        f" {result.simulated_s:.0f} s in {time.process_time() - began_s:.1f} processor s; {faults}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
