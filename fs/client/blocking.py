"""The native client for plain threads: every method of `EmberFs` and `EmberFile`, without async.

One background thread runs the event loop with the connections; calls from any thread are handed
to it and wait for the answer.

Invariants:
    - After `close` (or leaving the `with` block) no thread of ours is left.  Who is interrupted
      while it connects leaves a thread that ends as soon as it has connected, or cannot.
    - What moves bytes into or out of the caller's memory ends with the call, also where an
      interrupt ends that: reads are cancelled, writes end.  All else goes on without the caller, as
      a close that is half done had better.
    - An object made before a fork must not be used in the child: it has no
      event loop there, and says so.
"""

import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Self, TypeVar

import trio

from ..rpc.credentials import Token
from ..rpc.transport import SocketNetwork
from ..runtime.ports import Buffer
from ..runtime.real import real_runtime
from ..schema.config import AuthSection, ProcessConfig
from ..schema.inode import Inode
from ..schema.status import FsError, Status
from .connect import connect
from .entries import DirectoryUsage, DirEntry, FoundPath, Identity, TrashEntry
from .interruptible import LOOK_S, InterruptibleCall
from .native import EmberFs
from .native_file import EmberFile

T = TypeVar("T")


def connect_blocking(
    mgmtd_addresses: Sequence[str],
    cluster_id: str,
    *,
    identity: Identity | None = None,
    token: Token | None = None,
    key_file: str = "",
) -> "BlockingFs":
    """Return a file system to be used in a `with` block, which connects on entering.

    Args:
        mgmtd_addresses: one or more managers, `tcp:HOST:PORT` or `unix:/PATH`.
        cluster_id: of the cluster that is expected there.
        identity: on whose behalf; default: the token's user, without a token this process's.
        token: instead of the credentials that the environment names.
        key_file: of a closed cluster, for who has its key and names no token;
            default: as the environment says.
    """
    config = ProcessConfig(auth=AuthSection(key_file=key_file))
    return BlockingFs(
        lambda: connect(
            mgmtd_addresses,
            cluster_id,
            runtime=real_runtime(SocketNetwork()),
            config=config,
            identity=identity,
            token=token,
        )
    )


