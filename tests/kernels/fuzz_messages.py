"""Random calls of the kernel of messages about reads, compared with its twin;
part of fuzz.py, which says how to run it.
"""

import random
from contextlib import suppress

from fs.kernels import read_messages_twin

COLUMNS = bytes(number << 3 | 2 for number in (5, 6, 7, 8, 9, 10))
FLAGS = bytes(number << 3 for number in (2, 3, 4, 11))
REPLY_COLUMNS = bytes(number << 3 | 2 for number in (3, 4, 5))


class MessagesFuzzer:
    """Makes calls; `done` counts the messages of rows that were taken apart."""

    def __init__(self, compiled, seed):
        self._compiled = compiled
        self._rng = random.Random(seed)
        self.done = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def both(self, name, *arguments):
        """Return what both say."""
        said = []
        for module in (self._compiled, read_messages_twin):
            found = "refused"
            with suppress(ValueError, OverflowError):
                found = getattr(module, name)(*arguments)
            said.append(found)
        assert said[0] == said[1], (name, arguments, said)
        return said[0]

    def number(self, bits):
        """Return a small number, any, or one of the greatest."""
        rng = self._rng
        return rng.choice([rng.randrange(3), rng.getrandbits(bits), 2**bits - rng.randint(1, 3)])

    def call_each(self):
        """Call every function once."""
        rng = self._rng
        message = self._message()
        reach_max = rng.choice([2**33, 2**32, 200, self.number(64)])
        self.both("one_row", message, COLUMNS, FLAGS)
        taken = self.both("take_rows", message, COLUMNS, FLAGS, rng.randrange(12), reach_max)
        if isinstance(taken, tuple):
            self.done += 1
            owners = [self.number(64) for _ in range(len(taken[0]) - rng.choice([0, 0, 0, 1]))]
            self.both("chunk_keys", taken[2][: len(taken[2]) - rng.choice([0, 0, 0, 1])], owners)
        noise = rng.randbytes(rng.choice([0, 20, 40, rng.randrange(64)]))
        self.both("chunk_keys", noise, [self.number(65) for _ in range(rng.randrange(4))])
        count = rng.randrange(8)
        counts = count, count - rng.choice([0, 0, 0, count]), rng.choice([0, count, count + 1])
        columns = [[self.number(rng.choice([32, 64, 64, 65])) for _ in range(n)] for n in counts]
        self.both("rows_reply", REPLY_COLUMNS[: rng.choice([3, 3, 3, 2])], *columns)

    def _message(self):
        rng = self._rng
        count = rng.choice([0, 1, 1, 3, rng.randrange(14)])
        parts = [
            bytes((tag, rng.choice([0, 1, 127]))) for tag in rng.sample(FLAGS, rng.randrange(5))
        ]
        for tag in COLUMNS:
            numbers = [self.number(64 if tag == COLUMNS[0] else 32) for _ in range(count)]
            packed = b"".join(map(varint, numbers))
            parts.append(bytes((tag,)) + varint(len(packed)) + packed)
        if rng.random() < 0.3:
            rng.shuffle(parts)
        message = bytearray(b"".join(parts))
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            at = rng.randrange(len(message) + 1)
            what = rng.randbytes(rng.choice([0, 1, 1, 12]))
            message[at : at + rng.choice([0, 1, len(message)])] = what
        return bytes(message)


def varint(number):
    packed = bytearray()
    while number >= 0x80:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)
