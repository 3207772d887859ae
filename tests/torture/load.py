"""One process of the load: works on files of its own, knows what they must hold,
and checks whatever it reads.

    python -m tests.torture.load KIND --path DIR --seed N --stop FILE --log FILE
        [--manager ADDRESS ... --cluster ID]

KIND: `files`, `fsx` and `manifest` work through the mount, `native` through the client library.
Works until FILE exists, then syncs and verifies everything anew.  When the mount dies, it
judges what the next one shows, and goes on there.  Writes JSON lines to the log: every slow
operation, every error that the application saw, and at the end a summary.  Exit code 1 for
wrong content or an error other than ENOSPC.
"""

import argparse
import errno
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from fs.client.blocking import BlockingFs, connect_blocking
from fs.schema.status import FsError, spec
from tests.real.fsx import Fsx

from .content import BLOCK_BYTES, FileModel
from .manifest import ManifestLoad
from .survive import MountDiedError, MountWatch, close_dead

SLOW_S: Final = 0.1
FILE_COUNT: Final = 24
BLOCKS_MAX: Final = 640
RUN_BLOCKS_MAX: Final = 48
FSX_LENGTH_MAX: Final = 3 << 20


class WrongContentError(Exception):
    """The file system returned something that was never to be returned."""


class Files(Protocol):
    """What the load needs of a file system; paths are names in one directory."""

    def write(self, name: str, offset: int, data: bytes) -> None: ...
    def append(self, name: str, data: bytes) -> None: ...
    def read(self, name: str, offset: int, length: int) -> bytes: ...
    def sync(self, name: str) -> None: ...
    def length(self, name: str) -> int: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, name: str) -> None: ...
    def names(self) -> list[str]: ...
    def forget(self, name: str) -> None: ...
    def require_alive(self) -> None: ...
    def wait_next(self) -> None: ...


