"""What processes of the KV cache's tests do:
in a module that they can import when they are spawned.

Keys are named by number; `content` is what every block of a key must be, so
any reader can tell wrong bytes.
"""

import os
import random
import time

from emberfs.kvcache import KVCache

BLOCK = 4096
CAPACITY = 256 * BLOCK


def key(number):
    return b"block-%d" % number


def content(number):
    return random.Random(number).randbytes(BLOCK)


def opened(folder, **settings):
    return KVCache(folder, **{"block_bytes": BLOCK, "capacity_bytes": CAPACITY, **settings})


def check(cache, numbers):
    """Read blocks; return which were found; what was found must be right."""
    blocks = cache.get([key(number) for number in numbers])
    for number, block in zip(numbers, blocks, strict=True):
        assert block is None or block == content(number), f"wrong bytes for {number}"
    return [number for number, block in zip(numbers, blocks, strict=True) if block is not None]


def put(cache, numbers):
    return cache.put([(key(number), memoryview(content(number))) for number in numbers])


def churn(folder, seed, rounds, pipe=None):
    """Put, read, delete and collect at random; `rounds` None: until killed.

    Tells of each round.
    """
    rng = random.Random(seed)
    hits = 0
    with opened(folder, refresh_s=0.01, touch_s=0.01) as cache:
        while rounds is None or rounds > 0:
            numbers = [rng.randrange(600) for _ in range(rng.randrange(1, 30))]
            put(cache, numbers)
            hits += len(check(cache, [rng.randrange(600) for _ in range(40)]))
            if rng.random() < 0.2:
                cache.delete([key(number) for number in numbers[:3]])
            if rng.random() < 0.2:
                cache.collect()
            if rounds is not None:
                rounds -= 1
            if pipe is not None:
                pipe.send(os.getpid())
    return hits


def put_and_wait(folder, numbers, pipe):
    """Put blocks, say so, and stay."""
    with opened(folder) as cache:
        put(cache, numbers)
        pipe.send("put")
        while True:
            time.sleep(60)


def check_in_child(cache, numbers, pipe):
    """Use a cache that was inherited or pickled."""
    found = check(cache, numbers)
    put(cache, [1000])
    pipe.send((found, check(cache, [1000])))
    cache.close()
