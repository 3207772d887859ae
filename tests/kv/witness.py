"""What a process that commits has said (crash_writer.py),
and what its store must therefore hold, exactly.

The commits that were heard of, and those whose rows are there, are done again in memory in the
order of their versions, up to the version of the store: the result must be what the store holds.
So each commit is there entirely or not at all, and they are a prefix of all commits: one that
reaches at least to the last sync, and after a kill to the last acknowledgement.
"""

import time
from collections import Counter
from pathlib import Path

import trio

from fs.kv.rocksdb import RocksDbEngine
from fs.kv.transact import snapshot_read
from tests.chunkengine.witness import OPEN_S_MAX
from tests.kv.crash_writer import (
    COUNT_KEY,
    KEPT_COUNT,
    ROW_COUNT,
    open_store,
    row_key,
    stamp_key,
    value_of,
    work,
)
from tests.kv.harness import int_value


class StoreWitness:
    work = staticmethod(work)

    def __init__(self) -> None:
        self.version = 0
        """Of the store when it was checked last."""
        self.numbers: set[int] = set()
        """The transactions whose rows were there then."""
        self.commits: dict[int, int] = {}
        """Version -> transaction, of the commits since then."""
        self.synced_version = 0
        self.done_count = self.synced_count = self.slow_open_count = 0
        self.failure = ""

    def hear(self, line: str) -> None:
        """Take note of one line."""
        word, *rest = line.split(" ")
        if word == "done":
            self.commits[int(rest[1])] = int(rest[0])
            self.done_count += 1
        elif word == "synced":
            self.synced_version = max(self.synced_version, int(rest[0]))
            self.synced_count += 1
        elif word == "failed":
            self.failure = line

    def counts(self) -> Counter[str]:
        """Return how much was heard."""
        return Counter(commits=self.done_count, syncs=self.synced_count)

    def check(self, path: Path, *, is_power: bool) -> None:
        """Open the store and compare all of it; go on from there."""
        trio.run(self._check, path, is_power)

    async def _check(self, path: Path, is_power: bool) -> None:
        began = time.monotonic()
        engine, _ = await open_store(str(path))
        self.slow_open_count += time.monotonic() - began > OPEN_S_MAX
        try:
            found = await self._found(engine)
        finally:
            await engine.aclose()
        version = engine.version
        wanted = self.synced_version if is_power else max([self.version, *self.commits])
        assert version >= wanted, f"version {version}, {wanted} were promised"
        for step in range(self.version + 1, version + 1):
            assert step in self.commits, f"nothing is known of version {step}"
            self.numbers.add(self.commits[step])
            self.numbers.discard(self.commits[step] - KEPT_COUNT)
        assert found == self.numbers, sorted(found ^ self.numbers)
        self.version = self.synced_version = version
        self.commits.clear()

    async def _found(self, engine: RocksDbEngine) -> set[int]:
        """Return the transactions that are there, having looked at every row."""
        rows = dict(await snapshot_read(engine, lambda tr: tr.get_range(b"", b"\xff")))
        assert int_value(rows.pop(COUNT_KEY, None)) == engine.version, (
            "the count is of another version"
        )
        numbers = {int(key[2:12]) for key in rows}
        for number in numbers:
            version = int.from_bytes(rows.pop(stamp_key(number))[:8], "big")
            if version > self.version:
                assert self.commits.setdefault(version, number) == number, (version, number)
            for row in range(ROW_COUNT):
                assert rows.pop(row_key(number, row)) == value_of(number), (number, row)
        assert not rows, f"left over: {sorted(rows)[:5]}"
        return numbers