def read_fully(descriptor: int, offset: int, length: int) -> bytes:
    """Read until there is no more: an error behind bytes that the kernel still had is told
    by the next read only.
    """
    data = b""
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class MountFiles:
    """Through the kernel; descriptors stay open between operations,
    pages read are dropped from the cache.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, int] = {}
        directory.mkdir(exist_ok=True)
        self._watch = MountWatch(directory)

    def require_alive(self) -> None:
        self._watch.require_alive()

    def wait_next(self) -> None:
        for descriptor in self._open.values():
            close_dead(descriptor)
        self._open.clear()
        self._watch.wait_next()

    def _fd(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = os.open(self._directory / name, os.O_RDWR | os.O_CREAT, 0o644)
        return self._open[name]

    def write(self, name: str, offset: int, data: bytes) -> None:
        done = os.pwrite(self._fd(name), data, offset)
        if done != len(data):
            raise OSError(errno.ENOSPC, f"{name}: {done} of {len(data)} bytes written")

    def append(self, name: str, data: bytes) -> None:
        descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            done = os.write(descriptor, data)
        finally:
            os.close(descriptor)
        if done != len(data):
            raise OSError(errno.ENOSPC, f"{name}: {done} of {len(data)} bytes written")

    def read(self, name: str, offset: int, length: int) -> bytes:
        os.posix_fadvise(self._fd(name), 0, 0, os.POSIX_FADV_DONTNEED)
        return read_fully(self._fd(name), offset, length)

    def sync(self, name: str) -> None:
        os.fsync(self._fd(name))

    def length(self, name: str) -> int:
        return os.fstat(self._fd(name)).st_size

    def rename(self, old: str, new: str) -> None:
        (self._directory / old).rename(self._directory / new)
        self._discard(new)
        if old in self._open:
            self._open[new] = self._open.pop(old)

    def unlink(self, name: str) -> None:
        (self._directory / name).unlink()
        self._discard(name)

    def _discard(self, name: str) -> None:
        """Close a file that has no name any more: that its last bytes found no space
        is nobody's loss.
        """
        try:
            self.forget(name)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def names(self) -> list[str]:
        return sorted(os.listdir(self._directory))

    def forget(self, name: str) -> None:
        if name in self._open:
            os.close(self._open.pop(name))


class NativeFiles:
    """Through the client library, which has no caches to hide behind."""

    def __init__(self, fs: BlockingFs, directory: str) -> None:
        self._fs, self._directory = fs, directory
        fs.mkdir(directory, exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def write(self, name: str, offset: int, data: bytes) -> None:
        with self._fs.create(self._path(name), truncate=False) as file:
            file.write(offset, data)

    def append(self, name: str, data: bytes) -> None:
        with self._fs.create(self._path(name), truncate=False) as file:
            file.write(file.length, data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with self._fs.open(self._path(name)) as file:
            return file.read(offset, length)

    def sync(self, name: str) -> None:
        with self._fs.create(self._path(name), truncate=False) as file:
            file.fsync()

    def length(self, name: str) -> int:
        with self._fs.open(self._path(name)) as file:
            return file.length

    def rename(self, old: str, new: str) -> None:
        self._fs.rename(self._path(old), self._path(new))

    def unlink(self, name: str) -> None:
        self._fs.unlink(self._path(name))

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self._fs.listdir(self._directory))

    def forget(self, name: str) -> None:
        pass

    def require_alive(self) -> None:
        """There is no mount below."""

    def wait_next(self) -> None:
        raise AssertionError("there is no mount below")


class Log:
    """The JSON lines that the runner reads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self.op_count = 0
        self.longest_s = 0.0

    def put(self, **fields: object) -> None:
        self._file.write(json.dumps(fields) + "\n")

    @contextmanager
    def timed(self, op: str) -> Iterator[None]:
        """Note an operation that takes long, also when it fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.op_count += 1
            self.longest_s = max(self.longest_s, took)
            if took >= SLOW_S:
                self.put(slow=op, begin=began, end=began + took)


class FileLoad:
    """Many files; see fs/../content.py for what each may hold."""

    def __init__(self, files: Files, seed: int, log: Log) -> None:
        self._files, self._seed, self._log = files, seed, log
        self._generator = random.Random(seed)
        self._models: dict[str, FileModel] = {}
        self._pending: tuple[str, ...] = ()
        """What the change of names that may be under way concerns:
        a name, or the old and the new one.
        """
        self._next_id = 1
        self._touched_s: dict[int, float] = {}
        """When the last operation on a file began that would have told of a write
        that was lost before it.
        """
        self._actions: list[tuple[Callable[[str], None], int]] = [
            (self._overwrite, 30),
            (self._append, 14),
            (self._read, 26),
            (self._sync, 10),
            (self._rename, 4),
            (self._replace, 3),
            (self._unlink, 4),
            (self._whole, 6),
            (self._reopen, 3),
        ]

    def step(self) -> None:
        """Do one thing to one file."""
        self._pending = ()
        if (len(self._models) < FILE_COUNT and self._generator.random() < 0.2) or not self._models:
            return self._create()
        name = self._generator.choice(sorted(self._models))
        actions, weights = zip(*self._actions, strict=True)
        action = self._generator.choices(actions, weights)[0]
        with self._guard(name), self._log.timed(action.__name__.strip("_")):
            action(name)
        return None

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """Take a full disk for what it is: judge what the file holds then,
        and begin another one.
        """
        began, file_id = time.monotonic(), self._models[name].file_id
        try:
            yield
        except (OSError, FsError) as error:
            self._files.require_alive()
            number = spec(error.status).errno if isinstance(error, FsError) else error.errno
            since = self._touched_s.get(file_id, began)
            self._log.put(
                errno=number, text=str(error), at=time.monotonic(), since=since, file=name
            )
            if number not in (errno.ENOSPC, errno.EDQUOT):
                raise
            model = self._models[name]
            model.failed()
            self._give_up(name, model)

    def _give_up(self, name: str, model: FileModel) -> None:
        """After a reported loss: check, then remove the file."""
        try:
            self._files.forget(name)
        except OSError as error:
            self._files.require_alive()
            self._log.put(errno=error.errno, text=f"close: {error}", at=time.monotonic(), file=name)
            if error.errno != errno.ENOSPC:
                raise
        self._check_all(name, model)
        self._files.unlink(name)
        del self._models[name]

    def _create(self) -> None:
        name = f"f{self._next_id:06d}"
        self._models[name] = FileModel(self._seed, self._next_id)
        self._next_id += 1
        self._pending = (name,)
        with self._guard(name), self._log.timed("create"):
            self._append(name)

    def _overwrite(self, name: str) -> None:
        model = self._models[name]
        first = self._generator.randrange(min(len(model.cells) + 8, BLOCKS_MAX))
        count = self._generator.randint(1, RUN_BLOCKS_MAX)
        data = model.write(first, count)
        with self._telling(model):
            self._files.write(name, first * BLOCK_BYTES, data)

    @contextmanager
    def _telling(self, model: FileModel) -> Iterator[None]:
        """Note that an operation succeeds which would have told
        of an earlier write that was lost.
        """
        began = time.monotonic()
        yield
        self._touched_s[model.file_id] = began

    def _append(self, name: str) -> None:
        model = self._models[name]
        if len(model.cells) >= BLOCKS_MAX:
            return self._read(name)
        # else what follows goes to another place than planned, if
        # buffered bytes were lost meanwhile
        if model.cells:
            self._told(name, model.check_length(self._files.length(name)))
        data = model.write(len(model.cells), self._generator.randint(1, RUN_BLOCKS_MAX))
        with self._telling(model):
            self._files.append(name, data)
        return None

    def _read(self, name: str) -> None:
        model = self._models[name]
        first = self._generator.randrange(max(1, len(model.cells)))
        count = min(self._generator.randint(1, 64), len(model.cells) - first)
        wanted = count * BLOCK_BYTES
        self._check(name, first, self._files.read(name, first * BLOCK_BYTES, wanted), wanted)

    def _sync(self, name: str) -> None:
        with self._telling(self._models[name]):
            self._files.sync(name)
        self._models[name].synced()

    def _rename(self, name: str) -> None:
        new = f"{name[:7]}.{self._generator.randrange(100)}"
        if new not in self._models:
            self._pending = (name, new)
            self._files.rename(name, new)
            self._models[new] = self._models.pop(name)

    def _replace(self, name: str) -> None:
        """Rename over another file, as editors and checkpoints do."""
        other = self._generator.choice(sorted(self._models))
        if other != name:
            self._pending = (name, other)
            self._files.rename(name, other)
            self._models[other] = self._models.pop(name)

    def _unlink(self, name: str) -> None:
        self._pending = (name,)
        self._files.unlink(name)
        del self._models[name]

    def _reopen(self, name: str) -> None:
        self._files.forget(name)

    def _whole(self, name: str) -> None:
        self._check_all(name, self._models[name])

    def _check_all(self, name: str, model: FileModel) -> None:
        length = self._files.length(name)
        self._told(name, model.check_length(length))
        step = 64
        for first in range(0, -(-length // BLOCK_BYTES), step):
            wanted = min(step * BLOCK_BYTES, length - first * BLOCK_BYTES)
            self._check(name, first, self._files.read(name, first * BLOCK_BYTES, wanted), wanted)

    def _check(self, name: str, first: int, data: bytes, wanted: int) -> None:
        problem = self._models[name].check(first, data)
        if problem is None and len(data) != wanted:
            problem = (
                f"lost write: {len(data)} bytes of {name} read from block {first}, not {wanted}"
            )
        self._told(name, problem)

    def _told(self, name: str, problem: str | None) -> None:
        """Raise a problem, unless it is of bytes that were buffered and then lost,
        which the next sync must tell of.
        """
        if problem and "lost write" in problem:
            self._files.sync(name)  # raises, and is judged where a full disk is
        self._raise(problem)

    def _raise(self, problem: str | None) -> None:
        if problem:
            raise WrongContentError(problem)

    def survive(self) -> None:
        """The mount has died: judge what the next one shows, then begin anew with other files.

        Names are as they were, but for the change under way; each block is as
        synced, or as written later.
        """
        self._files.wait_next()
        names = self._files.names()
        pending, self._pending = self._pending, ()
        if pending and pending[0] not in names and pending[0] in self._models:
            model = self._models.pop(pending[0])
            for new in pending[1:]:
                self._models[new] = model
        if names != sorted(self._models):
            raise WrongContentError(f"names {names}, expected {sorted(self._models)}, {pending}")
        for name, model in sorted(self._models.items()):
            model.failed()
            length = self._files.length(name)
            data = self._files.read(name, 0, length)
            self._raise(model.check_length(length) or model.check(0, data))
            if len(data) != length:
                raise WrongContentError(f"{name}: {len(data)} bytes read of {length}")
            self._files.unlink(name)
        self._models.clear()

    def finish(self) -> dict[str, int]:
        """Sync, close, open and read everything; the names must be right, too."""
        for name, model in sorted(self._models.items()):
            with self._guard(name):
                self._files.sync(name)
                model.synced()
        names = self._files.names()
        if names != sorted(self._models):
            raise WrongContentError(f"names {names}, expected {sorted(self._models)}")
        for name, model in sorted(self._models.items()):
            self._files.forget(name)
            self._check_all(name, model)
        return {"files": len(names), "blocks": sum(len(m.cells) for m in self._models.values())}


class FsxLoad:
    """Bytes instead of blocks: one file, compared with a twin after every step."""

    def __init__(self, directory: Path, seed: int, log: Log) -> None:
        directory.mkdir(exist_ok=True)
        self._directory, self._log = directory, log
        self._watch = MountWatch(directory)
        self._generator = random.Random(seed)
        self._count = 0
        self._fsx = self._new()

    def _new(self) -> Fsx:
        self._count += 1
        return Fsx(self._directory / f"fsx{self._count}", self._generator, FSX_LENGTH_MAX)

    def step(self) -> None:
        try:
            with self._log.timed("fsx"):
                self._fsx.step()
        except AssertionError as error:
            self._judge(error)
        except OSError as error:
            self._restart(error)

    def _judge(self, problem: AssertionError) -> None:
        """Tell a short write, and bytes that were buffered and then reported lost,
        from wrong content.
        """
        try:
            self._fsx.sync()
        except OSError as error:
            self._restart(error)
            return
        if "wrote" not in str(problem):
            raise WrongContentError(str(problem)) from problem
        self._restart(OSError(errno.ENOSPC, str(problem)))

    def _restart(self, error: OSError) -> None:
        self._watch.require_alive()
        self._log.put(errno=error.errno, text=str(error), at=time.monotonic(), file="fsx")
        if error.errno != errno.ENOSPC:
            raise error
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._fsx.abandon()
        (self._directory / f"fsx{self._count}").unlink(missing_ok=True)
        self._fsx = self._new()

    def survive(self) -> None:
        """The mount has died: what is in the file now is not known here, so it begins anew."""
        self._watch.wait_next()
        self._begin_anew()

    def finish(self) -> dict[str, int]:
        try:
            self._fsx.finish()
        except AssertionError as error:
            raise WrongContentError(str(error)) from error
        return {"steps": self._fsx.step_count}


def hold_still(hold: Path, log: Log) -> None:
    """Do nothing, and say so, as long as the file exists: no operation is under way then."""
    if hold.exists():
        log.put(held=True)
        while hold.exists():
            time.sleep(0.05)
        log.put(held=False)


Load = FileLoad | FsxLoad | ManifestLoad


def step(load: Load, log: Log) -> None:
    """Do one thing; the death of the mount is survived."""
    try:
        load.step()
    except MountDiedError:
        log.put(dead=time.monotonic())
        load.survive()


def work(load: Load, log: Log, stop: Path, pause_s: float) -> int:
    """Step until told to stop; return the exit code."""
    try:
        step(load, log)
        log.put(started=time.monotonic())
        while not stop.exists():
            hold_still(stop.with_name("hold"), log)
            step(load, log)
            time.sleep(pause_s)
        log.put(stopping=time.monotonic())
        done = load.finish()
    except WrongContentError as error:
        log.put(wrong=str(error), at=time.monotonic())
        return 1
    except (OSError, FsError) as error:
        log.put(failed=f"{type(error).__name__}: {error}", at=time.monotonic())
        return 1
    log.put(done=done, ops=log.op_count, longest_s=log.longest_s)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["files", "fsx", "manifest", "native"])
    parser.add_argument("--path", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--stop", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--manager", nargs="*", default=[])
    parser.add_argument("--cluster", default="")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two operations")
    given = parser.parse_args()
    log = Log(given.log)
    if given.kind == "native":
        with connect_blocking(given.manager, given.cluster) as fs:
            load = FileLoad(NativeFiles(fs, given.path), given.seed, log)
            return work(load, log, given.stop, given.pause)
    if given.kind == "fsx":
        return work(FsxLoad(Path(given.path), given.seed, log), log, given.stop, given.pause)
    if given.kind == "manifest":
        manifest = ManifestLoad(Path(given.path), given.seed, given.log.with_suffix(".manifest"))
        return work(manifest, log, given.stop, 0.0)
    files = MountFiles(Path(given.path))
    return work(FileLoad(files, given.seed, log), log, given.stop, given.pause)


if __name__ == "__main__":
    sys.exit(main())
