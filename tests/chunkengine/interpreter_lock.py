"""How long other threads stand still while one waits for a slow disk;
run with slow_calls.c preloaded, prints a line for each call.

LD_PRELOAD=slow_calls.so python -m tests.chunkengine.interpreter_lock DIRECTORY
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

from fs.chunkengine.meta_rocksdb import RocksMetaStore

SLOW_MS = 1000
TICK_S = 0.002
ROW_COUNT = 5000


class Ticker:
    """Notices when it does not get to run."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        last_s = time.monotonic()
        while True:
            time.sleep(TICK_S)
            now_s = time.monotonic()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s


def main(directory: Path) -> None:
    """Print name, how long the call took, and how long the others stood still, in ms."""
    slow_ms = ctypes.c_int.in_dll(ctypes.CDLL(None), "slow_ms")
    ticker = Ticker()
    for is_shared in (False, True):
        path = directory / f"{is_shared}" / "slow_disk" / "meta"
        path.mkdir(parents=True)
        store = RocksMetaStore(path, is_shared=is_shared)
        store.write([(b"c%06d" % n, os.urandom(100)) for n in range(ROW_COUNT)])
        store._db.flush(wait=True)  # to a table, none of which is in memory
        for name, call in (
            ("get", lambda store=store: store.get(b"c000700")),
            ("write_synced", lambda store=store: store.write_synced([(b"a", b"b")])),
        ):
            time.sleep(0.1)
            ticker.longest_s, slow_ms.value = 0.0, SLOW_MS
            began_s = time.monotonic()
            assert name != "get" or call() is not None
            if name != "get":
                call()
            took_s, slow_ms.value = time.monotonic() - began_s, 0
            time.sleep(10 * TICK_S)
            kind = "shared" if is_shared else "own"
            print(f"{kind} {name} {1000 * took_s:.0f} {1000 * ticker.longest_s:.0f}")
        store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
