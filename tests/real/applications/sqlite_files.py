"""SQLite: two writers, over both mounts but where they share memory (WAL),
which one machine alone can; pages read by maps.
"""

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
CHANGE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None)
db.execute("pragma mmap_size=100000000")
for i in range(8):
    db.execute("begin immediate")
    db.execute("update t set n = n + 1")
    db.execute("insert into u values (?, ?)", (i, "x" * 1000))
    db.execute("commit")
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
"""

for journal in ("wal", "delete", "truncate", "persist"):
    path = f"{journal}.db"
    with contextlib.closing(sqlite3.connect(HERE / path)) as db, db:
        assert db.execute(f"pragma journal_mode={journal}").fetchone() == (journal,)
        db.execute("create table t (n)")
        db.execute("insert into t values (0)")
        db.execute("create table u (i, s)")
    places = (HERE, HERE if journal == "wal" else OTHER)
    both = [subprocess.Popen([sys.executable, "-c", CHANGE, place / path]) for place in places]
    assert [w.wait() for w in both] == [0, 0], journal
    for place in {HERE, OTHER}:
        with contextlib.closing(sqlite3.connect(place / path)) as db:
            assert db.execute("select n from t").fetchone() == (16,)
            assert db.execute("select count(*) from u").fetchone() == (16,)
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
