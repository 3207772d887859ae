"""The rows of specs/reliability.md that need real processes, under a load: M.

One function each; D and C: disk_rows.py.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .fencing import Writer, ask_through
from .fleet import Sizes
from .manifest import FILE_COUNT, listed, missing
from .plan import NETWORK, Fault, draw
from .runner import Torture, TortureError, quantile

STALL_S_MAX = 30.0
APART_S = 40.0
ONE_CHAIN = {"nodes": 3, "replicas": 3, "chains": 1}
MANIFEST_LOADS = 4
MANIFEST_TIMEOUT_S = 300.0
LIGHT_LOAD = ("fsx", "files")
DBENCH_ERROR = re.compile(r"^(?!.*barrier semaphore).*(failed|error|mismatch)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line says."""

    base: Path
    seed: int
    count: int | None
    sizes: Sizes
    broken: str = ""

    def torture(self, **options) -> Torture:
        """Return a torture in a folder of its own."""
        wrapper = ""
        if self.broken:
            os.environ["EMBER_TORTURE_MUTANT"] = self.broken
            wrapper = "tests.torture.broken"
        options.setdefault("sizes", self.sizes)
        return Torture(self.base, seed=self.seed, wrapper=wrapper, say=say, **options)

    def times(self, gate: int) -> range:
        """Return what to count to: the gate's number unless told otherwise."""
        return range(gate if self.count is None else self.count)


ROWS: dict[str, Callable[[Run], dict]] = {}


def row(name: str) -> Callable[[Callable[[Run], dict]], Callable[[Run], dict]]:
    """Register a row."""

    def register(function: Callable[[Run], dict]) -> Callable[[Run], dict]:
        ROWS[name] = function
        return function

    return register


def say(text: str) -> None:
    print(text, flush=True)


