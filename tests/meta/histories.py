"""Row H2: histories of the namespace from several clients and services under faults,
strictly serializable?

    python -m tests.meta.histories [--count N] [--seed S] [--resume FILE] [--broken MUTANT]

A history: 4 to 8 clients do 300 deeds in all on a small tree (so that they meet), each at one of
three metadata services over one store.  Reads of the store take time, so transactions overlap.
Commits are refused, or their outcome is unknown, both kinds.  Services die with all they were at
and are replaced; replies get lost; clients lose patience and repeat a request elsewhere while the
first one is still under way; some give up, and what became of their deed only the record of their
request tells.  Clocks of the services differ.

In the end everything is read by somebody who sees all, `fs.meta.check` finds nothing, and some
order of the deeds explains every answer (tests/meta/serial.py).  Two readings of one file with the
same ctime are the same, and no later one has an older ctime.

One seed, one history: it replays exactly.  Exit code 1 if one is not explained.
"""

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from fs.kv.faulty import RandomFaults
from fs.kv.memory import MemoryEngine
from fs.meta import records
from fs.meta.check import check
from fs.meta.meta import Meta
from fs.runtime.simulated import SimulatedClock
from fs.schema import services
from fs.schema.proto.common_pb2 import InodePb
from fs.schema.proto.record_pb2 import IdempotencyRecordPb
from fs.schema.status import FsError, Status
from tests.meta.choosing import KINDS, PEOPLE, RIGHTS, Chooser
from tests.meta.deeds import Deed, ask, facts_of, request_of, said
from tests.meta.harness import ROOT, User, World
from tests.meta.model import SUPERUSER, Model
from tests.meta.mutants import MUTANTS
from tests.meta.pauses import PausingEngine
from tests.meta.serial import Event, require_serial
from tests.sim.determinism import run_deterministic

DEED_COUNT = 300
SERVICE_COUNT = 3
PATIENCE_S = 0.03
HELD_UP_S = 0.15
"""A request waits up to so long before its service begins with it:
the service was stopped, or the network held it up.
"""

KILL_PAUSE_S = 0.05
CLOCK_SKEW_NS = 2_000_000_000


@dataclass
class Weather:
    """How often what goes wrong; each history draws its own."""

    conflict: float
    unknown: float
    lost_reply: float
    impatient: float
    held_up: float
    gives_up: float
    has_kills: bool
    has_people: bool

    @classmethod
    def draw(cls, source: random.Random) -> "Weather":
        def often(most: float) -> float:
            return source.choice([0, most / 4, most])

        return cls(
            often(0.1),
            often(0.1),
            often(0.1),
            often(0.3),
            often(0.2),
            often(0.02),
            source.random() < 0.7,
            source.random() < 0.3,
        )


class Service:
    """A place where a metadata service runs; dies and is replaced."""

    def __init__(self, world: World, engine: PausingEngine, source: random.Random) -> None:
        self._world = world
        self._engine = engine
        self._source = source
        self._life: trio.CancelScope | None = None
        self.requests: trio.Nursery | None = None
        self.meta: Meta

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED) -> None:
        while True:
            self.meta = self._world.new_meta()
            self._world.runtime.clock.wall_offset_ns += self._source.randrange(CLOCK_SKEW_NS)
            with trio.CancelScope() as self._life:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.meta.service.driver.serve)
                    self.requests = nursery
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    try:
                        await trio.sleep_forever()
                    finally:
                        self.requests = None
            if self._life.cancelled_caught:
                await trio.sleep(self._source.choice([0, 0.02]))

    def kill(self) -> None:
        if self._life is not None:
            self._life.cancel()


@dataclass
class Call:
    """One try of a request at one service."""

    answer: object = None
    """None: there is none yet."""
    is_over: trio.Event = field(default_factory=trio.Event)


