"""Run simulated clusters: `python -m tests.sim SEED [--count N] [--trace] [--seconds S] [--only FAULT ...] [--log LEVEL]`.

Prints one line per seed; a failing seed prints what is broken and how to replay it, and the exit code is 1.
"""

import argparse
import logging
import sys
import time
import traceback

from .scenario import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="ember sim", description="run simulated clusters")
    parser.add_argument("seed", type=int, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated seconds of work")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of fault, default all")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--log", default="error", help="log level of the services")
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log.upper(), format="%(name)s: %(message)s")
    how = f"--seconds {arguments.seconds:g}"
    if arguments.only:
        how += f" --only {' '.join(arguments.only)}"
    failed = []
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        began = time.perf_counter()
        try:
            result = run_seed(seed, work_s=arguments.seconds, only=arguments.only)
        except Exception:  # noqa: BLE001 - the seed is reported and the next one runs
            traceback.print_exc()
            print(f"seed {seed}: FAILED; replay: ember sim {seed} {how}")
            failed.append(seed)
            continue
        if arguments.trace:
            print("\n".join(result.lines))
        took = time.perf_counter() - began
        faults = " ".join(f"{k}={v}" for k, v in sorted(result.fault_counts.items()))
        print(
            f"seed {seed}: ok, trace {result.digest}, {result.op_count} operations,"
            f" longest {result.longest_op_s:.1f} s, {result.chunk_count} chunks,"
            f" {result.simulated_s:.0f} s in {took:.1f} s; {faults}",
            flush=True,
        )
    if arguments.count > 1:
        print(f"{arguments.count - len(failed)} passed, {len(failed)} failed {failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
