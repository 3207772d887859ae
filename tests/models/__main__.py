"""`python -m tests.models [--long] [--mutants] [--keep FOLDER] [NAME ...]`:
search the models, print what was found.
"""

import argparse
import sys
from pathlib import Path

from . import cases
from .spin import missing, run


def main() -> int:
    """Return 1 if a property is broken, or a planted error is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.models")
    parser.add_argument(
        "names", nargs="*", help="searches or planted errors; all of the kind if none"
    )
    parser.add_argument(
        "--long", action="store_true", help="the searches that CI has no time for, too"
    )
    parser.add_argument("--mutants", action="store_true", help="the planted errors only")
    parser.add_argument("--keep", type=Path, help="folder for pan's files and trails")
    options = parser.parse_args()
    if absent := missing():
        sys.exit(f"install {absent} first (Debian: apt-get install spin gcc)")
    failed = False
    searches = (
        []
        if options.mutants
        else cases.SHORT + (cases.LONG if options.long or options.names else [])
    )
    for search in searches:
        if not options.names or search.name in options.names:
            outcome = run(search, is_long=search in cases.LONG, keep=options.keep)
            failed |= bool(outcome.broken)
            print(f"{search.name} ({search.model}, {search.bounds}): {outcome}", flush=True)
    planted = cases.MUTANTS + (cases.LONG_MUTANTS if options.long or options.names else [])
    for search, mutant in planted if options.mutants or options.names else []:
        if not options.names or mutant in options.names:
            outcome = run(search, mutant, keep=options.keep)
            failed |= not outcome.broken
            print(f"{mutant} ({search.name}): {outcome}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