def summary(report: dict) -> str:
    """Return the report as text, long lists left out."""
    lines = []
    for key, value in report.items():
        if key == "growth":
            lines += [
                f"  {name}: {v['rss_mib'][0]} to {v['rss_mib'][1]} MiB,"
                f" {v['descriptors'][0]} to {v['descriptors'][1]} descriptors"
                for name, v in value.items()
            ]
        elif key != "pauses":
            lines.append(f"{key}: {value}")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Return a distribution in a line."""
    ordered = sorted(values)
    return (
        f"{len(ordered)}: p50 {quantile(ordered, 50):.2f}, p95 {quantile(ordered, 95):.2f},"
        f" max {max(ordered, default=0.0):.2f} s"
    )


def histogram(values: list[float], width_s: float = 0.1) -> list[str]:
    """Return a distribution as a plot of text, one line per class."""
    counts: dict[int, int] = defaultdict(int)
    for value in values:
        counts[int(value / width_s)] += 1
    last = max(counts, default=-1)
    return [f"{i * width_s:5.1f} s {'#' * counts[i]}" for i in range(last + 1)]


def node_at(torture: Torture, position: str) -> str:
    """Return the storage process that is now head, middle or tail of the first chain."""
    chain = min(torture.fleet.routing().chains.values(), key=lambda c: c.chain_id)
    index = {"head": 0, "middle": len(chain.targets) // 2, "tail": -1}[position]
    return torture.fleet.storages[chain.targets[index].target_id // 1000 - 11]


def by_victim(torture: Torture, name: str) -> str:
    return name if name in torture.fleet.children else node_at(torture, name)


@row("M1")
def kills(run: Run) -> dict:
    """SIGKILL of every kind of process under fsx: no error, no wrong byte, no stall beyond 30 s."""
    pauses: dict[str, list[float]] = defaultdict(list)
    with run.torture(sizes=replace(run.sizes, **ONE_CHAIN), loads=("fsx", "fsx")).running() as it:
        time.sleep(2)
        for _ in run.times(10):
            for kind in (*it.fleet.controls, "head", "middle", "tail"):
                done = it.round(Fault("kill", by_victim(it, kind)))
                pauses[kind].append(done.pause_s)
                if done.pause_s > STALL_S_MAX:
                    raise TortureError(f"{done.fault}: fsx stalled {done.pause_s:.1f} s")
                time.sleep(1)
        report = it.finish()
    return report | {f"pause {kind}": spread(values) for kind, values in pauses.items()}


@row("M2")
def mount_kills(run: Run) -> dict:
    """SIGKILL of the mount daemon under load: the mount point says so, a new one works,
    every synced file is whole.
    """
    sizes = replace(run.sizes, loop_mib=0)
    loads = ("manifest",) * MANIFEST_LOADS + LIGHT_LOAD
    with run.torture(sizes=sizes, loads=loads).running() as it:
        manifests = Manifests(it)
        kill_count = len(run.times(20))
        for index in range(1, kill_count + 1):
            manifests.wait_made(FILE_COUNT * index // kill_count)
            it.round(Fault("kill", "mountd"))
            manifests.check_new()
        listed_count = manifests.check_all()
        report = it.finish()
    made = FILE_COUNT * MANIFEST_LOADS
    return report | {"files": made, "synced ones, all whole": listed_count}


class Manifests:
    """The lists of all loads that keep one."""

    def __init__(self, it: Torture) -> None:
        self._it = it
        workers = enumerate(it.workers[:MANIFEST_LOADS])
        self._checked = {
            (w.log.with_suffix(".manifest"), it.fleet.mount / w.name, it.load_seed(index)): 0
            for index, w in workers
        }

    def wait_made(self, count: int) -> None:
        """Wait until each load has made about so many files: only the synced ones are listed."""
        deadline = time.monotonic() + MANIFEST_TIMEOUT_S
        while min((listed(manifest) or [0])[-1] for manifest, _, _ in self._checked) < count - 1:
            self._it.check_load()
            if time.monotonic() > deadline:
                raise TortureError(f"no {count} files made within {MANIFEST_TIMEOUT_S:g} s")
            time.sleep(0.2)

    def check_new(self) -> None:
        """Compare what was listed since the last time; raises TortureError."""
        for source, checked in self._checked.items():
            manifest, directory, seed = source
            numbers = listed(manifest)
            if problems := missing(directory, seed, numbers[checked:]):
                raise TortureError(f"{len(problems)} synced files lost: {problems[:5]}")
            self._checked[source] = len(numbers)

    def check_all(self) -> int:
        """Compare everything that is listed; return how many files that is."""
        self._checked = dict.fromkeys(self._checked, 0)
        self.check_new()
        return sum(self._checked.values())


@row("M3")
def stops(run: Run) -> dict:
    """SIGSTOP for 5-60 s of every kind; a storage process is asked all the time
    and must never be stale.
    """
    told: dict[str, list[str]] = defaultdict(list)
    pauses: dict[str, list[float]] = defaultdict(list)
    sizes = replace(run.sizes, **ONE_CHAIN)
    with run.torture(sizes=sizes, loads=LIGHT_LOAD).running() as it:
        with writing(it) as writer:
            for _ in run.times(10):
                for kind in ("head", "middle", "tail", *it.fleet.controls, "mountd"):
                    seconds = math.exp(it.generator.uniform(math.log(5), math.log(60)))
                    name = by_victim(it, kind)
                    fault = Fault("long_stop", name, seconds)
                    if kind in it.fleet.children:
                        pauses[kind].append(it.round(fault).pause_s)
                        continue
                    pause_s, answers = fenced(
                        it, writer, fault, lambda name=name: it.fleet.send(name, signal.SIGSTOP),
                        lambda name=name: it.fleet.send(name, signal.SIGCONT),
                    )  # fmt: skip
                    pauses[kind].append(pause_s)
                    told[kind].append(answers)
        report = it.finish()
    report |= {f"pause {kind}": spread(values) for kind, values in pauses.items()}
    return report | {f"answers of {kind}": " | ".join(lines) for kind, lines in told.items()}


@contextmanager
def writing(it: Torture) -> Iterator[Writer]:
    """Write numbers meanwhile; raises TortureError when a write fails."""
    writer = Writer(it.fleet, "register")
    try:
        yield writer
    finally:
        writer.close()
    if writer.error is not None:
        raise TortureError(f"the writer saw {writer.error}")


def fenced(
    it: Torture,
    writer: Writer,
    fault: Fault,
    begin: Callable[[], None],
    end: Callable[[], None],
) -> tuple[float, str]:
    """Make a fault of a storage process and ask it all the time;
    return (pause of the writer, its answers).
    """
    writer.take_longest()
    answers = ask_through(it.fleet, fault.victim, writer, fault.duration_s, begin=begin, end=end)
    told = ", ".join(f"{n} {what}" for what, n in sorted(answers.counts.items()))
    if answers.stale:
        raise TortureError(f"{fault}: stale: {'; '.join(answers.stale[:3])}")
    it.fleet.wait_healthy(120)
    it.check_load()
    pause_s = writer.take_longest()
    say(f"{fault}: longest pause {pause_s:.2f} s; answers: {told}; none stale")
    return pause_s, told


@row("fencing")
def one_direction(run: Run) -> dict:
    """A storage process that one direction of its talk with the manager is cut off from:
    fenced before it is replaced.
    """
    pauses: dict[str, list[float]] = defaultdict(list)
    sizes = replace(run.sizes, **ONE_CHAIN)
    with run.torture(sizes=sizes, loads=LIGHT_LOAD).running() as it:
        network = it.fleet.network
        with writing(it) as writer:
            for _ in run.times(4):
                for kind, cut in (("deaf", network.deafen_to), ("mute", network.mute_to)):
                    for position in ("head", "middle", "tail"):
                        name = node_at(it, position)
                        pause_s, _ = fenced(
                            it, writer, Fault(f"{kind} {position}", name, 15.0),
                            lambda name=name, cut=cut: cut(name, "mgmtd"),
                            lambda name=name: network.heal(name),
                        )  # fmt: skip
                        pauses[kind].append(pause_s)
        report = it.finish()
    return report | {f"pause {kind}": spread(values) for kind, values in pauses.items()}


@row("M4")
def partitions(run: Run) -> dict:
    """Partitions (full, partial, one-way), loss, resets and narrow links, under the load."""
    with run.torture(loads=("fsx", "files", "native")).running() as it:
        for index in run.times(30):
            kind = NETWORK[index % len(NETWORK)]
            it.round(
                draw(it.generator, storages=it.fleet.storages, loop_node="",
                     others=it.fleet.controls, mount="mountd", only=[kind])
            )  # fmt: skip
        return it.finish()


@row("apart")
def mounts_apart(run: Run) -> dict:
    """A mount daemon and one storage node that do not reach each other,
    while all others reach both: how long programs wait.

    None of them runs in this process: what it starts to end the cut would first have to close the
    files of the mount that it inherits.
    """
    pauses: dict[str, list[float]] = defaultdict(list)
    sizes = replace(run.sizes, **ONE_CHAIN, loop_mib=0)
    with run.torture(sizes=sizes, loads=LIGHT_LOAD).running() as it:
        for _ in run.times(3):
            for position in ("head", "middle", "tail"):
                done = it.round(Fault("apart", node_at(it, position), APART_S, peer="mountd"))
                pauses[position].append(done.pause_s)
        report = it.finish()
    return report | {f"pause {kind}": spread(values) for kind, values in pauses.items()}


@row("M5")
def rolling(run: Run) -> dict:
    """Every process ended in order and started again, during dbench."""
    if shutil.which("dbench") is None:
        raise TortureError("dbench is not installed (Debian package dbench)")
    with run.torture(loads=("fsx",)).running() as it:
        place = it.fleet.mount / "dbench"
        place.mkdir()
        log = it.fleet.base / "logs" / "dbench.log"
        with log.open("wb") as out:
            bench = subprocess.Popen(
                ["dbench", "-D", place, "-c", "/usr/share/dbench/client.txt", "-t", "7200", "2"],
                stdout=out,
                stderr=out,
            )
        try:
            for _ in run.times(3):
                it.round(Fault("rolling", "all"))
                if bench.poll() is not None:
                    raise TortureError(f"dbench ended: {log.read_text()[-500:]}")
            done = log.read_text().splitlines()[-1].strip()
        finally:
            bench.terminate()
            bench.wait(60)
        wrong = [line for line in log.read_text().splitlines() if DBENCH_ERROR.search(line)]
        if wrong:
            raise TortureError(f"dbench saw {wrong[:3]}: {log}")
        shutil.rmtree(place)
        return it.finish() | {"dbench": done}


@row("M6")
def wipes(run: Run) -> dict:
    """A disk lost and replaced by an empty one, under the load: all replicas back and equal."""
    with run.torture(loads=("fsx", "files", "native")).running() as it:
        time.sleep(20)
        for index in run.times(5):
            it.round(Fault("wipe", it.fleet.storages[index % len(it.fleet.storages)]))
            time.sleep(3)
        return it.finish()


@row("pause")
def pauses_of_kills(run: Run) -> dict:
    """How long a killed storage process goes unnoticed, and how long a writer waits:
    the distributions.
    """
    waits: list[float] = []
    with run.torture(sizes=replace(run.sizes, **ONE_CHAIN, loop_mib=0), loads=()).running() as it:
        with writing(it) as writer:
            time.sleep(1)
            for index in run.times(30):
                victim = node_at(it, ("head", "middle", "tail")[index % 3])
                writer.take_longest()
                it.round(Fault("kill", victim))
                time.sleep(0.5)
                waits.append(writer.take_longest())
        noticed = it.faults.noticed_s
        report = it.finish()
    for title, values in (("noticed", noticed), ("writer's pause", waits)):
        say("\n".join([title, *histogram(values)]))
    return report | {
        "noticed_s": [round(v, 3) for v in noticed],
        "waits_s": [round(v, 3) for v in waits],
        "noticed": spread(noticed),
        "writer's pause": spread(waits),
    }
