"""Are transactions of an engine what they promise:
isolated, whole, and applied once when the outcome was unknown?

    python -m tests.kv.isolation --runs 200                 every workload on every engine
    python -m tests.kv.isolation --runs 200 --engine remote --workload bank cycle --seed 1000

Each run is a few tasks with random transactions from one seed, under injected conflicts and unknown
outcomes, on an empty store.  FoundationDB: that of FDB_CLUSTER_FILE, with faults injected above the
engine; without it the fake server, which itself fails commits with 1020 and 1021, so that the
engine's own way of telling them is part of the run.

Workloads, each an async function that raises AssertionError:
    cycle         each key names the next; swaps of neighbours must leave one ring
    bank          transfers with a record each; an auditor reads all accounts; balances
                  must follow from the records
    serializable  random reads and writes; replayed in commit order on a plain
                  map they must read the same
    unknown       counters raised by requests that are retried; each request counts once
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from fs.kv.api import KvEngine, Transaction
from fs.kv.faulty import FaultyEngine, RandomFaults
from fs.kv.transact import snapshot_read, transact
from fs.runtime.ports import Runtime
from fs.schema.status import FsError, Status
from tests.kv.fake_fdb import session
from tests.kv.fake_fdb.wire import ask
from tests.kv.harness import Lab, Model

ENGINES = ("memory", "rocksdb", "remote", "foundationdb")
TASK_COUNT = 5
STEP_COUNT = 8
RETRY_S = 1000.0
RUNS_PER_STORE = 50
CONFLICT, COMMITTED, LOST = 0.08, 0.08, 0.08
FAKE_FAULT_COUNT = 400
WITHOUT_EFFECT = {Status.KV_CONFLICT, Status.KV_TOO_OLD}


@dataclass
class Run:
    """What a workload works with."""

    engine: KvEngine
    runtime: Runtime
    seed: int
    remembers: bool = True
    """False, for a negative control: requests forget that they were carried out."""

    def source(self, number: int) -> random.Random:
        return random.Random(self.seed * 1000 + number)

    async def change(self, fn: Callable[[Transaction], Awaitable[object]], **options) -> object:
        return await transact(
            self.engine, fn, runtime=self.runtime, retry_time_s_max=RETRY_S, **options
        )

    async def rows(self, begin: bytes = b"", end: bytes = b"\xff") -> dict[bytes, bytes]:
        return dict(await snapshot_read(self.engine, lambda tr: tr.get_range(begin, end)))

    async def side_by_side(self, task: Callable[[int], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(TASK_COUNT):
                nursery.start_soon(task, number)


async def pause(source: random.Random) -> None:
    if source.random() < 0.5:
        await trio.sleep(source.random() / 1000)


async def cycle(run: Run) -> None:
    count = 10

    async def lay(tr):
        for i in range(count):
            tr.set(b"%02d" % i, b"%02d" % ((i + 1) % count))

    await run.change(lay)

    async def swapper(number: int) -> None:
        source = run.source(number)
        for _ in range(STEP_COUNT):
            start = b"%02d" % source.randrange(count)

            async def swap(tr, start=start):
                second = await tr.get(start)
                await pause(source)
                third = await tr.get(second)
                await pause(source)
                fourth = await tr.get(third)
                tr.set(start, third)
                tr.set(third, second)
                tr.set(second, fourth)

            await run.change(swap)

    await run.side_by_side(swapper)
    ring, node, seen = await run.rows(), b"00", []
    while node not in seen:
        seen.append(node)
        node = ring[node]
    assert node == b"00", seen
    assert len(seen) == count == len(ring), seen


async def bank(run: Run) -> None:
    accounts = [b"account/%d" % i for i in range(6)]

    async def fund(tr):
        for account in accounts:
            tr.set(account, b"100")

    await run.change(fund)
    is_open = True

    async def teller(number: int) -> None:
        source = run.source(number)
        for step in range(STEP_COUNT):
            payer, payee = source.sample(accounts, 2)
            record, share = b"done/%d/%d" % (number, step), source.random()

            async def transfer(tr, payer=payer, payee=payee, record=record, share=share):
                if run.remembers and await tr.get(record) is not None:
                    return
                paid = int(await tr.get(payer))
                await pause(source)
                received = int(await tr.get(payee))
                amount = int(paid * share)
                tr.set(payer, b"%d" % (paid - amount))
                tr.set(payee, b"%d" % (received + amount))
                tr.set(record, b"%b %b %d" % (payer, payee, amount))

            await run.change(transfer)

    async def auditor() -> None:
        while is_open:
            held = await run.rows(b"account/", b"account0")
            assert sum(int(value) for value in held.values()) == 600, held
            await trio.sleep(0.002)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(auditor)
        await run.side_by_side(teller)
        is_open = False
    expected = dict.fromkeys(accounts, 100)
    records = await run.rows(b"done/", b"done0")
    assert len(records) == TASK_COUNT * STEP_COUNT
    for value in records.values():
        payer, payee, amount = value.split()
        expected[payer] -= int(amount)
        expected[payee] += int(amount)
    held = await run.rows(b"account/", b"account0")
    assert {key: int(value) for key, value in held.items()} == expected


# ---- random transactions, replayed ---------------------------------------------------------------

KEYS = [b"k%02d" % i for i in range(12)]
RAISED_FROM = KEYS[9]
"""These are raised and never added to."""


@dataclass
class Script:
    """What one transaction does: names and arguments; results of reads as seen."""

    steps: list[tuple] = field(default_factory=list)
    stamp: bytes | None = None


def random_step(source: random.Random) -> tuple:
    key, other = source.choice(KEYS), source.choice(KEYS)
    kind = source.randrange(10)
    if kind <= 2:
        return ("get", key)
    if kind <= 4:
        options = {"limit": source.choice([0, 0, 1, 2, 5]), "reverse": source.random() < 0.5}
        return ("get_range", min(key, other), max(key, other), options)
    if kind <= 6:
        return ("set", key, source.randbytes(8))
    if kind == 7:
        return ("clear", key)
    if kind == 8 and key >= RAISED_FROM:
        return ("atomic_max", key, source.randbytes(8))
    if kind == 8:
        return ("atomic_add", key, source.randint(-100, 100))
    return ("clear_range", min(key, other), min(max(key, other), min(key, other) + b"~"))


async def act(target: Transaction | Model, step: tuple) -> object:
    options = step[-1] if isinstance(step[-1], dict) else {}
    arguments = step[1:-1] if options else step[1:]
    result = getattr(target, step[0])(*arguments, **options)
    return await result if hasattr(result, "__await__") else result


async def run_script(
    engine: KvEngine, source: random.Random, name: bytes, *, pause_s_max: float = 0.01
) -> Script | None:
    """Run one random transaction; return what it did, None when it had no effect or only read.

    It leaves its versionstamp under a key of its own, which tells whether, and when, one of
    unknown outcome committed. Where the machine has so much else to do that it outlives its
    snapshot, it has no effect, either.
    """
    script = Script()
    tr = engine.transaction()
    try:
        for _ in range(source.randint(1, 7)):
            step = random_step(source)
            script.steps.append((step, await act(tr, step)))
            if source.random() < 0.5:
                await trio.sleep(source.random() * pause_s_max)
        if all(step[0].startswith("get") for step, _ in script.steps):
            tr.close()
            return None
        tr.set_versionstamped_value(name, b"")
        script.stamp = await tr.commit()
    except FsError as error:
        if error.status in WITHOUT_EFFECT:
            return None
        if error.status is not Status.KV_COMMIT_UNKNOWN:
            raise
        script.stamp = await snapshot_read(engine, lambda tr: tr.get(name))
    return script if script.stamp is not None else None


async def serializable(run: Run, *, script_count: int = 12) -> None:
    done: list[Script] = []

    async def worker(number: int) -> None:
        source = run.source(number)
        for step in range(script_count):
            script = await run_script(run.engine, source, b"stamp/%d/%d" % (number, step))
            if script is not None:
                done.append(script)

    await run.side_by_side(worker)
    assert len({script.stamp for script in done}) == len(done) > script_count
    model = Model()
    for script in sorted(done, key=lambda script: script.stamp):
        for step, seen in script.steps:
            assert await act(model, step) == seen, (step, script)
    assert await run.rows(b"k", b"l") == model.rows


# ---- unknown outcomes ----------------------------------------------------------------------------


async def unknown(run: Run) -> None:
    async def raise_counter(tr, key: bytes) -> None:
        tr.set(key, b"%d" % (int(await tr.get(key) or b"0") + 1))

    async def client(number: int) -> None:
        for step in range(STEP_COUNT):
            record = b"done/%d/%d" % (number, step)

            async def request(tr, record=record):
                if run.remembers and await tr.get(record) is not None:
                    return
                tr.set(record, b"")
                await raise_counter(tr, b"once")

            await run.change(request)

    await run.side_by_side(client)
    assert int((await run.rows())[b"once"]) == TASK_COUNT * STEP_COUNT
    # What may not be run twice is not: whoever asked is told, and finds out by himself.
    done_count = unknown_count = 0
    for step in range(STEP_COUNT):
        mark = b"mark/%d" % step

        async def blunt(tr, mark=mark):
            tr.set(mark, b"")
            await raise_counter(tr, b"blunt")

        try:
            await run.change(blunt, is_idempotent=False)
        except FsError as error:
            if error.status is not Status.KV_COMMIT_UNKNOWN:
                raise
            unknown_count += 1
        else:
            done_count += 1
    rows = await run.rows()
    took_effect = sum(key.startswith(b"mark/") for key in rows)
    assert int(rows.get(b"blunt", b"0")) == took_effect
    assert done_count <= took_effect <= done_count + unknown_count


WORKLOADS = {"cycle": cycle, "bank": bank, "serializable": serializable, "unknown": unknown}


# ---- engines and faults --------------------------------------------------------------------------


class SnapshotOnly:
    """A negative control: an engine that forgets what its transactions have read."""

    def __init__(self, inner: KvEngine) -> None:
        self._inner = inner

    def transaction(self) -> Transaction:
        tr = self._inner.transaction()

        class Forgetful:
            def __getattr__(self, name: str):
                return getattr(tr, name)

            async def get(self, key: bytes, **_: object):
                return await tr.get(key, snapshot=True)

            async def get_range(self, begin: bytes, end: bytes, **options: object):
                return await tr.get_range(begin, end, **(options | {"snapshot": True}))

        return Forgetful()


def fake_faults(source: random.Random) -> list[tuple]:
    """Return fates of the next commits, as the fake server takes them."""
    fates = [("commit", 0, True), ("commit", 1020, False), ("commit", 1021, True)]
    fates.append(("commit", 1021, False))
    weights = (1 - CONFLICT - COMMITTED - LOST, CONFLICT, COMMITTED, LOST)
    return source.choices(fates, weights, k=FAKE_FAULT_COUNT)


async def one_run(lab: Lab, workload: str, seed: int, *, control: str = "") -> None:
    """Run a workload on an opened, empty store."""
    source = random.Random(f"{workload} {seed}")
    is_fake = lab.kind == "foundationdb" and not session.is_real()
    engine: KvEngine = lab.engine
    if is_fake:
        ask(session.cluster_file(), "set_faults", *fake_faults(source))
    else:
        engine = FaultyEngine(engine, RandomFaults(source, CONFLICT, COMMITTED, LOST))
    if control == "forgets reads":
        engine = SnapshotOnly(engine)
    try:
        run = Run(engine, lab.runtime, seed, remembers=control != "forgets requests")
        await WORKLOADS[workload](run)
    finally:
        if is_fake:
            ask(session.cluster_file(), "set_faults")
        tr = lab.engine.transaction()
        tr.clear_range(b"", b"\xff")
        await tr.commit()


def run_many(kind: str, workload: str, seeds: range, *, control: str = "") -> list[str]:
    """Run a workload from each seed on one store; return what failed."""
    failures: list[str] = []

    async def main(folder: str) -> None:
        async with trio.open_nursery() as nursery:
            lab = Lab(kind, Path(folder), nursery)
            await lab.open()
            for seed in seeds:
                try:
                    await one_run(lab, workload, seed, control=control)
                except* AssertionError as group:
                    failures.append(f"{workload} on {kind}, seed {seed}: {group.exceptions[0]!r}")
            await lab.clean()
            await lab.close()
            nursery.cancel_scope.cancel()

    with tempfile.TemporaryDirectory(prefix="ember-isolation-") as folder:
        trio.run(main, folder, clock=trio.testing.MockClock(autojump_threshold=0))
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kv.isolation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=200, help="of each workload on each engine")
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    options = parser.parse_args()
    failures: list[str] = []
    for kind in options.engine:
        for workload in options.workload:
            began_s, failed = time.monotonic(), []
            last = options.seed + options.runs
            for first in range(options.seed, last, RUNS_PER_STORE):
                seeds = range(first, min(first + RUNS_PER_STORE, last))
                failed += run_many(kind, workload, seeds)
            took_s = time.monotonic() - began_s
            name = kind if kind != "foundationdb" or session.is_real() else "foundationdb (fake)"
            print(
                f"{name:20} {workload:13} {options.runs} runs, {len(failed)} failed, {took_s:.0f} "
                "s",
                flush=True,
            )
            failures += failed
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
