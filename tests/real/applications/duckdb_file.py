"""DuckDB: one process at a time, over all mounts;
kill -9 in the midst of inserts, opened again by the other mount.
"""

import os
import subprocess
import sys
from pathlib import Path

import duckdb

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
OPEN = "import duckdb, sys; duckdb.connect(sys.argv[1])"
INSERT = """
import duckdb, os, sys
db, i = duckdb.connect(sys.argv[1]), 0
db.execute("create table if not exists u (i int)")
while True:
    db.execute("insert into u values (?)", [i])
    i += 1
    os.write(1, b"%d\\n" % i)
"""

with duckdb.connect(HERE / "a.db") as db:
    db.execute(
        "create table t as select range i, repeat('x', (range % 100)::int) s from range(50000)"
    )
    db.execute("checkpoint")
    command = [sys.executable, "-c", OPEN, OTHER / "a.db"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "lock" in refused.stderr, refused
    db.execute(f"copy t to '{HERE}/t' (format parquet, per_thread_output true)")
    rows = db.execute(f"select count(*), sum(i) from '{OTHER}/t/*.parquet'").fetchone()
    assert rows == (50_000, sum(range(50_000)))
for opened in (HERE, OTHER, HERE):
    command = [sys.executable, "-c", INSERT, HERE / "a.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        lines = [killed.stdout.readline() for _ in range(5)]
        killed.kill()
        lines += killed.stdout.read().splitlines()
        told = int(lines[-1])
    with duckdb.connect(opened / "a.db") as db:
        (count,) = db.execute("select count(*) from u").fetchone()
        assert count >= told, (count, told)
        db.execute("delete from u")
        assert db.execute("select count(*) from t").fetchone() == (50_000,)
assert sorted(os.listdir(HERE)) == sorted(os.listdir(OTHER))