class BlockingFile:
    """An open file; see `EmberFile`."""

    def __init__(self, owner: "BlockingFs", file: EmberFile) -> None:
        self._owner = owner
        self._file = file

    def __repr__(self) -> str:
        return f"<BlockingFile {self._file.path!r}{', closed' if self._file.is_closed else ''}>"

    @property
    def length(self) -> int:
        """Bytes in the file."""
        return self._file.length

    @property
    def inode_id(self) -> int:
        """Names the file as long as it lives, whatever its path becomes."""
        return self._file.ref.inode_id

    @property
    def is_inline(self) -> bool:
        """Whether meta keeps its bytes, which come with its open."""
        return self._file.is_inline

    def read(self, offset: int, length: int) -> bytes:
        """See `EmberFile.read`."""
        return self._owner.run(lambda: self._file.read(offset, length))

    def read_into(self, offset: int, buffer: Buffer) -> int:
        """See `EmberFile.read_into`."""
        return self._owner.run(
            lambda: self._file.read_into(offset, buffer), borrows=True, is_cancelled=True
        )

    def write(self, offset: int, data: Buffer) -> None:
        """See `EmberFile.write`."""
        self._owner.run(lambda: self._file.write(offset, data), borrows=True)

    def prefetch(self, offset: int = 0, length: int | None = None) -> tuple[int, list[FsError]]:
        """See `EmberFs.prefetch`."""
        return self._owner.prefetch(self._file, offset, length)

    def append(self, data: Buffer) -> int:
        """See `EmberFile.append`."""
        return self._owner.run(lambda: self._file.append(data), borrows=True)

    def truncate(self, length: int) -> None:
        """See `EmberFile.truncate`."""
        self._owner.run(lambda: self._file.truncate(length))

    def fsync(self) -> None:
        """See `EmberFile.fsync`."""
        self._owner.run(self._file.fsync)

    def close(self) -> None:
        """See `EmberFile.close`."""
        self._owner.run(self._file.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class BlockingFs:
    """A file system for plain threads; see `EmberFs`.  Use it in a `with` block."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[EmberFs]]) -> None:
        """Take a function that connects, for example a partial of `fs.client.connect.connect`."""
        self._connect = connect
        self._pid = os.getpid()
        self._fs: EmberFs | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._is_given_up = False
        """Whoever was to use it was interrupted before it had connected."""
        self._thread = threading.Thread(target=self._main, name="emberfs-client", daemon=True)

    def _main(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits in __enter__
            self._failure = error
        self._ready.set()

    async def _serve(self) -> None:
        async with self._connect() as connected:
            self._fs = connected
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            self._ready.set()
            if not self._is_given_up:
                await self._stop.wait()

    def __enter__(self) -> Self:
        try:
            self._thread.start()
            while not self._ready.wait(LOOK_S):
                pass  # a signal that comes in the moment when a wait begins is met when it ends
        except BaseException:
            self._is_given_up = True
            self.close()  # if it has connected in this moment
            raise
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect and end the background thread;
        repeating does nothing, nor does the child of a fork.
        """
        if self._token is None or self._stop is None or os.getpid() != self._pid:
            return
        token, stop = self._token, self._stop
        self._token = None
        with suppress(trio.RunFinishedError):  # the loop has failed; there is nothing left to stop
            trio.from_thread.run_sync(stop.set, trio_token=token)
        self._thread.join()

    def __repr__(self) -> str:
        return f"<BlockingFs, {'connected' if self.is_usable else 'not connected'}>"

    @property
    def is_usable(self) -> bool:
        """False when it is closed, its event loop has failed, or this is the child of a fork."""
        return self._token is not None and os.getpid() == self._pid and self._thread.is_alive()

    def run(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        borrows: bool = False,
        is_cancelled: bool = False,
    ) -> T:
        """Run an async function of the client on its event loop and return its result.

        Args:
            function: goes on by itself where an interrupt ends the wait for it.
            borrows: it uses memory of the caller; then it ends before an interrupt goes on.
            is_cancelled: it is cancelled then; else it ends as it would have.
        """
        if self._token is None or os.getpid() != self._pid:
            raise FsError(Status.NOT_RUNNING, self._why_not_usable())
        try:
            if borrows:
                call = InterruptibleCall(function, is_cancelled=is_cancelled)
                return call.make(self._token, self._thread)
            return trio.from_thread.run(function, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise FsError(
                Status.NOT_RUNNING, f"this client's event loop has ended: {self._failure or error}"
            ) from self._failure

    def _why_not_usable(self) -> str:
        if os.getpid() != self._pid:
            return "this client was made before a fork: connect in this process"
        if not self._ready.is_set():
            return "this client is not connected: it connects at the beginning of a `with` block"
        return "this client is closed: connect again"

    @property
    def _native(self) -> EmberFs:
        assert self._fs is not None, "used outside its with block"
        return self._fs

    def stat(self, path: str, *, follow: bool = True) -> Inode:
        """See `EmberFs.stat`."""
        return self.run(lambda: self._native.stat(path, follow=follow))

    def stat_many(self, paths: Sequence[str], *, follow: bool = True) -> list[Inode | FsError]:
        """See `EmberFs.stat_many`."""
        return self.run(lambda: self._native.stat_many(paths, follow=follow))

    def exists(self, path: str) -> bool:
        """See `EmberFs.exists`."""
        return self.run(lambda: self._native.exists(path))

    def listdir(self, path: str) -> list[DirEntry]:
        """See `EmberFs.listdir`."""
        return self.run(lambda: self._native.listdir(path))

    def find(self, path: str, *, depth_max: int | None = None) -> list[FoundPath]:
        """See `EmberFs.find`."""
        return self.run(lambda: self._native.find(path, depth_max=depth_max))

    def mkdir(self, path: str, mode: int = 0o755, *, exist_ok: bool = False) -> Inode:
        """See `EmberFs.mkdir`."""
        return self.run(lambda: self._native.mkdir(path, mode, exist_ok=exist_ok))

    def makedirs(self, path: str, mode: int = 0o755) -> None:
        """See `EmberFs.makedirs`."""
        self.run(lambda: self._native.makedirs(path, mode))

    def unlink(self, path: str) -> None:
        """See `EmberFs.unlink`."""
        self.run(lambda: self._native.unlink(path))

    def rmdir(self, path: str) -> None:
        """See `EmberFs.rmdir`."""
        self.run(lambda: self._native.rmdir(path))

    def remove_tree(self, path: str) -> None:
        """See `EmberFs.remove_tree`."""
        self.run(lambda: self._native.remove_tree(path))

    def move_to_trash(self, path: str, expire_s: int = 0) -> None:
        """See `EmberFs.move_to_trash`."""
        self.run(lambda: self._native.move_to_trash(path, expire_s))

    def trash(self) -> list[TrashEntry]:
        """See `EmberFs.trash`."""
        return self.run(self._native.trash)

    def restore(self, entry: TrashEntry, to: str = "") -> str:
        """See `EmberFs.restore`."""
        return self.run(lambda: self._native.restore(entry, to))

    def remove_for_good(self, entry: TrashEntry) -> None:
        """See `EmberFs.remove_for_good`."""
        self.run(lambda: self._native.remove_for_good(entry))

    def paths_of(self, inode_id: int) -> list[str]:
        """See `EmberFs.paths_of`."""
        return self.run(lambda: self._native.paths_of(inode_id))

    def real_path(self, inode_id: int) -> str:
        """See `EmberFs.real_path`."""
        return self.run(lambda: self._native.real_path(inode_id))

    def lock_directory(self, path: str, *, preempt: bool = False) -> None:
        """See `EmberFs.lock_directory`."""
        self.run(lambda: self._native.lock_directory(path, preempt=preempt))

    def unlock_directory(self, path: str, *, clear: bool = False) -> None:
        """See `EmberFs.unlock_directory`."""
        self.run(lambda: self._native.unlock_directory(path, clear=clear))

    def usage(self, path: str) -> tuple[DirectoryUsage, list[DirectoryUsage]]:
        """See `EmberFs.usage`."""
        return self.run(lambda: self._native.usage(path))

    def set_quota(self, path: str, *, bytes_max: int, inodes_max: int) -> None:
        """See `EmberFs.set_quota`."""
        self.run(lambda: self._native.set_quota(path, bytes_max=bytes_max, inodes_max=inodes_max))

    def quotas(self) -> list[DirectoryUsage]:
        """See `EmberFs.quotas`."""
        return self.run(self._native.quotas)

    def rename(
        self, old: str, new: str, *, no_replace: bool = False, exchange: bool = False
    ) -> None:
        """See `EmberFs.rename`."""
        self.run(lambda: self._native.rename(old, new, no_replace=no_replace, exchange=exchange))

    def link(self, old: str, new: str) -> None:
        """See `EmberFs.link`."""
        self.run(lambda: self._native.link(old, new))

    def symlink(self, target: str, path: str) -> None:
        """See `EmberFs.symlink`."""
        self.run(lambda: self._native.symlink(target, path))

    def readlink(self, path: str) -> str:
        """See `EmberFs.readlink`."""
        return self.run(lambda: self._native.readlink(path))

    def set_attributes(
        self,
        path: str,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        times_now: bool = False,
        follow: bool = True,
    ) -> Inode:
        """See `EmberFs.set_attributes`."""
        return self.run(
            lambda: self._native.set_attributes(
                path,
                mode=mode,
                uid=uid,
                gid=gid,
                atime_ns=atime_ns,
                mtime_ns=mtime_ns,
                times_now=times_now,
                follow=follow,
            )
        )

    def change_owner_below(
        self, path: str, *, uid: int | None = None, gid: int | None = None
    ) -> int:
        """See `EmberFs.change_owner_below`."""
        return self.run(lambda: self._native.change_owner_below(path, uid=uid, gid=gid))

    def open(self, path: str, *, is_writable: bool = False) -> BlockingFile:
        """See `EmberFs.open`."""
        return BlockingFile(
            self, self.run(lambda: self._native.open(path, is_writable=is_writable))
        )

    def open_many(self, paths: Sequence[str]) -> list[BlockingFile | FsError]:
        """See `EmberFs.open_many`."""
        opened = self.run(lambda: self._native.open_many(paths))
        return [file if isinstance(file, FsError) else BlockingFile(self, file) for file in opened]

    def create(
        self, path: str, mode: int = 0o644, *, exclusive: bool = False, truncate: bool = True
    ) -> BlockingFile:
        """See `EmberFs.create`."""
        return BlockingFile(
            self,
            self.run(
                lambda: self._native.create(path, mode, exclusive=exclusive, truncate=truncate)
            ),
        )

    def read_file(self, path: str) -> bytes:
        """See `EmberFs.read_file`."""
        return self.run(lambda: self._native.read_file(path))

    def write_file(self, path: str, data: Buffer) -> None:
        """See `EmberFs.write_file`."""
        self.run(lambda: self._native.write_file(path, data))

    def write_files(self, contents: Mapping[str, Buffer]) -> dict[str, FsError]:
        """See `EmberFs.write_files`."""
        return self.run(lambda: self._native.write_files(contents))

    def copy_file(self, source: str, target: str, mode: int = 0o644) -> int:
        """See `EmberFs.copy_file`."""
        return self.run(lambda: self._native.copy_file(source, target, mode))

    def prefetch(
        self, file: EmberFile, offset: int = 0, length: int | None = None
    ) -> tuple[int, list[FsError]]:
        """See `EmberFs.prefetch`; `BlockingFile.prefetch` is what programs call."""
        return self.run(lambda: self._native.prefetch(file, offset, length))

    def read_batch(self, reads: Sequence[tuple[BlockingFile, int, Buffer]]) -> list[int]:
        """See `EmberFs.read_batch`."""
        unwrapped = [(file._file, offset, buffer) for file, offset, buffer in reads]  # noqa: SLF001
        return self.run(lambda: self._native.read_batch(unwrapped), borrows=True, is_cancelled=True)

    def read_each(self, reads: Sequence[tuple[BlockingFile, int, Buffer]]) -> list[int | FsError]:
        """See `EmberFs.read_each`."""
        unwrapped = [(file._file, offset, buffer) for file, offset, buffer in reads]  # noqa: SLF001
        return self.run(lambda: self._native.read_each(unwrapped), borrows=True, is_cancelled=True)

    def write_each(
        self, writes: Sequence[tuple[BlockingFile, int, Buffer]]
    ) -> list[FsError | None]:
        """See `EmberFs.write_each`."""
        unwrapped = [(file._file, offset, data) for file, offset, data in writes]  # noqa: SLF001
        return self.run(lambda: self._native.write_each(unwrapped), borrows=True)
