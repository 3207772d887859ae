"""Row H1, live: histories of chunk registers from a real cluster whose storage processes
are killed, linearizable?

    python -m tests.torture.histories [--count N] [--seed S] [--resume FILE]
        [--at-once N] [--kill-pause-s S | --no-kills] [--broken MUTANT]

A history: 5 clients, each with a session and connections of its own, do 1,000 operations in all,
one after the other each, on 4 registers.  A register is 512 bytes of a chunk of its own.  Every
write has a value of its own; some are abandoned in the middle, and those, like the ones that fail,
have an unknown outcome.  50 histories, or N, go on at once.  Meanwhile a storage process is killed
every few seconds, sometimes another one before it is back.

Each history's outcome is kept in FILE and not run again.  Exit code 1 if one is not
linearizable, or replicas differ.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import trio

from fs.client.connect import connect
from fs.client.native import EmberFile, EmberFs
from fs.rpc.transport import SocketNetwork
from fs.runtime.real import real_runtime
from fs.schema.config import ClientSection, ProcessConfig
from fs.schema.layout import MIB
from fs.schema.status import FsError
from tests.sim.linearizable import FOREVER, Op, is_linearizable
from tests.sim.workload import SLOT_BYTES, slot_bytes, slot_value

from .fleet import CLUSTER_ID, Fleet, Sizes

CLIENT_COUNT = 5
OP_COUNT = 1000
REGISTER_COUNT = 4
AT_ONCE = 50
WRITE_SHARE = 0.4
ABANDONED_SHARE = 0.01
"""Of the writes: given up after at most ABANDONED_S_MAX."""

ABANDONED_S_MAX = 0.01
SPACING_BYTES = MIB
"""From register to register; a multiple of the chunk size."""

KILL_PAUSE_S = 10.0
"""On average, from the moment the cluster is healthy."""

SECOND_KILL_SHARE = 0.25
HEALTHY_TIMEOUT_S = 120.0
RETRY_S = 60.0
MUTANT_VARIABLE = "EMBER_TORTURE_MUTANT"

log = logging.getLogger(__name__)


@dataclass
class History:
    """What happened to the registers of one file."""

    number: int
    registers: list[list[Op]] = field(default_factory=lambda: [[] for _ in range(REGISTER_COUNT)])
    torn: list[str] = field(default_factory=list)
    last_value: int = 0

    @property
    def path(self) -> str:
        return f"/history-{self.number}"

    def next_value(self) -> int:
        self.last_value += 1
        return self.last_value

    def ops(self) -> Iterable[Op]:
        return (op for register in self.registers for op in register)

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        return self.torn + [
            f"history {self.number}: register {i} is not linearizable"
            for i, ops in enumerate(self.registers)
            if not is_linearizable(ops, 0)
        ]

    def outcome(self) -> dict[str, object]:
        """Return what is kept of it."""
        ops = list(self.ops())
        known = [op for op in ops if op.end_s < FOREVER]
        return {
            "history": self.number,
            "ops": len(ops),
            "pending": len(ops) - len(known),
            "longest_s": round(max((op.end_s - op.begin_s for op in known), default=0.0), 3),
            "problems": self.problems(),
        }


async def operate(
    history: History, file: EmberFile, who: str, rng: random.Random, op_count: int
) -> None:
    """Do one client's part of a history."""
    for _ in range(op_count):
        index = rng.randrange(REGISTER_COUNT)
        if rng.random() < WRITE_SHARE:
            await write(history, index, file, who, rng)
        else:
            await read(history, index, file, who)


async def read(history: History, index: int, file: EmberFile, who: str) -> None:
    """Read a register; a read that fails says nothing."""
    begin_s = time.monotonic()
    try:
        content = await file.read(index * SPACING_BYTES, SLOT_BYTES)
    except FsError as error:
        log.warning("%s: read of register %d: %s", history.path, index, error)
        return
    end_s = time.monotonic()
    try:
        value = slot_value(content)
    except (AssertionError, ValueError) as error:
        history.torn.append(f"history {history.number}: register {index}: {error}")
        return
    history.registers[index].append(Op("read", value, begin_s, end_s, who))


async def write(
    history: History, index: int, file: EmberFile, who: str, rng: random.Random
) -> None:
    """Write a register; a write that fails or is abandoned may have happened, or may happen yet."""
    value = history.next_value()
    limit_s = rng.uniform(0, ABANDONED_S_MAX) if rng.random() < ABANDONED_SHARE else FOREVER
    begin_s, end_s = time.monotonic(), FOREVER
    try:
        with trio.move_on_after(limit_s):
            await file.write(index * SPACING_BYTES, slot_bytes(value))
            end_s = time.monotonic()
    except FsError as error:
        log.warning("%s: write of register %d: %s", history.path, index, error)
    history.registers[index].append(Op("write", value, begin_s, end_s, who))


async def run_lot(clients: list[EmberFs], numbers: Iterable[int], seed: int) -> list[History]:
    """Run some histories at once."""
    histories = [History(number) for number in numbers]
    async with AsyncExitStack() as files, trio.open_nursery() as nursery:
        for history in histories:
            first = await files.enter_async_context(await clients[0].create(history.path))
            for index in range(REGISTER_COUNT):
                await first.write(index * SPACING_BYTES, slot_bytes(0))
            await first.fsync()
            opened = [first]
            for client in clients[1:]:
                file = await client.create(history.path, truncate=False)
                opened.append(await files.enter_async_context(file))
            for number, file in enumerate(opened):
                rng = random.Random(f"{seed} {history.number} {number}")
                count = OP_COUNT // len(clients)
                nursery.start_soon(operate, history, file, f"client-{number}", rng, count)
    for history in histories:
        await clients[0].unlink(history.path)
    return histories