class History:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.weather = Weather.draw(self.source)
        self.events: list[Event] = []
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        kinds = KINDS + RIGHTS if self.weather.has_people else KINDS
        self.chooser = Chooser(self.source, kinds)
        self.given_up: list[tuple[Event, bytes]] = []
        self._over: dict[int, int] = {}
        """When the last try of an event's request had ended:
        after that it cannot take effect any more.
        """
        self._told: dict[int, list[tuple]] = {}
        self._clock = itertools.count(1)
        self._left = DEED_COUNT
        self._under_way = 0

    # ---- the cluster -------------------------------------------------------------------------

    async def run(self) -> None:
        """Do it all; what happened is in `events`, contradictions of the records in `problems`."""
        store = MemoryEngine(SimulatedClock())
        engine = PausingEngine(store, self._pause)
        self.world = World(engine)
        await self.world.initialise()
        self.services = [Service(self.world, engine, self.source) for _ in range(SERVICE_COUNT)]
        async with trio.open_nursery() as nursery:
            for service in self.services:
                await nursery.start(service.run)
            w = self.weather
            store.faults = RandomFaults(
                self.source,
                conflict=w.conflict,
                unknown_committed=w.unknown,
                unknown_lost=w.unknown / 2,
                delay_before_s_max=0.002,
                delay_after_s_max=0.002,
            )
            if w.has_kills:
                nursery.start_soon(self._kill)
            async with trio.open_nursery() as clients:
                for number in range(self.source.randint(4, 8)):
                    clients.start_soon(self._client, f"{number:032x}")
            while self._under_way:  # noqa: ASYNC110 - virtual time, and nobody to signal
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        store.faults = None
        self._find_out(store.dump())
        await self._read_all()
        self.problems += await check(store)

    async def _pause(self, _what: str) -> None:
        if self.source.random() < 0.3:
            await trio.sleep(self.source.random() * 0.004)

    async def _kill(self) -> None:
        while True:
            await trio.sleep(self.source.uniform(0, 2 * KILL_PAUSE_S))
            self.source.choice(self.services).kill()
            self.counts["kills"] += 1

    # ---- clients -----------------------------------------------------------------------------

    async def _client(self, client: str) -> None:
        home = self.source.choice(self.services)
        who = self.source.choice(PEOPLE) if self.weather.has_people else SUPERUSER
        while self._left > 0:
            self._left -= 1
            event = Event(self.chooser.deed(who), next(self._clock), client=client[-1:])
            self.events.append(event)
            answer = await self._insist(event, client, home)
            if answer is None:
                continue
            event.seen, event.end_s = answer, next(self._clock)
            self.chooser.learn(event.deed, answer)
            if self.source.random() < 0.5:
                await trio.sleep(self.source.random() * 0.01)

    async def _insist(self, event: Event, client: str, home: Service) -> object:
        """Repeat a request under one id until it is answered; None: given up."""
        deed = event.deed
        request_id = self.world.next_request_id()
        who, service = deed.who, home
        user = User(self.world, who.uid, who.gid, tuple(who.groups), client, request_id)
        while True:
            answer = await self._try(event, user, service)
            user = replace(user, is_repeat=True)
            is_lost = self.source.random() < self.weather.lost_reply
            self.counts["lost replies"] += is_lost and answer is not None
            if answer is not None and not is_lost:
                return answer
            if self.source.random() < self.weather.gives_up * 10:
                self.given_up.append((event, records.idempotency_key(client, request_id)))
                return None
            self.counts["repeats"] += 1
            await trio.sleep(self.source.random() * 0.01)
            service = self.source.choice(self.services)

    async def _try(self, event: Event, user: User, service: Service) -> object | None:
        if service.requests is None:
            return None
        call = Call()
        self._under_way += 1
        service.requests.start_soon(self._serve, service.meta, user, event, call)
        patience_s = PATIENCE_S * 100
        if self.source.random() < self.weather.impatient:
            patience_s = PATIENCE_S * self.source.random()
        with trio.move_on_after(patience_s):
            await call.is_over.wait()
        self.counts["abandoned"] += not call.is_over.is_set()
        return call.answer

    async def _serve(self, meta: Meta, user: User, event: Event, call: Call) -> None:
        deed = event.deed
        try:
            held_up_s = HELD_UP_S if self.source.random() < self.weather.held_up else 0.002
            await trio.sleep(self.source.random() * held_up_s)
            begin = next(self._clock)
            self.world.meta = meta  # taken up before the next checkpoint
            name, request = request_of(deed)
            if deed.kind == "mkdir":  # who adds a name in it as another client waits
                request.wants_name_lease = True
            reply = await user.call(name, request)
            call.answer = said(deed, reply)
            if deed.kind in {"attr", "lookup"}:
                self._note_ctime(begin, reply.inode)
        except FsError as error:
            call.answer = error.status if error.definite else None
        finally:
            self._under_way -= 1
            self._over[id(event)] = next(self._clock)
            call.is_over.set()

    def _note_ctime(self, begin: int, inode: InodePb) -> None:
        """Compare with what others were told of one file before."""
        if not inode.HasField("file"):
            return
        told = self._told.setdefault(inode.inode_id, [])
        ctime_ns, facts = inode.ctime_ns, facts_of(inode)
        for end, other_ns, other in told:
            if other_ns > ctime_ns and end < begin:
                self.problems.append(f"ctime of {inode.inode_id:#x} goes back to {ctime_ns}")
            if other_ns == ctime_ns and other != facts:
                self.problems.append(f"{inode.inode_id:#x}: {other} and {facts} at one ctime")
        told.append((next(self._clock), ctime_ns, facts))

    # ---- afterwards ------------------------------------------------------------------------

    def _find_out(self, rows: dict[bytes, bytes]) -> None:
        """What became of deeds that were given up:
        their records tell, as they would tell a repeat.
        """
        for event, key in self.given_up:
            value = rows.get(key)
            record = None if value is None else IdempotencyRecordPb.FromString(value)
            if record is None or record.status:
                self.events.remove(event)
                continue
            name, _ = request_of(event.deed)
            method = getattr(services, f"META_{name.upper()}")
            event.seen = said(event.deed, method.reply_type.FromString(record.reply))
            event.end_s = self._over[id(event)]
            self.counts["found out"] += 1

    async def _read_all(self) -> None:
        """Everything there is, read after all else."""
        self.world.meta = self.world.new_meta()
        places, looked = [ROOT], set()
        while places:
            ident = places.pop()
            looked.add(ident)
            answer = await self._read(Deed("list", SUPERUSER, (ident,)))
            entries = () if isinstance(answer, Status) else answer[1]
            places += [i for _, i, facts in entries if facts[0] == "dir" and i not in looked]
        for ident in dict.fromkeys([*self.chooser.directories, *self.chooser.files]):
            await self._read(Deed("attr", SUPERUSER, (ident,)))

    async def _read(self, deed: Deed) -> object:
        event = Event(deed, next(self._clock), client="-")
        event.seen = await ask(self.world.user(), deed)
        event.end_s = next(self._clock)
        self.events.append(event)
        return event.seen


