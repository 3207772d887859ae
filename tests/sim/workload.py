"""What the clients of a simulated cluster do, and what they remember of it.

Registers: fixed slots of a few shared files, two of them in one chunk, written and read whole by
every client; their histories must be linearizable.  Private trees: each client makes, renames,
rewrites and removes files in a directory of its own and knows exactly what must be there, also
after retries.  Contests: exclusive creations that one may win.

A cut takes the power of everything, and with it what was not durable.  What a client may find after
it is written down in recovered.py.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Self

import trio

from fs.client.native import EmberFile, EmberFs
from fs.client.read_table import ReadTable
from fs.kernels.batches import ENTRY
from fs.schema.config import ClientSection
from fs.schema.layout import FileRef
from fs.schema.status import FsError, Status

from .cluster import CHUNK_BYTES, SimCluster
from .linearizable import FOREVER, Op
from .mounts import PATHS as MOUNT_PATHS
from .mounts import WORKERS_PER_MOUNT, Mount, MountHistory, MountWorker
from .names import BEGUN_SHARE, WORKERS_PER_CLIENT, NameHistory, NameWorker, content_of
from .recovered import Tree, TreeOp, allowed_trees
from .replaced import Replacer
from .shape import Shape

SLOT_BYTES: Final = 512
HOT_SLOT: Final = ("/shared-0", 0)
HOT_SLOTS: Final = [HOT_SLOT, HOT_SLOT, ("/shared-0", 4096)]
"""In one chunk."""
SLOTS: Final = [
    *HOT_SLOTS[1:],
    ("/shared-0", CHUNK_BYTES + 1000),
    ("/shared-1", 7),
    ("/shared-1", 2 * CHUNK_BYTES),
]
WIDE_SLOTS: Final = [("/shared-wide", index * CHUNK_BYTES + 100) for index in range(24)]
"""One in each chunk: in some seeds clients work on a few of them at a time and come back to none,
so that what goes wrong in a chunk is neither overwritten nor completed before it is seen.
"""
VOLLEY_SLOTS: Final = [
    ("/shared-volley", index * CHUNK_BYTES + offset)
    for index in range(12)
    for offset in (100, 9000)
]
"""Written several at a time in some seeds; two of them are in one chunk."""
VOLLEY_SHARE: Final = 0.5
"""Of what clients of these seeds write, and of what they read."""
SPOT_S: Final = 2.5
"""So long they write to one of them; they read others, too."""
INITIAL: Final = 0
MOUNTED: Final = 10**9
"""At first in registers of mounts."""
RETRY_S: Final = 300.0
CALM_S: Final = 5.0
"""Length of the fault-free phase at the end, in virtual seconds."""
CALM_OP_S_MAX: Final = 5.0
"""No operation may take longer in it."""

REGISTER_CLIENT: Final = 2
"""Works on registers only, so it never waits for metadata:
it can go on without the control processes.
"""

OP_COUNT_MIN: Final = 200
HISTORY_OP_COUNT_MIN: Final = 1000
"""Clients go on in the end until they have done so much, in histories with registers."""
GOAL: Final = 1.2
"""Clients that are behind so many times as much,
by the share of the time that has passed, pause less.
"""
LATE_PAUSE: Final = 0.2

GIVEN_UP: Final = b"?" * SLOT_BYTES
"""In buffers of begun reads that were given up."""

CONTEST_S: Final = 3.0
"""Time between two creations that all clients but that one try at the same instant."""

HOT_READER_COUNT: Final = 3
"""Tasks of that client that only read: one that waits for a lost node does not keep the others
from a stale one.
"""

Slot = tuple[str, int]


def slot_bytes(value: int) -> bytes:
    """Return the content of a register: recognisable and of one piece."""
    return (b"%015d|" % value) * (SLOT_BYTES // 16)


def slot_value(content: bytes) -> int:
    """Inverse of `slot_bytes`; a mixture of two values is an error, not a value."""
    value = int(content[:15])
    assert content == slot_bytes(value), f"torn register: {content[:64]!r}..."
    return value


@dataclass(frozen=True, slots=True)
class Cut:
    """Everything lost its power at `time_s`."""

    time_s: float
    synced_s: dict[str, float]
    """Per shared file: what was written before this time is durable."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A directory whose client has left it in the middle of an operation."""

    home: str
    tree: Tree
    under_way: TreeOp | None
    power_cut_count: int
    """When it was left; a later power loss takes more than this says."""


