"""Backup, restore and check of a big namespace on the embedded engine:
`python -m tests.admin.big --files 1000000`.

Prints rates and the largest memory of each step, each in a process of its own.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from fs.admin.backup import write_backup
from fs.admin.backup_format import BackupDecoder
from fs.admin.fsck import Check
from fs.admin.restore import restore_backup
from fs.kv.rocksdb import RocksDbEngine
from fs.meta import records
from fs.meta.inode_ids import SHARD_COUNT
from fs.schema.config import KvSection
from fs.schema.ids import FIRST_INODE_ID, ROOT_INODE_ID
from fs.schema.proto import common_pb2 as pb
from fs.schema.proto.backup_pb2 import BackupHeadPb
from fs.schema.proto.record_pb2 import DentryRecordPb
from tests.kv.harness import CLUSTER_ID, inline_runtime
from tests.meta.harness import World

FILES_PER_DIRECTORY = 500
LENGTH = 100_000
BATCH = 4_000


class Big:
    """Writes a sound namespace of `count` files, some directories deep."""

    def __init__(self, engine, count: int) -> None:
        self.engine, self.count = engine, count
        self.rows: list[tuple[bytes, bytes]] = []
        self.next_id = int(FIRST_INODE_ID)

    def take(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def put(self, parent: int, name: bytes, inode: pb.InodePb) -> None:
        record = DentryRecordPb(inode_id=inode.inode_id, type=inode.type)
        self.rows += [
            (records.inode_key(inode.inode_id), inode.SerializeToString()),
            (records.dentry_key(parent, name), record.SerializeToString()),
        ]

    async def flush(self, at_least: int = 1) -> None:
        if len(self.rows) < at_least:
            return
        tr = self.engine.transaction()
        for key, value in self.rows:
            tr.set(key, value)
        await tr.commit()
        self.rows = []

    async def make(self) -> None:
        now_ns, parent, made, directories = time.time_ns(), int(ROOT_INODE_ID), 0, 0
        times = {f"{x}time_ns": now_ns for x in "amcb"}
        while made < self.count:
            here = pb.InodePb(inode_id=self.take(), type=pb.DIRECTORY, mode=0o755, nlink=2, **times)
            here.directory.parent_inode_id, here.directory.name = (
                ROOT_INODE_ID,
                b"d%d" % directories,
            )
            self.put(parent, here.directory.name, here)
            directories += 1
            count = min(FILES_PER_DIRECTORY, self.count - made)
            for n in range(count):
                file = pb.InodePb(inode_id=self.take(), type=pb.FILE, mode=0o644, nlink=1, **times)
                layout = pb.LayoutPb(
                    table_id=1, table_version=1, chunk_size_bytes=1 << 20, stripe_size=4
                )
                file.file.MergeFrom(pb.FilePartPb(length=LENGTH, layout=layout, dyn_stripe=1))
                file.home_inode_id = here.inode_id
                self.put(here.inode_id, b"a file with a name of %d" % n, file)
            made += count
            self.usage(here.inode_id, count, 0)
            await self.flush(BATCH)
        self.usage(ROOT_INODE_ID, made, directories)
        total = 1 + made + directories
        self.rows.append((records.INODE_COUNT_KEY, records.pack_count(total)))
        self.rows.append(
            (records.subdirectory_count_key(ROOT_INODE_ID), records.pack_count(directories))
        )
        blocks = records.pack_u64(total // (SHARD_COUNT * 4096) + 1)
        self.rows += [(records.inode_ids_key(n), blocks) for n in range(SHARD_COUNT)]
        await self.flush()

    def usage(self, inode_id: int, files: int, directories: int) -> None:
        for kind, count in ((b"b", files * LENGTH), (b"f", files), (b"d", directories)):
            self.rows.append((records.usage_key(inode_id, kind), records.pack_count(count)))


async def step(name: str, base: Path, count: int) -> str:
    runtime = inline_runtime()
    path = base / ("restored" if name == "restore" else "store")
    engine = await RocksDbEngine.open(str(path), KvSection(), runtime, cluster_id=CLUSTER_ID)
    try:
        if name == "make":
            await World(engine).initialise()
            await Big(engine, count).make()
            return f"{count} files"
        if name == "backup":
            with (base / "backup").open("wb") as file:

                async def write(made: bytes) -> None:
                    file.write(made)

                head = BackupHeadPb(cluster_id="emberfs", engine="rocksdb")
                report = await write_backup(engine, runtime, write, head=head)
            return f"{report.row_count} records, {report.byte_count / 1e6:.0f} MB"
        if name == "restore":
            with (base / "backup").open("rb") as file:
                decoder = BackupDecoder(file.read, "backup")
                return f"{await restore_backup(engine, runtime, decoder)} records"
        report = await Check(engine, runtime, is_paced=False).run(is_repair=False)
        assert not report.findings, report.findings[:5]
        return f"{report.inode_count} inodes, {report.row_count} records, nothing found"
    finally:
        await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--step")
    parser.add_argument("--base")
    given = parser.parse_args()
    if given.step:
        began_s, cpu_s = time.monotonic(), time.process_time()
        said = trio.run(step, given.step, Path(given.base), given.files)
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        sys.stdout.write(
            f"{given.step:8} {said}: {took_s:.1f} s, {cpu_s:.1f} s of CPU, {memory_mb:.0f} MB\n"
        )
        return
    with tempfile.TemporaryDirectory(prefix="ember-big-") as base:
        for name in ("make", "backup", "restore", "fsck"):
            options = ["--files", str(given.files), "--step", name, "--base", base]
            subprocess.run(
                [sys.executable, "-m", "tests.admin.big", *options], check=True, env=os.environ
            )


if __name__ == "__main__":
    main()