def judge(seed: int) -> dict:
    """Run one history and say what came of it."""
    history = History(seed)
    state_count = 0
    try:
        run_deterministic(history.run, seed)
        state_count = require_serial(history.events, Model()).state_count
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a service that fails is a finding
        history.problems.append(_said(error))
    done = sum(e.seen is not None and not isinstance(e.seen, Status) for e in history.events)
    return {
        "history": seed,
        "problems": history.problems,
        "deeds": len(history.events),
        "done": done,
        "states": state_count,
        **history.counts,
    }


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def summary(outcomes: list[dict]) -> str:
    totals: Counter[str] = Counter()
    for outcome in outcomes:
        totals.update({k: v for k, v in outcome.items() if isinstance(v, int) and k != "history"})
    bad = sum(bool(o["problems"]) for o in outcomes)
    counted = ", ".join(f"{totals[k]:,} {k}" for k in sorted(totals))
    return f"{len(outcomes)} histories: {counted}; {len(outcomes) - bad} explained, {bad} not"


def run_many(
    seeds: range,
    known: dict[int, dict],
    file: Path | None = None,
    *,
    goes_on: bool = False,
) -> list[dict]:
    """Judge what is not known yet; stops at the first that is not explained,
    unless it `goes_on`.
    """
    for seed in seeds:
        if seed in known:
            continue
        began_s = time.process_time()
        outcome = known[seed] = judge(seed)
        if file is not None:
            with file.open("a") as opened:
                opened.write(json.dumps(outcome) + "\n")
        if outcome["problems"]:
            took_s = time.process_time() - began_s
            print(f"history {seed} ({took_s:.1f} s):", *outcome["problems"], sep="\n", flush=True)
            if not goes_on:
                break
    return [known[seed] for seed in seeds if seed in known]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.meta.histories", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--resume", type=Path, help="file of outcomes")
    parser.add_argument("--broken", choices=MUTANTS, help="break the metadata service")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a failure")
    given = parser.parse_args()
    known: dict[int, dict] = {}
    if given.resume and given.resume.exists():
        entries = map(json.loads, given.resume.read_text().splitlines())
        known = {entry["history"]: entry for entry in entries}
    if given.broken:
        MUTANTS[given.broken]()
    seeds = range(given.seed, given.seed + given.count)
    outcomes = run_many(seeds, known, given.resume, goes_on=given.go_on)
    print(summary(outcomes))
    return int(any(o["problems"] for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
