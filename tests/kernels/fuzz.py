"""Random calls of the batches', the writes', the device's, the disk's,
the lent memory's and the messages' kernels, compared with their twins.

    python -m tests.kernels.fuzz --calls 100000 --seed 1 --kernel batches

`python -m tests.kernels.sanitized` runs it with kernels built by sanitizers, too.

Half of the calls of the batches' make sense, so that plans come of them; all the
others have numbers from anywhere.
"""

import argparse
import itertools
import mmap
import random
import struct
from pathlib import Path

from xxhash import xxh3_64_digest

from fs.kernels import batches, batches_twin, device, direct, lent, read_messages, writes

from .fuzz_io import DeviceFuzzer, DirectFuzzer, LentFuzzer, WritesFuzzer
from .fuzz_messages import MessagesFuzzer

KEYS = [struct.pack("<IIII", file_id, 1, 1, 0) for file_id in range(3)]
NODE_COUNT = 4
TAGS = bytes(range(6))
VIEW = memoryview(bytearray(256))
FUZZERS = {
    "writes": (writes, WritesFuzzer),
    "device": (device, DeviceFuzzer),
    "direct": (direct, DirectFuzzer),
    "lent": (lent, LentFuzzer),
    "read_messages": (read_messages, MessagesFuzzer),
}
"""Of all kernels but the batches': the module, and what makes calls."""


def continued(user_data, offset, place, length):
    """Return the numbers of an entry that begins where another one ends."""
    return user_data, offset + length, place + length, length


class Differ:
    """Makes calls; `planned` counts those that had a plan."""

    def __init__(self, compiled, seed):
        self._compiled = compiled
        self._rng = random.Random(seed)
        self.planned = 0

    def number(self, bits):
        """Return a small number, any, or one of the greatest."""
        rng = self._rng
        return rng.choice([rng.randrange(200), rng.getrandbits(bits), 2**bits - rng.randint(1, 3)])

    def both(self, name, *arguments):
        """Return what both say."""
        said = []
        for module in (self._compiled, batches_twin):
            try:
                found = getattr(module, name)(*arguments)
            except ValueError:
                found = "refused"
            is_list = isinstance(found, list)
            said.append(
                [bytes(o) if isinstance(o, memoryview) else o for o in found] if is_list else found
            )
        assert said[0] == said[1], (name, arguments, said)
        return said[0]

    def call_each(self):
        """Call every function once."""
        rng, number = self._rng, self.number
        is_good = rng.random() < 0.5
        entries = self._entries(is_good)
        limits = number(64), rng.choice([0, 64]), number(64), number(64), rng.randrange(4)
        self.both("kinds_of", entries, 1, *limits)
        self.both("completions_of", entries)
        ends = b"".join(batches.FILE_END.pack(key, number(64)) for key in KEYS)
        self.both("are_within", entries, ends)
        bounds = rng.choice([1, 60, 10**9]), rng.choice([0, 70, 10**9]), rng.randrange(6)
        bounds += (rng.choice([1, 100, 10**9]),)
        plan = self.both(
            "plan_reads", entries, *self._map(is_good), NODE_COUNT, number(64), *bounds, TAGS
        )
        if isinstance(plan, list):
            self.planned += 1
            for _, _, rows, _ in plan:
                self._reply_to(rows)

    def _entries(self, is_good):
        """Return entries in a row; now and then one continues the one before."""
        entries = []
        for _ in range(self._rng.randrange(12)):
            entry = self._entry(is_good)
            if entries and is_good and self._rng.random() < 0.4:
                *numbers, key = batches.ENTRY.unpack(entries[-1])
                entry = batches.ENTRY.pack(*continued(*numbers), key)
            entries.append(entry)
        return b"".join(entries)

    def _entry(self, is_good):
        rng, number = self._rng, self.number
        numbers = rng.randrange(10**9), rng.randrange(200), rng.randrange(1, 50)
        if not is_good:
            numbers = number(64), number(64), number(64)
        return batches.ENTRY.pack(number(64), *numbers, rng.choice(KEYS))

    def _map(self, is_good):
        """Return layouts, slots and chains."""
        rng, number = self._rng, self.number
        layouts, chains = [], []
        for first, key in enumerate(KEYS):
            chunk_bytes = rng.choice([64, 100, 1 << 20]) if is_good else number(64)
            stripe_size = rng.randrange(1, 4) if is_good else number(32)
            layouts.append(
                batches.FILE_LAYOUT.pack(key, number(64), chunk_bytes, stripe_size, first)
            )
            count = rng.randrange(1, 8) if is_good else rng.randrange(10)
            nodes = [rng.randrange(NODE_COUNT) if is_good else number(32) for _ in range(7)]
            chains.append(batches.CHAIN_NODES.pack(number(64), number(64), count, *nodes))
        slots = [batches.SLOT.pack(rng.randrange(3) if is_good else number(32)) for _ in range(6)]
        return b"".join(layouts), b"".join(slots), b"".join(chains)

    def _reply_to(self, rows):
        lengths = [length for _, length, _ in batches.ROW.iter_unpack(rows)]
        if self._rng.random() < 0.2:
            lengths[0] += 1
        self.both("windows_of", VIEW, rows, lengths, sum(lengths))
        self.both("have_come", VIEW, rows, lengths, [self.number(64) for _ in lengths])
        size = sum(lengths)
        if size <= len(VIEW):
            self._put(rows, lengths, self._rng.randbytes(size))

    def _put(self, rows, lengths, payload):
        """Put a reply that is mostly good in its places, or something else."""
        ends = itertools.accumulate(lengths)
        sums = [
            xxh3_64_digest(payload[e - n : e])[::-1] for e, n in zip(ends, lengths, strict=True)
        ]
        message = bytearray(b"\x0a" + bytes([len(lengths)]) + bytes(n & 0x7F for n in lengths))
        message += b"\x1a" + bytes([8 * len(sums)]) + b"".join(sums)
        if self._rng.random() < 0.5:
            message[self._rng.randrange(len(message))] = self._rng.randrange(256)
        self.both("put_reply", VIEW, rows, message, b"\x0a\x12\x1a", payload, True)


def grown_bytes(call, count):
    """Return by how much the process grew while something was called,
    after as many calls that warmed it up.
    """
    for _ in range(count):
        call()
    before = _resident_bytes()
    for _ in range(count):
        call()
    return _resident_bytes() - before


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel", choices=["batches", *FUZZERS], default="batches")
    given = parser.parse_args()
    kernel, make = FUZZERS.get(given.kernel, (batches, None))
    assert kernel.IS_COMPILED, "not compiled: python setup.py build_ext --inplace"
    if make is None:
        differ = Differ(batches, given.seed)
        grown = grown_bytes(differ.call_each, given.calls // 2)
        found = f"{differ.planned} with a plan"
    else:
        with make(kernel, given.seed) as fuzzer:
            grown = grown_bytes(fuzzer.call_each, given.calls // 2)
            found = f"{fuzzer.done} done"
    print(f"{given.calls} calls of each function, {found}: no difference; grown by {grown} bytes")


if __name__ == "__main__":
    main()
