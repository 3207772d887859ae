"""Row X2: how many small changes of the protocol and the engine do the quick tests notice?

    python -m tests.mutation [MODULE ...] [--count N] [--seed S]
        [--jobs J] [--resume FILE] [--again]

Of each module N mutants are drawn at random.  Outcomes are kept in FILE and not tried again;
--again tries the survivors again.  Prints every survivor, then how many were killed of each module.
Exit code 1 if it is less than 60 % in all.
"""

import argparse
import importlib
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .mutants import Mutant, find_mutants
from .plan import GROUPS, ROOT, Reach, find_reach, read_reach
from .trial import KILLED, POLL_S, SLOW, UNREACHED, Trial, outcome, start

KILLED_SHARE_MIN = 0.6
MODULES = [path for paths in GROUPS.values() for path in paths]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="default: all of the row")
    parser.add_argument("--count", type=int, default=25, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at once")
    parser.add_argument("--resume", type=Path, help="file of outcomes")
    parser.add_argument("--again", action="store_true", help="try survivors in FILE again")
    return parser.parse_args()


def drawn(path: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of a module, or all that it has;
    for the same text a larger count only adds to them.
    """
    found = find_mutants(path, (ROOT / path).read_text())
    random.Random(f"{seed} {path}").shuffle(found)
    return found[:count]


class Book:
    """Outcomes by mutant, kept in a file."""

    def __init__(self, file: Path | None, *, again: bool) -> None:
        self.outcomes: dict[str, str] = {}
        self._file = file
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                entry = json.loads(line)
                self.outcomes[entry["mutant"]] = entry["outcome"]
        if again:
            good = {KILLED, SLOW}
            self.outcomes = {k: v for k, v in self.outcomes.items() if v in good}

    def add(self, mutant: Mutant, result: str) -> None:
        self.outcomes[mutant.key] = result
        if self._file is not None:
            entry = {"mutant": mutant.key, "outcome": result, **asdict(mutant)}
            with self._file.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def reach_of(folder: str, base: Path) -> Reach:
    """Find out in a process of its own what the tests of a folder reach:
    this one must not start threads.
    """
    file = base / folder.replace("/", "-")
    child = multiprocessing.get_context("spawn").Process(target=find_reach, args=(folder, file))
    child.start()
    child.join()
    assert child.exitcode == 0, f"{folder}: tests fail without any change"
    return read_reach(file)


def run(mutants: list[Mutant], reach: Reach, jobs: int, base: Path) -> Iterator[tuple[Mutant, str]]:
    """Yield each mutant with its outcome, as they come; at most `jobs` at once."""
    free = [base / f"job-{i}" for i in range(jobs)]
    for folder in free:
        folder.mkdir(exist_ok=True)
    running: list[tuple[Trial, Path]] = []
    waiting = list(mutants)
    while waiting or running:
        while waiting and free:
            mutant = waiting.pop(0)
            tests = reach.tests_of(mutant)
            if not tests:
                yield mutant, UNREACHED
                continue
            cpu_s = sum(reach.seconds[test] for test in tests)
            folder = free.pop()
            running.append((start(mutant, tests, cpu_s=cpu_s, folder=folder), folder))
        time.sleep(POLL_S)
        for entry in list(running):
            if result := outcome(entry[0]):
                running.remove(entry)
                free.append(entry[1])
                yield entry[0].mutant, result


def summary(mutants: list[Mutant], outcomes: dict[str, str]) -> tuple[str, float]:
    """Return the table, and the share that was killed."""
    lines, total = [], Counter()
    for path in dict.fromkeys(m.path for m in mutants):
        counts = Counter(outcomes[m.key] for m in mutants if m.path == path)
        total += counts
        lines.append(_line(path, counts))
    lines.append(_line("all", total))
    return "\n".join(lines), _share(total)


def _share(counts: Counter) -> float:
    return (counts[KILLED] + counts[SLOW]) / max(1, counts.total())


def _line(name: str, counts: Counter) -> str:
    rest = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    return f"{name:32} {_share(counts):4.0%} of {counts.total()} killed ({rest})"


def main() -> int:
    given = parse()
    book = Book(given.resume, again=given.again)
    chosen = [m for path in given.modules or MODULES for m in drawn(path, given.count, given.seed)]
    open_mutants = [m for m in chosen if m.key not in book.outcomes]
    for path in MODULES:
        importlib.import_module(path.removesuffix(".py").replace("/", "."))
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as base:
        for folder, paths in GROUPS.items():
            mutants = [m for m in open_mutants if m.path in paths]
            if not mutants:
                continue
            reach = reach_of(folder, Path(base))
            for number, (mutant, result) in enumerate(
                run(mutants, reach, given.jobs, Path(base)), 1
            ):
                book.add(mutant, result)
                mark = "." if result in {KILLED, SLOW} else f"{result}: {mutant}"
                print(
                    f"{time.monotonic() - began_s:5.0f} s {folder} {number}/{len(mutants)} {mark}",
                    flush=True,
                )
    text, share = summary(chosen, book.outcomes)
    survivors = [m for m in chosen if book.outcomes[m.key] not in {KILLED, SLOW}]
    print("\n".join(["", *(f"{book.outcomes[m.key]}: {m}" for m in survivors), "", text]))
    return int(share < KILLED_SHARE_MIN)


if __name__ == "__main__":
    sys.exit(main())