@dataclass
class Memory:
    """What all clients together know."""

    histories: dict[Slot, list[Op]]
    """By register."""
    trees: dict[str, Tree] = field(default_factory=dict)
    """By directory."""
    winners: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Per contest: client and the time it knew."""
    synced_s: dict[str, float] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    """Values of which a later sync of the client that wrote them has said
    that they are not lost.
    """
    cuts: list[Cut] = field(default_factory=list)
    inode_ids: set[int] = field(default_factory=set)
    """What exists after everything removed has been collected."""
    names: NameHistory = field(default_factory=NameHistory)
    mounts: MountHistory = field(default_factory=MountHistory)
    value_next: int = 1
    longest_op_s: float = 0.0
    begin_s: float = 0.0
    """When clients began to work."""
    op_count: int = 0
    begun_count: int = 0
    """Reads of registers that were begun, and that no task waited for."""
    given_up: list[memoryview] = field(default_factory=list)
    """Buffers of those that were given up."""
    update_count: int = 0
    """Writes of registers under way."""
    workers: dict[int, "SimClient"] = field(default_factory=dict)
    abandoned: list["Abandoned"] = field(default_factory=list)
    shared_inode_ids: set[int] = field(default_factory=set)
    has_restores: bool = False
    """The managers were restored, which counts as a loss."""
    is_space_short: bool = False
    """A disk has been full, so NO_SPACE is a legal answer."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Errors that clients were told, by name."""

    @classmethod
    def of(cls, shape: Shape) -> Self:
        """Return the empty memory of the clients of such a cluster."""
        slots = WIDE_SLOTS if shape.is_wide else SLOTS
        return cls({slot: [] for slot in [*slots, *(VOLLEY_SLOTS if shape.volley_count else [])]})

    @property
    def paths(self) -> list[str]:
        """The shared files."""
        return sorted({path for path, _ in self.histories})

    @property
    def register_op_count(self) -> int:
        """Operations in the histories of registers."""
        return sum(map(len, self.histories.values()))

    @property
    def are_workers_ready(self) -> bool:
        """Every client can tell what may be there after a power loss."""
        return bool(self.workers) and all(w.is_ready for w in self.workers.values())

    def take_error(self, error: FsError) -> None:
        """Count an error told to a client; raises it unless a full disk or a loss
        of all power explains it.
        """
        is_full = error.status is Status.NO_SPACE and self.is_space_short
        is_lost = error.status is Status.WRITES_LOST and (self.cuts or self.has_restores)
        if not is_full and not is_lost:
            raise error
        self.statuses[error.status.name] = self.statuses.get(error.status.name, 0) + 1

    def note_synced(self, path: str, begin_s: float) -> None:
        """What was written to a file before `begin_s` is durable, unless power was lost since."""
        if not self.cuts or self.cuts[-1].time_s < begin_s:
            self.synced_s[path] = max(self.synced_s[path], begin_s)

    def new_value(self) -> int:
        self.value_next += 1
        return self.value_next

    def note_cut(self) -> None:
        """Everything loses its power now."""
        self.cuts.append(Cut(trio.current_time(), dict(self.synced_s)))
        self.names.note_cut(trio.current_time())
        self.mounts.cut_count += 1

    @property
    def power_cut_count(self) -> int:
        return len(self.cuts)


