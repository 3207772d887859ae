"""The torture itself: a cluster, its load, one fault after the other, and the judgement after each.

After each fault the cluster must be healthy within HEALTHY_TIMEOUT_S and its replicas equal; at the
end everything that was written must be right, and the stopped cluster must stand an offline check.

Does not decide which faults come (plan.py), nor what a file may hold (content.py).
"""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Final

from fs.schema.status import FsError

from .faults import Faults
from .fleet import CLUSTER_ID, LOOP_NODE, ROOT, Fleet, Sizes
from .offline import Offline
from .plan import Fault, draw

HEALTHY_TIMEOUT_S: Final = 120.0
LOAD_KINDS: Final = ("files", "files", "fsx", "fsx", "native")
START_TIMEOUT_S: Final = 300.0
HOLD_TIMEOUT_S: Final = 30.0
"""An operation may still last this long once the cluster is healthy."""
LOAD_END_TIMEOUT_S: Final = 240.0
SETTLE_S: Final = 0.7
PAUSE_S: Final = 5.0
"""Between random faults."""


class TortureError(Exception):
    """Something was found that must not be."""


@dataclass(slots=True)
class Worker:
    """One process of the load."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    read_bytes: int = 0
    slow: list[tuple[float, float, str]] = field(default_factory=list)
    errors: list[dict] = field(default_factory=list)
    deaths: list[float] = field(default_factory=list)
    """When it met a dead mount, and went on with the next one."""
    has_started: bool = False
    is_held: bool = False
    summary: dict | None = None

    def poll(self) -> None:
        """Take in what it has logged since; raises TortureError for what it found wrong."""
        with self.log.open("rb") as file:
            file.seek(self.read_bytes)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self.read_bytes += len(text)
        for line in text.splitlines():
            entry = json.loads(line)
            if "slow" in entry:
                self.slow.append((entry["begin"], entry["end"], entry["slow"]))
            elif "errno" in entry:
                self.errors.append(entry)
            elif "dead" in entry:
                self.deaths.append(entry["dead"])
            elif "started" in entry:
                self.has_started = True
            elif "held" in entry:
                self.is_held = entry["held"]
            elif "done" in entry:
                self.summary = entry
            elif "wrong" in entry or "failed" in entry:
                raise TortureError(f"{self.name}: {entry.get('wrong') or entry.get('failed')}")
        code = self.process.poll()
        if code is not None and self.summary is None:
            raise TortureError(f"{self.name}: ended with {code}")


@dataclass(slots=True)
class Round:
    """What came of one fault."""

    fault: str
    began_s: float
    told: str = ""
    healthy_s: float = 0.0
    pause_s: float = 0.0
    chunk_count: int = 0


class Torture:
    """One run."""

    def __init__(
        self,
        base: Path,
        sizes: Sizes,
        seed: int,
        *,
        wrapper: str = "",
        loads: Sequence[str] = LOAD_KINDS,
        extra: str = "",
        say: Callable[[str], None] = print,
    ) -> None:
        self.fleet = Fleet(base, sizes, wrapper=wrapper, extra=extra)
        self.seed, self.say = seed, say
        self.generator = random.Random(seed)
        self.faults = Faults(self.fleet, self.generator)
        self.rounds: list[Round] = []
        self.workers: list[Worker] = []
        self._loads = loads
        self._stop_file = base / "stop"
        self.began_s = time.monotonic()
        self._first: dict[tuple[str, int], tuple[float, int]] = {}
        self.growth: dict[tuple[str, int], tuple[float, int, float, int]] = {}

    @contextmanager
    def running(self) -> Iterator["Torture"]:
        """Bring the cluster up and load it; end everything that is left afterwards."""
        try:
            self.fleet.up()
            for index, kind in enumerate(self._loads):
                self.workers.append(self._start_worker(index, kind))
            self._wait_load(
                lambda worker: worker.has_started, START_TIMEOUT_S, "no start of the load"
            )
            self.began_s = time.monotonic()
            yield self
        finally:
            self._close()

    def _close(self) -> None:
        """End the load and the cluster; not to be interrupted,
        since mounts and devices would stay.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
        self.fleet.close()

    def load_seed(self, index: int) -> int:
        """The seed of a process of the load."""
        return self.seed * 100 + index

    def _start_worker(self, index: int, kind: str) -> Worker:
        name = f"{kind}-{index}"
        log = self.fleet.base / "logs" / f"load-{name}.jsonl"
        log.touch()
        path = f"/{name}" if kind == "native" else str(self.fleet.mount / name)
        command = [
            sys.executable, "-m", "tests.torture.load", kind, "--path", path,
            "--seed", str(self.load_seed(index)), "--stop", str(self._stop_file),
            "--log", str(log), "--manager", *self.fleet.addresses, "--cluster", CLUSTER_ID,
        ]  # fmt: skip
        errors = (self.fleet.base / "logs" / f"load-{name}.log").open("ab")
        with errors:
            process = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors)
        return Worker(name, process, log)

    # ---- one round

    def round(self, fault: Fault) -> Round:
        """Make a fault, wait until all is well again, judge; raises TortureError."""
        done = Round(str(fault), time.monotonic())
        self.rounds.append(done)
        try:
            done.told = self.faults.make(fault)
            done.healthy_s = self.fleet.wait_healthy(HEALTHY_TIMEOUT_S)
            time.sleep(SETTLE_S)
            self.check_load()
            done.pause_s = self._longest_pause(done.began_s)
            done.chunk_count = self.compare()
        except (AssertionError, FsError) as error:
            raise TortureError(f"{fault}: {error}") from error
        self.sample()
        self.say(
            f"{done.began_s - self.began_s:7.1f} s  {fault}: longest pause {done.pause_s:.2f} s,"
            f" healthy {done.healthy_s:.1f} s after it, {done.chunk_count} chunks equal"
            + (f"; {done.told}" if done.told else "")
        )
        return done

    def check_load(self) -> None:
        """Let every worker tell what it has seen; raises TortureError."""
        for worker in self.workers:
            worker.poll()
            for error in worker.errors:
                at = error["at"]
                is_told = self.faults.may_be_full(error.get("since", at), at)
                if error["errno"] != errno.ENOSPC or not is_told:
                    raise TortureError(f"{worker.name}: the application saw {error['text']}")
            if not all(self.faults.may_be_dead(at) for at in worker.deaths):
                raise TortureError(f"{worker.name}: its mount died, although nobody killed it")

    def _longest_pause(self, since_s: float) -> float:
        return max(
            (end - max(begin, since_s)
             for worker in self.workers for begin, end, _ in worker.slow if end > since_s),
            default=0.0,
        )  # fmt: skip

    @contextmanager
    def load_held(self) -> Iterator[None]:
        """Let the load pause between two operations; all that were under way have ended."""
        hold = self.fleet.base / "hold"
        hold.touch()
        try:
            self._wait_load(lambda worker: worker.is_held, HOLD_TIMEOUT_S, "an operation hangs")
            yield
        finally:
            hold.unlink()
        self._wait_load(
            lambda worker: not worker.is_held, HOLD_TIMEOUT_S, "the load does not go on"
        )

    def _wait_load(self, is_so: Callable[[Worker], bool], timeout_s: float, problem: str) -> None:
        """Wait until it is so of every worker; raises TortureError."""
        deadline = time.monotonic() + timeout_s
        while late := [worker.name for worker in self.workers if not is_so(worker)]:
            time.sleep(0.05)
            self.check_load()
            if time.monotonic() > deadline:
                raise TortureError(f"{problem}: {', '.join(late)}, for {timeout_s:g} s")

    def compare(self) -> int:
        """Hold the load still and compare the replicas; return the number of chunks."""
        with self.load_held():
            count, different = self.fleet.compare()
        if different:
            raise TortureError(f"replicas differ: {'; '.join(different[:5])}")
        return count

    def sample(self) -> None:
        """Note memory and descriptors of every process since its start."""
        for child in self.fleet.children.values():
            if child.process is None or child.process.poll() is not None:
                continue
            now = resources(child.process.pid)
            if now is None:
                continue
            key = child.name, child.start_count
            first = self._first.setdefault(key, now)
            self.growth[key] = (*first, *now)

    # ---- all of it

    def thrash(
        self,
        minutes: float,
        *,
        only: Sequence[str] = (),
        pause_s: float = PAUSE_S,
        count: int | None = None,
    ) -> None:
        """Make random faults for so long, or so many."""
        loop_node = LOOP_NODE if self.fleet.disks else ""
        until = time.monotonic() + minutes * 60
        time.sleep(pause_s)
        self.sample()
        while time.monotonic() < until if count is None else len(self.rounds) < count:
            fault = draw(
                self.generator,
                storages=self.fleet.storages,
                loop_node=loop_node,
                others=self.fleet.controls,
                mount="mountd",
                only=only,
            )
            self.round(fault)
            time.sleep(pause_s)

    def finish(self) -> dict:
        """End the load, verify everything, stop the cluster, check it offline;
        return the report.
        """
        self._stop_file.touch()
        deadline = time.monotonic() + LOAD_END_TIMEOUT_S
        for worker in self.workers:
            try:
                worker.process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise TortureError(f"{worker.name}: still busy {LOAD_END_TIMEOUT_S:g} s") from error
        self.check_load()
        self.sample()
        self.fleet.wait_healthy(HEALTHY_TIMEOUT_S)
        chunk_count, different = self.fleet.compare()
        if different:
            raise TortureError(f"replicas differ in the end: {'; '.join(different[:5])}")
        problems = self.fleet.down()
        offline = Offline(self.fleet)
        problems += offline.run()
        if problems:
            raise TortureError(f"after the end: {len(problems)}: {'; '.join(problems[:8])}")
        return self.report(chunk_count, offline)

    def report(self, chunk_count: int, offline: Offline) -> dict:
        """Return the figures of the run."""
        pauses = sorted(r.pause_s for r in self.rounds)
        return {
            "seed": self.seed,
            "minutes": round((time.monotonic() - self.began_s) / 60, 2),
            "load_average": os.getloadavg(),
            "rounds": len(self.rounds),
            "faults": count_by(r.fault.split()[0] for r in self.rounds),
            "pauses": [
                (round(r.began_s - self.began_s, 1), r.fault, round(r.pause_s, 3), r.told)
                for r in self.rounds
            ],
            "pause_p50_s": quantile(pauses, 50),
            "pause_p95_s": quantile(pauses, 95),
            "pause_max_s": pauses[-1] if pauses else 0.0,
            "operations": sum(w.summary["ops"] for w in self.workers if w.summary),
            "enospc": sum(len(w.errors) for w in self.workers),
            "full disks in use again after": [round(s, 1) for s in self.faults.healed_s],
            "mounts met dead": sum(len(w.deaths) for w in self.workers),
            "chunks": chunk_count,
            "files_offline": offline.file_count,
            "growth": {
                f"{name}#{start}": {
                    "rss_mib": (round(a), round(c)),
                    "descriptors": (b, d),
                }
                for (name, start), (a, b, c, d) in sorted(self.growth.items())
            },
        }


def resources(pid: int) -> tuple[float, int] | None:
    """Return (resident MiB, open descriptors) of a process; None if it has just ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * 4096 / (1 << 20), len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def count_by(words: Iterator[str]) -> dict[str, int]:
    """Count equal words."""
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items()))


def quantile(values: list[float], percent: int) -> float:
    """Return a percentile of sorted values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]
