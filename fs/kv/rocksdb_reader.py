"""The embedded store, read by somebody to whom it does not belong:
while its process serves it, or when nobody does.

Invariants:
    - Nothing in the store's directory is written, made or locked: what is opened is a folder of
      symbolic links to its files, which this reader removes when it closes.
    - It sees one state: all commits that the log held when it was opened, synced or not.
    - Its process may go on compacting: all files are open before anything is read.

Does not: check that no synced commit is missing, as the store's own process does.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Rdict

from ..runtime.ports import Runtime
from ..schema.status import FsError, Status
from .buffer import Mutations
from .local import LocalEngine
from .rocksdb_store import check_known, check_readable, opening_error, reading_options
from .rocksdb_view import KnownRows, RocksDbView

TRIES: Final = 20
"""A compaction may take files away between listing and opening them."""

OWN_NAMES: Final = frozenset({"LOCK", "rocksdict-config.json"})
"""Files that opening would write to."""


class RocksDbReader(LocalEngine):
    """See the module head; made by `open`."""

    def __init__(self, path: str, links: Path, db: Rdict, version: int, runtime: Runtime) -> None:
        """Use `open` instead."""
        super().__init__(runtime.clock, version)
        self._path, self._links, self._db = path, links, db
        self._runtime = runtime
        self._view: RocksDbView | None = RocksDbView(db, version, KnownRows())

    @classmethod
    async def open(cls, path: str, runtime: Runtime, *, cluster_id: str) -> "RocksDbReader":
        """Open what is in directory `path` now.

        Raises:
            FsError: KV_BAD_FORMAT when it is newer than this program, of another cluster, or no
                EmberFS store; KV_DAMAGED when RocksDB finds damage; IO_ERROR for the rest.
        """
        links, db = await runtime.run_blocking(_open_links, path)
        try:
            version = check_known(db, path, cluster_id)
        except BaseException:
            await runtime.run_blocking(_close, links, db)
            raise
        return cls(path, links, db, version, runtime)

    async def sync(self) -> None:
        """See KvEngine.sync; there is nothing of ours."""

    async def aclose(self) -> None:
        """See KvEngine.aclose."""
        if self._view is not None:
            self._view.release()
            self._view = None
            await self._runtime.run_blocking(_close, self._links, self._db)

    def open_view(self) -> RocksDbView:
        """See LocalEngine.open_view."""
        assert self._view is not None, "the reader is closed"
        return self._view

    def current(self, key: bytes) -> bytes | None:
        """See LocalEngine.current."""
        return self.open_view().get(key)

    def apply(self, _version: int, _mutations: Mutations) -> None:
        """Refuse a commit; raises FsError(READ_ONLY)."""
        raise FsError(Status.READ_ONLY, f"key-value store {self._path} is opened for reading only")


def _open_links(path: str) -> tuple[Path, Rdict]:
    """Open a store through links to its files; return the folder of these, and the store."""
    for tries_left in reversed(range(TRIES)):
        links = Path(tempfile.mkdtemp(prefix="emberfs-kv-"))
        try:
            for file in Path(path).absolute().iterdir():
                if file.name not in OWN_NAMES:
                    (links / file.name).symlink_to(file)
            check_readable(Path(path).absolute())
            return links, Rdict(
                str(links), **reading_options(), access_type=AccessType.read_only(False)
            )
        except Exception as error:
            shutil.rmtree(links)
            if isinstance(error, FsError):
                raise
            if not tries_left or "No such file" not in str(error):
                raise opening_error(path, error) from error
    raise AssertionError


def _close(links: Path, db: Rdict) -> None:
    try:
        db.close()
    finally:
        shutil.rmtree(links)
