"""`python -m tests.torture [ROW] ...`, also as `ember torture`: real faults on a real cluster.

Without ROW: random faults for --minutes.  With one: the runs of a row of specs/reliability.md.
Exit code 1 for any wrong byte, lost synced byte, error that an application saw other than ENOSPC
where the disk was full, replicas that differ, or a cluster that did not come back.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from . import disk_rows, rows
from .fleet import Sizes
from .plan import KINDS
from .runner import PAUSE_S, Torture, TortureError


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ember torture", description=__doc__.split("\n\n")[0])
    parser.add_argument("row", nargs="?", choices=sorted(rows.ROWS), help="default: random faults")
    parser.add_argument("--minutes", type=float, default=2.0, help="of random faults")
    parser.add_argument(
        "--count",
        type=int,
        help=(
            "of a row: how many; default: the gate's number; of random faults: instead of --minutes"
        ),
    )
    parser.add_argument(
        "--pause", type=float, default=PAUSE_S, metavar="S", help="between random faults"
    )
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock, printed")
    parser.add_argument("--only", nargs="*", default=[], choices=KINDS, metavar="FAULT",
                        help=f"of {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument(
        "--dir", type=Path, help="a folder to work in, kept; default: a temporary one"
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--chains", type=int, default=6)
    parser.add_argument(
        "--broken", default="", metavar="MUTANT", help="break the storage processes"
    )
    parser.add_argument("--managers", type=int, default=1, help="more: over one kv process")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def main() -> int:
    given = parse()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    seed = int(time.time()) if given.seed is None else given.seed
    base = Path(tempfile.mkdtemp(prefix="ember-torture-")) if given.dir is None else given.dir
    base = base.absolute() / f"{given.row or 'thrash'}-{seed}"
    if base.exists():
        print(
            f"{base} is there already: remove it, or give another --dir or --seed", file=sys.stderr
        )
        return 2
    print(f"seed {seed}, in {base}", flush=True)
    sizes = Sizes(given.nodes, given.replicas, given.chains, managers=given.managers)
    run = rows.Run(base, seed, given.count, sizes, given.broken)
    try:
        report = rows.ROWS[given.row](run) if given.row else thrash(run, given)
    except TortureError as error:
        print(f"FAILED: {error}\nseed {seed}; logs: {base}/logs", flush=True)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    text = json.dumps(report, indent=2)
    if given.json:
        given.json.write_text(text + "\n")
    print(rows.summary(report), flush=True)
    shutil.rmtree(base if given.dir else base.parent)
    return 0


def thrash(run: rows.Run, given: argparse.Namespace) -> dict:
    """Random faults; the report."""
    with run.torture().running() as torture:
        torture.thrash(given.minutes, only=given.only, pause_s=given.pause, count=given.count)
        return torture.finish()


__all__ = ["Torture", "disk_rows", "main"]

if __name__ == "__main__":
    sys.exit(main())
