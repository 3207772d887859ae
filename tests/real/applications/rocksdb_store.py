"""RocksDB itself: killed between synchronous writes and opened by the other mount;
reads and writes past the cache and by maps.
"""

import subprocess
import sys
from pathlib import Path

from rocksdict import Options, Rdict

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
PUT = """
import os, sys
from rocksdict import Options, Rdict, WriteOptions
options, how, i = Options(), WriteOptions(), 0
options.create_if_missing(True)
options.set_write_buffer_size(1 << 20)
how.sync = True
store = Rdict(sys.argv[1], options)
while True:
    store.put(f"k{i}", f"v{i}" * 100, how)
    i += 1
    os.write(1, b"%d\\n" % i)
"""

for opened in (HERE, OTHER, HERE):
    command = [sys.executable, "-c", PUT, HERE / "killed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        lines = [killed.stdout.readline() for _ in range(20)]
        killed.kill()
        lines += killed.stdout.read().splitlines()
        told = int(lines[-1])
    store = Rdict(str(opened / "killed"))
    assert all(store[f"k{i}"] == f"v{i}" * 100 for i in range(told)), told
    store.close()
past_cache, by_maps = Options(), Options()
past_cache.set_use_direct_reads(True)
past_cache.set_use_direct_io_for_flush_and_compaction(True)
by_maps.set_allow_mmap_reads(True)
by_maps.set_allow_mmap_writes(True)
for name, options in (("past-cache", past_cache), ("by-maps", by_maps)):
    options.create_if_missing(True)
    store = Rdict(str(HERE / name), options)
    for i in range(5000):
        store[str(i)] = f"{i} " * 100
    store.flush()
    store.compact_range(None, None)
    assert store["777"] == "777 " * 100
    store.close()
    store = Rdict(str(OTHER / name))
    assert all(store[str(i)] == f"{i} " * 100 for i in range(5000))
    store.close()
