"""Row R6: random bytes in entries, indices and lengths of a ring, rewritten while they are read.

    python -m tests.client.batchio.fuzz --entries 1000000 --seed 1

Three batches in ten ask for nothing but plain reads.  Checks that every entry is answered, that the
ring and its mount go on, and that no byte changes but those of the program's own file and memory:
another file, and memory on both sides of the program's own.
"""

import argparse
import random
import time
from collections import Counter

import trio
from emberfs.protocol import ENTRY, Op

from fs.client.batchio.checks import Share
from fs.client.batchio.jobs import COPIED_BYTES_MAX
from tests.client.fakes import FakeClock, FakeCluster
from tests.client.vfs.conftest import Mount

from .conftest import ENTRY_COUNT, running_program

CONTENT = random.Random(3).randbytes(300_000)
GUARD_BYTES = 4096
MEMORY_BYTES = 1 << 20


class Guarded:
    """Memory within memory: the program is told of the middle only."""

    block_size = 0

    def __init__(self, memory, *, is_copied):
        self.memory = memory
        self.mapped_bytes = 0 if is_copied else memory.size
        self.size = memory.size - 2 * GUARD_BYTES
        self.guards = [memory.view[:GUARD_BYTES], memory.view[-GUARD_BYTES:]]
        for guard in self.guards:
            guard[:] = bytes([0xA5]) * GUARD_BYTES

    def window(self, offset, length):
        if not self.mapped_bytes:
            assert length <= COPIED_BYTES_MAX
            return memoryview(bytearray(length))
        return self.memory.window(offset + GUARD_BYTES, length)

    def load(self, offset, window):
        window[:] = self.memory.window(offset + GUARD_BYTES, len(window))

    def store(self, offset, window):
        self.memory.window(offset + GUARD_BYTES, len(window))[:] = window

    def note_written(self, pieces):
        return self.memory.note_written(pieces)

    def check(self):
        assert all(bytes(guard) == bytes([0xA5]) * GUARD_BYTES for guard in self.guards)


async def random_rings(it, seed, count):
    """Have at least `count` random entries done; return how often each result came."""
    rng, results = random.Random(seed), Counter()
    it.files[2] = Share(it.files[1].handle_id, True, False)
    guarded = it.memories[1] = Guarded(it.memory, is_copied=False)
    it.memories[2] = Guarded(it.memory, is_copied=True)
    other = await it.mount.create(b"other")
    await it.mount.files.write(other, 0, b"mine" * 1000)
    await it.mount.files.flush(other)
    while results.total() < count:
        n = rng.randint(1, ENTRY_COUNT)
        is_plain = rng.random() < 0.3
        for _ in range(n):
            it.put(**(plain_entry(rng) if is_plain else random_entry(rng)))
            if rng.random() < (0.01 if is_plain else 0.1):
                spoil(it, rng)
        it.ring_bell(n)
        if rng.random() < 0.3:
            await trio.lowlevel.checkpoint()
            spoil(it, rng)  # rewritten while it is read
        for _, result in await it.results(n):
            results[min(result, 1)] += 1
    assert not it.ring.breach
    guarded.check()
    assert bytes(await it.mount.files.read(other, 0, 10_000)) == b"mine" * 1000
    await it.mount.close(other)
    return results


def random_entry(rng):
    wild = rng.random() < 0.5

    def number(good, bits):
        if not wild or rng.random() > 0.3:
            return good
        return rng.choice([rng.getrandbits(bits), 2**bits - 1, 0])

    return {
        "op": number(rng.choice([Op.READ, Op.WRITE]), 32),
        "offset": number(rng.randrange(400_000), 64),
        "place": number(rng.randrange(MEMORY_BYTES), 64),
        "length": number(rng.randrange(70_000 if rng.random() < 0.2 else 3000), 64),
        "user_data": rng.getrandbits(64),
        "file": number(rng.randint(1, 2), 32),
        "memory": number(rng.randint(1, 2), 32),
        "flags": number(rng.randrange(4), 32),
    }


def plain_entry(rng):
    """Return a read of a batch that may be done by rows."""
    length = rng.randint(1, 3000)
    return {
        "op": Op.READ,
        "offset": rng.randrange(len(CONTENT) - length),
        "place": rng.randrange(MEMORY_BYTES - 2 * GUARD_BYTES - length),
        "length": length,
        "user_data": rng.getrandbits(64),
        "file": rng.randint(1, 2),
        "flags": rng.choice([0, 2]),
    }


def spoil(it, rng):
    place = rng.randrange(ENTRY_COUNT * ENTRY.size - 8)
    it.view[place : place + 8] = rng.randbytes(8)


async def main(entries, seed):
    mount = Mount(FakeCluster(FakeClock()), "client", seed)
    began_s = time.monotonic()
    async with trio.open_nursery() as nursery:
        await nursery.start(mount.vfs.run)
        async with running_program(mount, CONTENT) as it:
            results = await random_rings(it, seed, entries)
        await mount.vfs.shut_down()
    print(
        f"{results.total()} entries in {time.monotonic() - began_s:.0f} s; results: {dict(results)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    trio.run(main, given.entries, given.seed)