async def prepare(fs: EmberFs, memory: Memory) -> None:
    """Make the shared files with every register at its initial value."""
    for path in memory.paths:
        offsets = [offset for slot_path, offset in memory.histories if slot_path == path]
        async with await fs.create(path) as file:
            await file.write(0, bytes((max(offsets) // CHUNK_BYTES + 1) * CHUNK_BYTES))
            memory.shared_inode_ids.add(file.ref.inode_id)
            for offset in offsets:
                await file.write(offset, slot_bytes(INITIAL))
        memory.synced_s[path] = trio.current_time()
    for path in MOUNT_PATHS:
        async with await fs.create(path) as file:
            await file.write(0, content_of(MOUNTED))
            memory.shared_inode_ids.add(file.ref.inode_id)
        memory.synced_s[path] = trio.current_time()


def _brief(tree: Tree) -> dict[str, str]:
    return {name: f"{len(content)}:{content[:8].hex()}" for name, content in tree.items()}


class SimClient:
    """One client at work, from its start to its death or the end."""

    def __init__(self, number: int, generation: int, cluster: SimCluster, memory: Memory) -> None:
        self.number = number
        self.name = f"client-{number}.{generation}"
        self.cluster = cluster
        self.memory = memory
        self.random = random.Random(f"{cluster.seed}/workload-{self.name}")
        self.home = f"/home-{number}.{generation}"
        self.house_count = 0
        self.files: dict[str, EmberFile] = {}
        self.unsynced: dict[str, list[int]] = {path: [] for path in memory.paths}
        """Values written to a file and acknowledged since its last sync."""
        register_share = random.Random(f"{cluster.seed}/shares").choice([1, 1, 4])
        self.weights = [30 * register_share, 40 * register_share, 2 * register_share, 24, 4]
        if number == REGISTER_CLIENT or cluster.shape.is_history:
            self.weights = [20, 60, 0, 0, 0]
        self.begins = random.Random(f"{cluster.seed}/begun-{self.name}")
        self.volleys = random.Random(f"{cluster.seed}/volleys-{self.name}")
        self.hot_share = random.Random(f"{cluster.seed}/hot").choice([0.3, 0.9])
        self.think_s = cluster.shape.think_s
        self.recent: list[Tree] = [{}]
        """What the directory was like since the last durable operation;
        the last one is what it is.
        """
        self.under_way: TreeOp | None = None
        self.is_ready = False
        """A power loss is understood from here on."""
        self.known_cut_count = 0
        """Power losses after which it has found out what is in its directory."""
        self.is_idle = False
        self.is_done = False
        self.calm_until_s = FOREVER
        memory.workers[number] = self

    @property
    def tree(self) -> Tree:
        return self.recent[-1]

    async def work(self, fs: EmberFs, until_s: float, calm: trio.Event) -> None:
        """Do random things until the virtual time `until_s`, and again, without faults,
        when it is calm.
        """
        await self._move_in(fs)
        for path in self.memory.paths:
            self.files[path] = await fs.create(path, truncate=False)
        async with trio.open_nursery() as nursery:
            if self.number == REGISTER_CLIENT:
                for _ in range(HOT_READER_COUNT):
                    nursery.start_soon(self._read_hot, until_s)
            elif not self.cluster.shape.is_history:
                nursery.start_soon(self._contest_regularly, fs, until_s)
                for worker in self._name_workers():
                    nursery.start_soon(worker.run, fs, until_s)
                nursery.start_soon(self._mount, fs, until_s)
            await self._work(fs, until_s, FOREVER)
        self.is_idle = True
        await calm.wait()
        await self._work(fs, trio.current_time() + CALM_S, CALM_OP_S_MAX)
        for path, file in self.files.items():
            await self._sync(path, file.close)
        await self._find_out_if_cut(fs)
        self.memory.trees[self.home] = self.tree
        self.is_done = True

    def _name_workers(self) -> list[NameWorker]:
        seed, think_s, history = self.cluster.seed, self.think_s, self.memory.names
        return [
            NameWorker(f"{self.name}.{number}", history, seed=seed, think_s=think_s)
            for number in range(WORKERS_PER_CLIENT)
        ]

    async def _mount(self, fs: EmberFs, until_s: float) -> None:
        """Work through a vfs, too."""
        mount = Mount(fs, ClientSection(retry_time_s_max=RETRY_S, unmount_time_s_max=RETRY_S))
        async with trio.open_nursery() as running:
            await running.start(mount.vfs.run)
            async with trio.open_nursery() as nursery:
                source = random.Random(f"{self.cluster.seed}/settings-{self.name}")
                nursery.start_soon(mount.change_settings, source, until_s)
                kinds: list[type[MountWorker]] = [*[MountWorker] * WORKERS_PER_MOUNT, Replacer]
                for number, kind in enumerate(kinds):
                    worker = kind(
                        f"{self.name}.{number}",
                        self.memory.mounts,
                        seed=self.cluster.seed,
                        think_s=self.think_s,
                        take_error=self.memory.take_error,
                        note_synced=self.memory.note_synced,
                    )
                    nursery.start_soon(worker.run, mount, until_s)
            try:
                await mount.vfs.shut_down()
            except FsError as error:  # of files that a loss of power left open
                if error.status is not Status.NOT_FLUSHED or not self.memory.cuts:
                    raise

    async def _move_in(self, fs: EmberFs) -> None:
        """Begin with a directory of our own."""
        await fs.mkdir(self.home, exist_ok=True)
        first = f"{self.home}/first"
        while True:  # the write makes the directory durable
            try:
                await fs.write_file(first, b"1")
                break
            except FsError as error:
                self.memory.take_error(error)
                await trio.sleep(0.5)
        self.recent = [{first: b"1"}]
        self.known_cut_count = self.memory.power_cut_count
        self.is_ready = True

    def abandon(self) -> None:
        """Leave the directory as it is, in the middle of an operation."""
        if self.is_ready:
            self.memory.abandoned.append(
                Abandoned(self.home, self.tree, self.under_way, self.known_cut_count)
            )
        self.is_ready = False
        self.under_way = None

    async def _move(self, fs: EmberFs) -> None:
        """An operation failed in the middle: nobody knows what is there,
        so begin anew elsewhere.
        """
        self.abandon()
        self.house_count += 1
        self.home = f"{self.home.split('~')[0]}~{self.house_count}"
        await self._move_in(fs)

    async def _work(self, fs: EmberFs, until_s: float, op_s_max: float) -> None:
        is_calm = op_s_max < FOREVER
        while trio.current_time() < until_s or (is_calm and self._done_share() < 1.0):
            action: Callable[[EmberFs], Awaitable[None]] = self.random.choices(
                [self.write_slot, self.read_slot, self.sync_slots, self.change_tree, self.contest],
                weights=self.weights,
            )[0]
            began_s = trio.current_time()
            await action(fs)
            took_s = trio.current_time() - began_s
            assert took_s <= op_s_max, f"{self.name}: {action.__name__} took {took_s:.1f} s"
            self.memory.op_count += 1
            self.memory.longest_op_s = max(self.memory.longest_op_s, took_s)
            if self.random.random() < 0.5:  # in bursts: what happens at once is what matters
                await trio.sleep(self.random.expovariate(0.5 / self.think_s) * self._pace(until_s))

    def _done_share(self) -> float:
        """Return how much all clients have done of what they must do."""
        if self.cluster.shape.is_history:
            return self.memory.register_op_count / HISTORY_OP_COUNT_MIN
        return self.memory.op_count / OP_COUNT_MIN

    def _pace(self, until_s: float) -> float:
        """Return by what to shorten pauses, so that a seed has enough operations,
        whatever holds them up.
        """
        begin_s = self.memory.begin_s
        passed = (trio.current_time() - begin_s) / max(until_s - begin_s, 1.0)
        return LATE_PAUSE if self._done_share() < GOAL * passed else 1.0

    # ---- registers -------------------------------------------------------------------------------

    def _slot(self, *, is_read: bool = False) -> Slot:
        if self.cluster.shape.volley_count and is_read and self.volleys.random() < VOLLEY_SHARE:
            return self.volleys.choice(VOLLEY_SLOTS)
        if self.cluster.shape.is_wide:
            spot = int((trio.current_time() - self.memory.begin_s) / SPOT_S) % len(WIDE_SLOTS)
            is_elsewhere = is_read and self.random.random() < 0.5
            return self.random.choice(WIDE_SLOTS) if is_elsewhere else WIDE_SLOTS[spot]
        if self.random.random() < self.hot_share:
            return self.random.choice(HOT_SLOTS)
        return self.random.choice(SLOTS)

    async def write_slot(self, _fs: EmberFs) -> None:
        count = self.cluster.shape.volley_count
        if not count or self.volleys.random() >= VOLLEY_SHARE:
            await self._write(self._slot())
            return
        async with trio.open_nursery() as nursery:
            for slot in self.volleys.sample(VOLLEY_SLOTS, self.volleys.randint(2, count)):
                nursery.start_soon(self._write, slot)

    async def _write(self, slot: Slot) -> None:
        value, begin_s = self.memory.new_value(), trio.current_time()
        history = self.memory.histories[slot]
        index = len(history)
        history.append(Op("write", value, begin_s, FOREVER, self.name))
        self.memory.update_count += 1
        try:
            await self.files[slot[0]].write(slot[1], slot_bytes(value))
        except FsError as error:
            self.memory.take_error(error)  # a definite error: it certainly did not happen
            history[index] = Op("read", None, begin_s, FOREVER, self.name)
            return
        finally:
            self.memory.update_count -= 1
        history[index] = Op("write", value, begin_s, trio.current_time(), self.name)
        self.unsynced[slot[0]].append(value)
        self.cluster.trace.add("write", f"{self.name} {slot} {value}")

    async def _read_hot(self, until_s: float) -> None:
        while trio.current_time() < until_s:
            await self._read(self._slot(is_read=True) if self.cluster.shape.is_wide else HOT_SLOT)
            await trio.sleep(self.random.expovariate(0.5 / self.think_s))

    async def read_slot(self, _fs: EmberFs) -> None:
        await self._read(self._slot(is_read=True))

    async def _read(self, slot: Slot) -> None:
        begin_s, file = trio.current_time(), self.files[slot[0]]
        content: bytes | None = None
        if self.begins.random() < BEGUN_SHARE:
            content = await self._read_begun(file, slot[1])
        if content is None:
            content = await file.read(slot[1], SLOT_BYTES)
        value = slot_value(content)
        self.memory.histories[slot].append(
            Op("read", value, begin_s, trio.current_time(), self.name)
        )
        self.cluster.trace.add("read", f"{self.name} {slot} {value}")

    async def _read_begun(self, file: EmberFile, offset: int) -> bytes | None:
        """Read as rings do, without a task that waits; None: it is to be read the ordinary way."""
        buffer, ended, told = memoryview(bytearray(SLOT_BYTES)), trio.Event(), list[bool]()

        def end(is_done: bool) -> None:
            told.append(is_done)
            ended.set()

        begun = file._chunks.begin_read(_table(file.ref, offset, buffer), end)
        if begun is None:
            return None
        self.memory.begun_count += 1
        if self.begins.random() < 0.1:  # given up: nothing is touched any more
            await trio.sleep(self.begins.uniform(0.0, 0.02))
            if not told:
                begun.fail(FsError(Status.RPC_TIMEOUT, "given up"))
                assert told == [False], told
                buffer[:] = GIVEN_UP
                self.memory.given_up.append(buffer)
                return None
        await ended.wait()
        assert len(told) == 1, told
        return bytes(buffer) if told[0] else None

    async def sync_slots(self, _fs: EmberFs) -> None:
        """Make what is in the registers of a file durable;
        it counts if no power was lost in between.
        """
        path, begin_s = self._slot()[0], trio.current_time()
        cut_count = len(self.memory.cuts)
        if not await self._sync(path, self.files[path].fsync):
            return
        if cut_count == len(self.memory.cuts):
            self.memory.synced_s[path] = max(self.memory.synced_s[path], begin_s)
        self.cluster.trace.add("sync", f"{self.name} {path}")

    async def _sync(self, path: str, call: Callable[[], Awaitable[None]]) -> bool:
        """Sync a file; whether nothing was lost of what this client has written
        to it since its last sync.
        """
        covered, self.unsynced[path] = self.unsynced[path], []
        try:
            await call()
        except FsError as error:
            self.memory.take_error(error)
            return False
        self.memory.kept.update(covered)
        return True

    # ---- trees -----------------------------------------------------------------------------------

    def _choose_tree_op(self) -> TreeOp:
        names = sorted(self.tree)
        kind = self.random.choice(["write", "write", "rename", "unlink", "check"])
        new = f"{self.home}/f{self.random.randrange(8)}"
        if not names or kind == "write":
            size = self.random.choice([0, 10, 5000, CHUNK_BYTES * 2 + 5])
            return TreeOp("write", new, content=self.random.randbytes(size))
        return TreeOp(kind, self.random.choice(names), new_name=new)

    async def change_tree(self, fs: EmberFs) -> None:
        await self._find_out_if_cut(fs)
        op, cut_count = self._choose_tree_op(), self.memory.power_cut_count
        self.under_way, is_done = op, True
        try:
            found = await self._run(fs, op)
        except FsError as error:
            if cut_count == self.memory.power_cut_count:
                self.memory.take_error(error)
                await self._move(fs)
                return
            found, is_done = None, False
        self.under_way = None
        if cut_count != self.memory.power_cut_count:
            await self._find_out(fs, op, is_done=is_done)
        elif op.kind == "check":
            assert found == self.tree[op.name], f"{op.name} has other content"
        else:
            self.recent.append(op.applied_to(self.tree))
            if op.kind == "write":
                del self.recent[:-1]  # closing it made everything before it durable
        self.cluster.trace.add("tree", f"{self.name} {op.kind} {op.name}")

    async def _run(self, fs: EmberFs, op: TreeOp) -> bytes | None:
        if op.kind == "write":
            await fs.write_file(op.name, op.content)
        elif op.kind == "rename":
            await fs.rename(op.name, op.new_name)
        elif op.kind == "unlink":
            await fs.unlink(op.name)
        else:
            return await fs.read_file(op.name)
        return None

    async def _find_out_if_cut(self, fs: EmberFs) -> None:
        """Power may have been lost between two operations."""
        if self.known_cut_count != self.memory.power_cut_count:
            await self._find_out(fs, TreeOp("check", self.home), is_done=True)

    async def _find_out(self, fs: EmberFs, op: TreeOp, *, is_done: bool) -> None:
        """Power was lost, perhaps during an operation:
        look which of the allowed states is there.
        """
        cut_count = self.memory.power_cut_count
        found = {
            (name := f"{self.home}/{entry.name}"): await fs.read_file(name)
            for entry in await fs.listdir(self.home)
        }
        allowed = allowed_trees(self.recent, op, chunk_bytes=0 if is_done else CHUNK_BYTES)
        assert found in allowed, (
            f"{self.name}: after a power loss during {op.kind} {op.name}: {_brief(found)},"
            f" allowed: {[_brief(tree) for tree in allowed]}"
        )
        # Make what was found durable, so that the next loss is judged from here.
        try:
            await fs.write_file(f"{self.home}/first", b"1")
        except FsError as error:
            self.memory.take_error(error)
            self.recent, self.under_way = [found], TreeOp("write", f"{self.home}/first")
            await self._move(fs)
            return
        self.recent = [{**found, f"{self.home}/first": b"1"}]
        self.known_cut_count = cut_count

    # ---- contests --------------------------------------------------------------------------------

    async def _contest_regularly(self, fs: EmberFs, until_s: float) -> None:
        """Try at the same instants as the other clients."""
        while (next_s := (trio.current_time() // CONTEST_S + 1) * CONTEST_S) < until_s:
            await trio.sleep_until(next_s)
            await self.contest(fs)

    async def contest(self, fs: EmberFs) -> None:
        name = f"/contest-{int(trio.current_time())}"
        cut_count = self.memory.power_cut_count
        try:
            file = await fs.create(name, exclusive=True)
            now_s = trio.current_time()
            await file.close()
        except FsError as error:
            if error.status is Status.EXISTS or cut_count != self.memory.power_cut_count:
                return
            raise
        self.memory.winners.setdefault(name, []).append((self.number, now_s))
        self.cluster.trace.add("contest", f"{self.name} won {name}")


def _table(file: FileRef, offset: int, buffer: memoryview) -> ReadTable:
    """Return one read as rings have it."""
    key = bytes(16)
    table = ReadTable(ENTRY.pack(0, offset, 0, len(buffer), key), buffer)
    table.files[key] = file
    return table
