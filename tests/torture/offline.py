"""A stopped cluster, checked from its disks alone:
the namespace, every chunk, and how the two fit together.
"""

import subprocess
import sys
from pathlib import Path

import trio

from fs.admin.fsck_chunks import end_index
from fs.chunkengine.factory import open_engine
from fs.kv.rocksdb import RocksDbEngine
from fs.meta import check as namespace
from fs.rpc.transport import SocketNetwork
from fs.runtime.config_file import read_config
from fs.runtime.real import real_runtime
from fs.schema.config import KvSection
from fs.schema.proto import common_pb2 as pb
from fs.schema.status import FsError

from .fleet import CLUSTER_ID, ROOT, Fleet

PAGE_COUNT = 1000


class Offline:
    """Findings of one check; each is a line."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._files: dict[int, pb.InodePb] = {}
        self._collected: set[int] = set()
        """Removed files whose chunks may still be there."""
        self._held: dict[tuple[int, int], set[tuple[int, int, int]]] = {}
        """Of each chunk the copies: target, version, digest."""
        self.problems: list[str] = []
        self.chunk_count = 0
        self.file_count = 0

    def run(self) -> list[str]:
        """Check everything; return what is wrong."""
        contents = trio.run(self._read_namespace, self._fleet.base / "data" / "meta")
        for name in self._fleet.storages:
            self._check_books(name)
        self._check_chunks(contents)
        return self.problems

    async def _read_namespace(self, path: Path) -> namespace.Contents:
        engine = await RocksDbEngine.open(
            str(path), KvSection(), real_runtime(SocketNetwork()), cluster_id=CLUSTER_ID
        )
        try:
            self.problems += [f"namespace: {line}" for line in await namespace.check(engine)]
            return await namespace.load(engine)
        finally:
            await engine.aclose()

    def _check_books(self, name: str) -> None:
        """Have `ember fsck-disk` compare the records of a disk with each other
        and with the bytes.
        """
        words = ["-m", "fs.app.main", "fsck-disk", str(self._fleet.disk(name)), "--json"]
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            told = (done.stdout + done.stderr)[-2000:]
            self.problems.append(f"fsck-disk {name}: exit {done.returncode}: {told}")

    def _check_chunks(self, contents: namespace.Contents) -> None:
        self._files = {i: inode for i, inode in contents.inodes.items() if inode.type == pb.FILE}
        self._collected = set(contents.gc_files)
        self.file_count = len(self._files)
        for name in self._fleet.storages:
            self._check_disk(name)
        for chunk, copies in self._held.items():
            if len({(version, digest) for _, version, digest in copies}) > 1:
                self.problems.append(f"chunk {chunk}: copies differ: {sorted(copies)}")
            if len(copies) != self._fleet.sizes.replicas:
                self.problems.append(f"chunk {chunk}: {len(copies)} copies")
        self.chunk_count = len(self._held)

    def _check_disk(self, name) -> None:
        """Read every chunk of a disk, which verifies it;
        note it, and complain of those that nobody owns.
        """
        config = read_config(self._fleet.config(name))
        engine = open_engine(
            self._fleet.disk(name),
            cluster_id=CLUSTER_ID,
            node_id=config.process.node_id,
            section=config.storage,
        )
        try:
            for target_id in config.storage.disks[0].target_ids:
                after = b""
                while page := engine.list_chunks(target_id, after=after, limit=PAGE_COUNT):
                    after = page[-1].chunk_id.pack()
                    for state in page:
                        self._check_chunk(engine, target_id, state)
        finally:
            engine.close()

    def _check_chunk(self, engine, target_id, state) -> None:
        inode_id, index = state.chunk_id.inode_id, state.chunk_id.index
        where = f"target {target_id} chunk {inode_id}.{index}"
        if inode_id in self._collected:
            return  # its removal may have been under way
        if state.pending_ver:
            self.problems.append(f"{where}: version {state.pending_ver} still pending")
        if not state.commit_ver:
            return
        self._held.setdefault((inode_id, index), set()).add(
            (target_id, state.commit_ver, state.checksum)
        )
        try:
            engine.read_whole(target_id, state.chunk_id)
        except FsError as error:
            self.problems.append(f"{where}: {error}")
        inode = self._files.get(inode_id)
        if inode is None:
            self.problems.append(f"{where}: no file owns it")
        elif not inode.file.truncate_pending and index >= end_index(inode.file):
            self.problems.append(f"{where}: beyond the end of its file ({inode.file.length})")