class Killer:
    """Kills storage processes; the fleet starts them again."""

    def __init__(self, fleet: Fleet, rng: random.Random, pause_s: float) -> None:
        self._fleet, self._rng, self._pause_s = fleet, rng, pause_s
        self.count = 0

    async def run(self) -> None:
        await trio.sleep(self._rng.uniform(0, 1))
        while True:
            first = self._rng.choice(self._fleet.storages)
            self._kill(first)
            if self._rng.random() < SECOND_KILL_SHARE:
                await trio.sleep(self._rng.uniform(0, 1))
                others = [name for name in self._fleet.storages if name != first]
                self._kill(self._rng.choice(others))
            await trio.to_thread.run_sync(self._fleet.wait_healthy, HEALTHY_TIMEOUT_S)
            await trio.sleep(self._rng.uniform(0.4, 1.6) * self._pause_s)

    def _kill(self, name: str) -> None:
        process = self._fleet.children[name].process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            self.count += 1


class Book:
    """Outcomes by history, kept in a file."""

    def __init__(self, file: Path | None) -> None:
        self.outcomes: dict[int, dict] = {}
        self._file = file
        if file is not None and file.exists():
            entries = map(json.loads, file.read_text().splitlines())
            self.outcomes = {entry["history"]: entry for entry in entries}

    def add(self, outcome: dict) -> None:
        self.outcomes[outcome["history"]] = outcome
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(outcome) + "\n")


class Run:
    """All histories that are still missing, on one cluster."""

    def __init__(self, fleet: Fleet, book: Book, given: argparse.Namespace) -> None:
        self._fleet, self._book, self._seed = fleet, book, given.seed
        self._at_once = given.at_once
        self._killer = Killer(fleet, random.Random(given.seed), given.kill_pause_s)
        self._has_kills = not given.no_kills

    async def run(self, numbers: list[int]) -> None:
        """Stops at the first lot with something wrong in it."""
        runtime = real_runtime(SocketNetwork())
        config = ProcessConfig(client=ClientSection(retry_time_s_max=RETRY_S))
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    connect(self._fleet.addresses, CLUSTER_ID, runtime=runtime, config=config)
                )
                for _ in range(CLIENT_COUNT)
            ]
            nursery = await stack.enter_async_context(trio.open_nursery())
            if self._has_kills:
                nursery.start_soon(self._killer.run)
            for start in range(0, len(numbers), self._at_once):
                if await self._lot(clients, numbers[start : start + self._at_once]):
                    break
            nursery.cancel_scope.cancel()

    async def _lot(self, clients: list[EmberFs], numbers: list[int]) -> bool:
        began_s, kills = time.monotonic(), self._killer.count
        histories = await run_lot(clients, numbers, self._seed)
        kills = self._killer.count - kills
        outcomes = [
            h.outcome() | {"kills": kills, "lot": numbers[0], "seed": self._seed} for h in histories
        ]
        for outcome in outcomes:
            self._book.add(outcome)
        found = [text for outcome in outcomes for text in outcome["problems"]]
        print(
            f"histories {numbers[0]} to {numbers[-1]}: {sum(o['ops'] for o in outcomes)} "
            "operations,"
            f" {sum(o['pending'] for o in outcomes)} of unknown outcome, {kills} kills,"
            f" longest {max(o['longest_s'] for o in outcomes):.1f} s,"
            f" {time.monotonic() - began_s:.0f} s: {found or 'linearizable'}",
            flush=True,
        )
        return bool(found)


def summary(outcomes: list[dict]) -> str:
    bad = [o for o in outcomes if o["problems"]]
    kills = {(o["seed"], o["lot"]): o["kills"] for o in outcomes}
    return (
        f"{len(outcomes)} histories, {sum(o['ops'] for o in outcomes):,} operations,"
        f" {sum(o['pending'] for o in outcomes):,} of unknown outcome, {sum(kills.values())} kills,"
        f" longest operation {max((o['longest_s'] for o in outcomes), default=0):.1f} s;"
        f" {len(outcomes) - len(bad)} linearizable, {len(bad)} not"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture.histories", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--resume", type=Path, help="file of outcomes")
    parser.add_argument("--kill-pause-s", type=float, default=KILL_PAUSE_S, help="on average")
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument(
        "--broken", default="", metavar="MUTANT", help="break the storage processes"
    )
    return parser.parse_args()


def main() -> int:
    given = parse()
    book = Book(given.resume)
    missing = [n for n in range(1, given.count + 1) if n not in book.outcomes]
    differing: list[str] = []
    if missing:
        os.environ[MUTANT_VARIABLE] = given.broken
        base = Path(tempfile.mkdtemp(prefix="ember-histories-"))
        wrapper = "tests.torture.broken" if given.broken else ""
        fleet = Fleet(base / "fleet", Sizes(loop_mib=0), wrapper=wrapper)
        try:
            fleet.up(has_mount=False)
            trio.run(Run(fleet, book, given).run, missing)
            fleet.wait_healthy(HEALTHY_TIMEOUT_S)
            differing = fleet.compare()[1]
        finally:
            fleet.close()
        shutil.rmtree(base)
    outcomes = list(book.outcomes.values())
    print("\n".join([*differing, summary(outcomes)]))
    return int(bool(differing) or any(o["problems"] for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
