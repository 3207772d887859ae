"""LMDB by writes and by a writable map: two writers at once, a copy past the page cache,
kill -9 in the midst of transactions.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import lmdb

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
WAYS = ({}, {"writemap": True}, {"sync": False}, {"writemap": True, "map_async": True})
SIZE = 1 << 26
COUNT_UP = """
import lmdb, sys
store = lmdb.open(sys.argv[1], map_size={size}, **{way})
for _ in range(10):
    with store.begin(write=True) as tr:
        tr.put(b"n", str(int(tr.get(b"n", b"0")) + 1).encode())
"""
FOR_EVER = """
import lmdb, os, sys
store, i = lmdb.open(sys.argv[1], map_size={size}, **{way}), 0
while True:
    with store.begin(write=True) as tr:
        tr.put(b"k%d" % (i % 500), b"%d" % i * 50)
        tr.put(b"last", b"%d" % i)
    os.write(1, b"%d\\n" % i)
    i += 1
"""


def digest(path: Path, *, lock: bool) -> str:
    found = hashlib.sha256()
    with lmdb.open(str(path), readonly=True, lock=lock) as store, store.begin() as tr:
        for key, value in tr.cursor():
            found.update(key + value)
    return found.hexdigest()


for number, way in enumerate(WAYS):
    path = HERE / str(number)
    with lmdb.open(str(path), map_size=SIZE, **way) as store:
        for batch in range(5):
            with store.begin(write=True) as tr:
                for i in range(200):
                    tr.put(b"%d-%d" % (batch, i), bytes([i]) * 90 * (i % 40))
    writer = [sys.executable, "-c", COUNT_UP.format(size=SIZE, way=way), path]
    both = [subprocess.Popen(writer) for _ in range(2)]
    assert [w.wait() for w in both] == [0, 0]
    with lmdb.open(str(path), map_size=SIZE, **way) as store:
        with store.begin() as tr:
            assert tr.get(b"n") == b"20"
            assert tr.stat()["entries"] == 1001
        for name, is_compact in (("copy", False), ("compact", True)):
            (path / name).mkdir()
            store.copy(str(path / name), compact=is_compact)
    digests = {digest(path / name, lock=name == "") for name in ("", "copy", "compact")}
    digests.add(digest(OTHER / str(number), lock=False))
    assert len(digests) == 1, way
    writer[2] = FOR_EVER.format(size=SIZE, way=way)
    with subprocess.Popen(writer, stdout=subprocess.PIPE) as killed:
        lines = [killed.stdout.readline() for _ in range(20)]
        killed.kill()
        lines += killed.stdout.read().splitlines()
        told = int(lines[-1])
    with lmdb.open(str(path), map_size=SIZE) as store, store.begin() as tr:
        assert int(tr.get(b"last")) >= told, way
        assert sum(1 for _ in tr.cursor()) == tr.stat()["entries"]
