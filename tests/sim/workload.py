"""What the clients of a simulated cluster do, and what they remember of it.

Registers: fixed slots of a few shared files, written and read whole by every client; their histories must be
linearizable.  Private trees: each client makes, renames, rewrites and removes files in a directory of its own
and knows exactly what must be there, also after retries.  Contests: exclusive creations that one may win.
"""

import random
from dataclasses import dataclass, field

import trio

from fs.client.native import EmberFile, EmberFs
from fs.schema.status import FsError, Status

from .cluster import CHUNK_BYTES, SimCluster
from .linearizable import FOREVER, Op

SLOT_BYTES = 512
SLOTS = [
    ("/shared-0", 0),
    ("/shared-0", CHUNK_BYTES + 1000),
    ("/shared-1", 7),
    ("/shared-1", 2 * CHUNK_BYTES),
]
SHARED_BYTES = 3 * CHUNK_BYTES
INITIAL = 0


def slot_bytes(value: int) -> bytes:
    """Return the content of a register: recognisable and of one piece."""
    return (b"%015d|" % value) * (SLOT_BYTES // 16)


def slot_value(content: bytes) -> int:
    """Inverse of `slot_bytes`; a mixture of two values is an error, not a value."""
    value = int(content[:15])
    assert content == slot_bytes(value), f"torn register: {content[:64]!r}..."
    return value


@dataclass
class Memory:
    """What all clients together know."""

    histories: dict[tuple[str, int], list[Op]] = field(
        default_factory=lambda: {slot: [] for slot in SLOTS}
    )
    trees: dict[int, dict[str, bytes]] = field(default_factory=dict)
    winners: dict[str, list[int]] = field(default_factory=dict)
    value_next: int = 1
    longest_op_s: float = 0.0
    op_count: int = 0

    def new_value(self) -> int:
        self.value_next += 1
        return self.value_next


async def prepare(fs: EmberFs) -> None:
    """Make the shared files with every register at its initial value."""
    for path in sorted({path for path, _ in SLOTS}):
        async with await fs.create(path) as file:
            await file.write(0, bytes(SHARED_BYTES))
            for slot_path, offset in SLOTS:
                if slot_path == path:
                    await file.write(offset, slot_bytes(INITIAL))


class SimClient:
    """One client at work."""

    def __init__(self, number: int, cluster: SimCluster, memory: Memory) -> None:
        self.number = number
        self.cluster = cluster
        self.memory = memory
        self.random = random.Random(f"{cluster.seed}/workload-{number}")
        self.tree = memory.trees.setdefault(number, {})
        self.home = f"/home-{number}"
        self.files: dict[str, EmberFile] = {}

    async def work(self, fs: EmberFs, until_s: float) -> None:
        """Do random things until the virtual time `until_s`."""
        await fs.mkdir(self.home)
        for path in sorted({path for path, _ in SLOTS}):
            self.files[path] = await fs.create(path, truncate=False)
        while trio.current_time() < until_s:
            action = self.random.choices(
                [self.write_slot, self.read_slot, self.change_tree, self.contest],
                weights=[30, 40, 25, 5],
            )[0]
            began = trio.current_time()
            await action(fs)
            self.memory.op_count += 1
            self.memory.longest_op_s = max(self.memory.longest_op_s, trio.current_time() - began)
            await trio.sleep(self.random.expovariate(20))
        for file in self.files.values():
            await file.close()

    async def write_slot(self, _fs: EmberFs) -> None:
        slot = self.random.choice(SLOTS)
        value = self.memory.new_value()
        begin = trio.current_time()
        history = self.memory.histories[slot]
        index = len(history)
        history.append(Op("write", value, begin, FOREVER, f"client-{self.number}"))
        await self.files[slot[0]].write(slot[1], slot_bytes(value))
        history[index] = Op("write", value, begin, trio.current_time(), f"client-{self.number}")
        self.cluster.trace.add("write", f"client-{self.number} {slot} {value}")

    async def read_slot(self, _fs: EmberFs) -> None:
        slot = self.random.choice(SLOTS)
        begin = trio.current_time()
        value = slot_value(await self.files[slot[0]].read(slot[1], SLOT_BYTES))
        self.memory.histories[slot].append(
            Op("read", value, begin, trio.current_time(), f"client-{self.number}")
        )
        self.cluster.trace.add("read", f"client-{self.number} {slot} {value}")

    async def change_tree(self, fs: EmberFs) -> None:
        names = sorted(self.tree)
        action = self.random.choice(["write", "write", "rename", "unlink", "check"])
        if not names or action == "write":
            name = f"{self.home}/f{self.random.randrange(12)}"
            content = self.random.randbytes(self.random.choice([0, 10, 5000, CHUNK_BYTES * 2 + 5]))
            await fs.write_file(name, content)
            self.tree[name] = content
        elif action == "rename":
            old, new = self.random.choice(names), f"{self.home}/f{self.random.randrange(12)}"
            await fs.rename(old, new)
            self.tree[new] = self.tree[old]
            if new != old:
                del self.tree[old]
        elif action == "unlink":
            name = self.random.choice(names)
            await fs.unlink(name)
            del self.tree[name]
        else:
            name = self.random.choice(names)
            assert await fs.read_file(name) == self.tree[name], name
        self.cluster.trace.add("tree", f"client-{self.number} {action}")

    async def contest(self, fs: EmberFs) -> None:
        name = f"/contest-{int(trio.current_time())}"
        try:
            file = await fs.create(name, exclusive=True)
        except FsError as error:
            if error.status is not Status.EXISTS:
                raise
            return
        self.memory.winners.setdefault(name, []).append(self.number)
        await file.close()
        self.cluster.trace.add("contest", f"client-{self.number} won {name}")
