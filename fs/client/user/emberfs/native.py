"""The batch interface inside the process: `NativeClient`,
for where there is no mount (containers without FUSE).

Needs `fs`, the file system's own package.  Connections belong to the process (`emberfs.clusters`):
all clients of a cluster share one, and the child of a fork has its own.

Invariants:
    - Bytes reach the callers' buffers, of any kind, straight from the connection.
    - A file that the parent of a fork has opened is opened anew in the child, by
      its path, without being emptied.
"""

import errno
import mmap
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Self

try:
    from fs.client.blocking import BlockingFile, BlockingFs
    from fs.client.entries import Identity
    from fs.schema.status import FsError
except ModuleNotFoundError as error:
    if error.name != "fs":
        raise
    said = "emberfs.native needs the package emberfs, not emberfs-user alone"
    raise ModuleNotFoundError(said, name="fs") from error

from .batch import (
    BatchFile,
    OpenMode,
    Transfer,
    as_bytes,
    listed,
    need_bytes,
    need_mode,
    need_offset,
    need_size,
    need_view,
    no_transfer,
)
from .closing import Closing, Memory, OfOneProcess, in_use, shown
from .clusters import Place, connection, find_place, os_error, os_errors, split_url


class NativeFile(OfOneProcess):
    """See `BatchFile`."""

    def __init__(self, client: "NativeClient", path: str, mode: OpenMode) -> None:
        """Open a file; raises OSError."""
        self._client = client
        self.path = path
        self.can_read = mode in {"r", "r+"}
        self.can_write = mode != "r"
        self._lock = threading.Lock()
        self._is_closed = False
        self._file = self._opened(mode)
        self._pid = os.getpid()

    def _opened(self, mode: OpenMode) -> BlockingFile:
        fs, inner = self._client.fs(), split_url(self.path)[2]
        with os_errors(self.path):
            if mode == "r":
                return fs.open(inner)
            if mode == "r+":
                fs.stat(inner)  # which must be there; `create` would make it
            return fs.create(inner, exclusive=mode == "x", truncate=mode == "w")

    def __repr__(self) -> str:
        return shown(self, repr(self.path), is_closed=self._is_closed)

    def blocking(self) -> BlockingFile:
        """Return the file as this process has it open; raises OSError."""
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # another thread of the parent may have held it
            self._file = self._opened("r+" if self.can_write else "r")
            self._pid = os.getpid()
        return self._file

    def length(self) -> int:
        """See `BatchFile`."""
        return self.blocking().length

    def fsync(self) -> None:
        """See `BatchFile`."""
        with os_errors(self.path):
            self.blocking().fsync()

    def close(self) -> None:
        """See `BatchFile`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._client.forget(self)
        if self._pid == os.getpid():
            with os_errors(self.path):
                self._file.close()


class NativeIov(Memory):
    """See `Iov`: plain memory, which every buffer is as good as here."""

    def __init__(self, size: int) -> None:
        self._mapping: mmap.mmap | None = mmap.mmap(-1, size)
        self.view = memoryview(self._mapping)

    def __repr__(self) -> str:
        is_closed = self._mapping is None
        size = "" if is_closed else f"of {len(self.view)} bytes"
        return shown(self, size, is_closed=is_closed)

    def close(self) -> None:
        """See `Iov`."""
        if self._mapping is None:
            return
        self.view.release()
        try:
            self._mapping.close()
        except BufferError:
            self.view = memoryview(self._mapping)
            raise in_use(len(self._mapping)) from None
        self._mapping = None


class NativeClient(Closing):
    """See `BatchClient`.  Paths are those of the file system,
    with or without `ember://.../` before them.
    """

    def __init__(
        self,
        cluster: str | os.PathLike[str] | None = None,
        *,
        hosts: str | Sequence[str] = (),
        cluster_id: str = "",
        identity: Identity | None = None,
        token: str = "",
        token_file: str = "",
    ) -> None:
        """Find a cluster and connect; the arguments are those of `emberfs.clusters.find_place`.

        Raises:
            OSError: there is none, or it does not answer.
        """
        place = find_place(
            cluster=cluster,
            hosts=hosts,
            cluster_id=cluster_id,
            identity=identity,
            token=token,
            token_file=token_file,
        )
        self._begin(place)
        self.fs()

    def __getstate__(self) -> Place:
        return self._place  # files do not travel: they are of this process

    def __setstate__(self, place: Place) -> None:
        self._begin(place)

    def _begin(self, place: Place) -> None:
        self._place = place
        self._is_closed = False
        self._files: set[NativeFile] = set()

    def __repr__(self) -> str:
        return shown(self, f"of cluster {self._place.cluster_id}", is_closed=self._is_closed)

    @classmethod
    def of_url(cls, url: str) -> Self:
        """Connect to the cluster of `ember://[CLUSTER_ID@][HOST:PORT,...]/`; see `split_url`."""
        cluster_id, hosts, _ = split_url(url)
        return cls(hosts=hosts, cluster_id=cluster_id)

    def fs(self) -> BlockingFs:
        """Return this process's connection; raises OSError."""
        with os_errors(f"ember://{','.join(self._place.addresses)}"):
            return connection(self._place)

    def forget(self, file: NativeFile) -> None:
        """A file was closed."""
        self._files.discard(file)

    def open(self, path: str | os.PathLike[str], mode: OpenMode = "r") -> NativeFile:
        """See `BatchClient`."""
        path = os.fsdecode(path)
        need_mode(mode)
        if self._is_closed:
            raise OSError(errno.EBADF, "this client is closed", path)
        file = NativeFile(self, path, mode)
        self._files.add(file)
        return file

    def allocate(self, size: int) -> NativeIov:
        """See `BatchClient`."""
        need_size(size)
        if self._is_closed:
            raise OSError(errno.EBADF, "this client is closed")
        return NativeIov(size)

    def read(self, transfers: Iterable[Transfer]) -> list[int]:
        """See `BatchClient`."""
        transfers = listed(transfers)
        for transfer in transfers:
            if _checked(transfer).buffer.readonly:
                raise TypeError(f"a buffer for {transfer.file.path!r} is read-only")
        failures: dict[int, OSError] = {}
        wanted = self._opened(transfers, failures, for_read=True)
        counts = [0] * len(transfers)
        results = self.fs().read_each([triple for _, triple in wanted])
        for (index, _), result in zip(wanted, results, strict=True):
            if isinstance(result, FsError):
                failures[index] = os_error(result, transfers[index].file.path)
            else:
                counts[index] = result
        _raise_first(failures)
        return counts

    def write(self, transfers: Iterable[Transfer]) -> None:
        """See `BatchClient`."""
        transfers = listed(transfers)
        for transfer in transfers:
            _checked(transfer)
        failures: dict[int, OSError] = {}
        wanted = self._opened(transfers, failures, for_read=False)
        results = self.fs().write_each([triple for _, triple in wanted])
        for (index, _), result in zip(wanted, results, strict=True):
            if result is not None:
                failures[index] = os_error(result, transfers[index].file.path)
        _raise_first(failures)

    def _opened(
        self, transfers: Sequence[Transfer], failures: dict[int, OSError], *, for_read: bool
    ) -> list[tuple[int, tuple[BlockingFile, int, memoryview]]]:
        """Return (position, triple) of what can be done, and note what cannot."""
        wanted = []
        for index, transfer in enumerate(transfers):
            file = _own(transfer.file)
            try:
                if not (file.can_read if for_read else file.can_write):
                    raise OSError(errno.EBADF, "the file was not opened for this", file.path)  # noqa: TRY301 - collected
                triple = (file.blocking(), transfer.offset, as_bytes(transfer.buffer))
                wanted.append((index, triple))
            except OSError as error:
                failures[index] = error
        return wanted

    def close(self) -> None:
        """See `BatchClient`.  The connection stays, for other clients of the process.

        Raises:
            OSError: the first failure of closing a file.
        """
        if self._is_closed:
            return
        self._is_closed = True
        failures: dict[int, OSError] = {}
        for index, file in enumerate(list(self._files)):
            try:
                file.close()
            except OSError as error:
                failures[index] = error
        _raise_first(failures)


def _own(file: BatchFile) -> NativeFile:
    if not isinstance(file, NativeFile):
        raise TypeError(f"{file!r} was not opened by a NativeClient")
    return file


def _checked(transfer: Transfer) -> Transfer:
    if not isinstance(transfer, Transfer):
        raise no_transfer(transfer)
    buffer, path = transfer.buffer, _own(transfer.file).path
    need_view(path, buffer)
    need_offset(path, transfer.offset)
    need_bytes(path, buffer)
    return transfer


def _raise_first(failures: dict[int, OSError]) -> None:
    if failures:
        raise failures[min(failures)]
