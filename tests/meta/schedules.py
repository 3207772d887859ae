"""All ways in which a few deeds can overlap: does some order of the deeds explain each of them?

    python -m tests.meta.schedules [--size 2] [--deeds NAME ...]
        [--sample N] [--seed S] [--broken MUTANT]

Each deed runs at a service of its own over one store.  It stops before it takes its snapshot,
before each commit, and before anything is done to chunks; who goes on is chosen.  Every
sequence of choices is tried (up to a number): after a run the last choice that had another
possibility takes that one, from the beginning.  Stops at the other reads would add nothing:
they see the snapshot, whatever others do.

Among the deeds: rename cycles, lists that new objects inherit, the cleaner of the trash against a
restore, locks of directories against renames.

After each run everything is read, `fs.meta.check` finds nothing, and some order explains all
answers (tests/meta/serial.py).
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import trio

from fs.kv.memory import MemoryEngine
from fs.meta.check import check
from fs.runtime.simulated import SimulatedClock
from tests.meta.deeds import DONE, Deed
from tests.meta.harness import ROOT, World
from tests.meta.model import SUPERUSER, Acl, Person
from tests.meta.mutants import MUTANTS
from tests.meta.pauses import PausingEngine
from tests.meta.serial import Event, require_serial
from tests.meta.wide_deeds import WideExpectation, ask
from tests.meta.wide_model import WideModel
from tests.sim.determinism import run_deterministic

STOPS = {"begin", "commit", "chunks"}
RUN_COUNT_MAX = 50
"""A group with more schedules (truncations have thousands) is not tried to the end:
so many in order, and as many at random.
"""


class Turns:
    """Lets one of several tasks go on at a time, in an order that is given as far as it goes;
    then the first, or any.
    """

    def __init__(self, given: Sequence[int], source: random.Random | None = None) -> None:
        self.options: list[int] = []
        """How many could have gone on, at each choice."""
        self.chosen: list[int] = []
        self._given = given
        self._source = source
        self._parked: dict[int, trio.Event] = {}
        self._running = 0
        self._news = trio.Event()

    async def run(self, tasks: Sequence) -> None:
        async with trio.open_nursery() as nursery:
            for number, task in enumerate(tasks):
                self._running += 1
                nursery.start_soon(self._task, number, task)
            while self._running or self._parked:
                await self._news.wait()
                self._news = trio.Event()
                if not self._running and self._parked:
                    self._choose()

    async def _task(self, number, task) -> None:
        try:
            await task(number)
        finally:
            self._running -= 1
            self._news.set()

    def _choose(self) -> None:
        numbers = sorted(self._parked)
        position = len(self.chosen)
        if position < len(self._given):
            choice = self._given[position]
        else:
            choice = self._source.randrange(len(numbers)) if self._source else 0
        self.options.append(len(numbers))
        self.chosen.append(choice)
        self._running += 1
        self._parked.pop(numbers[choice]).set()

    async def stop(self, number: int) -> None:
        event = self._parked[number] = trio.Event()
        self._running -= 1
        self._news.set()
        await event.wait()


def next_choices(turns: Turns) -> list[int] | None:
    """Return the next sequence of choices to try; None: all were."""
    chosen, options = list(turns.chosen), turns.options
    while chosen:
        last = chosen.pop()
        if last + 1 < options[len(chosen)]:
            return [*chosen, last + 1]
    return None


@dataclass
class Tree:
    """What is there before: the rows of the store, the deeds that made them,
    and the objects by path.
    """

    rows: dict[bytes, bytes] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    at: dict[str, int] = field(default_factory=dict)


PREPARATION = [
    ("mkdir", "/", b"a"),
    ("mkdir", "/", b"b"),
    ("create", "/a", b"x"),
    ("mkdir", "/a", b"sub"),
    ("create", "/b", b"y"),
    ("mkdir", "/b", b"e"),
    ("create", "/b", b"t"),
]
LIST = Acl(7, 5, 0, 7, ((1000, 7),))


async def prepare() -> Tree:
    """Make the tree: /a with the file x and the empty sub, /b with the file y, which is also /a/z,
    and the empty e; t, which was in b, lies in the trash.
    """
    store = MemoryEngine(SimulatedClock())
    world = World(store)
    await world.initialise()
    tree = Tree(at={"/": ROOT})

    async def do(kind: str, *args) -> object:
        event = Event(Deed(kind, SUPERUSER, args), -100 + 2 * len(tree.events))
        event.seen, event.end_s = await ask(world.user(), event.deed), event.begin_s + 1
        tree.events.append(event)
        return event.seen[1] if event.seen[1:] else None

    for kind, parent, name in PREPARATION:
        more = (0o644, True, False) if kind == "create" else (0o755,)
        path = f"{parent.rstrip('/')}/{name.decode()}"
        tree.at[path] = await do(kind, tree.at[parent], name, *more)
    await do("link", tree.at["/b/y"], tree.at["/a"], b"z")
    await do("truncate", tree.at["/b/y"], 50)
    event = Event(Deed("trash", SUPERUSER, (tree.at["/b"], b"t", False)), -2)
    event.seen, event.end_s = await ask(world.user(), event.deed), -1
    tree.events.append(event)
    tree.at["trash"] = event.seen[2]
    tree.rows = await world.dump()
    return tree


def possible_deeds(at: dict[str, int]) -> dict[str, Deed]:
    """Return deeds on the tree by name."""
    a, b, sub, e, x, y = (at[p] for p in ("/a", "/b", "/a/sub", "/b/e", "/a/x", "/b/y"))
    trash = at["trash"]
    found = {
        "create new": ("create", a, b"new", 0o644, False, False),
        "create exclusive": ("create", a, b"new", 0o644, True, False),
        "create in sub": ("create", sub, b"f", 0o644, False, False),
        "create x truncated": ("create", a, b"x", 0o644, False, True),
        "mkdir in e": ("mkdir", e, b"d", 0o755),
        "mkdir new": ("mkdir", a, b"new", 0o755),
        "rmdir sub": ("rmdir", a, b"sub"),
        "rmdir e": ("rmdir", b, b"e"),
        "unlink x": ("unlink", a, b"x"),
        "unlink y": ("unlink", b, b"y"),
        "unlink z": ("unlink", a, b"z"),
        "link x": ("link", x, b, b"l"),
        "link y": ("link", y, a, b"new"),
        "rename x": ("rename", a, b"x", b, b"x", "replace"),
        "rename x to sub/f": ("rename", a, b"x", sub, b"f", "replace"),
        "rename x over y": ("rename", a, b"x", b, b"y", "replace"),
        "rename y over x": ("rename", b, b"y", a, b"x", "replace"),
        "rename a into e": ("rename", ROOT, b"a", e, b"a", "replace"),
        "rename b into sub": ("rename", ROOT, b"b", sub, b"b", "replace"),
        "rename sub": ("rename", a, b"sub", b, b"sub", "no_replace"),
        "rename sub over e": ("rename", a, b"sub", b, b"e", "replace"),
        "rename e over sub": ("rename", b, b"e", a, b"sub", "replace"),
        "exchange a and b": ("rename", ROOT, b"a", ROOT, b"b", "exchange"),
        "exchange sub and e": ("rename", a, b"sub", b, b"e", "exchange"),
        "exchange x and e": ("rename", a, b"x", b, b"e", "exchange"),
        "truncate y": ("truncate", y, 10),
        "extend y": ("truncate", y, 100),
        "empty y": ("truncate", y, 0),
        "append y": ("append", y, 7),
        "write y": ("write", y, 70, 0),
        "write y shortly": ("write", y, 20, 0),
        "chmod a": ("chmod", a, 0o700),
        "trash x": ("trash", a, b"x", True),
        "trash sub": ("trash", a, b"sub", True),
        "trash a": ("trash", ROOT, b"a", True),
        "clean": ("clean", trash, b"t"),
        "restore t": ("rename", trash, b"t", b, b"t", "no_replace"),
        "restore t to sub": ("rename", trash, b"t", sub, b"t", "no_replace"),
        "remove t": ("trash", trash, b"t", False),
        "lock a": ("lock_directory", a, "lock"),
        "lock sub": ("lock_directory", sub, "lock"),
        "preempt b": ("lock_directory", b, "preempt"),
        "list for what is made in sub": ("set_acl", sub, LIST, True),
        "list for what is made in e": ("set_acl", e, LIST, True),
        "makedirs in sub": ("makedirs", ROOT, (b"a", b"sub", b"p", b"q"), 0o755, 0o022),
        "makedirs in e": ("makedirs", ROOT, (b"b", b"e", b"p"), 0o755, 0o022),
        "attribute of x": ("set_xattr", x, b"user.a", b"1", "create"),
        "lock y": ("set_lock", y, ("posix", 1, 0, 4, True), False),
        "open y": ("open", y, False, True, False, 1),
        "open y to read": ("open", y, True, False, False, None),
        "list a": ("list", a),
        "look at b/y": ("lookup", b, b"y"),
    }
    return {name: Deed(kind, SUPERUSER, args) for name, (kind, *args) in found.items()}


@dataclass
class Group:
    """Some deeds that overlap, in one of the ways they can."""

    tree: Tree
    deeds: Sequence[Deed]

    async def run(self, turns: Turns) -> None:
        """Raises NotSerialError, or AssertionError when records contradict each other."""
        self._turns = turns
        self._current: list[int | None] = [None]
        store = MemoryEngine(SimulatedClock())
        tr = store.transaction()
        for key, value in self.tree.rows.items():
            tr.set(key, value)
        await tr.commit()
        self.world = World(store)
        self.world.chunks.lengths[self.tree.at["/b/y"]] = 50
        self.world._request_count = 1000
        self.events = [
            Event(replace(deed, who=Person(0, 0, client=f"{i:032x}")), 0, client=str(i))
            for i, deed in enumerate(self.deeds)
        ]
        self._end = itertools.count(1)
        places = [await self._place(store, number) for number in range(len(self.deeds))]
        await turns.run(places)
        await self._read_all()
        found = await check(store)
        assert found == [], found
        require_serial([*self.tree.events, *self.events], WideModel(), WideExpectation)

    async def _place(self, store: MemoryEngine, number: int):
        """Return the task that does one deed at a service of its own."""

        async def stop(what: str) -> None:
            if what in STOPS:
                await self._turns.stop(number)

        world = World(store)
        world.chunks = Chunks(self.world.chunks, stop)
        world._request_count = 1_000_000 * (number + 1)
        engine = world.engine = PausingEngine(store, _no_stop)
        world.meta = world.new_meta()
        # Retries come at once: nothing but the choices decides who is first.
        world.runtime.random.uniform = lambda _a, _b: 0.0
        await world.meta.service.inode_ids.take()
        engine.pause = stop

        async def task(_number: int) -> None:
            event = self.events[number]
            user = world.user(client=event.deed.who.client)
            event.seen = await ask(user, event.deed)
            event.end_s = next(self._end)

        return task

    async def _read_all(self) -> None:
        user = self.world.user()
        asked = [("attr", ident) for ident in self.tree.at.values()]
        listed = ("/", "/a", "/b", "/a/sub", "/b/e", "trash")
        asked += [("list", self.tree.at[path]) for path in listed]
        for kind, ident in asked:
            event = Event(Deed(kind, SUPERUSER, (ident,)), next(self._end))
            event.seen, event.end_s = await ask(user, event.deed), next(self._end)
            self.events.append(event)
            assert event.seen[0] == DONE


async def _no_stop(_what: str) -> None:
    return


class Chunks:
    """The chunks that all share; one stops before it touches them."""

    def __init__(self, inner, stop) -> None:
        self._inner = inner
        self._stop = stop

    async def before_write(self) -> None:
        await self._stop("chunks")

    async def truncate_file(self, *args) -> None:
        await self._stop("chunks")
        await self._inner.truncate_file(*args)

    async def fill_file(self, *args) -> None:
        await self._stop("chunks")
        await self._inner.fill_file(*args)

    async def file_length(self, file) -> tuple[int, int]:
        await self._stop("chunks")
        return await self._inner.file_length(file)

    def __getattr__(self, name: str):
        return getattr(self._inner, name)


async def explore(tree: Tree, deeds: Sequence[Deed]) -> tuple[int, bool]:
    """Try the schedules of a group; return how many were, and whether that is all.

    Raises:
        AssertionError: says which schedule failed.
    """
    choices: list[int] | None = []
    for count in range(RUN_COUNT_MAX):
        if choices is None:
            return count, True
        turns = Turns(choices)
        await _try(tree, deeds, turns)
        choices = next_choices(turns)
    source = random.Random(1)
    for _ in range(RUN_COUNT_MAX):
        await _try(tree, deeds, Turns([], source))
    return 2 * RUN_COUNT_MAX, False


async def _try(tree: Tree, deeds: Sequence[Deed], turns: Turns) -> None:
    try:
        await Group(tree, deeds).run(turns)
    except AssertionError as error:
        what = "; ".join(map(str, deeds))
        raise AssertionError(f"{what}: schedule {turns.chosen}: {error}") from error


def groups_of(
    names: Iterable[str], size: int, sample: int, seed: int, wanted: Collection[str] = ()
) -> Iterator[tuple]:
    """Return all groups, or those with any of the wanted ones, or a sample of them."""
    everything = list(itertools.combinations_with_replacement(sorted(names), size))
    if wanted:
        everything = [group for group in everything if not set(group).isdisjoint(wanted)]
    if sample and sample < len(everything):
        everything = random.Random(seed).sample(everything, sample)
    return iter(everything)


async def explore_all(size: int, sample: int, seed: int, wanted: Collection[str]) -> int:
    tree = await prepare()
    deeds = possible_deeds(tree.at)
    group_count = run_count = failure_count = sampled_count = 0
    began_s = time.process_time()
    assert set(wanted) <= set(deeds), f"deeds are {', '.join(map(repr, deeds))}"
    for names in groups_of(deeds, size, sample, seed, wanted):
        group_count += 1
        try:
            count, is_all = await explore(tree, [deeds[name] for name in names])
        except AssertionError as error:
            failure_count += 1
            print(" | ".join(names), error, sep="\n", flush=True)
        else:
            run_count += count
            sampled_count += not is_all
    print(
        f"{group_count} groups of {size} deeds ({sampled_count} not to the end), {run_count:,} "
        "schedules,"
        f" {failure_count} groups not explained, {time.process_time() - began_s:.0f} processor s"
    )
    return int(failure_count > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.meta.schedules", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--size", type=int, default=2, help="deeds at once")
    parser.add_argument("--deeds", nargs="+", default=[], help="only groups with any of these")
    parser.add_argument("--sample", type=int, default=0, help="so many groups; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--broken", choices=MUTANTS, help="break the metadata service")
    given = parser.parse_args()
    if given.broken:
        MUTANTS[given.broken]()
    return run_deterministic(
        lambda: explore_all(given.size, given.sample, given.seed, given.deeds), 1
    )


if __name__ == "__main__":
    sys.exit(main())
